//! Nothing is left on disk, whatever ends the program or `ebb`.

use super::common::tree::Tree;
use super::common::{cannot_page, ebb, lacks};
use super::{end_of, run, stderr, until};
use ebb_harness::{MIB, workloads};
use std::fs;
use std::process::Command;
use std::time::Duration;

#[test]
fn no_file_stays() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for script in ["exit 0", "kill -9 $$", "kill -9 $PPID"] {
        let mut child = Command::new(ebb())
            .args(["run", "sh", "-c", script])
            .env("TMPDIR", dir.path())
            .spawn()
            .unwrap();
        end_of(&mut child, Duration::from_secs(30));
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        assert!(left.is_empty(), "{script}: {left:?}");
    }
}

/// Where a file must have a name to be made (FUSE), the name is gone before the program runs, and the file is
/// gone with the tree, whoever is killed.
#[test]
fn no_file_stays_where_each_must_have_a_name() {
    if cannot_page() || lacks("fuse2fs") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let touch = workloads::compile("bench/touch.c").unwrap();
    let script = r#"
at=$0/at; mkdir "$at"; truncate -s 200M "$0/image" && mkfs.ext4 -q "$0/image" || exit 90
fuse2fs -o fakeroot,rw "$0/image" "$at" || exit 90
for ends in itself all; do
    "$1" run --memory 24M --pool none --swap "$at:128M" -- "$2" 32 512 > "$0/out-$ends" & ebb=$!
    until ls -A "$at" | grep -q fuse_hidden; do kill -0 $ebb || exit 91; sleep 0.01; done
    ls -lA "$at" | grep -v -e ^total -e lost+found -e '^-rw------- 0 .*fuse_hidden' >&2
    [ $ends = itself ] || { sleep 0.3; kill -9 $(cat /proc/$ebb/task/$ebb/children) $ebb; }
    { wait $ebb; } 2> /dev/null
    for try in $(seq 100); do ls -A "$at" | grep -q fuse_hidden || break; sleep 0.05; done
    ls -A "$at" | grep -v lost+found | sed "s/^/left behind after $ends: /" >&2
done
umount "$at"
cat "$0/out-itself"
"#;
    let mut shell = Command::new("timeout");
    shell.args(["-k1", "60", "unshare", "--mount", "sh", "-c", script]);
    shell.arg(dir.path()).arg(ebb()).arg(touch);
    let output = shell.output().unwrap();
    if output.status.code() == Some(90) {
        return println!("skipped: no FUSE here: {}", stderr(&output));
    }
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        stderr(&output)
    );
    let said = stderr(&output);
    let said: Vec<_> = said.lines().filter(|l| !l.starts_with("phase")).collect();
    assert_eq!(said, Vec::<&str>::new());
    assert!(output.stdout.starts_with(b"checksum"), "it ran to its end");
}

/// Nobody stays behind to hold it.
#[test]
fn a_device_is_free_as_soon_as_the_program_has_ended() {
    if cannot_page() {
        return;
    }
    let device = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    device.as_file().set_len(8 * MIB).unwrap();
    let held = || {
        let mut ours = Command::new("flock");
        ours.args(["--nonblock", device.path().to_str().unwrap(), "true"]);
        !ours.status().unwrap().success()
    };
    for _ in 0..20 {
        let output = run(&["--swap", device.path().to_str().unwrap(), "true"]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(!held());
    }
}

/// Private files vanish whoever is killed while they are in use; a device that was there stays as it
/// was, for the next run to use.
#[test]
fn no_file_stays_of_a_tree_that_pages() {
    if cannot_page() {
        return;
    }
    for killed in ["ebb", "program", "child", "all"] {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let names = || {
            let all = fs::read_dir(dir.path()).unwrap();
            let all = all.chain(fs::read_dir(at("private")).unwrap());
            let all = all.chain(fs::read_dir(at("another")).unwrap());
            let mut names: Vec<_> = all.map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        fs::create_dir(at("private")).unwrap();
        fs::create_dir(at("another")).unwrap();
        let device = fs::File::create_new(at("device")).unwrap();
        device.set_len(64 * MIB).unwrap();
        let tree = Tree::start_with(
            "60M",
            &[&at("device"), &at("private"), &at("another")],
            "fork",
            &["--pool", "none", "--device-choice", "equal-turns"],
        );
        for device in 0..3 {
            tree.until_used(device, 2);
        }
        assert_eq!(names(), ["another", "device", "private"], "while it runs");
        let supervisor = tree.supervisor();
        let (program, child) = (tree.pid.clone(), tree.second.clone());
        let victims = match killed {
            "ebb" => vec![supervisor.clone()],
            "program" => vec![program.clone()],
            "child" => vec![child.clone()],
            _ => vec![supervisor.clone(), program.clone(), child.clone()],
        };
        let kill = Command::new("kill").arg("-9").args(victims).status();
        assert!(kill.unwrap().success());
        assert_eq!(
            names(),
            ["another", "device", "private"],
            "{killed} was killed"
        );
        fs::write(tree.path("stop"), "").unwrap();
        for pid in [supervisor, program, child] {
            // A dead process that nobody has waited for has no descriptors either; our threads have
            // their own.
            let lives = || {
                let tasks = fs::read_dir(format!("/proc/{pid}/task"));
                let mut tasks = tasks.into_iter().flatten().flatten();
                tasks.any(|t| fs::read_dir(t.path().join("fd")).is_ok_and(|fds| fds.count() > 0))
            };
            until(|| !lives());
        }
        assert_eq!(
            names(),
            ["another", "device", "private"],
            "{killed} was killed"
        );
        assert_eq!(device.metadata().unwrap().len(), 64 * MIB);
        until(|| is_free_for_another_run(&at("device")));
    }
}

/// Helpers end a moment after their programs, and nobody waits for them where `ebb` was killed.
fn is_free_for_another_run(device: &str) -> bool {
    let next = run(&["--swap", device, "true"]);
    let said = stderr(&next);
    assert!(
        next.status.success() || said.contains("in use by another run"),
        "{said}"
    );
    next.status.success()
}
