//! Process trees under one budget: fork with and without exec, spawned programs, parents that
//! die first, children killed at any moment, threads.

mod common;

use common::{
    Under, c_program, cannot_page, ebb, free, helpers, lacks, processor_time, same_in_parts,
    times_waited,
};
use ebb_harness::cgroup::{self, Cgroup};
use ebb_harness::job::Job;
use ebb_harness::tools;
use ebb_harness::workloads::{self, Scale, Workload};
use ebb_harness::{LASTING_SLACK_OF_PROCESS, MIB};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn python(script: &str) -> Job {
    Job::new([
        tools::python().expect("python3").into_os_string(),
        "-c".into(),
        script.into(),
    ])
}

/// A heap that every script here starts with: about 100 MiB of small objects.
const HEAP: &str = "
import hashlib, os, sys
data = {i: f'record {i} of many, {i * 7919 % 100003}' for i in range(700_000)}
def digest(step):
    h = hashlib.sha256()
    for i in range(0, len(data), step): h.update(data[i].encode())
    return h.hexdigest()
";

#[test]
fn python_multiprocessing_forks_without_exec() {
    if cannot_page() {
        return;
    }
    let job = Workload::PythonFork.job(Scale::Small).expect("python3");
    same_in_parts(&job, "multiprocessing", &[2], &[]);
}

/// Workers each change a part of a large array of their parent's, and end. Memory that they share with it and with
/// each other costs once, whatever leaves and comes back in any of them.
#[test]
fn numpy_in_a_pool_of_processes() {
    if cannot_page() {
        return;
    }
    let Some(python) = tools::python_with("numpy") else {
        println!("skipped: NumPy is not installed");
        return;
    };
    let script = "
import multiprocessing, numpy, sys
rows = numpy.arange(8 * 600_000, dtype=numpy.int64).reshape(8, -1)
def work(i):
    rows[i] *= 3
    rows[(i + 3) % 8] += 1
    return int(rows[i].sum() + rows[(i + 3) % 8].sum())
with multiprocessing.get_context('fork').Pool(int(sys.argv[1]), maxtasksperchild=1) as pool:
    print(list(pool.imap(work, list(range(8)) * 2)))
";
    // With six of them the pools alone cannot hold what each has changed.
    for (workers, options) in [("3", &["--swap", "none"][..]), ("3", &[]), ("6", &[])] {
        let argv = ["-c", script, workers].map(OsStr::new);
        let job = Job::new([python.as_os_str()].into_iter().chain(argv));
        let job = job.time_limit(Duration::from_secs(60));
        let what = format!("NumPy in {workers} processes {options:?}");
        let free = free(&job, &what);
        let managed = Under::budget(72 * MIB).options(options).run(&job);
        managed.assert_same(&free, &what);
        managed.assert_paged_within_budget(&what);
        managed.assert_close_to_budget(32 * MIB, &what);
        managed.assert_quiet(&what);
    }
}

#[test]
fn a_snapshot_in_a_forked_child_does_not_see_the_parents_writes() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("snapshot").as_os_str()]);
    same_in_parts(&job, "snapshot", &[2, 3], &[]);
}

/// They use the parent's memory, and its pager, until they exec.
#[test]
fn children_of_vfork_and_posix_spawn() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("vfork").as_os_str()]);
    // The group counts the memory once for each of the two that have it.
    same_in_parts(&job, "vfork", &[4], &[]);
}

/// The same, killed before they exec or after, while their parent's thread waits for that in `vfork` or
/// `posix_spawn`: it gets on, and nothing is lost.
#[test]
fn children_of_vfork_and_posix_spawn_that_are_killed() {
    if cannot_page() {
        return;
    }
    let arguments = ["64", "300"].map(OsStr::new);
    let job = Job::new(
        [c_program("spawned").as_os_str()]
            .into_iter()
            .chain(arguments),
    );
    let job = job.time_limit(Duration::from_secs(60));
    let free = free(&job, "spawned");
    let managed = Under::budget(40 * MIB).run(&job.env("EBB_CHECK", "1"));
    managed.assert_same(&free, "spawned");
    managed.assert_paged_within_budget("spawned");
    assert_eq!(free.stdout, b"as it was\n");
    let said = &managed.run.stderr;
    let killed = said.lines().find_map(|line| line.strip_prefix("killed "));
    let killed = killed.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(killed.is_some_and(|n| (30..300).contains(&n)), "{said}");
}

/// A few pages that a process uses all the time stay nearly always: beside much in its pool that is old, and beside
/// another process that works at random in more than there is room for.
#[test]
fn a_few_pages_in_use_stay_beside_much_that_is_old() {
    if cannot_page() {
        return;
    }
    for (others, seconds, percent) in [("0", "1", 1), ("48", "3", 5)] {
        let job = Job::new(
            [c_program("hot").as_os_str()]
                .into_iter()
                .chain(["64", "4", others, seconds].map(OsStr::new)),
        );
        let managed = Under::budget(40 * MIB).run(&job.time_limit(Duration::from_secs(60)));
        let said = String::from_utf8_lossy(&managed.run.stdout).into_owned();
        assert!(managed.run.ok(), "{said} {}", managed.run.stderr);
        let counts: Vec<u64> = said
            .split_whitespace()
            .filter_map(|w| w.parse().ok())
            .collect();
        let [uses, out] = counts[..] else {
            panic!("{said}");
        };
        println!("{said}");
        assert!(uses > 20_000 && out * 100 <= uses * percent, "{said}");
        managed.assert_paged_within_budget("hot");
    }
}

/// A child of `vfork` whose parent is killed: what is in memory it has, and may write; what is out is lost to it,
/// and never zeros.
#[test]
fn a_child_of_vfork_outlives_its_parent() {
    if cannot_page() {
        return;
    }
    let job =
        Job::new([c_program("orphan_memory").as_os_str()]).time_limit(Duration::from_secs(60));
    let managed = Under::budget(40 * MIB).run(&job);
    let said = String::from_utf8_lossy(&managed.run.stdout).into_owned();
    let (first, counts) = said.split_once('\n').unwrap_or_default();
    assert_eq!(first, "parent killed", "{said} {}", managed.run.stderr);
    let counts: Vec<u64> = counts
        .split(' ')
        .filter_map(|w| w.trim().parse().ok())
        .collect();
    let [right, lost, refused, wrong] = counts[..] else {
        panic!("{said} {}", managed.run.stderr);
    };
    assert_eq!((right + lost, wrong), (24000, 0), "{said}");
    assert!(right > 1000 && lost > 10000 && refused > 5000, "{said}");
    for told in ["what was swapped out of it is lost", "has ended forks"] {
        let lines = managed.run.stderr.lines();
        let lines = lines.filter(|line| line.contains(told));
        assert_eq!(lines.count(), 1, "{}", managed.run.stderr);
    }
}

/// Programs are killed in the midst of memory calls, when supervisor and guard are gone. A dead thread has the lock that
/// the helper waits for.
#[test]
fn helpers_end_with_their_programs_where_nobody_ends_them() {
    if cannot_page() {
        return;
    }
    if let Some(why) = cgroup::unavailable() {
        return println!("skipped: no memory cgroup: {why}");
    }
    let group = Cgroup::unlimited().expect("a cgroup");
    let start = "echo $$ > \"$0\" && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", start]).arg(group.procs_file());
    command.arg(ebb()).args(["run", "--memory", "48M", "--"]);
    let mut run = command.arg(c_program("churning")).spawn().expect("sh");
    let is = |pid: &u32, name: &str| {
        let said = fs::read_to_string(format!("/proc/{pid}/comm"));
        said.is_ok_and(|said| said.trim() == name)
    };
    let of = |name: &str| -> Vec<u32> {
        let all = group.processes().into_iter();
        all.filter(|pid| is(pid, name)).collect()
    };
    let kill = |pids: &[u32]| {
        let pids = pids.iter().map(u32::to_string);
        let _ = Command::new("kill").arg("-9").args(pids).status();
    };
    let wait_until = |what: &str, seconds: u64, is_so: &dyn Fn() -> bool| {
        let limit = Instant::now() + Duration::from_secs(seconds);
        while !is_so() {
            if Instant::now() > limit {
                group.kill_all();
                panic!("{what}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_until("they begin", 30, &|| of("ebb-helper").len() >= 12);
    std::thread::sleep(Duration::from_secs(3));
    let others = || -> Vec<u32> {
        let all = group.processes().into_iter();
        let ours = |pid: &u32| is(pid, "churning") || is(pid, "ebb-helper");
        all.filter(|pid| !ours(pid)).collect()
    };
    // Each may be followed by another.
    wait_until("supervisor and guard end", 10, &|| {
        kill(&others());
        others().is_empty()
    });
    let _ = run.wait();
    kill(&of("churning"));
    wait_until("helpers stay", 25, &|| group.processes().is_empty());
}

/// The same, killed in the midst of memory calls of their own. Shared memory stays whole, nothing is locked, and the
/// parent's own calls have their effect: where it pages, where it may come to, and where it has so little that it
/// never will.
#[test]
fn children_of_vfork_that_are_killed_in_memory_calls() {
    if cannot_page() {
        return;
    }
    let program = c_program("sharers");
    for (kib, pages) in [("65536", true), ("1024", false), ("128", false)] {
        let arguments = [kib, "300"].map(OsStr::new);
        let job = Job::new([program.as_os_str()].into_iter().chain(arguments));
        let job = job.time_limit(Duration::from_secs(60));
        let what = format!("sharers of {kib} KiB");
        let free = free(&job, &what);
        assert_eq!(free.stdout, b"as it was\n");
        let managed = Under::budget(40 * MIB).run(&job.env("EBB_CHECK", "1"));
        managed.assert_same(&free, &what);
        if pages {
            managed.assert_paged_within_budget(&what);
        }
        let said = &managed.run.stderr;
        let killed = said.lines().find_map(|line| line.strip_prefix("killed "));
        let killed = killed.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        assert!(killed.is_some_and(|n| n > 200), "{said}");
    }
}

/// Stacks are not managed: what they take, what is managed gives up.
#[test]
fn memory_that_is_not_managed_makes_the_rest_smaller() {
    if cannot_page() {
        return;
    }
    let deep = c_program("deep");
    let job = Job::new([
        "sh".as_ref(),
        "-c".as_ref(),
        "ulimit -s 65536 && exec \"$0\" 24".as_ref(),
        deep.as_os_str(),
    ]);
    let free = free(&job, "a deep stack");
    let managed = Under::budget(48 * MIB).run(&job);
    managed.assert_same(&free, "a deep stack");
    managed.assert_paged_within_budget("a deep stack");
    // The stack grows by more than that; it is measured now and then.
    managed.assert_close_to_budget(16 * MIB, "a deep stack");
}

/// Memory that cannot be swapped out is more than the budget: a line says how much would do.
#[test]
fn a_budget_too_small_for_what_stays_in_memory() {
    if cannot_page() {
        return;
    }
    if !ebb_harness::is_root() {
        println!("skipped: to lock so much memory takes root");
        return;
    }
    let script = "
import ctypes, mmap, sys
libc = ctypes.CDLL(None)
kept = mmap.mmap(-1, 40 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(kept))
assert libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(40 << 20)) == 0
data = [bytes([i % 256]) * 4096 for i in range(4096)]
print(sum(page[7] for page in data))
";
    let job = python(script).time_limit(Duration::from_secs(60));
    let free = free(&job, "locked memory");
    let managed = Under::budget(24 * MIB).run(&job);
    let stderr = &managed.run.stderr;
    assert_eq!(managed.run.ending(), "exit 137", "{stderr}");
    let said: Vec<_> = stderr.lines().filter(|l| l.starts_with("ebb")).collect();
    assert_eq!(said.len(), 1, "{stderr}");
    let least = said[0].split("give --memory at least ").nth(1);
    let least = least.and_then(|rest| rest.trim_end().strip_suffix('M')?.parse::<u64>().ok());
    let least = least.unwrap_or_else(|| panic!("it does not say how much: {stderr}"));
    assert!((41..80).contains(&least), "{stderr}");
    let managed = Under::budget(least * MIB).run(&job);
    managed.assert_same(&free, "with what it asks for");
}

/// It gives up root while a helper serves its faults: that follows, with all of its threads, and it gets on.
#[test]
fn a_program_that_becomes_another_user() {
    becomes_another_user(
        "os.setgroups([user]); os.setresgid(user, user, user); os.setresuid(user, user, user)",
    );
}

/// As setpriv(1) and container runtimes do it: the user first, and the groups by capabilities that were kept.
#[test]
fn a_program_that_changes_its_groups_by_capabilities_that_it_kept() {
    becomes_another_user(
        "import ctypes
    libc = ctypes.CDLL(None)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.prctl(8, 1)
    os.setresuid(user, user, user)
    libc.capget(header, sets)
    sets[0], sets[3] = sets[1], sets[4]
    if libc.capset(header, sets): raise OSError('capset')
    os.setresgid(user, user, user); os.setgroups([user])",
    );
}

/// As careful servers do it: no capability has effect but where it is needed. So its helper had none when it was made.
#[test]
fn a_program_that_raises_a_capability_to_become_another_user() {
    if cannot_page() {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: only root can become another user");
    }
    let script = format!(
        "{HEAP}
import ctypes
libc = ctypes.CDLL(None)
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
def effective(mask):
    libc.capget(header, sets)
    sets[0], sets[3] = sets[1] & mask, 0
    if libc.capset(header, sets): raise OSError('capset')
print(digest(1))
effective(0)
sys.stdout.flush()
if os.fork() == 0:
    print(digest(1))
    effective(1 << 6 | 1 << 7)
    os.setgroups([65533]); os.setresgid(65533, 65533, 65533); os.setresuid(65533, 65533, 65533)
    print(os.getresuid(), digest(1))
    sys.stdout.flush()
    os._exit(0)
print(os.wait()[1])
"
    );
    let job = python(&script).time_limit(Duration::from_secs(60));
    same_in_parts(&job, "a raised capability", &[2], &[]);
}

fn becomes_another_user(changes: &str) {
    if cannot_page() {
        return;
    }
    if !ebb_harness::is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let script = format!(
        "{HEAP}
import time
print(digest(1))
supervisor = os.getppid()
def status(at):
    with open(f'{{at}}/status') as file: return dict(line[:-1].split(':\t', 1) for line in file if ':\t' in line)
def helpers():
    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
        if pid > os.getpid():
            try: of = status(f'/proc/{{pid}}')
            except OSError: continue
            if of['Name'] == 'ebb-helper' and int(of['PPid']) == supervisor: yield pid
def users():
    there = [os.getpid(), *helpers()]
    # A helper that has just ended is gone soon.
    if len(there) != (2 if 'EBB_CONTROL' in os.environ else 1): return there
    tasks = [f'/proc/{{pid}}/task/{{task}}' for pid in there for task in os.listdir(f'/proc/{{pid}}/task')]
    return {{tuple(status(task)[of] for of in ('Uid', 'Gid', 'Groups', 'CapPrm', 'CapEff')) for task in tasks}}
def become(user):
    {changes}
    # Who serves it is told, and follows.
    end = time.monotonic() + 5
    while len(users()) > 1 and time.monotonic() < end: time.sleep(0.01)
    print(sorted(users()), digest(1))
    sys.stdout.flush()
sys.stdout.flush()
if os.fork() == 0:
    become(65533)
    os._exit(0)
print(os.wait()[1])
become(65534)
"
    );
    let job = python(&script).time_limit(Duration::from_secs(60));
    same_in_parts(&job, "another user", &[2], &[]);
}

/// Servers that are started as root become another user before they have anything, and fork their workers then.
#[test]
fn a_program_that_begins_as_root_and_goes_on_as_another_user() {
    if cannot_page() {
        return;
    }
    if !ebb_harness::is_root() || !may_look_into_others() {
        println!("skipped: only root with CAP_SYS_PTRACE can serve another user's children");
        return;
    }
    let script = format!(
        "import os, subprocess
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
{HEAP}
def worker(generations):
    more = [str(i) * 50 for i in range(200_000)]
    right = digest(3) == before and all(text == str(i) * 50 for i, text in enumerate(more))
    if generations > 1:
        child = os.fork()
        if child == 0: worker(generations - 1)
        right = right and os.waitpid(child, 0)[1] == 0
    os._exit(0 if right else 3)
before = digest(3)
for generations in (1, 2):
    child = os.fork()
    if child == 0: worker(generations)
    print('workers', os.waitpid(child, 0)[1])
program = 'd = [str(i) * 50 for i in range(200_000)]; print(sum(map(len, d)))'
print(subprocess.run(['/usr/bin/python3', '-c', program], capture_output=True, text=True).stdout)
print(digest(1))"
    );
    let job = Job::new(["/usr/bin/python3".into(), "-c".into(), script]);
    let job = job.time_limit(Duration::from_secs(60));
    let alone = free(&job, "a server of root's");
    let managed = Under::budget(alone.peak / 3).run(&job);
    managed.assert_same(&alone, "a server of root's");
    managed.assert_paged_within_budget("a server of root's");
    assert!(
        !managed.run.stderr.contains("runs unmanaged"),
        "{}",
        managed.run.stderr
    );
}

fn may_look_into_others() -> bool {
    let sets = rustix::thread::capabilities(None).unwrap();
    sets.effective
        .contains(rustix::thread::CapabilitySet::SYS_PTRACE)
}

#[test]
fn children_made_by_system_calls() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("raw_fork").as_os_str()]);
    same_in_parts(&job, "raw fork", &[2], &[]);
}

/// A fork that fails is libc's secret: the places that were kept for such children come back all the same.
#[test]
fn forks_that_fail() {
    if cannot_page() {
        return;
    }
    let program = c_program("forks_in_vain");
    let job = Job::new([program.as_os_str(), "100".as_ref(), "700".as_ref()]);
    let job = job.time_limit(Duration::from_secs(60));
    same_in_parts(&job, "forks in vain", &[2], &[]);
}

/// In a root directory with no `/proc` children have theirs from their parent's helper.
#[test]
fn children_in_another_root_directory() {
    if cannot_page() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can change the root directory");
        return;
    }
    let script = format!(
        "{HEAP}
os.chroot('/sys')
os.chdir('/')
sys.stdout.flush()
for _ in range(3):
    child = os.fork()
    if child == 0:
        print(digest(1))
        sys.stdout.flush()
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.stdout.flush()
"
    );
    same_in_parts(&python(&script), "chroot", &[2], &[]);
}

#[test]
fn spawned_programs_and_system() {
    if cannot_page() {
        return;
    }
    let script = format!(
        "{HEAP}
import subprocess
print(subprocess.run(['sh', '-c', 'echo run; exit 3'], capture_output=True))
sys.stdout.flush()
for _ in range(5):
    os.system('echo system')
    pid = os.posix_spawn('/bin/sh', ['sh', '-c', 'echo spawned $VALUE'], {{'VALUE': 'v'}})
    os.waitpid(pid, 0)
print(digest(1))
"
    );
    same_in_parts(&python(&script), "spawn", &[2], &[]);
}

/// Without random addresses all lives look alike, and the former one's memory takes a while to go.
#[test]
fn a_program_that_executes_itself_pages_in_each_life() {
    if cannot_page() {
        return;
    }
    let relived = c_program("relived");
    let job = Job::new([relived.as_os_str(), "160".as_ref(), "4".as_ref()]);
    for front in [&[][..], &["setarch".into(), "-R".into()]] {
        let managed = Under::budget(64 * MIB).run_behind(front, &job);
        let said = String::from_utf8_lossy(&managed.run.stdout);
        let paged = said.lines().filter(|line| line.ends_with(": paged"));
        assert_eq!(paged.count(), 4, "{said}{}", managed.run.stderr);
        managed.assert_paged_within_budget("relived");
    }
}

/// In a tree that does not page yet, what it had as former programs does not count.
#[test]
fn a_program_that_executes_itself_counts_once() {
    if cannot_page() {
        return;
    }
    let relived = c_program("relived");
    let job = Job::new([relived.as_os_str(), "200".as_ref(), "6".as_ref()]);
    let managed = Under::budget(1 << 30).run_behind(&["setarch".into(), "-R".into()], &job);
    let said = String::from_utf8_lossy(&managed.run.stdout);
    let lives = said.lines().filter(|line| line.ends_with(": all in RAM"));
    assert_eq!(lives.count(), 6, "{said}{}", managed.run.stderr);
    let peak = managed.stats["peak_bytes"].as_u64().unwrap() / MIB;
    // The former program's memory takes a while to go.
    assert!(peak < 2 * 200 + 50, "{peak} MiB");
    managed.assert_quiet("relived");
}

#[test]
fn children_of_children_and_exec_from_a_fork() {
    if cannot_page() {
        return;
    }
    let script = format!(
        "{HEAP}
def child(depth):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
        return
    data[depth] = f'changed at depth {{depth}}'
    if depth < 3: child(depth + 1)
    print(depth, digest(1))
    sys.stdout.flush()
    os.execvp('true', ['true'])
child(0)
print(digest(1))
"
    );
    let free = same_in_parts(&python(&script), "fork chain", &[3], &[]);
    // Less than they share: what is shared has to leave, or they get nowhere.
    let managed = Under::budget(32 * MIB).run(&python(&script));
    managed.assert_same(&free, "fork chain");
    managed.assert_paged_within_budget("fork chain");
}

#[test]
fn a_parent_that_dies_first() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "{HEAP}
if os.fork() == 0:
    import time
    while os.getppid() == int(sys.argv[2]): time.sleep(0.01)
    with open(sys.argv[1] + '.new', 'w') as f: f.write(digest(1))
    os.rename(sys.argv[1] + '.new', sys.argv[1])
    os._exit(0)
if len(sys.argv) > 3: os.kill(os.getpid(), 9)
os._exit(7)
"
    );
    // The first of them shows what the digest is.
    let mut digests = Vec::new();
    for (i, killed) in [("free", false), ("exits", false), ("killed", true)] {
        let file = dir.path().join(i);
        let shell = "exec \"$@\"";
        let mut argv: Vec<std::ffi::OsString> = ["sh", "-c", shell, "sh"].map(Into::into).to_vec();
        argv.push(tools::python().unwrap().into());
        argv.extend(["-c".into(), script.clone().into(), file.clone().into()]);
        // Its own number, which the shell has kept through exec.
        let inner = "import os, sys; sys.argv.insert(2, str(os.getpid()))\n".to_string() + &script;
        argv[6] = inner.into();
        if killed {
            argv.push("kill".into());
        }
        let job = Job::new(argv);
        // The group outlives the parent, for the child's sake.
        let (run, _group) = if i == "free" {
            (job.run(None).unwrap(), None)
        } else {
            let managed = Under::budget(64 * MIB).run(&job);
            (managed.run, managed.group)
        };
        let expected = if killed { "exit 137" } else { "exit 7" };
        assert_eq!(run.ending(), expected, "{i}: {}", run.stderr);
        let start = Instant::now();
        while !file.exists() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{i}: the child was lost: {}",
                run.stderr
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        digests.push(std::fs::read_to_string(file).unwrap());
    }
    assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
}

/// A child rewrites at random what it has of a parent that ended. The device holds little more than that, so the child
/// uses the clusters of its parent.
#[test]
fn a_child_uses_the_room_of_a_parent_that_ended() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("said");
    let script = format!(
        "import os, random, time
PAGE, PAGES = 4096, 80 << 8
data, junk, draw = bytearray(PAGES * PAGE), os.urandom(1 << 20), random.Random(1).randrange
def head(page, stamp): return page.to_bytes(8, 'little') + stamp.to_bytes(8, 'little')
def fill(page, stamp):
    at, begin = draw(len(junk) - PAGE), page * PAGE
    data[begin:begin + PAGE] = head(page, stamp) + junk[at:at + PAGE - 16]
for page in range(PAGES): fill(page, 0)
parent = os.getpid()
if os.fork(): os._exit(0)
while os.getppid() == parent: time.sleep(0.01)
time.sleep(1)
stamps = [0] * PAGES
for stamp in range(2 * PAGES):
    page = draw(PAGES)
    stamps[page] = stamp
    fill(page, stamp)
good = all(data[at:at + 16] == head(at // PAGE, stamps[at // PAGE]) for at in range(0, len(data), PAGE))
with open({file:?} + '.new', 'w') as f: f.write(str(good))
os.rename({file:?} + '.new', {file:?})"
    );
    let spec = format!("{}:100M", dir.path().display());
    let managed = Under::budget(48 * MIB)
        .options(&["--pool", "none", "--swap", &spec])
        .run(&python(&script));
    assert_eq!(managed.run.ending(), "finished", "{}", managed.run.stderr);
    let start = Instant::now();
    while !file.exists() {
        let waited = start.elapsed().as_secs();
        assert!(waited < 60, "the child was ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "True");
}

#[test]
fn children_killed_at_any_moment() {
    if cannot_page() {
        return;
    }
    let script = format!(
        "{HEAP}
import random, signal, time
r = random.Random(int(sys.argv[1]))
for n in range(25):
    pid = os.fork()
    if pid == 0:
        while True:
            for i in range(0, len(data), 3): data[i] = 'child'
    time.sleep(r.random() * 0.08)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    data[n] = f'parent {{n}}'
print(digest(1))
"
    );
    for seed in ["1", "2"] {
        let job = Job::new([
            tools::python().unwrap().as_os_str(),
            "-c".as_ref(),
            script.as_ref(),
            seed.as_ref(),
        ]);
        let what = format!("killed children, seed {seed}");
        let alone = free(&job, &what);
        let managed = Under::budget(alone.peak / 2).run(&job);
        managed.assert_same(&alone, &what);
        managed.assert_paged_within_budget(&what);
        // Every page is charged before it is copied, whoever gets a processor when.
        managed.assert_close_to_budget(8 * MIB, &what);
    }
}

#[test]
fn many_threads_that_allocate_and_free() {
    if cannot_page() {
        return;
    }
    for threads in ["16", "300"] {
        let job = Job::new([c_program("threads").as_os_str(), threads.as_ref()]);
        same_in_parts(&job, &format!("{threads} threads"), &[3], &[]);
    }
}

#[test]
fn several_programs_share_one_budget() {
    if cannot_page() {
        return;
    }
    let one =
        "python3 -c 'd = {i: str(i) * 3 for i in range(500000)}; print(sum(map(len, d.values())))'";
    let job = Job::new([
        "sh".to_string(),
        "-c".into(),
        format!("{one} & {one} & {one} & wait"),
    ]);
    let alone = free(&job, "three programs");
    let managed = Under::budget(alone.peak / 2).run(&job);
    managed.assert_same(&alone, "three programs");
    managed.assert_paged_within_budget("three programs");
    assert!(
        managed.stats["processes"].as_u64().is_some_and(|n| n >= 3),
        "{}",
        managed.stats
    );
}

/// So many processes fill 2 MiB each and wait for each other; `pause` comes between two beginnings. Their output is that
/// without `ebb`, and none is ended.
fn small_processes(count: usize, pause: &str) {
    let script = format!(
        "
file=$(mktemp) || exit
i=0; while [ $i -lt {count} ]; do \"$0\" 2 {count} \"$file\" & i=$((i+1)); {pause}; done
wait; rm \"$file\""
    );
    let small = c_program("small");
    let job = Job::new([
        "sh".as_ref(),
        "-c".as_ref(),
        OsStr::new(&script),
        small.as_os_str(),
    ]);
    let job = job.time_limit(Duration::from_secs(60));
    let free = free(&job, "small processes");
    // The kernel's own memory for a process is not in the budget, and is less than 0.3 MiB each.
    let kernel = count as u64 * 3 * MIB / 10;
    let managed = Under::budget(96 * MIB).beside(24 * MIB + kernel).run(&job);
    managed.assert_same(&free, "small processes");
    let unmeasured = count as u64 * LASTING_SLACK_OF_PROCESS;
    managed.assert_paged_within(unmeasured, "small processes");
    managed.assert_quiet("small processes");
}

/// Each has too little to be worth much, and they begin within a second or two: together they have three times the
/// budget.
#[test]
fn many_small_processes() {
    if !cannot_page() {
        small_processes(150, "sleep 0.01");
    }
}

/// Twice the budget, in processes that begin together: growth that was allowed counts before it is measured.
#[test]
fn many_small_processes_at_once() {
    if !cannot_page() {
        small_processes(100, ":");
    }
}

/// Processes that page and do nothing: their helpers wait, and look at little and seldom. Waiting for faults in turns
/// of 20 ms was 50 turns and took 1,500 µs of each second. What a turn takes is the machine's: in some states a thread
/// that wakes once a second finds nothing in its caches, and takes ten times as long.
#[test]
fn idle_processes_take_next_to_no_processor_time() {
    const COUNT: usize = 20;
    const SPAN: Duration = Duration::from_secs(5);
    /// Turns a second of each helper.
    const TURNS: u64 = 2;
    /// Microseconds a second of each helper, in user mode and in the kernel.
    const MOST: u64 = 500;
    /// Or as much as so many bare threads that wake once a second and look at what a helper looks at.
    const BARE: u64 = 3;
    if cannot_page() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let start = format!("\"$0\" 2 {} \"$1\" & ", COUNT + 1).repeat(COUNT);
    let mut command = Command::new(ebb());
    command.args(["run", "--eager", "--memory", "1G", "--swap", "none", "--"]);
    command.args(["sh", "-c", &format!("{start} wait")]);
    let (small, told) = (c_program("small"), || {
        fs::metadata(file.path()).unwrap().len()
    });
    command.arg(small).arg(file.path()).stdout(Stdio::null());
    let mut run = command.spawn().unwrap();
    let begun = Instant::now();
    while told() < COUNT as u64 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "they do not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    // They are quiet by then.
    std::thread::sleep(Duration::from_secs(2));
    let look = || {
        let helpers = helpers(run.id());
        let all = helpers.iter().copied();
        let took: Duration = all.clone().map(processor_time).sum();
        (helpers.len(), took, all.map(times_waited).sum::<u64>())
    };
    let before = look();
    let bare = std::thread::spawn(|| bare_turns(SPAN)).join().unwrap();
    let after = look();
    // One more: they end.
    fs::OpenOptions::new()
        .append(true)
        .open(file.path())
        .unwrap()
        .write_all(b".")
        .unwrap();
    assert!(run.wait().unwrap().success());
    assert_eq!((before.0, after.0), (COUNT, COUNT), "all page");
    let each = COUNT as u64 * SPAN.as_secs();
    let took = (after.1 - before.1).as_micros() as u64 / each;
    let turns = (after.2 - before.2) as f64 / each as f64;
    let bare = bare.as_micros() as u64 / SPAN.as_secs();
    println!("{turns} turns and {took} µs a second of each helper, {bare} of a bare thread");
    assert!(
        turns < TURNS as f64,
        "{turns} turns a second of each helper"
    );
    let most = MOST.max(BARE * bare);
    assert!(
        took < most,
        "{took} µs a second of each helper, over {most}"
    );
}

/// A shell waits for a program that pages and does nothing. The budget is full, and growth of the shell would pass it: the
/// supervisor looked 400 times a second, which took 36,000 µs. Turns are counted: what one takes is the machine's.
#[test]
fn a_quiet_tree_takes_its_supervisor_few_turns() {
    const SPAN: Duration = Duration::from_secs(3);
    /// Turns a second.
    const MOST: u64 = 200;
    if cannot_page() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(ebb());
    command.args(["run", "--memory", "48M", "--swap", "none", "--"]);
    command.args(["sh", "-c", "\"$0\" 96 2 \"$1\"; true"]);
    command.arg(c_program("small")).arg(file.path());
    let mut run = command.stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while fs::metadata(file.path()).unwrap().len() == 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it does not fill"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
    let before = times_waited(run.id());
    std::thread::sleep(SPAN);
    let turns = (times_waited(run.id()) - before) / SPAN.as_secs();
    fs::write(file.path(), "..").unwrap();
    assert!(run.wait().unwrap().success());
    println!("{turns} turns a second of the supervisor");
    assert!(turns < MOST, "{turns} turns a second");
}

/// What a thread takes that wakes once a second, and reads what a helper reads then.
fn bare_turns(span: Duration) -> Duration {
    let began = Instant::now();
    while began.elapsed() < span {
        std::thread::sleep(Duration::from_secs(1));
        for file in ["status", "statm"] {
            fs::read(format!("/proc/thread-self/{file}")).unwrap();
        }
    }
    let ran = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(ran.split(' ').next().unwrap().parse().unwrap())
}

/// A program that sleeps on 40 MiB, and one that works at random in as much: together they need
/// half as much again as there is.
#[test]
fn an_idle_process_gives_its_memory_to_one_that_works() {
    if cannot_page() {
        return;
    }
    let script = r#"
import hashlib, random, subprocess, sys
FILL = '''
import hashlib, random, sys
def filled(seed):
    r = random.Random(seed)
    data = bytearray(40 << 20)
    for at in range(0, len(data), 4096): data[at:at + 1024] = r.randbytes(1024)
    return data
'''
IDLE = FILL + '''
def resident():
    pages = open('/proc/self/statm').read().split()
    return (int(pages[1]) - int(pages[2])) // 256
data = filled(1)
before = resident()
print('ready', flush=True)
sys.stdin.readline()
print('idle', before, resident(), file=sys.stderr, flush=True)
print(hashlib.sha256(data).hexdigest())
'''
idle = subprocess.Popen([sys.executable, '-c', IDLE], text=True,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert idle.stdout.readline() == 'ready\n'
exec(FILL)
data, r = filled(2), random.Random(3)
for _ in range(100_000):
    at = r.randrange(len(data) // 4096) * 4096 + 2048
    data[at] = (data[at] + 1) % 256
print(hashlib.sha256(data).hexdigest())
print(idle.communicate('go')[0])
"#;
    let job = python(script);
    let free = free(&job, "idle and active");
    for options in [&["--swap", "none"][..], &[]] {
        let managed = Under::budget(72 * MIB).options(options).run(&job);
        managed.assert_same(&free, "idle and active");
        managed.assert_paged_within_budget("idle and active");
        let stderr = &managed.run.stderr;
        let line = stderr.lines().find_map(|line| line.strip_prefix("idle "));
        let sizes: Vec<u64> = line
            .unwrap_or_else(|| panic!("it does not say what it had: {stderr}"))
            .split(' ')
            .map(|size| size.parse().unwrap())
            .collect();
        // No more than the other one needs: it stops asking when it has that.
        assert!(
            sizes[1] * 4 < sizes[0] * 3,
            "{options:?}: of {} MiB it kept {}\n{}",
            sizes[0],
            sizes[1],
            managed.stats
        );
    }
}

/// A program keeps an allocator that it comes with, as it may use more of it than the malloc family
/// (redis-server 8 does); what that maps is managed.
#[test]
fn an_allocator_of_the_programs_own() {
    if cannot_page() {
        return;
    }
    const NAME: &str = "libjemalloc.so.2";
    let folders = ["x86_64-linux-gnu", "aarch64-linux-gnu", "."];
    let there = |folder: &str| Path::new("/usr/lib").join(folder).join(NAME).exists();
    if !folders.iter().any(|folder| there(folder)) {
        println!("skipped: {NAME} is not installed");
        return;
    }
    let program = c_program("allocator");
    let job = Job::new([program.as_os_str(), "96".as_ref()]).env("LD_PRELOAD", NAME);
    same_in_parts(&job, "jemalloc", &[2], &[]);
}

/// A process drops memory that its idle child keeps. It is the child's from then on, and no room to fill again.
#[test]
fn pages_dropped_here_and_kept_by_a_child_are_in_use() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("parting").as_os_str(), "200".as_ref()]);
    let job = job.time_limit(Duration::from_secs(60));
    let managed = Under::budget(200 * MIB).run(&job);
    assert!(managed.run.ok(), "{}", managed.run.stderr);
    assert_eq!(managed.run.stdout, b"0 wrong\n");
    managed.assert_close_to_budget(24 * MIB, "parting");
}

/// A process and its child, idle beside one that works, and the memory that the process keeps.
const IDLE_RELATIVES: &str = r#"
import mmap, os, random, subprocess, sys, time
MIB = 1 << 20
WORKER = '''
import random, sys, time
r = random.Random(1)
def work(data, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(1000):
            at = r.randrange(len(data) // 4096) * 4096 + 2048
            data[at] = (data[at] + 1) % 256
for line in sys.stdin:
    mib, seconds = line.split()
    data = bytearray(int(mib) << 20)
    for at in range(0, len(data), 4096): data[at:at + 1024] = r.randbytes(1024)
    work(data, float(seconds))
    print('worked', flush=True)
'''
worker = subprocess.Popen([sys.executable, '-c', WORKER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def work(mib, seconds):
    worker.stdin.write(f'{mib} {seconds}\n'); worker.stdin.flush()
    assert worker.stdout.readline() == 'worked\n'
def filled(mib, seed):
    r = random.Random(seed)
    data = mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(data), 4096): data[at:at + 1024] = r.randbytes(1024)
    return data
def resident():
    pages = open('/proc/self/statm').read().split()
    return (int(pages[1]) - int(pages[2])) // 256
old, new = filled(80, 1), filled(48, 2)
go, went = os.pipe(), os.pipe()
if os.fork() == 0:
    os.read(go[0], 1)
    for at in range(0, len(new), 4096): new[at + 2048] = 7
    os.write(went[1], b'x')
    os.read(go[0], 1)
    os._exit(0)
time.sleep(5)
work(100, 1)
before = resident()
os.write(go[1], b'x'); os.read(went[0], 1)
work(100, 4)
print('idle', before, resident(), file=sys.stderr)
os.write(go[1], b'x'); worker.stdin.close()
print(sum(old[::4096]), sum(new[::4096]))
"#;

/// A process and its child are idle. Memory that they shared until the child wrote it is given to one that works,
/// though all that they still share has to be looked at before.
#[test]
fn pages_that_relatives_share_no_more_are_given() {
    if cannot_page() {
        return;
    }
    let job = python(IDLE_RELATIVES).time_limit(Duration::from_secs(60));
    let free = free(&job, "idle relatives");
    let managed = Under::budget(250 * MIB)
        .options(&["--swap", "none"])
        .run(&job);
    managed.assert_same(&free, "idle relatives");
    managed.assert_paged_within_budget("idle relatives");
    let said = &managed.run.stderr;
    let line = said.lines().find_map(|line| line.strip_prefix("idle "));
    let sizes: Vec<u64> = line
        .unwrap_or_else(|| panic!("it does not say what it had: {said}"))
        .split(' ')
        .map(|size| size.parse().unwrap())
        .collect();
    // A look at the first units alone would give 0 or 1 MiB.
    assert!(
        sizes[1] + 3 <= sizes[0],
        "of {} MiB {} stayed",
        sizes[0],
        sizes[1]
    );
}

/// Threads that map, move, fill, drop, protect and pass on memory in an order drawn from a seed, and
/// fork, each checking all that it reads. `cargo xtask soak` does it for as long as one likes.
#[test]
fn everything_that_programs_do_to_memory() {
    if cannot_page() {
        return;
    }
    let soak = workloads::compile("bench/soak/soak.c").expect("it compiles");
    for (seed, threads) in [("3", "3"), ("8", "1")] {
        let arguments = [seed, threads, "96", "1000"].map(OsStr::new);
        let job = Job::new([soak.as_os_str()].into_iter().chain(arguments));
        let free = free(&job, "soak");
        let managed = Under::budget(48 * MIB).run(&job.env("EBB_CHECK", "1"));
        managed.assert_same(&free, &format!("soak with seed {seed}"));
        managed.assert_paged_within_budget("soak");
    }
}

/// Page tables of scattered pages count, and so does the kernel's memory for processes that come and go. Nobody is
/// killed in a group that holds little more than the budget.
#[test]
fn a_storm_of_forks_and_its_page_tables_stay_within_the_budget() {
    if cannot_page() || lacks("stress-ng") {
        return;
    }
    let storm = "stress-ng --fork 4 --malloc 4 --malloc-bytes 100m -t 5 --temp-path \"$1\"";
    let dir = tempfile::tempdir().unwrap();
    let job = Job::new(
        ["sh", "-c", storm, "sh"]
            .map(OsStr::new)
            .into_iter()
            .chain([dir.path().as_os_str()]),
    );
    let managed = Under::budget(120 * MIB).run(&job.time_limit(Duration::from_secs(90)));
    let run = &managed.run;
    assert!(
        run.ok() && run.kills == 0,
        "{}\n{}",
        run.ending(),
        run.stderr
    );
    managed.assert_paged_within_budget("stress-ng");
}
