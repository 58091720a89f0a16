//! The shared table: its words, how it is laid out, how it is mapped.
//!
//! One memfd holds the [`Table`]; a second one per device holds its leases, so that a device can come later
//! and huge ones cost only what is touched. The words that others scan (the states of all slots) lie
//! together. The words of one process lie in its own pages, which stay untouched, and free of cost, until
//! the slot is first used.
//!
//! # States of a slot
//! ```text
//! FREE ──join──────────────▶ JOINED ──start_paging──▶ PAGING
//!  └──reserve_child──▶ RESERVED ──join──▶ JOINED or, if the parent paged, PAGING
//! any ──reap (supervisor), cancel_child (parent) or reap_dead (any member)──▶ FREE
//! ```
//! Counters and latencies of a slot are never reset when it is used again: totals over the
//! tree are sums over all slots.

mod area;
mod ask;
mod awaited_children;
mod charge;
mod config;
mod device;
mod limits;
mod namespaces;
mod pools;
mod refaults;
mod slot;
mod start;
mod supervised;
mod wait;

pub(crate) use area::{clusters_of, create_leases, map_leases};
pub use ask::{AgeCutoff, Asked, ReclaimRequest};
pub use config::{Codec, Config, Zstd};
pub(crate) use device::DeviceRow;
pub use device::{Answer, DeviceState, ShareReport};
pub(crate) use limits::LimitWords;
pub use limits::Limits;
pub use pools::PoolLimit;
pub(crate) use refaults::Refaults;
pub use slot::{ChildSlot, SlotNumber, SlotState, idle_time};
pub(crate) use slot::{Named, Slot, StateWord};

pub(crate) use awaited_children::CHILD as WAITS_FOR_CHILDREN;
pub use start::start_threshold;
pub(crate) use supervised::is_nobody;

use crate::waiters::Waiters;
use crate::{MAX_DEVICES, MAX_MEMBERS};
use ebb_engine::PAGE_SIZE;
use ebb_sys::proc;
use ebb_sys::shm::{Area, Shared};
use rustix::io::Errno;
use slot::{Line, TAKEN_MASK};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::*};

const MAGIC: u64 = u64::from_be_bytes(*b"ebbtree\0");
/// Raised with every change of layout or meaning.
pub(crate) const VERSION: u32 = 21;

/// Whether the tree has to page yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Everything fits; nobody pages.
    Watching,
    /// The budget is near: members page. There is no way back.
    Paging,
}

/// How a page came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Never touched before, or all zero.
    Zero,
    /// Still in memory.
    Cache,
    /// Out of the compressed pool.
    Pool,
    /// Read from a device.
    Device,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 4] = [Way::Zero, Way::Cache, Way::Pool, Way::Device];

    /// Its name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Zero => "zero",
            Way::Cache => "cache",
            Way::Pool => "pool",
            Way::Device => "device",
        }
    }
}

/// The shared table. Field by field: magic to validate; the sums on lines of their own because
/// all members write them; then what is scanned; then the slots. Settings are not here (`protocol`'s WELCOME): a member
/// that became another user has the table.
#[repr(C, align(4096))]
pub(crate) struct Table {
    magic: AtomicU64,
    version: AtomicU32,
    size: AtomicU64,
    /// The number of times that the devices have changed.
    pub changes: AtomicU64,
    pub budget: AtomicI64,
    /// Pages that the budget is to lose yet, while it is being lowered.
    pub reduction: AtomicI64,
    pub mode: AtomicU32,
    /// The limits of the whole tree.
    pub limits: LimitWords,
    pub next_family: AtomicU64,
    /// Pages that several measured processes share, and that are counted once.
    pub overlap: AtomicI64,
    /// Pages that seem to be in use, as their credit was taken on suspicion; negative: it is not
    /// known how many.
    pub suspected: AtomicI64,
    /// The number of times that shared memory of members was measured, counted twice each: when it begins, when it
    /// ends.
    pub rollups: AtomicU32,
    /// Pages whose credit was taken although a measurement may have seen that they are shared no more,
    /// since the supervisor looked.
    pub doubted: AtomicI64,
    /// Pages that children might copy which the supervisor has not seen yet.
    pub forked: AtomicI64,
    /// 1: a fork waits for the tree to page.
    pub paging_request: AtomicU32,
    /// 1: a fork has waited for that in vain since the supervisor looked, or there is none.
    pub unanswered: AtomicU32,
    /// The number of a process that waits for a place for a child; 0: none has since the
    /// supervisor looked.
    pub crowded: AtomicU32,
    /// The PID namespace of who made the table, by its inode; 0: not known.
    pub namespace: AtomicU64,
    /// 1: processes of others have come to the tree, for good.
    pub mixed: AtomicU32,
    /// The number of the process that supervises, as who made the table sees it; 0: none.
    supervisor: AtomicU32,
    /// budget - outside + credit; may be negative.
    pub limit: Line<AtomicI64>,
    /// Σ charged of the slots, and what a killed process left half-done.
    pub charged: Line<AtomicI64>,
    /// The largest use so far.
    pub peak: Line<AtomicI64>,
    /// The most bytes that the pools held together so far, by what members said.
    pub pool_peak: Line<AtomicU64>,
    /// The most pages that programs had so far, in memory or not, by what members said.
    pub had_peak: Line<AtomicU64>,
    /// The time (CLOCK_MONOTONIC nanoseconds) when a member loaded a page from a device last, about.
    pub loaded: Line<AtomicU64>,
    /// The time (CLOCK_MONOTONIC nanoseconds) when somebody last looked at the map of clusters.
    pub map_asked: Line<AtomicU64>,
    /// Slots that wait for room.
    pub waiters: Line<Waiters>,
    states: [AtomicU32; MAX_MEMBERS],
    pub devices: [DeviceRow; MAX_DEVICES],
    pub slots: [Slot; MAX_MEMBERS],
}

// SAFETY: `repr(C)`, and every field is an atomic or made of atomics. `Counters` is `repr(C)` with
// `repr(transparent)` wrappers of `AtomicU64`, `Histogram` and `Refaults` are `repr(C)` of `AtomicU64`, `Line` adds
// padding that nobody reads. All of them take any bit pattern.
#[allow(unsafe_code)]
unsafe impl Shared for Table {}
impl Table {
    /// Makes the table of a new tree, with every slot free.
    pub fn create(budget: u64, config: Config) -> Result<(&'static Self, OwnedFd), Errno> {
        let (area, fd) = Area::create("ebb-tree", size_of::<Self>())?;
        let table: &'static Self = area.one(0).ok_or(Errno::INVAL)?;
        let budget = i64::try_from(budget).map_err(|_| Errno::INVAL)?;
        table.budget.store(budget, SeqCst);
        table.limit.0.store(budget, SeqCst);
        table.mode.store(config.eager as u32, SeqCst);
        let namespace = proc::pid_namespace().unwrap_or(0);
        table.namespace.store(namespace, SeqCst);
        table.size.store(size_of::<Self>() as u64, SeqCst);
        table.version.store(VERSION, SeqCst);
        table.magic.store(MAGIC, SeqCst);
        Ok((table, fd))
    }

    /// Maps a table that another process made.
    ///
    /// # Errors
    /// EINVAL if it is not one of this version; those of mmap.
    pub fn map(fd: BorrowedFd<'_>) -> Result<&'static Self, Errno> {
        let area = Area::map(fd)?;
        let table: &'static Self = area.one(0).ok_or(Errno::INVAL)?;
        let ours = table.magic.load(SeqCst) == MAGIC
            && table.version.load(SeqCst) == VERSION
            && table.size.load(SeqCst) == size_of::<Self>() as u64;
        if ours { Ok(table) } else { Err(Errno::INVAL) }
    }

    pub fn slot(&self, n: SlotNumber) -> &Slot {
        &self.slots[n.index()]
    }

    pub fn state(&self, n: SlotNumber) -> StateWord {
        StateWord::unpack(self.states[n.index()].load(SeqCst))
    }

    /// Whether a slot is still taken for that child, or by it.
    pub fn is_kept(&self, child: ChildSlot) -> bool {
        let StateWord { state, taken, .. } = self.state(child.slot);
        state != SlotState::Free && taken == child.taken
    }

    /// Changes the state of a slot that the caller has a right to: nobody else does so at
    /// the same time.
    pub fn set_state(&self, n: SlotNumber, to: StateWord) {
        let taken = self.state(n).taken;
        self.states[n.index()].store(StateWord { taken, ..to }.pack(), SeqCst);
    }

    /// Changes the state of a slot that others may change at the same time.
    pub fn change_state(&self, n: SlotNumber, change: impl Fn(StateWord) -> StateWord) {
        let changed = |word| Some(change(StateWord::unpack(word)).pack());
        // Never refused.
        let _ = self.states[n.index()].fetch_update(SeqCst, SeqCst, changed);
    }

    /// Takes the first free slot.
    pub fn take_slot(&self, to: StateWord) -> Option<SlotNumber> {
        let found = SlotNumber::all().find(|n| {
            let word = self.state(*n);
            let taken = (word.taken + 1) & TAKEN_MASK;
            word.state == SlotState::Free
                && self.states[n.index()]
                    .compare_exchange(
                        word.pack(),
                        StateWord { taken, ..to }.pack(),
                        SeqCst,
                        Relaxed,
                    )
                    .is_ok()
        })?;
        let slot = self.slot(found);
        slot.forget_pid(self.state(found).taken);
        slot.reaper.store(0, SeqCst);
        slot.limits.set(Limits::default());
        slot.pool.store(0, Relaxed);
        slot.pool_oldest.store(0, Relaxed);
        slot.request.store(0, SeqCst);
        slot.gives_down_to.store(0, SeqCst);
        for word in [
            &slot.pool_data,
            &slot.pool_pages,
            &slot.let_grow_ns,
            &slot.pool_reported_ns,
            &slot.pool_grew_ns,
            &slot.staging,
            &slot.unmanaged,
            &slot.swapped,
        ] {
            word.store(0, Relaxed);
        }
        Some(found)
    }

    /// Whether there is a place for a process more.
    pub fn has_free_slot(&self) -> bool {
        SlotNumber::all().any(|n| self.state(n).state == SlotState::Free)
    }

    /// Slots that are not free.
    pub fn taken(&self) -> impl Iterator<Item = (SlotNumber, StateWord)> + '_ {
        SlotNumber::all()
            .map(|n| (n, self.state(n)))
            .filter(|(_, word)| word.state != SlotState::Free)
    }

    /// The slots of processes that page.
    pub fn paging(&self) -> impl Iterator<Item = SlotNumber> + '_ {
        let paging = self
            .taken()
            .filter(|(_, word)| word.state == SlotState::Paging);
        paging.map(|(n, _)| n)
    }

    pub fn mode(&self) -> Mode {
        if self.mode.load(SeqCst) == 0 {
            Mode::Watching
        } else {
            Mode::Paging
        }
    }

    /// The budget in bytes.
    pub fn budget_bytes(&self) -> u64 {
        let pages = self.budget.load(SeqCst).max(0) as u64;
        pages.saturating_mul(PAGE_SIZE as u64)
    }

    /// Says that a page was loaded from a device at `ns`. The word is written no more often than every
    /// 100 us: all members read it.
    pub fn report_load(&self, ns: u64) {
        const EACH_NS: u64 = 100_000;
        if self.loaded.0.load(Relaxed).abs_diff(ns) > EACH_NS {
            self.loaded.0.store(ns, Relaxed);
        }
    }

    /// When that was last, about; 0 where the word says a time to come, which nobody meant.
    pub fn last_load_ns(&self, now_ns: u64) -> u64 {
        let ns = self.loaded.0.load(Relaxed);
        if ns <= now_ns { ns } else { 0 }
    }

    /// Says that the devices have changed, and wakes every member to look; the number of the change.
    pub fn devices_changed(&self) -> u64 {
        let change = self.changes.fetch_add(1, SeqCst) + 1;
        for (n, _) in self.taken() {
            self.wake(n);
        }
        change
    }
}

#[cfg(test)]
mod tests {
    use super::area::{create_leases, map_leases};
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn loads_are_told_about_and_times_to_come_are_not_believed() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        assert_eq!(table.last_load_ns(1_000_000), 0);
        table.report_load(500_000);
        table.report_load(550_000);
        assert_eq!(table.last_load_ns(1_000_000), 500_000);
        table.report_load(900_000);
        assert_eq!(table.last_load_ns(1_000_000), 900_000);
        table.loaded.0.store(u64::MAX, SeqCst);
        assert_eq!(table.last_load_ns(1_000_000), 0);
        table.report_load(950_000);
        assert_eq!(table.last_load_ns(1_000_000), 950_000);
    }

    #[test]
    fn a_table_of_another_version_is_refused() {
        let (table, fd) = Table::create(100, Config::default()).unwrap();
        assert!(Table::map(fd.as_fd()).is_ok());
        table.version.store(VERSION + 1, SeqCst);
        assert_eq!(Table::map(fd.as_fd()).err(), Some(Errno::INVAL));
        let (_, leases) = create_leases(10).unwrap();
        assert_eq!(Table::map(leases.as_fd()).err(), Some(Errno::INVAL));
        assert!(map_leases(leases.as_fd(), 10).is_ok());
        assert!(
            map_leases(leases.as_fd(), 1 << 20).is_err(),
            "larger than the file"
        );
    }
}
