//! Refusals: a process has said hello and may not join, and its user is told what becomes of it.

use super::Supervisor;
use super::joiner::{Joiner, PeerKind};
use super::managed_process::{NO_DESCRIPTORS, is_shortage};
use ebb_sys::peer;
use ebb_sys::proc::{self, Process};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// Why a process may not join.
pub(super) struct Refusal {
    /// The text for the process.
    pub why: String,
    /// Flag: its user has nothing to hear.
    quiet: bool,
    /// Flag: another look may tell more.
    pub passes: bool,
}

impl Refusal {
    /// One that its user knows of already, or that races bring.
    pub fn quiet(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            quiet: true,
            passes: false,
        }
    }

    /// One of a process that could not be looked at, for that error.
    pub fn unseen(why: String, error: Errno) -> Self {
        Self {
            why,
            quiet: false,
            passes: is_shortage(error),
        }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self {
            why,
            quiet: false,
            passes: false,
        }
    }
}

impl Supervisor {
    /// Tells the user of a process of ours that is refused, once for each reason: else it would run unmanaged, and nobody
    /// would know. Nothing is said of one that ends, or whose helper does: that is no refusal that anybody meets.
    pub(super) fn warn_refused(&mut self, joiner: &Joiner, refusal: &Refusal) {
        let Ok(peer) = peer::of(joiner.connection.as_fd()) else {
            return;
        };
        if refusal.quiet || !self.is_our_user(peer.uid) {
            return;
        }
        let process = match &joiner.program {
            // One that has ended meanwhile runs in no way.
            Some(program) => proc::pidfd_target(program.as_fd())
                .ok()
                .map(|target| target.pid),
            None => peer.pid,
        };
        let pids = [process, peer.pid];
        let opened = pids.map(|pid| Process::open(pid?).ok());
        let [Some(process), Some(connected)] = opened else {
            return;
        };
        let Some(name) = proc::name_if_there(process.pid()) else {
            return;
        };
        if process.is_ending() || connected.is_ending() {
            return;
        }
        if refusal.why == NO_DESCRIPTORS {
            return self.warn_exhausted(process.pid());
        }
        let reason = without_numbers(&refusal.why);
        if !self.told_refusals.contains(&reason) {
            self.told_refusals.push(reason);
            self.notice(&format!(
                "{name} [{}] runs unmanaged: {}",
                process.pid(),
                refusal.why
            ));
        }
        if joiner.kind == PeerKind::Inside {
            self.is_told_of(process);
        }
    }
}

/// A reason, the same for all processes.
fn without_numbers(why: &str) -> String {
    why.chars().filter(|c| !c.is_ascii_digit()).collect()
}
