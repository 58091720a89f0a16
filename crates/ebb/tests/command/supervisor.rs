//! The supervisor: orphans, its own death, and when it is late.

use super::common::{c_program, cannot_page, ebb, ends_for_memory, lacks};
use super::unmanaged::static_c;
use super::{status, stderr};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

#[test]
fn orphans_are_reaped_and_outlive_the_command() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("late");
    let script = format!("(sleep 0.5; echo late > {}) & exit 3", file.display());
    assert_eq!(status(&["sh", "-c", &script]), 3);
    let start = Instant::now();
    while !file.exists() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the orphan was lost"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The number of the `ebb run` with these arguments.
fn ebb_of(arguments: &str) -> String {
    let wanted = format!("{} {arguments}", ebb().display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = processes.map(|entry| entry.file_name().into_string().unwrap());
    let of_it = numbers.find(|number| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.starts_with(&wanted)
    });
    of_it.expect("it carries on")
}

/// A copy of the supervisor carries on. It is found by its number, by that of the one that has ended, and in the list;
/// and not the tree further out, to which the copy itself belongs.
#[test]
fn a_tree_whose_program_has_ended_is_found_by_whoever_asks() {
    if cannot_page() {
        return;
    }
    let script = "(sleep 60 > /dev/null 2>&1) & echo $PPID $!";
    let inner = ["run", "--memory", "64M", "--", "sh", "-c", script];
    let run = Command::new(ebb())
        .args(["run", "--memory", "128M", "--"])
        .arg(ebb())
        .args(inner)
        .output()
        .unwrap();
    let said = String::from_utf8(run.stdout).unwrap();
    let (former, orphan) = said.trim().split_once(' ').unwrap();
    let copy = ebb_of(&inner.join(" "));
    // It takes the name over soon.
    std::thread::sleep(Duration::from_millis(500));
    let top = |pid: Option<&str>| {
        let mut top = Command::new(ebb());
        let output = top.args(["top", "--once"]).args(pid).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8(text).unwrap()
    };
    for pid in [former, &copy, orphan] {
        let shown = top(Some(pid));
        assert!(
            shown.contains("of 64M"),
            "{pid} of {said} and {copy}: {shown}"
        );
    }
    let list = top(None);
    assert!(list.contains(&copy) && !list.contains(former), "{list}");
    let pid = rustix::process::Pid::from_raw(orphan.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// The supervisor that stays behind does not look for all of many processes again and again, and ends soon after the last.
#[test]
fn the_supervisor_of_many_that_are_left_behind_hardly_works() {
    const MANY: usize = 300;
    if cannot_page() {
        return;
    }
    let script =
        format!("for i in $(seq {MANY}); do sleep 8 > /dev/null 2>&1 < /dev/null & done; sleep 1");
    let options = ["run", "--memory", "479M", "--", "sh", "-c"];
    let mut run = Command::new(ebb());
    assert!(run.args(options).arg(&script).status().unwrap().success());
    let left = Instant::now();
    let copy = ebb_of(&options.join(" "));
    let used = || {
        let stat = fs::read_to_string(format!("/proc/{copy}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks: u64 = fields[11..13]
            .iter()
            .map(|f| f.parse::<u64>().unwrap())
            .sum();
        Duration::from_millis(10 * ticks)
    };
    std::thread::sleep(Duration::from_secs(1));
    let (before, since) = (used(), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let share = (used() - before).as_secs_f64() / since.elapsed().as_secs_f64();
    println!("{:.1}% of a processor for {MANY}", share * 100.0);
    assert!(share < 0.08, "{share}");
    while Path::new(&format!("/proc/{copy}")).exists() {
        assert!(left.elapsed() < Duration::from_secs(10), "{copy} lives on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Small processes, which never join, cost descriptors as well. The program has the limit that it was given.
#[test]
fn more_small_processes_than_descriptors_are_counted_or_told_of() {
    if cannot_page() || lacks("prlimit") {
        return;
    }
    let script = "ulimit -n; for i in $(seq 100); do sleep 2 & done; sleep 1";
    for (limit, is_told) in [("64:4096", false), ("64:64", true)] {
        let mut command = Command::new("timeout");
        command
            .args(["-k2", "60", "prlimit"])
            .arg(format!("--nofile={limit}"));
        command
            .arg(ebb())
            .args(["run", "--memory", "200M", "--swap", "none", "--"]);
        let output = command.args(["sh", "-c", script]).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.stdout, b"64\n", "{said}");
        assert_eq!(
            said.matches("out of descriptors").count(),
            usize::from(is_told),
            "{said}"
        );
    }
}

/// The copy of the supervisor starts the user's command, and ends once nobody is left.
#[test]
fn what_is_left_behind_may_be_ended_for_memory() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("told");
    let hook = format!("echo told > {}", file.display());
    let fills =
        "import os, time\ntime.sleep(1)\nkept = [os.urandom(4096) for _ in range(96 * 256)]";
    let script = format!("python3 -c '{fills}' > /dev/null 2>&1 < /dev/null &");
    let options = ends_for_memory(&hook);
    let mut run = Command::new(ebb());
    run.args(options).args(["sh", "-c", &script]);
    assert!(run.status().unwrap().success());
    let copy = ebb_of(&[&options[..], &["sh", "-c"]].concat().join(" "));
    let start = Instant::now();
    while Path::new(&format!("/proc/{copy}")).exists() {
        assert!(start.elapsed() < Duration::from_secs(40), "{copy} lives on");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "told\n");
}

/// A process that is left behind executes another program, and is of the tree yet: it finishes in a budget that does not
/// hold its memory.
#[test]
fn what_is_left_behind_may_become_another_program() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("resident");
    let fills = format!(
        "import os, time\ntime.sleep(1)\nkept = [os.urandom(4096) for _ in range(96 * 256)]\n\
         pages = int(open('/proc/self/statm').read().split()[1])\n\
         open({file:?} + '.new', 'w').write(str(pages))\nos.rename({file:?} + '.new', {file:?})"
    );
    let begins = "import os, sys, time\nkept = b'x' * (8 << 20)\ntime.sleep(0.5)\n\
                  os.execvp('python3', ['python3', '-c', sys.argv[1]])";
    let script = "python3 -c \"$0\" \"$1\" > /dev/null 2>&1 < /dev/null &";
    let mut run = Command::new(ebb());
    run.args([
        "run", "--memory", "48M", "--", "sh", "-c", script, begins, &fills,
    ]);
    assert!(run.status().unwrap().success());
    let start = Instant::now();
    while !file.exists() {
        assert!(start.elapsed() < Duration::from_secs(40), "it was lost");
        std::thread::sleep(Duration::from_millis(50));
    }
    let resident: u64 = fs::read_to_string(file).unwrap().parse().unwrap();
    assert!(
        resident << 12 < 64 << 20,
        "{resident} pages are not managed"
    );
}

/// A terminal without a program is at its end, whatever was left behind: whoever reads the other side sees that at
/// once.
#[test]
fn a_terminal_is_not_kept_open_for_what_is_left_behind() {
    if cannot_page() {
        return;
    }
    // The number of what is left comes first, then nothing.
    let reads = "import os, pty, select, sys, time
pid, side = pty.fork()
if not pid: os.execvp(sys.argv[1], sys.argv[1:])
begin, text = time.time(), b''
while select.select([side], [], [], 20)[0]:
    try: got = os.read(side, 4096)
    except OSError: got = b''
    if not got: break
    text += got
print(text.decode().split()[0], time.time() - begin < 20, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";
    let script = "setsid sleep 60 < /dev/null > /dev/null 2>&1 & echo $!";
    let mut run = Command::new("timeout");
    run.args(["-k", "2", "60", "python3", "-c", reads])
        .arg(ebb());
    run.args(["run", "--memory", "64M", "--", "sh", "-c", script]);
    let run = run.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(run.stdout).unwrap();
    let (left, rest) = said.trim_end().split_once(' ').unwrap();
    let ended = Command::new("kill").args(["-9", left]).status();
    assert!(ended.unwrap().success(), "{said}");
    assert_eq!(rest, "True 0");
}

/// Runs what it is told, pages until the guard is there, and leaves a process that has none of its standard streams.
/// That one's number goes to descriptor 9, which that one does not have either.
const LEAVES: &str = "import os, signal, subprocess, sys, time
signal.alarm(60)
data = [str(i).encode() * 500 for i in range(16_000)]
if len(sys.argv) > 1: subprocess.run(sys.argv[1:])
def is_guard(pid):
    try: status = open(f'/proc/{pid}/status').read()
    except OSError: return False
    return 'Name:\\ttide-guard\\n' in status and f'PPid:\\t{os.getppid()}\\n' in status
while not any(is_guard(pid) for pid in os.listdir('/proc') if pid.isdigit()): time.sleep(0.05)
child = os.fork()
if child:
    os.write(9, b'%d\\n' % child); os._exit(3)
signal.alarm(60); os.setsid()
null = os.open('/dev/null', os.O_RDWR)
for fd in 0, 1, 2: os.dup2(null, fd)
os.close(9); signal.pause()";

/// `log=$(ebb run ... 2>&1)` ends when the program does, and with it whoever reads another descriptor of the caller's.
/// Both the guard and the supervisor live on, and `ebb` has said something.
#[test]
fn readers_do_not_wait_for_what_is_left_behind() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
                  int main(void) { return !memset(malloc(8 << 20), 1, 8 << 20) || usleep(400000); }\n";
    let talk = static_c(dir.path(), source);
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 9>&1 > /dev/null", "sh"]);
    command.args(["timeout", "-k", "2", "60"]).arg(ebb());
    command.args(["run", "--memory", "40M", "--", "python3", "-c", LEAVES]);
    command.args(&talk).stdin(Stdio::null());
    let pipes = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = pipes.spawn().unwrap();
    let stderr = rest_of(run.stderr.take().unwrap());
    let mut nine = BufReader::new(run.stdout.take().unwrap());
    let mut left = String::new();
    nine.read_line(&mut left).unwrap();
    let nine = rest_of(nine);
    let said = stderr.recv_timeout(Duration::from_secs(20));
    let more = nine.recv_timeout(Duration::from_secs(20));
    let stat = fs::read_to_string(format!("/proc/{}/stat", left.trim_end()));
    let _ = Command::new("kill").args(["-9", left.trim_end()]).status();
    let said = said.expect("the reader of standard error waits");
    assert!(more.is_ok(), "the reader of descriptor 9 waits: {said}");
    assert_eq!(run.wait().unwrap().code(), Some(3), "{said}");
    assert!(stat.is_ok_and(|stat| !stat.contains(") Z")), "{said}");
    assert_eq!(said.contains("statically linked"), talk.is_some(), "{said}");
}

/// What can be read to the end, once that has come.
fn rest_of(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = from.read_to_string(&mut text);
        let _ = sender.send(text);
    });
    receiver
}

#[test]
fn the_supervisors_death_harms_nobody() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("done");
    let script = format!(
        "kill -9 $PPID; sleep 0.2; head -c 50000000 /dev/zero | tail -c 1000000 | wc -c > {0}.new; mv {0}.new {0}",
        file.display()
    );
    let killed = Command::new(ebb())
        .args(["run", "--memory", "64M", "sh", "-c", &script])
        .status()
        .unwrap();
    assert_eq!(killed.signal(), Some(9));
    let start = Instant::now();
    while !file.exists() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the program was lost with its supervisor"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_to_string(file).unwrap().trim(), "1000000");
}

/// The supervisor gives children their devices and takes back what dead ones had; without it they
/// have their parent's, and processes do it for each other. Also where somebody has taken its name: another
/// user, if we are root.
#[test]
fn a_process_that_pages_forks_without_a_supervisor() {
    if cannot_page() {
        return;
    }
    const FORKS: &str = "import os, signal, sys, time
signal.alarm(60)
taken, take = os.pipe()
squatter = os.fork() if sys.argv[2] == 'squat' else None
if squatter == 0:
    import socket
    if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)
    name = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while True:
        try: name.bind(chr(0) + os.environ['EBB_CONTROL']); break
        except OSError: time.sleep(.001)
    name.listen(100); os.write(take, b'x'); time.sleep(60); os._exit(0)
os.close(take)
data = [str(i).encode() * 500 for i in range(16_000)]
os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.3)
if squatter and not os.read(taken, 1): print('nobody took the name', os.waitpid(squatter, 0), file=sys.stderr, flush=True)
def ends_well(n):
    child = os.fork()
    if child == 0:
        for i in range(n, len(data), 40): data[i] += b'x'
        os._exit(0 if data[n][:-1] == str(n).encode() * 500 and all(data) else 1)
    return os.waitpid(child, 0)[1] == 0
good = all(map(ends_well, range(8)))
good = good and all(d == str(i).encode() * 500 for i, d in enumerate(data))
if squatter: os.kill(squatter, signal.SIGKILL)
with open(sys.argv[1] + '.new', 'w') as file: file.write('same' if good else 'different')
os.rename(sys.argv[1] + '.new', sys.argv[1])";
    let dir = tempfile::tempdir().unwrap();
    for (swap, squat) in [("none", "no"), ("/var/tmp", "no"), ("/var/tmp", "squat")] {
        let name = format!("{}-{squat}", swap.trim_matches('/').replace('/', "-"));
        let file = dir.path().join(name);
        let said = dir.path().join("said");
        let killed = Command::new("timeout")
            .stderr(fs::File::create(&said).unwrap())
            .args(["-k", "2", "40"])
            .arg(ebb())
            .args(["run", "--memory", "40M", "--swap", swap])
            .args(["python3", "-c", FORKS])
            .arg(&file)
            .arg(squat)
            .status()
            .unwrap();
        assert!(!killed.success());
        let start = Instant::now();
        while !file.exists() {
            let waited = start.elapsed();
            assert!(
                waited < Duration::from_secs(40),
                "--swap {swap}, {squat}: it was ended: {}",
                fs::read_to_string(&said).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(
            fs::read_to_string(file).unwrap(),
            "same",
            "--swap {swap}, {squat}"
        );
    }
}

/// Starts `ebb run`, and once a file says that its program is ready, ends it right after its next welcome to a process,
/// before that one can have asked for the devices.
const ENDS_AFTER_A_WELCOME: &str = "import ctypes, os, signal, struct, sys, time
signal.alarm(50)
SEIZE, INTERRUPT, SYSCALL, INFO, SYSGOOD, EXITKILL, ALL = 0x4206, 0x4207, 24, 0x420e, 1, 0x100000, 0x40000000
SENDMSG = {'x86_64': 46, 'aarch64': 211}[os.uname().machine]
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes, ptrace.restype = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p], ctypes.c_long
file, command = sys.argv[1], sys.argv[2:]
ebb = os.spawnvp(os.P_NOWAIT, command[0], command)
while not os.path.exists(file + '.ready'): time.sleep(0.02)
assert ptrace(SEIZE, ebb, None, SYSGOOD | EXITKILL) == 0 and ptrace(INTERRUPT, ebb, None, None) == 0
def word(memory, address):
    memory.seek(address); return struct.unpack('Q', memory.read(8))[0]
def is_welcome():
    info = ctypes.create_string_buffer(88)
    ptrace(INFO, ebb, len(info), info)
    if info.raw[0] != 1 or struct.unpack_from('Q', info.raw, 24)[0] != SENDMSG: return False
    with open(f'/proc/{ebb}/mem', 'rb', 0) as memory:
        packet = word(memory, word(memory, struct.unpack_from('Q', info.raw, 40)[0] + 16))
        memory.seek(packet); return memory.read(1) == b'W'
sent = welcome = False
while not sent:
    stopped = os.waitpid(ebb, ALL)[1]
    assert os.WIFSTOPPED(stopped), stopped
    at_call = os.WSTOPSIG(stopped) == signal.SIGTRAP | 0x80
    sent, welcome = welcome and at_call, welcome or at_call and is_welcome()
    open(file + '.traced', 'w').close()
    told = 0 if at_call or stopped >> 16 else os.WSTOPSIG(stopped)
    if not sent: ptrace(SYSCALL, ebb, None, told)
os.kill(ebb, signal.SIGKILL)";

/// The parent's devices are the child's then too.
#[test]
fn a_supervisor_may_die_while_a_forked_child_joins() {
    if cannot_page() {
        return;
    }
    const FORKS: &str = "import os, signal, sys, time
signal.alarm(50)
data = [str(i).encode() * 500 for i in range(16_000)]
open(sys.argv[1] + '.ready', 'w').close()
while not os.path.exists(sys.argv[1] + '.traced'): time.sleep(0.02)
child = os.fork()
good = all(d == str(i).encode() * 500 for i, d in enumerate(data))
if child == 0: os._exit(0 if good else 1)
good = os.waitpid(child, 0)[1] == 0 and good
with open(sys.argv[1] + '.new', 'w') as file: file.write('same' if good else 'different')
os.rename(sys.argv[1] + '.new', sys.argv[1])";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("last");
    let ended = Command::new("timeout")
        .args(["-k", "2", "60", "python3", "-c", ENDS_AFTER_A_WELCOME])
        .arg(&file)
        .arg(ebb())
        .args(["run", "--memory", "40M", "--swap", "/var/tmp"])
        .args(["python3", "-c", FORKS])
        .arg(&file)
        .status()
        .unwrap();
    assert!(ended.success(), "no process was welcomed");
    let start = Instant::now();
    while !file.exists() {
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(50), "the program was ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "same");
}

#[test]
fn a_fast_growing_process_waits_for_a_late_supervisor() {
    if cannot_page() {
        return;
    }
    const FILLS: &str = "import os; print(os.getpid(), flush=True); input()
kept = [b'x' * 400 + str(i).encode() for i in range(300_000)]; print(len(kept))";
    grows_while_the_supervisor_is_stopped(&["python3", "-c", FILLS], "300000");
}

/// While one thread waits, the others would fill as much again.
#[test]
fn threads_that_grow_fast_wait_together() {
    if cannot_page() {
        return;
    }
    let crowd = c_program("crowd");
    grows_while_the_supervisor_is_stopped(&[crowd.to_str().unwrap()], "3072");
}

/// The program says its number, waits for a line, fills far more than 48 MiB and says this.
fn grows_while_the_supervisor_is_stopped(program: &[&str], last: &str) {
    let mut ebb = Command::new("timeout")
        .args(["-k", "2", "30"])
        .arg(ebb())
        .args(["run", "--memory", "48M"])
        .args(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(ebb.stdout.take().unwrap()).lines();
    let program: i32 = out.next().unwrap().unwrap().parse().unwrap();
    let stat = fs::read_to_string(format!("/proc/{program}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let supervisor = after_name.split_whitespace().nth(1).unwrap();
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, supervisor]).status();
        assert!(status.unwrap().success());
    };
    signal("-STOP");
    writeln!(ebb.stdin.take().unwrap()).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    let statm = fs::read_to_string(format!("/proc/{program}/statm")).unwrap();
    signal("-CONT");
    let resident: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    println!("{} MiB", resident / 256);
    assert_eq!(out.next().unwrap().unwrap(), last);
    assert!(ebb.wait().unwrap().success());
    // Had it filled all that it wants, it would have ended, and nothing of it would be there.
    assert!(
        (1..80 << 20).contains(&(resident * 4096)),
        "{resident} pages"
    );
}

/// The helper of a parent that ends right after its fork stays until the child has what it needs of it.
#[test]
fn parents_that_end_first_leave_children_without_a_supervisor() {
    if cannot_page() {
        return;
    }
    const GENERATIONS: &str = "import os, signal, sys, time
signal.alarm(60)
data = [str(i).encode() * 500 for i in range(16_000)]
os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.3)
for generation in range(40):
    if os.fork(): os._exit(0)
    signal.alarm(60)
    i = generation * 389
    if data[i] != str(i).encode() * 500: os._exit(1)
good = all(d == str(i).encode() * 500 for i, d in enumerate(data))
with open(sys.argv[1] + '.new', 'w') as file: file.write('same' if good else 'different')
os.rename(sys.argv[1] + '.new', sys.argv[1])";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("last");
    let killed = Command::new("timeout")
        .args(["-k", "2", "40"])
        .arg(ebb())
        .args(["run", "--memory", "40M", "--swap", "/var/tmp"])
        .args(["python3", "-c", GENERATIONS])
        .arg(&file)
        .status()
        .unwrap();
    assert!(!killed.success());
    let start = Instant::now();
    while !file.exists() {
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(60), "a generation was ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "same");
}

/// `pkill -9 ebb` names both the supervisor and the helper. Nobody can bring back what is out then, so the program
/// is ended; it never goes on with zeros. A guard that was killed before has a successor, which is told of all.
#[test]
fn without_supervisor_and_helper_a_program_is_ended() {
    if cannot_page() {
        return;
    }
    const CHECKS: &str = "import os, signal, sys, time
signal.alarm(60)
data = [str(i).encode() * 500 for i in range(16_000)]
file = sys.argv[1]
supervisor = os.getppid()
def is_helper(pid):
    try: return open(f'/proc/{pid}/comm').read() == 'ebb-helper\\n'
    except OSError: return False
children = open(f'/proc/{supervisor}/task/{supervisor}/children').read().split()
helpers = [int(pid) for pid in children if is_helper(pid)]
assert len(helpers) == 1, helpers
def guards():
    def is_guard(pid):
        try: return open(f'/proc/{pid}/comm').read() == 'tide-guard\\n'
        except OSError: return False
    return [int(pid) for pid in os.listdir('/proc') if pid.isdigit() and is_guard(pid)
            and open(f'/proc/{pid}/stat').read().split(') ')[1].split()[1] == str(supervisor)]
if sys.argv[2] == 'guard before':
    [guard] = guards()
    os.kill(guard, signal.SIGKILL)
    while guards() in ([], [guard]): time.sleep(0.05)
    time.sleep(0.2)
open(file + '.begun', 'w').close()
for pid in [supervisor, helpers[0]] if sys.argv[2] == 'supervisor first' else [helpers[0], supervisor]:
    os.kill(pid, signal.SIGKILL)
wrong = sum(d != str(i).encode() * 500 for i, d in enumerate(data))
open(file, 'w').write(f'{wrong} wrong')";
    for order in ["supervisor first", "helper first", "guard before"] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("checked");
        let pid = dir.path().join("pid");
        let script = format!("echo $$ > {}; exec python3 -c \"$0\" \"$@\"", pid.display());
        let killed = Command::new("timeout")
            .args(["-k", "2", "60"])
            .arg(ebb())
            .args(["run", "--memory", "40M", "sh", "-c", &script, CHECKS])
            .arg(&file)
            .arg(order)
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(!killed.success());
        assert!(
            dir.path().join("checked.begun").exists(),
            "{order}: no guard came"
        );
        let program = fs::read_to_string(pid).unwrap();
        let program = format!("/proc/{}/stat", program.trim());
        let start = Instant::now();
        let lives = || {
            let stat = fs::read_to_string(&program).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z")
        };
        while lives() {
            let waited = start.elapsed();
            assert!(waited < Duration::from_secs(20), "{order}: it hangs");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!file.exists(), "{order}: {:?}", fs::read_to_string(file));
    }
}

/// A program may be killed while it holds a lock for which its helper waits: then the helper, which is stopped here,
/// does not end by itself. The guard ends it, as nobody else is left to do it.
#[test]
fn no_helper_is_left_over_without_a_supervisor() {
    if cannot_page() {
        return;
    }
    const STOPS: &str = "import os, signal
signal.alarm(60)
data = [str(i).encode() * 500 for i in range(16_000)]
supervisor = os.getppid()
def is_helper(pid):
    try: return open(f'/proc/{pid}/comm').read() == 'ebb-helper\\n'
    except OSError: return False
children = open(f'/proc/{supervisor}/task/{supervisor}/children').read().split()
[helper] = [int(pid) for pid in children if is_helper(pid)]
print(helper, flush=True)
os.kill(helper, signal.SIGSTOP)
os.kill(supervisor, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)";
    let mut run = Command::new("timeout")
        .args(["-k", "2", "60"])
        .arg(ebb())
        .args(["run", "--memory", "40M", "python3", "-c", STOPS])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(run.stdout.take().unwrap()).lines();
    let helper = out.next().unwrap().unwrap();
    assert!(!run.wait().unwrap().success());
    let start = Instant::now();
    let stat = format!("/proc/{helper}/stat");
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
        let waited = start.elapsed();
        if waited > Duration::from_secs(20) {
            let _ = Command::new("kill").args(["-9", &helper]).status();
            panic!("helper {helper} is left over");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
