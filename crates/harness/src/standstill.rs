//! Where the processes of a run stand that ran out of time: the state, waits and stacks of their tasks, as text.
//!
//! Stacks need gdb; without it the kernel's part is printed alone. The processes are stopped while gdb reads them,
//! and are killed right after this, so nothing else is to be learnt from them.
//!
//! Not here: the decision that a run hangs.

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
    let list = fs::read_dir(format!("/proc/{pid}/task"));
    let read = |task: &std::path::Path, file: &str| {
        let text = fs::read_to_string(task.join(file)).unwrap_or_default();
        text.trim_end().to_string()
    };
    let lines = list.into_iter().flatten().flatten().map(|task| {
        let task = task.path();
        let stat = read(&task, "stat");
        // The name, which may hold blanks, ends at the last parenthesis.
        let (front, rest) = stat.rsplit_once(')').unwrap_or_default();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |n: usize| fields.get(n).copied().unwrap_or("?");
        format!(
            "{front}) of {pid}, parent {}: {}, user {} system {}, in {}, call {}\n",
            field(1),
            field(0),
            field(11),
            field(12),
            read(&task, "wchan"),
            read(&task, "syscall"),
        )
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
