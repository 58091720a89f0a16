//! Slots that only hold a copy: when, and how many at a time, they are given up, and what is looked at
//! again after locks were dropped to ask their owners.

use super::model::{Op, Run};
use super::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A device of one's own, and one that is borrowed cluster by cluster, as in every process of a tree.
fn own_and_lent() -> [Run; 2] {
    [false, true].map(|lent| Run::beginning(Options::default(), lent))
}

#[test]
fn copies_stay_while_less_than_half_of_the_device_is_used() {
    for mut run in own_and_lent() {
        for _ in 0..1000 {
            run.allocate(A, 1);
        }
        run.step(Op::Cache { nth: 0, count: 512 });
        // There are whole clusters: nobody is asked for a copy.
        run.allocate(B, 16);
        while run.devices.work(A, 8) > 0 {}
        run.check();
        assert_eq!(run.entries.naive.lock().unwrap().cached.len(), 512);
    }
}

#[test]
fn copies_make_way_for_a_folio_only_when_over_half_of_the_device_is_used() {
    let both = [false, true].into_iter();
    for (over_half, mut run) in both.flat_map(|over| own_and_lent().map(|run| (over, run))) {
        // Every cluster is in use, and lent, if it is.
        for _ in 0..128 {
            run.allocate(A, 16);
        }
        // The pages of each folio that stay, all of them copies: no other folio finds a place beside
        // them.
        let kept = if over_half { 11 } else { 1 };
        for slot in (0..2048).filter(|slot| slot % 16 >= kept) {
            run.free(A, 0, slot, 1, true);
        }
        run.step(Op::Cache {
            nth: 0,
            count: 2048,
        });
        let cached = |run: &Run| run.entries.naive.lock().unwrap().cached.len() as u32;
        assert_eq!(cached(&run), 128 * kept);
        run.allocate(B, 16);
        run.check();
        assert_eq!(cached(&run) < 128 * kept, over_half);
    }
}

/// A full cluster of copies, where no other has a place for a folio as a whole.
#[test]
fn full_clusters_keep_their_copies_while_less_than_half_of_the_device_is_used() {
    for (kept, left) in [(1, 512), (200, 0)] {
        let mut run = Run::new(Options::default());
        for _ in 0..2048 {
            run.allocate(A, 1);
        }
        for slot in (512..2048).filter(|slot| slot % 512 >= kept) {
            run.free(A, 0, slot, 1, true);
        }
        run.step(Op::Cache { nth: 0, count: 512 });
        run.allocate(B, 512);
        assert_eq!(run.out.len() == 1, left == 0, "{:?}", run.out);
        run.check();
        let cached = run.entries.naive.lock().unwrap().cached.len();
        assert_eq!(cached, left, "{kept} slots of each other cluster are used");
    }
}

#[test]
fn an_allocation_reclaims_one_full_cluster_and_the_worker_as_many_as_it_may() {
    let mut run = Run::new(Options::default());
    for _ in 0..2048 {
        run.allocate(A, 1);
    }
    // Some in each of the four full clusters.
    for cluster in 0..4 {
        run.step(Op::Cache {
            nth: cluster * 512,
            count: 10,
        });
    }
    let cached = |run: &Run| run.entries.naive.lock().unwrap().cached.len();
    run.allocate(A, 1);
    assert_eq!(cached(&run), 30, "those of one cluster");
    run.check();
    // The other processor's allocations use up what that gave.
    while cached(&run) == 30 && run.entries.naive.lock().unwrap().owner.len() < 2048 {
        run.allocate(A, 1);
    }
    run.devices.work(B, 2);
    assert_eq!(cached(&run), 10, "those of two clusters");
    run.devices.work(B, 8);
    assert_eq!(cached(&run), 0);
    run.check();
}

/// An owner that does something to the allocator before it gives its slot up: what another thread
/// may do while no lock is held.
struct Meddler {
    devices: OnceLock<std::sync::Weak<Devices>>,
    first: DeviceId,
    asked: AtomicUsize,
    deed: Deed,
    taken: Mutex<Vec<Extent>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    /// The device goes out of service.
    Retire,
    /// Somebody else takes what was given up so far, and all else that is free.
    TakeAll,
    /// The neighbour is freed twice: once by its owner, once by mistake.
    FreeTwice,
}

impl CacheReclaim for Meddler {
    fn reclaim(&self, owner: EntryId) -> bool {
        let devices = self.devices.get().unwrap().upgrade().unwrap();
        let slot = |n: u32| Extent {
            device: self.first,
            start: SlotIndex(n),
            len: 1,
        };
        devices.give_now(B, slot(owner.0)).unwrap();
        if self.asked.fetch_add(1, Ordering::Relaxed) != 15 {
            return true;
        }
        match self.deed {
            Deed::Retire => devices.retire(self.first),
            Deed::TakeAll => {
                let mut out = ExtentList::new();
                while devices.allocate(B, 1, EntryId(5000), &mut out).is_ok() {}
                self.taken.lock().unwrap().extend(out.iter());
            }
            Deed::FreeTwice => {
                devices.give_now(B, slot(100)).unwrap();
                let twice = devices.give_now(B, slot(100));
                assert!(matches!(twice, Err(FreeError::DoubleFree { .. })));
            }
        }
        true
    }
}

#[test]
fn a_change_while_owners_are_asked_is_seen() {
    for deed in [Deed::Retire, Deed::TakeAll, Deed::FreeTwice] {
        let devices = Arc::new(Devices::new(Arc::new(Cpus(2)), Options::default()));
        let first = devices
            .add(blank(512), DeviceSpec::default(), None)
            .unwrap();
        let meddler = Arc::new(Meddler {
            devices: OnceLock::new(),
            first,
            asked: AtomicUsize::new(0),
            deed,
            taken: Mutex::default(),
        });
        meddler.devices.set(Arc::downgrade(&devices)).unwrap();
        devices.set_cache_reclaim(meddler.clone());
        // Entry n in slot n; the last one is free.
        let mut out = ExtentList::new();
        for i in 0..32 {
            let pages = if i == 31 { 15 } else { 16 };
            let owner = EntryId(i * 16);
            devices.allocate(A, pages, owner, &mut out).unwrap();
        }
        for slot in 32..48 {
            devices
                .set_cache_only(first, SlotIndex(slot), true)
                .unwrap();
        }
        out.clear();
        let got = devices.allocate(A, 16, EntryId(1000), &mut out);
        assert_eq!(meddler.asked.load(Ordering::Relaxed), 16, "{deed:?}");
        devices.check();
        match deed {
            Deed::Retire => {
                assert_eq!(got, Err(AllocError::Full), "the device accepts nothing");
                assert_eq!(devices.usage()[0].used, 511 - 16);
            }
            Deed::TakeAll => {
                assert_eq!(got, Err(AllocError::Full), "there was room, and is no more");
                let taken = meddler.taken.lock().unwrap();
                assert_eq!(taken.iter().map(|e| e.len).sum::<u16>(), 17);
                for e in taken.iter() {
                    assert_eq!(devices.owner(first, e.start), Some(EntryId(5000)));
                }
            }
            Deed::FreeTwice => {
                assert_eq!(got, Ok(()));
                assert_eq!(out[0].start, SlotIndex(32));
                assert_eq!(devices.owner(first, SlotIndex(47)), Some(EntryId(1015)));
                assert_eq!(devices.usage()[0].used, 511 - 16 - 1 + 16);
            }
        }
    }
}
