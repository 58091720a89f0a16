//! Output, arguments, exit status and signals pass between the program and its caller.

use super::common::{self, cannot_page, ebb};
use super::{run, status, stderr, until};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn exit_status() {
    if cannot_page() {
        return;
    }
    assert_eq!(status(&["--", "true"]), 0);
    assert_eq!(status(&["sh", "-c", "exit 37"]), 37);
    assert_eq!(status(&["sh", "-c", "kill -KILL $$"]), 128 + 9);
    assert_eq!(status(&["no-such-command-anywhere"]), 127);
    assert_eq!(status(&["/no/such/file"]), 127);
    assert_eq!(status(&["/etc/passwd"]), 126);
    assert_eq!(status(&["/etc"]), 126);
}

/// But for SIGKILL, of which `ebb` dies only when it is killed itself.
#[test]
fn a_signal_that_ends_the_program_ends_ebb() {
    if cannot_page() {
        return;
    }
    for signal in [1, 2, 11, 13, 15, 37] {
        let kill = format!("ulimit -c 0; kill -{signal} $$");
        let output = run(&["--", "env", "--default-signal", "sh", "-c", &kill]);
        let ended = (output.status.signal(), output.status.core_dumped());
        assert_eq!(ended, (Some(signal), false), "{}", output.status);
        assert_eq!(stderr(&output), "");
    }
    // Shells show it as ever.
    let shown = Command::new("sh")
        .args(["-c", "\"$0\" run sh -c 'kill -TERM $$'; exit $?"])
        .arg(ebb())
        .status();
    assert_eq!(shown.unwrap().code(), Some(128 + 15));
}

/// A program that leaves processes behind ends in the same way; what supervises them goes on.
#[test]
fn a_signal_ends_ebb_and_not_the_supervisor_of_what_is_left() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("late");
    let late = format!(
        "(sleep 0.5; echo late > {}) & kill -TERM $$",
        file.display()
    );
    assert_eq!(run(&["sh", "-c", &late]).status.signal(), Some(15));
    let start = Instant::now();
    while !file.exists() {
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(20), "the orphan was lost");
        std::thread::sleep(Duration::from_millis(20));
    }
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

/// Rust's runtime opens `/dev/null` in their place.
#[test]
fn streams_that_the_caller_closed_are_closed() {
    if cannot_page() {
        return;
    }
    const SAYS: &str = "n=0
for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] || n=$((n + (1 << fd))); done; exit $n";
    let closed = |which: &str, before: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("\"$@\" {which}"), "sh"]);
        command.args(before).args(["sh", "-c", SAYS]);
        command.output().unwrap().status.code().unwrap()
    };
    let ebb = ebb().to_str().unwrap();
    for (which, flags) in [
        ("<&-", 1),
        (">&-", 2),
        ("2>&-", 4),
        ("<&- >&- 2>&-", 7),
        ("", 0),
    ] {
        assert_eq!(closed(which, &[]), flags);
        assert_eq!(closed(which, &[ebb, "run", "--"]), flags, "{which}");
        let wrapped = [ebb, "run", "--wrap", "--"];
        assert_eq!(closed(which, &wrapped), flags, "--wrap {which}");
    }
}

/// A service that is ready closes a pipe of its starter's, which waits for the end of that.
#[test]
fn a_pipe_that_the_program_closes_has_its_end() {
    if cannot_page() {
        return;
    }
    for option in ["--wrap", "--summary=off"] {
        let mut child = Command::new("sh")
            .args(["-c", "exec 5>&1 >/dev/null; exec \"$@\"", "sh"])
            .arg(ebb())
            .args(["run", option, "sh", "-c"])
            .arg("echo ready >&5; exec 5>&-; read line")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = child.stdout.take().unwrap();
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            ready.read_to_string(&mut text).unwrap();
            text
        });
        until(|| read.is_finished());
        assert_eq!(read.join().unwrap(), "ready\n");
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        drop(child.stdin.take());
        child.wait().unwrap();
    }
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

/// systemd knows the number of `ebb`, and programs obey variables that hold their own. What the program starts is not meant,
/// and variables that name another process stay.
#[test]
fn systemds_sockets_and_watchdog_are_the_programs() {
    if cannot_page() {
        return;
    }
    const STARTS: &str =
        "export LISTEN_PID=${OF:-$$} WATCHDOG_PID=${OF:-$$} LISTEN_PIDFDID=7 LISTEN_FDS=1
exec 3< /dev/zero \"$@\"";
    const SAYS: &str = "import os, subprocess, sys
print(*(int(os.environ[name]) - os.getpid() for name in ('LISTEN_PID', 'WATCHDOG_PID')))
print(os.environ.get('LISTEN_PIDFDID'), os.environ['LISTEN_FDS'], os.read(3, 1), os.environ['LAST'])";
    let says = |of: &str, before: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", STARTS, "sh"]).arg(ebb());
        command.args(["run", "--"]).args(before);
        command.args(["python3", "-c", SAYS]);
        command.env("OF", of).env("LAST", "is here");
        let output = command.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output)
    };
    let own = "0 0\nNone 1 b'\\x00' is here\n";
    assert_eq!(says("", &[]), own);
    // The process stays the same.
    assert_eq!(says("", &["env", "sh", "-c", "exec \"$0\" \"$@\""]), own);
    let child = says("", &["sh", "-c", "\"$0\" \"$@\"; :"]);
    assert!(child.starts_with('-'), "{child}");
    let others = says("1", &[]);
    assert!(
        others.starts_with('-') && others.contains("\n7 1 "),
        "{others}"
    );
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
