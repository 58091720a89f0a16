//! Loom models of the protocol: load, writeback, free and swapoff of one entry, in every order.
//! Places hold what stands for a page; using or freeing one that holds nothing, or another's, fails.

use super::{EntryWord, Location, SlotPlace, Space, Vacated, entry_word::Handle};
use crate::sync::{Arc, Mutex, lock};
use crate::{Cpu, DeviceId, EntryId, GroupId, SlotIndex};

const OBJECT: Handle = Handle::new(0, 0);
const OTHER: Handle = Handle::new(0, 1);
const SLOT: SlotPlace = SlotPlace {
    device: DeviceId(0),
    slot: SlotIndex(0),
    raw: false,
};

/// On another device.
const ELSEWHERE: SlotPlace = SlotPlace {
    device: DeviceId(1),
    slot: SlotIndex(5),
    raw: false,
};

/// Every order of at most three preemptions: more take hours, and find what three find.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// The content of each of the two pool objects and two slots: a checksum.
struct Rig {
    space: Space,
    live: Mutex<[Option<u64>; 4]>,
}

/// Of the page that is there at first.
const PAGE: u64 = 7;

impl Rig {
    fn new() -> (Arc<Self>, EntryId) {
        let (rig, [entry]) = Self::block();
        (rig, entry)
    }
    /// Entries that have their pages in one object.
    fn block<const N: usize>() -> (Arc<Self>, [EntryId; N]) {
        let rig = Self {
            space: Space::new(1),
            live: Mutex::new([None; 4]),
        };
        let entries = [(); N].map(|()| rig.reserve());
        rig.put(Location::Pool(OBJECT), PAGE);
        for entry in entries {
            rig.space
                .lock(entry)
                .set_pooled(EntryWord::pool(OBJECT, PAGE));
        }
        (Arc::new(rig), entries)
    }
    fn reserve(&self) -> EntryId {
        let mut out = [EntryId(0)];
        let reserved = self.space.reserve_each(Cpu(0), GroupId(0), &mut out);
        assert!(reserved.is_ok());
        out[0]
    }
    fn index(location: Location) -> Option<usize> {
        match location {
            Location::Pool(OBJECT) => Some(0),
            Location::Pool(_) => Some(2),
            Location::Slot(SLOT) => Some(1),
            Location::Slot(_) => Some(3),
            _ => None,
        }
    }
    /// Puts a page where none is; whether that was so.
    fn try_put(&self, location: Location, checksum: u64) -> bool {
        let place = &mut lock(&self.live)[Self::index(location).unwrap()];
        let free = place.is_none();
        place.get_or_insert(checksum);
        free
    }
    fn put(&self, location: Location, checksum: u64) {
        assert!(self.try_put(location, checksum), "{location:?} is taken");
    }
    fn read(&self, location: Location) -> Option<u64> {
        lock(&self.live)[Self::index(location)?]
    }
    fn drop_place(&self, location: Location) {
        if let Some(i) = Self::index(location) {
            let held = lock(&self.live)[i].take();
            assert!(held.is_some(), "{location:?} freed twice");
        }
    }
    fn drop_vacated(&self, vacated: Vacated) {
        if let Vacated::Place(location) = vacated {
            self.drop_place(location);
        }
    }
    /// Frees the entry.
    fn free(&self, entry: EntryId) {
        self.drop_vacated(self.space.lock(entry).release());
    }
    /// As `swap::writeback`: busy under the lock, written without, then the second step that they
    /// share.
    fn write_back(&self, entry: EntryId) {
        let Some(mut locked) = self.space.lock_if_used(entry) else {
            return;
        };
        let word = locked.word();
        if word.location() != Location::Pool(OBJECT) || word.busy() {
            return;
        }
        let busy = word.with_busy(true);
        locked.set(busy);
        drop(locked);
        self.put(Location::Slot(SLOT), PAGE);
        let to = word.moved_to(EntryWord::slot(SLOT, 0));
        match self.space.repoint(entry, busy, to) {
            Some((_, vacated)) => self.drop_vacated(vacated),
            None => self.drop_place(Location::Slot(SLOT)),
        }
    }
    /// As `swap::load`: pool bytes are read under the lock; a slot without it, and the word
    /// looked at again.
    fn load(&self, entry: EntryId) {
        loop {
            let Some(locked) = self.space.lock_if_used(entry) else {
                return;
            };
            let word = locked.word();
            match word.location() {
                object @ Location::Pool(_) => {
                    let read = self.read(object).expect("an object that is named");
                    assert!(word.checksum_matches(read));
                    return;
                }
                slot @ Location::Slot(_) => {
                    drop(locked);
                    let read = self.read(slot);
                    let Some(locked) = self.space.lock_if_used(entry) else {
                        return;
                    };
                    if locked.is_at(word.location()) {
                        // Another page there has another checksum, and is read again.
                        assert!(
                            read.is_some(),
                            "the slot of a named entry was gone when read"
                        );
                        return;
                    }
                }
                _ => return,
            }
        }
    }
    /// As `swap::relocate` when the device of the slot goes: read without the lock, made elsewhere,
    /// then the second step that they share, and what lost is given up.
    fn leave_slot(&self, entry: EntryId, to: EntryWord) {
        let Some(locked) = self.space.lock_if_used(entry) else {
            return;
        };
        let word = locked.word();
        if !locked.is_at(Location::Slot(SLOT)) {
            return;
        }
        drop(locked);
        // The place may belong to another entry by now: then it is not written on.
        let read = self.read(Location::Slot(SLOT));
        let Some(read) = read.filter(|&read| word.checksum_matches(read)) else {
            return;
        };
        self.put(to.location(), read);
        let Some(mut locked) = self.space.lock_still(entry, &[word]) else {
            return self.drop_place(to.location());
        };
        assert!(locked.word().checksum_matches(read), "another's page");
        locked.set(locked.word().moved_to(to));
        locked.keep_in_clock();
        drop(locked);
        self.drop_place(Location::Slot(SLOT));
    }
    /// Onto another device.
    fn swap_off(&self, entry: EntryId) {
        self.leave_slot(entry, EntryWord::slot(ELSEWHERE, 0));
    }
    /// Where none has room.
    fn swap_off_into_pool(&self, entry: EntryId) {
        self.leave_slot(entry, EntryWord::pool(OTHER, 0));
    }
    /// As `swap::recompress`: busy under the lock, a denser object made without.
    fn recompress(&self, entry: EntryId) {
        let Some(mut locked) = self.space.lock_if_used(entry) else {
            return;
        };
        let word = locked.word();
        if !locked.is_at(Location::Pool(OBJECT)) || word.cached() {
            return;
        }
        let busy = word.with_busy(true);
        locked.set(busy);
        drop(locked);
        self.put(Location::Pool(OTHER), 9);
        match self.space.repoint(entry, busy, EntryWord::pool(OTHER, 9)) {
            Some((_, vacated)) => self.drop_vacated(vacated),
            None => self.drop_place(Location::Pool(OTHER)),
        }
    }
    /// As `swap::compact`: moved under the lock, the old object freed after.
    fn compact(&self, entry: EntryId) {
        let Some(mut locked) = self.space.lock_if_used(entry) else {
            return;
        };
        if !locked.is_at(Location::Pool(OBJECT)) {
            return;
        }
        self.put(Location::Pool(OTHER), PAGE);
        locked.set(locked.word().moved_to(EntryWord::pool(OTHER, 0)));
        drop(locked);
        self.drop_place(Location::Pool(OBJECT));
    }
    /// As `swap::compact` does it with a block: all that name it move, or none.
    fn compact_block(&self, entries: &[EntryId]) {
        let Some(mut locked) = self.space.lock_if_used(entries[0]) else {
            return;
        };
        let mut here = Vec::new();
        for &entry in entries {
            locked.seek(entry);
            if locked.word().location() == Location::Pool(OBJECT) {
                here.push((entry, locked.word()));
            }
        }
        if here.is_empty() || here.iter().any(|(_, word)| word.busy()) {
            return;
        }
        self.put(Location::Pool(OTHER), PAGE);
        for &(entry, word) in &here {
            locked.seek(entry);
            locked.set(word.moved_to(EntryWord::pool(OTHER, 0)));
        }
        drop(locked);
        self.drop_place(Location::Pool(OBJECT));
    }
    /// As the slot allocator's reclaim of a cached entry.
    fn reclaim(&self, entry: EntryId) {
        let Some(mut locked) = self.space.lock_if_used(entry) else {
            return;
        };
        let word = locked.word();
        if word.cached() && !word.busy() && matches!(word.location(), Location::Slot(_)) {
            locked.set(word.dropped());
            drop(locked);
            self.drop_place(word.location());
        }
    }
    fn leaves_nothing(&self) {
        assert_eq!(*lock(&self.live), [None; 4], "a place was left behind");
        assert_eq!(self.space.used(), 0);
        self.space.check();
    }
}

#[test]
fn loom_load_against_writeback_against_free() {
    model(|| {
        let (rig, entry) = Rig::new();
        let threads = [Rig::write_back, Rig::load].map(|what| {
            let rig = rig.clone();
            loom::thread::spawn(move || what(&rig, entry))
        });
        rig.free(entry);
        threads.into_iter().for_each(|t| t.join().unwrap());
        rig.leaves_nothing();
    });
}

/// All four, each in a thread of its own.
#[test]
fn loom_load_against_writeback_against_free_against_swapoff() {
    for swap_off in [Rig::swap_off, Rig::swap_off_into_pool] {
        model(move || {
            let (rig, entry) = Rig::new();
            let threads = [Rig::write_back, Rig::load, swap_off].map(|what| {
                let rig = rig.clone();
                loom::thread::spawn(move || what(&rig, entry))
            });
            rig.free(entry);
            threads.into_iter().for_each(|t| t.join().unwrap());
            rig.leaves_nothing();
        });
    }
}

#[test]
fn loom_two_loads_against_writeback() {
    model(|| {
        let (rig, entry) = Rig::new();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let rig = rig.clone();
                loom::thread::spawn(move || rig.load(entry))
            })
            .collect();
        rig.write_back(entry);
        threads.into_iter().for_each(|t| t.join().unwrap());
        rig.free(entry);
        rig.leaves_nothing();
    });
}

#[test]
fn loom_swapoff_against_load_against_free() {
    for swap_off in [Rig::swap_off, Rig::swap_off_into_pool] {
        model(move || {
            let (rig, entry) = Rig::new();
            rig.write_back(entry);
            let drainer = {
                let rig = rig.clone();
                loom::thread::spawn(move || swap_off(&rig, entry))
            };
            let loader = {
                let rig = rig.clone();
                loom::thread::spawn(move || rig.load(entry))
            };
            rig.free(entry);
            drainer.join().unwrap();
            loader.join().unwrap();
            rig.leaves_nothing();
        });
    }
}

/// The slot is freed while it is read, and taken again for another page stored under the same entry:
/// place and entry are the same.
#[test]
fn loom_swapoff_against_another_store_in_the_same_entry_and_slot() {
    for swap_off in [Rig::swap_off, Rig::swap_off_into_pool] {
        model(move || {
            let (rig, entry) = Rig::new();
            rig.write_back(entry);
            let other = {
                let rig = rig.clone();
                loom::thread::spawn(move || {
                    rig.free(entry);
                    assert_eq!(rig.reserve(), entry);
                    // If it is free by now.
                    let word = match rig.try_put(Location::Slot(SLOT), 8) {
                        true => EntryWord::slot(SLOT, 8),
                        false => EntryWord::same(1),
                    };
                    rig.space.lock(entry).set(word);
                })
            };
            swap_off(&rig, entry);
            other.join().unwrap();
            rig.load(entry);
            rig.free(entry);
            rig.leaves_nothing();
        });
    }
}

#[test]
fn loom_swapoff_against_writeback_against_load() {
    model(|| {
        let (rig, entry) = Rig::new();
        let threads = [Rig::write_back, Rig::swap_off].map(|what| {
            let rig = rig.clone();
            loom::thread::spawn(move || what(&rig, entry))
        });
        rig.load(entry);
        threads.into_iter().for_each(|t| t.join().unwrap());
        let end = rig.space.lock(entry).word().location();
        assert!(matches!(end, Location::Slot(_)), "{end:?}");
        rig.free(entry);
        rig.leaves_nothing();
    });
}

/// Neither waits for the other to end. The page may leave its slot for another before its old place in
/// the pool is given up, and be freed at any point of both.
#[test]
fn loom_swapoff_against_writeback_against_free() {
    for swap_off in [Rig::swap_off, Rig::swap_off_into_pool] {
        model(move || {
            let (rig, entry) = Rig::new();
            let threads = [Rig::write_back, swap_off].map(|what| {
                let rig = rig.clone();
                loom::thread::spawn(move || what(&rig, entry))
            });
            rig.free(entry);
            threads.into_iter().for_each(|t| t.join().unwrap());
            rig.leaves_nothing();
        });
    }
}

#[test]
fn loom_recompression_against_load_against_free() {
    model(|| {
        let (rig, entry) = Rig::new();
        let other = rig.clone();
        let recompressor = loom::thread::spawn(move || other.recompress(entry));
        let other = rig.clone();
        let loader = loom::thread::spawn(move || other.load(entry));
        rig.load(entry);
        loader.join().unwrap();
        rig.free(entry);
        recompressor.join().unwrap();
        rig.leaves_nothing();
    });
}

/// A block goes with the last of the entries that name it, whoever that is, and not before.
#[test]
fn loom_a_block_goes_with_the_last_that_names_it() {
    model(|| {
        let (rig, [first, second]) = Rig::block();
        let other = rig.clone();
        let freer = loom::thread::spawn(move || {
            other.load(second);
            other.free(second);
        });
        let other = rig.clone();
        let mover = loom::thread::spawn(move || other.compact_block(&[first, second]));
        rig.write_back(first);
        rig.load(first);
        freer.join().unwrap();
        mover.join().unwrap();
        rig.free(first);
        rig.leaves_nothing();
    });
}

/// The fate of a page is decided once: the second thread leaves it, and neither leaves it busy.
#[test]
fn loom_compaction_against_writeback_and_recompression() {
    for second in [Rig::write_back, Rig::recompress] {
        model(move || {
            let (rig, entry) = Rig::new();
            let other = rig.clone();
            let mover = loom::thread::spawn(move || second(&other, entry));
            rig.compact(entry);
            rig.load(entry);
            mover.join().unwrap();
            assert!(!rig.space.lock(entry).word().busy(), "left busy");
            rig.free(entry);
            rig.leaves_nothing();
        });
    }
}

#[test]
fn loom_reclaim_of_a_cached_slot_against_free() {
    model(|| {
        let (rig, entry) = Rig::new();
        rig.write_back(entry);
        let mut locked = rig.space.lock(entry);
        let word = locked.word();
        locked.set(word.with_cached(true));
        drop(locked);
        let reclaimer = {
            let rig = rig.clone();
            loom::thread::spawn(move || rig.reclaim(entry))
        };
        rig.load(entry);
        rig.free(entry);
        reclaimer.join().unwrap();
        rig.leaves_nothing();
    });
}

/// `Swap::expect`, and the begin of a load of many, name slots to a device: each was the entry's at that
/// moment, whatever happens meanwhile.
#[test]
fn loom_lookup_of_a_range_against_writeback_and_free() {
    model(|| {
        let (rig, entry) = Rig::new();
        let other = {
            let rig = rig.clone();
            loom::thread::spawn(move || {
                rig.write_back(entry);
                rig.free(entry);
            })
        };
        let mut words = [EntryWord::RESERVED; 2];
        rig.space.words(&[entry, entry.plus(1)], &mut words);
        assert!(matches!(
            words[0].location(),
            Location::Pool(OBJECT) | Location::Slot(SLOT) | Location::Free
        ));
        assert_eq!(words[1], EntryWord::FREE);
        other.join().unwrap();
        rig.space.words(&[entry, entry.plus(1)], &mut words);
        assert_eq!(words, [EntryWord::FREE; 2]);
        rig.leaves_nothing();
    });
}

#[test]
fn loom_store_against_free_of_neighbours() {
    model(|| {
        let (rig, entry) = Rig::new();
        let other = {
            let rig = rig.clone();
            loom::thread::spawn(move || {
                let own = rig.reserve();
                assert_ne!(own, entry);
                rig.space.lock(own).set(EntryWord::same(3));
                rig.space.lock(own).release();
            })
        };
        rig.write_back(entry);
        rig.load(entry);
        other.join().unwrap();
        rig.free(entry);
        rig.leaves_nothing();
    });
}

#[test]
fn loom_writeback_against_free_and_another_store_in_the_same_entry() {
    model(|| {
        let (rig, entry) = Rig::new();
        let other = {
            let rig = rig.clone();
            loom::thread::spawn(move || {
                rig.free(entry);
                assert_eq!(rig.reserve(), entry);
                rig.put(Location::Pool(OTHER), 8);
                rig.space.lock(entry).set_pooled(EntryWord::pool(OTHER, 8));
            })
        };
        // Work begun for the first page must not repoint the second.
        rig.write_back(entry);
        other.join().unwrap();
        assert_eq!(
            rig.space.lock(entry).word().location(),
            Location::Pool(OTHER)
        );
        rig.free(entry);
        rig.leaves_nothing();
    });
}

/// All entries of a store are charged to one group, however another thread ends it.
#[test]
fn loom_a_group_ends_beside_a_store() {
    model(|| {
        let space = Arc::new(Space::new(1));
        let other = {
            let space = space.clone();
            loom::thread::spawn(move || space.remove_group(GroupId(0)))
        };
        let held = [(); 2].map(|()| {
            let mut out = [EntryId(0)];
            let group = space.reserve_each(Cpu(0), GroupId(0), &mut out).unwrap();
            group.charge(32);
            (out[0], group)
        });
        other.join().unwrap();
        for (entry, group) in held {
            let locked = space.lock(entry);
            let owner = locked.cluster().group().clone();
            assert_eq!(owner.number, group.number);
            let groups = space.groups();
            assert!(groups.iter().any(|known| known.number == owner.number));
            locked.release();
            owner.uncharge(32);
            assert!(owner.pool_bytes() <= 32);
        }
        assert_eq!(space.used(), 0);
        space.check();
    });
}
