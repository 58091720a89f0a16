//! A process that pages, as every layer above sees it: [`Context`].
//!
//! The pager is layers, each of which owns its state, with private fields:
//!
//! | layer | owns |
//! |---|---|
//! | [`Base`] | the state under the lock, forks, registration, admission |
//! | [`Context`] | handles to tree and swap space, the service threads, the gate |
//! | `Reclaimer` (`eviction`) | what is known of clean copies, relatives and the pool's need |
//! | `FaultService` (`fault`) | costs of faults, the memory stall, refusals |
//! | `Keeper` (`keeper`) | the keeper thread's own |
//!
//! A layer derefs to the one under it, and knows none above. So nothing of a layer changes but by its own methods.

use crate::devices::swap_space::SwapSpace;
use crate::process::base::{Base, Locked};
use crate::process::refusal::Refusal;
use crate::process::services::Services;
use crate::process::state::State;
use ebb_engine::Cpu;
use ebb_engine::counters::Counters;
use ebb_engine::swap::Swap;
use ebb_engine::sync::{self, Mutex, MutexGuard};
use ebb_sys::paging::{Kernel, Time};
use ebb_tree::Member;

/// What all threads of ours share. Handles are visible to the layers above: they never change.
pub struct Context<K: Kernel> {
    /// The parts that are known whether it pages or not.
    pub base: &'static Base<K>,
    /// The system.
    pub kernel: &'static K,
    /// The place in the process tree: budget, counters, devices.
    pub member: &'static Member,
    /// The swap space.
    pub swap: &'static Swap,
    /// The same with the files behind it.
    pub swap_space: &'static SwapSpace,
    /// The service threads.
    pub services: Services<K>,
    /// Held by the keeper while it works in the engine, and by a fork.
    gate: Mutex<()>,
    /// A test has the system refuse.
    refusal: Option<Refusal>,
}

impl<K: Kernel> Context<K> {
    /// Of a process that is about to page.
    pub fn new(
        base: &'static Base<K>,
        member: &'static Member,
        swap_space: &'static SwapSpace,
    ) -> Self {
        let kernel = &base.kernel;
        Self {
            base,
            kernel,
            member,
            swap: &swap_space.swap,
            swap_space,
            services: Services::new(kernel, &kernel.allowed_cpus()),
            gate: Mutex::new(()),
            refusal: Refusal::of(swap_space.devices.faults()),
        }
    }

    /// The counters of this process, in the tree's shared memory.
    pub fn counters(&self) -> &Counters {
        self.member.counters()
    }

    /// The time now.
    #[inline(always)]
    pub fn now(&self) -> Time {
        self.kernel.now()
    }

    /// The processor the caller runs on.
    #[inline]
    pub fn cpu(&self) -> Cpu {
        self.swap_space.processors.number(self.kernel.cpu())
    }

    /// The engine, with the processor the caller runs on.
    #[inline]
    pub fn swap_here(&self) -> (&'static Swap, Cpu) {
        (self.swap, self.cpu())
    }

    /// Locks the state, on a thread of ours.
    #[inline]
    pub fn lock(&self) -> Locked {
        self.base.lock_service()
    }

    /// Keeps forks and the keeper's work in the engine apart.
    pub fn gate(&self) -> MutexGuard<'_, ()> {
        ebb_engine::locks::none_held();
        sync::lock(&self.gate)
    }

    /// The gate, if nobody has it.
    pub fn try_gate(&self) -> Option<MutexGuard<'_, ()>> {
        ebb_engine::locks::none_held();
        sync::try_lock(&self.gate)
    }

    /// Pages of memory in use that the pager knows of, the engine's included.
    pub fn used(&self, state: &State) -> i64 {
        state.used(self.swap) + self.base.shared_pages.given_back()
    }

    /// The invariants of this layer and of the one under it.
    pub fn check(&self, state: &State) {
        self.base.check(state);
        self.services.check();
        self.swap_space.devices.check();
        self.swap_space.generations.check();
    }

    /// Whether a test has the system refuse all pages now.
    pub fn refuses(&self) -> bool {
        let asked = self.refusal.as_ref();
        asked.is_some_and(|refusal| refusal.strikes(self.services.served(), self.now()))
    }
}
