//! A tree that pages, to which commands are put while it runs.

use super::{c_program, ebb};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Memory of the program; the budget holds less than a third of it, and its pool half of that.
pub const MEMORY_MIB: u64 = 96;
/// See [`MEMORY_MIB`].
pub const BUDGET: &str = "40M";

/// A tree that pages until it is told to stop.
pub struct Tree {
    /// The process; none once it was stopped.
    child: Option<Child>,
    dir: tempfile::TempDir,
    pub pid: String,
    /// The number of the forked child.
    pub second: String,
}

impl Tree {
    /// Starts it, and waits until it has filled its memory.
    pub fn start(memory: &str, swap: &[&str], how: &str) -> Self {
        Self::start_with(memory, swap, how, &[])
    }

    /// The same with more options of `ebb run`.
    pub fn start_with(memory: &str, swap: &[&str], how: &str, options: &[&str]) -> Self {
        Self::start_faulty(memory, swap, how, options, "")
    }

    /// The same with these faults injected into the devices.
    pub fn start_faulty(
        memory: &str,
        swap: &[&str],
        how: &str,
        options: &[&str],
        faults: &str,
    ) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = |name: &str| dir.path().join(name);
        for name in ["a", "b", "c"] {
            fs::create_dir(file(name)).unwrap();
        }
        let mut command = Command::new("timeout");
        command.args(["-k", "2", "150"]).arg(ebb());
        command.args(["run", "--memory", memory]).args(options);
        command
            .arg("--stats")
            .arg(file("stats"))
            .env("EBB_CHECK", "end");
        if !faults.is_empty() {
            command.env("EBB_FAULTS", faults);
        }
        for spec in swap {
            let spec = match *spec {
                "none" => "none".into(),
                spec => dir.path().join(spec),
            };
            command.arg("--swap").arg(spec);
        }
        command.arg("--").arg(c_program("keeper"));
        command.arg(MEMORY_MIB.to_string());
        command.args([file("pid"), file("stop")]).arg(how);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let started = Instant::now();
        let pids = loop {
            if let Ok(pids) = fs::read_to_string(file("pid")) {
                break pids;
            }
            let over = child.try_wait().unwrap();
            assert!(over.is_none(), "it ended early: {over:?}");
            assert!(
                started.elapsed().as_secs() < 100,
                "it never filled its memory"
            );
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut pids = pids.split_whitespace().map(str::to_owned);
        Self {
            child: Some(child),
            dir,
            pid: pids.next().unwrap(),
            second: pids.next().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// `ebb swap` on it: whether it succeeded, and what it printed.
    pub fn swap(&self, args: &[&str]) -> (bool, String) {
        self.ask("swap", args, &self.pid)
    }

    /// `ebb limit` on a process of it, with its answer read.
    #[track_caller]
    pub fn limit_of(&self, pid: &str, args: &[&str]) -> Result<serde_json::Value, String> {
        let (ok, text) = self.ask("limit", &[args, &["--json"]].concat(), pid);
        if !ok {
            return Err(text);
        }
        // How far it was may stand before it.
        let start = text.find('{').expect(&text);
        Ok(serde_json::from_str(&text[start..]).expect(&text))
    }

    /// The same on its first process, which must succeed.
    #[track_caller]
    pub fn limit(&self, args: &[&str]) -> serde_json::Value {
        self.limit_of(&self.pid, args).expect("it succeeds")
    }

    fn ask(&self, verb: &str, args: &[&str], pid: &str) -> (bool, String) {
        let output = Command::new("timeout")
            .args(["-k", "2", "100"])
            .arg(ebb())
            .arg(verb)
            .args(args)
            .arg(pid)
            .output()
            .unwrap();
        let text = [output.stderr, output.stdout].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    #[track_caller]
    pub fn stats(&self) -> serde_json::Value {
        let (ok, text) = self.ask("stats", &["--json"], &self.pid);
        assert!(ok, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    #[track_caller]
    pub fn done(&self, args: &[&str]) -> String {
        let (ok, text) = self.swap(args);
        assert!(ok, "ebb swap {args:?}: {text}");
        text
    }

    pub fn show(&self) -> serde_json::Value {
        serde_json::from_str(&self.done(&["show", "--json"])).unwrap()
    }

    /// Waits until device `n` of the list holds so many MiB.
    pub fn until_used(&self, n: usize, mib: u64) {
        let started = Instant::now();
        loop {
            let shown = self.show();
            if shown[n]["used_bytes"].as_u64().unwrap_or(0) >= mib << 20 {
                return;
            }
            assert!(started.elapsed().as_secs() < 60, "{shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Its `ebb run`, as long as that lives.
    pub fn supervisor(&self) -> String {
        parent(&self.pid)
    }

    /// Which threads of the tree, helpers' among them, have a file of this directory open.
    pub fn holders(&self, name: &str) -> Vec<PathBuf> {
        let dir = self.path(name);
        let supervisor = self.supervisor();
        let children = format!("/proc/{supervisor}/task/{supervisor}/children");
        let children = fs::read_to_string(children).unwrap_or_default();
        let mut found = Vec::new();
        let tree = [&*supervisor, &self.pid, &self.second];
        for pid in tree.into_iter().chain(children.split_whitespace()) {
            let tasks = fs::read_dir(format!("/proc/{pid}/task"));
            for task in tasks.into_iter().flatten().flatten() {
                let fds = fs::read_dir(task.path().join("fd"));
                for fd in fds.into_iter().flatten().flatten() {
                    if fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(&dir)) {
                        found.push(fd.path());
                    }
                }
            }
        }
        found
    }

    /// Tells it to stop; every process must have found its memory intact.
    #[track_caller]
    pub fn stop(mut self, intact: usize) -> String {
        fs::write(self.dir.path().join("stop"), "").unwrap();
        let started = Instant::now();
        while self.child.as_mut().unwrap().try_wait().unwrap().is_none() {
            assert!(started.elapsed().as_secs() < 140, "it does not stop");
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert!(output.status.success(), "{}\n{err}", output.status);
        assert_eq!(out, "intact\n".repeat(intact), "{err}");
        let stats = fs::read_to_string(self.dir.path().join("stats")).unwrap();
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        assert_eq!(stats["counters"]["map_disagrees"], 0, "{err}");
        err
    }
}

impl Drop for Tree {
    /// A test that failed leaves no process behind: they are told to stop, and waited for.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = fs::write(self.dir.path().join("stop"), "");
            for _ in 0..200 {
                if let Ok(Some(_)) = child.try_wait() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            for pid in [&self.pid, &self.second] {
                // "-1" stands for no child, and is no number of a process.
                let pid = pid.parse::<u32>().ok();
                let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
                if let Some(pid) = pid {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            let _ = child.kill();
        }
    }
}

fn parent(pid: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("PPid:"));
    line.unwrap().trim().to_owned()
}
