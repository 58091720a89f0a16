//! A process that pages: what its threads of ours share.
//!
//! - *Service threads*, one for each processor (`service.rs`), resolve faults (`resolve.rs`) and
//!   make room (`room.rs`).
//! - The *keeper* (`keeper.rs`) registers new ranges, measures memory, answers requests of other
//!   processes for memory, and lets the engine do its background work.
//!
//! All of them are tasks of a helper, which has a table of descriptors of its own (`sys::thread`).

use crate::budget::pool_split::Costs;
use crate::devices::swap_space::SwapSpace;
use crate::process::refusal::Refusal;
use crate::process::services::Services;
use crate::reclaim::copy_score::CopyScore;
use crate::reclaim::shortage::Shortage;
use ebb_engine::counters::Counters;
use ebb_engine::swap::Swap;
use ebb_sys::fault::FaultFd;
use ebb_sys::memory_file::MemoryFile;
use ebb_sys::pagemap::PageMapFile;
use ebb_tree::Member;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// What the threads of a paging process share.
pub struct Process {
    /// Where its faults come from.
    pub fault: FaultFd,
    /// Which of its pages are present.
    pub pagemap: PageMapFile,
    /// What is in them, protected or not.
    pub memory: MemoryFile,
    /// Its place in the process tree: budget, counters, devices.
    pub member: &'static Member,
    /// Its swap space.
    pub swap: &'static Swap,
    /// The same with the files behind it.
    pub swap_space: &'static SwapSpace,
    /// The service threads.
    pub services: Services,
    /// Held by the keeper while it works in the engine, and by a fork.
    pub gate: Mutex<()>,
    /// Pages may be shared copy-on-write with a forked relative: they refuse to be moved until
    /// one side has written them.
    pub forked: AtomicBool,
    /// How worth it clean copies proved.
    pub keeping: CopyScore,
    /// What faults cost.
    pub costs: Costs,
    /// How long there has been no room.
    pub shortage: Shortage,
    /// The keeper was told that the pool is nearly full, and has not looked yet.
    pub behind: AtomicBool,
    /// The system had no page for us, and the keeper has not seen it yet.
    pub system_refused: AtomicBool,
    /// The supervisor has a second descriptor of our userfaultfd.
    pub has_sent_userfaultfd: AtomicBool,
    /// A test has the system refuse.
    pub refusal: Option<Refusal>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

impl Process {
    /// The process, if it pages.
    pub fn current() -> Option<&'static Process> {
        // SAFETY: set once from a leaked box, never freed.
        unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
    }

    /// Makes `process` the current one, for good.
    pub fn publish(process: Box<Process>) -> &'static Process {
        let leaked = Box::leak(process);
        PROCESS.store(leaked, Ordering::Release);
        leaked
    }

    /// In a forked child: there is none until it has set up its own.
    pub fn retract() {
        PROCESS.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// The counters of this process, in the tree's shared memory.
    pub fn counters(&self) -> &Counters {
        self.member.counters()
    }
}

/// Keeps forks and the keeper's work in the engine apart.
pub fn gate(process: &Process) -> std::sync::MutexGuard<'_, ()> {
    ebb_engine::locks::none_held();
    process
        .gate
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The gate, if nobody has it.
pub fn try_gate(process: &Process) -> Option<std::sync::MutexGuard<'_, ()>> {
    use std::sync::TryLockError::{Poisoned, WouldBlock};
    ebb_engine::locks::none_held();
    match process.gate.try_lock() {
        Ok(gate) => Some(gate),
        Err(Poisoned(gate)) => Some(gate.into_inner()),
        Err(WouldBlock) => None,
    }
}
