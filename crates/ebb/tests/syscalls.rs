//! System calls whose buffers are swapped out: the kernel itself takes the faults then. And other
//! memory that is not like the rest.

mod common;

use common::{Under, c_program, cannot_page, free};
use ebb_harness::MIB;
use ebb_harness::job::Job;
use std::ffi::OsStr;
use std::time::Duration;

#[test]
fn memory_calls_on_stacks_of_managed_memory() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("contexts").as_os_str()]);
    common::same_in_parts(&job, "contexts", &[2], &[]);
}

/// The same on stacks that nobody is told of, in a forked child too.
#[test]
fn memory_calls_on_stacks_switched_by_hand() {
    if cannot_page() {
        return;
    }
    let coroutines = c_program("coroutines");
    for threads in ["0", "3"] {
        let job = Job::new([
            coroutines.as_os_str(),
            "500".as_ref(),
            "4".as_ref(),
            threads.as_ref(),
        ]);
        common::same_in_parts(&job, "coroutines", &[2], &[]);
    }
}

/// The handler's fault is served while its thread changes the user: before, each waited for the other.
#[test]
fn signals_while_the_user_changes() {
    if cannot_page() {
        return;
    }
    let program = c_program("signalled_users");
    let job = Job::new([program.as_os_str(), "64".as_ref(), "3000".as_ref()]);
    let managed = Under::budget(common::SMALLEST).run(&job.time_limit(Duration::from_secs(60)));
    managed.assert_quiet("signalled_users");
    assert_eq!(managed.run.stdout, b"wrong 0, failed 0\n");
    let handled = managed
        .run
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("handled "));
    let handled: u32 = handled.unwrap().parse().unwrap();
    assert!(
        handled > 300,
        "the handler ran {handled} times beside 3000 calls"
    );
}

/// The kernel looks at each of them when no thread of ours is left.
#[test]
fn an_exec_that_holds_robust_mutexes_in_memory_that_is_out() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("held").as_os_str(), "96".as_ref()]);
    common::same_in_parts(
        &job.time_limit(Duration::from_secs(60)),
        "held",
        &[2, 4],
        &[],
    );
}

/// What stayed while it was needed is memory like any other afterwards: from before the process pages, and after.
#[test]
fn memory_that_had_to_stay_for_a_while() {
    if cannot_page() {
        return;
    }
    let program = c_program("released");
    for part in ["joined", "detached", "mutexes", "neighbours"] {
        let job = Job::new([program.as_os_str(), part.as_ref(), "48".as_ref()])
            .time_limit(Duration::from_secs(60));
        let alone = free(&job, part);
        for options in [&[][..], &["--eager"]] {
            let managed = Under::budget(32 * MIB).options(options).run(&job);
            managed.assert_same(&alone, part);
            managed.assert_paged_within_budget(part);
            managed.assert_quiet(part);
        }
    }
}

/// Memory that a call named in vain can leave as before; a bad pointer is the kernel's to judge; and advice that
/// memory be left is no more heard by one call than by the other.
#[test]
fn memory_calls_that_are_refused() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("refused_calls").as_os_str(), "48".as_ref()])
        .time_limit(Duration::from_secs(60));
    let alone = free(&job, "refused");
    for options in [&[][..], &["--eager"]] {
        let managed = Under::budget(32 * MIB).options(options).run(&job);
        managed.assert_same(&alone, "refused");
        managed.assert_paged_within_budget("refused");
        let touched = |line: &str| {
            line.strip_prefix("touched ")?
                .rsplit(' ')
                .next()?
                .parse()
                .ok()
        };
        let touched: Vec<u64> = managed.run.stderr.lines().filter_map(touched).collect();
        assert!(
            touched.len() == 4 && touched.iter().all(|kib| *kib > 0),
            "{touched:?}"
        );
    }
}

/// Lengths that no memory has: as without `ebb`, and no sum of ours overflows. With checks for that it is a
/// failure in a build that has them.
#[test]
fn memory_calls_with_lengths_beyond_all_addresses() {
    if cannot_page() {
        return;
    }
    let program = c_program("extremes");
    let job = Job::new([program.as_os_str()]).time_limit(Duration::from_secs(60));
    let alone = free(&job, "extremes");
    for options in [&[][..], &["--eager"]] {
        let managed = Under::budget(20 * MIB).options(options).run(&job);
        managed.assert_same(&alone, "extremes");
        managed.assert_paged_within_budget("extremes");
        managed.assert_quiet("extremes");
    }
}

#[test]
fn every_kind_of_buffer() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let job = Job::new([c_program("syscalls").as_os_str(), "160".as_ref()]).dir(dir.path());
    let alone = free(&job, "syscalls");
    // A third of the data does not compress: without a device all of that has to stay.
    for (mib, options) in [(56, &[][..]), (96, &["--swap", "none"])] {
        let managed = Under::budget(mib * MIB).options(options).run(&job);
        managed.assert_same(&alone, "syscalls");
        managed.assert_paged_within_budget("syscalls");
        // The program says of each buffer whether it was out when the call began.
        let said = &managed.run.stderr;
        for buffer in [
            "write",
            "read",
            "readv",
            "send",
            "recv",
            "path",
            "stat buffer",
            "futex",
            "direct write",
            "direct read",
            "short direct read",
        ] {
            let out = format!("{buffer} was out");
            assert!(said.lines().any(|line| line == out), "{buffer}:\n{said}");
        }
    }
}

/// The heap that grows by brk is paged like any other memory.
#[test]
fn memory_from_brk() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("brk").as_os_str(), "96".as_ref()]);
    common::same_in_parts(&job, "brk", &[2], &[]);
}

/// MADV_FREE drops at once, before the process pages as well. The system could take what is only free to go from a frame
/// of ours later, and whoever read that would wait for ever.
#[test]
fn memory_that_is_free_to_go_goes_at_once() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("freed").as_os_str()]);
    let managed = Under::budget(256 * MIB).run(&job);
    assert_eq!(managed.run.stdout, b"64\n", "{}", managed.run.stderr);
}

/// Memory that is dropped while it is out reads as zeros, however it was dropped.
#[test]
fn memory_that_is_dropped_while_it_is_out() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("dropped").as_os_str(), "96".as_ref()]);
    let alone = free(&job, "dropped");
    let managed = Under::budget(40 * MIB).run(&job);
    managed.assert_same(&alone, "dropped");
    managed.assert_paged_within_budget("dropped");
    let ways = String::from_utf8_lossy(&alone.stdout);
    let (unreadable, ways): (Vec<_>, Vec<_>) =
        ways.lines().partition(|l| l.starts_with("unreadable: "));
    assert_eq!(unreadable.len(), 2, "{unreadable:?}");
    let ways: Vec<_> = ways.iter().filter_map(|l| l.split(':').next()).collect();
    assert_eq!(ways.len(), 11, "{ways:?}");
    for way in ways {
        let out = format!("{way} was out");
        let said = &managed.run.stderr;
        assert!(said.lines().any(|line| line == out), "{way}:\n{said}");
    }
}

/// Locked memory stays. Memory that may not be locked can leave, and so can unlocked memory.
#[test]
fn memory_that_is_locked() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("locks").as_os_str(), "48".as_ref()]);
    let alone = free(&job, "locks");
    let managed = Under::budget(40 * MIB).run(&job);
    managed.assert_same(&alone, "locks");
    managed.assert_paged_within_budget("locks");
    let said = &managed.run.stderr;
    assert!(said.contains("unlocked: 0, 0 and 0 there"), "{said}");
}

/// Memory calls that are under way just when the process begins to page.
#[test]
fn memory_calls_while_paging_begins() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("adopted").as_os_str(), "48".as_ref()]);
    let job = job.time_limit(Duration::from_secs(20));
    let alone = free(&job, "adopted");
    for round in 0..12 {
        // Now and then with everything checked.
        let job = match round % 4 {
            0 => job.clone().env("EBB_CHECK", "1"),
            _ => job.clone(),
        };
        let managed = Under::budget(32 * MIB).run(&job);
        managed.assert_same(&alone, "adopted");
        managed.assert_paged_within_budget("adopted");
    }
}

/// Memory that nothing can be moved back to is served all the same when the budget is full.
#[test]
fn memory_that_may_only_be_read() {
    same_with_and_without_a_device("readonly", "96");
}

/// Memory that is mapped to be written alone, and memory of fibers' stacks, leaves as all other memory does.
#[test]
fn memory_that_is_mapped_in_unusual_ways() {
    if cannot_page() {
        return;
    }
    let program = c_program("unlike");
    for kind in ["write", "sealed", "stack"] {
        let job = Job::new([program.as_os_str(), kind.as_ref(), "96".as_ref()]);
        common::same_in_parts(&job, kind, &[2], &[]);
    }
}

/// A part is not managed, or is in memory only since it was dropped: the kernel moves one part after the other, and
/// stops at what is registered.
#[test]
fn memory_that_moves_beside_memory_that_is_not_managed() {
    if cannot_page() {
        return;
    }
    let program = c_program("unlike");
    let job = Job::new([program.as_os_str(), "moves".as_ref(), "24".as_ref()]);
    let managed = Under::budget(40 * MIB).run(&job);
    managed.assert_quiet("moves");
    let good = "moved 1, alike 1, in a child 1\n".repeat(2);
    assert_eq!(String::from_utf8_lossy(&managed.run.stdout), good);
}

/// The kernel waits for nobody where it writes through `/proc/self/mem`.
#[test]
fn code_that_is_written_through_the_file_of_memory() {
    same_with_and_without_a_device("self_mem", "96");
}

/// The same below 4 GiB.
#[test]
fn low_memory_that_is_written_through_the_file_of_memory() {
    if cannot_page() {
        return;
    }
    let program = c_program("self_mem");
    let job = Job::new([program.as_os_str(), "96".as_ref(), "low".as_ref()]);
    common::same_in_parts(&job, "self_mem low", &[2], &[]);
}

/// More sealed memory than the budget. A part is opened and sealed again all the time, a child reads it too, and
/// for a while nobody may even read it.
#[test]
fn memory_that_is_sealed() {
    same_with_and_without_a_device("sealed", "64");
}

/// In half the memory that it needs for so many MiB.
fn same_with_and_without_a_device(program: &str, mib: &str) {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program(program).as_os_str(), mib.as_ref()]);
    common::same_in_parts(&job, program, &[2], &["--swap", "none"]);
    common::same_in_parts(&job, program, &[2], &[]);
}

/// Threads count in pages, read files into them by both ways and fork, while these very pages leave and come back:
/// nothing that anybody writes is lost.
#[test]
fn pages_written_as_they_leave() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let program = c_program("captured");
    let job = Job::new([program.as_os_str(), "48".as_ref(), "4".as_ref()]).dir(dir.path());
    let job = job.time_limit(Duration::from_secs(60));
    let alone = free(&job, "captured");
    for options in [&["--swap", "none"][..], &[]] {
        let managed = Under::budget(40 * MIB).options(options).run(&job);
        managed.assert_same(&alone, "captured");
        managed.assert_paged_within_budget("captured");
        let evicted = managed.counter("evicted");
        println!("evicted {evicted}");
        assert!(evicted > 48 << 6, "hardly any page left: {evicted}");
    }
}

/// Pinned pages stay where they are, sealed ones too; buffers that are out are brought in for the
/// kernel; what waits to be sent stays what it was.
#[test]
fn rings() {
    rings_made("by libc");
}

/// The same of a ring that nobody sees being made.
#[test]
fn rings_made_without_libc() {
    rings_made("unseen");
}

fn rings_made(how: &str) {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let program = c_program("rings");
    let job = Job::new([program.as_os_str(), "160".as_ref(), how.as_ref()]).dir(dir.path());
    let alone = free(&job, "rings");
    match &alone.stdout[..] {
        b"no io_uring\n" => return println!("skipped: no io_uring"),
        b"no registered buffers\n" => return println!("skipped: no registered buffers"),
        _ => {}
    }
    let managed = Under::budget(56 * MIB).run(&job);
    managed.assert_same(&alone, "rings");
    managed.assert_paged_within_budget("rings");
    let stderr = &managed.run.stderr;
    for seen in [
        "loose was out",
        "pinned was in",
        "sealed was in",
        "early was out",
        "sent was out",
    ] {
        assert!(stderr.contains(seen), "not {seen}:\n{stderr}");
    }
    assert!(!String::from_utf8_lossy(&alone.stdout).contains("WRONG"));
}

/// Half of the budget is pinned, or sealed, and the rest works on noise: that gets on, as if the half were locked.
#[test]
fn pages_that_refuse_to_leave() {
    if cannot_page() {
        return;
    }
    let program = c_program("refused");
    for how in ["pinned", "sealed"] {
        let job = Job::new([
            program.as_os_str(),
            how.as_ref(),
            "16".as_ref(),
            "64".as_ref(),
        ]);
        let job = job.time_limit(Duration::from_secs(15));
        let alone = free(&job, how);
        if alone.stdout == b"not here\n" {
            println!("skipped: no io_uring, or nothing is {how} here");
            continue;
        }
        let managed = Under::budget(32 * MIB).options(&["--eager"]).run(&job);
        managed.assert_same(&alone, how);
        managed.assert_paged_within_budget(how);
        let (busy, evicted) = (managed.counter("evict_busy"), managed.counter("evicted"));
        println!("{how}: {busy} refusals, {evicted} pages evicted");
        assert!(busy < 2 * evicted, "{busy} refusals for {evicted} pages");
    }
}

/// A pipe or a socket gives out the content that a page had when it was lent, wherever the page is by then.
#[test]
fn memory_that_is_lent() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let job = Job::new([c_program("lent").as_os_str(), "128".as_ref()]).dir(dir.path());
    let alone = free(&job, "lent");
    let managed = Under::budget(48 * MIB).run(&job);
    managed.assert_same(&alone, "lent");
    managed.assert_paged_within_budget("lent");
    let stderr = &managed.run.stderr;
    assert_eq!(stderr.matches("was out").count(), 2, "{stderr}");
    assert!(!String::from_utf8_lossy(&alone.stdout).contains("WRONG"));
}

/// Pages that came in and were only read keep their copies, until they are written in whatever way.
#[test]
fn pages_only_read_so_far_are_written_in_every_way() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let clean = c_program("clean");
    let job = Job::new([clean.as_os_str(), "96".as_ref(), "6".as_ref()])
        .dir(dir.path())
        .time_limit(Duration::from_secs(120));
    let alone = free(&job, "clean");
    // One of the ways is not to be looked at in the midst of it.
    let managed = Under::budget(48 * MIB)
        .options(&["--pool", "none"])
        .run(&job);
    managed.assert_same(&alone, "clean, without checks");
    let checked = job.env("EBB_CHECK", "1");
    for options in [&["--swap", "none"][..], &["--pool", "none"]] {
        let managed = Under::budget(48 * MIB).options(options).run(&checked);
        managed.assert_same(&alone, "clean");
        managed.assert_paged_within_budget("clean");
        // One page in 400 is changed, 367 in all; a part of them stays, and has no copy.
        let [kept, written] = ["clean_reuse", "fault_clean"].map(|name| managed.counter(name));
        assert!(kept > 1000 && written > 30, "{kept} {written}");
    }
    // A page that was written anew and could not be stored at once has no older copy to come back from.
    let managed = Under::budget(48 * MIB)
        .options(&["--pool", "none"])
        .faults("write=1/100,seed=3")
        .run(&checked);
    managed.assert_same(&alone, "clean, with write errors");
    assert!(managed.counter("write_error") > 0, "{}", managed.stats);
}

/// The new mapping stays in memory: a capture takes registered pages alone.
#[test]
fn addresses_mapped_anew_without_libc() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("reused").as_os_str(), "96".as_ref(), "3".as_ref()])
        .time_limit(Duration::from_secs(60));
    let alone = free(&job, "reused");
    let managed = Under::budget(64 * MIB).behind_libc().run(&job);
    assert_eq!(
        managed.run.ending(),
        alone.ending(),
        "{}",
        managed.run.stderr
    );
    assert_eq!(managed.run.stdout, alone.stdout, "{}", managed.run.stderr);
    assert!(managed.counter("evicted") > 0, "nothing left memory");
    let noticed = managed.counter("map_disagrees");
    assert!(noticed > 0, "nothing was to be captured there");
}

/// What `mremap` and `brk` put there is read, and not what was there before.
#[test]
fn memory_moved_to_addresses_unmapped_without_libc() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("landed").as_os_str(), "96".as_ref()])
        .time_limit(Duration::from_secs(60));
    let alone = free(&job, "landed");
    let managed = Under::budget(64 * MIB).behind_libc().run(&job);
    let said = &managed.run.stderr;
    assert_eq!(managed.run.ending(), alone.ending(), "{said}");
    assert_eq!(managed.run.stdout, alone.stdout, "{said}");
    assert!(managed.counter("evicted") > 0, "nothing left memory");
    // Where memory is moved to without a wish is the system's choice.
    for call in ["a move to a wish", "growth", "brk"] {
        let there = format!("{call}: landed");
        assert!(said.lines().any(|line| line == there), "{call}:\n{said}");
    }
}

/// Alternate stacks and threads' stacks of 8 KiB and more: two KiB more than libc takes, at most. An exec looks at the file that
/// it is about, for which it has five.
#[test]
fn memory_calls_on_the_smallest_stacks() {
    if cannot_page() {
        return;
    }
    // Looking symbols up takes more stack than the calls do.
    let job = Job::new([c_program("stacks").as_os_str(), "96".as_ref()])
        .env("LD_BIND_NOW", "1")
        .time_limit(Duration::from_secs(60));
    let alone = free(&job, "stacks");
    let managed = Under::budget(64 * MIB).run(&job);
    managed.assert_same(&alone, "stacks");
    managed.assert_paged_within_budget("stacks");
    let (libcs, ours) = (depths(&alone.stderr), depths(&managed.run.stderr));
    assert!(!ours.is_empty() && ours.len() == libcs.len());
    for ((call, libc), (_, ours)) in libcs.iter().zip(&ours) {
        println!("{call}: {libc} bytes of stack by libc, {ours} by us");
        let looks = call.ends_with("exec") || call.ends_with("spawn");
        let more = if looks { 5120 } else { 2048 };
        assert!(ours <= &(libc + more), "{call}: {ours} of {libc}");
    }
}

/// The lines "depth WHEN CALL BYTES" of the program.
fn depths(stderr: &str) -> Vec<(String, usize)> {
    let lines = stderr
        .lines()
        .filter_map(|line| line.strip_prefix("depth "));
    lines
        .map(|line| {
            let (call, bytes) = line.rsplit_once(' ').expect("call and bytes");
            (call.to_owned(), bytes.parse().expect("bytes"))
        })
        .collect()
}

/// Words that the kernel stores to as a thread ends, or whenever it was interrupted: their pages stay.
#[test]
fn words_that_the_kernel_stores_later() {
    if cannot_page() {
        return;
    }
    // Otherwise libc has the one registration that a thread may have.
    let job = Job::new([c_program("kernel_words").as_os_str(), "96".as_ref()])
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .time_limit(Duration::from_secs(60));
    let alone = free(&job, "kernel words");
    let managed = Under::budget(40 * MIB).run(&job);
    managed.assert_same(&alone, "kernel words");
    managed.assert_paged_within_budget("kernel words");
    let said = String::from_utf8_lossy(&alone.stdout);
    let right = ["set_tid_address: 0", "robust: 40 of 40", "own list: told"];
    assert!(right.iter().all(|line| said.contains(line)), "{said}");
    // Other memory that was used as little is out.
    let said = &managed.run.stderr;
    let line = said
        .lines()
        .find_map(|line| line.strip_suffix(" pages out"));
    let counts: Vec<u64> = line
        .unwrap_or_default()
        .split(" of ")
        .filter_map(|n| n.parse().ok())
        .collect();
    assert!(
        counts.len() == 2 && counts[0] * 10 > counts[1] * 9,
        "{said}"
    );
}

/// By a ring that libc's `syscall` made: what is dropped reads as zeros, or is not dropped and the program told.
#[test]
fn memory_that_a_ring_would_drop() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("ring_drops").as_os_str(), "96".as_ref()])
        .time_limit(Duration::from_secs(60));
    let alone = free(&job, "ring_drops");
    if alone.stdout == b"no io_uring\n" {
        return println!("skipped: no io_uring");
    }
    let managed = Under::budget(40 * MIB).run(&job);
    managed.assert_same(&alone, "ring_drops");
    managed.assert_paged_within_budget("ring_drops");
}

/// A userfaultfd of the program's own has what it wants: that is not paged any more, and a line says so.
#[test]
fn a_userfaultfd_of_the_programs_own() {
    if cannot_page() {
        return;
    }
    let (alone, managed) = unusual("faults");
    if alone == b"no userfaultfd\n" {
        return println!("skipped: no userfaultfd for programs");
    }
    let told = "has a userfaultfd of its own for 4096 KiB";
    assert!(managed.run.stderr.contains(told), "{}", managed.run.stderr);
}

/// Calls about such memory may last until a thread of the program has read of them, and that thread makes calls, too.
#[test]
fn a_userfaultfd_of_the_programs_own_that_tells_of_memory_calls() {
    if !cannot_page() {
        unusual("events");
    }
}

/// A wait for a lock of ours changes errno, and so does mimalloc when it looks for what is not there.
#[test]
fn allocations_that_succeed_leave_errno() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("quiet").as_os_str()]).time_limit(Duration::from_secs(60));
    let managed = Under::budget(40 * MIB).run(&job);
    let said = String::from_utf8_lossy(&managed.run.stdout).into_owned();
    assert_eq!(said, "0 changed\n", "{}", managed.run.stderr);
    managed.assert_paged_within_budget("quiet");
}

/// The end of a registration may be wider than its begin. Memory that may not be read loses nothing by one.
#[test]
fn a_userfaultfd_over_more_than_it_has() {
    if !cannot_page() {
        unusual("wide");
    }
}

#[test]
fn memory_that_may_be_merged_and_memory_that_grows_down() {
    if cannot_page() {
        return;
    }
    unusual("merged");
    unusual("down");
}

/// With random addresses and without. The mapping that grows down was there before any of ours.
#[test]
fn memory_of_ours_lies_apart_from_the_programs() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("apart").as_os_str(), "96".as_ref()])
        .time_limit(Duration::from_secs(60));
    let alone = free(&job, "apart");
    assert_eq!(
        alone.stdout,
        b"0 in the hole, 0 nearby\ngrown\n0 nearby in a child\n"
    );
    for front in [&[][..], &["setarch".into(), "-R".into()]] {
        let managed = Under::budget(40 * MIB).run_behind(front, &job);
        managed.assert_same(&alone, "apart");
        managed.assert_paged_within_budget("apart");
        let said = &managed.run.stderr;
        assert!(!said.contains(": 0 foreign"), "none is ours: {said}");
    }
}

fn unusual(what: &str) -> (Vec<u8>, common::Managed) {
    let job = Job::new([
        c_program("unusual").as_os_str(),
        what.as_ref(),
        "96".as_ref(),
    ])
    .time_limit(Duration::from_secs(60));
    let alone = free(&job, what);
    let managed = Under::budget(48 * MIB).run(&job);
    managed.assert_same(&alone, what);
    managed.assert_paged_within_budget(what);
    (alone.stdout, managed)
}

/// Memory that the kernel would fill as a whole, past the budget, or while it holds a lock that service needs.
#[test]
fn memory_that_is_to_be_filled_at_once() {
    if cannot_page() {
        return;
    }
    let filled = c_program("filled");
    let run = |words: &[&str], budget: u64| {
        let argv = [filled.as_os_str()]
            .into_iter()
            .chain(words.iter().map(OsStr::new));
        let job = Job::new(argv).time_limit(Duration::from_secs(30));
        let free = free(&job, words[0]);
        let mut under = Under::budget(budget);
        under.options = vec!["--eager".into()];
        let managed = under.run(&job);
        managed.assert_same(&free, words[0]);
        managed.assert_quiet(words[0]);
        managed
    };
    let managed = run(&["populate", "256"], 64 * MIB);
    managed.assert_paged_within_budget("populate");
    run(&["locked"], 64 * MIB);
    let managed = run(&["stack", "256"], 64 * MIB);
    managed.assert_close_to_budget(MIB, "a stack");
    run(&["guarded", "256"], 64 * MIB);
}

/// Memory that is not paged comes in the place of other memory by a call under a lock that service needs. It is filled
/// after that: a filter of the program's refuses a call that does both, as it is by itself.
#[test]
fn memory_that_is_mapped_over_other_memory_and_filled() {
    if cannot_page() {
        return;
    }
    let over = |words: &[&str]| {
        let program = c_program("filled");
        let words = words.iter().map(OsStr::new);
        let job = Job::new(
            [program.as_os_str(), "over".as_ref(), "8".as_ref()]
                .into_iter()
                .chain(words),
        );
        job.time_limit(Duration::from_secs(30))
    };
    let alone = free(&over(&[]), "over");
    let refused = over(&["apart"]).run(None).expect("it starts");
    assert_eq!(
        refused.ending(),
        "exit 2",
        "the filter is none: {}",
        refused.stderr
    );
    for words in [&[][..], &["apart"]] {
        let managed = Under::budget(64 * MIB)
            .options(&["--eager"])
            .run(&over(words));
        managed.assert_same(&alone, "over");
        managed.assert_quiet("over");
    }
}

/// What a program writes to a private mapping of a file leaves like other memory. Two of 12 MiB are more than this
/// budget. With `--eager` all of it pages from the start.
#[test]
fn private_mappings_of_files() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let job = Job::new([c_program("file_copies").as_os_str(), "48".as_ref()])
        .dir(dir.path())
        .time_limit(Duration::from_secs(60));
    let alone = free(&job, "file copies");
    for options in [&[][..], &["--eager"]] {
        let managed = Under::budget(common::SMALLEST).options(options).run(&job);
        managed.assert_same(&alone, "file copies");
        managed.assert_paged_within_budget("file copies");
        managed.assert_quiet("file copies");
        let said = &managed.run.stderr;
        assert!(said.contains("grown: Cannot allocate memory"), "{said}");
        assert!(said.contains("freed: Invalid argument"), "{said}");
    }
}

/// Files that a linker maps so, reads and never writes stay the page cache's. These are 240 MiB that do not compress: more
/// than the budget, and nothing else takes them.
#[test]
fn private_mappings_of_files_that_nobody_writes() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let job = Job::new([c_program("linked").as_os_str(), "30".as_ref()])
        .dir(dir.path())
        .time_limit(Duration::from_secs(30));
    let managed = Under::budget(100 * MIB)
        .options(&["--swap", "none"])
        .run(&job);
    let expected = format!("{}\n", 30 * (8 << 20) / 4096);
    let said = String::from_utf8_lossy(&managed.run.stdout);
    assert_eq!(said, expected, "{}", managed.run.stderr);
}

/// A program may have functions of these names, and other libraries have answers of their own: ours are the system's.
#[test]
fn functions_of_the_program_that_are_named_as_libcs() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("own_names").as_os_str(), "96".as_ref()])
        .time_limit(Duration::from_secs(60));
    let alone = free(&job, "own names");
    let managed = Under::budget(48 * MIB).run(&job);
    managed.assert_same(&alone, "own names");
    managed.assert_paged_within_budget("own names");
    managed.assert_quiet("own names");
}

/// A program asks for more than there is room for, and fills it in less time than the tree takes to begin to page.
#[test]
fn memory_that_is_filled_faster_than_paging_begins() {
    if cannot_page() {
        return;
    }
    let program = c_program("filled");
    let words = [program.as_os_str(), "at_once".as_ref(), "720".as_ref()];
    let job = Job::new(words).time_limit(Duration::from_secs(30));
    let alone = free(&job, "at once");
    for _ in 0..2 {
        let managed = Under::budget(360 * MIB).run(&job);
        managed.assert_same(&alone, "at once");
        managed.assert_paged_within_budget("at once");
        managed.assert_close_to_budget(8 * MIB, "at once");
        managed.assert_quiet("at once");
    }
}

/// Cancellation unwinds from within the call, and may meet no frame of the library's.
#[test]
fn threads_that_are_cancelled_as_they_write() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("cancelled_write").as_os_str()]);
    let free = free(&job, "cancelled");
    let managed = Under::budget(64 * MIB).run(&job);
    managed.assert_same(&free, "cancelled");
}

/// Where io_uring is refused nobody has looked at what the program gives with the call: nothing, here.
#[test]
fn a_look_for_io_uring_without_parameters() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("probed").as_os_str()]);
    let free = free(&job, "probed");
    let managed = Under::budget(64 * MIB).run(&job);
    managed.assert_same(&free, "probed");
}

/// `/proc/PID/statm` then says that the process has nothing. No helper can be started there, so it is only measured.
#[test]
fn a_process_counts_though_its_first_thread_has_ended() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("first_leaves").as_os_str(), "40".as_ref()]);
    let free = free(&job, "first_leaves");
    let managed = Under::budget(96 * MIB).run(&job);
    managed.assert_same(&free, "first_leaves");
    let peak = managed.stats["peak_bytes"].as_u64();
    assert!(peak.is_some_and(|peak| peak >= 36 * MIB), "{peak:?}");
}
