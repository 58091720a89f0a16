//! The entry's word: one `u64` that says where a page is and how to know its bytes.
//!
//! | bits | meaning |
//! |---|---|
//! | 0..28 | place: pool handle, device and slot, or the kind of a special |
//! | 28..30 | kind: special, pool, slot, slot raw |
//! | 30 | cached: the page is resident too, and unwritten as far as anyone knows |
//! | 31 | busy: writeback or recompression copied it; only who did repoints it, anyone may free it |
//! | 32 | referenced: gets a second chance from the shrinker |
//! | 33..64 | the low 31 bits of the checksum of the bytes stored |
//!
//! A same-filled page needs no checksum: its repeated 32-bit pattern takes the bits of one,
//! and one more.

use crate::{DeviceId, MAX_DEVICE_SLOTS, MAX_DEVICES, SlotIndex};

/// An object of the pool: window number and position in the window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(u32);

impl Handle {
    /// Bits of the position in a window.
    pub const OBJECT_BITS: u32 = 8;
    /// Windows a pool can have.
    pub const MAX_WINDOWS: u32 = 1 << (EntryWord::PLACE_BITS - Self::OBJECT_BITS);

    /// The object `object` of window `window`.
    pub const fn new(window: u32, object: u8) -> Self {
        Self(window << Self::OBJECT_BITS | object as u32)
    }
    /// The window.
    pub const fn window(self) -> u32 {
        self.0 >> Self::OBJECT_BITS
    }
    /// The position in the window.
    pub const fn object(self) -> u8 {
        self.0 as u8
    }
}

/// A slot of a device, and whether it holds the page as it was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotPlace {
    /// The device, below [`MAX_DEVICES`].
    pub device: DeviceId,
    /// The slot, below [`MAX_DEVICE_SLOTS`].
    pub slot: SlotIndex,
    /// Flag: its data is not compressed.
    pub raw: bool,
}

impl SlotPlace {
    const SLOT_BITS: u32 = MAX_DEVICE_SLOTS.ilog2();
    /// A value for arrays that hold no place yet.
    pub(crate) const NONE: Self = Self {
        device: DeviceId(0),
        slot: SlotIndex(0),
        raw: false,
    };
}

/// Where an entry's page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// The entry is free.
    Free,
    /// Allocated; its store has not finished.
    Reserved,
    /// Cached, and its copy was given up: only the resident page has the data.
    Dropped,
    /// Every 32-bit word of the page is this.
    Same(u32),
    /// In the pool.
    Pool(Handle),
    /// On a device.
    Slot(SlotPlace),
}

/// See the module's table. All zeros is a free entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EntryWord(u64);

impl EntryWord {
    const PLACE_BITS: u32 = 28;
    const KIND: u32 = 28;
    const CACHED: u64 = 1 << 30;
    const BUSY: u64 = 1 << 31;
    const REFERENCED: u64 = 1 << 32;
    const CHECKSUM: u32 = 33;
    const PLACE_MASK: u64 = (1 << Self::PLACE_BITS) - 1;

    const SPECIAL_RESERVED: u64 = 1;
    const SPECIAL_DROPPED: u64 = 2;
    const SPECIAL_SAME: u64 = 4;

    /// A free entry.
    pub const FREE: Self = Self(0);
    /// An entry whose store has not finished.
    pub const RESERVED: Self = Self(Self::SPECIAL_RESERVED);

    /// A same-filled page.
    pub const fn same(pattern: u32) -> Self {
        let low = (pattern & 1) as u64;
        Self(((pattern >> 1) as u64) << Self::CHECKSUM | Self::SPECIAL_SAME | low)
    }
    /// A page in the pool.
    pub const fn pool(handle: Handle, checksum: u64) -> Self {
        Self(checksum << Self::CHECKSUM | 1 << Self::KIND | handle.0 as u64)
    }
    /// A page on a device.
    pub const fn slot(place: SlotPlace, checksum: u64) -> Self {
        let kind = if place.raw { 3u64 } else { 2 };
        let at = (place.device.0 as u64) << SlotPlace::SLOT_BITS | place.slot.0 as u64;
        Self(checksum << Self::CHECKSUM | kind << Self::KIND | at)
    }

    /// Where the page is.
    pub const fn location(self) -> Location {
        let place = self.0 & Self::PLACE_MASK;
        let kind = self.0 >> Self::KIND & 3;
        match kind {
            0 => match place {
                0 => Location::Free,
                Self::SPECIAL_RESERVED => Location::Reserved,
                Self::SPECIAL_DROPPED => Location::Dropped,
                _ => Location::Same((self.checksum() as u32) << 1 | (place & 1) as u32),
            },
            1 => Location::Pool(Handle(place as u32)),
            _ => Location::Slot(SlotPlace {
                device: DeviceId((place >> SlotPlace::SLOT_BITS) as u8),
                slot: SlotIndex(place as u32 & ((1 << SlotPlace::SLOT_BITS) - 1)),
                raw: kind == 3,
            }),
        }
    }
    /// Whether the page is in the pool.
    pub const fn is_in_pool(self) -> bool {
        self.0 >> Self::KIND & 3 == 1
    }
    /// The same without flags: the place, and the checksum of the bytes there.
    pub const fn plain(self) -> Self {
        Self(self.0 & !(Self::CACHED | Self::BUSY | Self::REFERENCED))
    }
    /// Whether both name the same place, or the same special.
    pub const fn same_place(self, other: Self) -> bool {
        (self.0 ^ other.0) & (Self::PLACE_MASK | 3 << Self::KIND) == 0
    }
    /// The low 31 bits of the checksum of the bytes stored.
    const fn checksum(self) -> u64 {
        self.0 >> Self::CHECKSUM
    }
    /// Whether bytes of this checksum may be the stored ones.
    pub const fn checksum_matches(self, checksum: u64) -> bool {
        (checksum << Self::CHECKSUM) >> Self::CHECKSUM == self.checksum()
    }
    /// Whether the entry is free.
    pub const fn is_free(self) -> bool {
        self.0 == 0
    }
    /// Whether the page is resident too.
    pub const fn cached(self) -> bool {
        self.0 & Self::CACHED != 0
    }
    /// Whether writeback is copying it.
    pub const fn busy(self) -> bool {
        self.0 & Self::BUSY != 0
    }
    /// Whether it gets a second chance.
    pub const fn referenced(self) -> bool {
        self.0 & Self::REFERENCED != 0
    }
    const fn with(self, bit: u64, on: bool) -> Self {
        Self(if on { self.0 | bit } else { self.0 & !bit })
    }
    /// The same with the cached bit.
    pub const fn with_cached(self, on: bool) -> Self {
        self.with(Self::CACHED, on)
    }
    /// The same with the busy bit.
    pub const fn with_busy(self, on: bool) -> Self {
        self.with(Self::BUSY, on)
    }
    /// The same with the referenced bit.
    pub const fn with_referenced(self, on: bool) -> Self {
        self.with(Self::REFERENCED, on)
    }
    /// The same page at another place: flags and checksum stay.
    pub const fn moved_to(self, to: EntryWord) -> Self {
        let place = Self::PLACE_MASK | 3 << Self::KIND;
        Self(self.0 & !place | to.0 & place)
    }
    /// The same page at another place, in other bytes: flags stay.
    pub const fn rewritten_to(self, to: EntryWord) -> Self {
        let flags = Self::CACHED | Self::BUSY | Self::REFERENCED;
        Self(self.0 & flags | to.0 & !flags)
    }
    /// The same entry without data of its own.
    pub const fn dropped(self) -> Self {
        Self(self.0 & (Self::CACHED | Self::REFERENCED) | Self::SPECIAL_DROPPED)
    }
}

const _: () = assert!(size_of::<EntryWord>() == 8);
const _: () = assert!(MAX_DEVICES <= 1 << (EntryWord::PLACE_BITS - SlotPlace::SLOT_BITS));

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(hash: u64, window in 0..Handle::MAX_WINDOWS, object: u8, pattern: u32,
                      device in 0u8..8, slot in 0..1u32 << 25, raw: bool) {
            let handle = Handle::new(window, object);
            let place = SlotPlace { device: DeviceId(device), slot: SlotIndex(slot), raw };
            for (word, location) in [
                (EntryWord::pool(handle, hash), Location::Pool(handle)),
                (EntryWord::slot(place, hash), Location::Slot(place)),
                (EntryWord::same(pattern), Location::Same(pattern)),
            ] {
                for word in [word, word.with_cached(true), word.with_busy(true).with_referenced(true)] {
                    prop_assert_eq!(word.location(), location);
                    prop_assert!(!word.is_free());
                }
            }
            let word = EntryWord::pool(handle, hash);
            prop_assert!(word.checksum_matches(hash));
            prop_assert!(!word.checksum_matches(hash ^ 1 << 30));
            let moved = word.with_cached(true).moved_to(EntryWord::slot(place, 0));
            prop_assert_eq!(moved.location(), Location::Slot(place));
            prop_assert!(moved.checksum_matches(hash) && moved.cached());
            prop_assert!(moved.same_place(EntryWord::slot(place, 0)) && !moved.same_place(word));
            let rewritten = word.with_cached(true).rewritten_to(EntryWord::slot(place, !hash));
            prop_assert_eq!(rewritten.location(), Location::Slot(place));
            prop_assert!(rewritten.checksum_matches(!hash) && rewritten.cached());
            prop_assert_eq!((handle.window(), handle.object()), (window, object));
            prop_assert_eq!(word.with_cached(true).dropped().location(), Location::Dropped);
        }
    }

    #[test]
    fn specials_are_apart() {
        assert_eq!(EntryWord::FREE.location(), Location::Free);
        assert_eq!(EntryWord::RESERVED.location(), Location::Reserved);
        assert_eq!(EntryWord::same(0).location(), Location::Same(0));
        assert_eq!(
            EntryWord::same(u32::MAX).location(),
            Location::Same(u32::MAX)
        );
    }
}
