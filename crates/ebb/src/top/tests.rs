//! `ebb top` on recorded figures.

use super::sample::{Rates, Sample, read, record};
use super::state::{Order, State, Step};
use super::*;
use ebb_tree::{FaultsShown, MemberShown, StatsShown};
use std::collections::BTreeMap;

fn member(pid: u32, name: &str, used: u64, faults: u64, waited: u64) -> MemberShown {
    MemberShown {
        pid,
        name: name.into(),
        used_bytes: used << 20,
        pool_bytes: 3 << 20,
        faults: BTreeMap::from([("pool".into(), faults), ("zero".into(), 7)]),
        waited_ns: waited,
    }
}

/// A tree after so many seconds.
fn at(seconds: u64) -> Sample {
    let pool = FaultsShown {
        count: 100 * seconds,
        sum_ns: 500_000_000 * seconds,
        p50_ns: 4_000,
        p99_ns: 90_000,
        p999_ns: 1_500_000,
        max_ns: 20_000_000,
    };
    let stats = StatsShown {
        version: "0".into(),
        budget_bytes: 256 << 20,
        used_bytes: 192 << 20,
        peak_bytes: 250 << 20,
        pool_bytes: 64 << 20,
        peak_pool_bytes: 80 << 20,
        paged: true,
        processes: 2,
        counters: BTreeMap::from([("pswpout".into(), 256 * seconds)]),
        fault_latency: BTreeMap::from([("pool".into(), pool)]),
        devices: Vec::new(),
        members: vec![
            member(11, "idle", 90, 5, 0),
            member(12, "busy", 40, 100 * seconds, 500_000_000 * seconds),
        ],
    };
    Sample {
        seconds: seconds as f64,
        pid: 10,
        stats,
    }
}

fn state() -> State {
    let mut state = State::new(false);
    (0..5).for_each(|seconds| state.take(at(seconds)));
    state
}

#[test]
fn rates_are_changes_for_each_second() {
    let rates = Rates::of_tree(&at(2), &at(4));
    assert_eq!(rates.faults, [0.0, 0.0, 100.0, 0.0]);
    assert_eq!((rates.waiting, rates.written), (0.5, (1 << 20) as f64));
    let busy = Rates::of_member(&at(2), &at(4), 12);
    assert_eq!((busy.faults[2], busy.waiting), (100.0, 0.5));
    assert_eq!(Rates::of_member(&at(2), &at(4), 99), Rates::default());
    assert_eq!(Rates::of_tree(&at(2), &at(2)), Rates::default());
}

#[test]
fn everything_is_readable_at_80_by_24_without_colour() {
    let shown = picture(&state(), 80, 24).unwrap();
    for part in [
        "tree 10, 2 processes, it pages",
        "192M of 256M, 250M at most",
        "# resident 128M   = pool 64M",
        "device  none",
        "waiting 0.50 threads",
        "pool    100",
        "20.0 ms",
        "busy",
        "idle",
        "q quit  s sort: faults",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
    // Half of the bar's 70 cells are resident, a quarter is the pool.
    let bar = format!("[{}{}{}]", "#".repeat(35), "=".repeat(17), ".".repeat(18));
    assert!(shown.contains(&bar), "{shown}");
    assert!(
        shown.find("busy") < shown.find("idle"),
        "most faults first\n{shown}"
    );
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
}

#[test]
fn keys() {
    let mut state = state();
    assert_eq!(state.key(KeyCode::Char('s')), Step::On);
    assert_eq!(state.order, Order::Memory);
    let shown = picture(&state, 80, 24).unwrap();
    assert!(shown.find("idle") < shown.find("busy"), "{shown}");
    assert!(shown.contains(">      11"), "{shown}");
    state.key(KeyCode::Down);
    state.key(KeyCode::Down);
    assert!(picture(&state, 80, 24).unwrap().contains(">      12"));
    state.key(KeyCode::Char('p'));
    state.take(at(9));
    assert_eq!(state.now().unwrap().seconds, 4.0);
    assert!(picture(&state, 80, 24).unwrap().contains("PAUSED"));
    state.key(KeyCode::Char('?'));
    assert!(picture(&state, 80, 24).unwrap().contains("keys and words"));
    assert_eq!(state.key(KeyCode::Esc), Step::On, "it closes the help");
    assert_eq!(state.key(KeyCode::Char('q')), Step::Quit);
}

#[test]
fn a_terminal_that_is_too_small_says_so() {
    for (width, height) in [(30, 24), (80, 10), (1, 1)] {
        let shown = picture(&state(), width, height).unwrap();
        assert!(
            width == 1 || shown.contains("make the terminal larger"),
            "{shown}"
        );
    }
}

#[test]
fn recordings_are_read_as_written_and_damage_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let mut bytes = Vec::new();
    (0..3).for_each(|seconds| record(&mut bytes, &at(seconds)).unwrap());
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(read(&path).unwrap(), [at(0), at(1), at(2)]);
    for (damaged, says) in [
        (bytes[..bytes.len() - 9].to_vec(), "damaged in line 3"),
        ([&bytes[..], b"\xff\xfe\n"].concat(), "damaged in line 4"),
        (
            [&bytes[..], &bytes[..]].concat(),
            "older than the line before",
        ),
        (Vec::new(), "holds nothing"),
    ] {
        std::fs::write(&path, damaged).unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains(says), "{error}");
    }
    let error = format!("{:#}", read(&dir.path().join("none")).unwrap_err());
    assert!(error.contains("--record"), "{error}");
}
