//! Whether the tree has a supervisor. A member that cannot reach it, from another network namespace say, cannot tell
//! by a connection. So the supervisor's process stands in the table.

use super::Table;
use ebb_sys::proc;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};
use std::sync::atomic::Ordering::*;

/// Whether there is no process of this number, as this process's PID namespace has it.
pub fn is_nobody(number: u32) -> bool {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// The same, or it has ended and nobody has waited for it.
fn has_ended(number: u32) -> bool {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    let pidfd = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    is_nobody(number) || matches!(pidfd, Some(Ok(pidfd)) if proc::has_ended(&pidfd))
}

impl Table {
    /// Process `pid` supervises from now on: this one, or its copy that carries on.
    pub fn supervised_by(&self, pid: u32) {
        self.supervisor.store(pid, SeqCst);
    }

    /// This process supervises no more. Nothing happens where another carries on.
    pub fn supervisor_leaves(&self) {
        let us = std::process::id();
        // Refused: it is another's.
        let _ = self.supervisor.compare_exchange(us, 0, SeqCst, SeqCst);
    }

    /// Whether there is a supervisor, or may be: another process may have its number since. Asked by a process of
    /// the PID namespace in which the table was made.
    pub fn is_supervised(&self) -> bool {
        let mut pid = self.supervisor.load(SeqCst);
        while pid != 0 && has_ended(pid) {
            let now = self.supervisor.load(SeqCst);
            // Its copy may have come to carry on since.
            if now == pid {
                return false;
            }
            pid = now;
        }
        pid != 0
    }
}

#[cfg(test)]
mod tests {
    use crate::table::{Config, Table};
    use std::process::{Command, Stdio};

    #[test]
    fn a_tree_is_supervised_while_the_process_lives() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        assert!(!table.is_supervised(), "nobody has come");
        let mut command = Command::new("cat");
        let mut copy = command.stdin(Stdio::piped()).spawn().unwrap();
        table.supervised_by(std::process::id());
        assert!(table.is_supervised());
        // Its copy carries on.
        table.supervised_by(copy.id());
        table.supervisor_leaves();
        assert!(table.is_supervised());
        // It ends, and nobody has waited for it.
        drop(copy.stdin.take());
        let pid = rustix::process::Pid::from_child(&copy);
        let how = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), how).unwrap();
        assert!(!table.is_supervised());
        copy.wait().unwrap();
        assert!(!table.is_supervised());

        table.supervised_by(std::process::id());
        table.supervisor_leaves();
        assert!(!table.is_supervised());
    }
}
