//! The vocabulary: constants and one type for every index, so that an entry is
//! never taken for a slot nor a slot for a cluster.

use core::fmt;

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;
/// Slots of a cluster: one 2 MiB huge page.
pub const CLUSTER_SLOTS: usize = 512;
/// The largest folio order: 2^9 pages, a whole cluster.
pub const MAX_ORDER: u8 = 9;
/// Swap devices of one engine at most: three bits of an entry name one.
pub const MAX_DEVICES: usize = if cfg!(loom) { 2 } else { 8 };
/// Slots of one device at most, 128 GiB: 25 bits of an entry name one.
pub const MAX_DEVICE_SLOTS: u64 = 1 << 25;
/// Orders 0..=9.
pub const ORDERS: usize = MAX_ORDER as usize + 1;
/// Pages of a block: those of consecutive entries, the first a multiple of this. Larger ones are little
/// denser, and a page out of one costs as much more to load as they are larger.
pub const BLOCK_PAGES: usize = 4;

const _: () = assert!(1 << MAX_ORDER == CLUSTER_SLOTS);

/// The bytes of one page.
pub type PageBytes = [u8; PAGE_SIZE];

macro_rules! index {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub $inner);

        impl $name {
            /// The index as an array position.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

index!(
    /// One page's place in the virtual swap space. Page maps name entries, never places.
    /// At most 2^29 - 1, so that a page word can carry one beside its state bits.
    EntryId(u32)
);
index!(
    /// The group that is charged: a process of a tree, or a named budget inside a process.
    GroupId(u16)
);
index!(
    /// A swap device, in order of activation. Numbers are reused after removal.
    DeviceId(u8)
);
index!(
    /// A slot of one device: room for one page.
    SlotIndex(u32)
);
index!(
    /// A cluster of one device: `CLUSTER_SLOTS` slots.
    ClusterIndex(u32)
);
index!(
    /// A processor, as the embedder numbers them: dense from 0.
    Cpu(u16)
);
index!(
    /// A NUMA node.
    Node(u16)
);

/// The largest entry number.
pub const MAX_ENTRIES: u32 = (1 << 29) - 1;

impl EntryId {
    /// The entry `pages` after this one, in the same range.
    pub const fn plus(self, pages: u32) -> Self {
        Self(self.0 + pages)
    }
    /// The entries of its block: those that may have their pages in one object.
    pub const fn block(self) -> [Self; BLOCK_PAGES] {
        let mut block = [Self(self.0 / BLOCK_PAGES as u32 * BLOCK_PAGES as u32); _];
        let mut k = 1;
        while k < BLOCK_PAGES {
            block[k] = block[0].plus(k as u32);
            k += 1;
        }
        block
    }
}

impl SlotIndex {
    /// The cluster that holds this slot.
    pub const fn cluster(self) -> ClusterIndex {
        ClusterIndex(self.0 / CLUSTER_SLOTS as u32)
    }
    /// Position inside the cluster, 0..512.
    pub const fn within(self) -> usize {
        self.0 as usize % CLUSTER_SLOTS
    }
}

impl ClusterIndex {
    /// The first slot of this cluster.
    pub const fn first_slot(self) -> SlotIndex {
        SlotIndex(self.0 * CLUSTER_SLOTS as u32)
    }
}
