//! `ebb swap`: devices come and go under a program that pages, and it does not notice.

mod common;

use common::tree::{BUDGET, MEMORY_MIB, Tree};
use common::{cannot_page, ebb};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn devices_come_and_go_under_a_program_that_pages() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start(BUDGET, &["a:256M"], "alone");
    tree.until_used(0, 16);
    assert!(!tree.holders("a").is_empty());

    tree.done(&["on", &format!("{}:256M,prio=5", tree.path("b"))]);
    let shown = tree.show();
    assert_eq!(shown.as_array().unwrap().len(), 2, "{shown}");
    assert_eq!(shown[1]["priority"], 5, "{shown}");
    assert_eq!(shown[1]["size_bytes"], 256 << 20, "{shown}");

    // The first one by its path; what it held is on the second one now.
    tree.done(&["off", &tree.path("a")]);
    let shown = tree.show();
    assert_eq!(shown.as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(shown[0]["device"], 2, "{shown}");
    assert!(
        shown[0]["used_bytes"].as_u64().unwrap() >= 16 << 20,
        "{shown}"
    );
    assert_eq!(tree.holders("a"), Vec::<PathBuf>::new(), "the file is gone");

    // And back, by number, several times, so that rows and numbers are used again.
    for round in 0..3 {
        tree.done(&["on", &format!("{}:256M", tree.path("a"))]);
        tree.done(&["off", &(2 + round).to_string()]);
    }
    assert_eq!(tree.holders("b"), Vec::<PathBuf>::new());
    tree.stop(1);
}

#[test]
fn somebodys_data_is_not_added_to_a_tree_unless_it_is_given_up() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start(BUDGET, &["a:256M"], "alone");
    let image = tree.path("image");
    let file = File::create(&image).unwrap();
    file.set_len(128 << 20).unwrap();
    // Its first 100 MiB are zeros.
    file.write_all_at(b"precious", 100 << 20).unwrap();
    let before = std::fs::read(&image).unwrap();
    let (ok, said) = tree.swap(&["on", &image]);
    assert!(!ok && said.contains("data (at byte 104857600)"), "{said}");
    assert!(said.contains("overwrite=yes"), "{said}");
    assert!(
        std::fs::read(&image).unwrap() == before,
        "it was written to"
    );
    tree.done(&["on", &format!("{image},prio=9,overwrite=yes")]);
    tree.done(&["off", &tree.path("a")]);
    tree.done(&["on", &format!("{}:256M", tree.path("b"))]);
    tree.done(&["off", &image]);
    // It is swap now, whatever lies on it.
    assert!(std::fs::read(&image).unwrap() != before, "it was used");
    tree.done(&["on", &image]);
    tree.done(&["off", &image]);
    tree.stop(1);
}

/// The device is there, whoever reads of it.
#[test]
fn a_device_of_the_tree_is_not_taken_for_another_runs() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start(BUDGET, &["a"], "alone");
    let file = tree.path("file");
    File::create(&file).unwrap().set_len(16 << 20).unwrap();
    tree.done(&["on", &file]);
    let (ok, why) = tree.swap(&["on", &format!("{file},prio=5")]);
    assert!(!ok && why.contains("of this run already"), "{why}");
    tree.done(&["off", &file]);
    tree.done(&["on", &format!("{file},prio=5")]);
    tree.stop(1);
}

#[test]
fn an_answer_that_nobody_takes_is_no_panic() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start(BUDGET, &["a:256M"], "alone");
    let asked = |stdout: Stdio| {
        let mut command = Command::new("timeout");
        command.args(["-k", "2", "60"]).arg(ebb());
        command.args(["swap", "on", &format!("{}:16M", tree.path("b")), &tree.pid]);
        command
            .stdout(stdout)
            .stderr(Stdio::piped())
            .output()
            .unwrap()
    };
    let full = File::options().write(true).open("/dev/full").unwrap();
    let told = asked(full.into());
    let said = String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(125), "{said}");
    assert!(
        said.starts_with("ebb: it was done, but standard output"),
        "{said}"
    );
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let quiet = asked(write.into());
    let said = String::from_utf8_lossy(&quiet.stderr);
    assert!(quiet.status.success() && said.is_empty(), "{said}");
    assert_eq!(tree.show().as_array().unwrap().len(), 3);
    tree.stop(1);
}

/// The figure of one device in what `ebb swap show --json` printed.
fn figure(shown: &serde_json::Value, n: usize, name: &str) -> u64 {
    let figure = shown[n][name].as_u64();
    figure.unwrap_or_else(|| panic!("{name} of device {n}: {shown}"))
}

#[test]
fn the_use_shown_agrees_with_the_data_stored() {
    if cannot_page() {
        return;
    }
    // Each device has bad slots, few enough that it stays in service.
    let tree = Tree::start_faulty(
        BUDGET,
        &["a:24M,prio=7", "b:256M"],
        "alone",
        &[],
        "bad=1/500",
    );
    tree.until_used(1, 16);
    let before = tree.show();
    let table = tree.done(&["show"]);
    let after = tree.show();

    assert_table_agrees(&tree, &table, &before, &after);
    // The figures of slots in use come from processes, and are a little older than those of slots held.
    let fits = |shown: &serde_json::Value| {
        let of = |n, name| figure(shown, n, name);
        let used = of(0, "used_bytes") + of(1, "used_bytes");
        // Memory beyond the budget is on both devices; a little is on its way there.
        let stored = (MEMORY_MIB - 41) << 20..=MEMORY_MIB << 20;
        stored.contains(&used) && (0..2).all(|n| of(n, "used_bytes") <= of(n, "held_bytes"))
    };
    let later = (0..250).map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        tree.show()
    });
    let after = std::iter::once(after).chain(later).find(fits);
    let after = after.expect("slots in use are held, and hold what is beyond the budget");
    for (n, size) in [24 << 20, 256 << 20].into_iter().enumerate() {
        let of = |name| figure(&after, n, name);
        assert_eq!(of("size_bytes"), size, "{after}");
        assert!(
            of("held_bytes") <= size && of("held_bytes") % (2 << 20) == 0,
            "{after}"
        );
        assert_eq!((of("processes"), of("given_up_by")), (1, 0), "{after}");
    }
    let used = figure(&after, 0, "used_bytes") + figure(&after, 1, "used_bytes");
    // And in their files.
    let in_file = |name: &str| {
        let path = tree.holders(name).into_iter().next().expect("it is open");
        std::fs::metadata(path).unwrap().blocks() * 512
    };
    let in_files = in_file("a") + in_file("b");
    assert!(in_files + (4 << 20) >= used, "{in_files} bytes: {after}");
    // A slot failed, and is told of.
    let errors = figure(&after, 0, "write_errors") + figure(&after, 1, "write_errors");
    assert!(errors > 0, "{after}");
    let told = tree.stop(1);
    assert!(told.contains("failed to write"), "{told}");
}

/// The table of `ebb swap show` says what JSON says that was asked for before and after it.
fn assert_table_agrees(
    tree: &Tree,
    table: &str,
    before: &serde_json::Value,
    after: &serde_json::Value,
) {
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let [columns, a, b] = &rows[..] else {
        panic!("{table}")
    };
    assert_eq!(
        columns[..],
        [
            "DEVICE", "SIZE", "USED", "PRIO", "NODE", "STATE", "ERRORS", "PATH"
        ]
    );
    for (n, row) in [a, b].into_iter().enumerate() {
        let [device, size, used, priority, _, state, errors, path] = row[..] else {
            panic!("{table}")
        };
        let shown = (device, size, priority, state);
        assert_eq!(
            shown,
            [("1", "24M", "7", "on"), ("2", "256M", "-", "on")][n]
        );
        assert_eq!(path, before[n]["path"], "{table}");
        assert!(path.starts_with(&tree.path(["a", "b"][n])), "{table}");
        // The program goes on meanwhile.
        let between = |name| figure(before, n, name)..=figure(after, n, name);
        let errors: u64 = errors.parse().unwrap();
        assert!(
            between("write_errors").contains(&errors),
            "{before}\n{table}{after}"
        );
        let used: f64 = used.strip_suffix('M').unwrap().parse().unwrap();
        for bytes in [
            figure(before, n, "used_bytes"),
            figure(after, n, "used_bytes"),
        ] {
            let mib = bytes as f64 / f64::from(1 << 20);
            assert!((used - mib).abs() < 8.0, "{before}\n{table}{after}");
        }
    }
}

#[test]
fn devices_are_chosen_as_the_user_wants() {
    if cannot_page() {
        return;
    }
    for (choice, in_turn) in [("per-node", false), ("equal-turns", true)] {
        let tree = Tree::start_with(
            BUDGET,
            &["a:256M", "b:256M"],
            "alone",
            &["--device-choice", choice],
        );
        tree.until_used(0, 16);
        let shown = tree.show();
        let second = shown[1]["used_bytes"].as_u64().unwrap();
        assert_eq!(second > 4 << 20, in_turn, "{choice}: {shown}");
        assert!(in_turn || second == 0, "{choice}: {shown}");
        tree.stop(1);
    }
}

#[test]
fn without_room_it_says_how_much_is_missing_and_nothing_changes() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start(BUDGET, &["a:256M"], "alone");
    tree.until_used(0, 16);
    let on_it = || {
        let shown = tree.show();
        assert_eq!(shown[0]["state"], "on", "{shown}");
        shown[0]["used_bytes"].as_u64().unwrap() / 4096
    };
    // Nowhere to go at all, then a device that takes a part of it.
    for spec in [None, Some("c:4M")] {
        if let Some(spec) = spec {
            tree.done(&["on", &tree.path(spec)]);
        }
        let used = on_it();
        let (ok, text) = tree.swap(&["off", &tree.path("a")]);
        assert!(!ok && text.contains("stays in use"), "{text}");
        assert!(!text.contains("gone elsewhere"), "{text}");
        let missing = text.split("lack room for ").nth(1).expect(&text);
        let missing: u64 = missing.split(' ').next().unwrap().parse().unwrap();
        // The program goes on meanwhile, so the figure moves a little.
        let after = on_it();
        assert!(
            missing > used.min(after) / 2 && missing < used.max(after) * 2,
            "{missing} pages missing, {used} to {after} there: {text}"
        );
    }
    let small = tree.show()[1]["used_bytes"].as_u64().unwrap();
    assert_eq!(small, 0, "something was moved");
    // With room it goes.
    tree.done(&["on", &format!("{}:256M", tree.path("b"))]);
    tree.done(&["off", &tree.path("a")]);
    assert_eq!(tree.holders("a"), Vec::<PathBuf>::new());
    tree.stop(1);
}

#[test]
fn room_for_one_process_is_none_for_two() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start(BUDGET, &["a:512M"], "fork");
    tree.until_used(0, 64);
    // Each of the two has about half of what is there.
    let there = tree.show()[0]["used_bytes"].as_u64().unwrap() >> 20;
    tree.done(&["on", &format!("{}:{}M", tree.path("b"), there * 3 / 4)]);
    let (ok, text) = tree.swap(&["off", "1"]);
    assert!(!ok && text.contains("lack room for"), "{text}");
    let shown = tree.show();
    assert_eq!(shown[0]["state"], "on", "{shown}");
    assert_eq!(shown[1]["used_bytes"], 0, "something was moved: {shown}");
    tree.done(&["on", &format!("{}:512M", tree.path("c"))]);
    tree.done(&["off", "1"]);
    tree.stop(2);
}

#[test]
fn with_no_other_device_pages_go_into_the_pool_if_they_fit() {
    if cannot_page() {
        return;
    }
    // Pages that compress well go to the device only because the pool may hold so little.
    let tree = Tree::start_with(BUDGET, &["a:256M"], "easy", &["--pool-max", "2M"]);
    tree.until_used(0, 4);
    tree.limit(&["--pool-max", "none"]);
    tree.done(&["off", "1"]);
    assert_eq!(tree.show(), serde_json::json!([]));
    assert_eq!(tree.holders("a"), Vec::<PathBuf>::new());
    let pool = tree.limit(&[])["pool_bytes"].as_u64().unwrap();
    assert!(pool > 2 << 20, "the pool holds {pool} bytes");
    tree.stop(1);
}

#[test]
fn a_removal_whose_asker_goes_is_taken_back() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start(BUDGET, &["a:256M", "b:256M"], "alone");
    tree.until_used(0, 8);
    let mut asking = Command::new(ebb())
        .args(["swap", "off", &tree.path("a"), &tree.pid])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Early or late: it was taken back, or it had been done.
    std::thread::sleep(Duration::from_millis(60));
    asking.kill().unwrap();
    asking.wait().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let shown = tree.show();
    for device in shown.as_array().unwrap() {
        assert_eq!(device["state"], "on", "{shown}");
    }
    tree.stop(1);
}

/// The command is interrupted or killed at any moment of a removal. The device stays and is used on, or is gone;
/// nothing of it is lost.
#[test]
fn a_removal_that_is_interrupted_at_any_moment() {
    if cannot_page() {
        return;
    }
    // Slow enough that a removal takes a while.
    let tree = Tree::start_faulty(BUDGET, &["a:256M", "b:256M"], "alone", &[], "delay=1/8:2ms");
    tree.until_used(0, 16);
    let used = |path: &str| {
        let shown = tree.show();
        let device = shown.as_array().unwrap().iter().find(|d| d["path"] == path);
        device.map(|d| {
            (
                d["state"].as_str().unwrap().to_owned(),
                d["used_bytes"].as_u64().unwrap(),
            )
        })
    };
    let (mut from, mut to) = (tree.path("a"), tree.path("b"));
    let (mut stayed, mut moved) = (0, 0);
    for (round, after) in [2, 10, 30, 60, 100, 200, 400, 800].into_iter().enumerate() {
        let signal = [Signal::INT, Signal::KILL][round % 2];
        let before = used(&from).expect("it is on").1;
        let mut asking = Command::new(ebb())
            .args(["swap", "off", &from, &tree.pid])
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(after));
        let _ = kill_process(Pid::from_child(&asking), signal);
        let status = asking.wait().unwrap();
        let settled = Instant::now();
        let left = loop {
            match used(&from) {
                Some((state, left)) if state == "on" => break Some(left),
                None => break None,
                Some((state, _)) => assert!(settled.elapsed().as_secs() < 20, "it stays {state}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        match left {
            Some(left) => {
                assert!(!status.success(), "it was told that the device is gone");
                stayed += 1;
                moved += u32::from(left + (1 << 20) < before);
                // It takes pages as before, and can be removed.
                tree.done(&["off", &from]);
            }
            None => assert!(status.success() || after >= 30, "gone after {after} ms"),
        }
        assert_eq!(tree.holders(&from), Vec::<PathBuf>::new());
        tree.done(&["on", &format!("{from}:256M")]);
        std::mem::swap(&mut from, &mut to);
    }
    assert!(
        stayed >= 3 && moved >= 1,
        "{stayed} stayed, of which {moved} in part"
    );
    tree.stop(1);
}

#[test]
fn a_forked_child_leaves_too_and_a_dead_one_holds_nothing_up() {
    if cannot_page() {
        return;
    }
    let tree = Tree::start(BUDGET, &["a:512M"], "fork");
    tree.until_used(0, 32);
    tree.done(&["on", &format!("{}:512M", tree.path("b"))]);
    tree.done(&["off", "1"]);
    assert_eq!(tree.holders("a"), Vec::<PathBuf>::new());
    tree.done(&["on", &format!("{}:512M", tree.path("a"))]);
    // The child dies while it is moving away.
    let (pid, device) = (tree.pid.clone(), "2".to_owned());
    let asking = std::thread::spawn(move || {
        Command::new("timeout")
            .args(["-k", "2", "100"])
            .arg(ebb())
            .args(["swap", "off", &device, &pid])
            .output()
            .unwrap()
    });
    std::thread::sleep(Duration::from_millis(40));
    let second: i32 = tree.second.parse().unwrap();
    let second = rustix::process::Pid::from_raw(second).unwrap();
    rustix::process::kill_process(second, rustix::process::Signal::KILL).unwrap();
    let output = asking.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(tree.holders("b"), Vec::<PathBuf>::new());
    tree.stop(1);
}

#[test]
fn a_device_comes_to_a_tree_that_had_none() {
    if cannot_page() {
        return;
    }
    // Nothing of it compresses: it fits, but so tightly that it is paged.
    let tree = Tree::start("130M", &["none"], "alone");
    assert_eq!(tree.show(), serde_json::json!([]));
    assert!(tree.done(&["show"]).starts_with("no swap devices"));
    tree.done(&["on", &format!("{}:256M", tree.path("a"))]);
    let refused = [
        (vec!["off", "9"], "no device 9"),
        (vec!["off", "/nowhere"], "no device of this tree"),
        (vec!["on", "none"], "no device"),
        (vec!["on", "/proc/version"], "swap"),
        (vec!["on", "/var/tmp/no-such-swap"], "no such file"),
        (vec!["on", "/var/tmp:1K"], "at least"),
        (vec!["on", "/var/tmp,prio=x"], "prio"),
        (vec!["on", "/var/tmp:8M,node=1023"], "no memory node 1023"),
    ];
    for (args, says) in refused {
        let (ok, text) = tree.swap(&args);
        assert!(!ok && text.contains(says), "{args:?}: {text}");
    }
    tree.done(&["off", "1"]);
    tree.stop(1);
}

#[test]
fn processes_that_nobody_manages_are_refused() {
    for (pid, says) in [("1", "not run by ebb"), ("4194303", "no process")] {
        let output = Command::new(ebb())
            .args(["swap", "show", pid])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(says), "{said}");
    }
}
