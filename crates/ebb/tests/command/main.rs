//! The command itself: what it accepts and refuses, exit status, signals, files.

#[path = "../common/mod.rs"]
mod common;
mod defaults;
mod ending;
mod figures;
mod files;
mod generated;
mod library;
mod loaders;
mod nested;
mod options;
mod passing;
mod signals;
mod somebodys;
mod strangers;
mod supervisor;
mod top;
mod unmanaged;
mod wrap;

use common::ebb;
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

/// Waits until something holds, with a limit.
#[track_caller]
fn until(holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "still not");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn status(args: &[&str]) -> i32 {
    run(args).status.code().expect("ebb exits by itself")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
