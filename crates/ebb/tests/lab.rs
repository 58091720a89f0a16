//! Experiments of the lab through the real pager: the mTHP test, and what leaves the pool.

mod common;

use common::{Managed, Under, alone, cannot_page, lab, lacks, median};
use ebb_harness::MIB;
use ebb_harness::job::Job;
use ebb_lab::allocator::mthp;
use ebb_lab::shrinker;
use serde_json::Value;
use std::time::Duration;

#[test]
fn folios_of_a_nearly_full_device_stay_whole() {
    if cannot_page() {
        return;
    }
    let _alone = alone();
    for mode in mthp::real::modes() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let work = format!("{mode}*2");
        let work = ["mthp", "--work", &work];
        let job = Job::new(
            std::iter::once(lab().as_os_str()).chain(work.iter().map(|word| word.as_ref())),
        )
        .time_limit(Duration::from_secs(120));
        let swap = format!("{}:{}", dir.path().display(), mthp::real::SWAP_BYTES);
        let managed = Under::budget(24 * MIB)
            .options(&["--pool", "none", "--swap", &swap])
            .run(&job);
        let run = &managed.run;
        // It checks every page itself before it ends.
        assert!(run.ok(), "{mode}: {}: {}", run.ending(), run.stderr);
        // The counters after the warm-up and after each iteration: all of it went out.
        let told = String::from_utf8_lossy(&run.stdout);
        let by_then = |counter: &str| -> Vec<u64> {
            told.lines()
                .map(|line| serde_json::from_str::<Value>(line).expect("counters"))
                .map(|counters| counters[counter].as_u64().expect("a counter"))
                .collect()
        };
        let (whole_by_then, along_by_then) = (by_then("swpout_4"), by_then("readahead"));
        assert_eq!(whole_by_then.len(), 3, "{mode}: {told}");
        println!("{mode}: {whole_by_then:?} folios, {:.1} s", run.wall);
        // Units are written whole, and leave so each time they are drawn, once where they are drawn again
        // before they have left. Single pages that leave side by side are no folio.
        let all = if mode.contains("-s") { 1020 } else { 960 };
        assert!(
            (all * 98 / 100..=all).contains(&whole_by_then[0]),
            "{mode}: {told}"
        );
        let draws = if mode.contains("-a") { 512.0 } else { 256.0 };
        let units = 960.0 * (1.0 - (1.0 - 1.0 / 960_f64).powf(draws));
        for (pair, along) in whole_by_then.windows(2).zip(along_by_then.windows(2)) {
            let whole = (pair[1] - pair[0]) as f64;
            // A unit of 16 pages leaves whole once more where the rest of it came with a page: half of it at least.
            let again = (along[1] - along[0]) as f64 / 8.0;
            assert!(
                (0.95 * units..=1.02 * draws + again).contains(&whole),
                "{mode}: {told}"
            );
        }
        let whole = managed.counter("swpout_4");
        let split = managed.counter("swpout_fallback_4");
        assert_eq!(split, 0, "{mode}: {}", managed.stats);
        let runs = managed.counter("swpout_runs");
        assert!(
            (whole..=6 * whole).contains(&runs),
            "{mode}: {}",
            managed.stats
        );
    }
}

/// Ten times what the pool may hold is filled, so stores find it full all the time, often while the
/// keeper writes back. They wait for it: no young page goes to the device before older ones do.
#[test]
fn pages_on_the_device_are_colder_than_those_in_the_pool() {
    if cannot_page() {
        return;
    }
    let _alone = alone();
    let options = ["--pool-max", "12M"];
    let (managed, inverted) =
        run_shrinker("allocate", 48 * MIB, &options, shrinker::real::INVERTED);
    let inverted = inverted.expect("pages are on the device");
    println!("{inverted}% of pairs, {:.1} s", managed.run.wall);
    assert!(inverted < 2.0, "{inverted}% of pairs: {}", managed.stats);
}

/// One run of a program of `ebb lab shrinker --real`, and a number that it tells.
fn run_shrinker(bench: &str, budget: u64, options: &[&str], what: &str) -> (Managed, Option<f64>) {
    let work = ["shrinker", "--work", bench];
    let job =
        Job::new(std::iter::once(lab().as_os_str()).chain(work.iter().map(|word| word.as_ref())))
            .time_limit(Duration::from_secs(60));
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let swap = dir.path().display().to_string();
    let managed = Under::budget(budget)
        .options(&[options, &["--swap", &swap]].concat())
        .run(&job);
    let run = &managed.run;
    assert!(run.ok(), "{}: {}", run.ending(), run.stderr);
    let told = told(&managed, what);
    (managed, told)
}

/// A number that it tells.
fn told(managed: &Managed, what: &str) -> Option<f64> {
    let told = String::from_utf8_lossy(&managed.run.stdout);
    let told = told.lines().find_map(|line| line.strip_prefix(what));
    told?.parse().ok()
}

/// One process works at random beside idle ones. Its pages on the device left memory before those in the pool,
/// and mostly were touched before them too. Where the pool is not held to a size, it refuses nothing.
#[test]
fn pages_of_a_process_at_work_leave_the_pool_in_their_order() {
    if cannot_page() {
        return;
    }
    let _alone = alone();
    // So little that the pool cannot hold what the process lets go: idle ones hold none of it for long.
    let options = ["--pool-max", "4M"];
    let run = |_| {
        let (managed, by_leaving) =
            run_shrinker("watched", 36 * MIB, &options, shrinker::real::LEFT_INVERTED);
        Some((by_leaving?, told(&managed, shrinker::real::INVERTED)?))
    };
    // A run with too few pages on the device, or in the pool, tells nothing.
    let seen: Vec<(f64, f64)> = (0..6).filter_map(run).take(3).collect();
    println!("{seen:?} percent of pairs by when they left, and were touched");
    assert!(
        seen.len() > 1,
        "most runs have too few pages on the device, or in the pool"
    );
    let (by_leaving, by_touch) = seen.iter().copied().unzip();
    assert!(median(by_leaving) < 10.0, "{seen:?}");
    assert!(median(by_touch) < 35.0, "{seen:?}");
    let (managed, _) = run_shrinker("active", 64 * MIB, &[], shrinker::real::ELAPSED);
    assert_eq!(managed.counter("reject_pool"), 0, "{}", managed.stats);
}

/// Four idle processes have filled the pool, and one works at random in less than the budget: the pages that go
/// to the device, and come back from there, are theirs.
#[test]
fn idle_processes_leave_the_pool_to_one_that_works() {
    if cannot_page() {
        return;
    }
    let _alone = alone();
    let run = |_| {
        let (managed, _) = run_shrinker("active", 40 * MIB, &[], shrinker::real::ELAPSED);
        assert!(managed.counter("pswpout") > 0, "all of it fits");
        managed.counter("pswpin") as f64
    };
    let reads: Vec<f64> = (0..3).map(run).collect();
    println!("{reads:?} pages read");
    let idle = (shrinker::real::SERVICES * shrinker::real::IDLE / 4096) as f64;
    assert!(median(reads) < idle / 5.0);
}

/// Idle processes stand back for one that works, however long they have nothing to load themselves. Their
/// pools are above the threshold, and far enough below the limit that nothing need go at once.
#[test]
fn idle_processes_stand_back_for_one_that_loads() {
    if cannot_page() {
        return;
    }
    let _alone = alone();
    let options = ["--pool-max", "8M", "--accept", "20"];
    let stood_back = |_| {
        let (managed, _) = run_shrinker("active", 36 * MIB, &options, shrinker::real::ELAPSED);
        assert!(managed.counter("pswpin") > 0, "nobody loads");
        managed.counter("stood_back")
    };
    // Where nobody is told, it is never; a machine that is busy may leave it out in one run.
    let seen: Vec<u64> = (0..4).map(stood_back).collect();
    println!("{seen:?} times");
    assert!(seen.iter().any(|&times| times > 0), "{seen:?}");
}

/// The same with a pool that is held to a size, of which the working process needs most. Together they keep to
/// the size, and it gets the part that the idle ones give.
#[test]
fn idle_processes_leave_a_limited_pool_to_one_that_works() {
    if cannot_page() {
        return;
    }
    let _alone = alone();
    let options = ["--pool-max", "12M"];
    let run = |_| {
        let (managed, _) = run_shrinker("active", 32 * MIB, &options, shrinker::real::ELAPSED);
        let pool = managed.stats["peak_pool_bytes"].as_u64().expect("a peak");
        // Each hears of what the others hold when it next looks.
        let allowed = 8 * MIB..=16 * MIB;
        assert!(allowed.contains(&pool), "{pool} bytes: {}", managed.stats);
        println!("{} KiB in the pools", pool >> 10);
        managed.counter("pswpin") as f64
    };
    let reads: Vec<f64> = (0..3).map(run).collect();
    println!("{reads:?} pages read");
    let idle = (shrinker::real::SERVICES * shrinker::real::IDLE / 4096) as f64;
    assert!(median(reads) < idle * 0.4);
}

/// Of pages of different processes, too, those on the device are the ones that left memory first.
#[test]
fn pages_of_all_processes_leave_the_pools_in_one_order() {
    if cannot_page() {
        return;
    }
    let _alone = alone();
    let what = shrinker::real::ACROSS_INVERTED;
    let run = |_| run_shrinker("watched", 40 * MIB, &[], what).1;
    let seen: Vec<f64> = (0..5).filter_map(run).take(3).collect();
    println!("{seen:?} percent of pairs");
    assert_eq!(
        seen.len(),
        3,
        "there are pages in the pools and on the device"
    );
    assert!(median(seen) < 20.0);
}

/// Of pages that are touched at random, with no rule in it, no policy knows more than another.
#[test]
fn touches_of_a_program_are_recorded_and_replayed_with_each_policy() {
    if cannot_page() || lacks("python3") {
        return;
    }
    let _alone = alone();
    let program = "import random\n\
                   pages = [bytearray(4096) for _ in range(20_000)]\n\
                   chance = random.Random(1)\n\
                   for _ in range(150_000): pages[chance.randrange(20_000)][7] ^= 1";
    let words = [
        "reclaim", "--json", "--memory", "26M", "--", "python3", "-c", program,
    ];
    let words = words.iter().map(|word| word.as_ref());
    let job = Job::new(std::iter::once(lab().as_os_str()).chain(words))
        .time_limit(Duration::from_secs(120));
    let run = job.run(None).expect("it starts");
    assert!(run.ok(), "{}: {}", run.ending(), run.stderr);
    let told = String::from_utf8_lossy(&run.stdout);
    let rows = told
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let rows: Vec<Value> = rows.collect();
    let faults = |row: &Value| row["faults_50"].as_f64().expect("a number");
    let (best, others) = rows.split_last().expect("rows");
    assert_eq!(best["policy"], "best possible");
    assert!(others.len() >= 8, "{told}");
    for row in others {
        let beside = faults(row) / faults(&others[0]);
        assert!((0.85..1.15).contains(&beside), "{told}");
        assert!(faults(best) < 0.8 * faults(row), "{told}");
    }
    // About half of the touches find the page missing.
    assert!((40_000.0..80_000.0).contains(&faults(&others[0])), "{told}");
}
