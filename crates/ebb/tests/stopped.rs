//! A tree that is stopped (Ctrl-Z) holds nobody who looks at it, and answers when it goes on.

mod common;

use common::tree::Tree;
use common::{Under, cannot_page, ebb, free};
use ebb_harness::job::Job;
use ebb_harness::{MIB, tools};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn asked(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k1", "60"]).arg(ebb()).args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Its supervisor is stopped until this goes.
struct Stopped(Pid);

impl Stopped {
    fn new(tree: &Tree) -> Self {
        let pid = Pid::from_raw(tree.supervisor().parse().unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

#[test]
fn who_looks_at_a_stopped_tree_is_told_so() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start("40M", &["a"], "alone");
    let stopped = Stopped::new(&tree);
    let start = Instant::now();
    let shown = asked(&["top", &tree.pid, "--once"]).output().unwrap();
    let said = text(&shown.stderr);
    assert_eq!(shown.status.code(), Some(125), "{said}");
    assert!(said.contains("does not answer: if it is stopped"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(30), "it was held");
    drop(stopped);
    let shown = asked(&["top", &tree.pid, "--once"]).output().unwrap();
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    tree.stop(1);
}

/// They say that it does not answer, and get the answer once it goes on.
#[test]
fn who_asks_a_stopped_tree_waits_and_knows_why() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start("40M", &["a"], "alone");
    let stopped = Stopped::new(&tree);
    let asking: Vec<Child> = [
        &["stats", &tree.pid][..],
        &["limit", &tree.pid, "--memory", "41M"],
        &["swap", "show", &tree.pid],
    ]
    .map(|args| asked(args).spawn().unwrap())
    .into();
    // Their patience is 2 s, and others may have the processors.
    std::thread::sleep(Duration::from_secs(6));
    drop(stopped);
    for asking in asking {
        let Output {
            status,
            stdout,
            stderr,
        } = asking.wait_with_output().unwrap();
        let said = text(&stderr);
        assert!(status.success(), "{said}");
        assert!(!stdout.is_empty(), "{said}");
        let told = said.matches("does not answer").count();
        assert_eq!(told, 1, "{said}");
    }
    assert_eq!(tree.limit(&[])["memory_bytes"], 41 << 20);
    tree.stop(1);
}

/// A process that pages forks, and its child becomes another user, while their supervisor is stopped. Both take longer
/// than a member waits at a time.
const NEEDS_AN_ANSWER: &str = r#"
import hashlib, os, subprocess, time
data = bytearray(b''.join(os.urandom(2500) + bytes(1596) for _ in range(12000)))
def digest(): return hashlib.sha256(data).hexdigest()
def stop():
    control = os.environ.get('EBB_CONTROL')
    if control is None: return
    pid = control.split('-')[2]
    subprocess.Popen(['sh', '-c', f'kill -STOP {pid}; sleep 5; kill -CONT {pid}'])
    while open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0] != 'T': time.sleep(0.01)
before = digest()
stop()
child = os.fork()
if child == 0:
    good = digest() == before
    stop()
    if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)
    os._exit(0 if good and digest() == before else 8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), digest() == before)
"#;

#[test]
fn processes_that_need_an_answer_wait_for_a_stopped_tree() {
    if cannot_page() {
        return;
    }
    let python = tools::python().expect("python3");
    let argv = [python.as_os_str(), "-c".as_ref(), NEEDS_AN_ANSWER.as_ref()];
    let job = Job::new(argv).time_limit(Duration::from_secs(60));
    let alone = free(&job, "an answer");
    let managed = Under::budget(24 * MIB).run(&job);
    managed.assert_same(&alone, "an answer");
    managed.assert_quiet("an answer");
    assert!(managed.counter("pswpout") > 0, "{}", managed.stats);
    assert_eq!(managed.run.stdout, b"0 True\n");
}
