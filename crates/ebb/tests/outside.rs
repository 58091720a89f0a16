//! The helper of a program is outside of it. The program does not see it as a thread or a child, and its
//! sandboxes do not reach it. A debugger that stops the program does not stop it.

mod common;

use common::{Managed, Under, c_program, cannot_page, ebb, free, lacks, same_in_parts};
use ebb_harness::MIB;
use ebb_harness::job::Job;
use ebb_harness::tools;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SIZE: &str = "96";
const BUDGET: u64 = 40 * MIB;
const LIMIT: Duration = Duration::from_secs(60);

fn outside(what: &str) -> Job {
    let program = c_program("outside");
    Job::new([program.as_os_str(), SIZE.as_ref(), what.as_ref()]).time_limit(LIMIT)
}

fn same(job: &Job, what: &str) -> Managed {
    let alone = free(job, what);
    let managed = Under::budget(BUDGET).run(job);
    managed.assert_same(&alone, what);
    managed.assert_paged_within_budget(what);
    managed.assert_quiet(what);
    managed
}

/// One thread, no child of any kind, and it may have a user namespace of its own, where it forks on.
#[test]
fn a_program_with_one_thread_is_alone() {
    if cannot_page() {
        return;
    }
    let managed = same(&outside("alone"), "alone");
    let said = String::from_utf8_lossy(&managed.run.stdout);
    for right in [
        "1 threads, 3 links\n",
        "user namespace 0 \n",
        "its child: 1 5 0\n",
    ] {
        assert!(said.contains(right), "{said}");
    }
}

/// Collectors of garbage (libgc: Guile, Nix, w3m) look for pointers in the data of all libraries.
#[test]
fn a_collector_reads_the_data_of_all_libraries() {
    if !cannot_page() {
        same(&outside("data"), "data");
    }
}

/// What the program is called in a user namespace of its own says nothing of who it is outside, where its helper is.
#[test]
fn a_helper_follows_a_program_into_numbers_of_another_namespace() {
    if cannot_page() {
        return;
    }
    let managed = same(&outside("numbers"), "numbers");
    let said = String::from_utf8_lossy(&managed.run.stdout);
    for right in [
        "user namespace 0\n",
        "uid_map: 1\ngroup 0, user 0\n5 7\n0 wrong\n",
    ] {
        assert!(said.contains(right), "{said}");
    }
    let said = &managed.run.stderr;
    assert!(said.lines().any(|line| line == "helper is 5 5 5"), "{said}");
}

#[test]
fn a_filter_for_all_threads_does_not_reach_service() {
    if cannot_page() {
        return;
    }
    same(&outside("filter"), "filter");
}

/// A filter of the program's own reaches the helpers of children that are forked under it. Where another process lets
/// their calls pass, all is as without us. Where they are refused, or trap, a child gets its memory or is ended, and
/// nobody waits for ever.
#[test]
fn filters_that_reach_the_service_of_children() {
    if cannot_page() {
        return;
    }
    let filters = |how: &str| {
        let program = c_program("filters");
        Job::new([program.as_os_str(), how.as_ref(), "32".as_ref()]).time_limit(3 * LIMIT)
    };
    for how in ["ask", "refuse", "trap"] {
        let alone = free(&filters(how), how);
        let managed = Under::budget(24 * MIB).run(&filters(how));
        if how == "ask" {
            managed.assert_same(&alone, how);
            managed.assert_quiet(how);
            continue;
        }
        assert_eq!(managed.run.ending(), alone.ending(), "{how}");
        let said = String::from_utf8_lossy(&managed.run.stdout);
        let right = |line: &str| {
            let worked = line.contains(": 0 wrong, ");
            let ends = ["child 0", "child 9", "child b", "child 1f"];
            line.ends_with(": ended by 31") || worked && ends.iter().any(|end| line.ends_with(end))
        };
        assert!(said.lines().all(right), "{how}: {said}");
        let lines = String::from_utf8_lossy(&alone.stdout).lines().count();
        assert!(lines > 8 && said.lines().count() == lines, "{how}: {said}");
    }
}

/// An exec is looked into by calls that every dynamic program makes.
#[test]
fn a_launcher_that_filters_calls_by_a_list_starts_programs() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("jailer").as_os_str()]).time_limit(LIMIT);
    let alone = free(&job, "alone");
    let managed = Under::budget(64 * MIB).run(&job);
    managed.assert_same(&alone, "under the filter");
    managed.assert_quiet("under the filter");
}

const KILLS_ALL: &str = "
import os, signal, time
data = {i: f'record {i} of many' for i in range(500_000)}
for n in range(5):
    if os.fork() == 0:
        data.update({i: f'changed {i}' for i in range(100_000)})
        time.sleep(60)
time.sleep(2)
os.kill(-1, signal.SIGKILL)
";

/// The first process of a PID namespace ends all others there: among them are its helper and those of its children.
/// None of them stays, and what they had goes to a program that needs it.
#[test]
fn a_first_process_that_kills_all_others() {
    let Some(job) = sandboxed("unshare -Urpmf --mount-proc", KILLS_ALL) else {
        return;
    };
    let script = "\"$@\"; exec \"$0\" -c 'print(sum(len(str(i)) for i in [*range(2_000_000)]))'";
    let python = tools::python().expect("python3");
    let front = [
        "sh".as_ref(),
        "-c".as_ref(),
        script.as_ref(),
        python.as_os_str(),
    ];
    let managed = Under::budget(64 * MIB).run(&job.behind(front));
    assert!(managed.run.ok(), "{}", managed.run.stderr);
    assert_eq!(managed.run.stdout, b"12888890\n");
    managed.assert_paged_within_budget("a first process");
}

/// All processes are stopped at each system call, and what is out is read then.
#[test]
fn a_tracer_reads_buffers_that_are_out() {
    if cannot_page() || lacks("strace") {
        return;
    }
    let log = tempfile::NamedTempFile::new().unwrap();
    let job = outside("written");
    let alone = free(&job, "strace");
    let strace = ["strace", "-f", "-qq", "-xx", "-e", "trace=write", "-o"].map(OsString::from);
    let front: Vec<OsString> = strace.into_iter().chain([log.path().into()]).collect();
    let managed = Under::budget(BUDGET).run_behind(&front, &job);
    managed.assert_same(&alone, "strace");
    managed.assert_paged_within_budget("strace");
    let log = fs::read_to_string(log.path()).unwrap();
    for page in 0..200 {
        let bytes = word(page, 3).to_ne_bytes();
        let bytes: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        assert!(log.contains(&format!("\"{bytes}\", 8) = 8")), "page {page}");
    }
}

/// The content of `outside.c` there.
fn word(page: u64, i: u64) -> u64 {
    let number = (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number.wrapping_add((i * i).wrapping_mul(0x2545_f491_4f6c_dd1d))
}

/// A program under `ebb` that has written a file, and ends once another is there.
struct Waiting {
    child: Child,
    dir: tempfile::TempDir,
    /// The file that it has written.
    said: String,
}

impl Waiting {
    /// `argv` is followed by the names of the two files.
    fn start(argv: &[&OsStr]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [said, stop] = ["said", "stop"].map(|name| dir.path().join(name));
        let mut command = Command::new("timeout");
        command.args(["-k", "2", "60"]).arg(ebb());
        command.args(["run", "--memory", &BUDGET.to_string(), "--"]);
        command.args(argv).args([&said, &stop]);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut waiting = Self {
            child,
            dir,
            said: String::new(),
        };
        let started = Instant::now();
        while !said.exists() {
            let over = waiting.child.try_wait().unwrap();
            assert!(over.is_none(), "it ended early: {over:?}");
            assert!(started.elapsed() < LIMIT, "it says nothing");
            std::thread::sleep(Duration::from_millis(20));
        }
        waiting.said = fs::read_to_string(said).unwrap();
        waiting
    }

    /// Ends it; its output.
    fn stop(mut self) -> String {
        fs::write(self.dir.path().join("stop"), "").unwrap();
        let mut printed = String::new();
        let mut pipe = self.child.stdout.take().unwrap();
        std::io::Read::read_to_string(&mut pipe, &mut printed).unwrap();
        assert!(self.child.wait().unwrap().success(), "{printed}");
        printed
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.path().join("stop"), "");
        let _ = self.child.wait();
    }
}

/// Output and messages of a command, which ends within 30 s.
fn within_time(argv: &[&OsStr]) -> String {
    let mut command = Command::new("timeout");
    let output = command.args(["-k", "1", "30"]).args(argv).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert_ne!(output.status.code(), Some(124), "{argv:?}: {printed}");
    printed
}

/// It has a variable, or is told that it cannot be had, but does not wait, and the program goes on.
#[test]
fn a_debugger_looks_at_variables_that_are_out() {
    if cannot_page() || lacks("gdb") {
        return;
    }
    let program = c_program("outside");
    let waiting = Waiting::start(&[program.as_os_str(), SIZE.as_ref(), "waits".as_ref()]);
    let (pid, places) = waiting.said.split_once('\n').unwrap();
    let places: Vec<_> = places.lines().filter_map(|l| l.split_once(' ')).collect();
    assert!(places.len() > 8, "hardly anything is out: {}", waiting.said);
    let mut argv: Vec<OsString> = ["gdb", "-q", "-nx", "-batch", "-p", pid]
        .map(OsString::from)
        .into();
    for (address, _) in &places {
        argv.extend(["-ex".into(), format!("x/1gx {address}").into()]);
    }
    let argv: Vec<&OsStr> = argv.iter().map(OsString::as_os_str).collect();
    let printed = within_time(&argv);
    for (address, word) in &places {
        let word = u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
        let right = format!("{address}:\t{word:#018x}");
        let refused = format!("Cannot access memory at address {address}\n");
        assert!(
            printed.contains(&right) || printed.contains(&refused),
            "not {right} in\n{printed}"
        );
    }
    assert_eq!(waiting.stop(), "0 wrong\n");
}

/// The pool asks for more addresses than there are: it is full then, and pages go to the device.
#[test]
fn a_limit_of_addresses() {
    if cannot_page() {
        return;
    }
    let program = c_program("unlike");
    for limit in ["ulimit -v 250000", "ulimit -d 250000"] {
        let script = format!("{limit}; exec \"$0\" stack 96");
        let argv: [&OsStr; 4] = [
            "sh".as_ref(),
            "-c".as_ref(),
            script.as_ref(),
            program.as_os_str(),
        ];
        common::same_in_parts(&Job::new(argv), limit, &[2], &[]);
    }
}

/// It stops the interpreter and follows its data.
#[test]
fn a_profiler_of_python() {
    if cannot_page() {
        return;
    }
    let beside = tools::python_with("numpy").map(|python| python.with_file_name("py-spy"));
    let found = beside
        .filter(|path| path.exists())
        .or_else(|| tools::in_path("py-spy"));
    let Some(spy) = found else {
        println!("skipped: py-spy is not installed");
        return;
    };
    let script = "
import os, sys, time
class Kept:
    def the_inner_function(self, said, stop):
        with open(said + '.new', 'w') as file: file.write(str(os.getpid()))
        os.rename(said + '.new', said)
        while not os.path.exists(stop): time.sleep(0.01)
def the_outer_function(*files): Kept().the_inner_function(*files)
data = [b'y%d' % i for i in range(1_000_000)]
the_outer_function(*sys.argv[1:])
print(sum(map(len, data)))
";
    let python = tools::python().expect("python3");
    let waiting = Waiting::start(&[python.as_os_str(), "-c".as_ref(), script.as_ref()]);
    for _ in 0..3 {
        let argv = ["dump", "--pid", &waiting.said].map(OsStr::new);
        let printed = within_time(&[&[spy.as_os_str()], &argv[..]].concat());
        for name in ["the_inner_function", "the_outer_function"] {
            assert!(printed.contains(name), "{printed}");
        }
    }
    assert_eq!(waiting.stop(), "6888890\n");
}

/// A child that is forked there is served too.
const SANDBOXED: &str = "
import os
data = {i: f'record {i} of many' for i in range(500_000)}
print(sum(map(len, data.values())), os.getuid(), len(os.listdir('/proc/self/task')))
for n in range(6):
    if os.fork() == 0: os._exit(data[4711 + n] != f'record {4711 + n} of many')
    print(os.wait()[1])
";

fn sandboxed(front: &str, script: &str) -> Option<Job> {
    let front: Vec<&OsStr> = front.split_whitespace().map(OsStr::new).collect();
    if cannot_page() || lacks(front[0].to_str()?) {
        return None;
    }
    let python = tools::python().expect("python3");
    let inner = [python.as_os_str(), "-c".as_ref(), script.as_ref()];
    Some(Job::new(front.into_iter().chain(inner)).time_limit(LIMIT))
}

#[test]
fn programs_in_namespaces_of_their_own() {
    for front in ["unshare -Ur", "unshare -Urpmf --mount-proc"] {
        if let Some(job) = sandboxed(front, SANDBOXED) {
            same_in_parts(&job, front, &[2], &[]);
        }
    }
}

/// With the network of who starts it, and the device, it is managed; with neither it runs as without us.
#[test]
fn bubblewrap() {
    let bare = "bwrap --unshare-all --ro-bind / / --proc /proc --dev /dev --";
    let Some(job) = sandboxed(bare, SANDBOXED) else {
        return;
    };
    let alone = job.run(None).expect("it starts");
    if !alone.ok() {
        return println!("skipped: no bubblewrap here: {}", alone.stderr);
    }
    // Where the library lies there is nothing.
    let binaries = ebb();
    let binaries = binaries.parent().unwrap().display();
    let hidden = format!("bwrap --ro-bind / / --proc /proc --dev /dev --tmpfs {binaries} --");
    for (front, line) in [
        (bare, "it runs in a network namespace of its own"),
        (&hidden, "it runs where other files are mounted"),
    ] {
        let job = sandboxed(front, SANDBOXED).unwrap();
        let managed = Under::budget(128 * MIB).run(&job);
        managed.assert_same(&alone, front);
        let said = &managed.run.stderr;
        assert_eq!(said.matches(line).count(), 1, "{said}");
    }
    let shared = "bwrap --unshare-all --share-net --ro-bind / / --proc /proc --dev /dev \
                  --dev-bind-try /dev/userfaultfd /dev/userfaultfd --";
    if Path::new("/dev/userfaultfd").exists() {
        same_in_parts(
            &sandboxed(shared, SANDBOXED).unwrap(),
            "bubblewrap",
            &[2],
            &[],
        );
    }
}

/// A limit of processes that leaves room for the program alone: it runs as without us.
#[test]
fn no_room_for_a_process_that_serves() {
    if cannot_page() {
        return;
    }
    // The command, and the program.
    let Some(group) = Pids::new(2) else {
        println!("skipped: no cgroup that limits processes");
        return;
    };
    let enter = "echo $$ > \"$0\" && exec \"$@\"";
    let procs = group.0.join("cgroup.procs");
    let front = ["sh".into(), "-c".into(), enter.into(), procs.into()];
    let job = outside("written");
    let alone = free(&job, "limit of processes");
    let managed = Under::budget(BUDGET * 4).run_behind(&front, &job);
    managed.assert_same(&alone, "limit of processes");
    assert_unmanaged(&managed, 0);
}

/// Nothing was paged, and one line says why. `joined`: processes that were in the tree before.
fn assert_unmanaged(managed: &Managed, joined: u64) {
    assert_eq!(managed.stats["processes"], joined, "{}", managed.stats);
    assert_eq!(managed.counter("evicted"), 0, "{}", managed.stats);
    let said = managed.run.stderr.lines();
    let ours: Vec<_> = said.filter(|line| line.starts_with("ebb: ")).collect();
    assert_eq!(ours.len(), 1, "{ours:?}");
    for part in ["runs unmanaged", "no process may be started", "ulimit -u"] {
        assert!(ours[0].contains(part), "{part:?} is missing: {ours:?}");
    }
}

/// The same by the limit of a user, which does not hold for root.
#[test]
fn a_user_who_may_start_no_other_process() {
    if cannot_page() || lacks("setpriv") || lacks("prlimit") {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: only root can become a user without any process");
    }
    // Nobody else's, so the program is all that it has.
    const USER: &str = "61531";
    let job = outside("written");
    let alone = free(&job, "a limited user");
    let becomes = [
        "setpriv",
        "--reuid",
        USER,
        "--clear-groups",
        "prlimit",
        "--nproc=1:1",
    ];
    let managed = Under::budget(BUDGET * 4).run(&job.behind(becomes));
    managed.assert_same(&alone, "a limited user");
    // setpriv joins while it is root, and executes the program then.
    assert_unmanaged(&managed, 1);
}

/// A cgroup of version 1 that limits processes.
struct Pids(PathBuf);

impl Pids {
    fn new(most: u32) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup/pids");
        let path = root.join(format!("ebb-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        fs::write(group.0.join("pids.max"), most.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        let started = Instant::now();
        while fs::remove_dir(&self.0).is_err() && started.elapsed().as_secs() < 5 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
