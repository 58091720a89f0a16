//! Where room is taken when the first place has none: larger folios' clusters, other devices, runs
//! of slots.

use super::*;

#[test]
fn single_pages_steal_from_larger_folios_last() {
    let (devices, id) = one(3 * 512, Options::default());
    let mut out = ExtentList::new();
    devices.allocate(A, 16, EntryId(0), &mut out).unwrap();
    let folios = out[0].start.cluster();
    for i in 0..1024 {
        out.clear();
        devices.allocate(A, 1, EntryId(100 + i), &mut out).unwrap();
        assert_ne!(out[0].start.cluster(), folios, "page {i}");
    }
    out.clear();
    devices.allocate(A, 1, EntryId(2000), &mut out).unwrap();
    assert_eq!(out[0].start.cluster(), folios, "there is nothing else");
    devices.check();
    // The cluster keeps its order: folios go on finding it.
    out.clear();
    devices.allocate(A, 16, EntryId(3000), &mut out).unwrap();
    assert_eq!((out.len(), out[0].start.cluster()), (1, folios));
    assert!(out[0].start.0.is_multiple_of(16));
    assert_eq!(devices.usage()[id.index()].used, 16 + 1024 + 1 + 16);
    devices.check();
}

#[test]
fn a_folio_tries_the_next_device_before_it_is_split() {
    let devices = Devices::new(Arc::new(Cpus(1)), Options::default());
    let at = |priority| DeviceSpec {
        priority: Some(priority),
        ..DeviceSpec::default()
    };
    let better = devices.add(blank(512), at(2), None).unwrap();
    let mut out = ExtentList::new();
    for i in 0..512 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    for slot in (0..512).step_by(2) {
        devices.give_now(A, single(better, slot)).unwrap();
    }
    let worse = devices.add(blank(512), at(1), None).unwrap();
    for i in 0..32 {
        out.clear();
        let owner = EntryId(1000 + i * 16);
        devices.allocate(A, 16, owner, &mut out).unwrap();
        assert_eq!((out.len(), out[0].device), (1, worse), "folio {i}");
    }
    // Only now are the holes of the better one used.
    out.clear();
    devices.allocate(A, 16, EntryId(2000), &mut out).unwrap();
    assert_eq!(out.len(), 16);
    assert!(out.iter().all(|e| e.device == better));
    devices.check();
}

#[test]
fn a_folio_is_scattered_only_over_what_is_there() {
    let (devices, id) = one(1024, Options::default());
    let mut out = ExtentList::new();
    for i in 0..1024 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    for slot in (1..1024).step_by(64) {
        devices
            .give(
                A,
                Extent {
                    device: id,
                    start: SlotIndex(slot),
                    len: 1,
                },
            )
            .unwrap();
    }
    devices
        .give(
            A,
            Extent {
                device: id,
                start: SlotIndex(102),
                len: 8,
            },
        )
        .unwrap();
    out.clear();
    devices.allocate(B, 16, EntryId(5000), &mut out).unwrap();
    assert_eq!(
        out[0],
        Extent {
            device: id,
            start: SlotIndex(102),
            len: 8
        },
        "the longest run first"
    );
    assert_eq!(out.len(), 9);
    assert_eq!(devices.owner(id, out[8].start), Some(EntryId(5015)));
    out.clear();
    assert_eq!(
        devices.allocate(B, 9, EntryId(6000), &mut out),
        Err(AllocError::Full)
    );
    assert!(out.is_empty());
    devices.check();
    devices.allocate(B, 8, EntryId(6000), &mut out).unwrap();
    assert_eq!(
        devices.allocate(B, 1, EntryId(6008), &mut out),
        Err(AllocError::Full)
    );
}
