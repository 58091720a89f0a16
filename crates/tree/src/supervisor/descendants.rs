//! The processes of the tree, found by their parents.
//!
//! This process may run in the place of one that had children, as in `server & exec ebb run ...`. They and what descends
//! from them are [`Strangers`], and not of the tree.

use super::managed_process::is_shortage;
use ebb_sys::clock;
use ebb_sys::proc::{self, Process};
use rustix::io::Errno;

/// Processes that descend from this one and are not of its tree: those that were there before it, and those that it
/// starts for itself.
#[derive(Default)]
pub(super) struct Strangers {
    /// Children of this process, with the times when they were started.
    children: Vec<(u32, u64)>,
    /// The time when they were looked for: `clock::ticks`.
    noted: u64,
}

impl Strangers {
    /// Those that there are now.
    pub fn note() -> Self {
        let noted = clock::ticks();
        let mut children = Vec::new();
        let _ = proc::children(std::process::id(), |pid| {
            children.extend(Process::open(pid).map(|child| (pid, child.start_time())));
        });
        Self { children, noted }
    }

    /// A child that this process has started for itself is one, too.
    pub fn add(&mut self, pid: u32) {
        // One that has ended already descends from nobody.
        let started = Process::open(pid).map(|child| (pid, child.start_time()));
        self.children.extend(started);
    }

    /// Whether a child of this process is one. Orphans of strangers become our children, too: one that is older than
    /// the tree is not of it.
    ///
    /// # Errors
    /// ENOENT or ESRCH if it is gone; a lack of memory or descriptors.
    pub fn has(&self, pid: u32) -> Result<bool, Errno> {
        // Nobody is looked at where there are none.
        if self.children.is_empty() {
            return Ok(false);
        }
        let start = Process::open(pid)?.start_time();
        Ok(start < self.noted || self.children.contains(&(pid, start)))
    }
}

/// What a walk over the tree came upon.
pub(super) struct Descendants {
    pub pids: Vec<u32>,
    /// Flag: each process that was come upon could be looked at.
    pub is_whole: bool,
}

/// Every process of the tree but ourselves: our descendants, and those of the `known`, which are no
/// longer ours where this process carries on for another. Neither the guard nor strangers are.
pub(super) fn descendants(
    known: impl Iterator<Item = u32>,
    guard: Option<u32>,
    strangers: &Strangers,
) -> Descendants {
    let us = std::process::id();
    let mut found: Vec<u32> = known.collect();
    let mut is_whole = true;
    let mut untold = |error| is_whole &= !is_shortage(error);
    // Children of one that ends meanwhile become ours; the next walk finds them.
    let mut parent = us;
    let mut next = 0;
    loop {
        let seen = proc::children(parent, |pid| {
            if found.contains(&pid) || Some(pid) == guard {
                return;
            }
            let is_strange = match parent == us {
                true => strangers.has(pid),
                false => Ok(false),
            };
            match is_strange {
                Ok(true) => {}
                Ok(false) => found.push(pid),
                Err(error) => untold(error),
            }
        });
        seen.unwrap_or_else(&mut untold);
        match found.get(next) {
            Some(&pid) => parent = pid,
            None => break,
        }
        next += 1;
    }
    Descendants {
        pids: found,
        is_whole,
    }
}
