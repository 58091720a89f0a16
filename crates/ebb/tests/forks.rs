//! Inside of a fork: signals in the child, the work of libc and other libraries there, and the words that the
//! kernel stores for parent and child. And children of `clone` that share memory.

mod common;

use common::{Managed, Under, c_program, cannot_page, free};
use ebb_harness::MIB;
use ebb_harness::job::Job;
use ebb_harness::tools;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

/// The program says the same by itself and in a budget in which most of its memory is out.
fn same(program: &Path, arguments: &[&str]) -> Managed {
    same_with(0, program, arguments)
}

/// The same, where relatives may have `copies`, in bytes, of what they shared.
fn same_with(copies: u64, program: &Path, arguments: &[&str]) -> Managed {
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    let job = Job::new([program.as_os_str()].into_iter().chain(arguments));
    let job = job.time_limit(Duration::from_secs(60));
    let what = program.display().to_string();
    let alone = free(&job, &what);
    let managed = Under::budget(40 * MIB).run(&job);
    managed.assert_same(&alone, &what);
    managed.assert_paged_within(copies, &what);
    managed.assert_quiet(&what);
    managed
}

fn signalled(way: &str) {
    if cannot_page() {
        return;
    }
    const CHILDREN: u32 = 30;
    let program = c_program("signalled_forks");
    let managed = same(&program, &[way, "96", &CHILDREN.to_string()]);
    let said = String::from_utf8_lossy(&managed.run.stdout);
    assert_eq!(said, "wrong 0, lost 0, other 0, parent 0\n", "{way}");
    // The handler did run where it is to be right.
    let early = managed.run.stderr.lines();
    let mut early = early.filter_map(|line| line.strip_prefix("handled early "));
    let early = early
        .next()
        .and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    println!("{way}: handled early in {early:?} of {CHILDREN}");
    assert!(early.is_some_and(|n| n * 5 >= CHILDREN), "{way}");
}

#[test]
fn signals_while_libc_forks() {
    signalled("fork");
    signalled("_Fork");
}

#[test]
fn signals_while_a_program_with_threads_forks() {
    signalled("threads");
}

/// The child's stack is in memory that is out.
#[test]
fn signals_while_clone_copies_the_process() {
    signalled("clone");
}

#[test]
fn signals_in_children_made_by_number() {
    #[cfg(target_arch = "x86_64")]
    signalled("SYS_fork");
    signalled("SYS_clone");
    signalled("SYS_clone3");
}

/// Each fork is over, with all that is done on a stack that forks share, before the next one begins.
#[test]
fn threads_that_fork_at_the_same_time() {
    if cannot_page() {
        return;
    }
    // Forks go on all the time.
    let managed = same_with(8 * MIB, &c_program("crossed_forks"), &["4", "30", "64"]);
    assert_eq!(managed.run.stdout, b"0 wrong\n");
}

/// A thread that is to be cancelled, and is in none of the calls that are no points of cancellation. One that ended in
/// `fork` would keep the turn.
#[test]
fn forks_and_memory_calls_of_a_thread_that_is_to_be_cancelled() {
    if cannot_page() {
        return;
    }
    let managed = same_with(8 * MIB, &c_program("cancelled"), &["64", "5"]);
    let said = String::from_utf8_lossy(&managed.run.stdout);
    let each = "cancelled in pthread_testcancel\nthen a child ended with 7\n";
    assert_eq!(said, each.repeat(4) + "0 wrong\n");
}

/// Stacks, structures, and words that the kernel stores; and such as are nowhere.
#[test]
fn arguments_of_clone_in_memory_that_is_out() {
    if cannot_page() {
        return;
    }
    let managed = same(&c_program("clone_words"), &["96"]);
    let said = &managed.run.stderr;
    for what in "stack argument parent_tid child_tid pidfd clone3 set_tid cleared".split(' ') {
        let out = format!("{what} was out");
        assert!(said.lines().any(|line| line == out), "{what}:\n{said}");
    }
}

/// A child of `clone` with CLONE_VFORK and a copy of the memory waits for another thread of its parent: nothing is held
/// meanwhile. Its parent goes on when it execs or ends.
#[test]
fn parents_that_wait_for_a_copy_hold_nobody() {
    if cannot_page() {
        return;
    }
    let managed = same_with(8 * MIB, &c_program("copied_vfork"), &["96"]);
    let said = String::from_utf8_lossy(&managed.run.stdout);
    assert_eq!(said.lines().count(), 24, "{said}");
    for line in said.lines() {
        let good = line.contains(": in order, in time, ");
        let good = good && line.ends_with(", 0 more descriptors, 0 wrong");
        assert!(good, "{line}");
    }
}

/// Handlers of a library's own use memory that is out, and locks that another thread holds now and then.
#[test]
fn handlers_around_a_fork_that_use_memory() {
    if cannot_page() {
        return;
    }
    same(&c_program("atfork"), &["96"]);
}

/// A fork looks at libc's data of users and groups, which are out by then.
#[test]
fn a_fork_after_names_were_looked_up() {
    if cannot_page() {
        return;
    }
    let script = "
import grp, os, pwd, socket, threading
print(pwd.getpwnam('root').pw_uid, grp.getgrgid(0).gr_name, flush=True)
data = [b'y%d' % i for i in range(1_200_000)]
over = threading.Event()
threading.Thread(target=over.wait).start()
for n in range(4):
    if os.fork() == 0:
        os._exit(4 if pwd.getpwnam('root').pw_uid == 0 and data[n * 99_991] == b'y%d' % (n * 99_991) else 5)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
print(sum(map(len, data)))
over.set()
";
    let python = tools::python().expect("python3");
    same(&python, &["-c", script]);
}

/// Of a process that asks not to be dumped (PR_SET_DUMPABLE) nothing tells whose memory a forked child has, where `ebb` is
/// not privileged, as in a container.
#[test]
fn children_of_a_process_that_is_not_to_be_dumped() {
    if cannot_page() {
        return;
    }
    const SCRIPT: &str = "import ctypes, os
kept = [os.urandom(32) * 128 for _ in range(96 * 256)]
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(len({page[0] for page in kept}) < 2)
    assert os.waitpid(child, 0)[1] == 0
print(len(kept))";
    let privileges: &[&str] = match ebb_harness::is_root() {
        true => &[
            "setpriv",
            "--bounding-set=-sys_ptrace",
            "--inh-caps=-sys_ptrace",
        ],
        // LIMITATIONS says why an ordinary user's are not.
        false => return println!("skipped: only root's children are served so"),
    };
    let output = std::process::Command::new(privileges[0])
        .args(&privileges[1..])
        .arg(common::ebb())
        .args([
            "run", "-m", "64M", "--swap", "none", "python3", "-c", SCRIPT,
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!((&output.stdout[..], &*said), (&b"24576\n"[..], ""));
}

/// A thread of ours makes a page its own before it captures it. Dropped without libc just then, the page is not waited for:
/// nobody else would bring it, as that thread has the lock.
#[test]
fn pages_that_are_dropped_without_libc_as_they_leave() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("shed").as_os_str(), "64".as_ref(), "40".as_ref()]);
    let job = job.time_limit(Duration::from_secs(100));
    let alone = free(&job, "shed");
    let managed = Under::budget(40 * MIB).behind_libc().run(&job);
    managed.assert_same(&alone, "shed");
    managed.assert_quiet("shed");
    assert!(managed.counter("unshared") > 0, "{}", managed.stats);
}

/// What a child of `clone` with CLONE_VM does, as it is by itself: see the program.
fn child_of_clone(arguments: &[&str]) {
    let program = c_program("clone_vm");
    let arguments = arguments.iter().map(OsStr::new);
    let job = Job::new([program.as_os_str()].into_iter().chain(arguments));
    let job = job.time_limit(Duration::from_secs(60));
    let alone = free(&job, "clone_vm");
    let managed = Under::budget(64 * MIB).run(&job);
    managed.assert_same(&alone, "clone_vm");
    managed.assert_quiet("clone_vm");
}

/// However many, in a process so small that it has no helper.
#[test]
fn memory_calls_of_a_child_of_clone_succeed() {
    child_of_clone(&["calls"]);
}

/// What such a child maps is within the budget, though its parent never maps anything.
#[test]
fn memory_that_a_child_of_clone_maps_is_managed() {
    if cannot_page() {
        return;
    }
    let job = Job::new([
        c_program("clone_vm").as_os_str(),
        "maps".as_ref(),
        "96".as_ref(),
    ]);
    common::same_in_parts(&job, "clone_vm", &[3], &[]);
}

/// Where the kernel refuses what such a child maps in a fixed place, what was there stays.
#[test]
fn mappings_of_a_child_of_clone_that_are_refused_replace_nothing() {
    child_of_clone(&["fixed"]);
}

/// It returns from `syscall` to the address on top of its stack.
#[test]
fn a_child_of_clone_by_number_goes_on_at_its_stack() {
    child_of_clone(&["number"]);
}

/// It would keep all the memory of a parent that is ended for want of it.
#[test]
fn a_child_of_clone_ends_with_a_parent_that_is_ended_for_memory() {
    if cannot_page() {
        return;
    }
    let program = c_program("clone_vm");
    let output = std::process::Command::new(common::ebb())
        .args(["run", "-m", "40M", "--swap", "none", "--"])
        .arg(program)
        .args(["ends", "96"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("out of memory: "), "{said}");
    let child = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(child.parse::<u32>().is_ok(), "{child}");
    let lives = || {
        let status = std::fs::read_to_string(format!("/proc/{child}/status"));
        status.is_ok_and(|status| !status.contains("State:\tZ"))
    };
    let begin = Instant::now();
    while lives() {
        assert!(begin.elapsed() < Duration::from_secs(10), "{child} lives");
        std::thread::sleep(Duration::from_millis(10));
    }
}
