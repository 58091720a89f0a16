//! `ebb swap`: devices come and go under a program that pages, and it does not notice.

mod common;

use common::{c_program, cannot_page, ebb};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the program holds; the budget holds less than a third of it, and its pool half of that.
const MEMORY_MIB: u64 = 96;
const BUDGET: &str = "40M";

/// A tree that pages until it is told to stop.
struct Tree {
    /// None once it was stopped.
    child: Option<Child>,
    dir: tempfile::TempDir,
    pid: String,
    /// Of the forked child.
    second: String,
}

impl Tree {
    /// Starts it, and waits until it has filled its memory.
    fn start(memory: &str, swap: &[&str], how: &str) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = |name: &str| dir.path().join(name);
        for name in ["a", "b", "c"] {
            fs::create_dir(file(name)).unwrap();
        }
        let mut command = Command::new("timeout");
        command.args(["-k", "2", "150"]).arg(ebb());
        command.args(["run", "--memory", memory]);
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

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// `ebb swap` on it: whether it succeeded, and what it printed.
    fn swap(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new("timeout")
            .args(["-k", "2", "100"])
            .arg(ebb())
            .arg("swap")
            .args(args)
            .arg(&self.pid)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    #[track_caller]
    fn done(&self, args: &[&str]) -> String {
        let (ok, text) = self.swap(args);
        assert!(ok, "ebb swap {args:?}: {text}");
        text
    }

    fn show(&self) -> serde_json::Value {
        serde_json::from_str(&self.done(&["show", "--json"])).unwrap()
    }

    /// Waits until device `n` of the list holds so many MiB.
    fn until_used(&self, n: usize, mib: u64) {
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

    /// Which threads of the tree have a file of this directory open.
    fn holders(&self, name: &str) -> Vec<PathBuf> {
        let dir = self.path(name);
        let supervisor = parent(&self.pid);
        let mut found = Vec::new();
        for pid in [&supervisor, &self.pid, &self.second] {
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
    fn stop(mut self, intact: usize) -> String {
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
    assert!(small > 0, "nothing was moved");
    // With room it goes.
    tree.done(&["on", &format!("{}:256M", tree.path("b"))]);
    tree.done(&["off", &tree.path("a")]);
    assert_eq!(tree.holders("a"), Vec::<PathBuf>::new());
    tree.stop(1);
}

#[test]
fn who_asks_and_goes_takes_the_removal_back() {
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
    tree.done(&["on", &format!("{}:256M", tree.path("a"))]);
    let refused = [
        (vec!["off", "9"], "no device 9"),
        (vec!["off", "/nowhere"], "no device of this tree"),
        (vec!["on", "none"], "no device"),
        (vec!["on", "/proc/version"], "swap"),
        (vec!["on", "/var/tmp:1K"], "at least"),
        (vec!["on", "/var/tmp,prio=x"], "prio"),
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
