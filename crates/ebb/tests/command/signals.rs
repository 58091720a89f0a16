//! Signals pass between the program and its caller, and it has those that its caller gave it.

use super::common::{self, cannot_page, ebb};
use super::end_of;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn signals_reach_the_program() {
    if cannot_page() {
        return;
    }
    for name in ["TERM", "INT", "HUP", "USR1"] {
        // The program counts them, so that one delivered twice shows.
        let script = format!(
            "n=0; trap 'n=$((n + 1))' {name}; echo ready; i=0; \
             while [ $i -lt 8 ]; do sleep 0.05; i=$((i + 1)); done; exit $n"
        );
        // A shell does not trap what was ignored when it began, as in the background of a script.
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(ebb());
        command.args(["run", "sh", "-c", &script]);
        let mut child = child_started(&mut command);
        kill(name, child.id());
        end_of(&mut child, Duration::from_secs(30));
        assert_eq!(child.wait().unwrap().code(), Some(1), "SIG{name}");
    }
}

#[test]
fn a_program_that_does_not_handle_the_signal_dies_of_it() {
    if cannot_page() {
        return;
    }
    let mut command = Command::new(ebb());
    command.args(["run", "sh", "-c", "echo ready; exec sleep 60"]);
    let mut child = child_started(&mut command);
    kill("TERM", child.id());
    end_of(&mut child, Duration::from_secs(30));
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

/// A timer outlives exec: a script's limit of time for a program is its limit under `ebb` too.
#[test]
fn an_alarm_that_was_set_before_reaches_the_program() {
    if cannot_page() || common::lacks("python3") {
        return;
    }
    let script = "import os, signal, sys\nsignal.alarm(6)\nos.execv(sys.argv[1], sys.argv[1:])";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(ebb());
    command.args(["run", "sh", "-c", "echo ready; exec sleep 60"]);
    let mut child = child_started(&mut command);
    end_of(&mut child, Duration::from_secs(30));
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGALRM));
}

/// bash stops a script on SIGINT if the program that it waits for has died of it, and goes on after one that exits.
#[test]
fn an_interrupt_stops_the_script_around_ebb() {
    if cannot_page() || common::lacks("bash") {
        return;
    }
    let each = "\"$0\" run sh -c 'echo ready; exec sleep 60'; echo \"next after $?\"";
    let script = format!("for n in 1 2 3; do {each}; done");
    let mut command = Command::new("env");
    command.args(["--default-signal", "bash", "-c", &script]);
    let mut child = child_started(command.arg(ebb()).process_group(0));
    // As the key does: to all of the group.
    let group = format!("-{}", child.id());
    let sent = Command::new("kill").args(["-INT", "--", &group]).status();
    assert!(sent.unwrap().success());
    end_of(&mut child, Duration::from_secs(30));
    assert_eq!(output_of(&mut child), "");
    assert_eq!(child.wait().unwrap().signal(), Some(2));
}

fn child_started(command: &mut Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    child
}

#[test]
fn the_programs_signal_mask_is_its_own() {
    if cannot_page() {
        return;
    }
    // The real-time signals that the C library keeps for itself are not the program's matter.
    let of_interest = |line: &str| {
        let (name, mask) = line.split_once(':')?;
        Some((
            name.to_string(),
            u64::from_str_radix(mask.trim(), 16).ok()? & 0x7fff_ffff,
        ))
    };
    let masks = |wrap: bool| {
        let mut command = Command::new(if wrap {
            ebb().as_os_str()
        } else {
            "grep".as_ref()
        });
        if wrap {
            command.args(["run", "grep"]);
        }
        command.args(["-E", "Sig(Blk|Ign)", "/proc/self/status"]);
        let text = String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned();
        text.lines().filter_map(of_interest).collect::<Vec<_>>()
    };
    assert_eq!(masks(true).len(), 2);
    assert_eq!(masks(true), masks(false));
}

/// Those that end no program by default, those that nobody uses but by agreement, and the word that comes with one.
#[test]
fn signals_of_every_kind_reach_the_program() {
    if cannot_page() {
        return;
    }
    const SCRIPT: &str = "import signal, sys
wanted = {signal.SIGWINCH, signal.SIGPWR, signal.SIGXCPU, signal.SIGCONT, signal.SIGRTMIN + 3}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print('ready', flush=True)
got = {}
while len(got) < len(wanted):
    info = signal.sigtimedwait(wanted, 20)
    if info is None: break
    got[info.si_signo] = 1
print(sorted(got))";
    let mut command = Command::new(ebb());
    command.args(["run", "python3", "-c", SCRIPT]);
    let mut child = child_started(&mut command);
    for signal in ["WINCH", "PWR", "XCPU", "CONT", "37"] {
        kill(signal, child.id());
    }
    end_of(&mut child, Duration::from_secs(30));
    let text = output_of(&mut child);
    assert_eq!(text.trim(), "[18, 24, 28, 30, 37]");
}

#[test]
fn a_stopped_program_goes_on_through_ebb() {
    if cannot_page() {
        return;
    }
    let mut command = Command::new(ebb());
    command.args(["run", "sh", "-c", "echo $$; exec sleep 60"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    let program = line.trim();
    let becomes = |wanted: &str| {
        let start = Instant::now();
        while state(program) != wanted {
            let now = state(program);
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{now} and not {wanted}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    becomes("S");
    kill("STOP", program.parse().unwrap());
    becomes("T");
    kill("CONT", child.id());
    becomes("S");
    kill("TERM", child.id());
    end_of(&mut child, Duration::from_secs(30));
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

/// A job of a terminal whose program is stopped by its own number. In the background `ebb` goes on, as whoever stops the
/// program continues it alone. In the foreground the shell wants its terminal back.
#[test]
fn a_stop_of_the_program_alone_stops_ebb_in_the_foreground_alone() {
    if cannot_page() {
        return;
    }
    const SCRIPT: &str = "import os, pty, signal, sys, time
out = os.fdopen(os.dup(1), 'w')
leader, terminal = pty.fork()
if leader:
    try:
        while os.read(terminal, 4096): pass
    except OSError: pass
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1]))
def state(pid): return open(f'/proc/{pid}/stat').read().rsplit(') ', 1)[1][0]
def becomes(pid, wanted):
    for _ in range(500):
        if state(pid) == wanted: return
        time.sleep(0.01)
    print('the state is', state(pid), 'and not', wanted, file=out, flush=True)
    sys.exit(1)
for foreground in (False, True):
    read, write = os.pipe()
    ebb = os.fork()
    if ebb == 0:
        os.setpgid(0, 0)
        os.dup2(write, 1)
        os.execvp(sys.argv[1], [sys.argv[1], 'run', 'sh', '-c', 'echo $$; exec sleep 60'])
    program = int(os.read(read, 100))
    if foreground: os.tcsetpgrp(0, ebb)
    os.kill(program, signal.SIGSTOP)
    becomes(program, 'T')
    if foreground: becomes(ebb, 'T')
    else: time.sleep(0.5)
    print(state(ebb) == 'T', end=' ', file=out, flush=True)
    os.kill(ebb if foreground else program, signal.SIGCONT)
    becomes(program, 'S')
    os.kill(program, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(ebb, 0)[1]), file=out, flush=True)";
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .arg(ebb())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    end_of(&mut child, Duration::from_secs(30));
    assert_eq!(output_of(&mut child), "False -15\nTrue -15\n");
}

/// The kernel tells the leader of the session of it, and nobody else: here that is `ebb`.
#[test]
fn a_terminal_that_is_gone_ends_the_program() {
    if cannot_page() {
        return;
    }
    // Tests may run where the signal is ignored (nohup), and programs ignore it then.
    const SCRIPT: &str = "import os, pty, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], [sys.argv[1], 'run', 'sh', '-c', 'echo $$; exec sleep 60'])
program = int(os.read(terminal, 100))
os.close(terminal)
print(program, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .arg(ebb())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    end_of(&mut child, Duration::from_secs(20));
    let text = output_of(&mut child);
    let (program, status) = text.trim().split_once(' ').unwrap();
    assert_eq!(status, "-1");
    assert_eq!(state(program), "");
}

/// Runs the command of `ebb run` on a terminal of its own, of which `ebb` leads the session, and does what the script says.
/// What that prints comes back.
fn on_a_terminal(command: &[&str], script: &str) -> String {
    // Tests may run where a signal is ignored, and programs ignore it then.
    const BEGINS: &str = "import fcntl, os, pty, re, signal, struct, sys, termios, time
signal.alarm(40)
ebb, terminal = pty.fork()
if ebb == 0: os.execvp('env', ['env', '--default-signal', *sys.argv[1:]])
seen = b''
def until(word):
    global seen
    while word not in seen: seen += os.read(terminal, 1000)
def rest():
    global seen
    try:
        while more := os.read(terminal, 1000): seen += more
    except OSError: pass
    return os.waitstatus_to_exitcode(os.waitpid(ebb, 0)[1])
def stat(pid): return open(f'/proc/{pid}/stat').read().rsplit(') ', 1)[1].split()
def become(state, *pids):
    while any(stat(pid)[0] != state for pid in pids): time.sleep(0.01)
until(b'ready\\r\\n')
";
    let mut child = Command::new("python3")
        .args(["-c", &format!("{BEGINS}{script}")])
        .arg(ebb())
        .args(["run", "--"])
        .args(command)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    end_of(&mut child, Duration::from_secs(60));
    output_of(&mut child)
}

/// It is not in the foreground group that the terminal tells: each comes once, from `ebb`.
#[test]
fn a_program_that_has_left_the_group_has_the_terminals_signals() {
    if cannot_page() {
        return;
    }
    const PROGRAM: &str = "import os, signal
wanted = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
os.setpgid(0, 0)
print('ready', flush=True)
while info := signal.sigtimedwait(wanted, 1): print(signal.Signals(info.si_signo).name, flush=True)";
    const KEYS: &str =
        "for key, name in (b'\\x03', b'SIGINT'), (b'\\x1c', b'SIGQUIT'), (b'\\x1a', b'SIGTSTP'):
    os.write(terminal, key)
    until(name)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('4H', 41, 91, 0, 0))
status = rest()
print(*re.findall('SIG[A-Z]+', seen.decode()), status)";
    let said = on_a_terminal(&["python3", "-c", PROGRAM], KEYS);
    assert_eq!(said, "SIGINT SIGQUIT SIGTSTP SIGWINCH 0\n");
}

/// `timeout` leads a group of its own. Ctrl-Z stops all of that and `ebb`, `fg` has them go on, and Ctrl-C ends them.
#[test]
fn keys_reach_the_group_that_the_program_leads() {
    if cannot_page() {
        return;
    }
    const JOB: &str = "echo $$ ready; exec sleep 50";
    const KEYS: &str = "job = int(seen.split()[-2])
timeout = int(stat(job)[1])
assert os.getpgid(job) == timeout != os.getpgid(ebb)
os.write(terminal, b'\\x1a')
become('T', ebb, timeout, job)
os.killpg(ebb, signal.SIGCONT)
become('S', ebb, timeout, job)
os.write(terminal, b'\\x03')
print(rest(), os.path.exists(f'/proc/{job}'))";
    let said = on_a_terminal(&["timeout", "1h", "sh", "-c", JOB], KEYS);
    assert_eq!(said, "-2 False\n");
}

/// A shell with job control that is the program has the terminal, which stops all others that write (`stty tostop`).
#[test]
fn ebb_may_write_on_a_terminal_that_stops_writers() {
    if cannot_page() {
        return;
    }
    const SHELL: &str = "import os, signal, termios, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
os.setpgid(0, 0)
os.tcsetpgrp(0, os.getpid())
mode = termios.tcgetattr(0)
mode[3] |= termios.TOSTOP
termios.tcsetattr(0, termios.TCSANOW, mode)
print(len(mask), 'ready', flush=True); time.sleep(60)";
    const TERM: &str = "os.kill(ebb, signal.SIGTERM)
until(b'which was sent SIGTERM 5 s ago: it ignores the signal')
os.killpg(os.tcgetpgrp(terminal), signal.SIGKILL)
print(seen.split()[0], rest())";
    assert_eq!(on_a_terminal(&["python3", "-c", SHELL], TERM), "b'0' 137\n");
}

/// What `ebb` says of Ctrl-C is true there too: it has come, and another ends the tree.
#[test]
fn a_program_that_has_left_the_group_and_blocks_a_key_is_named() {
    if cannot_page() {
        return;
    }
    const BLOCKS: &str = "import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
os.setpgid(0, 0); print('ready', flush=True); time.sleep(60)";
    const KEYS: &str = "os.write(terminal, b'\\x03')
until(b'which was sent SIGINT 5 s ago: it has the signal blocked; another SIGINT kills all')
os.write(terminal, b'\\x03')
print(rest())";
    assert_eq!(on_a_terminal(&["python3", "-c", BLOCKS], KEYS), "137\n");
}

/// systemd has its services ignore SIGPIPE; Rust's runtime does so too, and gives programs the default.
#[test]
fn what_the_caller_ignores_is_ignored() {
    if cannot_page() {
        return;
    }
    const SCRIPT: &str = "import os, signal, sys
signal.signal(signal.SIGPIPE, getattr(signal, sys.argv[1]))
signal.signal(signal.SIGCHLD, getattr(signal, sys.argv[2]))
os.execvp(sys.argv[3], sys.argv[3:])";
    let ignored = |pipe: &str, child: &str, before: &[&str]| {
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT, pipe, child]).args(before);
        command.args(["grep", "SigIgn", "/proc/self/status"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        // An `ebb` that waits for a child that was reaped unseen waits for ever.
        end_of(&mut child, Duration::from_secs(30));
        assert!(child.wait().unwrap().success());
        output_of(&mut child)
    };
    let ebb = ebb();
    for pipe in ["SIG_IGN", "SIG_DFL"] {
        for child in ["SIG_IGN", "SIG_DFL"] {
            let alone = ignored(pipe, child, &[]);
            let managed = ignored(pipe, child, &[ebb.to_str().unwrap(), "run"]);
            assert_eq!(managed, alone, "{pipe} {child}");
        }
    }
}

/// Programs that a hook starts can be ended by signals.
#[test]
fn the_hook_has_the_callers_signals() {
    if cannot_page() {
        return;
    }
    const SCRIPT: &str = "import os\nkept = [os.urandom(4096) for _ in range(96 * 256)]";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mask");
    let hook = format!(
        "grep SigBlk /proc/self/status > {0}.new; mv {0}.new {0}",
        file.display()
    );
    let mut command = Command::new(ebb());
    command.args(common::ends_for_memory(&hook));
    command.args(["python3", "-c", SCRIPT]);
    command.output().unwrap();
    let start = Instant::now();
    while !file.exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "no hook");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mask = fs::read_to_string(&file).unwrap();
    let mask = u64::from_str_radix(mask.split_whitespace().last().unwrap(), 16).unwrap();
    assert_eq!(mask & 0x7fff_ffff, 0);
}

/// All that it writes.
fn output_of(child: &mut Child) -> String {
    let mut text = String::new();
    let mut output = child.stdout.take().unwrap();
    output.read_to_string(&mut text).unwrap();
    text
}

fn kill(signal: &str, pid: u32) {
    let killed = Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .status();
    assert!(killed.unwrap().success());
}

/// The letter of a process's state; nothing once it is gone.
fn state(pid: &str) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
    after
        .chars()
        .take(1)
        .filter(|state| *state != 'Z')
        .collect()
}
