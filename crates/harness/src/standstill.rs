//! Where the processes of a run stand that ran out of time: the state, waits and stacks of their tasks, as text.
//!
//! Stacks need gdb; without it the kernel's part is printed alone. The processes are stopped while gdb reads them,
//! and are killed right after this, so nothing else is to be learnt from them.
//!
//! Not here: the decision that a run hangs.

use procfs::process::Process;
use std::fs;
use std::process::{Command, Stdio};

use crate::tools;

/// Processes whose stacks are printed, at most.
const PROCESSES: usize = 12;
/// Seconds that gdb has for one process.
const PATIENCE: &str = "20";

/// The tasks of `pids` and their stacks. Processes that ended meanwhile are left out.
pub fn describe(pids: &[u32]) -> String {
    pids.iter().map(|&pid| tasks(pid)).collect::<String>()
        + &match tools::in_path("gdb") {
            Some(_) => pids
                .iter()
                .take(PROCESSES)
                .map(|&pid| stacks(pid))
                .collect(),
            None => String::from("(the stacks need gdb)\n"),
        }
}

/// A line for each task: its number, name, state, ticks of processor time, and the system call in which it waits.
fn tasks(pid: u32) -> String {
    let tasks = Process::new(pid as i32).and_then(|process| process.tasks());
    let lines = tasks.into_iter().flatten().flatten().map(|task| {
        let read = |file: &str| {
            let text = fs::read_to_string(format!("/proc/{pid}/task/{}/{file}", task.tid));
            text.unwrap_or_default().trim_end().to_string()
        };
        let stat = match task.stat() {
            Ok(stat) => format!(
                "({}) of {pid}, parent {}: {}, user {} system {}",
                stat.comm, stat.ppid, stat.state, stat.utime, stat.stime
            ),
            Err(error) => error.to_string(),
        };
        let (wait, call) = (read("wchan"), read("syscall"));
        format!("{} {stat}, in {wait}, call {call}\n", task.tid)
    });
    lines.collect()
}

fn stacks(pid: u32) -> String {
    let out = Command::new("timeout")
        .args(["-k", "1", PATIENCE, "gdb", "-batch", "-nx", "-p"])
        .arg(pid.to_string())
        .args(["-ex", "thread apply all backtrace -frame-arguments none 40"])
        .stdin(Stdio::null())
        .output();
    let text = out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let text = text.unwrap_or_default();
    let lines = text
        .lines()
        .filter(|line| line.starts_with('#') || line.starts_with("Thread"));
    let lines: Vec<&str> = lines.collect();
    format!("stacks of {pid}:\n{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_sleeps_is_described() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let text = describe(&[child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            text.contains("(sleep)") && text.contains(": S, user 0"),
            "{text}"
        );
        assert!(text.contains("gdb") || text.contains("stacks of"), "{text}");
    }
}
