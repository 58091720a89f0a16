//! Devices whose file system has no block left.

use super::*;
use crate::slots::device::backing;

const PASSES: u32 = backing::PASSES as u32;

/// Two devices of so many clusters, the first with one full cluster, whose slots `0..512` are returned.
fn two(clusters: u64) -> (Devices, ExtentList) {
    let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
    for _ in 0..2 {
        let store = blank(clusters * 512);
        devices.add(store, DeviceSpec::default(), None).unwrap();
    }
    let mut out = ExtentList::new();
    for i in 0..512 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    assert!(
        out.iter()
            .all(|e| e.device == DeviceId(0) && e.start.0 < 512)
    );
    (devices, out)
}

/// The next slot.
fn next(devices: &Devices, owner: u32) -> Result<Extent, AllocError> {
    let mut out = ExtentList::new();
    devices.allocate(A, 1, EntryId(owner), &mut out)?;
    Ok(out[0])
}

/// A slot that could not be written for want of a block.
fn fail(devices: &Devices, slot: Extent) {
    let (device, start) = (slot.device, slot.start);
    devices
        .write_failed(A, device, start, IoError::NoSpace)
        .unwrap();
    devices.give_now(A, slot).unwrap();
}

#[test]
fn a_device_without_blocks_gives_the_slots_that_have_some() {
    let (devices, _) = two(64);
    let slot = next(&devices, 1000).unwrap();
    assert_eq!((slot.device, slot.start.cluster().0), (DeviceId(0), 1));
    fail(&devices, slot);
    for at in 100..110 {
        devices.give_now(A, single(DeviceId(0), at)).unwrap();
    }
    devices.check();
    for i in 0..10 {
        let slot = next(&devices, 2000 + i).unwrap();
        assert_eq!((slot.device, slot.start.cluster().0), (DeviceId(0), 0));
    }
    // There are no more: the other device is next.
    for i in 0..600 {
        assert_eq!(next(&devices, 3000 + i).unwrap().device, DeviceId(1));
    }
    assert_eq!(devices.usage()[0].used, 512);
    devices.check();
}

/// Folios, which ask the devices each time.
#[test]
fn a_device_without_blocks_is_tried_again_after_some_searches() {
    let (devices, _) = two(256);
    fail(&devices, next(&devices, 1000).unwrap());
    let mut out = ExtentList::new();
    for round in 0..3 {
        let mut searches = 0;
        loop {
            out.clear();
            let owner = EntryId(10_000 + 512 * searches);
            devices.allocate(A, 512, owner, &mut out).unwrap();
            searches += 1;
            if out[0].device == DeviceId(0) {
                break;
            }
        }
        assert_eq!(searches, PASSES << round, "round {round}");
        // Still none.
        let slot = out[0];
        devices
            .write_failed(A, slot.device, slot.start, IoError::NoSpace)
            .unwrap();
        devices.give_now(A, slot).unwrap();
        devices.check();
    }
    // Nobody searches, and the keeper looks.
    assert!((0..16).all(|_| devices.has_room()), "the other has room");
    out.clear();
    devices
        .allocate(A, 512, EntryId(200_000), &mut out)
        .unwrap();
    assert_eq!(out[0].device, DeviceId(0));
}

/// Until then it is full, and nothing that it tried stays taken.
#[test]
fn a_device_without_blocks_comes_back_where_it_is_alone() {
    let (devices, id) = one(4 * 512, Options::default());
    for i in 0..513 {
        next(&devices, i).unwrap();
    }
    fail(&devices, single(id, 512));
    let full = (1..).find(|i| next(&devices, 1000 + i).is_ok());
    assert_eq!(full, Some(PASSES));
    devices.check();
    // There was room: it is used up to its end.
    for i in 513..4 * 512 {
        next(&devices, 2000 + i).unwrap();
    }
    assert_eq!(next(&devices, 0), Err(AllocError::Full));
    devices.check();
}

#[test]
fn a_discard_of_blocks_ends_the_want_of_them() {
    let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
    let store = Arc::new(Blank {
        slots: 1024,
        discard: true,
        ..Blank::default()
    });
    let id = devices.add(store, DeviceSpec::default(), None).unwrap();
    for i in 0..513 {
        next(&devices, i).unwrap();
    }
    fail(&devices, single(id, 512));
    // That cluster had no blocks: its discard says nothing.
    devices.work(A, 8);
    assert_eq!(next(&devices, 1000), Err(AllocError::Full));
    let first = Extent {
        device: id,
        start: SlotIndex(0),
        len: 512,
    };
    devices.give_now(A, first).unwrap();
    devices.work(A, 8);
    for i in 0..1024 {
        next(&devices, i).unwrap();
    }
    devices.check();
}

/// Clusters that nobody has may lack blocks, and stay for others.
#[test]
fn a_device_without_blocks_borrows_nothing() {
    let (devices, lender) = lent(8);
    for i in 0..513 {
        next(&devices, i).unwrap();
    }
    let free = lender.free_clusters();
    fail(&devices, single(DeviceId(0), 512));
    for i in 1..PASSES {
        assert_eq!(next(&devices, 1000 + i), Err(AllocError::Full));
    }
    assert_eq!(lender.free_clusters(), free);
    devices.check();
}

/// Users are told of it. It passes by pages that are written, while none fails, or by the word of the file system.
#[test]
fn a_device_without_blocks_is_full_until_it_has_some() {
    let (devices, id) = one(4 * 512, Options::default());
    let is_full = || devices.usage()[0].full;
    let fill = |from: u32| {
        let slot = (from..).find_map(|i| next(&devices, i).ok()).unwrap();
        fail(&devices, slot);
    };
    devices.wrote(id, 512);
    devices.file_system_told(id, Some(false));
    assert!(!is_full());
    fill(0);
    assert!(is_full());
    // While it is short, only what has blocks is written.
    devices.wrote(id, 512);
    assert!(is_full());
    (1..PASSES).for_each(|i| assert!(next(&devices, i).is_err()));
    next(&devices, 100).unwrap();
    devices.wrote(id, 511);
    assert!(is_full());
    devices.wrote(id, 1);
    assert!(!is_full());
    // One that says all the time that there is room does not know: a quota is used up.
    fill(200);
    devices.file_system_told(id, Some(true));
    assert!(is_full());
    devices.file_system_told(id, Some(false));
    assert!(is_full() && next(&devices, 300).is_err());
    devices.file_system_told(id, Some(true));
    assert!(!is_full() && next(&devices, 301).is_ok(), "at once");
    devices.check();
}

/// Where nothing is to be written, and the file system does not tell, as of a quota that was raised or of blocks that are
/// kept for root.
#[test]
fn a_device_of_which_nobody_tells_is_full_no_more_after_a_while() {
    for says in [Some(true), None] {
        let (devices, id) = one(4 * 512, Options::default());
        let is_full = || devices.usage()[0].full;
        let told = |times| (0..times).for_each(|_| devices.file_system_told(id, says));
        fail(&devices, next(&devices, 0).unwrap());
        told(1000);
        assert!(is_full(), "it is short");
        (0..PASSES).for_each(|_| _ = devices.has_room());
        told(20);
        assert!(is_full());
        // A write that fails begins it anew.
        fail(&devices, next(&devices, 1).unwrap());
        (0..2 * PASSES).for_each(|_| _ = devices.has_room());
        told(31);
        assert!(is_full());
        told(1);
        assert!(!is_full());
        devices.check();
    }
}
