//! The table of a cluster while any of its slots is used: the used slots, and for each of them its owner
//! (the reverse map).
//!
//! A table has three forms. *Whole*, there is an owner for every slot, found by its position; slots are
//! allocated in this form alone. *Packed*, there are owners of the used slots alone, in their order,
//! found by rank: by the number of used slots before. So a cluster of which half the slots were
//! freed, wherever they lay, needs half the owners. *Sparse*, each of these owners has its position beside it,
//! and there is nothing for the cluster as such. Frees take owners out; the room that they leave,
//! and a larger form that is worth it, are packed by the worker (`pack`), not by who frees.
//!
//! In every form the owners of used slots side by side are side by side.

mod slot_owner;
mod sparse;

pub(in crate::slots) use slot_owner::SlotOwner;

use super::bitmap::Bitmap;
use crate::types::{CLUSTER_SLOTS, EntryId};
use sparse::Sparse;

/// The common part of the two larger forms.
///
/// - `bad`, `gone`, `cached` = number of owners that are so; bad and gone slots count as used
#[derive(Clone, Copy)]
pub(in crate::slots) struct Known {
    used: Bitmap,
    bad: u16,
    gone: u16,
    cached: u16,
    /// Slots that were used when compaction left pages that it could not move; 0: it never did.
    stuck: u16,
}

impl Known {
    /// Changes an owner of these.
    fn put(&mut self, owner: &mut SlotOwner, to: SlotOwner) {
        let from = std::mem::replace(owner, to);
        let change = |count: &mut u16, is: fn(SlotOwner) -> bool| {
            *count = *count + u16::from(is(to)) - u16::from(is(from));
        };
        change(&mut self.bad, SlotOwner::bad);
        change(&mut self.gone, SlotOwner::gone);
        change(&mut self.cached, SlotOwner::cached);
    }

    /// Whether owners may be gone or cached.
    const fn marked(&self) -> bool {
        self.gone > 0 || self.cached > 0
    }

    /// Makes owners plain, none of them bad.
    #[cold]
    fn unmark(&mut self, owners: &mut [SlotOwner]) {
        for owner in owners {
            self.put(owner, owner.plain());
        }
    }
}

/// From the beginning of a cache line on, as owners side by side are used together.
#[repr(align(64))]
struct Owners([SlotOwner; CLUSTER_SLOTS]);

#[repr(C)]
pub(in crate::slots) struct Whole {
    known: Known,
    owners: Owners,
}

#[repr(C)]
pub(in crate::slots) struct Packed {
    known: Known,
    owners: Vec<SlotOwner>,
}

impl Packed {
    /// Bytes for this many slots.
    const fn bytes(slots: usize) -> usize {
        size_of::<Self>() + slots * size_of::<SlotOwner>()
    }
}

/// The table of a cluster.
pub(in crate::slots) enum Table {
    Whole(Box<Whole>),
    Packed(Box<Packed>),
    Sparse(Sparse),
}

/// Slots whose owners lie in a cache line or two.
const NEAR: usize = 16;

impl Table {
    /// Of a cluster of which no slot is used.
    pub fn new() -> Self {
        Self::Whole(Box::new(Whole {
            known: Known {
                used: Bitmap::EMPTY,
                bad: 0,
                gone: 0,
                cached: 0,
                stuck: 0,
            },
            owners: Owners([SlotOwner::NONE; CLUSTER_SLOTS]),
        }))
    }

    /// Whether slots can be allocated in it as it is.
    pub const fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }

    /// The memory it takes, beside the cell.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Whole(_) => size_of::<Whole>(),
            Self::Packed(table) => Packed::bytes(table.owners.capacity()),
            Self::Sparse(sparse) => sparse.bytes(),
        }
    }

    /// Bytes that packing would give back.
    pub fn spare(&self) -> usize {
        let slots = match self {
            Self::Whole(table) => table.known.used.count(),
            Self::Packed(table) => table.owners.len(),
            Self::Sparse(sparse) => sparse.len(),
        };
        let needed = if self.is_sparse(slots) {
            slots * Sparse::BYTES
        } else {
            Packed::bytes(slots)
        };
        self.bytes().saturating_sub(needed)
    }

    /// Whether so many slots, all that are used, take the least with their positions. A note of
    /// compaction has no place there.
    const fn is_sparse(&self, slots: usize) -> bool {
        self.stuck() == 0 && slots * Sparse::BYTES <= Packed::bytes(slots)
    }

    /// The common part of the larger forms.
    #[inline]
    const fn known(&self) -> Result<&Known, &Sparse> {
        match self {
            Self::Whole(table) => Ok(&table.known),
            Self::Packed(table) => Ok(&table.known),
            Self::Sparse(sparse) => Err(sparse),
        }
    }

    /// Which slots are used, those included that are bad or gone.
    #[inline]
    pub fn used(&self) -> Bitmap {
        self.known().map_or_else(Sparse::used, |known| known.used)
    }

    /// Slots out of service.
    pub fn bad(&self) -> u16 {
        let count = |sparse: &Sparse| sparse.count(SlotOwner::bad);
        self.known().map_or_else(count, |known| known.bad)
    }

    /// Slots given back that cannot be used again yet.
    #[inline]
    pub fn gone(&self) -> u16 {
        let count = |sparse: &Sparse| sparse.count(SlotOwner::gone);
        self.known().map_or_else(count, |known| known.gone)
    }

    /// Slots that are only copies.
    pub fn cached(&self) -> u16 {
        let count = |sparse: &Sparse| sparse.count(SlotOwner::cached);
        self.known().map_or_else(count, |known| known.cached)
    }

    /// How many slots were used when compaction left pages that it could not move; 0: it never did.
    pub const fn stuck(&self) -> u16 {
        match self.known() {
            Ok(known) => known.stuck,
            Err(_) => 0,
        }
    }

    /// Remembers that, in a table that is whole.
    pub fn set_stuck(&mut self, used: u16) {
        self.whole().known.stuck = used;
    }

    /// The owner of a slot; of a free one it is known in a whole table alone.
    #[inline]
    pub fn owner(&self, at: usize) -> SlotOwner {
        match self {
            Self::Whole(table) => table.owners.0[at],
            Self::Packed(table) if table.known.used.get(at) => {
                table.owners[table.known.used.rank(at)]
            }
            Self::Packed(_) => SlotOwner::NONE,
            Self::Sparse(sparse) => sparse.owner(at).unwrap_or(SlotOwner::NONE),
        }
    }

    /// The owner of a used slot; none of a free one.
    #[inline]
    pub fn used_owner(&self, at: usize) -> Option<SlotOwner> {
        match self.known() {
            Ok(known) => known.used.get(at).then(|| self.owner(at)),
            Err(sparse) => sparse.owner(at),
        }
    }

    /// The used slots, each with its owner.
    pub fn owners(&self) -> impl Iterator<Item = (usize, SlotOwner)> {
        let used = self.used();
        let (mut from, mut rank) = (0, 0);
        std::iter::from_fn(move || {
            let at = used.next(from, true)?;
            let owner = match self {
                Self::Whole(table) => table.owners.0[at],
                Self::Packed(table) => table.owners[rank],
                Self::Sparse(sparse) => sparse.nth(rank),
            };
            (from, rank) = (at + 1, rank + 1);
            Some((at, owner))
        })
    }

    /// The used slots whose owners are such.
    pub fn which(&self, such: impl Fn(SlotOwner) -> bool) -> Bitmap {
        let mut found = Bitmap::EMPTY;
        for (at, owner) in self.owners() {
            found.set(at, such(owner));
        }
        found
    }

    /// Whether these slots belong to `owner`, `owner + 1`, ... and none was given back.
    #[inline]
    pub fn all_owned(&self, start: usize, slots: usize, owner: EntryId) -> bool {
        let owners = match self {
            Self::Whole(table) if table.known.used.range_is_set(start, slots) => {
                &table.owners.0[start..start + slots]
            }
            Self::Packed(table) if table.known.used.range_is_set(start, slots) => {
                &table.owners[table.known.used.rank(start)..][..slots]
            }
            Self::Sparse(sparse) => return sparse.all_owned(start, slots, owner),
            _ => return false,
        };
        let own = |(i, &found): (usize, &SlotOwner)| found.owned_by(owner.plus(i as u32));
        // To the end in any case, so that several are compared at a time.
        let owners = owners.iter().enumerate();
        owners.fold(true, |all, owner| all & own(owner))
    }

    /// Changes the owner of a used slot.
    pub fn set(&mut self, at: usize, to: SlotOwner) {
        match self {
            Self::Whole(table) => table.known.put(&mut table.owners.0[at], to),
            Self::Packed(table) => {
                let rank = table.known.used.rank(at);
                table.known.put(&mut table.owners[rank], to);
            }
            Self::Sparse(sparse) => sparse.set(at, to),
        }
    }

    /// The table, which is whole.
    ///
    /// # Panics
    /// It is not.
    #[inline]
    fn whole(&mut self) -> &mut Whole {
        let Self::Whole(table) = self else {
            panic!("slots are allocated where each has an owner");
        };
        table
    }

    /// Marks free slots of a whole table as used; their owners are to be set.
    #[inline]
    pub fn take(&mut self, start: usize, slots: usize) -> &mut [SlotOwner] {
        let Whole { known, owners } = self.whole();
        debug_assert!(known.used.range_is_clear(start, slots));
        known.used.set_range(start, slots, true);
        &mut owners.0[start..start + slots]
    }

    /// Takes so the first free window, looking from `from` on and round: where it begins, and its owners.
    /// None too if the table is not whole.
    #[inline]
    pub fn take_window(
        &mut self,
        from: usize,
        order: u8,
        pages: usize,
    ) -> Option<(usize, &mut [SlotOwner])> {
        let Self::Whole(table) = self else {
            return None;
        };
        let Whole { known, owners } = &mut **table;
        let start = known.used.window(from, order, pages)?;
        known.used.set_range(start, pages, true);
        Some((start, &mut owners.0[start..start + pages]))
    }

    /// Makes used slots free, none of them bad. A whole table keeps their last owners.
    #[inline]
    pub fn release(&mut self, start: usize, slots: usize) {
        match self {
            Self::Whole(table) => {
                let Whole { known, owners } = &mut **table;
                if known.marked() {
                    known.unmark(&mut owners.0[start..start + slots]);
                }
                known.used.set_range(start, slots, false);
            }
            Self::Packed(table) => {
                let Packed { known, owners } = &mut **table;
                let first = known.used.rank(start);
                if known.marked() {
                    known.unmark(&mut owners[first..first + slots]);
                }
                owners.drain(first..first + slots);
                known.used.set_range(start, slots, false);
            }
            Self::Sparse(sparse) => sparse.release(start, slots),
        }
    }

    /// Whether none of these slots, all used, is out of service.
    ///
    /// Of a few slots the owners are read in any case. Their line comes with those above then, all at
    /// a time, and is near when the slots are allocated again, which must wait for it otherwise.
    #[inline]
    pub fn all_good(&self, start: usize, slots: usize) -> bool {
        if slots > NEAR {
            return self.bad() == 0;
        }
        let bad = |owners: &[SlotOwner]| owners.iter().any(|owner| owner.bad());
        match self {
            Self::Whole(table) => !bad(&table.owners.0[start..start + slots]),
            Self::Packed(table) => !bad(&table.owners[table.known.used.rank(start)..][..slots]),
            Self::Sparse(_) => (start..start + slots).all(|at| !self.owner(at).bad()),
        }
    }

    /// Makes room for an owner of every slot.
    pub fn spread(&mut self) {
        let mut owners = Owners([SlotOwner::NONE; CLUSTER_SLOTS]);
        for (at, owner) in self.owners() {
            owners.0[at] = owner;
        }
        let known = Known {
            used: self.used(),
            bad: self.bad(),
            gone: self.gone(),
            cached: self.cached(),
            stuck: self.stuck(),
        };
        *self = Self::Whole(Box::new(Whole { known, owners }));
    }

    /// Leaves room for the owners of used slots alone.
    pub fn pack(&mut self) {
        let count = self.used().count();
        if let Self::Sparse(sparse) = self {
            sparse.shrink();
        } else if self.is_sparse(count) {
            *self = Self::Sparse(Sparse::new(count, self.owners()));
        } else if let Self::Packed(table) = self {
            table.owners.shrink_to_fit();
        } else if let Self::Whole(table) = self {
            let known = table.known;
            let mut owners = Vec::with_capacity(count);
            owners.extend(self.owners().map(|(_, owner)| owner));
            *self = Self::Packed(Box::new(Packed { known, owners }));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owner(n: u32) -> SlotOwner {
        match n % 64 {
            0 => SlotOwner::BAD,
            1..8 => SlotOwner::owned(EntryId(n)).as_gone(),
            8..16 => SlotOwner::owned(EntryId(n)).as_cached(true),
            _ => SlotOwner::owned(EntryId(n)),
        }
    }

    proptest! {
        /// Steps: allocate a run, free a run, change an owner, pack.
        #[test]
        fn every_form_agrees_with_an_array(
            steps in proptest::collection::vec((0usize..512, 1usize..100, 0u8..6), 1..60),
        ) {
            let mut table = Table::new();
            let mut naive = [None; CLUSTER_SLOTS];
            for (n, (start, len, what)) in steps.into_iter().enumerate() {
                let len = len.min(CLUSTER_SLOTS - start);
                match what {
                    0 | 1 if table.used().range_is_clear(start, len) => {
                        if !table.is_whole() {
                            table.spread();
                        }
                        table.take(start, len).fill(SlotOwner::owned(EntryId(n as u32)));
                        for (at, naive) in naive.iter_mut().enumerate().skip(start).take(len) {
                            table.set(at, owner((n + at) as u32));
                            *naive = Some(table.owner(at));
                        }
                    }
                    2 | 3 if table.used().range_is_set(start, len) => {
                        let bad = naive[start..start + len].contains(&Some(SlotOwner::BAD));
                        prop_assert_eq!(table.all_good(start, len), table.bad() == 0 || len <= NEAR && !bad);
                        for at in start..start + len {
                            if table.owner(at).bad() {
                                table.set(at, SlotOwner::NONE);
                            }
                        }
                        table.release(start, len);
                        naive[start..start + len].fill(None);
                    }
                    4 => {
                        table.pack();
                        prop_assert!(!table.is_whole() && table.spare() == 0);
                    }
                    _ => {}
                }
                for (at, owner) in naive.iter().enumerate() {
                    prop_assert!(owner.is_none_or(|owner| table.owner(at) == owner));
                    prop_assert_eq!(table.used_owner(at), *owner);
                }
                let owners = naive.iter().enumerate().filter_map(|(at, w)| Some((at, (*w)?)));
                prop_assert!(table.owners().eq(owners.clone()));
                let count = |is: fn(SlotOwner) -> bool| owners.clone().filter(|(_, w)| is(*w)).count() as u16;
                prop_assert_eq!(table.bad(), count(SlotOwner::bad));
                prop_assert_eq!(table.gone(), count(SlotOwner::gone));
                prop_assert_eq!(table.cached(), count(SlotOwner::cached));
            }
        }
    }
}
