//! Devices that fail, and the pager itself: the program's output is right, or the program is ended with
//! a message; it never reads wrong data.

mod common;

use common::{Managed, Under, c_program, cannot_page, ebb, free, lacks};
use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::{MIB, SLACK, tools, workloads};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Pages of random words: they do not compress, so they go to the device.
fn incompressible() -> Job {
    let touch = workloads::compile("bench/touch.c").expect("touch compiles");
    Job::new([touch.as_os_str(), "128".as_ref(), "512".as_ref()])
}

const BUDGET: u64 = 64 * MIB;
const PAGE: u64 = 4096;

impl Managed {
    /// The fault did happen: one of the counters that show it is not 0.
    #[track_caller]
    fn assert_struck(&self, counters: &[&str], what: &str) {
        let struck: u64 = counters.iter().map(|name| self.counter(name)).sum();
        assert!(struck > 0, "{what} never happened: {}", self.stats);
    }
}

/// It printed what it prints by itself; or it printed nothing, and somebody said why.
fn right_or_ended(managed: &Managed, alone: &Outcome, what: &str) {
    let run = &managed.run;
    if run.ok() {
        assert!(
            run.stdout == alone.stdout,
            "{what}: wrong data\n{}",
            run.stderr
        );
        return;
    }
    assert!(
        run.stdout.is_empty(),
        "{what}: {} after output\n{}",
        run.ending(),
        run.stderr
    );
    assert!(run.status.is_some(), "{what}: it hung\n{}", run.stderr);
    let said = run.stderr.lines().any(|line| line.starts_with("ebb"));
    assert!(
        said,
        "{what}: {} without a word\n{}",
        run.ending(),
        run.stderr
    );
}

/// Daemons that write no files are allowed none: what they hold stays in RAM, and a line says why. A limit that a
/// program sets for itself while it runs does not concern what serves it.
#[test]
fn a_program_that_may_write_no_large_files_keeps_its_pages_in_ram() {
    if cannot_page() {
        return;
    }
    const PROGRAM: &str = "
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
if len(sys.argv) < 4: os.execv(sys.executable, [sys.executable, '-c', sys.orig_argv[2], *sys.argv[1:], 'limited'])
noise, pieces = int(sys.argv[1]), int(sys.argv[2])
data = [os.urandom(noise) + bytes(4000 - noise) for _ in range(pieces)]
print(len(data), sum(map(len, data)))
";
    // 64 MiB that compress to a quarter fit in 56, with 6 in the pool. That is more than the pool keeps while there
    // is a device, and less than it may hold. 120 MiB that do not compress have no place.
    let pool = ["--pool-max", "12M", "--accept", "30"];
    let cases = [
        ("1000", "16384", &pool[..], true),
        ("4000", "30000", &[], false),
    ];
    for (noise, pieces, options, ends) in cases {
        let python = ebb_harness::tools::python().expect("python3");
        let argv = [
            python.as_os_str(),
            "-c".as_ref(),
            PROGRAM.as_ref(),
            noise.as_ref(),
            pieces.as_ref(),
        ];
        let job = Job::new(argv).time_limit(Duration::from_secs(60));
        let managed = Under::budget(56 * MIB).options(options).run(&job);
        let said = &managed.run.stderr;
        assert_eq!(managed.run.ok(), ends, "{}: {said}", managed.run.ending());
        let lines = said.lines().filter(|line| line.contains("RLIMIT_FSIZE"));
        assert_eq!(lines.count(), if ends { 1 } else { 2 }, "{said}");
        // Where it ends, the reason given is that limit.
        assert_eq!(said.contains("out of memory: "), !ends, "{said}");
        assert!(!said.contains("nothing more can be swapped out"), "{said}");
        managed.assert_struck(&["write_error"], "a limit of file sizes");
        // The first slot is within the limit.
        assert!(managed.counter("pswpout") <= 1, "{}", managed.stats);
    }
}

#[test]
fn write_errors_cost_slots_not_data() {
    if cannot_page() {
        return;
    }
    let job = incompressible();
    let alone = free(&job, "touch");
    let managed = Under::budget(BUDGET).faults("write=1/100,seed=3").run(&job);
    managed.assert_same(&alone, "write errors");
    managed.assert_struck(&["write_error"], "write errors");
}

#[test]
fn a_device_that_fails_to_write_is_named_with_the_next_step() {
    if cannot_page() {
        return;
    }
    let job = incompressible().time_limit(Duration::from_secs(60));
    let alone = free(&job, "touch");
    let managed = Under::budget(BUDGET).faults("write=1/500,seed=3").run(&job);
    right_or_ended(&managed, &alone, "write errors");
    managed.assert_struck(&["write_error"], "write errors");
    let said = &managed.run.stderr;
    for part in [
        "swap device 1, ",
        "failed to write",
        "Look at the device",
        "ebb swap",
    ] {
        assert!(said.contains(part), "{part:?} is missing: {said}");
    }
}

#[test]
fn a_transient_read_error_is_read_again() {
    if cannot_page() {
        return;
    }
    let job = incompressible();
    let alone = free(&job, "touch");
    let managed = Under::budget(BUDGET)
        .faults("read=1/20000,seed=5")
        .run(&job);
    managed.assert_same(&alone, "read errors");
    managed.assert_struck(&["read_again"], "read errors");
}

/// As in a control group that is full for a moment: a read waits, and a page that is not written stays.
#[test]
fn transfers_without_memory_cost_no_page() {
    if cannot_page() {
        return;
    }
    let job = incompressible().time_limit(Duration::from_secs(60));
    let alone = free(&job, "touch");
    let managed = Under::budget(BUDGET).faults("again=1/100,seed=5").run(&job);
    managed.assert_same(&alone, "no memory for transfers");
    managed.assert_struck(&["write_error"], "a write without memory");
    for counter in ["read_error", "read_again", "poisoned"] {
        assert_eq!(managed.counter(counter), 0, "{counter}: {}", managed.stats);
    }
}

#[test]
fn corrupted_data_is_noticed() {
    if cannot_page() {
        return;
    }
    let job = incompressible();
    let alone = free(&job, "touch");
    for seed in 1..=3 {
        let managed = Under::budget(BUDGET)
            .faults(&format!("corrupt=1/500,seed={seed}"))
            .run(&job);
        right_or_ended(&managed, &alone, "corruption");
        managed.assert_struck(&["read_again"], "corruption");
    }
}

#[test]
fn a_lost_page_is_told_of_with_device_and_slot() {
    if cannot_page() {
        return;
    }
    let job = incompressible();
    // Every read is damaged, so the first page that comes back from the device is lost.
    let managed = Under::budget(BUDGET).faults("corrupt=1/1,seed=1").run(&job);
    assert!(!managed.run.ok());
    let told = &managed.run.stderr;
    let slot = told
        .split(" of swap device 1 does not hold")
        .next()
        .unwrap();
    let slot = slot.rsplit("slot ").next().unwrap();
    assert!(slot.parse::<u32>().is_ok(), "{told}");
    assert!(told.contains("gets SIGBUS"), "{told}");
    managed.assert_struck(&["checksum_error"], "corruption");
}

/// Bits that turned on the device, and writes that were never done, are noticed. The program gets
/// SIGBUS for those pages, each time, and all others are as they were.
#[test]
fn the_data_of_a_lost_device_is_lost_and_nothing_else() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("survivor").as_os_str(), "128".as_ref()]);
    let alone = free(&job, "survivor");
    for faults in ["rot=1/300,seed=5", "lost=1/20,seed=5"] {
        let managed = Under::budget(BUDGET).faults(faults).run(&job);
        managed.assert_same(&alone, faults);
        let said = &managed.run.stderr;
        let lost = said.lines().find_map(|line| line.strip_suffix(" lost"));
        let lost: u64 = lost.and_then(|n| n.parse().ok()).expect(said);
        assert!((1..8192).contains(&lost), "{faults}: {said}");
        assert!(said.contains("gets SIGBUS"), "{faults}: {said}");
        managed.assert_struck(&["checksum_error"], faults);
        // A page that comes along and cannot be read is told of once it is touched itself.
        assert!(managed.counter("poisoned") >= lost, "{}", managed.stats);
    }
}

#[test]
fn a_device_that_goes_away() {
    if cannot_page() {
        return;
    }
    let job = incompressible().time_limit(Duration::from_secs(60));
    let alone = free(&job, "touch");
    for after in ["200", "2000"] {
        let managed = Under::budget(BUDGET)
            .faults(&format!("gone-after={after},seed=1"))
            .run(&job);
        right_or_ended(&managed, &alone, "device gone");
        managed.assert_struck(&["write_error", "read_error"], "the device's end");
        assert!(
            !managed.run.stderr.contains(" 0 times"),
            "{}",
            managed.run.stderr
        );
    }
}

#[test]
fn a_full_disk() {
    if cannot_page() {
        return;
    }
    // It goes on for as long as each thread comes to a page that is new to it: 15 s on a machine with nothing else to do.
    let job = incompressible().time_limit(Duration::from_secs(180));
    let alone = free(&job, "touch");
    let managed = Under::budget(BUDGET)
        .faults("enospc-after=16M,seed=1")
        .run(&job);
    right_or_ended(&managed, &alone, "disk full");
    managed.assert_struck(&["write_error"], "a full disk");
    // What was written before is all that there is.
    let written = managed.counter("pswpout") * PAGE;
    assert!((1..=16 * MIB).contains(&written), "{}", managed.stats);
    // With room for the rest on a second device nothing is lost.
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let small = format!("{}:16M,prio=9", dir.path().display());
    let large = format!("{}:1G,prio=1", dir.path().display());
    let managed = Under::budget(BUDGET)
        .options(&["--swap", &small, "--swap", &large])
        .run(&job);
    managed.assert_same(&alone, "two devices");
    let written = managed.counter("pswpout") * PAGE;
    assert!(
        written > 16 * MIB,
        "the first was never full: {}",
        managed.stats
    );
}

/// A real file system, mounted where nobody else sees it. The swap file is to be larger than what another program's
/// file leaves it. It takes blocks as it is written, until there are none.
#[test]
fn a_file_system_that_fills_while_the_program_pages() {
    let script = r#"
at=$0/at; mkdir "$at" && truncate -s 40M "$0/image" && mkfs.ext4 -q "$0/image" || exit 90
loop=$(losetup --find --show --direct-io=on "$0/image") || exit 90
mount "$loop" "$at"; status=$?
losetup --detach "$loop"
[ "$status" = 0 ] || exit 90
free=$(df --output=avail -k "$at" | tail -n 1)
fallocate -l $((free - 12 * 1024))K "$at/other" || exit 90
"$@"
status=$?
ls -A "$at" | grep -v -x -e lost+found -e other | sed "s/^/left behind: /" >&2
exit "$status"
"#;
    // No dirty pages of files: they would count in the same cgroup until the disk has them.
    let Some((alone, managed)) = behind_a_mount(script, ":128M", SLACK) else {
        return;
    };
    let what = "a full file system";
    right_or_ended(&managed, &alone, what);
    let stderr = &managed.run.stderr;
    assert!(!stderr.contains("left behind"), "{what}: {stderr}");
    managed.assert_struck(&["pswpout"], what);
    managed.assert_struck(&["write_error"], what);
}

/// Another file takes all room while the program grows. The user is told and sees it; the program goes on when there is
/// room again, or ends for memory if there is none.
#[test]
fn a_file_system_that_another_file_fills_meanwhile() {
    const PROGRAM: &str = "
import os, sys, time
pages = [os.urandom(1 << 20) for _ in range(60)]
first = [page[7] for page in pages]
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.05)
print('filled', flush=True)
wait_for(sys.argv[1])
for _ in range(80):
    pages.append(os.urandom(1 << 20))
    first.append(pages[-1][7])
print('grown', flush=True)
wait_for(sys.argv[2])
print([page[7] for page in pages] == first)
";
    const SCRIPT: &str = r#"
at=$0/at; mkdir "$at" && truncate -s 200M "$0/image" && mkfs.ext4 -q "$0/image" || exit 90
mount -o loop "$0/image" "$at" || exit 90
until_said() { n=0; until grep -q "$1" "$2"; do n=$((n+1)); [ $n -lt 300 ] || exit 91; sleep 0.1; done; }
timeout -k 1 100 "$1" run -m 48M --swap "$at" -- python3 -c "$2" "$0/go" "$0/end" >"$0/out" 2>"$0/err" & run=$!
until_said filled "$0/out"
free=$(df --output=avail -k "$at" | tail -n 1)
fallocate -l $((free - 4096))K "$at/other" || exit 90
touch "$0/go"; begin=$(date +%s)
until_said 'is full: free room there' "$0/err"
pid=$(pgrep -P $run); "$1" swap show --json $pid >"$0/shown"
if [ "$3" = freed ]; then
    rm "$at/other"; until_said grown "$0/out"
    sleep 1; "$1" swap show --json $pid >"$0/later"; touch "$0/end"
fi
wait $run; status=$?
echo $(($(date +%s) - begin)) >"$0/took"
exit $status
"#;
    if cannot_page() || lacks("python3") {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: only root can mount a file system");
    }
    for (then, status) in [("freed", 0), ("stays", 137)] {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let said = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-c", SCRIPT]).arg(dir.path());
        let ended = shell.arg(ebb()).args([PROGRAM, then]).status().unwrap();
        if ended.code() == Some(90) {
            return println!("skipped: no file system can be mounted here");
        }
        let told = said("err");
        assert_eq!(ended.code(), Some(status), "{then}: {told}");
        assert_eq!(
            told.matches("is full: free room there, or `ebb swap on")
                .count(),
            1,
            "{told}"
        );
        let state = |shown: &str| {
            let shown: serde_json::Value = serde_json::from_str(&said(shown)).unwrap();
            shown[0]["state"].as_str().unwrap().to_owned()
        };
        assert_eq!(state("shown"), "full", "{then}");
        if status == 0 {
            assert_eq!(
                (&*state("later"), &*said("out")),
                ("on", "filled\ngrown\nTrue\n")
            );
        } else {
            assert!(told.contains("out of memory: "), "{told}");
            let took: u64 = said("took").trim().parse().unwrap();
            assert!(took <= 30, "{took} s");
        }
    }
}

#[test]
fn a_swap_file_truncated_while_in_use() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("swap");
    std::fs::File::create(&file)
        .unwrap()
        .set_len(512 * MIB)
        .unwrap();
    let job = incompressible().time_limit(Duration::from_secs(60));
    let alone = free(&job, "touch");
    let truncated = file.clone();
    let saboteur = std::thread::spawn(move || {
        // Once there is data in it.
        for _ in 0..3000 {
            std::thread::sleep(Duration::from_millis(5));
            let used = Command::new("du")
                .args(["-k"])
                .arg(&truncated)
                .output()
                .unwrap()
                .stdout;
            let kib: u64 = String::from_utf8_lossy(&used)
                .split_whitespace()
                .next()
                .unwrap()
                .parse()
                .unwrap();
            if kib > 8 << 10 {
                std::fs::File::options()
                    .write(true)
                    .open(&truncated)
                    .unwrap()
                    .set_len(4 * MIB)
                    .unwrap();
                return true;
            }
        }
        false
    });
    let managed = Under::budget(BUDGET)
        .options(&["--swap", file.to_str().unwrap()])
        .run(&job);
    assert!(
        saboteur.join().unwrap(),
        "the file was never used: {}",
        managed.stats
    );
    right_or_ended(&managed, &alone, "truncated file");
    let noticed = ["read_error", "checksum_error", "write_error"];
    managed.assert_struck(&noticed, "a loss by truncation");
}

#[test]
fn everything_full_ends_with_a_word_not_with_damage() {
    if cannot_page() {
        return;
    }
    let job = incompressible().time_limit(Duration::from_secs(60));
    let alone = free(&job, "touch");
    let managed = Under::budget(BUDGET).options(&["--swap", "none"]).run(&job);
    right_or_ended(&managed, &alone, "nowhere to go");
    let status = managed.run.status.expect("it must not hang");
    assert!(
        !status.success() && status.signal().is_none(),
        "{}",
        managed.run.ending()
    );
    let said = &managed.run.stderr;
    assert!(said.contains("raise --memory"), "{said}");
}

/// Pages that need no room are not held up by those beside them for which there is none.
#[test]
fn pages_that_need_no_room_leave_where_all_is_full() {
    if cannot_page() {
        return;
    }
    let mixed = c_program("mixed");
    let job = Job::new([mixed.as_os_str(), "64".as_ref(), "8".as_ref()])
        .time_limit(Duration::from_secs(60));
    let alone = free(&job, "mixed");
    // Of 64 MiB half are zeros.
    let managed = Under::budget(40 * MIB)
        .options(&["--swap", "none"])
        .run(&job);
    managed.assert_same(&alone, "mixed");
    managed.assert_paged_within_budget("mixed");
}

/// Fills 64 MiB with bytes that do not compress, looks at the blocks of the swap file, gives the memory
/// back, and waits for the file to shrink. Then it says both figures, in KiB.
const FREES: &str = "
import mmap, os, sys, time
kib = lambda: os.stat(sys.argv[1]).st_blocks // 2
memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(memory), 1 << 20):
    memory[at:at + (1 << 20)] = os.urandom(1 << 20)
full = kib()
memory.close()
for _ in range(60):
    if kib() < full // 2:
        break
    time.sleep(0.01)
print(full, kib())
";

#[test]
fn blocks_of_a_swap_file_go_back_when_the_program_frees_if_that_is_wanted() {
    if cannot_page() {
        return;
    }
    for (spec, wanted) in [("discard=on", true), ("discard=off", false)] {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = dir.path().join("swap");
        let made = std::fs::File::create(&file).unwrap();
        made.set_len(256 * MIB).unwrap();
        let job = ["python3".as_ref(), "-c".as_ref(), FREES.as_ref()];
        let job = Job::new(job.into_iter().chain([file.as_os_str()]));
        let swap = format!("{},{spec}", file.display());
        let managed = Under::budget(32 * MIB)
            .options(&["--pool", "none", "--swap", &swap])
            .run(&job.time_limit(Duration::from_secs(60)));
        let run = &managed.run;
        assert!(run.ok(), "{spec}: {}: {}", run.ending(), run.stderr);
        let said = String::from_utf8_lossy(&run.stdout);
        let kib: Vec<u64> = said
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        assert!(kib[0] > 24 << 10, "{spec}: {said}: it went to the device");
        // Clusters that hold pages of the interpreter too are left.
        assert_eq!(kib[1] < kib[0] / 2, wanted, "{spec}: {said}");
    }
}

/// A child reads at random what its parent has, until its pager fails. SIGABRT has a handler, as in many
/// programs: it is not run where nobody would serve it.
const CHILD_THAT_FAILS: &str = "
import faulthandler, os, random, sys
faulthandler.enable()
PAGE, PAGES = 4096, 14 << 10
data = bytearray(PAGES * PAGE)
for page in range(PAGES):
    data[page * PAGE:page * PAGE + 800] = page.to_bytes(8, 'little') * 100
def good(page):
    return data[page * PAGE + 8:page * PAGE + 16] == page.to_bytes(8, 'little')
if os.fork() == 0:
    draw = random.Random(1).randrange
    os._exit(0 if all(good(draw(PAGES)) for _ in range(200_000)) else 1)
print(os.wait()[1], os.system('exit 3'), all(good(page) for page in range(0, PAGES, 100)))
";

/// The pager of one process fails: that process is ended with one message that says so, it reads nothing
/// wrong before that, and the others go on.
#[test]
fn a_pager_that_fails_ends_its_process_and_no_other() {
    if cannot_page() {
        return;
    }
    let python = ebb_harness::tools::python().expect("python3");
    let child = ["-c", CHILD_THAT_FAILS].map(OsStr::new);
    let tree = Job::new([python.as_os_str()].into_iter().chain(child));
    let alone = incompressible();
    // The output: the child ended by SIGKILL, then a program run, then the parent's own memory.
    let cases = [
        (tree, 32, "finished", "9 768 True\n"),
        (alone, 64, "exit 137", ""),
    ];
    for (job, budget, ending, printed) in cases {
        for fault in ["pager-after=12000", "keeper-after=12000"] {
            let dir = tempfile::tempdir_in("/var/tmp").unwrap();
            let managed = Under::budget(budget * MIB)
                .options(&["--swap", dir.path().to_str().unwrap()])
                .faults(fault)
                .run(&job.clone().time_limit(Duration::from_secs(60)));
            let (run, said) = (&managed.run, &managed.run.stderr);
            assert_eq!(run.ending(), ending, "{fault}: {said}");
            assert_eq!(run.kills, 0, "{fault}: {said}");
            assert_eq!(String::from_utf8_lossy(&run.stdout), printed, "{said}");
            let ours: Vec<_> = said.lines().filter(|l| l.starts_with("ebb")).collect();
            assert_eq!(ours.len(), 1, "{fault}: {said}");
            assert!(ours[0].contains("ebb itself failed: "), "{fault}: {said}");
            assert!(
                ours[0].contains("EBB_FAULTS asks for it"),
                "{fault}: {said}"
            );
            assert!(!said.contains("panicked"), "{fault}: {said}");
            let left = std::fs::read_dir(dir.path()).unwrap().count();
            assert_eq!(left, 0, "{fault}: files are left behind");
        }
    }
}

/// The group of the program has no more than its budget, with nothing for the kernel, and refuses more
/// instead of killing.
#[test]
fn pages_that_the_system_refuses_are_waited_for() {
    if cannot_page() {
        return;
    }
    if !cgroup::is_v1() {
        println!("skipped: only memory cgroups of version 1 refuse without killing");
        return;
    }
    if cgroup::unavailable().is_some() {
        println!("skipped: no memory cgroup can be made");
        return;
    }
    let job = incompressible();
    let alone = free(&job, "touch");
    let group = Cgroup::new(47 * MIB, KernelSwap::Forbidden).expect("a cgroup");
    group.refuse().expect("it is of version 1");
    let front = [
        ebb().as_os_str(),
        "run".as_ref(),
        "--memory".as_ref(),
        "46M".as_ref(),
        "--".as_ref(),
    ];
    let job = job.behind(front).time_limit(Duration::from_secs(60));
    let (run, refused) = std::thread::scope(|scope| {
        // Its time limit ends only what runs in user space.
        let raised = scope.spawn(|| {
            let look = |_| {
                std::thread::sleep(Duration::from_millis(10));
                group.is_refusing()
            };
            let refused = (0..300).map(look).fold(false, |seen, now| seen | now);
            group.limit(64 * MIB + SLACK).map(|()| refused)
        });
        let run = job.run(Some(&group)).expect("ebb starts");
        let refused = raised.join().unwrap().expect("it is more than before");
        (run, refused)
    });
    assert_eq!(
        (run.ending(), run.kills),
        (alone.ending(), 0),
        "{}",
        run.stderr
    );
    assert_eq!(run.stdout, alone.stdout, "{}", run.stderr);
    assert!(refused, "the group never refused");
}

/// The system has no page any more, for good: the process ends, with a word, having read nothing wrong.
#[test]
fn pages_that_the_system_refuses_for_good_end_the_process() {
    if cannot_page() {
        return;
    }
    let job = incompressible().time_limit(Duration::from_secs(60));
    let begin = Instant::now();
    let managed = Under::budget(46 * MIB)
        .faults("no-page-after=12000:1000s")
        .run(&job);
    let (run, said) = (&managed.run, &managed.run.stderr);
    assert_eq!((run.ending(), run.kills), ("exit 137".into(), 0), "{said}");
    assert!(run.stdout.is_empty(), "{said}");
    let ours: Vec<_> = said.lines().filter(|l| l.starts_with("ebb")).collect();
    assert_eq!(ours.len(), 1, "{said}");
    for word in [
        "the system has no page for this process",
        "although the budget has room",
        "raise the limit of its memory cgroup",
    ] {
        assert!(ours[0].contains(word), "{said}");
    }
    managed.assert_struck(&["page_refused"], "a refusal");
    let took = begin.elapsed().as_secs();
    assert!((10..40).contains(&took), "{took} s");
}

/// The system has no page for some seconds, or now and then. Threads that fault, forks, and pages that can only be
/// copied back wait for that, and nothing is lost.
#[test]
fn pages_that_the_system_refuses_for_a_while() {
    if cannot_page() {
        return;
    }
    let sealed = Job::new([c_program("sealed").as_os_str(), "64".as_ref()]);
    let threads = Job::new([c_program("threads").as_os_str(), "16".as_ref()]);
    let forks = Job::new([c_program("sealed_forks").as_os_str(), "64".as_ref()]);
    let jobs = [("sealed", sealed), ("threads", threads), ("forks", forks)];
    for (what, job) in jobs {
        let job = job.time_limit(Duration::from_secs(60));
        let alone = free(&job, what);
        for faults in ["no-page-after=2500:2s", "no-page=1/20"] {
            let managed = Under::budget(alone.peak / 2)
                .faults(faults)
                .run(&job.clone().env("EBB_CHECK", "1"));
            managed.assert_same(&alone, &format!("{what} with {faults}"));
            managed.assert_struck(&["page_refused"], faults);
            managed.assert_quiet(what);
        }
    }
}

/// Where asynchronous reads are refused, the swap file is read by plain calls.
#[test]
fn without_asynchronous_reads() {
    if cannot_page() {
        return;
    }
    let script = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
step = lambda code, yes, no, value: struct.pack('HBBI', code, yes, no, value)
load, equal, answer, io_setup = 0x20, 0x15, 0x06, 206
refuse, allow = 0x50000 | 1, 0x7fff0000
program = ctypes.create_string_buffer(
    step(load, 0, 0, 0) + step(equal, 0, 1, io_setup)
    + step(answer, 0, 0, refuse) + step(answer, 0, 0, allow))
class Filter(ctypes.Structure):
    _fields_ = [('steps', ctypes.c_ushort), ('program', ctypes.c_void_p)]
filter = Filter(4, ctypes.cast(program, ctypes.c_void_p))
no_new_privileges, seccomp = 38, 22
assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
assert libc.prctl(seccomp, 2, ctypes.byref(filter)) == 0
assert libc.syscall(io_setup, 1, None) == -1 and ctypes.get_errno() == 1
os.execvp(sys.argv[1], sys.argv[1:])
";
    let wrapper = ["python3", "-c", script].map(Into::into);
    let job = incompressible();
    let alone = free(&job, "touch");
    let managed = Under::budget(BUDGET).run_behind(&wrapper, &job);
    managed.assert_same(&alone, "without asynchronous reads");
    managed.assert_paged_within_budget("without asynchronous reads");
    assert!(managed.counter("pswpin") > 0, "{}", managed.stats);
}

/// Schedulers of devices hold back transfers of idle urgency while there are others, for seconds.
#[test]
fn threads_of_idle_urgency_have_transfers_like_any_others() {
    if cannot_page() {
        return;
    }
    let script = format!(
        "
import ctypes, os, random, sys, time
call, supervisor, end = ctypes.CDLL(None).syscall, os.getppid(), time.monotonic() + 20
def helpers():
    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
        try:
            with open(f'/proc/{{pid}}/stat') as file: words = file.read().split()
        except OSError: continue
        if words[1] == '(ebb-helper)' and int(words[3]) == supervisor: yield pid
def services():
    for pid in helpers():
        for task in os.listdir(f'/proc/{{pid}}/task'):
            with open(f'/proc/{{pid}}/task/{{task}}/comm') as file:
                if file.read() == 'ebb-service\\n': yield int(task)
def look():
    # They compete where other work fills the machine: so one is of idle urgency for a moment.
    for task in services():
        before = os.sched_getscheduler(task)
        os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
        found = call({}, 1, task) >> 13
        is_idle = os.sched_getscheduler(task) == os.SCHED_IDLE
        os.sched_setscheduler(task, before, os.sched_param(0))
        if is_idle: return found
looker = os.fork()
if looker == 0:
    seen = None
    while seen is None and time.monotonic() < end:
        try: seen = look()
        # One has just ended.
        except OSError: pass
    os._exit(seen or 0)
pages = bytearray(random.randbytes(96 << 20))
while (ended := os.waitpid(looker, os.WNOHANG))[0] == 0:
    for n in range(1000): pages[random.randrange(len(pages))]
print(os.waitstatus_to_exitcode(ended[1]))",
        libc::SYS_ioprio_get
    );
    let python = tools::python().expect("python3");
    let job = Job::new([python.as_os_str(), "-c".as_ref(), script.as_ref()]);
    let run = Under::budget(BUDGET).run(&job).run;
    // The class of best effort.
    let seen = String::from_utf8_lossy(&run.stdout);
    assert_eq!(seen, "2\n", "{}", run.stderr);
}

/// A page that was only read since it came from a device is not written there again.
#[test]
fn unchanged_pages_are_evicted_without_a_write() {
    if cannot_page() {
        return;
    }
    let job = incompressible();
    let alone = free(&job, "touch");
    let managed = Under::budget(BUDGET).options(&["--pool", "none"]).run(&job);
    managed.assert_same(&alone, "touch");
    let (evicted, written) = (managed.counter("evicted"), managed.counter("pswpout"));
    let reused = managed.counter("clean_reuse");
    assert!(
        reused > 0 && written + reused <= evicted,
        "{}",
        managed.stats
    );
}

/// Runs a job behind a shell that puts its swap at `$0/at`: how it ended by itself and with that. None if the machine
/// does not let it. The rest of the swap's description is `swap`, and the cgroup has so many bytes beside the budget.
fn behind_a_mount(script: &str, swap: &str, beside: u64) -> Option<(Outcome, Managed)> {
    if cannot_page() {
        return None;
    }
    if !ebb_harness::is_root() {
        println!("skipped: only root can mount a file system");
        return None;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let job = incompressible().time_limit(Duration::from_secs(60));
    let alone = free(&job, "touch");
    let mut shell = ["unshare", "--mount", "sh", "-c", script]
        .map(OsString::from)
        .to_vec();
    shell.push(dir.path().into());
    let at = dir.path().join("at");
    let under = Under::budget(BUDGET)
        .beside(beside)
        .options(&["--swap", &format!("{}{swap}", at.display())]);
    let managed = under.run_behind(&shell, &job);
    if managed.run.status.and_then(|status| status.code()) == Some(90) {
        println!(
            "skipped: no file system can be mounted here: {}",
            managed.run.stderr
        );
        return None;
    }
    Some((alone, managed))
}

/// The same output, and pages were written to the swap.
fn same_behind_a_mount(script: &str, beside: u64, what: &str) {
    let Some((alone, managed)) = behind_a_mount(script, "", beside) else {
        return;
    };
    managed.assert_same(&alone, what);
    assert!(managed.counter("pswpout") > 0, "{what}: {}", managed.stats);
}

/// A swap file on a tmpfs takes as much RAM as it frees, and works.
#[test]
fn a_swap_file_in_memory() {
    let script = r#"mkdir "$0/at" && mount -t tmpfs tmpfs "$0/at" || exit 90
exec "$@""#;
    // It counts in the same cgroup.
    same_behind_a_mount(script, SLACK + 160 * MIB, "tmpfs");
}

/// A loop device that is detached while it is in use stays until its last user has gone.
#[test]
fn a_loop_device_that_is_detached() {
    let script = r#"truncate -s 256M "$0/image"
loop=$(losetup --find --show "$0/image") && ln -s "$loop" "$0/at" || exit 90
( sleep 0.5; losetup --detach "$loop" ) & other=$!
"$@"
status=$?
wait $other
exit "$status""#;
    same_behind_a_mount(script, SLACK + 160 * MIB, "a loop device");
}

/// Files in memory count in the cgroup, and not in the budget: the system kills, and that leaves no word of its own.
#[test]
fn a_kill_for_memory_by_the_system_is_told() {
    if cannot_page() || lacks("python3") {
        return;
    }
    if let Some(why) = cgroup::unavailable() {
        println!("skipped: no limit by the kernel, as there is no cgroup: {why}");
        return;
    }
    let program = "import tempfile\n\
                   with tempfile.TemporaryFile(dir='/dev/shm') as file:\n    \
                   for _ in range(96): file.write(bytes(1 << 20))";
    let job = Job::new(["python3", "-c", program]).time_limit(Duration::from_secs(60));
    for _ in 0..5 {
        let managed = Under::budget(32 * MIB).run(&job);
        assert!(!managed.run.ok(), "96 MiB fit beside the budget");
        let (status, said) = (managed.run.status.unwrap(), &managed.run.stderr);
        // The group is full until the dead program's files are gone: whoever asks for memory there is killed too.
        if status.signal() == Some(libc::SIGKILL) && said.is_empty() {
            continue;
        }
        let told = said.contains("killed a process for memory in the memory cgroup /");
        assert!(told, "{}: {said}", managed.run.ending());
        return;
    }
    panic!("`ebb` was killed with its program in each round");
}
