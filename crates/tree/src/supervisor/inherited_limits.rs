//! Limits that processes have of their own: given to them while they ran, or inherited.
//!
//! A process begins with the limits of its nearest ancestor that has some. They are remembered as
//! its own from then on: through an exec, when it joins anew, and for those it starts, also when
//! the ancestor has ended. A change of the ancestor's limits is none of theirs.
//!
//! The supervisor sees a process that never joins when it walks over the tree; one that starts and
//! ends in between passes nothing on.

use crate::table::Limits;
use ebb_sys::proc::Process;
use std::collections::HashMap;

/// Ancestors of a process that are looked at.
const GENERATIONS: usize = 64;

/// By number and start time, which name one process for good, whatever it executes.
#[derive(Default)]
pub(super) struct OwnLimits(HashMap<(u32, u64), Limits>);

fn key(process: &Process) -> (u32, u64) {
    (process.pid(), process.start_time())
}

impl OwnLimits {
    /// From now on these are the limits of `process`.
    pub fn give(&mut self, process: &Process, limits: Limits) {
        self.0.insert(key(process), limits);
    }

    /// The limits of a process that is new here: its own, or those it inherits, which are its own
    /// from now on.
    pub fn begin(&mut self, process: &Process) -> Limits {
        if self.0.is_empty() {
            return Limits::default();
        }
        if let Some(&own) = self.0.get(&key(process)) {
            return own;
        }
        let parent = |of: &Process| of.parent().ok().flatten();
        let mut ancestors = std::iter::successors(parent(process), parent).take(GENERATIONS);
        let inherited = ancestors.find_map(|ancestor| self.0.get(&key(&ancestor)).copied());
        if let Some(limits) = inherited {
            self.give(process, limits);
        }
        inherited.unwrap_or_default()
    }

    /// The process has ended.
    pub fn forget(&mut self, process: &Process) {
        self.0.remove(&key(process));
    }

    /// Forgets those that have ended without our being told.
    pub fn prune(&mut self) {
        let lives = |&(pid, start): &(u32, u64)| {
            Process::open(pid).is_ok_and(|process| process.start_time() == start)
        };
        self.0.retain(|key, _| lives(key));
    }
}
