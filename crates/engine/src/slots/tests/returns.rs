//! The return caches: bounded whether or not a worker ever comes, and never in anybody's way.

use super::super::per_cpu::{RETURNS, RETURNS_LEFT};
use super::*;

/// A device of full clusters, so that every single free has to wait.
fn full(clusters: u32) -> (Devices, DeviceId) {
    let (devices, id) = one(u64::from(clusters) * 512, Options::default());
    let mut out = ExtentList::new();
    for i in 0..clusters * 512 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    (devices, id)
}

fn waiting(devices: &Devices, cpu: Cpu) -> usize {
    lock(&devices.cpu(cpu).state).returns.len()
}

/// One slot of each cluster: each would move its cluster.
#[test]
fn a_free_that_finds_the_cache_full_frees_the_batch_itself() {
    let clusters = RETURNS as u32 * 3;
    let (devices, id) = full(clusters);
    for c in 0..clusters {
        devices.give(B, single(id, c * 512 + 9)).unwrap();
        let left = (c as usize) % RETURNS + 1;
        assert_eq!(waiting(&devices, B), left, "after {} frees", c + 1);
        devices.check();
    }
    assert!(devices.wants_work(), "a worker was asked to come");
    // None ever came, and the counts are right all the same.
    assert_eq!(devices.usage()[0].used, clusters * 511);
}

#[test]
fn larger_runs_pass_the_cache_by() {
    let (devices, id) = full(8);
    for c in 0..8 {
        let run = Extent {
            len: 2,
            ..single(id, c * 512 + 100)
        };
        devices.give(A, run).unwrap();
    }
    assert_eq!(waiting(&devices, A), 0);
    assert_eq!(devices.work(A, 1), 0, "nothing was left for later");
}

#[test]
fn without_a_worker_everything_freed_is_found_again() {
    let clusters = 64;
    let (devices, id) = full(clusters);
    let mut out = ExtentList::new();
    let mut next = clusters * 512;
    for round in 1..=8u32 {
        // Odd numbers of slots from every cluster, through both processors.
        let mut freed = 0;
        for c in 0..clusters {
            for k in 0..(c * round) % 7 {
                let slot = c * 512 + (k * 67 + round * 13) % 512;
                if devices.owner(id, SlotIndex(slot)).is_some() {
                    let cpu = if k % 2 == 0 { A } else { B };
                    devices.give(cpu, single(id, slot)).unwrap();
                    freed += 1;
                }
            }
        }
        devices.check();
        for i in 0..freed {
            let cpu = if i % 3 == 0 { A } else { B };
            out.clear();
            devices.allocate(cpu, 1, EntryId(next), &mut out).unwrap();
            next += 1;
        }
        let more = devices.allocate(A, 1, EntryId(next), &mut out);
        assert_eq!(more, Err(AllocError::Full), "round {round}");
        devices.check();
    }
}

/// Slots in one processor's cache, in a full cluster, are another's place for a folio before that is
/// scattered.
#[test]
fn a_waiting_cluster_is_a_place_for_a_folio() {
    let (devices, id) = full(4);
    for slot in 528..544 {
        devices.give(B, single(id, slot)).unwrap();
    }
    assert_eq!(waiting(&devices, B), 16);
    // Room without a place, which it could be scattered over.
    let room = Extent {
        len: 15,
        ..single(id, 1100)
    };
    devices.give(A, room).unwrap();
    let mut out = ExtentList::new();
    devices.allocate(A, 16, EntryId(4096), &mut out).unwrap();
    let place = Extent {
        len: 16,
        ..single(id, 528)
    };
    assert_eq!(&*out, &[place]);
    devices.check();
}

#[test]
fn a_drain_empties_the_caches_first() {
    let (devices, id) = full(2);
    struct Nobody;
    impl Mover for Nobody {
        fn relocate(&self, _: Cpu, _: EntryId, _: Extent, _: Option<Extent>) -> Moved {
            panic!("nothing is left to move")
        }
    }
    devices.set_mover(Arc::new(Nobody));
    let half = Extent {
        len: 512,
        ..single(id, 0)
    };
    devices.give(A, half).unwrap();
    for slot in 512..1024 {
        devices.give(B, single(id, slot)).unwrap();
    }
    assert!(waiting(&devices, B) > 0);
    assert_eq!(devices.drain_step(A, id, 8), Ok(Drain::Done));
    assert_eq!(waiting(&devices, B), 0);
    devices.remove(A, id).unwrap();
    devices.check();
}

#[test]
fn the_worker_leaves_a_stock_to_a_processor_that_uses_it() {
    let (devices, id) = full(4);
    let mut out = ExtentList::new();
    let waiting = || lock(&devices.cpu(A).state).returns.len();
    for slot in 0..30 {
        devices.give(A, single(id, slot * 17)).unwrap();
    }
    assert_eq!(waiting(), 30);
    devices.allocate(A, 1, EntryId(0), &mut out).unwrap();
    assert_eq!(waiting(), 29, "one was used again");
    // However many steps it takes.
    while devices.work(A, 16) > 0 {}
    assert_eq!(waiting(), RETURNS_LEFT);
    devices.check();
    // Nobody used any since.
    while devices.work(A, 16) > 0 {}
    assert_eq!(waiting(), 0);
    devices.check();
}
