//! One test for each rule that random operations seldom reach.

use super::super::cluster::table::Table;
use super::super::cluster::{Cell, FREE};
use super::model::{Op, Run};
use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn the_last_free_slot_is_found() {
    for order in [0u8, 4, 9] {
        let (devices, id) = one(4096, Options::default());
        let mut out = ExtentList::new();
        let pages = 1u16 << order;
        let mut got = 0;
        assert!(devices.has_room());
        while devices
            .allocate(
                if got % 2 == 0 { A } else { B },
                pages,
                EntryId(got),
                &mut out,
            )
            .is_ok()
        {
            got += u32::from(pages);
        }
        while devices.allocate(A, 1, EntryId(got), &mut out).is_ok() {
            got += 1;
        }
        assert_eq!(got, 4096);
        assert!(!devices.has_room());
        devices.check();
        // One slot anywhere, parked in the other processor's return cache.
        devices
            .give(
                B,
                Extent {
                    device: id,
                    start: SlotIndex(1234),
                    len: 1,
                },
            )
            .unwrap();
        out.clear();
        devices.allocate(A, 1, EntryId(9999), &mut out).unwrap();
        assert_eq!(
            out[0],
            Extent {
                device: id,
                start: SlotIndex(1234),
                len: 1
            }
        );
        devices.check();
    }
}

#[test]
fn a_free_that_moves_no_cluster_is_done_at_once() {
    let (devices, id) = one(1024, Options::default());
    let mut out = ExtentList::new();
    for i in 0..1000 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    // The cursor's cluster is on no list.
    devices.give(A, single(id, 520)).unwrap();
    assert_eq!(devices.work(A, 1), 0);
    // A full one would have to move, and waits; the next then finds it where it belongs.
    devices.give(A, single(id, 5)).unwrap();
    assert_eq!(devices.work(A, 1), 1);
    devices.give(A, single(id, 6)).unwrap();
    assert_eq!(devices.work(A, 1), 0);
    assert_eq!(devices.usage()[0].used, 997);
    devices.check();
}

#[test]
fn a_processor_takes_again_what_it_gave_back() {
    let (devices, id) = one(2048, Options::default());
    let mut out = ExtentList::new();
    for i in 0..512 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    // The cursor is used up: the oldest comes first, and the cluster stays full meanwhile.
    for (i, slot) in [300, 7, 9].into_iter().enumerate() {
        devices.give(A, single(id, slot)).unwrap();
        let twice = devices.give(A, single(id, slot));
        assert!(matches!(twice, Err(FreeError::DoubleFree { .. })), "{i}");
    }
    for (i, slot) in [300, 7].into_iter().enumerate() {
        out.clear();
        let owner = EntryId(1000 + i as u32);
        devices.allocate(A, 1, owner, &mut out).unwrap();
        assert_eq!(out[0], single(id, slot));
        assert_eq!(devices.owner(id, SlotIndex(slot)), Some(owner));
        devices.check();
    }
    // Another processor has its own cursor, and a folio its own clusters.
    out.clear();
    devices.allocate(B, 16, EntryId(2000), &mut out).unwrap();
    assert_ne!(out[0].start.cluster(), ClusterIndex(0));
    assert_eq!(devices.owner(id, SlotIndex(9)), None);
    while devices.work(B, 1) > 0 {}
    assert_eq!(devices.usage()[0].used, 511 + 16);
}

#[test]
fn recycling_keeps_no_processor_on_a_worse_device() {
    let devices = Devices::new(Arc::new(Cpus(1)), Options::default());
    let at = |priority| DeviceSpec {
        priority: Some(priority),
        ..DeviceSpec::default()
    };
    let better = devices.add(blank(512), at(2), None).unwrap();
    let worse = devices.add(blank(512), at(1), None).unwrap();
    let mut out = ExtentList::new();
    for i in 0..1024 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    let run = Extent {
        device: better,
        start: SlotIndex(0),
        len: 512,
    };
    devices.give(A, run).unwrap();
    let mut recycled = 0;
    loop {
        devices.give(A, single(worse, 100)).unwrap();
        out.clear();
        devices.allocate(A, 1, EntryId(0), &mut out).unwrap();
        if out[0].device == better {
            break;
        }
        recycled += 1;
    }
    assert_eq!(recycled, CLUSTER_SLOTS, "as long as a cursor lasts");
    devices.check();
}

#[test]
fn the_users_word_on_a_device_overrules_the_devices() {
    let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
    let spinning = Arc::new(Blank {
        slots: 512,
        rotational: true,
        ..Blank::default()
    });
    let spec = |rotational, node| DeviceSpec {
        rotational,
        node,
        ..DeviceSpec::default()
    };
    devices
        .add(spinning.clone(), spec(None, None), None)
        .unwrap();
    devices
        .add(spinning, spec(Some(false), Some(Node(1))), None)
        .unwrap();
    devices
        .add(blank(512), spec(Some(true), None), None)
        .unwrap();
    let said: Vec<_> = devices
        .usage()
        .iter()
        .map(|d| (d.rotational, d.node))
        .collect();
    assert_eq!(said, [(true, None), (false, Some(Node(1))), (true, None)]);
}

#[test]
fn emptied_clusters_are_discarded_before_they_are_used_again() {
    let devices = Devices::new(Arc::new(Cpus(1)), Options::default());
    let store = Arc::new(Blank {
        slots: 1024,
        discard: true,
        ..Blank::default()
    });
    let id = devices
        .add(store.clone(), DeviceSpec::default(), None)
        .unwrap();
    let mut out = ExtentList::new();
    for i in 0..2 {
        devices
            .allocate(A, 512, EntryId(i * 512), &mut out)
            .unwrap();
    }
    devices
        .give(
            A,
            Extent {
                device: id,
                start: SlotIndex(0),
                len: 512,
            },
        )
        .unwrap();
    devices.check();
    assert!(
        store.discarded.lock().unwrap().is_empty(),
        "not on the path of a free"
    );
    // No worker ran: the allocation discards for itself.
    devices.allocate(A, 512, EntryId(0), &mut out).unwrap();
    assert_eq!(*store.discarded.lock().unwrap(), [(0, 512)]);
    devices
        .give(
            A,
            Extent {
                device: id,
                start: SlotIndex(512),
                len: 512,
            },
        )
        .unwrap();
    assert!(devices.work(A, 8) > 0);
    assert_eq!(*store.discarded.lock().unwrap(), [(0, 512), (512, 512)]);
    assert_eq!(devices.work(A, 8), 0);
    devices.check();
}

/// A device whose discard does all that others may do meanwhile.
struct Meddler {
    devices: OnceLock<std::sync::Weak<Devices>>,
    calls: AtomicU64,
    /// A thread that wants the cluster meanwhile.
    other: std::sync::Mutex<Option<std::thread::JoinHandle<Extent>>>,
}
impl Store for Meddler {
    fn slots(&self) -> u64 {
        1024
    }
    fn write(&self, _: &[WriteOp<'_>], _: &mut [Result<(), IoError>]) {}
    fn read(&self, _: &mut [ReadOp<'_>], _: &mut [Result<(), IoError>]) {}
    fn discard(&self, slot: u64, _: u64) -> Result<(), IoError> {
        // In the midst of the discard, no lock held: everything else goes on.
        let devices = self.devices.get().unwrap().upgrade().unwrap();
        let extent = Extent {
            device: DeviceId(0),
            start: SlotIndex(slot as u32),
            len: 1,
        };
        assert!(matches!(
            devices.give(A, extent),
            Err(FreeError::DoubleFree { .. })
        ));
        assert!(matches!(
            devices.give_now(A, extent),
            Err(FreeError::DoubleFree { .. })
        ));
        let wanting = devices.clone();
        let mut other = self.other.lock().unwrap();
        *other = Some(std::thread::spawn(move || {
            let mut out = ExtentList::new();
            wanting.allocate(B, 512, EntryId(512), &mut out).unwrap();
            out[0]
        }));
        while devices.in_flight.waiting() == 0 {
            assert!(!other.as_ref().unwrap().is_finished(), "nobody waits");
            std::thread::yield_now();
        }
        devices
            .bad_slot(A, DeviceId(0), SlotIndex(slot as u32))
            .unwrap();
        devices.work(A, 8);
        self.calls.fetch_add(1, Ordering::Relaxed);
        Err(IoError::Slot)
    }
    fn wants_discard(&self) -> bool {
        true
    }
}

/// The failure reported against the kernel's series: the discard worker takes a cluster off its list,
/// and another thread frees or moves it as if it were still listed.
#[test]
fn a_cluster_being_discarded_is_on_no_list() {
    let devices = Arc::new(Devices::new(Arc::new(Cpus(1)), Options::default()));
    let store = Arc::new(Meddler {
        devices: OnceLock::new(),
        calls: AtomicU64::new(0),
        other: std::sync::Mutex::default(),
    });
    store.devices.set(Arc::downgrade(&devices)).unwrap();
    let id = devices
        .add(store.clone(), DeviceSpec::default(), None)
        .unwrap();
    let mut out = ExtentList::new();
    for i in 0..2 {
        devices
            .allocate(A, 512, EntryId(i * 512), &mut out)
            .unwrap();
    }
    devices
        .give(
            A,
            Extent {
                device: id,
                start: SlotIndex(512),
                len: 512,
            },
        )
        .unwrap();
    assert!(devices.work(A, 8) > 0);
    assert_eq!(store.calls.load(Ordering::Relaxed), 1);
    let other = store.other.lock().unwrap().take().unwrap();
    assert_eq!(other.join().unwrap(), out[1], "it waited, and has it");
    devices.check();
}

#[test]
fn a_rotating_device_has_one_cursor() {
    let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
    let store = Arc::new(Blank {
        slots: 4096,
        rotational: true,
        ..Blank::default()
    });
    devices.add(store, DeviceSpec::default(), None).unwrap();
    let mut head = 0;
    for i in 0..400u32 {
        let cpu = if i % 2 == 0 { A } else { B };
        // Pages and folios of 64 KiB.
        let pages = if i % 5 == 0 { 16 } else { 1 };
        let mut out = ExtentList::new();
        let owner = EntryId(i * 512);
        devices.allocate(cpu, pages, owner, &mut out).unwrap();
        devices.check();
        assert_eq!(out.len(), 1);
        let start = out[0].start.0;
        assert!(start.is_multiple_of(u32::from(pages)));
        // No further than the folio's alignment asks for.
        let next = u32::from(pages);
        assert!((head..head + next).contains(&start), "{i}: {head}, {out:?}");
        head = start + next;
    }
}

#[test]
fn cached_slots_are_reclaimed_when_over_half_full() {
    let mut run = Run::new(Options::default());
    for _ in 0..2048 {
        run.allocate(A, 1);
    }
    run.step(Op::Cache { nth: 100, count: 1 });
    run.step(Op::Cache {
        nth: 1024,
        count: 64,
    });
    assert_eq!(run.entries.naive.lock().unwrap().cached.len(), 65);
    run.allocate(A, 1);
    run.check();
    run.allocate(B, 32);
    run.check();
    assert_eq!(
        run.entries.naive.lock().unwrap().owner.len(),
        2048 - 65 + 33
    );
    for _ in 33..65 {
        run.allocate(B, 1);
    }
    run.allocate(B, 1);
    assert_eq!(run.entries.naive.lock().unwrap().owner.len(), 2048);
}

#[test]
fn rare_errors_are_forgiven() {
    let (devices, id) = one(1024, Options::default());
    let mut out = ExtentList::new();
    for i in 0..3 * DEVICE_ERROR_LIMIT {
        out.clear();
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
        devices.bad_slot(A, id, out[0].start).unwrap();
        devices.wrote(id, FORGIVING_PAGES - 1);
        devices.wrote(id, 1);
        devices.check();
    }
    let usage = devices.usage();
    assert_eq!(
        (usage[0].bad, usage[0].accepting),
        (3 * DEVICE_ERROR_LIMIT, true)
    );
}

#[test]
fn repeated_errors_take_the_device_out() {
    let (devices, id) = one(1024, Options::default());
    let other = devices
        .add(blank(1024), DeviceSpec::default(), None)
        .unwrap();
    let mut out = ExtentList::new();
    for i in 0..DEVICE_ERROR_LIMIT {
        out.clear();
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
        assert_eq!(out[0].device, id);
        devices.bad_slot(A, id, out[0].start).unwrap();
        devices.check();
    }
    let usage = devices.usage();
    assert_eq!(
        (usage[0].bad, usage[0].accepting),
        (DEVICE_ERROR_LIMIT, false)
    );
    out.clear();
    devices.allocate(A, 1, EntryId(100), &mut out).unwrap();
    assert_eq!(out[0].device, other);
}

/// Pages that are in memory too need no other place: neither those of the device that goes, nor those where pages go to.
#[test]
fn a_drain_gives_copies_up() {
    let mut run = Run::new(Options::default());
    run.add(1024, DeviceSpec::default(), false).unwrap();
    for _ in 0..2000 {
        run.allocate(A, 1);
    }
    run.step(Op::Cache {
        nth: 0,
        count: 1000,
    });
    let estimate = run.devices.drain_estimate(DeviceId(0)).unwrap();
    assert_eq!((estimate.pages, estimate.lacks()), (1000, 0));
    run.drain(0);
    run.check();
    assert_eq!(run.entries.naive.lock().unwrap().owner.len(), 1000);
    let usage = run.devices.usage();
    assert_eq!((usage.len(), usage[0].used), (1, 1000));

    run.add(512, DeviceSpec::default(), false).unwrap();
    run.step(Op::Cache { nth: 0, count: 400 });
    while run.devices.usage()[1].used < 512 {
        run.allocate(A, 1);
    }
    let second = run.devices.usage()[1].device;
    let estimate = run.devices.drain_estimate(second).unwrap();
    assert!(
        estimate.lacks() < 512 && estimate.room >= 400,
        "{estimate:?}"
    );
}

#[test]
fn a_drain_without_room_says_how_much_is_missing_and_moves_nothing() {
    let mut run = Run::new(Options::default());
    run.add(1024, DeviceSpec::default(), false).unwrap();
    for _ in 0..2000 {
        run.allocate(A, 1);
    }
    let estimate = run.devices.drain_estimate(DeviceId(0)).unwrap();
    let expected = DrainEstimate {
        pages: 2000,
        room: 1024,
        lent: 0,
    };
    assert_eq!((estimate, estimate.lacks()), (expected, 976));
    let step = run.devices.drain_step(A, DeviceId(0), 300);
    assert_eq!(step, Err(DrainError::NoRoom { missing: 976 }));
    // Nothing was moved, and the device goes on.
    let usage = run.devices.usage();
    assert_eq!((usage[0].used, usage[1].used), (2000, 0));
    assert!(usage[0].accepting);
    run.check();
    assert_eq!(
        run.devices.remove(A, DeviceId(0)),
        Err(DrainError::InUse {
            device: DeviceId(0),
            used: 2000
        })
    );
    run.add(1024, DeviceSpec::default(), false).unwrap();
    run.drain(0);
    run.check();
    assert_eq!(run.devices.usage().len(), 2);
    // The number is used again, and nothing of the old device is left under it.
    let id = run.add(512, DeviceSpec::default(), false).unwrap();
    assert_eq!(id, DeviceId(0));
    run.check();
}

#[test]
fn parameters_out_of_range_are_errors() {
    // Of a device whose end is less than a cluster: that is not used.
    let (devices, id) = one(700, Options::default());
    let mut out = ExtentList::new();
    // More than the errors after which a device goes, of slots that there are not.
    for slot in (512..612).chain([1024, u32::MAX]).map(SlotIndex) {
        let error = Err(SlotError::OutOfRange {
            device: id,
            slot,
            slots: 512,
        });
        assert_eq!(devices.bad_slot(A, id, slot), error);
        assert_eq!(devices.write_failed(A, id, slot, IoError::Slot), error);
        assert_eq!(devices.set_cache_only(id, slot, true), error);
        assert!(!devices.cache_only(id, slot));
    }
    let nowhere = Err(SlotError::NoDevice(DeviceId(200)));
    let (other, slot) = (DeviceId(200), SlotIndex(0));
    assert_eq!(devices.bad_slot(A, other, slot), nowhere);
    assert_eq!(devices.set_cache_only(other, slot, true), nowhere);
    assert_eq!(devices.usage()[0].errors, 0);
    devices.allocate(A, 1, EntryId(0), &mut out).unwrap();
    devices.give(A, out[0]).unwrap();
    out.clear();
    for pages in [0, 513, u16::MAX] {
        assert_eq!(
            devices.allocate(A, pages, EntryId(0), &mut out),
            Err(AllocError::Pages(pages))
        );
    }
}

#[test]
fn extents_and_devices_that_there_are_not_are_errors() {
    let (devices, id) = one(700, Options::default());
    for (start, len) in [
        (0, 0),
        (511, 2),
        (512, 1),
        (690, 11),
        (u32::MAX, 1),
        (0, 513),
    ] {
        let start = SlotIndex(start);
        let error = devices.give(
            A,
            Extent {
                device: id,
                start,
                len,
            },
        );
        assert_eq!(
            error,
            Err(FreeError::OutOfRange {
                device: id,
                start,
                len
            })
        );
    }
    let nowhere = Extent {
        device: DeviceId(200),
        start: SlotIndex(0),
        len: 1,
    };
    assert_eq!(
        devices.give(A, nowhere),
        Err(FreeError::NoDevice(DeviceId(200)))
    );
    let gone = DrainError::NoDevice(DeviceId(200));
    assert_eq!(devices.drain_estimate(DeviceId(200)).err(), Some(gone));
    assert_eq!(devices.drain_step(A, DeviceId(200), 8).err(), Some(gone));
    assert_eq!(devices.remove(A, DeviceId(200)), Err(gone));
    assert_eq!(devices.owner(DeviceId(200), SlotIndex(0)), None);
    assert_eq!(devices.owner(id, SlotIndex(u32::MAX)), None);
    let free = Extent {
        device: id,
        start: SlotIndex(3),
        len: 1,
    };
    assert_eq!(
        devices.free(A, EntryId(77), free),
        Err(FreeError::DoubleFree {
            device: id,
            slot: SlotIndex(3),
            owner: EntryId(77),
            now: None
        })
    );
    let small = devices.add(blank(511), DeviceSpec::default(), None);
    assert_eq!(small, Err(AddError::TooSmall { slots: 511 }));
    let large = devices.add(blank(1 << 40), DeviceSpec::default(), None);
    assert_eq!(large, Err(AddError::TooLarge { slots: 1 << 40 }));
    devices.check();
}

/// A second free of the same slots harms nobody and is named: also when the cluster is empty, and when
/// the slots have another owner.
#[test]
fn a_slot_freed_twice_stays_its_next_owners() {
    for pages in [1u16, 16, 512] {
        let (devices, id) = one(1024, Options::default());
        let mut out = ExtentList::new();
        devices.allocate(A, pages, EntryId(1000), &mut out).unwrap();
        let extent = out[0];
        devices.free(A, EntryId(1000), extent).unwrap();
        let error = |now| FreeError::DoubleFree {
            device: id,
            slot: extent.start,
            owner: EntryId(1000),
            now,
        };
        let nobodys = devices.free(A, EntryId(1000), extent).unwrap_err();
        assert_eq!(nobodys, error(None));
        let slot = extent.start;
        let text = format!("entry 1000 freed slot {slot} of device {id}, which is free");
        assert_eq!(nobodys.to_string(), text);
        // Somebody has the same place next.
        let mut next = EntryId(5000);
        loop {
            out.clear();
            devices.allocate(A, pages, next, &mut out).unwrap();
            if out[0] == extent {
                break;
            }
            next = next.plus(u32::from(pages));
        }
        let used = devices.usage()[0].used;
        let others = devices.free(A, EntryId(1000), extent).unwrap_err();
        assert_eq!(others, error(Some(next)));
        let text = format!("belongs to entry {next}");
        assert!(others.to_string().ends_with(&text), "{others}");
        assert_eq!(devices.owner(id, slot), Some(next));
        assert_eq!(devices.usage()[0].used, used);
        devices.check();
        devices.free(B, next, extent).unwrap();
        devices.check();
    }
}

/// Everything the allocator keeps for a device, whatever its size and wherever the slots in use lie.
#[cfg(not(loom))]
#[test]
fn memory_stays_within_the_promises() {
    for slots in [1 << 12, 10 * 512, 1 << 15, 1 << 18] {
        memory_of_a_device(slots);
    }
}

#[cfg(not(loom))]
fn memory_of_a_device(slots: u64) {
    let empty = Devices::new(Arc::new(Cpus(2)), Options::default()).bookkeeping_bytes();
    // Cursors and a return cache for each processor, whatever devices there are.
    assert!(empty <= 1024 + 2 * 2176, "{empty} bytes without a device");
    let (devices, id) = one(slots, Options::default());
    let bytes = || devices.bookkeeping_bytes() - empty;
    // Of the device as such, a pointer for each 512 MiB, and a bit for each cluster.
    let fixed = bytes();
    let parts = slots.div_ceil(1 << 17) as usize * 24 + slots.div_ceil(1 << 15) as usize * 8;
    assert!(fixed <= 768 + parts, "{slots} slots: {fixed} bytes idle");
    let of = |bytes: usize, slots: u64| (bytes - fixed) as f64 / slots as f64;
    let rest = || (0..2).for_each(|_| while devices.work(A, 64) > 0 {});
    let cells = slots.div_ceil(2048) as usize * 4 * size_of::<Cell>();
    let mut out = ExtentList::new();
    let mut fill = |used: std::ops::Range<u64>| {
        for i in used {
            out.clear();
            let cpu = Cpu((i % 2) as u16);
            devices
                .allocate(cpu, 1, EntryId(i as u32), &mut out)
                .unwrap();
        }
    };
    // Two processors at their first slots: both clusters are in their hands, and packed when they rest.
    fill(0..2);
    rest();
    let first = bytes() - fixed;
    assert!(
        first <= cells.min(256 * size_of::<Cell>()) + 2 * 5,
        "{first} bytes of two slots"
    );
    fill(2..slots);
    let full = of(bytes(), slots);
    assert!(full < 4.5, "{slots} slots, full: {full} bytes each");
    // All but one in 128, strewn over all clusters, the worker beside.
    let strewn = |i: u64| i * 2_654_435_761 % slots;
    let most = slots / 128 * 127;
    for i in 0..most {
        devices.give(A, single(id, strewn(i) as u32)).unwrap();
        if (i + 1) % (slots / 128) == 0 {
            rest();
            let used = slots - i - 1;
            // From a ninth on with all that there is; below, what clusters cost as such weighs more.
            let apart = if used * 9 >= slots { 0 } else { cells };
            let each = of(bytes() - apart, used);
            assert!(each <= 6.0, "{used} of {slots} slots: {each} bytes each");
        }
    }
    devices.check();
    // A packed table is full again.
    fill(0..most);
    devices.check();
    let full = of(bytes(), slots);
    assert!(full < 4.5, "{slots} slots, full again: {full} bytes each");
    for i in 0..slots {
        devices.give(A, single(id, i as u32)).unwrap();
    }
    rest();
    devices.check();
    // A cell for each cluster, and nothing else.
    let left = bytes() - fixed;
    assert!(left <= cells, "{slots} slots, idle again: {left} bytes");
    assert!(cells as u64 * 10 <= slots + 1440, "under 0.1 bytes a slot");
}

/// A cluster at a cursor is packed when the worker comes twice and nothing was allocated there meanwhile;
/// the cursor stays where it was.
#[test]
fn a_cursor_that_rests_is_packed_and_goes_on() {
    for rotational in [false, true] {
        let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
        let store = Arc::new(Blank {
            slots: 4096,
            rotational,
            ..Blank::default()
        });
        let id = devices.add(store, DeviceSpec::default(), None).unwrap();
        let mut out = ExtentList::new();
        let mut take = |owner: u32| {
            out.clear();
            devices.allocate(A, 1, EntryId(owner), &mut out).unwrap();
            out[0].start.0
        };
        let empty = devices.bookkeeping_bytes();
        let first = take(0);
        // In use.
        for i in 1..4 {
            devices.work(A, 4);
            assert_eq!(take(i), first + i);
        }
        assert!(rotational || devices.bookkeeping_bytes() > empty + 2048);
        while devices.work(A, 4) > 0 {}
        while devices.work(A, 4) > 0 {}
        devices.check();
        let cells = 8 * size_of::<Cell>();
        assert_eq!(devices.bookkeeping_bytes(), empty + cells + 4 * 5);
        devices.free(A, EntryId(1), single(id, first + 1)).unwrap();
        devices
            .free(A, EntryId(1), single(id, first + 1))
            .unwrap_err();
        assert_eq!(take(4), first + 4);
        devices.check();
        assert_eq!(devices.usage()[0].used, 4);
    }
}

/// Everything that allocating and freeing in current clusters writes, by its addresses: what a
/// processor has of its own, the cells of its clusters, and their tables.
#[cfg(not(loom))]
#[test]
fn processors_share_no_cache_line_on_the_fast_path() {
    const CPUS: usize = 8;
    let devices = Devices::new(Arc::new(Cpus(CPUS)), Options::default());
    let id = devices
        .add(blank(1 << 20), DeviceSpec::default(), None)
        .unwrap();
    let mut out = ExtentList::new();
    for round in 0..300u32 {
        for cpu in 0..CPUS {
            for order in [0, 4] {
                out.clear();
                let cpu = Cpu(cpu as u16);
                devices
                    .allocate(cpu, 1 << order, EntryId(0), &mut out)
                    .unwrap();
                if round % 3 > 0 {
                    devices.give(cpu, out[0]).unwrap();
                }
            }
        }
    }
    fn lines<T>(thing: &T) -> std::ops::RangeInclusive<usize> {
        let start = std::ptr::from_ref(thing) as usize;
        start / 64..=(start + size_of::<T>() - 1) / 64
    }
    let mut owners = std::collections::BTreeMap::new();
    let device = devices.device(id).unwrap();
    for cpu in 0..CPUS {
        let per_cpu = devices.cpu(Cpu(cpu as u16));
        let mut written = vec![lines(per_cpu)];
        for order in [0, 4] {
            let state = lock(&per_cpu.state);
            let current = state.current[order].as_ref().unwrap();
            written.push(lines(device.cell(current.index).unwrap()));
            let Some(Table::Whole(table)) = &current.cluster.table else {
                panic!("a cluster at a cursor has a whole table");
            };
            written.push(lines(&**table));
        }
        for line in written.into_iter().flatten() {
            let other = owners.insert(line, cpu).filter(|&other| other != cpu);
            assert_eq!(other, None, "processor {cpu} shares a line");
        }
    }
}

#[test]
fn compaction_makes_whole_clusters() {
    let mut run = Run::new(Options::default());
    for _ in 0..2048 / 16 {
        run.allocate(A, 16);
    }
    for i in 0..4096 {
        if let Some((device, slot)) = run.owned(i * 7919)
            && run.entries.naive.lock().unwrap().owner.len() > 700
        {
            run.free(A, device, slot, 1, true);
        }
    }
    run.check();
    let held = run.entries.naive.lock().unwrap().owner.len();
    while run.devices.work(A, 4) > 0 {
        run.check();
    }
    assert_eq!(run.entries.naive.lock().unwrap().owner.len(), held);
    run.allocate(A, 512);
    assert_eq!(run.out.len(), 1, "{:?}", run.out);
}

/// Nearly empty clusters behind many that are not worth emptying are found, and none is looked for without end.
#[test]
fn compaction_gets_past_fuller_clusters_at_the_lists_begin() {
    const EACH: u32 = 100;
    let fill = |nearly_empty: bool| {
        let (devices, id) = one(u64::from(2 * EACH) * 512, Options::default());
        let mut out = ExtentList::new();
        for c in 0..2 * EACH {
            let owner = EntryId(c * 512);
            devices.allocate(A, 512, owner, &mut out).unwrap();
        }
        for (c, extent) in (0..).zip(out.iter()) {
            let used = if nearly_empty && c >= EACH { 20 } else { 300 };
            for at in used..512 {
                let slot = SlotIndex(extent.start.0 + at);
                devices.give_now(A, single(id, slot.0)).unwrap();
            }
        }
        let first = out[0];
        devices.set_mover(Arc::new(Short(false.into())));
        (devices, id, first)
    };
    // The page of entry 0 cannot be moved.
    let (devices, id, first) = fill(true);
    assert_eq!(devices.cluster_fills(id).len(), 2 * EACH as usize);
    devices.let_cursors_go(|_| true);
    let device = devices.device(id).unwrap();
    let steps = (0..100).take_while(|_| device.len(FREE) == 0 && devices.compact(A, &device) > 0);
    assert!(steps.count() <= 5, "two of them looked at those ahead");
    assert!(device.len(FREE) > 0);
    devices.check();
    while devices.compact(A, &device) > 0 {}
    assert_eq!(device.len(FREE), 2, "as many as are worth having");
    devices.check();
    devices.give_now(A, single(id, first.start.0)).unwrap();

    // Where there is none, one round is all, and later a step at a time.
    let (devices, id, _) = fill(false);
    let device = devices.device(id).unwrap();
    let steps = (0..100).take_while(|_| devices.compact(A, &device) > 0);
    assert_eq!(steps.count(), 3);
    assert_eq!(devices.compact(A, &device), 0);
    // One that is emptied later is found by these.
    for slot in (0..290).map(|at| 150 * 512 + at) {
        devices.give_now(A, single(id, slot)).unwrap();
    }
    assert!((0..5).any(|_| devices.compact(A, &device) > 1));
    assert_eq!(device.len(FREE), 1);
    devices.check();
}

/// A mover for which the system has no memory at times. Of entry 0 the page cannot be read.
struct Short(std::sync::atomic::AtomicBool);

impl Mover for Short {
    fn relocate(&self, _: Cpu, owner: EntryId, _: Extent, _: Option<Extent>) -> Moved {
        match owner {
            EntryId(0) => Moved::Failed,
            _ if self.0.load(Ordering::Relaxed) => Moved::Later,
            _ => Moved::Yes,
        }
    }
}

/// What is put off is neither without room nor stuck: the drain goes on from there.
#[test]
fn a_drain_goes_on_when_there_is_memory_again() {
    let (devices, id) = one(512, Options::default());
    let mover = Arc::new(Short(true.into()));
    devices.set_mover(mover.clone());
    let mut out = ExtentList::new();
    for i in 0..100 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    devices
        .add(blank(512), DeviceSpec::default(), None)
        .unwrap();
    for max in [1, 1, 64, 64, 64] {
        assert_eq!(devices.drain_step(A, id, max), Ok(Drain::Moved(0)));
        let usage = devices.usage();
        assert!(!usage[0].accepting, "it is still drained");
        assert_eq!((usage[0].used, usage[1].used), (100, 0));
        devices.check();
    }
    mover.0.store(false, Ordering::Relaxed);
    let end = loop {
        match devices.drain_step(A, id, 64) {
            Ok(Drain::Moved(_)) => devices.check(),
            end => break end,
        }
    };
    let stuck = DrainError::Stuck {
        device: id,
        left: 1,
    };
    assert_eq!(end, Err(stuck), "the page that cannot be read");
}

/// Nor does a compaction take a cluster for one that cannot be emptied.
#[test]
fn a_compaction_is_tried_again_when_there_is_memory() {
    let (devices, id) = one(1024, Options::default());
    let mover = Arc::new(Short(true.into()));
    devices.set_mover(mover.clone());
    leave_a_page_in_two_clusters(&devices, id);
    devices.work(A, 1);
    devices.check();
    mover.0.store(false, Ordering::Relaxed);
    while devices.work(A, 1) > 0 {}
    devices.check();
    let mut out = ExtentList::new();
    devices.allocate(A, 512, EntryId(2000), &mut out).unwrap();
    assert_eq!(out.len(), 1, "one of the clusters is empty");
}

#[test]
fn a_slot_that_a_compaction_cannot_write_is_not_used_again() {
    struct Unwritable(IoError);
    impl Mover for Unwritable {
        fn relocate(&self, _: Cpu, _: EntryId, _: Extent, to: Option<Extent>) -> Moved {
            assert!(to.is_some());
            Moved::Unwritten {
                page: 0,
                error: self.0,
            }
        }
    }
    for (error, bad, out) in [
        (IoError::Slot, 1, false),
        (IoError::Device, 0, true),
        (IoError::NoSpace, 0, false),
        (IoError::Again, 0, false),
        (IoError::FileLimit, 0, false),
        (IoError::Request, 0, false),
    ] {
        let (devices, id) = one(1024, Options::default());
        devices.set_mover(Arc::new(Unwritable(error)));
        leave_a_page_in_two_clusters(&devices, id);
        devices.work(A, 1);
        let usage = devices.usage()[0];
        assert_eq!((usage.bad, usage.used, usage.out), (bad, 2 + bad, out));
        devices.check();
    }
}
