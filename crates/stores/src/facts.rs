//! Facts of an opened device: plain data, so that it can travel to another process beside the descriptor.

use ebb_engine::Node;

/// A device's facts. `Copy` and a few words: see [`Facts::to_words`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Slots of a page each.
    pub slots: u64,
    /// The place where slot 0 begins, in bytes: above 0 where the start of the area (a swap header) must stay as it
    /// is.
    pub base: u64,
    /// Flag: it is a block device, not a file.
    pub block: bool,
    /// Flag: a head moves.
    pub rotational: bool,
    /// Flag: freed slots are worth discarding.
    pub wants_discard: bool,
    /// Flag: it was opened with O_DIRECT, so transfers pass the page cache by.
    pub direct: bool,
    /// Flag: it lives in memory (tmpfs, zram): what is written there still costs RAM.
    pub in_memory: bool,
    node: u16,
}

const NO_NODE: u16 = u16::MAX;

impl Facts {
    /// Facts of a plain file of `slots` slots, nothing else known.
    pub const fn new(slots: u64) -> Self {
        Self {
            slots,
            base: 0,
            block: false,
            rotational: false,
            wants_discard: false,
            direct: false,
            in_memory: false,
            node: NO_NODE,
        }
    }

    /// The NUMA node the device hangs on, if known.
    pub fn node(&self) -> Option<Node> {
        (self.node != NO_NODE).then_some(Node(self.node))
    }

    /// The same facts with another node.
    pub fn with_node(mut self, node: Option<Node>) -> Self {
        self.node = node.map_or(NO_NODE, |node| node.0);
        self
    }

    /// The facts as words for a message or a shared table.
    pub fn to_words(&self) -> [u64; 3] {
        let bit = |flag: bool, at: u32| (flag as u64) << at;
        let flags = bit(self.block, 0)
            | bit(self.rotational, 1)
            | bit(self.wants_discard, 2)
            | bit(self.direct, 3)
            | bit(self.in_memory, 4);
        [self.slots, self.base, flags | (self.node as u64) << 16]
    }

    /// The inverse of [`Facts::to_words`].
    pub fn from_words([slots, base, rest]: [u64; 3]) -> Self {
        let flag = |at: u32| rest >> at & 1 == 1;
        Self {
            slots,
            base,
            block: flag(0),
            rotational: flag(1),
            wants_discard: flag(2),
            direct: flag(3),
            in_memory: flag(4),
            node: (rest >> 16) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_carry_everything(
            slots: u64, base: u64, flags: [bool; 5], node in proptest::option::of(0..u16::MAX),
        ) {
            let [block, rotational, wants_discard, direct, in_memory] = flags;
            let facts = Facts {
                base, block, rotational, wants_discard, direct, in_memory, ..Facts::new(slots)
            }.with_node(node.map(Node));
            prop_assert_eq!(Facts::from_words(facts.to_words()), facts);
            prop_assert_eq!(facts.node(), node.map(Node));
        }
    }
}
