//! Clusters lent, inherited and frozen.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn clusters_are_borrowed_when_needed_and_given_back_when_empty() {
    let (devices, lender) = lent(16);
    let mut out = ExtentList::new();
    for i in 0..16 * 512 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    assert_eq!(
        devices.allocate(A, 1, EntryId(0), &mut out),
        Err(AllocError::Full)
    );
    assert_eq!(lender.free_clusters(), 0);
    devices.check();
    for extent in out.iter() {
        devices.give(A, *extent).unwrap();
    }
    while devices.work(A, 4) > 0 {
        devices.check();
    }
    assert_eq!(lender.free_clusters(), 16 - 2);
    let idle = devices.bookkeeping_bytes();
    assert!(idle < 64 * 1024, "{idle}");
}

#[test]
fn a_fork_freezes_what_the_child_may_read() {
    let (devices, lender) = lent(8);
    let id = DeviceId(0);
    let mut out = ExtentList::new();
    for i in 0..700 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    devices.give(A, run(5, 1)).unwrap();
    lender.read.lock().unwrap().extend([0, 1]);
    devices.fork_parent();
    devices.check();
    // Slots free at the fork, or freed since, are not used while the child may read.
    devices
        .give(
            B,
            Extent {
                device: id,
                start: SlotIndex(6),
                len: 1,
            },
        )
        .unwrap();
    devices
        .give(
            B,
            Extent {
                device: id,
                start: SlotIndex(512),
                len: 188,
            },
        )
        .unwrap();
    devices.check();
    while devices.work(A, 8) > 0 {}
    out.clear();
    for i in 0..600 {
        devices.allocate(A, 1, EntryId(1000 + i), &mut out).unwrap();
    }
    assert!(out.iter().all(|e| e.start.cluster().0 >= 2), "{out:?}");
    let twice = devices.free(A, EntryId(6), single(id, 6));
    assert_eq!(
        twice,
        Err(FreeError::DoubleFree {
            device: id,
            slot: SlotIndex(6),
            owner: EntryId(6),
            now: None
        })
    );
    assert_eq!(devices.owner(id, SlotIndex(6)), None);
    assert_eq!(devices.owner(id, SlotIndex(7)), Some(EntryId(7)));
    devices.check();
    lender.read.lock().unwrap().clear();
    assert!(devices.work(A, 8) > 0);
    devices.check();
    assert_eq!(devices.usage()[0].used, 700 - 190 + 600);
}

/// Nobody reads any more, all slots are freed, and nothing is kept in hand.
fn free_all(devices: &Devices, lender: &Lent, slots: impl Iterator<Item = u32>) {
    lender.read.lock().unwrap().clear();
    for slot in slots {
        devices.give(A, run(slot, 1)).unwrap();
    }
    while devices.work(A, 4) > 0 {}
    devices.let_cursors_go(|_| true);
    while devices.work(A, 4) > 0 {}
    devices.check();
}

/// Slots of the first device.
fn run(start: u32, len: u16) -> Extent {
    Extent {
        device: DeviceId(0),
        start: SlotIndex(start),
        len,
    }
}

#[test]
fn a_child_only_reads_and_frees_what_it_inherits() {
    let (devices, lender) = lent(8);
    let id = DeviceId(0);
    let mut out = ExtentList::new();
    for i in 0..600 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    devices.allocate(A, 512, EntryId(1000), &mut out).unwrap();
    devices.give(A, run(1024, 512)).unwrap();
    devices.bad_slot(A, id, SlotIndex(513)).unwrap();
    devices.give(A, run(512, 1)).unwrap();
    assert_eq!(devices.usage()[0].bad, 1);
    devices.fork_child();
    devices.check();
    assert_eq!(devices.usage()[0].bad, 0, "it is the parent's");
    assert_eq!(
        *lender.stopped.lock().unwrap(),
        [2],
        "the empty cluster is not read"
    );
    assert_eq!(devices.owner(id, SlotIndex(599)), Some(EntryId(599)));
    assert_eq!(devices.owner(id, SlotIndex(513)), None);
    out.clear();
    devices.allocate(A, 1, EntryId(5000), &mut out).unwrap();
    assert_eq!(out[0].start.cluster(), ClusterIndex(3));
    devices.give(A, run(514, 86)).unwrap();
    assert_eq!(*lender.stopped.lock().unwrap(), [2, 1]);
    devices.check();
    // A grandchild inherits both what its parent inherited and what its parent took.
    devices.fork_child();
    devices.check();
    for slot in (0..512).chain([out[0].start.0]) {
        devices.give(A, run(slot, 1)).unwrap();
    }
    while devices.work(A, 8) > 0 {}
    devices.check();
    assert_eq!(*lender.stopped.lock().unwrap(), [2, 1, 0, 3]);
    assert_eq!(devices.usage()[0].used, 0);
}

/// A parent ends, and its child, which has a page in each of its clusters, finds room there. Its pages stay.
#[test]
fn a_child_goes_on_in_the_clusters_of_a_parent_that_ended() {
    let (devices, lender) = lent(4);
    let mut out = ExtentList::new();
    for i in 0..4 * 512 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    devices.fork_child();
    for slot in (0..4 * 512).filter(|slot| slot % 512 >= 100) {
        devices.give(A, run(slot, 1)).unwrap();
    }
    while devices.work(A, 8) > 0 {}
    out.clear();
    let full = devices.allocate(A, 1, EntryId(9000), &mut out);
    assert_eq!(full, Err(AllocError::Full), "the parent lives");
    lender.left.lock().unwrap().extend([0, 1, 3]);
    while devices.work(A, 8) > 0 {}
    devices.check();
    for i in 0..3 * 412 {
        devices
            .allocate(A, 1, EntryId(10_000 + i), &mut out)
            .unwrap();
    }
    let full = devices.allocate(A, 1, EntryId(9000), &mut out);
    assert_eq!(full, Err(AllocError::Full), "one is the parent's yet");
    for slot in (0..4 * 512).filter(|slot| slot % 512 < 100) {
        let owner = devices.owner(DeviceId(0), SlotIndex(slot));
        assert_eq!(owner, Some(EntryId(slot)));
    }
    devices.check();
    // Emptied, they go back to the lender as any other.
    for extent in out.iter() {
        devices.give(A, *extent).unwrap();
    }
    let adopted = (0..2 * 512).chain(3 * 512..4 * 512);
    for slot in adopted.filter(|slot| slot % 512 < 100) {
        devices.give(A, run(slot, 1)).unwrap();
    }
    lender.wanted.store(true, Relaxed);
    while devices.work(A, 8) > 0 {}
    devices.check();
    let free: BTreeSet<u32> = lender.free.lock().unwrap().iter().copied().collect();
    assert_eq!(free, [0, 1, 3].into());
    assert!(
        lender.stopped.lock().unwrap().is_empty(),
        "it reads none of them"
    );
}

/// A mover of entries that stay where they are.
struct Moves;

impl Mover for Moves {
    fn relocate(&self, _: Cpu, _: EntryId, _: Extent, _: Option<Extent>) -> Moved {
        Moved::Yes
    }
}

/// A process that stores nothing any more has some slots in a cluster for each processor and order, in hand. Another
/// process looks for a cluster in vain: they are emptied into one.
#[test]
fn clusters_in_hand_are_given_to_who_has_none() {
    let (devices, lender) = lent(4);
    devices.set_mover(Arc::new(Moves));
    let mut out = ExtentList::new();
    for (i, (cpu, pages)) in [(A, 1), (A, 4), (B, 1), (B, 16)].into_iter().enumerate() {
        let owner = EntryId(512 * i as u32);
        devices.allocate(cpu, pages, owner, &mut out).unwrap();
    }
    assert_eq!(lender.free_clusters(), 0);
    while devices.work(A, 4) > 0 {}
    assert_eq!(lender.free_clusters(), 0, "nobody wants one");
    for step in 0..20 {
        lender.wanted.store(true, Relaxed);
        devices.work(A, 4);
        devices.check();
        if lender.free_clusters() == 3 {
            return println!("after {step} steps");
        }
    }
    panic!("{} clusters came back", lender.free_clusters());
}

/// More than half of a device in use at a fork leaves the rest of it, to parent and child.
#[test]
fn what_a_fork_froze_takes_none_of_the_room_that_is_left() {
    for child in [false, true] {
        let (devices, lender) = lent(8);
        let mut out = ExtentList::new();
        for i in 0..5 {
            let owner = EntryId(i * 512);
            devices.allocate(A, 512, owner, &mut out).unwrap();
        }
        let free = || devices.free_slots(&devices.device(DeviceId(0)).unwrap());
        assert_eq!(free(), 3 * 512);
        if child {
            devices.fork_child();
        } else {
            lender.read.lock().unwrap().extend(0..5);
            devices.fork_parent();
        }
        devices.check();
        assert!(devices.has_room(), "three clusters are free");
        assert_eq!(free(), 3 * 512);
        // By all ways back: through the cache, past it, and the last of a cluster.
        devices.give(B, run(7, 1)).unwrap();
        devices.give_now(A, run(8, 100)).unwrap();
        devices.give(A, run(1024, 512)).unwrap();
        devices.check();
        assert_eq!(free(), 3 * 512, "they are not ours to use");
        devices.allocate(A, 512, EntryId(9000), &mut out).unwrap();
        assert_eq!(free(), 2 * 512);
        lender.read.lock().unwrap().clear();
        while devices.work(A, 8) > 0 {}
        devices.check();
        // Only what the parent froze comes back to it: 101 slots of one cluster, and all of another.
        let thawed = if child { 0 } else { 101 + 512 };
        assert_eq!(free(), 2 * 512 + thawed);
        assert_eq!(devices.usage()[0].used, 5 * 512 - 101);
    }
}

/// Thousands of clusters may be frozen while a device is full, and each allocation that fails looks for more room.
#[test]
fn readers_are_asked_for_once_until_one_ceases() {
    let (devices, lender) = lent(64);
    let mut out = ExtentList::new();
    for i in 0..64 {
        let owner = EntryId(i * 512);
        devices.allocate(A, 512, owner, &mut out).unwrap();
    }
    lender.read.lock().unwrap().extend(0..64);
    devices.fork_parent();
    devices.give(A, run(0, 512)).unwrap();
    let asks = |finds: bool| {
        let before = lender.asked.load(Relaxed);
        let got = devices.allocate(A, 1, EntryId(40_000), &mut ExtentList::new());
        assert_eq!(got.is_ok(), finds);
        devices.check();
        lender.asked.load(Relaxed) - before
    };
    assert!(asks(false) >= 64);
    assert_eq!((0..10).map(|_| asks(false)).sum::<u32>(), 0);
    devices.work(A, 8);
    assert_eq!(asks(false), 0);
    // Of a cluster that is full all the same.
    lender.read.lock().unwrap().remove(&5);
    assert!(asks(false) >= 63);
    assert_eq!(asks(false), 0);
    lender.read.lock().unwrap().remove(&0);
    asks(true);
}

/// The same with slots out of service.
#[test]
fn what_a_fork_froze_is_counted_apart_with_what_is_out_of_service() {
    let (devices, lender) = lent(3);
    let id = DeviceId(0);
    let mut out = ExtentList::new();
    for i in 0..2 * 512 + 400 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    devices.bad_slot(A, id, SlotIndex(5)).unwrap();
    lender.read.lock().unwrap().extend(0..3);
    devices.fork_parent();
    devices.check();
    devices.give(A, run(1030, 1)).unwrap();
    // Given back, and then its write fails.
    devices.bad_slot(A, id, SlotIndex(1030)).unwrap();
    devices.check();
    assert!(!devices.has_room());
    devices.fork_child();
    devices.check();
    assert_eq!(devices.usage()[0].bad, 0, "they are the parent's");
    assert_eq!(devices.usage()[0].used, 2 * 512 + 400 - 2);
}

#[derive(Clone, Debug)]
enum ForkOp {
    Allocate {
        pages: u16,
    },
    Free {
        nth: usize,
        len: u16,
        now: bool,
    },
    Work,
    /// This process goes on as the parent.
    Fork,
    /// The child of the last fork ends.
    ChildEnds,
    /// This process goes on as the child.
    BecomeChild,
}

fn fork_op() -> impl Strategy<Value = ForkOp> {
    let pages = prop_oneof![Just(1u16), (0u32..=9).prop_map(|o| 1 << o)];
    prop_oneof![
        10 => pages.prop_map(|pages| ForkOp::Allocate { pages }),
        10 => (any::<usize>(), 1u16..=300, any::<bool>())
            .prop_map(|(nth, len, now)| ForkOp::Free { nth, len, now }),
        2 => Just(ForkOp::Work),
        2 => Just(ForkOp::Fork),
        2 => Just(ForkOp::ChildEnds),
        1 => Just(ForkOp::BecomeChild),
    ]
}

proptest! {
    #[test]
    fn forked_processes_keep_out_of_each_others_way(
        ops in proptest::collection::vec(fork_op(), 1..200)
    ) {
        let (devices, lender) = lent(12);
        let id = DeviceId(0);
        let mut owner: BTreeMap<u32, u32> = BTreeMap::new();
        let mut childs: BTreeSet<u32> = BTreeSet::new();
        let mut foreign: BTreeSet<u32> = BTreeSet::new();
        let mut next = 0;
        for op in ops {
            match op {
                ForkOp::Allocate { pages } => {
                    let (first, mut out) = (next, ExtentList::new());
                    if devices.allocate(A, pages, EntryId(next), &mut out).is_ok() {
                        next += u32::from(pages);
                    } else if pages == 1 {
                        let free = devices.free_slots(&devices.device(id).unwrap());
                        prop_assert_eq!(free, 0, "full, it was said");
                    }
                    let slots = out.iter().flat_map(|e| e.start.0..e.start.0 + u32::from(e.len));
                    for (entry, slot) in (first..).zip(slots) {
                        prop_assert_eq!(owner.insert(slot, entry), None);
                        prop_assert!(!childs.contains(&slot), "the child may still read slot {}", slot);
                        let c = slot / CLUSTER_SLOTS as u32;
                        prop_assert!(!foreign.contains(&c), "cluster {} is not ours", c);
                    }
                }
                ForkOp::Free { nth, len, now } => {
                    let Some(nth) = nth.checked_rem(owner.len()) else { continue };
                    let slot = *owner.keys().nth(nth).unwrap();
                    let end = (slot / 512 + 1) * 512;
                    let run = (slot..end.min(slot + u32::from(len))).take_while(|s| owner.remove(s).is_some());
                    let extent = Extent { device: id, start: SlotIndex(slot), len: run.count() as u16 };
                    if now { devices.give_now(B, extent).unwrap() } else { devices.give(B, extent).unwrap() }
                }
                ForkOp::Work => {
                    devices.work(A, 4);
                }
                ForkOp::Fork if childs.is_empty() => {
                    childs = owner.keys().copied().collect();
                    lender.read.lock().unwrap().extend(0..12);
                    devices.fork_parent();
                }
                ForkOp::Fork => {}
                ForkOp::ChildEnds => {
                    childs.clear();
                    lender.read.lock().unwrap().clear();
                }
                ForkOp::BecomeChild => {
                    devices.fork_child();
                    childs.clear();
                    lender.read.lock().unwrap().clear();
                    let free = lender.free.lock().unwrap();
                    foreign = (0..12).filter(|c| !free.contains(c)).collect();
                }
            }
            devices.check();
            for (&slot, &entry) in &owner {
                prop_assert_eq!(devices.owner(id, SlotIndex(slot)), Some(EntryId(entry)));
            }
        }
        free_all(&devices, &lender, owner.keys().copied());
        // Every cluster is with the lender, in the reserve, or was said to be read no more,
        // and those of the parent exactly once.
        let stopped = lender.stopped.lock().unwrap();
        let once: BTreeSet<u32> = stopped.iter().copied().filter(|c| foreign.contains(c)).collect();
        prop_assert!(foreign.iter().all(|c| once.contains(c)), "{:?} of {:?}", once, foreign);
        prop_assert!(lender.free_clusters() as usize + foreign.len() + 3 >= 12);
        prop_assert_eq!(devices.usage()[0].used, 0);
    }
}

/// A sum of the errors of all processes counts each once. A device that errors took out of service stays out.
#[test]
fn a_child_reports_its_own_errors_alone() {
    let (devices, _lender) = lent(8);
    let mut out = ExtentList::new();
    for i in 0..64 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    let fails = |slots: std::ops::Range<u32>| {
        for slot in slots.map(SlotIndex) {
            devices.bad_slot(A, DeviceId(0), slot).unwrap();
        }
        let usage = devices.usage()[0];
        (usage.errors, usage.out)
    };
    assert_eq!(fails(0..DEVICE_ERROR_LIMIT - 1), (15, false));
    devices.fork_child();
    let usage = devices.usage()[0];
    assert_eq!((usage.errors, usage.out), (0, false));
    // One more, in a cluster of its own.
    out.clear();
    devices.allocate(A, 1, EntryId(100), &mut out).unwrap();
    let next = out[0].start.0;
    assert_eq!(fails(next..next + 1), (1, true), "the others count");
    devices.fork_child();
    let usage = devices.usage()[0];
    assert_eq!((usage.errors, usage.out, usage.accepting), (0, true, false));
    devices.check();
}
