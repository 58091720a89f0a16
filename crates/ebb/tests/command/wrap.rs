//! `--wrap`: programs that another program starts, signals and ends.

use super::common::{cannot_page, ebb};
use super::{end_of, until};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Says its number and that of its group, and each signal that comes, as one byte: its number. The kernel calls the
/// handler once for each, which writes it. It ends with its standard input.
const SAYS: &str = "import os, signal, sys
for s in 'INT TERM HUP QUIT USR1 USR2 TSTP ALRM'.split(): signal.signal(getattr(signal, 'SIG' + s), lambda *_: None)
os.set_blocking(1, False)
signal.set_wakeup_fd(1)
print(os.getpid(), os.getpgrp(), flush=True)
sys.stdin.read()";

/// `ebb run` of a script, as a frontend starts it: the leader of a group. With it its output, and the words of the
/// first line.
fn started(options: &[&str], script: &str) -> (Child, BufReader<ChildStdout>, Vec<String>) {
    // Of a session of its own: on a terminal `ebb` stops when the program does.
    let mut child = Command::new("setsid")
        .args(["env", "--default-signal"])
        .arg(ebb())
        .arg("run")
        .args(options)
        .args(["python3", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let says = line.split_whitespace().map(str::to_owned).collect();
    (child, out, says)
}

fn send(signal: &str, to: &str) {
    let kill = Command::new("kill").args(["-s", signal, "--", to]).status();
    assert!(kill.unwrap().success(), "{signal} to {to}");
}

/// The letter of its state, while it is there.
fn state(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Whether a process is there, and has not ended.
pub fn lives(pid: &str) -> bool {
    state(pid).is_some_and(|state| !['Z', 'X'].contains(&state))
}

#[track_caller]
fn until_gone(pids: &[&str]) {
    until(|| !pids.iter().any(|pid| lives(pid)));
}

/// Waits until no process has this word in its command line: `ebb` and all processes that it forked.
fn until_nothing_is_left_of(word: &str) {
    let has_word = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let left: Vec<String> = pids.filter(has_word).map(|pid| pid.to_string()).collect();
    until_gone(&left.iter().map(String::as_str).collect::<Vec<_>>());
}

/// A program under `ebb` that says what comes to it.
struct Listener {
    ebb: Child,
    program: String,
    out: BufReader<ChildStdout>,
    word: String,
}

impl Listener {
    fn start(options: &[&str]) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, SeqCst);
        let word = format!("listener {number} of {}", std::process::id());
        let (ebb, out, says) = started(options, &format!("{SAYS}\n# {word}"));
        let leads = says[0] == says[1];
        assert_eq!(leads, !options.is_empty(), "whether it leads its group");
        let program = says[0].clone();
        Self {
            ebb,
            program,
            out,
            word,
        }
    }

    fn to_ebb(&self, signal: &str) {
        send(signal, &self.ebb.id().to_string());
    }

    /// What comes to `ebb` from now on is pending until it is continued.
    fn stop_ebb(&self) {
        self.to_ebb("STOP");
        until(|| state(&self.ebb.id().to_string()) == Some('T'));
    }

    fn to_group(&self, signal: &str) {
        send(signal, &format!("-{}", self.ebb.id()));
    }

    /// Waits until this signal, and no other, has come to the program.
    #[track_caller]
    fn comes(&mut self, signal: i32) {
        let mut came = [0];
        self.out.read_exact(&mut came).unwrap();
        assert_eq!(i32::from(came[0]), signal);
    }

    /// Has it end. Nothing more may have come.
    #[track_caller]
    fn end(mut self) {
        drop(self.ebb.stdin.take());
        end_of(&mut self.ebb, Duration::from_secs(30));
        assert!(self.ebb.wait().unwrap().success());
        let mut more = Vec::new();
        self.out.read_to_end(&mut more).unwrap();
        assert_eq!(more, [0u8; 0], "signals beyond those sent");
        until_nothing_is_left_of(&self.word);
    }
}

/// All that `ebb` passes on, but for SIGTSTP: SIGCONT takes that back while it is pending.
const SIGNALS: [(&str, i32); 7] = [
    ("INT", libc::SIGINT),
    ("TERM", libc::SIGTERM),
    ("HUP", libc::SIGHUP),
    ("QUIT", libc::SIGQUIT),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("ALRM", libc::SIGALRM),
];

#[test]
fn a_signal_comes_once_to_ebb_or_to_its_group() {
    if cannot_page() {
        return;
    }
    let mut wrapped = Listener::start(&["--wrap"]);
    let mut plain = Listener::start(&[]);
    for _ in 0..12 {
        for (name, signal) in SIGNALS {
            wrapped.to_ebb(name);
            wrapped.comes(signal);
            wrapped.to_group(name);
            wrapped.comes(signal);
            // Both ways at once: `ebb` is stopped meanwhile, so the kernel makes one of them.
            wrapped.stop_ebb();
            wrapped.to_group(name);
            wrapped.to_ebb(name);
            wrapped.to_ebb("CONT");
            wrapped.comes(signal);
            plain.to_ebb(name);
            plain.comes(signal);
        }
    }
    wrapped.to_ebb("TSTP");
    wrapped.comes(libc::SIGTSTP);
    wrapped.to_group("TSTP");
    wrapped.comes(libc::SIGTSTP);
    plain.to_ebb("TSTP");
    plain.comes(libc::SIGTSTP);
    wrapped.end();
    plain.end();
}

/// Why there is `--wrap`: the signal comes from the sender, and from `ebb`. The kernel makes one of two that are
/// pending at the same time.
#[test]
fn without_wrap_a_signal_to_the_group_comes_twice_unless_both_are_pending() {
    if cannot_page() {
        return;
    }
    let mut plain = Listener::start(&[]);
    for (name, signal) in SIGNALS {
        plain.stop_ebb();
        plain.to_group(name);
        plain.comes(signal);
        // The program has taken it before `ebb` sees it.
        plain.to_ebb("CONT");
        plain.comes(signal);
    }
    plain.end();
    let mut plain = Listener::start(&[]);
    send("STOP", &plain.program);
    until(|| state(&plain.program) == Some('T'));
    plain.to_group("INT");
    // `ebb` sends it, and then continues the program, which was told to end.
    plain.comes(libc::SIGINT);
    plain.end();
}

const STARTS: &str = "import os, subprocess, time
child = subprocess.Popen(['sleep', '60'])
print(os.getpid(), child.pid, os.getppid(), os.environ.get('JPY_PARENT_PID'), flush=True)
time.sleep(60)";

#[test]
fn the_program_and_its_group_end_when_ebb_is_killed() {
    if cannot_page() {
        return;
    }
    let (mut child, _out, says) = started(&["--wrap"], STARTS);
    // As a frontend ends a kernel.
    send("KILL", &format!("-{}", child.id()));
    end_of(&mut child, Duration::from_secs(30));
    until_gone(&[&says[0], &says[1]]);
}

/// `sh` stays as the parent of `ebb`, says its number to it as a frontend does, and is killed.
#[test]
fn ebb_ends_when_its_parent_does() {
    if cannot_page() {
        return;
    }
    let ignores = format!("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{STARTS}");
    for (script, least) in [(STARTS, 0), (&ignores, 5)] {
        let mut parent = Command::new("sh")
            .args([
                "-c",
                "JPY_PARENT_PID=$$ \"$0\" run --wrap python3 -c \"$1\"; exit 3",
            ])
            .arg(ebb())
            .arg(script)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(parent.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let says: Vec<&str> = line.split_whitespace().collect();
        let supervisor = says[2];
        assert_eq!(says[3], supervisor, "JPY_PARENT_PID follows");
        let start = Instant::now();
        parent.kill().unwrap();
        parent.wait().unwrap();
        until_gone(&[says[0], says[1], supervisor]);
        assert!(
            start.elapsed() >= Duration::from_secs(least),
            "it has its time"
        );
    }
}

/// Another's number is not changed, and what a program leaves when it ends by itself lives on.
#[test]
fn a_program_that_ends_by_itself_may_leave_processes() {
    if cannot_page() {
        return;
    }
    const LEAVES: &str = "import os, subprocess
quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(subprocess.Popen(['sleep', '3'], **quiet).pid, flush=True)
print(os.environ['JPY_PARENT_PID'], flush=True)";
    let mut child = Command::new(ebb())
        .args(["run", "--wrap", "python3", "-c", LEAVES])
        .env("JPY_PARENT_PID", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    let says: Vec<&str> = text.split_whitespace().collect();
    assert!(child.wait().unwrap().success());
    assert_eq!(says[1], "1");
    std::thread::sleep(Duration::from_millis(300));
    assert!(lives(says[0]), "it was killed");
    until_gone(&[says[0]]);
}
