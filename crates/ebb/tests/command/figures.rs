//! `--stats`.

use super::common::{self, cannot_page};
use super::{run, stderr};
use ebb_harness::MIB;
use ebb_harness::job::Job;
use std::process::Command;

/// The program has run by then: it counts.
#[test]
fn figures_that_cannot_be_written_change_no_status() {
    if cannot_page() {
        return;
    }
    let output = run(&["--stats", "/dev/full", "sh", "-c", "exit 3"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let told = "ebb: --stats: cannot write /dev/full: ";
    assert!(stderr(&output).starts_with(told), "{}", stderr(&output));
}

#[test]
fn a_program_had_at_least_what_was_in_use() {
    if cannot_page() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    run(&["--stats", file.path().to_str().unwrap(), "sleep", "0.2"]);
    let stats: serde_json::Value = serde_json::from_reader(file.as_file()).unwrap();
    let number = |name: &str| stats[name].as_u64().unwrap();
    assert_eq!(stats["paged"], false, "{stats}");
    assert!(number("peak_had_bytes") >= number("peak_bytes"), "{stats}");
}

/// The reader gets them, and the end of the pipe.
#[test]
fn figures_go_into_a_pipe() {
    if cannot_page() {
        return;
    }
    let script = "timeout -k1 50 \"$0\" run --stats /dev/stdout true | cat";
    let mut piped = Command::new("sh");
    piped.args(["-c", script]).arg(common::ebb());
    let output = piped.output().unwrap();
    let stats: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!(stats["exit_status"], 0, "{stats}");
    assert_eq!(stderr(&output), "");
}

/// Figures stand beside what the program writes, and after what was there.
#[test]
fn figures_take_their_place_in_the_file_of_standard_error() {
    if cannot_page() {
        return;
    }
    let log = tempfile::NamedTempFile::new().unwrap();
    let script = "echo old > \"$1\"; timeout -k1 50 \"$0\" run --stats /dev/stderr sh -c 'echo said >&2' 2>> \"$1\"";
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script])
        .arg(common::ebb())
        .arg(log.path());
    assert!(shell.status().unwrap().success());
    let told = std::fs::read_to_string(log.path()).unwrap();
    assert!(told.starts_with("old\nsaid\n{"), "{told}");
}

/// Those of an earlier run, whose last process has ended, do not replace them.
#[test]
fn figures_of_a_later_run_stay() {
    if cannot_page() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let stats = || -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let leaves = "sleep 1 > /dev/null 2>&1 < /dev/null & exit 7";
    run(&["--stats", path, "sh", "-c", leaves]);
    assert_eq!(stats()["exit_status"], 7);
    run(&["--stats", path, "sh", "-c", "exit 5"]);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(stats()["exit_status"], 5);
}

/// A mistyped command costs nobody the figures of yesterday.
#[test]
fn files_of_a_command_that_cannot_run_stay() {
    if cannot_page() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::write(path, "of yesterday").unwrap();
    let size = ["-o", "--plot"].map(|option| vec!["size", option, path, "--", "no-such-command"]);
    let pid = u32::MAX.to_string();
    let top = vec!["top", "--once", "--record", path, &pid];
    for args in size.into_iter().chain([top]) {
        let mut command = Command::new("timeout");
        command.args(["-k1", "50"]).arg(common::ebb()).args(&args);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        let held = std::fs::read_to_string(path).unwrap();
        assert_eq!(held, "of yesterday", "{args:?}");
    }
}

#[test]
fn stats() {
    if cannot_page() {
        return;
    }
    let managed = common::Under::budget(256 * MIB).run(&Job::new(["sh", "-c", "exit 5"]));
    assert_eq!(
        managed.run.status.and_then(|s| s.code()),
        Some(5),
        "{}",
        managed.run.stderr
    );
    for counter in [
        "pswpin",
        "pswpout",
        "zswpin",
        "zswpout",
        "swpin_zero",
        "fault",
        "workingset_refault",
        "swpout_9",
    ] {
        assert_eq!(
            managed.counter(counter),
            0,
            "{counter}: nothing had to be paged"
        );
    }
    assert!(
        managed.stats["peak_bytes"]
            .as_u64()
            .is_some_and(|peak| peak > 0 && peak < 256 * MIB)
    );
    assert_eq!(managed.stats["budget_bytes"].as_u64(), Some(256 * MIB));
    for way in WAYS {
        for figure in ["count", "p50_ns", "p99_ns", "p999_ns", "max_ns"] {
            assert_eq!(latency(&managed.stats, way, figure), 0, "{way} {figure}");
        }
    }
}

/// The same program in the same budget, which it is far from.
#[test]
fn eager_pages_from_the_first_instant() {
    if cannot_page() {
        return;
    }
    let job = || Job::new(["python3", "-c", "print(sum(bytearray(8 << 20)))"]);
    let paged = |options: &[&str]| {
        let managed = common::Under::budget(256 * MIB)
            .options(options)
            .run(&job());
        assert_eq!(managed.run.stdout, b"0\n", "{}", managed.run.stderr);
        (managed.counter("fault_zero"), managed.counter("evicted"))
    };
    assert_eq!(paged(&[]), (0, 0), "it is far from its budget");
    let (first_touches, evicted) = paged(&["--eager"]);
    // Each page of the array, or each few of them, is brought by the pager.
    assert!(first_touches >= 100, "{first_touches}");
    assert_eq!(evicted, 0, "there is room");
}

/// The ways in which a page comes.
const WAYS: [&str; 4] = ["zero", "cache", "pool", "device"];

fn latency(stats: &serde_json::Value, way: &str, figure: &str) -> u64 {
    stats["fault_latency"][way][figure]
        .as_u64()
        .unwrap_or_else(|| panic!("no {figure} of {way} in {stats}"))
}

#[test]
fn stats_of_a_program_that_pages() {
    if cannot_page() {
        return;
    }
    let job = Job::new([common::c_program("syscalls").as_os_str(), "96".as_ref()]);
    let managed = common::Under::budget(48 * MIB)
        .options(&["--pool-max", "8M"])
        .run(&job);
    assert!(managed.run.ok(), "{}", managed.run.stderr);
    let stats = &managed.stats;
    let mut served = 0;
    for way in WAYS {
        let figure = |figure| latency(stats, way, figure);
        served += figure("count");
        let in_order = ["p50_ns", "p99_ns", "p999_ns", "max_ns"].map(figure);
        assert!(in_order.is_sorted(), "{way}: {in_order:?}");
        let some = figure("count") > 0;
        assert!(some || way == "cache", "{way}: {stats}");
        assert_eq!(some, in_order[0] > 0, "{way}: {stats}");
    }
    assert_eq!(stats["faults"].as_u64(), Some(served), "{stats}");
    for counter in [
        "evicted", "zswpout", "zswpin", "pswpout", "pswpin", "zswpwb",
    ] {
        assert!(managed.counter(counter) > 0, "{counter}: {stats}");
    }
    // Names of the kernel where it has them. A third of the pages does not compress.
    for counter in [
        "reject_pool",
        "stood_back",
        "reject_full",
        "pool_limit_hit",
        "reject_compress_poor",
        "swpin_zero",
        "swpout_zero",
        "written_back_pages",
        "workingset_refault",
    ] {
        managed.counter(counter);
    }
    for order in 0..10 {
        managed.counter(&format!("swpout_{order}"));
        managed.counter(&format!("swpout_fallback_{order}"));
    }
}
