//! `ebb top` in a terminal: signals leave that as it was, and a recording goes on when another tree is chosen.

use super::common::tree::Tree;
use super::common::{cannot_page, ebb, lacks_network_namespaces};
use super::{end_of, stderr};
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Stops and continues `ebb top` in a terminal, then ends it, by each signal. A process between them is its shell.
const SCRIPT: &str = "import fcntl, os, pty, signal, struct, sys, termios, time
ENDS = ['SIGTERM', 'SIGHUP', 'SIGINT', 'SIGQUIT']

def shell(told, command):
    # Tests may run where these are ignored.
    for name in ENDS: signal.signal(getattr(signal, name), signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
    read, write = os.pipe()
    top = os.fork()
    if top == 0:
        os.setpgid(0, 0)
        os.write(told, b'%d\\n' % os.getpid())
        os.read(read, 1)
        os.execvp(command[0], command)
    while os.getpgid(top) != top: time.sleep(0.001)
    os.tcsetpgrp(0, top)
    os.write(write, b'x')
    while True:
        status = os.waitpid(top, os.WUNTRACED)[1]
        stopped = os.WIFSTOPPED(status)
        number = os.WSTOPSIG(status) if stopped else os.waitstatus_to_exitcode(status)
        os.write(told, b'%d\\n' % number)
        # The terminal is not to be gone before it was looked at.
        if not stopped: time.sleep(20); os._exit(0)

def until(mark):
    global shown
    while mark not in shown: shown += os.read(terminal, 4096)
    shown = shown[shown.index(mark) + len(mark):]

def drawn():
    until(b'\\x1b[?1049h')
    until(b'faults')
    return is_raw()

def is_raw(): return not termios.tcgetattr(terminal)[3] & termios.ICANON

for name in ENDS:
    read, write = os.pipe()
    leader, terminal = pty.fork()
    if leader == 0: shell(write, sys.argv[1:])
    shown = b''
    line = lambda: int(os.read(read, 100))
    top = line()
    raw = [drawn()]
    os.kill(top, signal.SIGTSTP)
    until(b'\\x1b[?1049l')
    stopped = line()
    raw.append(is_raw())
    os.kill(top, signal.SIGCONT)
    raw.append(drawn())
    os.kill(top, getattr(signal, name))
    until(b'\\x1b[?1049l')
    ended = line()
    raw.append(is_raw())
    print(stopped == signal.SIGTSTP, ended == -getattr(signal, name), *map(int, raw), flush=True)
    os.kill(leader, signal.SIGKILL)
    os.waitpid(leader, 0)
    os.close(terminal)";

#[test]
fn a_signal_leaves_the_terminal_of_top_as_it_was() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start("40M", &["a"], "alone");
    let recording = tree.path("recording");
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .arg(ebb())
        .args(["top", &tree.pid, "--record", &recording])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    end_of(&mut child, Duration::from_secs(60));
    let mut said = String::new();
    child.stdout.unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "True True 1 0 1 0\n".repeat(4));
    // The recording of the last one ends with a whole line.
    let recorded = fs::read_to_string(recording).unwrap();
    assert!(recorded.ends_with("}\n"), "{recorded}");
    tree.stop(1);
}

/// Chooses the tree again after two samples, and quits after two more.
const CHOOSES: &str = "import fcntl, os, pty, struct, subprocess, sys, termios, threading, time
recording, ebb = sys.argv[1:]
started = ['run', '-m', '64M', 'sh', '-c', 'echo; exec sleep 60']
run = subprocess.Popen([ebb, *started], stdout=subprocess.PIPE)
run.stdout.readline()
top, terminal = pty.fork()
if top == 0: os.execv(ebb, [ebb, 'top', '--record', recording])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
def drain():
    try:
        while os.read(terminal, 4096): pass
    except OSError: pass
threading.Thread(target=drain, daemon=True).start()
def recorded(lines):
    while not os.path.exists(recording) or open(recording).read().count('\\n') < lines: time.sleep(0.02)
recorded(2)
os.write(terminal, b't')
time.sleep(1.5)
os.write(terminal, b'\\r')
recorded(4)
os.write(terminal, b'q')
print(os.waitstatus_to_exitcode(os.waitpid(top, 0)[1]))
run.terminate()";

#[test]
fn a_recording_goes_on_after_the_list_of_trees() {
    // The list has the trees of other tests too: those of this network namespace.
    if cannot_page() || lacks_network_namespaces() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let recording = dir.path().join("recording");
    let mut child = Command::new("unshare")
        .args(["--net", "python3", "-c", CHOOSES])
        .arg(&recording)
        .arg(ebb())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    end_of(&mut child, Duration::from_secs(60));
    let mut said = String::new();
    child.stdout.unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "0\n");
    let mut shown = Command::new(ebb());
    shown.args(["top", "--once", "--replay"]).arg(&recording);
    let shown = shown.output().unwrap();
    assert!(shown.status.success(), "{}", stderr(&shown));
}
