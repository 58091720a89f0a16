//! The layer of the way in: [`FaultService`], and all that it alone changes.

use crate::budget::pool_split::Costs;
use crate::eviction::reclaimer::Reclaimer;
use crate::fault::pressure::Pressure;
use crate::map::page_map::UNIT;
use crate::process::state::State;
use crate::process::worker::UnitBuffer;
use crate::reclaim::memory_stall::MemoryStall;
use ebb_engine::PageBytes;
use ebb_sys::paging::Kernel;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Serves faults. Beside its state it has the layers under it, so it stands for a process that pages.
pub struct FaultService<K: Kernel> {
    reclaimer: Reclaimer<K>,
    /// The costs of faults.
    pub(super) costs: Costs,
    /// The time for which there has been no room.
    pub(super) stall: MemoryStall,
    /// Faults that wait, and since when.
    pub(crate) pressure: Pressure,
    /// Flag: the system had no page for us, and the keeper has not seen it yet.
    is_refused: AtomicBool,
    /// The zeros of first touches, which nobody writes.
    zeros: &'static UnitBuffer,
}

impl<K: Kernel> FaultService<K> {
    /// Of a process that is about to page.
    pub fn new(reclaimer: Reclaimer<K>) -> Self {
        let zeros = UnitBuffer::reserve(reclaimer.kernel);
        Self {
            reclaimer,
            costs: Costs::new(),
            stall: MemoryStall::default(),
            pressure: Pressure::default(),
            is_refused: AtomicBool::new(false),
            zeros,
        }
    }

    /// The invariants of this layer and of all under it.
    pub fn check(&self, state: &State) {
        self.reclaimer.check(state);
        self.stall.check();
        let zeros = self.zeros(UNIT).as_flattened();
        assert!(zeros.iter().all(|byte| *byte == 0), "zeros are written");
    }

    /// So many pages of zeros, a unit at most.
    pub(super) fn zeros(&self, pages: usize) -> &'static [PageBytes] {
        self.zeros.first(pages)
    }

    /// The costs of faults, as measured.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The system has had no page for a while: the keeper is to give some up.
    pub(super) fn report_refusal(&self) {
        self.is_refused.store(true, SeqCst);
        self.member.wake_self();
    }

    /// Whether that was reported since the last call.
    pub fn take_refusal(&self) -> bool {
        self.is_refused.swap(false, SeqCst)
    }
}

impl<K: Kernel> Deref for FaultService<K> {
    type Target = Reclaimer<K>;

    #[inline(always)]
    fn deref(&self) -> &Reclaimer<K> {
        &self.reclaimer
    }
}
