//! The owner of one slot, and its state, in 32 bits.

use crate::types::{EntryId, MAX_ENTRIES};

/// The owner of a slot: its entry, or the last one it had, and the state of the slot.
///
/// An owner is gone, cached, bad, or nothing of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::slots) struct SlotOwner(u32);

impl SlotOwner {
    const GONE: u32 = 1 << 29;
    const CACHED: u32 = 1 << 30;
    const NO_ENTRY: u32 = 1 << 31;

    /// Bits of the entry; of the others at most one is set.
    const LOW: u32 = Self::GONE - 1;

    /// Of a slot that never had an owner, or of which that is forgotten.
    pub const NONE: Self = Self(Self::NO_ENTRY);
    /// Out of service for good.
    pub const BAD: Self = Self(Self::NO_ENTRY | 1);
    /// The width of `narrow`.
    pub const BITS: u32 = 31;

    pub const fn owned(owner: EntryId) -> Self {
        Self(owner.0 & MAX_ENTRIES)
    }
    /// Given back by its owner, but not yet to be used again: it waits in a return cache, or
    /// for the readers of a frozen cluster.
    pub const fn gone(self) -> bool {
        self.0 & Self::GONE != 0
    }
    /// Only a clean copy of a page in memory.
    pub const fn cached(self) -> bool {
        self.0 & Self::CACHED != 0
    }
    pub const fn bad(self) -> bool {
        self.0 == Self::BAD.0
    }
    /// This one's now, if only as a copy.
    pub const fn owned_by(self, owner: EntryId) -> bool {
        self.0 & !Self::CACHED == Self::owned(owner).0
    }
    /// The same owner's, given back.
    pub const fn as_gone(self) -> Self {
        Self(self.plain().0 | Self::GONE)
    }
    /// The same owner's, a copy or not.
    pub const fn as_cached(self, yes: bool) -> Self {
        Self(self.plain().0 | if yes { Self::CACHED } else { 0 })
    }
    /// The same owner's, neither given back nor a copy.
    pub const fn plain(self) -> Self {
        Self(self.0 & !(Self::GONE | Self::CACHED))
    }
    /// The owner in `BITS` bits.
    pub const fn narrow(self) -> u32 {
        let flags = self.0 >> 29;
        // 0, 1, 2 or 4.
        let which = if flags > 2 { 3 } else { flags };
        which << 29 | self.0 & Self::LOW
    }
    /// The owner that `narrow` gave this for.
    pub const fn widened(narrow: u32) -> Self {
        let which = narrow >> 29;
        let flags = if which > 2 { 4 } else { which };
        Self(flags << 29 | narrow & Self::LOW)
    }
    /// The entry, also of a slot that was freed since.
    pub const fn entry(self) -> Option<EntryId> {
        if self.0 & Self::NO_ENTRY != 0 {
            None
        } else {
            Some(EntryId(self.0 & MAX_ENTRIES))
        }
    }
}

const _: () = assert!(MAX_ENTRIES < SlotOwner::GONE);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_thing_at_a_time() {
        let owned = SlotOwner::owned(EntryId(MAX_ENTRIES));
        let flags = |w: SlotOwner| (w.gone(), w.cached(), w.bad());
        assert_eq!(flags(owned), (false, false, false));
        assert_eq!(flags(owned.as_gone()), (true, false, false));
        assert_eq!(flags(owned.as_cached(true)), (false, true, false));
        assert_eq!(flags(owned.as_cached(true).as_gone()), (true, false, false));
        assert_eq!(flags(SlotOwner::BAD), (false, false, true));
        assert_eq!(flags(SlotOwner::NONE), (false, false, false));
        for same in [owned.as_gone(), owned.as_cached(true), owned.plain()] {
            assert_eq!(same.entry(), Some(EntryId(MAX_ENTRIES)));
            assert_eq!(SlotOwner::widened(same.narrow()), same);
            assert!(same.narrow() >> SlotOwner::BITS == 0);
        }
        for other in [
            SlotOwner::BAD,
            SlotOwner::NONE,
            SlotOwner::owned(EntryId(0)).as_gone(),
        ] {
            assert_eq!(SlotOwner::widened(other.narrow()), other);
        }
        assert_eq!(
            (SlotOwner::BAD.entry(), SlotOwner::NONE.entry()),
            (None, None)
        );
    }
}
