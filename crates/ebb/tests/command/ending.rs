//! SIGTERM, SIGINT and SIGQUIT end a tree in whatever state it is; after 5 s `ebb` says what it waits for.

use super::common::{c_program, cannot_page, ebb};
use super::end_of;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A program under `ebb run` that has said that it is ready.
struct Told(Child);

impl Told {
    fn start(program: &[&str]) -> Self {
        let mut command = Command::new(ebb());
        command.args(["run", "--"]).args(program);
        let pipe = || Stdio::piped();
        let mut child = command.stdout(pipe()).stderr(pipe()).spawn().unwrap();
        let mut ready = String::new();
        let mut out = BufReader::new(child.stdout.as_mut().unwrap());
        out.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "{program:?}");
        Self(child)
    }

    fn send(&self, signal: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// The next line of `ebb`.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let mut byte = [0];
        // Byte by byte: nothing is read that is not asked for.
        while self.0.stderr.as_mut().unwrap().read(&mut byte).unwrap() > 0 && byte != *b"\n" {
            line.push(byte[0] as char);
        }
        line
    }

    fn ends(&mut self) -> ExitStatus {
        end_of(&mut self.0, Duration::from_secs(40));
        self.0.wait().unwrap()
    }
}

#[test]
fn a_stopped_program_is_ended() {
    if cannot_page() {
        return;
    }
    for (signal, number) in [("TERM", 15), ("QUIT", 3), ("INT", 2)] {
        // Stopped by another, once it has said so.
        // A shell cannot take back that its parent ignored a signal.
        let signals = "--default-signal=INT,QUIT";
        let script = "echo ready; kill -STOP $$";
        let mut program = Told::start(&["env", signals, "sh", "-c", script]);
        std::thread::sleep(Duration::from_millis(300));
        let start = Instant::now();
        program.send(signal);
        assert_eq!(program.ends().signal(), Some(number), "SIG{signal}");
        assert!(start.elapsed() < Duration::from_secs(4), "SIG{signal}");
    }
}

#[test]
fn a_program_that_blocks_the_signal_is_named_and_another_signal_kills() {
    if cannot_page() {
        return;
    }
    const BLOCKS: &str = "import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); print('ready', flush=True); time.sleep(60)";
    let mut program = Told::start(&["python3", "-c", BLOCKS]);
    // Two before anything is said are one.
    program.send("TERM");
    program.send("TERM");
    let line = program.line();
    assert!(line.contains("waiting for python3 ["), "{line}");
    let why =
        "which was sent SIGTERM 5 s ago: it has the signal blocked; another SIGTERM kills all";
    assert!(line.contains(why), "{line}");
    program.send("TERM");
    assert_eq!(program.ends().code(), Some(128 + 9));
}

#[test]
fn a_program_that_handles_the_signal_is_named_and_left_alone() {
    if cannot_page() {
        return;
    }
    const HANDLES: &str = "import signal, sys, time
def end(*_): time.sleep(7); sys.exit(7)
signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(60)";
    let mut program = Told::start(&["python3", "-c", HANDLES]);
    program.send("TERM");
    let line = program.line();
    assert!(
        line.contains("it handles the signal itself; `kill -KILL"),
        "{line}"
    );
    assert_eq!(program.ends().code(), Some(7));
}

/// As with Ctrl-C in a shell or in Python, which go on.
#[test]
fn a_signal_after_one_that_was_handled_is_a_new_one() {
    if cannot_page() {
        return;
    }
    const HANDLES: &str = "import signal, time
signal.signal(signal.SIGINT, lambda *_: 0)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print('ready', flush=True); time.sleep(60)";
    let mut program = Told::start(&["python3", "-c", HANDLES]);
    program.send("INT");
    // It is seen to be handled after 5 s, and nothing is said.
    std::thread::sleep(Duration::from_secs(6));
    program.send("TERM");
    let line = program.line();
    let why =
        "which was sent SIGTERM 5 s ago: it has the signal blocked; another SIGTERM kills all";
    assert!(line.contains(why), "{line}");
    program.send("TERM");
    assert_eq!(program.ends().code(), Some(128 + 9));
}

/// SIGTERM that was handled is told of again when it is sent again.
#[test]
fn a_second_signal_that_is_handled_is_told_of_too() {
    if cannot_page() {
        return;
    }
    const HANDLES: &str = "import signal, sys, time
times = []
def end(*_):
    times.append(0)
    if len(times) == 2: time.sleep(7); sys.exit(7)
signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(60)";
    let mut program = Told::start(&["python3", "-c", HANDLES]);
    for _ in 0..2 {
        program.send("TERM");
        let line = program.line();
        assert!(line.contains("it handles the signal itself"), "{line}");
    }
    assert_eq!(program.ends().code(), Some(7));
}

#[test]
fn a_wait_for_a_page_for_ever_is_ended() {
    if cannot_page() {
        return;
    }
    let program = c_program("stuck");
    let mut program = Told::start(&[program.to_str().unwrap()]);
    program.send("TERM");
    let line = program.line();
    assert!(line.contains("it waits for a page of its memory"), "{line}");
    let line = program.line();
    assert!(
        line.contains("nobody brings it: the tree is ended"),
        "{line}"
    );
    assert_eq!(program.ends().code(), Some(128 + 9));
}
