//! Output, arguments, exit status and signals pass between the program and its caller.

use super::common::{self, cannot_page, ebb};
use super::{end_of, run, status, stderr};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[test]
fn exit_status() {
    if cannot_page() {
        return;
    }
    assert_eq!(status(&["--", "true"]), 0);
    assert_eq!(status(&["sh", "-c", "exit 37"]), 37);
    assert_eq!(status(&["sh", "-c", "kill -TERM $$"]), 128 + 15);
    assert_eq!(status(&["sh", "-c", "kill -KILL $$"]), 128 + 9);
    assert_eq!(status(&["no-such-command-anywhere"]), 127);
    assert_eq!(status(&["/no/such/file"]), 127);
    assert_eq!(status(&["/etc/passwd"]), 126);
    assert_eq!(status(&["/etc"]), 126);
}

#[test]
fn output_is_the_programs_alone() {
    if cannot_page() {
        return;
    }
    let output = run(&["sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(
        (&output.stdout[..], &output.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
}

#[test]
fn arguments_environment_and_directory_pass_through() {
    if cannot_page() {
        return;
    }
    let output = Command::new(ebb())
        .args([
            "run",
            "--",
            "sh",
            "-c",
            "printf '%s|' \"$@\" \"$VALUE\" \"$PWD\"",
            "sh",
            "a b",
            "--memory",
            "",
        ])
        .env("VALUE", "v")
        .current_dir("/usr")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "a b|--memory||v|/usr|"
    );
}

#[test]
fn signals_reach_the_program() {
    if cannot_page() {
        return;
    }
    for (signal, name) in [(15, "TERM"), (2, "INT"), (1, "HUP"), (10, "USR1")] {
        // The program counts them, so that one delivered twice shows.
        let script = format!(
            "n=0; trap 'n=$((n + 1))' {name}; echo ready; i=0; \
             while [ $i -lt 8 ]; do sleep 0.05; i=$((i + 1)); done; exit $n"
        );
        // A shell does not trap what was ignored when it began, as in the background of a script.
        let mut child = Command::new("env")
            .arg("--default-signal")
            .arg(ebb())
            .args(["run", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let pid = child.id().to_string();
        assert!(
            Command::new("kill")
                .args([&format!("-{signal}"), &pid])
                .status()
                .unwrap()
                .success()
        );
        end_of(&mut child, Duration::from_secs(30));
        assert_eq!(child.wait().unwrap().code(), Some(1), "SIG{name}");
    }
}

#[test]
fn a_program_that_does_not_handle_the_signal_dies_of_it() {
    if cannot_page() {
        return;
    }
    let mut command = Command::new(ebb());
    command.args(["run", "sh", "-c", "echo ready; exec sleep 60"]);
    let mut child = child_started(&mut command);
    Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    end_of(&mut child, Duration::from_secs(30));
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

fn child_started(command: &mut Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    child
}

#[test]
fn the_programs_signal_mask_is_its_own() {
    if cannot_page() {
        return;
    }
    // The real-time signals that the C library keeps for itself are not the program's matter.
    let of_interest = |line: &str| {
        let (name, mask) = line.split_once(':')?;
        Some((
            name.to_string(),
            u64::from_str_radix(mask.trim(), 16).ok()? & 0x7fff_ffff,
        ))
    };
    let masks = |wrap: bool| {
        let mut command = Command::new(if wrap {
            ebb().as_os_str()
        } else {
            "grep".as_ref()
        });
        if wrap {
            command.args(["run", "grep"]);
        }
        command.args(["-E", "Sig(Blk|Ign)", "/proc/self/status"]);
        let text = String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned();
        text.lines().filter_map(of_interest).collect::<Vec<_>>()
    };
    assert_eq!(masks(true).len(), 2);
    assert_eq!(masks(true), masks(false));
}

#[test]
fn works_from_anywhere() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for place in ["plain", "with blank", "split/bin"] {
        let bin = dir.path().join(place);
        let lib = if place == "split/bin" {
            dir.path().join("split/lib/ebb")
        } else {
            bin.clone()
        };
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        fs::copy(ebb(), bin.join("ebb")).unwrap();
        fs::copy(
            ebb().with_file_name("libebb_preload.so"),
            lib.join("libebb_preload.so"),
        )
        .unwrap();
        // An exec with an environment of its own does not lose it either.
        for before in [&[][..], &["env", "-i"], &["env", "LD_LIBRARY_PATH=/none"]] {
            let maps = Command::new(bin.join("ebb"))
                .arg("run")
                .args(before)
                .args(["cat", "/proc/self/maps"])
                .output()
                .unwrap();
            let loaded = String::from_utf8_lossy(&maps.stdout).contains("libebb_preload.so");
            let what = format!("{place}, {before:?}: {}", stderr(&maps));
            assert!(loaded && maps.status.success(), "{what}");
            assert!(maps.stderr.is_empty(), "{what}");
        }
    }
}

#[test]
fn other_preloaded_libraries_stay() {
    if cannot_page() {
        return;
    }
    let output = Command::new(ebb())
        .args(["run", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", "libm.so.6")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("libebb_preload.so") && text.trim_end().ends_with("libm.so.6"),
        "{text}"
    );
}

#[test]
fn terminal_keys_come_once() {
    if common::lacks("script") {
        return;
    }
    // `script` is the terminal: what it reads are the keys.
    let program = common::c_program("keys");
    // The shell gets the keys as well: it makes way, or it would die of them before the program.
    let command = format!("exec {} run -- {}", ebb().display(), program.display());
    let mut terminal = Command::new("timeout")
        .args(["-k", "2", "60", "script", "-qefc", &command, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    let mut screen = BufReader::new(terminal.stdout.take().unwrap());
    let mut shown = String::new();
    while !shown.contains("ready") {
        let n = screen.read_line(&mut shown).unwrap();
        assert!(n > 0, "it ended: {shown}");
    }
    for key in [b"\x03", b"\x1c"] {
        keys.write_all(key).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    screen.read_to_string(&mut shown).unwrap();
    drop(keys);
    assert!(terminal.wait().unwrap().success(), "{shown}");
    assert!(shown.contains("interrupts 1 quits 1"), "{shown}");
}
