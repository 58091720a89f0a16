//! `ebb limit`: limits change under a program that pages, and it goes on.

mod common;

use common::tree::{BUDGET, Tree};
use common::{cannot_page, ebb};
use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Waits until this holds of what `ebb limit` shows.
#[track_caller]
fn until(tree: &Tree, what: &str, holds: impl Fn(&serde_json::Value) -> bool) {
    let started = Instant::now();
    loop {
        let shown = tree.limit(&[]);
        if holds(&shown) {
            return;
        }
        assert!(started.elapsed().as_secs() < 60, "{what}: {shown}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn number(shown: &serde_json::Value, name: &str) -> u64 {
    shown[name].as_u64().expect(name)
}

/// A process among those shown, if it is one of them.
fn one(shown: &serde_json::Value, pid: &str) -> Option<serde_json::Value> {
    let all = shown["processes"].as_array().unwrap();
    let found = all.iter().find(|p| p["pid"].as_u64() == pid.parse().ok());
    found.cloned()
}

#[test]
fn a_budget_goes_down_and_up_under_a_program_that_pages() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start("90M", &["a:256M"], "alone");
    let shown = tree.limit(&[]);
    assert_eq!(number(&shown, "memory_bytes"), 90 * MIB);
    assert!(shown["paging"].as_bool().unwrap(), "{shown}");

    // Reached when it says so, and kept.
    let shown = tree.limit(&["--memory", BUDGET]);
    assert_eq!(number(&shown, "memory_bytes"), 40 * MIB);
    assert!(number(&shown, "used_bytes") <= 40 * MIB, "{shown}");
    tree.until_used(0, 16);
    let shown = tree.limit(&[]);
    assert!(number(&shown, "used_bytes") <= 48 * MIB, "{shown}");

    tree.limit(&["--memory", "80M"]);
    assert_eq!(number(&tree.stats(), "past_budget_bytes"), 90 * MIB);
    until(&tree, "it takes what it is given", |shown| {
        number(shown, "used_bytes") > 60 * MIB
    });
    tree.stop(1);
}

/// The memory of a container is raised while it runs, or taken away.
#[test]
fn a_budget_follows_the_limit_of_its_control_group() {
    if cannot_page() {
        return;
    }
    if let Some(why) = cgroup::unavailable() {
        return println!("skipped: no memory cgroup: {why}");
    }
    let group = Cgroup::new(256 * MIB, KernelSwap::Forbidden).unwrap();
    let tree = Tree::start("90M", &["a:256M"], "alone");
    // The supervisor alone, whose group it asks: the one above the program.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", tree.pid)).unwrap();
    let supervisor = stat.split(' ').nth(3).unwrap();
    std::fs::write(group.procs_file(), supervisor).unwrap();
    let why = tree
        .limit_of(&tree.pid, &["--memory", "300M"])
        .expect_err("it is more than the group's");
    assert!(why.contains("give 16M to 256M"), "{why}");
    group.limit(512 * MIB).unwrap();
    let shown = tree.limit(&["--memory", "300M"]);
    assert_eq!(number(&shown, "memory_bytes"), 300 * MIB);
    let shown = tree.limit(&["--memory", "50%"]);
    assert_eq!(number(&shown, "memory_bytes"), 256 * MIB);
    tree.stop(1);
}

#[test]
fn a_budget_that_cannot_be_reached_stays_and_nobody_is_killed() {
    if cannot_page() {
        return;
    }
    // Nothing of it compresses, and there is nowhere else.
    let tree = Tree::start("130M", &["none"], "alone");
    let why = tree
        .limit_of(&tree.pid, &["--memory", "40M", "--pool-max", "8M"])
        .expect_err("there is no room");
    assert!(why.contains("the budget stays 130M"), "{why}");
    let shown = tree.limit(&[]);
    assert_eq!(number(&shown, "memory_bytes"), 130 * MIB);
    assert!(shown["pool_max"].is_null(), "{shown}");
    tree.stop(1);
}

#[test]
fn the_pool_keeps_to_its_limit() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start_with(BUDGET, &["a:256M"], "alone", &["--pool-max", "25%"]);
    let shown = tree.limit(&[]);
    assert_eq!(shown["pool_max"], "25%", "{shown}");
    assert_eq!(number(&shown, "pool_max_bytes"), 10 * MIB);
    until(&tree, "the pool keeps to its first limit", |shown| {
        let pool = number(shown, "pool_bytes");
        pool > 5 * MIB && pool <= 11 * MIB
    });
    // The threshold alone: what is above it goes to the device, when nobody fills the pool nor reads from there.
    let pid = Pid::from_raw(tree.pid.parse().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let shown = tree.limit(&["--accept", "40"]);
    assert_eq!(number(&shown, "accept_percent"), 40);
    until(&tree, "the pool goes down to its new threshold", |shown| {
        number(shown, "pool_bytes") <= 4 * MIB + MIB / 4
    });
    kill_process(pid, Signal::CONT).unwrap();
    let shown = tree.limit(&["--pool-max", "3M", "--accept", "50"]);
    assert_eq!(number(&shown, "accept_percent"), 50);
    until(&tree, "the pool goes down to its new limit", |shown| {
        number(shown, "pool_bytes") <= 3 * MIB
    });
    // Another budget changes nothing of it.
    let shown = tree.limit(&["--memory", "50M"]);
    assert_eq!(number(&shown, "pool_max_bytes"), 3 * MIB);
    tree.stop(1);
}

#[test]
fn without_writeback_nothing_goes_to_devices() {
    if cannot_page() {
        return;
    }
    // It compresses, so it fits without a device.
    let tree = Tree::start_with(BUDGET, &["a:256M"], "easy", &["--writeback", "off"]);
    std::thread::sleep(Duration::from_millis(500));
    let shown = tree.limit(&["--pool-max", "30M"]);
    assert_eq!(shown["writeback"], false, "{shown}");
    assert_eq!(tree.show()[0]["used_bytes"], 0);
    tree.limit(&["--writeback", "on", "--pool-max", "2M"]);
    tree.until_used(0, 4);
    tree.stop(1);
}

#[test]
fn a_process_has_limits_of_its_own() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start("60M", &["a:512M"], "fork");
    tree.until_used(0, 16);
    // The child may still be about to join.
    let started = Instant::now();
    let shown = loop {
        match tree.limit_of(&tree.second, &["--only", "--pool-max", "2M"]) {
            Ok(shown) => break shown,
            Err(why) if started.elapsed().as_secs() > 30 => panic!("{why}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    assert_eq!(shown["pool_max"], serde_json::Value::Null);
    let of = |shown: &serde_json::Value, pid: &str| {
        one(shown, pid).unwrap_or_else(|| panic!("no process {pid} in {shown}"))
    };
    assert_eq!(of(&shown, &tree.second)["pool_max"], "2M");
    assert_eq!(of(&shown, &tree.pid)["pool_max"], serde_json::Value::Null);
    until(&tree, "its pool goes down", |shown| {
        number(&of(shown, &tree.second), "pool_bytes") <= 2 * MIB
    });
    tree.stop(2);
}

#[test]
fn limits_of_a_process_stay_through_exec_and_pass_to_what_it_starts() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start("60M", &["a:512M"], "exec");
    tree.limit(&["--only", "--pool-max", "3M"]);
    std::fs::remove_file(tree.path("pid")).unwrap();
    std::fs::write(tree.path("stop.exec"), "").unwrap();
    let started = Instant::now();
    let pids = ["pid", "pid.child"].map(|file| {
        loop {
            if let Ok(pids) = std::fs::read_to_string(tree.path(file)) {
                break pids.split_whitespace().next().unwrap().to_owned();
            }
            assert!(started.elapsed().as_secs() < 60, "{file}: not started anew");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert_eq!(pids[0], tree.pid, "exec keeps the number");
    for pid in &pids {
        until(&tree, "it has what its ancestor was given", |shown| {
            one(shown, pid).is_some_and(|p| p["pool_max"] == "3M")
        });
    }
    tree.stop(2);
}

#[test]
fn bad_limits_are_refused_with_the_allowed_range() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start("130M", &["none"], "alone");
    let before = tree.limit(&[]);
    for (args, says) in [
        (vec!["--memory", "1M"], "give 16M to"),
        (vec!["--memory", "15T"], "give 16M to"),
        (vec!["--memory", "512"], "no unit"),
        (vec!["--pool-max", "131M"], "give 1M to 130M"),
        (vec!["--pool-max", "4K"], "give 1M to 130M"),
        (vec!["--pool-max", "120%"], "above 100%"),
        (vec!["--accept", "0"], "give 1 to 99"),
        (vec!["--accept", "100"], "give 1 to 99"),
        (vec!["--accept", "300"], "--accept"),
        (vec!["--writeback", "maybe"], "on, off"),
        (vec!["--only"], "--pool-max or --writeback"),
        (vec!["--only", "--memory", "100M"], "leave --only out"),
    ] {
        let why = tree.limit_of(&tree.pid, &args).expect_err("it is refused");
        assert!(why.contains(says), "{args:?}: {why}");
    }
    // A budget below a limit that was fine, and a process's above the tree's.
    tree.limit(&["--pool-max", "120M"]);
    for (args, says) in [
        (vec!["--memory", "110M"], "give 1M to 110M"),
        (vec!["--only", "--pool-max", "125M"], "give 1M to 120M"),
    ] {
        let why = tree.limit_of(&tree.pid, &args).expect_err("it is refused");
        assert!(why.contains(says), "{args:?}: {why}");
    }
    let after = tree.limit(&["--pool-max", "none"]);
    for name in ["memory_bytes", "pool_max", "accept_percent", "writeback"] {
        assert_eq!(before[name], after[name], "{name}");
    }
    tree.stop(1);
}

/// A change that nobody is told of was made all the same.
#[test]
fn limits_that_cannot_be_written_were_changed() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start("90M", &["a"], "alone");
    let said = |args: &[&str]| {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut command = Command::new("timeout");
        command
            .args(["-k1", "60"])
            .arg(ebb())
            .args(["limit", &tree.pid]);
        let output = command.args(args).stdout(full.unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(&[]).contains("No space left"));
    for json in [&[][..], &["--json"]] {
        let changed = said(&[&["-m", "80M"][..], json].concat());
        assert!(changed.contains("it was done, but"), "{changed}");
    }
    assert!(!said(&[]).contains("it was done"));
    assert_eq!(number(&tree.limit(&[]), "memory_bytes"), 80 * MIB);
    tree.stop(1);
}
