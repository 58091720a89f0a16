//! Options that the command accepts and refuses, its defaults, and the report of `ebb doctor`.

use super::common::{self, cannot_page, ebb};
use super::{run, stderr};
use ebb_harness::MIB;
use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use ebb_harness::job::Job;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

#[test]
fn bad_options() {
    let mut data = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    std::io::Write::write_all(&mut data, b"a letter to somebody").unwrap();
    let data = data.path().to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["--bogus", "true"], "--bogus"),
        (&["--summary", "on", "--", "true"], "--summary=on"),
        (&["--summary", "off", "true"], "--summary=off"),
        (&[], "COMMAND"),
        (&["--memory", "banana", "true"], "number"),
        (&["--memory", "512", "true"], "512M"),
        (&["--memory", "0M", "true"], "zero"),
        (&["--memory", "101%", "true"], "100%"),
        (&["--memory", "900T", "true"], "16T"),
        (&["--memory", "5MB", "true"], "MB"),
        (&["--memory", "2M", "true"], "at least"),
        (&["--pool", "snappy", "true"], "lz4"),
        (&["--pool-max", "900G", "true"], "the budget"),
        (&["--pool-max", "4K", "true"], "give 1M to"),
        (&["--accept", "0", "true"], "1 to 99"),
        (&["--accept", "x", "true"], "give 1 to 99"),
        (&["--pool-max", "off", "true"], "\"none\" for no limit"),
        (&["--writeback", "perhaps", "true"], "on, off"),
        (
            &["--pool", "none", "--writeback", "off", "true"],
            "no place for cold pages",
        ),
        (
            &["--pool", "none", "--pool-max", "32M", "true"],
            "--pool none with --pool-max",
        ),
        (&["--pool", "zstd:99", "true"], "-7 (fastest) to 19"),
        (&["--pool", "lz4+dict", "true"], "zstd+dict"),
        (&["--swap", "/x,bogus=1", "true"], "prio=N"),
        (&["--swap", "none", "--swap", "/var/tmp", "true"], "none"),
        (
            &["--swap", "/no/such/directory/file", "true"],
            "/no/such/directory",
        ),
        (
            &["--swap", "/var/tmp/no-such-swap:8M", "true"],
            "mkdir /var/tmp/no-such-swap",
        ),
        (&["--swap", "/dev/null", "true"], "/dev/null"),
        (
            &["--swap", data, "true"],
            "data (at byte 0) and has no swap header, and ebb would overwrite it: give another path",
        ),
        (&["--swap", "/var/tmp:1M", "true"], "2M"),
        (
            &["--swap", "/var/tmp:8M,node=1023", "true"],
            "no memory node 1023 here, only 0",
        ),
        (
            &["--stats", "/no/such/directory/file", "true"],
            "/no/such/directory",
        ),
    ];
    for (args, says) in cases {
        let output = run(args);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {text}");
        assert!(
            text.contains(says),
            "{args:?} should mention {says:?}: {text}"
        );
        assert!(output.stdout.is_empty(), "{args:?} wrote to stdout");
    }
}

/// Those of the shell that starts `ebb`; each is told of by its own name.
#[test]
fn limits_that_are_too_low_are_named() {
    if cannot_page() {
        return;
    }
    for (limit, says) in [
        ("ulimit -f 1000", "\"ulimit -f\" allows files of"),
        ("ulimit -n 4", "fix: `ulimit -n 256`"),
    ] {
        let script = format!("{limit}; exec \"$0\" run -m 64M true");
        let output = Command::new("sh").args(["-c", &script]).arg(ebb()).output();
        let said = stderr(&output.unwrap());
        assert!(said.contains(says), "{limit}: {said}");
    }
}

#[test]
fn a_device_is_given_once() {
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.as_file().set_len(8 << 20).unwrap();
    let link = file.path().with_extension("link");
    fs::hard_link(file.path(), &link).unwrap();
    let output = run(&[
        "--swap",
        file.path().to_str().unwrap(),
        "--swap",
        link.to_str().unwrap(),
        "true",
    ]);
    fs::remove_file(link).unwrap();
    let said = stderr(&output);
    assert!(said.contains("is a device of this run already"), "{said}");
    let directory = ["--swap", "/var/tmp", "--swap", "/var/tmp", "true"];
    assert!(cannot_page() || run(&directory).status.success());
}

#[test]
fn a_word_is_no_process() {
    for words in [
        &["limit", "abc"][..],
        &["stats", "abc"],
        &["top", "abc"],
        &["swap", "show", "abc"],
        &["swap", "off", "1", "abc"],
    ] {
        let output = Command::new(ebb()).args(words).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{words:?}: {said}");
        assert!(
            said.contains("\"abc\" is no process number: give"),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for words in ["--help", "--version"] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(ebb()).arg(words).stdout(full).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(125), "{words}");
        assert!(stderr(&output).contains("No space left"), "{words}");
    }
}

#[test]
fn help_goes_to_stdout_and_shows_examples() {
    for args in [&["--help"][..], &["run", "--help"], &["help", "run"]] {
        let output = Command::new(ebb()).args(args).output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("ebb run --memory 2G -- "));
    }
}

/// `ebb` as a user without any privilege: as root, by becoming nobody.
fn unprivileged(dir: &std::path::Path, args: &[&str]) -> Output {
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(dir, open).unwrap();
    for file in ["ebb", "libebb_preload.so"] {
        fs::copy(ebb().with_file_name(file), dir.join(file)).unwrap();
    }
    let mut command = Command::new("timeout");
    command.arg("60");
    if ebb_harness::is_root() {
        command.args([
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ]);
    }
    command
        .arg(dir.join("ebb"))
        .arg("run")
        .args(args)
        .current_dir("/")
        .output()
        .unwrap()
}

#[test]
fn an_unwritable_swap_path_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let locked = dir.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).unwrap();
    let output = unprivileged(dir.path(), &["--swap", locked.to_str().unwrap(), "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("no permission"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn without_permission_for_userfaultfd_the_fix_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let output = unprivileged(dir.path(), &["echo", "started"]);
    if output.status.success() {
        println!("skipped: who would run without it may use userfaultfd here");
        return;
    }
    assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0));
    let text = stderr(&output);
    assert!(
        text.contains("userfaultfd") && text.contains("fix: "),
        "{text}"
    );
}

/// Runs it where a process may open so many files.
fn with_descriptors(files: u32, args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-k", "2", "60", "sh", "-c"])
        .arg(format!("ulimit -n {files}; exec \"$@\""))
        .arg("sh")
        .arg(ebb())
        .arg("run")
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn too_few_descriptors_are_told_of_with_how_many_would_do() {
    if cannot_page() {
        return;
    }
    for files in [8, 24] {
        let output = with_descriptors(files, &["echo", "started"]);
        let text = stderr(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0));
        assert!(text.contains("needs 32"), "{files}: {text}");
        assert!(text.contains("fix: `ulimit -n 256`"), "{files}: {text}");
    }
    // Enough for some of the processes, and one line for the others.
    let crowd = "for i in 1 2 3 4 5 6 7 8; do \
                 python3 -c 'import time; kept = bytearray(4 << 20); time.sleep(1.5)' & \
                 done; wait; echo done";
    let output = with_descriptors(40, &["sh", "-c", crowd]);
    let text = stderr(&output);
    assert_eq!(output.stdout, b"done\n", "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("raise `ulimit -n`"), "{text}");
}

/// Memory of ours counts as data: it takes little of what the program may have.
#[test]
fn a_limit_of_data_leaves_room_for_the_program() {
    if cannot_page() {
        return;
    }
    let with_data = |kib: u32, args: &[&str]| {
        Command::new("timeout")
            .args(["-k", "2", "60", "sh", "-c"])
            .arg(format!("ulimit -d {kib}; exec \"$@\""))
            .arg("sh")
            .arg(ebb())
            .args(args)
            .output()
            .unwrap()
    };
    let fills = "kept = bytearray(40 << 20); print(len(kept))";
    let run = ["run", "--eager", "-m", "512M", "--", "python3", "-c", fills];
    let output = with_data(300_000, &run);
    assert_eq!(
        (stderr(&output), output.stdout),
        (String::new(), b"41943040\n".into())
    );
    let text = stderr(&with_data(200_000, &run));
    assert!(
        text.contains("runs unmanaged") && text.contains("`ulimit -d`"),
        "{text}"
    );
    let said = with_data(200_000, &["doctor"]).stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("195 MiB of data"), "{said}");
}

#[test]
fn doctor_reports_in_text_and_json() {
    let json = Command::new(ebb())
        .args(["doctor", "--json"])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(report["works"].as_bool(), Some(json.status.success()));
    let text = Command::new(ebb()).arg("doctor").output().unwrap();
    assert_eq!(text.status, json.status);
    for check in report["checks"].as_array().unwrap() {
        let name = check["name"].as_str().unwrap();
        assert!(
            String::from_utf8_lossy(&text.stdout).contains(name),
            "{name}"
        );
    }
}

/// A full disk is told of; a reader that has gone, as `head` does, is nobody to tell.
#[test]
fn output_that_nobody_takes_is_no_panic() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(ebb()).arg("doctor").stdout(full).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(
        stderr(&output).starts_with("ebb: No space left"),
        "{}",
        stderr(&output)
    );
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let output = Command::new(ebb()).arg("doctor").stdout(write).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", output.status);
    assert_eq!(stderr(&output), "");
}

/// In a cgroup of either version.
#[test]
fn the_default_budget_is_what_the_cgroup_has_free() {
    if cannot_page() {
        return;
    }
    if let Some(why) = cgroup::unavailable() {
        println!("skipped: no memory cgroup: {why}");
        return;
    }
    const LIMIT: u64 = 96 * MIB;
    let touch = ebb_harness::workloads::compile("bench/touch.c").expect("touch compiles");
    let job = Job::new([touch.as_os_str(), "160".as_ref()]);
    let free = common::free(&job, "touch");
    let file = tempfile::NamedTempFile::new().unwrap();
    let under: [&OsStr; 5] = [
        ebb().as_os_str(),
        "run".as_ref(),
        "--stats".as_ref(),
        file.path().as_os_str(),
        "--".as_ref(),
    ];
    let group = Cgroup::new(LIMIT, KernelSwap::Forbidden).unwrap();
    let run = job.behind(under).run(Some(&group)).unwrap();
    assert_eq!(run.ending(), "finished", "{}", run.stderr);
    assert!(run.stdout == free.stdout, "{}", run.stderr);
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap();
    let budget = stats["budget_bytes"].as_u64().unwrap();
    assert!((LIMIT * 3 / 4..LIMIT).contains(&budget), "{stats}");
    assert!(
        stats["counters"]["evicted"].as_u64().unwrap() > 0,
        "{stats}"
    );
}

/// `ebb lab` is a program of its own: where it is not installed beside, the message says what to do.
#[test]
fn the_lab_is_found_beside_or_missed() {
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("ebb");
    fs::copy(ebb(), &alone).unwrap();
    let lab =
        |args: &[&str]| -> Output { Command::new(&alone).arg("lab").args(args).output().unwrap() };
    let missed = lab(&["fill"]);
    assert_eq!(missed.status.code(), Some(125));
    let text = stderr(&missed);
    assert!(text.contains("ebb-lab is not installed"), "{text}");
    assert!(text.contains("cargo build --release -p ebb-lab"), "{text}");

    let beside = dir.path().join("ebb-lab");
    fs::write(&beside, "#!/bin/sh\nprintf '%s|' \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
    let found = lab(&["mthp", "--json", "--help", "--", "-x"]);
    assert_eq!(found.status.code(), Some(7));
    assert_eq!(
        String::from_utf8_lossy(&found.stdout),
        "mthp|--json|--help|--|-x|"
    );
}

/// Memory and processes are told of there.
#[test]
fn a_missing_proc_is_told_of_with_the_next_step() {
    if !ebb_harness::is_root() {
        return println!("skipped: only root can take /proc away");
    }
    for args in ["run true", "run --memory 64M true", "doctor"] {
        let script = format!("mount -t tmpfs none /proc && exec timeout -k1 30 \"$0\" {args}");
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-c", &script]).arg(ebb());
        let output = shell.output().unwrap();
        let told = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            stderr(&output)
        );
        assert!(!output.status.success(), "{told}");
        assert!(told.contains("fix: `mount -t proc proc /proc`"), "{told}");
        assert!(!told.contains("run Linux"), "{told}");
    }
}

#[test]
fn a_pipe_is_no_program() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = Command::new("mkfifo")
        .args(["-m", "777"])
        .arg(&pipe)
        .status();
    assert!(made.unwrap().success());
    let output = run(&[pipe.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
}
