//! Runs of the simulator, short ones.
#![cfg(debug_assertions)]

use ebb_engine::{CLUSTER_SLOTS, MAX_DEVICE_SLOTS, MAX_DEVICES};
use ebb_sim::campaign::{Narrowed, run_once};
use ebb_sim::plan::{DevicePlan, Plan};
use ebb_sim::world::Shared;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::time::Instant;

fn whole(plan: &Plan) -> Narrowed {
    Narrowed {
        window: (0, u64::MAX),
        operations: plan.operations.min(200),
    }
}

/// The trace of a run, as text.
fn trace(shared: &'static Shared, plan: &Plan) -> Vec<u8> {
    let mut file: File = tempfile::tempfile().unwrap();
    let report = run_once(shared, plan, &whole(plan), Some(file.as_raw_fd()));
    assert_eq!(report.failure, None, "seed {}", plan.seed);
    let mut text = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut text).unwrap();
    text
}

fn contains(trace: &[u8], event: &[u8]) -> bool {
    trace.windows(event.len()).any(|text| text == event)
}

/// One test, as each run is a process that this one forks.
#[test]
fn a_run_is_a_function_of_its_seed() {
    let shared: &'static Shared = Box::leak(Box::new(Shared::new()));
    // Which seed has an event moves with every change of the pager.
    let mut missing = vec![" fork ", " execs ", " vfork ", " signal ", " device gone "];
    let mut came = |text: &[u8]| {
        missing.retain(|event| !contains(text, event.as_bytes()));
        missing.is_empty()
    };
    let (mut last, mut all_came) = (Vec::new(), false);
    for seed in 1..=8 {
        let plan = Plan::of(seed, true);
        let first = trace(shared, &plan);
        assert!(first.len() > 10_000, "{} bytes", first.len());
        assert!(
            first == trace(shared, &plan),
            "two runs of seed {seed} differ"
        );
        assert!(first != last, "seeds make no difference");
        all_came = came(&first);
        last = first;
    }
    all_came = all_came || (9..=100).any(|seed| came(&trace(shared, &Plan::of(seed, true))));
    assert!(all_came, "in none of 100 runs: {missing:?}");
    a_tebibyte_of_swap();
}

/// Devices of 1 TiB together cost what small ones cost, a page. A test of its own would be another thread.
fn a_tebibyte_of_swap() {
    let seconds = |slots: usize| {
        let shared: &'static Shared = Box::leak(Box::new(Shared::with_slots(MAX_DEVICES * slots)));
        let mut plan = Plan::of(1, false);
        plan.codec = ebb_tree::Codec::None;
        let device = DevicePlan {
            slots,
            latency: 0,
            faults: String::new(),
        };
        plan.devices = vec![device; MAX_DEVICES];
        plan.mix.forks = 0;
        plan.kill = 0;
        let begin = Instant::now();
        let report = run_once(shared, &plan, &whole(&plan), None);
        assert_eq!(report.failure, None);
        (
            report.faults,
            begin.elapsed().as_secs_f64() / report.faults as f64,
        )
    };
    // Devices of 8 MiB, and the largest ones.
    let ((few, small), (many, large)) = (
        seconds(4 * CLUSTER_SLOTS),
        seconds(MAX_DEVICE_SLOTS as usize),
    );
    println!(
        "64 MiB: {:.1} us a fault, 1 TiB: {:.1} us",
        small * 1e6,
        large * 1e6
    );
    assert!(few > 200 && many > 200, "{few} and {many} faults");
    assert!(
        large < 20.0 * small,
        "{large} s a fault, and {small} s on small devices"
    );
}
