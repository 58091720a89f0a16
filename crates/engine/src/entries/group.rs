//! Groups: who is charged, whether their pages may go to devices, and their clusters in order of age.

use super::fifo::{Fifo, Stamp};
use crate::GroupId;
use crate::locks::{LockRank, Ordered, lock};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// One group. Its setting and charge are read and written without order.
pub struct Group {
    /// The name. A new group may have that of one that ended.
    pub id: GroupId,
    /// The number of groups made so far, with this one: no other group's, and later groups have higher ones.
    pub number: u64,
    /// Bytes of pool objects it holds.
    pool_bytes: AtomicU64,
    writeback: AtomicBool,
    ended: AtomicBool,
    /// The stamp from which on the search for copies that can be given up goes on.
    pub(super) hand: AtomicU64,
    pub(super) lists: Ordered<Lists, { LockRank::GroupLists as usize }>,
}

/// A processor's hold on a group. The clusters that it opens, and the stores that it serves, copy this
/// one: they are counted on a line of its own, not on the group's.
#[derive(Clone)]
pub struct Hold(Arc<Apart>);

#[repr(align(64))]
struct Apart(Arc<Group>);

impl Hold {
    pub(super) fn new(group: Arc<Group>) -> Self {
        Self(Arc::new(Apart(group)))
    }

    /// Where copies are counted.
    #[cfg(all(test, not(loom)))]
    pub(super) fn line(&self) -> *const u8 {
        // The counts are before what is counted, from the beginning of a line on.
        Arc::as_ptr(&self.0).cast::<u8>().wrapping_sub(64)
    }
}

impl Deref for Hold {
    type Target = Arc<Group>;
    fn deref(&self) -> &Arc<Group> {
        &self.0.0
    }
}

/// The clusters of a group that someone may be looking for.
#[derive(Default)]
pub(super) struct Lists {
    /// Every cluster with pages in the pool, in the order the shrinker visits them.
    pub clock: Fifo,
    /// Clusters with room enough to be worth opening.
    pub partial: Fifo,
}

impl Group {
    pub(super) fn new(id: GroupId, number: u64) -> Self {
        Self {
            id,
            number,
            pool_bytes: AtomicU64::new(0),
            writeback: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            hand: AtomicU64::new(0),
            lists: Ordered::new(Lists::default()),
        }
    }
    /// Bytes of pool objects it is charged for.
    pub fn pool_bytes(&self) -> u64 {
        self.pool_bytes.load(Relaxed)
    }
    /// Whether its pages may go to devices.
    pub fn writeback(&self) -> bool {
        self.writeback.load(Relaxed)
    }
    /// Whether it was removed: it lives on for the sake of the pages it left.
    pub fn ended(&self) -> bool {
        self.ended.load(Relaxed)
    }
    /// The stamp of its oldest cluster with pages in the pool.
    pub fn oldest(&self) -> Option<Stamp> {
        lock(&self.lists).clock.oldest()
    }
    pub(super) fn end(&self) {
        self.ended.store(true, Relaxed);
    }
    /// Says whether its pages may go to devices.
    pub fn set_writeback(&self, may: bool) {
        self.writeback.store(may, Relaxed);
    }
    /// Charges it for objects of so many bytes.
    pub(crate) fn charge(&self, bytes: u64) {
        self.pool_bytes.fetch_add(bytes, Relaxed);
    }
    pub(crate) fn uncharge(&self, bytes: u64) {
        self.pool_bytes.fetch_sub(bytes, Relaxed);
    }
}
