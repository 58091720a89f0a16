//! The command itself: what it accepts and refuses, exit status, signals, files.

mod common;

use common::tree::Tree;
use common::{cannot_page, ebb};
use ebb_harness::MIB;
use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use ebb_harness::job::Job;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn run(args: &[&str]) -> Output {
    let mut child = Command::new(ebb())
        .arg("run")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ebb starts");
    end_of(&mut child, Duration::from_secs(60));
    child.wait_with_output().expect("output")
}

/// Waits with a limit; the programs here print little enough for a pipe to hold.
fn end_of(child: &mut Child, limit: Duration) {
    let start = Instant::now();
    while child.try_wait().expect("wait").is_none() {
        if start.elapsed() > limit {
            let _ = child.kill();
            panic!("still running after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn status(args: &[&str]) -> i32 {
    run(args).status.code().expect("ebb exits by itself")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

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
fn bad_options() {
    let mut data = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    std::io::Write::write_all(&mut data, b"a letter to somebody").unwrap();
    let data = data.path().to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["--bogus", "true"], "--bogus"),
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
        (&["--writeback", "perhaps", "true"], "on, off"),
        (
            &["--pool", "none", "--writeback", "off", "true"],
            "no place for cold pages",
        ),
        (&["--pool", "zstd:99", "true"], "-7 (fastest) to 19"),
        (&["--pool", "lz4+dict", "true"], "zstd+dict"),
        (&["--swap", "/x,bogus=1", "true"], "prio=N"),
        (&["--swap", "none", "--swap", "/var/tmp", "true"], "none"),
        (
            &["--swap", "/no/such/directory/file", "true"],
            "/no/such/directory",
        ),
        (&["--swap", "/dev/null", "true"], "/dev/null"),
        (
            &["--swap", data, "true"],
            "holds data that is not swap, and ebb would overwrite it: give another path",
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

#[test]
fn help_goes_to_stdout_and_shows_examples() {
    for args in [&["--help"][..], &["run", "--help"], &["help", "run"]] {
        let output = Command::new(ebb()).args(args).output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("ebb run --memory 2G -- "));
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
fn orphans_are_reaped_and_outlive_the_command() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("late");
    let script = format!("(sleep 0.5; echo late > {}) & exit 3", file.display());
    assert_eq!(status(&["sh", "-c", &script]), 3);
    let start = Instant::now();
    while !file.exists() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the orphan was lost"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn static_program() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 4; }\n";
    let Some(program) = static_c(dir.path(), source) else {
        println!("skipped: a static C library is not installed");
        return;
    };
    let program = program.to_str().unwrap();
    let output = run(&[program]);
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(4), &b"hello\n"[..])
    );
    assert!(
        stderr(&output).contains("statically linked"),
        "{}",
        stderr(&output)
    );
    let refused = run(&["--require-managed", program]);
    assert_eq!(
        (refused.status.code(), refused.stdout.len()),
        (Some(125), 0)
    );
    assert!(
        stderr(&refused).contains("statically linked"),
        "{}",
        stderr(&refused)
    );
}

/// A program of this source that is linked statically.
fn static_c(dir: &Path, source: &str) -> Option<PathBuf> {
    let (file, program) = (dir.join("static.c"), dir.join("static"));
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-static", "-o"]).args([&program, &file]);
    cc.status().is_ok_and(|s| s.success()).then_some(program)
}

/// Somewhere in the tree, it is told of once; and nobody else is.
#[test]
fn a_static_program_that_another_starts_is_told_of_once() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
                  int main(void) { char *m = malloc(8 << 20); memset(m, 1, 8 << 20);\n\
                  usleep(400000); printf(\"%d\\n\", m[4711]); return 0; }\n";
    let Some(program) = static_c(dir.path(), source) else {
        println!("skipped: a static C library is not installed");
        return;
    };
    let python = "python3 -c 'm = bytes(9 << 20); import time; time.sleep(0.2)'";
    let script = format!("{python}; {0}; {0}; exit 3", program.display());
    for (script, told) in [(script.as_str(), 1), (python, 0)] {
        let output = run(&["sh", "-c", script]);
        let said = stderr(&output);
        let lines: Vec<_> = said.lines().filter(|l| l.starts_with("ebb")).collect();
        assert_eq!(lines.len(), told, "{said}");
        assert!(
            lines.iter().all(|l| l.contains("statically linked")),
            "{said}"
        );
        assert!(
            lines.iter().all(|l| l.contains("/static (process ")),
            "{said}"
        );
        let expected = if told == 1 {
            (Some(3), "1\n1\n")
        } else {
            (Some(0), "")
        };
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!((output.status.code(), &*printed), expected);
    }
}

/// Wherever in the tree it is to be started, in whatever way; who wants to learns it, and goes on.
#[test]
fn who_requires_managed_programs_starts_no_other() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source =
        "#include <unistd.h>\nint main(void) { return write(1, \"static\\n\", 7) != 7; }\n";
    let Some(program) = static_c(dir.path(), source) else {
        println!("skipped: a static C library is not installed");
        return;
    };
    let script = dir.path().join("script");
    fs::write(&script, format!("#!{}\n", program.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let python = "
import os, subprocess, sys
here, path, script = sys.argv[1:]
def tries(how, *args):
    try: print(how.__name__, how(*args), flush=True)
    except OSError as e: print(how.__name__, e.strerror, flush=True)
def forked(exec, *args):
    child = os.fork()
    if child == 0:
        try: exec(*args)
        except OSError as e: os._exit(e.errno)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def execv(path): return forked(os.execv, path, ['static'])
def execvp(name): return forked(os.execvp, name, ['static'])
def fexecve(path): return forked(os.execve, os.open(path, os.O_RDONLY), ['static'], {})
def spawned(spawn, name): return os.waitstatus_to_exitcode(os.waitpid(spawn(name, ['static'], {}), 0)[1])
def spawn(path): return spawned(os.posix_spawn, path)
def spawnp(name): return spawned(os.posix_spawnp, name)
def run(path): return subprocess.run([path]).returncode
def shell(path): return os.system(path + ' 2>/dev/null') >> 8
def other(): return subprocess.run(['true']).returncode
for how in execv, fexecve, spawn, run, shell: tries(how, path)
tries(execv, script)
os.environ['PATH'] = here + ':' + os.environ['PATH']
for how in execvp, spawnp: tries(how, 'static')
tries(other)
";
    let [here, path, script] = [dir.path(), &program, &script].map(|p| p.to_str().unwrap());
    let argv = ["python3", "-c", python, here, path, script];
    let freely = run(&argv);
    let printed = String::from_utf8_lossy(&freely.stdout).into_owned();
    assert_eq!(
        printed.matches("static\n").count(),
        8,
        "{printed}{}",
        stderr(&freely)
    );
    let bound = run(&[&["--require-managed"][..], &argv].concat());
    let denied = "Permission denied";
    assert_eq!(
        String::from_utf8_lossy(&bound.stdout),
        format!(
            "execv 13\nfexecve 13\nspawn {denied}\nrun {denied}\nshell 126\nexecv 13\nexecvp 13\nspawnp {denied}\nother 0\n"
        ),
        "{}",
        stderr(&bound)
    );
    assert!(bound.status.success());
    let said = stderr(&bound);
    // The shell's own went with its message.
    let told = |l: &&str| l.starts_with("ebb: ") && l.contains("statically linked");
    assert_eq!(said.lines().filter(told).count(), 7, "{said}");
    assert!(
        said.contains(&format!("ebb: {path} is not started")),
        "{said}"
    );
}

/// A program started through its loader is no static one: the loader loads the library too.
#[test]
fn a_program_started_through_its_loader_is_managed() {
    if cannot_page() {
        return;
    }
    let loader = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let Some(loader) = loader.into_iter().find(|l| Path::new(l).exists()) else {
        println!("skipped: the dynamic loader is not installed");
        return;
    };
    let cat = ebb_harness::tools::in_path("cat").expect("cat");
    let argv = [loader, cat.to_str().unwrap(), "/proc/self/maps"];
    let output = run(&[&["--require-managed"][..], &argv].concat());
    assert_eq!(stderr(&output), "");
    let maps = String::from_utf8_lossy(&output.stdout);
    assert!(maps.contains("libebb_preload.so"), "{maps}");
    // Nor where another starts it.
    let script = format!("{} > /dev/null", argv.join(" "));
    let output = run(&["--require-managed", "sh", "-c", &script]);
    assert_eq!(
        (output.status.code(), stderr(&output)),
        (Some(0), String::new())
    );
}

/// The loader ignores LD_PRELOAD for a program that the kernel runs with other privileges.
#[test]
fn a_setuid_program_runs_unmanaged_or_is_refused() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("raised");
    let source = ebb_harness::tools::in_path("echo").expect("echo");
    fs::copy(source, &program).unwrap();
    if std::os::unix::fs::chown(&program, Some(65534), None).is_err() {
        println!("skipped: only root can give a program to another user");
        return;
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let program = program.to_str().unwrap();
    let output = run(&[program, "hello"]);
    let ran = (output.status.code(), &output.stdout[..]);
    assert_eq!(ran, (Some(0), &b"hello\n"[..]), "{}", stderr(&output));
    assert!(stderr(&output).contains("setuid"), "{}", stderr(&output));
    let refused = run(&["--require-managed", program, "hello"]);
    let (status, text) = (refused.status.code(), stderr(&refused));
    assert_eq!((status, refused.stdout.len()), (Some(125), 0), "{text}");
    assert!(
        text.contains("setuid") && text.contains("--require-managed"),
        "{text}"
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
    let alone = dir.path().join("alone");
    fs::create_dir_all(&alone).unwrap();
    fs::copy(ebb(), alone.join("ebb")).unwrap();
    let output = Command::new(alone.join("ebb"))
        .args(["run", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("libebb_preload.so is missing"),
        "{}",
        stderr(&output)
    );
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
            let mut names: Vec<_> = all.map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        fs::create_dir(at("private")).unwrap();
        let device = fs::File::create_new(at("device")).unwrap();
        device.set_len(64 * MIB).unwrap();
        let tree = Tree::start_with(
            "60M",
            &[&at("device"), &at("private"), &at("new")],
            "fork",
            &["--pool", "none", "--device-choice", "equal-turns"],
        );
        for device in 0..3 {
            tree.until_used(device, 2);
        }
        assert_eq!(names(), ["device", "private"], "while it runs");
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
        assert_eq!(names(), ["device", "private"], "{killed} was killed");
        fs::write(tree.path("stop"), "").unwrap();
        for pid in [supervisor, program, child] {
            // What is dead and not yet waited for has no descriptors either; threads of ours have
            // their own.
            let lives = || {
                let tasks = fs::read_dir(format!("/proc/{pid}/task"));
                let mut tasks = tasks.into_iter().flatten().flatten();
                tasks.any(|t| fs::read_dir(t.path().join("fd")).is_ok_and(|fds| fds.count() > 0))
            };
            let start = Instant::now();
            while lives() {
                assert!(start.elapsed() < Duration::from_secs(30), "{pid} lives on");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert_eq!(names(), ["device", "private"], "{killed} was killed");
        assert_eq!(device.metadata().unwrap().len(), 64 * MIB);
        let next = run(&["--swap", &at("device"), "true"]);
        assert!(next.status.success(), "{killed}: {}", stderr(&next));
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
        println!("skipped: userfaultfd is open to everybody here");
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
    // Named as in the kernel, or in the README; a third of the pages does not compress.
    for counter in [
        "reject_pool",
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

/// Whatever version its cgroup is of.
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

#[test]
fn the_supervisors_death_harms_nobody() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("done");
    let script = format!(
        "kill -9 $PPID; sleep 0.2; head -c 50000000 /dev/zero | tail -c 1000000 | wc -c > {0}.new; mv {0}.new {0}",
        file.display()
    );
    let killed = Command::new(ebb())
        .args(["run", "--memory", "64M", "sh", "-c", &script])
        .status()
        .unwrap();
    assert_eq!(killed.signal(), Some(9));
    let start = Instant::now();
    while !file.exists() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the program was lost with its supervisor"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_to_string(file).unwrap().trim(), "1000000");
}

/// The supervisor gives children their devices and takes back what dead ones had; without it they
/// have their parent's, and processes do it for each other.
#[test]
fn a_process_that_pages_forks_without_a_supervisor() {
    if cannot_page() {
        return;
    }
    const FORKS: &str = "import os, signal, sys, time
signal.alarm(60)
data = [str(i).encode() * 500 for i in range(16_000)]
os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.3)
def ends_well(n):
    child = os.fork()
    if child == 0:
        for i in range(n, len(data), 40): data[i] += b'x'
        os._exit(0 if data[n][:-1] == str(n).encode() * 500 and all(data) else 1)
    return os.waitpid(child, 0)[1] == 0
good = all(map(ends_well, range(8)))
good = good and all(d == str(i).encode() * 500 for i, d in enumerate(data))
with open(sys.argv[1] + '.new', 'w') as file: file.write('same' if good else 'different')
os.rename(sys.argv[1] + '.new', sys.argv[1])";
    let dir = tempfile::tempdir().unwrap();
    for swap in ["none", "/var/tmp"] {
        let file = dir.path().join(swap.trim_matches('/').replace('/', "-"));
        let killed = Command::new("timeout")
            .args(["-k", "2", "40"])
            .arg(ebb())
            .args(["run", "--memory", "40M", "--swap", swap])
            .args(["python3", "-c", FORKS])
            .arg(&file)
            .status()
            .unwrap();
        assert!(!killed.success());
        let start = Instant::now();
        while !file.exists() {
            let waited = start.elapsed();
            assert!(
                waited < Duration::from_secs(40),
                "--swap {swap}: it was ended"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(fs::read_to_string(file).unwrap(), "same", "--swap {swap}");
    }
}

#[test]
fn who_grows_fast_waits_for_a_supervisor_that_is_late() {
    if cannot_page() {
        return;
    }
    const FILLS: &str = "import os; print(os.getpid(), flush=True); input()
kept = [b'x' * 400 + str(i).encode() for i in range(300_000)]; print(len(kept))";
    let mut ebb = Command::new("timeout")
        .args(["-k", "2", "30"])
        .arg(ebb())
        .args(["run", "--memory", "48M", "python3", "-c", FILLS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(ebb.stdout.take().unwrap()).lines();
    let program: i32 = out.next().unwrap().unwrap().parse().unwrap();
    let stat = fs::read_to_string(format!("/proc/{program}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let supervisor = after_name.split_whitespace().nth(1).unwrap();
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, supervisor]).status();
        assert!(status.unwrap().success());
    };
    signal("-STOP");
    writeln!(ebb.stdin.take().unwrap()).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    let statm = fs::read_to_string(format!("/proc/{program}/statm")).unwrap();
    signal("-CONT");
    let resident: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    assert_eq!(out.next().unwrap().unwrap(), "300000");
    assert!(ebb.wait().unwrap().success());
    // Had it filled all that it wants, it would have ended, and nothing of it would be there.
    assert!(
        (1..80 << 20).contains(&(resident * 4096)),
        "{resident} pages"
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
