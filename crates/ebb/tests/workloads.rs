//! The main job: each workload prints the same in half and in a quarter of its peak memory. Its cgroup holds the
//! budget and 48 MiB, without kernel swap.

mod common;

use common::{cannot_page, same_in_parts};
use ebb_harness::job::Job;
use ebb_harness::workloads::{Scale, Workload};
use ebb_harness::{MIB, SLACK};

fn check(workload: Workload, options: &[&str]) {
    if cannot_page() {
        return;
    }
    let job = match workload.job(Scale::Small) {
        Ok(job) => job,
        Err(missing) => return println!("skipped: {missing:#}"),
    };
    // Without a device all that is out must fit the pool: a quarter is too little.
    let divisors: &[u64] = match options {
        [.., "--swap", "none"] => &[2],
        _ => &[2, 4],
    };
    let free = same_in_parts(&job, workload.name(), divisors, options);
    // Else all of it would fit into the cgroup.
    let half = free.peak / 2;
    assert!(half > SLACK, "{} MiB are too few", free.peak / MIB);
}

macro_rules! workloads {
    ($($(#[$attribute:meta])* $test:ident: $workload:ident $options:expr;)*) => {
        $(#[test] $(#[$attribute])* fn $test() { check(Workload::$workload, &$options); })*
    };
}

workloads! {
    touch: Touch [];
    touch_in_two_threads: TouchThreads [];
    touch_without_a_device: Touch ["--swap", "none"];
    touch_without_a_pool: Touch ["--pool", "none"];
    touch_with_zstd: Touch ["--pool", "zstd:3"];
    touch_recompressed_with_a_dictionary: Touch ["--pool", "lz4+zstd+dict:-1"];
    redis_with_a_dictionary: Redis ["--pool", "zstd+dict"];
    numpy: Numpy [];
    python_heap: Heap [];
    sqlite: Sqlite [];
    redis_and_its_client: Redis [];
    gnu_sort: Sort [];
    gnu_sort_in_two_threads: SortThreads [];
}

/// With no more than `ebb run` asks for.
#[test]
fn touch_in_the_smallest_budget() {
    if cannot_page() {
        return;
    }
    let touch = ebb_harness::workloads::compile("bench/touch.c").expect("touch compiles");
    let job = Job::new([touch.as_os_str(), "72".as_ref()]);
    let free = common::free(&job, "touch");
    let managed = common::Under::budget(16 * MIB).run(&job);
    managed.assert_same(&free, "touch in 16 MiB");
    managed.assert_paged_within_budget("touch in 16 MiB");
    managed.assert_close_to_budget(8 * MIB, "touch in 16 MiB");
}

/// A scan soon brings all of a unit with each fault, a random touch its own page alone. Room is made ahead of need,
/// so that hardly a fault has to make it.
#[test]
fn a_walk_brings_many_pages_a_fault_and_a_random_touch_one() {
    if cannot_page() {
        return;
    }
    let order = common::c_program("order");
    // From a device a touch brings the rest of its unit if most of that is in memory: a quarter is.
    for (budget, options) in [(56, ["--swap", "none"]), (28, ["--pool", "none"])] {
        for (how, pages) in [("walk", 8.0..=16.0), ("random", 1.0..=1.25)] {
            let job = Job::new([order.as_os_str(), "96".as_ref(), how.as_ref()]);
            let what = format!("{how} {options:?}");
            let free = common::free(&job, &what);
            let managed = common::Under::budget(budget * MIB)
                .options(&options)
                .run(&job);
            managed.assert_same(&free, &what);
            let loads = managed.counter("fault_pool") + managed.counter("fault_device");
            let brought = 1.0 + managed.counter("readahead") as f64 / loads as f64;
            let direct = managed.counter("allocstall") as f64 / managed.counter("fault") as f64;
            println!("{what}: {brought:.2} pages a fault, {loads} faults, {direct:.4} direct");
            assert!(loads > 1000, "{what}: {}", managed.stats);
            assert!(pages.contains(&brought), "{what}: {brought} pages a fault");
            assert!(direct < 0.05, "{what}: {direct} of the faults made room");
        }
    }
}

/// All fits, but paging is forced from the first page on.
#[test]
fn python_heap_paged_from_the_start() {
    if cannot_page() {
        return;
    }
    let job = Workload::Heap.job(Scale::Small).expect("python3");
    let free = common::free(&job, "python-heap");
    let managed = common::Under::budget(free.peak * 2)
        .options(&["--eager"])
        .run(&job);
    managed.assert_same(&free, "python-heap, eager");
}
