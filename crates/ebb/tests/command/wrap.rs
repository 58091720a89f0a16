//! `--wrap`: programs that another program starts, signals and ends.

use super::common::{cannot_page, ebb};
use super::end_of;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Says its number and that of its group, and counts signals for a second.
const COUNTS: &str = "import os, signal, sys, time
n = 0
def count(*_):
    global n
    n += 1
for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1): signal.signal(s, count)
print(os.getpid(), os.getpgrp(), flush=True)
end = time.monotonic() + 1
while time.monotonic() < end: time.sleep(0.01)
sys.exit(n)";

/// `ebb run` of a script, as a frontend starts it: the leader of a group.
fn started(options: &[&str], script: &str) -> (Child, Vec<String>) {
    let mut child = Command::new("env")
        .arg("--default-signal")
        .arg(ebb())
        .arg("run")
        .args(options)
        .args(["python3", "-c", script])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.as_mut().unwrap());
    out.read_line(&mut line).unwrap();
    (child, line.split_whitespace().map(str::to_owned).collect())
}

fn send(signal: &str, to: &str) {
    let kill = Command::new("kill").args(["-s", signal, "--", to]).status();
    assert!(kill.unwrap().success(), "{signal} to {to}");
}

fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next());
    state.is_some_and(|state| !["Z", "X"].contains(&state))
}

fn until_gone(pids: &[&str]) {
    let start = Instant::now();
    while let Some(pid) = pids.iter().find(|pid| lives(pid)) {
        assert!(start.elapsed() < Duration::from_secs(30), "{pid} lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
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

/// How often a signal comes to the program that is sent to `ebb`, or to its group.
fn comes(signal: &str, options: &[&str], to_group: bool) -> i32 {
    let word = format!("{signal} to {to_group} of {}", std::process::id());
    let (mut child, says) = started(options, &format!("{COUNTS}\n# {word}"));
    let leads = says[0] == says[1];
    assert_eq!(leads, !options.is_empty(), "whether it leads its group");
    let sign = if to_group { "-" } else { "" };
    send(signal, &format!("{sign}{}", child.id()));
    end_of(&mut child, Duration::from_secs(30));
    until_nothing_is_left_of(&word);
    child.wait().unwrap().code().expect("it exits")
}

#[test]
fn a_signal_comes_once_to_ebb_or_to_its_group() {
    if cannot_page() {
        return;
    }
    for signal in ["INT", "TERM", "USR1"] {
        assert_eq!(comes(signal, &["--wrap"], false), 1, "SIG{signal}");
        assert_eq!(comes(signal, &["--wrap"], true), 1, "SIG{signal}");
        assert_eq!(comes(signal, &[], false), 1, "SIG{signal}");
    }
    // Why there is --wrap: from the sender, and from `ebb`. The kernel makes one of two that are pending.
    let times = comes("INT", &[], true);
    assert!((1..=2).contains(&times), "{times}");
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
    let (mut child, says) = started(&["--wrap"], STARTS);
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
