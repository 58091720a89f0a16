//! Defaults from variables and a file.

use super::common::{cannot_page, ebb};
use super::stderr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn with(config: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-k1", "60"])
        .arg(ebb())
        .args(args)
        .env("XDG_CONFIG_HOME", config)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

#[test]
fn defaults_come_from_variables_and_a_file_and_doctor_shows_them() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let budget = |variables: &[(&str, &str)], args: &[&str]| {
        let script = format!("{} limit $PPID --json", ebb().display());
        let all = [&["run"][..], args, &["sh", "-c", &script]].concat();
        let output = with(dir, variables, &all);
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
        shown["memory_bytes"].as_u64().unwrap() >> 20
    };
    fs::write(dir.join("ebb.toml"), "memory = \"70M\"\n").unwrap();
    assert_eq!(budget(&[], &[]), 70);
    assert_eq!(budget(&[("EBB_MEMORY", "80M")], &[]), 80);
    assert_eq!(budget(&[("EBB_MEMORY", "80M")], &["-m", "90M"]), 90);
    let doctor = with(dir, &[("EBB_POOL", "zstd")], &["doctor"]);
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(text.contains("--memory 70M (from "), "{text}");
    assert!(text.contains("without --memory takes 70 MiB"), "{text}");
    assert!(text.contains("--pool zstd (from EBB_POOL)"), "{text}");
}

/// Pages, and prints the figures of its tree.
const SHOWS: &str = "import os, subprocess, sys
kept = [os.urandom(64) * 64 for _ in range(64 * 256)]
subprocess.run([sys.argv[1], 'stats', str(os.getpid()), '--json'], check=True)";

#[test]
fn swap_and_pool_of_the_variables_are_used() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = dir.path();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    for name in ["a", "b"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    let ebb = ebb().to_str().unwrap();
    let shown = |variables: &[(&str, &str)]| -> serde_json::Value {
        let program = ["run", "-m", "40M", "python3", "-c", SHOWS, ebb];
        let output = with(dir, variables, &program);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let swap = format!("{}:64M; {}:96M,prio=7", path("a"), path("b"));
    let stats = shown(&[("EBB_SWAP", &swap), ("EBB_POOL", "none")]);
    for (at, name, mib, priority) in [(0, "a", 64, None), (1, "b", 96, Some(7))] {
        let device = &stats["devices"][at];
        let place = device["path"].as_str().unwrap();
        assert!(place.starts_with(&path(name)), "{place}");
        assert_eq!(device["size_bytes"], mib << 20, "{device}");
        assert_eq!(device["priority"].as_i64(), priority, "{device}");
    }
    let count = |stats: &serde_json::Value, name: &str| {
        let count = stats["counters"][name].as_u64();
        count.unwrap_or_else(|| panic!("{name}: {stats}"))
    };
    assert_eq!(count(&stats, "zswpout"), 0, "there is no pool");
    assert!(count(&stats, "pswpout") > 0, "{stats}");
    // Without EBB_POOL there is one, and EBB_SWAP can say that there is no device.
    let stats = shown(&[("EBB_SWAP", "none")]);
    assert_eq!(stats["devices"], serde_json::json!([]));
    assert!(count(&stats, "zswpout") > 0, "{stats}");
}

#[test]
fn the_file_is_found_by_home_alone() {
    if cannot_page() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join(".config");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("ebb.toml"), "memory = \"70M\"\n").unwrap();
    let script = format!("{} limit $PPID --json", ebb().display());
    let output = Command::new("timeout")
        .args(["-k1", "60"])
        .arg(ebb())
        .args(["run", "sh", "-c", &script])
        .env("HOME", home.path())
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("EBB_MEMORY")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["memory_bytes"], 70 << 20);
}

#[test]
fn bad_defaults_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    /// Content of the file, variables, and a part of the message.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);
    let cases: &[Case<'_>] = &[
        ("memroy = \"1G\"", &[], "memroy"),
        ("", &[("EBB_MEMORY", "banana")], "from EBB_MEMORY"),
        ("", &[("EBB_SWAP", "/x,bogus=1")], "from EBB_SWAP"),
        ("pool = \"snappy\"", &[], "ebb.toml"),
        // Of the right form, and yet no run takes them here.
        ("", &[("EBB_MEMORY", "2M")], "at least 16M"),
        ("", &[("EBB_MEMORY", "15T")], "in all"),
        ("", &[("EBB_SWAP", "/none/x")], "no directory /none"),
        (
            "",
            &[("EBB_SWAP", "/var/tmp; /none/x")],
            "no directory /none",
        ),
    ];
    for (file, variables, says) in cases {
        fs::write(dir.join("ebb.toml"), file).unwrap();
        let output = with(dir, variables, &["run", "true"]);
        let text = stderr(&output);
        assert_eq!(
            output.status.code(),
            Some(125),
            "{file} {variables:?}: {text}"
        );
        assert!(text.contains(says), "{file} {variables:?}: {text}");
        let doctor = with(dir, variables, &["doctor"]);
        let shown = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert_eq!(doctor.status.code(), Some(1), "{shown}");
        assert!(shown.contains(says), "{shown}");
        assert!(!shown.contains('?'), "the end of a line: {shown}");
    }
}

/// On a machine whose file systems are all read-only.
#[test]
fn doctor_says_whether_the_default_swap_file_can_be_made() {
    if cannot_page() || !ebb_harness::is_root() {
        return println!("skipped: only root can have other mounts");
    }
    let ends = |swap: &str, verb: &str| {
        let all = "for dir in /tmp /var/tmp; do mount --bind $dir $dir && mount -o remount,ro,bind $dir; done";
        let script = format!("{all}; exec timeout -k1 60 \"$0\" {verb}");
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-c", &script]).arg(ebb());
        shell.env_remove("TMPDIR").env("EBB_SWAP", swap);
        let output = shell.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
        (output.status.code(), said)
    };
    for (swap, run, doctor) in [("", 125, 1), ("none", 0, 0)] {
        let (code, said) = ends(swap, "run true");
        assert_eq!(code, Some(run), "{said}");
        let (code, said) = ends(swap, "doctor");
        assert_eq!(code, Some(doctor), "{said}");
        let verdict = if doctor == 0 { "ok " } else { "MISSING " };
        let line = said.lines().find(|line| line.contains("swap-file"));
        assert!(line.is_some_and(|line| line.starts_with(verdict)), "{said}");
    }
}
