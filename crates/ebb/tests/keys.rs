//! The content of a swap file can be read and written by the process that wrote it and its children alone,
//! not by a worker that gave up root.

mod common;

use common::{Managed, Under, c_program, cannot_page, free};
use ebb_harness::job::Job;
use ebb_harness::{MIB, is_root, tools};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

fn python(script: &str, arguments: &[&OsStr]) -> Job {
    let python = tools::python().expect("python3");
    let front = [python.as_os_str(), "-c".as_ref(), script.as_ref()];
    let argv = front.into_iter().chain(arguments.iter().copied());
    Job::new(argv).time_limit(Duration::from_secs(100))
}

/// A file for `--swap`, empty.
fn swap_file(dir: &Path, mib: u64) -> String {
    let path = dir.join("swap");
    let file = File::create(&path).unwrap();
    file.set_len(mib * MIB).unwrap();
    path.to_str().unwrap().to_owned()
}

/// How often a text is in a file.
fn occurrences(path: &str, text: &[u8]) -> usize {
    let bytes = std::fs::read(path).unwrap();
    // A search by the first byte: the file is large.
    let starts = bytes.iter().enumerate().filter(|(_, b)| **b == text[0]);
    starts
        .filter(|(at, _)| bytes[*at..].starts_with(text))
        .count()
}

/// After a real run the file that it swapped to has nothing of what the program had in memory: neither
/// pages as they were nor compressed ones.
#[test]
fn nothing_of_a_program_can_be_read_in_its_swap_file() {
    if cannot_page() {
        return;
    }
    // Each page holds the text, in part so that it does not compress.
    let script = "
import os
pages = [b'PLAINTEXT-MARKER' * 60 + os.urandom(3000) for _ in range(16000)]
print(len(pages), all(page[:16] == b'PLAINTEXT-MARKER' for page in pages))";
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let job = python(script, &[]);
    let alone = free(&job, "markers");
    for options in [&["--pool", "none"][..], &["--pool-max", "4M"]] {
        let swap = swap_file(dir.path(), 256);
        let managed = Under::budget(24 * MIB)
            .options(options)
            .options(&["--swap", &swap])
            .run(&job);
        managed.assert_same(&alone, "markers");
        managed.assert_quiet("markers");
        assert!(managed.counter("pswpout") > 5000, "{}", managed.stats);
        let written = std::fs::metadata(&swap).unwrap().blocks() * 512;
        assert!(
            written > 20 * MIB,
            "the file is the one that was swapped to"
        );
        assert_eq!(occurrences(&swap, b"PLAINTEXT-MARKER"), 0, "{options:?}");
        std::fs::remove_file(&swap).unwrap();
    }
    // The search finds what is there.
    let seen = dir.path().join("seen");
    std::fs::write(&seen, b"ab PLAINTEXT-MARKER PPLAINTEXT-MARKER").unwrap();
    assert_eq!(occurrences(seen.to_str().unwrap(), b"PLAINTEXT-MARKER"), 2);
}

/// Each process of a long chain of forks reads what its ancestors wrote to the device, with their keys,
/// and writes with its own.
#[test]
fn a_long_chain_of_forks_reads_what_all_of_them_wrote() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let job = Job::new(
        [c_program("chain").as_os_str()]
            .into_iter()
            .chain(["64", "300"].map(OsStr::new)),
    );
    let job = job.time_limit(Duration::from_secs(150));
    let alone = free(&job, "chain");
    let swap = swap_file(dir.path(), 1024);
    let managed = Under::budget(40 * MIB)
        .options(&["--pool-max", "4M", "--swap", &swap])
        .run(&job);
    managed.assert_same(&alone, "chain");
    managed.assert_quiet("chain");
    assert!(managed.counter("pswpin") > 5000, "{}", managed.stats);
}

/// Nothing that cannot leave gathers in a chain of forks, where each process has what its ancestors left behind.
#[test]
fn a_chain_of_a_thousand_forks_in_less_memory_than_it_has() {
    if cannot_page() {
        return;
    }
    let program = c_program("chain");
    let arguments = ["48", "1000"].map(OsStr::new);
    let job = Job::new([program.as_os_str()].into_iter().chain(arguments));
    let job = job.time_limit(Duration::from_secs(240));
    let alone = free(&job, "a long chain");
    let managed = Under::budget(32 * MIB).run(&job);
    managed.assert_same(&alone, "a long chain");
    managed.assert_paged_within_budget("a long chain");
}

/// Memory that does not compress, and a look how processes have the swap file open.
const HEAP: &str = r#"
import ctypes, hashlib, os, sys
swap = sys.argv[1]
PAGE = 4096
def page(): return os.urandom(2500) + bytes(PAGE - 2500)
# To be read without being written, as objects of Python's are not.
data = bytearray(24000 * PAGE)
def change(first, pages):
    for n in range(first, first + pages): data[n * PAGE:(n + 1) * PAGE] = page()
change(0, 24000)
def digest(): return hashlib.sha256(data).hexdigest()
def say(text): sys.stdout.write(text + '\n'); sys.stdout.flush()
def held(pid):
    """How each descriptor of the swap file is open, and whose, in every task that has the process's memory."""
    how, users = set(), set()
    kcmp = lambda other: ctypes.CDLL(None).syscall(312, pid, int(other), 1, 0, 0)
    for one in filter(str.isdecimal, os.listdir('/proc')):
        if kcmp(one) != 0: continue
        for task in os.listdir(f'/proc/{one}/task'):
            at = f'/proc/{one}/task/{task}'
            status = open(f'{at}/status').read()
            # The kernel's own, which do what a ring of ours asked for as who asked.
            if 'iou-' in status.splitlines()[0]: continue
            users.add(status.split('Uid:')[1].split()[0])
            for fd in os.listdir(f'{at}/fd'):
                try:
                    if os.readlink(f'{at}/fd/{fd}') != swap: continue
                    info = open(f'{at}/fdinfo/{fd}').read()
                except OSError: continue
                how.add(int(info.split('flags:')[1].split()[0], 8) & 3)
    return sorted(how), users
def wait(pid): return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
before = digest()
"#;

/// Forks a worker that becomes nobody, and looks how each side has the swap file open.
const GIVES_UP_ROOT: &str = r#"
ready, go = os.pipe(), os.pipe()
worker = os.fork()
if worker == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
    os.write(ready[1], b'1'); os.read(go[0], 1)
    good = digest() == before
    # It changes what it has, with no device to put that on.
    change(5000, 1500)
    mine = digest()
    os._exit(0 if good and digest() == mine else 8)
os.read(ready[0], 1)
root, other = held(os.getpid()), held(worker)
say(f'root may write: {root[0] in ([], [2])}, the worker may not: {other[0] in ([], [0])}, {other[1]}')
if not sys.argv[2:] and (root[0], other[0]) != ([2], [0]): say(f'{root} {other}')
change(0, 12000)
after = digest()
os.write(go[1], b'1')
say(f'the worker: {wait(worker)}')
say(f'root has what it wrote: {digest() == after}')
"#;

/// Runs a script of root's in 48 MiB with a swap file that is named, of which most goes there. It writes what it writes alone,
/// and nothing that is false. None: this is not root.
fn with_a_swap_file_of_roots(script: &str, what: &str) -> Option<Managed> {
    if !is_root() {
        println!("skipped: only root can become another user");
        return None;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let swap = swap_file(dir.path(), 512);
    let path: &OsStr = swap.as_ref();
    let script = format!("{HEAP}{script}");
    let alone = free(&python(&script, &[path, "alone".as_ref()]), what);
    let managed = Under::budget(48 * MIB)
        .options(&["--pool-max", "8M", "--swap", &swap])
        .run(&python(&script, &[path]));
    let text = String::from_utf8_lossy(&managed.run.stdout);
    println!("{text}");
    managed.assert_same(&alone, what);
    assert!(managed.counter("pswpout") > 1000, "{}", managed.stats);
    assert!(
        text.contains(&format!("the {what}: 0")) && !text.contains("False"),
        "{text}"
    );
    Some(managed)
}

/// A worker that gives up root can read what it has, and nothing else: no descriptor of its writes a swap
/// file, however it asks for one. It goes on, and so does its parent.
#[test]
fn a_worker_that_gave_up_root_has_no_swap_file_to_write() {
    if cannot_page() {
        return;
    }
    with_a_swap_file_of_roots(GIVES_UP_ROOT, "worker");
}

/// Forks a child as another user, who may become root again, and does.
const IS_ANOTHER_FOR_A_WHILE: &str = r#"
os.seteuid(65534)
child = os.fork()
if child == 0:
    good = digest() == before
    change(5000, 12000)
    mine = digest()
    os.seteuid(0)
    how = held(os.getpid())[0]
    say(f'the child is root: {os.getresuid()}, and may write: {how in ([], [2])}')
    if not sys.argv[2:] and how != [2]: say(f'{how}')
    os._exit(0 if good and digest() == mine else 8)
say(f'the child: {wait(child)}, as {os.getresuid()}')
os.seteuid(0)
change(0, 12000)
after = digest()
say(f'root may write: {held(os.getpid())[0] in ([], [2])}, {digest() == after}')
"#;

/// Servers of root's become a user for what they do for that user. They are root's all the same, as are their children.
#[test]
fn a_program_that_is_another_user_for_a_while_keeps_its_swap_files() {
    if cannot_page() {
        return;
    }
    if let Some(managed) = with_a_swap_file_of_roots(IS_ANOTHER_FOR_A_WHILE, "child") {
        managed.assert_quiet("child");
    }
}
