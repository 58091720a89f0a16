//! Extents: consecutive slots within one cluster.

use crate::types::{CLUSTER_SLOTS, ClusterIndex, DeviceId, ORDERS, SlotIndex};

/// Consecutive slots, within one cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The device.
    pub device: DeviceId,
    /// The first slot.
    pub start: SlotIndex,
    /// The number of slots, 1..=512.
    pub len: u16,
}

impl Extent {
    /// Whether `next` follows on in the same cluster.
    pub(crate) fn joins(&self, next: Self) -> bool {
        self.device == next.device
            && self.start.0 + u32::from(self.len) == next.start.0
            && self.start.cluster() == next.start.cluster()
    }
}

/// Where the pages of one allocation went, in order. Reuse one list, so that it need not
/// grow again.
#[derive(Default, Debug)]
pub struct ExtentList(pub(super) Vec<Extent>);

impl ExtentList {
    /// An empty list with room for the worst case of one allocation.
    pub fn new() -> Self {
        Self(Vec::with_capacity(CLUSTER_SLOTS))
    }
    /// Forgets the extents; frees nothing.
    pub fn clear(&mut self) {
        self.0.clear();
    }
    /// Appends; joins what follows on in the same cluster, but nothing before `from`.
    pub(super) fn push(&mut self, extent: Extent, from: usize) {
        if let Some(last) = self.0[from..].last_mut()
            && last.joins(extent)
        {
            last.len += extent.len;
        } else {
            self.0.push(extent);
        }
    }
}

impl std::ops::Deref for ExtentList {
    type Target = [Extent];
    fn deref(&self) -> &[Extent] {
        &self.0
    }
}

/// The order whose windows hold `pages`.
pub(super) fn order_of(pages: u16) -> u8 {
    let order = pages.next_power_of_two().trailing_zeros() as u8;
    debug_assert!(usize::from(order) < ORDERS);
    order
}

/// An extent inside a cluster.
pub(super) fn extent(device: DeviceId, c: ClusterIndex, start: usize, pages: usize) -> Extent {
    Extent {
        device,
        start: SlotIndex(c.first_slot().0 + start as u32),
        len: pages as u16,
    }
}
