//! Loom models: every interleaving, within a bound on preemptions, of two threads that meet in one
//! cluster, one return cache, one discard, or at the door of a device. `room` has cases that must not be
//! taken for a full device, `moves` pages that move and copies that go meanwhile.

mod moves;
mod room;

use super::cluster::ClusterState;
use super::cluster::table::SlotOwner;
use super::device::Patience;
use super::*;
use crate::env::{IoError, ReadOp, WriteOp};
use crate::sync::{Mutex, lock as lock_plain};
use crate::types::{ClusterIndex, Node};
use loom::thread;

struct Two;

impl Topology for Two {
    fn cpu(&self) -> Cpu {
        Cpu(0)
    }
    fn cpus(&self) -> usize {
        2
    }
    fn node(&self, _: Cpu) -> Node {
        Node(0)
    }
}

struct Blank {
    slots: u64,
    discard: bool,
}

impl Store for Blank {
    fn slots(&self) -> u64 {
        self.slots
    }
    fn write(&self, _: &[WriteOp<'_>], _: &mut [Result<(), IoError>]) {}
    fn read(&self, _: &mut [ReadOp<'_>], _: &mut [Result<(), IoError>]) {}
    fn discard(&self, _: u64, _: u64) -> Result<(), IoError> {
        // A place where everything else may happen.
        thread::yield_now();
        Ok(())
    }
    fn wants_discard(&self) -> bool {
        self.discard
    }
}

const A: Cpu = Cpu(0);
const B: Cpu = Cpu(1);

fn model(body: impl Fn() + Sync + Send + 'static) {
    model_within(2, body);
}

/// As `model`, of another number of preemptions: fewer where threads do much.
fn model_within(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

fn no_devices() -> Arc<Devices> {
    Arc::new(Devices::new(Arc::new(Two), Options::default()))
}

fn add(devices: &Devices, slots: u64, discard: bool) -> Result<DeviceId, AddError> {
    let store = Arc::new(Blank { slots, discard });
    devices.add(store, DeviceSpec::default(), None)
}

fn devices(slots: u64, discard: bool) -> Arc<Devices> {
    let devices = no_devices();
    add(&devices, slots, discard).unwrap();
    devices
}

fn allocate(devices: &Devices, cpu: Cpu, pages: u16, owner: u32) -> Option<Extent> {
    let mut out = ExtentList::new();
    devices
        .allocate(cpu, pages, EntryId(owner), &mut out)
        .ok()?;
    assert_eq!(out.len(), 1);
    Some(out[0])
}

/// As `allocate`, in any number of extents.
fn allocate_runs(devices: &Devices, cpu: Cpu, pages: u16, owner: u32) -> Option<ExtentList> {
    let mut out = ExtentList::new();
    devices
        .allocate(cpu, pages, EntryId(owner), &mut out)
        .ok()?;
    Some(out)
}

/// Has some clusters to lend, and nobody who reads.
struct Lent(Mutex<Vec<u32>>);

impl Lender for Lent {
    fn acquire(&self) -> Option<ClusterIndex> {
        let found = lock_plain(&self.0).pop().map(ClusterIndex);
        if found.is_some() {
            // It is nobody's for a moment.
            thread::yield_now();
        }
        found
    }
    fn release(&self, cluster: ClusterIndex) {
        thread::yield_now();
        lock_plain(&self.0).push(cluster.0);
    }
    fn has_readers(&self, _: ClusterIndex) -> bool {
        false
    }
    fn returned(&self) -> u64 {
        0
    }
    fn stop_reading(&self, _: ClusterIndex) {}
    fn adopt(&self, _: ClusterIndex) -> bool {
        false
    }
    fn free_clusters(&self) -> u64 {
        lock_plain(&self.0).len() as u64
    }
    fn is_wanted(&self) -> bool {
        false
    }
}

/// Adds a device of which only what this lender has can be used.
fn add_of(devices: &Devices, slots: u64, discard: bool, lender: &Arc<Lent>) -> DeviceId {
    let store = Arc::new(Blank { slots, discard });
    let spec = DeviceSpec::default();
    devices.add(store, spec, Some(lender.clone())).unwrap()
}

/// Adds a device of which only these clusters can be used.
fn add_lent(devices: &Devices, slots: u64, clusters: &[u32]) -> DeviceId {
    let lender = Arc::new(Lent(Mutex::new(clusters.to_vec())));
    add_of(devices, slots, false, &lender)
}

/// Adds a device with room for a few pages alone, in folios of this order: the slots behind them are out of service.
fn add_small(devices: &Devices, slots: usize, order: u8) -> DeviceId {
    let id = add(devices, 512, false).unwrap();
    let device = devices.device(id).unwrap();
    let (c, mut cluster) = device.take_empty(order, Patience::Wait).unwrap();
    let bad = CLUSTER_SLOTS - slots;
    device.open(&mut cluster);
    cluster.take(slots, bad, EntryId(0));
    (slots..CLUSTER_SLOTS).for_each(|at| cluster.table().set(at, SlotOwner::BAD));
    device.bad.store(bad as u32, Relaxed);
    device.count(bad as i64);
    // As it would be with a folio in it.
    let listed = ClusterState::NonFull(order);
    device.set_state(&mut device.lists(), c, &mut cluster, listed);
    id
}

/// Slots in use on all devices, without those out of service.
fn in_use(devices: &Devices) -> u32 {
    let usage = devices.usage();
    usage.iter().map(|device| device.used - device.bad).sum()
}

fn slot(at: u32, len: u16) -> Extent {
    Extent {
        device: DeviceId(0),
        start: SlotIndex(at),
        len,
    }
}

#[test]
fn loom_two_threads_share_the_last_slots() {
    model(|| {
        let devices = no_devices();
        add_small(&devices, 4, 1);
        allocate(&devices, A, 2, 0).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || allocate(&other, B, 1, 1001));
        let mine = allocate(&devices, A, 1, 1000);
        let theirs = thread.join().unwrap();
        let (mine, theirs) = (mine.unwrap(), theirs.unwrap());
        assert_ne!(mine, theirs);
        assert_eq!(devices.owner(mine.device, mine.start), Some(EntryId(1000)));
        assert_eq!(
            devices.owner(theirs.device, theirs.start),
            Some(EntryId(1001))
        );
        assert_eq!(allocate(&devices, B, 1, 1003), None);
        devices.check();
    });
}

#[test]
fn loom_a_free_meets_an_allocation_in_a_full_cluster() {
    model(|| {
        let devices = devices(512, false);
        allocate(&devices, A, 512, 0).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || other.free_now(B, EntryId(7), slot(7, 1)).unwrap());
        let got = allocate(&devices, A, 1, 1000);
        thread.join().unwrap();
        devices.check();
        if let Some(e) = got {
            assert_eq!(e, slot(7, 1));
            assert_eq!(devices.owner(e.device, e.start), Some(EntryId(1000)));
        }
    });
}

#[test]
fn loom_a_current_cluster_is_reached_by_others() {
    model(|| {
        let devices = devices(512, false);
        let first = allocate(&devices, A, 1, 0).unwrap();
        let second = allocate(&devices, A, 1, 1).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || {
            assert_eq!(other.owner(second.device, second.start), Some(EntryId(1)));
            other.free(B, EntryId(0), first).unwrap();
            assert_ne!(other.owner(first.device, first.start), Some(EntryId(0)));
        });
        // It fills up, or is put back and handed out again.
        let rest = allocate(&devices, A, 256, 1000);
        let third = allocate(&devices, A, 1, 2);
        devices
            .set_cache_only(second.device, second.start, true)
            .unwrap();
        thread.join().unwrap();
        devices.check();
        assert!(rest.is_some() && third.is_some());
        assert_eq!(devices.usage()[0].used, 256 + 2);
    });
}

#[test]
fn loom_the_worker_empties_a_return_cache_that_is_in_use() {
    model(|| {
        let devices = devices(512, false);
        allocate(&devices, A, 512, 0).unwrap();
        devices.free(A, EntryId(0), slot(0, 1)).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || other.work(B, 1));
        devices.free(A, EntryId(1), slot(1, 1)).unwrap();
        devices.free(A, EntryId(2), slot(2, 1)).unwrap();
        thread.join().unwrap();
        devices.check();
        while devices.work(A, 1) > 0 {}
        devices.check();
        assert_eq!(devices.usage()[0].used, 509);
    });
}

#[test]
fn loom_a_returned_slot_is_recycled_or_released() {
    model(|| {
        let devices = devices(512, false);
        // A full cluster of single slots, and the processor's home.
        allocate(&devices, A, 1, 0).unwrap();
        allocate(&devices, A, 511, 1).unwrap();
        devices.free(A, EntryId(7), slot(7, 1)).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || other.work(B, 1));
        let got = allocate(&devices, A, 1, 1000);
        thread.join().unwrap();
        devices.check();
        assert_eq!(got, Some(slot(7, 1)), "it was free, whoever holds it");
        assert_eq!(
            devices.owner(DeviceId(0), SlotIndex(7)),
            Some(EntryId(1000))
        );
        assert_eq!(devices.usage()[0].used, 512);
        assert_eq!(devices.work(A, 1), 0, "nothing is left to do");
    });
}

#[test]
fn loom_a_slot_is_freed_only_once() {
    model(|| {
        let devices = devices(512, false);
        allocate(&devices, A, 512, 0).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || other.free(B, EntryId(9), slot(9, 1)).is_ok());
        let mine = devices.free(A, EntryId(9), slot(9, 1)).is_ok();
        assert!(mine != thread.join().unwrap());
        devices.check();
    });
}

#[test]
fn loom_a_discard_meets_frees_and_allocations() {
    model(|| {
        let devices = devices(1024, true);
        allocate(&devices, A, 512, 0).unwrap();
        allocate(&devices, A, 512, 512).unwrap();
        devices.free_now(A, EntryId(0), slot(0, 512)).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || other.work(B, 1));
        devices.free_now(A, EntryId(512), slot(512, 512)).unwrap();
        let got = allocate(&devices, A, 512, 1000);
        thread.join().unwrap();
        devices.check();
        assert!(
            got.is_some(),
            "one cluster was empty and only to be discarded"
        );
    });
}

#[test]
fn loom_a_write_error_meets_frees_and_allocations() {
    model(|| {
        let devices = devices(512, false);
        allocate(&devices, A, 512, 0).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || other.bad_slot(B, DeviceId(0), SlotIndex(9)).unwrap());
        // The owner frees the slots about it; the bad one it leaves.
        devices.free(A, EntryId(8), slot(8, 1)).unwrap();
        devices.free(A, EntryId(10), slot(10, 1)).unwrap();
        let got = allocate(&devices, A, 1, 1000);
        thread.join().unwrap();
        devices.check();
        assert!(got.is_some_and(|e| e == slot(8, 1) || e == slot(10, 1)));
        let usage = devices.usage()[0];
        assert_eq!((usage.used, usage.bad), (511, 1));
        assert_eq!(devices.owner(DeviceId(0), SlotIndex(9)), None);
    });
}

/// Moves nothing: where it says so, its owner has freed the slot.
struct Freed;

impl Mover for Freed {
    fn relocate(&self, _: Cpu, _: EntryId, _: Extent, _: Option<Extent>) -> Moved {
        Moved::Gone
    }
}

#[test]
fn loom_a_drain_meets_an_allocation_and_its_free() {
    model(|| {
        let devices = devices(512, false);
        devices.set_mover(Arc::new(Freed));
        let other = devices.clone();
        let thread = thread::spawn(move || {
            if let Some(e) = allocate(&other, B, 1, 7) {
                assert_eq!(other.owner(e.device, e.start), Some(EntryId(7)));
                other.free(B, EntryId(7), e).unwrap();
            }
        });
        let step = devices.drain_step(A, DeviceId(0), 4);
        let removed = step == Ok(Drain::Done) && devices.remove(A, DeviceId(0)).is_ok();
        thread.join().unwrap();
        devices.check();
        // Once removed it stays so; else nothing was lost, and it can go now.
        if !removed {
            while devices.drain_step(A, DeviceId(0), 4) != Ok(Drain::Done) {}
            devices.remove(A, DeviceId(0)).unwrap();
        }
        assert!(devices.usage().is_empty());
        assert_eq!(allocate(&devices, A, 1, 8), None);
    });
}

#[test]
fn loom_a_device_taken_out_keeps_no_cursor() {
    model(|| {
        let devices = devices(512, false);
        let other = devices.clone();
        let thread = thread::spawn(move || other.retire(DeviceId(0)));
        let got = allocate(&devices, A, 1, 0);
        thread.join().unwrap();
        devices.check();
        assert_eq!(
            allocate(&devices, A, 1, 1),
            None,
            "the device accepts nothing any more"
        );
        assert_eq!(devices.usage()[0].used, u32::from(got.is_some()));
        if let Some(e) = got {
            devices.free_now(A, EntryId(0), e).unwrap();
        }
        devices.remove(A, DeviceId(0)).unwrap();
    });
}

#[test]
fn loom_a_discard_meets_the_removal_of_its_device() {
    model(|| {
        let devices = no_devices();
        let lender = Arc::new(Lent(Mutex::new(vec![1])));
        let id = add_of(&devices, 1024, true, &lender);
        let all = allocate(&devices, A, 512, 0).unwrap();
        devices.free_now(A, EntryId(0), all).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || other.work(B, 1));
        let removed = devices.remove(A, id).is_ok();
        if removed {
            // Its next owner may write to it at once.
            assert_eq!(*lock_plain(&lender.0), [1]);
        }
        thread.join().unwrap();
        devices.check();
        if !removed {
            devices.remove(A, id).unwrap();
        }
        assert_eq!(*lock_plain(&lender.0), [1]);
    });
}

#[test]
fn loom_what_errors_take_out_is_not_readmitted() {
    model(|| {
        let devices = devices(512, false);
        let other = devices.clone();
        let thread = thread::spawn(move || other.retire(DeviceId(0)));
        devices.readmit(DeviceId(0));
        thread.join().unwrap();
        assert!(!devices.usage()[0].accepting);
        assert_eq!(allocate(&devices, A, 1, 0), None);
        devices.check();
    });
}

#[test]
fn loom_a_cluster_is_borrowed_while_its_device_goes() {
    model(|| {
        let devices = no_devices();
        let lender = Arc::new(Lent(Mutex::new(vec![1])));
        let id = add_of(&devices, 1024, false, &lender);
        let other = devices.clone();
        let thread = thread::spawn(move || other.remove(B, id).is_ok());
        let got = allocate(&devices, A, 1, 7);
        let removed = thread.join().unwrap();
        devices.check();
        assert!(!(removed && got.is_some()), "what is in use stays");
        if let Some(e) = got {
            assert_eq!(devices.owner(e.device, e.start), Some(EntryId(7)));
            devices.free_now(A, EntryId(7), e).unwrap();
        }
        if !removed {
            devices.remove(A, id).unwrap();
        }
        assert_eq!(*lock_plain(&lender.0), [1], "it is the lender's again");
    });
}

#[test]
fn loom_a_device_is_added_while_others_allocate() {
    model(|| {
        let devices = no_devices();
        let other = devices.clone();
        let thread = thread::spawn(move || add(&other, 512, false).unwrap());
        // There is room or there is none; what is found is there to stay.
        let first = allocate(&devices, A, 1, 0);
        let second = allocate(&devices, B, 1, 1);
        if let Some(e) = first {
            assert!(second.is_some(), "the device did not go");
            assert_eq!(devices.owner(e.device, e.start), Some(EntryId(0)));
            devices.free(B, EntryId(0), e).unwrap();
        }
        let added = thread.join().unwrap();
        devices.check();
        let third = allocate(&devices, A, 1, 2).expect("the device is there");
        assert_eq!(third.device, added);
        assert_eq!(devices.usage()[0].used, 1 + u32::from(second.is_some()));
        devices.check();
    });
}

#[test]
fn loom_a_device_comes_in_the_place_of_one_that_goes() {
    model(|| {
        let devices = devices(512, false);
        let other = devices.clone();
        let thread = thread::spawn(move || {
            other.remove(B, DeviceId(0)).is_ok() && add(&other, 1024, false).is_ok()
        });
        // On one or the other, or on none: only what is free may go.
        let got = allocate(&devices, A, 1, 0);
        let renewed = thread.join().unwrap();
        devices.check();
        let usage = devices.usage();
        assert_eq!(usage.len(), 1, "it went only to be followed");
        assert_eq!(usage[0].slots, if renewed { 1024 } else { 512 });
        assert_eq!(usage[0].used, u32::from(got.is_some()));
        if let Some(e) = got {
            assert_eq!(devices.owner(e.device, e.start), Some(EntryId(0)));
            devices.free(A, EntryId(0), e).unwrap();
        }
    });
}

/// While there is another: nobody takes the new one for the only one before all processors know it.
#[test]
fn loom_a_device_that_comes_beside_another_is_known_where_it_is_used() {
    model(|| {
        let devices = devices(512, false);
        add(&devices, 512, false).unwrap();
        devices.remove(A, DeviceId(0)).unwrap();
        let other = devices.clone();
        let thread = thread::spawn(move || add(&other, 512, false).unwrap());
        let got = allocate(&devices, A, 1, 0).expect("the other device has room");
        devices.free(B, EntryId(0), got).unwrap();
        assert_eq!(thread.join().unwrap(), DeviceId(0));
        devices.check();
    });
}
