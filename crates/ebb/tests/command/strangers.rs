//! Processes that were there before `ebb` took a script's place are not of its tree: `server & exec ebb run ...`.

use super::common::{cannot_page, ebb};
use super::wrap::lives;
use super::{end_of, until};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Starts a child in whose place a process with much memory is left once `end` is there, or the folder is gone, and becomes
/// `ebb run`.
const ENTRY: &str = r#"
sh -c 'python3 -c "$0" & echo $! > pid; until [ -e end ] || [ ! -e pid ]; do sleep 0.02; done' "$SERVER" > /dev/null 2>&1 &
until [ -e full ]; do sleep 0.02; done
exec "$0" run -m 40M --swap none -- "$@"
"#;
const SERVER: &str =
    "import os, time; kept = os.urandom(64 << 20); open('full', 'w'); time.sleep(90)";

/// `ebb run` of a program, in the place of a script that has started a server.
struct Entry {
    dir: tempfile::TempDir,
    ebb: Child,
    server: u32,
}

impl Entry {
    /// The first line of the program has come, and is returned.
    fn start(program: &[&str]) -> (Self, String) {
        let dir = tempfile::tempdir().unwrap();
        let mut ebb = Command::new("sh")
            .args(["-c", ENTRY])
            .arg(ebb())
            .args(program)
            .current_dir(&dir)
            .env("SERVER", SERVER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(ebb.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let server = fs::read_to_string(dir.path().join("pid")).unwrap();
        let server = server.trim().parse().unwrap();
        let entry = Self { dir, ebb, server };
        (entry, line.trim_end().to_owned())
    }

    /// The parent of the server ends; then `ebb` is.
    fn orphan_the_server(&self) {
        fs::write(self.dir.path().join("end"), "").unwrap();
        let status = format!("/proc/{}/status", self.server);
        let adopted = format!("\nPPid:\t{}\n", self.ebb.id());
        until(|| fs::read_to_string(&status).unwrap().contains(&adopted));
        // The supervisor has looked for processes since.
        std::thread::sleep(Duration::from_millis(500));
    }

    fn used_mib(&self) -> u64 {
        let pid = self.ebb.id().to_string();
        let mut stats = Command::new(ebb());
        let output = stats.args(["stats", "--json", &pid]).output().unwrap();
        let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        stats["used_bytes"].as_u64().unwrap() >> 20
    }

    fn has_server(&self) -> bool {
        lives(&self.server.to_string())
    }

    /// The lines that `ebb` and the program have written to standard error.
    fn said(&mut self) -> String {
        let mut said = String::new();
        let mut stderr = self.ebb.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        kill("KILL", self.server);
        let _ = self.ebb.kill();
    }
}

fn kill(signal: &str, pid: u32) {
    let mut kill = Command::new("kill");
    let _ = kill.args(["-s", signal, &pid.to_string()]).status();
}

/// Their memory is not the budget's, nothing is said of them, and nobody stays behind for them.
#[test]
fn they_cost_the_tree_nothing() {
    if cannot_page() {
        return;
    }
    let (mut entry, _) = Entry::start(&["sh", "-c", "echo; read line"]);
    std::thread::sleep(Duration::from_millis(500));
    assert!(entry.used_mib() < 20, "{} MiB", entry.used_mib());
    entry.orphan_the_server();
    assert!(entry.used_mib() < 20, "{} MiB", entry.used_mib());
    entry.ebb.stdin.take().unwrap().write_all(b"\n").unwrap();
    end_of(&mut entry.ebb, Duration::from_secs(30));
    // A copy of `ebb` would be the child of nobody here, with the same command.
    let folder = entry.dir.path().to_owned();
    assert_eq!(copies(&folder), 0);
    assert_eq!(entry.said(), "");
    assert!(entry.has_server());
}

/// Processes of `ebb` whose working directory this is.
fn copies(folder: &Path) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_one = |process: &fs::DirEntry| {
        let of = |name: &str| fs::read_link(process.path().join(name));
        of("cwd").is_ok_and(|cwd| cwd == folder) && of("exe").is_ok_and(|exe| exe == *ebb())
    };
    processes.filter(is_one).count()
}

/// The second signal kills the whole tree, and nobody else.
#[test]
fn they_outlive_a_tree_that_is_killed() {
    if cannot_page() {
        return;
    }
    const BLOCKS: &str = "import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); print('ready', flush=True); time.sleep(60)";
    let (mut entry, _) = Entry::start(&["python3", "-c", BLOCKS]);
    entry.orphan_the_server();
    kill("TERM", entry.ebb.id());
    let mut line = String::new();
    let stderr = entry.ebb.stderr.as_mut().unwrap();
    BufReader::new(stderr).read_line(&mut line).unwrap();
    assert!(line.contains("another SIGTERM kills all"), "{line}");
    kill("TERM", entry.ebb.id());
    end_of(&mut entry.ebb, Duration::from_secs(30));
    assert_eq!(entry.ebb.wait().unwrap().code(), Some(128 + 9));
    assert!(entry.has_server());
}

/// The copy of `ebb` that supervises what the program has left behind knows them too.
#[test]
fn they_are_strangers_to_the_supervisor_that_stays_behind() {
    if cannot_page() {
        return;
    }
    let leaves = "sleep 60 > /dev/null 2>&1 & echo $!";
    let (mut entry, left) = Entry::start(&["sh", "-c", leaves]);
    let left: u32 = left.parse().unwrap();
    end_of(&mut entry.ebb, Duration::from_secs(30));
    let folder = entry.dir.path().to_owned();
    assert_eq!(copies(&folder), 1);
    let mut stats = Command::new(ebb());
    let stats = stats.args(["stats", "--json", &left.to_string()]).output();
    let stats: serde_json::Value = serde_json::from_slice(&stats.unwrap().stdout).unwrap();
    let used = stats["used_bytes"].as_u64().unwrap() >> 20;
    assert!(used < 20, "{used} MiB");
    // It ends with the last of its tree.
    kill("KILL", left);
    until(|| copies(&folder) == 0);
    assert!(entry.has_server());
}
