//! Ranges of entries: one operation each, and stores that
//! fail half-way.

use super::*;
use crate::PageBytes;
#[cfg(debug_assertions)]
use crate::entries::EntryWord;
use crate::entries::{Location, SPARE};
#[cfg(debug_assertions)]
use crate::locks::{LockRank as LockPlace, taken};

fn pages(n: u32, random: usize) -> Vec<PageBytes> {
    (0..n).map(|seed| page(seed, random)).collect()
}

/// Locks of entries' clusters that `f` takes: one is one operation on a range.
#[cfg(debug_assertions)]
fn operations(f: impl FnOnce()) -> u64 {
    let before = taken(LockPlace::EntryCluster);
    f();
    taken(LockPlace::EntryCluster) - before
}

#[cfg(debug_assertions)]
#[test]
fn a_range_is_stored_looked_up_and_freed_in_one_operation_each() {
    for codec in [CodecKind::Lz4, CodecKind::None] {
        let rig = rig(small(codec), Some(2));
        let swap = &rig.swap;
        let content = pages(64, 100);
        let refs: Vec<&PageBytes> = content.iter().collect();
        let mut first = EntryId(0);
        let stored = operations(|| first = swap.store(Cpu(0), GroupId(0), &refs).unwrap());
        assert_eq!(stored, 2, "{codec:?}: reserved once, named once");
        swap.check();
        let range: Vec<EntryId> = (0..64).map(|i| first.plus(i)).collect();
        let mut words = [EntryWord::FREE; 64];
        assert_eq!(operations(|| swap.space.words(&range, &mut words)), 1);
        assert!(words.iter().all(|word| !word.is_free()));
        assert_eq!(operations(|| swap.expect(&range)), 1);
        assert_eq!(operations(|| swap.free(Cpu(0), first, 64)), 1, "{codec:?}");
        let mut out = [None; 64];
        let each = operations(|| {
            swap.store_each(Cpu(0), GroupId(0), &refs, &mut out)
                .unwrap();
        });
        assert!(each <= 2 + 2, "{codec:?}: {each} for 64 pages");
        swap.check();
    }
}

/// A folio's entries are contiguous and aligned, and it is loaded and freed as one, where its slots
/// are not.
#[test]
fn a_folio_over_scattered_slots_is_one_range_of_entries() {
    let rig = rig(small(CodecKind::None), Some(1));
    let (swap, cpu, group) = (&rig.swap, Cpu(0), GroupId(0));
    let content = pages(CLUSTER_SLOTS as u32, 512);
    let mut entries = Vec::new();
    for batch in content.chunks(64) {
        let refs: Vec<&PageBytes> = batch.iter().collect();
        let mut out = [None; 64];
        assert_eq!(swap.store_each(cpu, group, &refs, &mut out), Ok(64));
        entries.extend(out.into_iter().flatten());
    }
    // Holes of one slot each: no two neighbours are free.
    for entry in entries.iter().step_by(16) {
        swap.free(cpu, *entry, 1);
    }
    let folio = pages(16, 511);
    let refs: Vec<&PageBytes> = folio.iter().collect();
    let first = swap.store(cpu, group, &refs).unwrap();
    assert_eq!(first.0 % 16, 0);
    swap.check();
    let range: Vec<EntryId> = (0..16).map(|i| first.plus(i)).collect();
    assert!(range.iter().all(|&entry| swap.place(entry) == Place::Slot));
    let mut rooms = [[0; PAGE_SIZE]; 16];
    let mut out: Vec<&mut PageBytes> = rooms.iter_mut().collect();
    let mut results = [Err(LoadError::Empty); 16];
    swap.load_each(cpu, &range, &mut out, true, &mut results);
    assert!(results.iter().all(|r| *r == Ok(Source::Device)));
    assert!(rooms == folio[..]);
    swap.free(cpu, first, 16);
    swap.check();
}

/// A page of one repeated word needs no slot: those on either side of it lie side by side all the same, and the folio
/// counts as one, wherever that page is.
#[test]
fn a_folio_with_a_page_of_one_value_keeps_its_place() {
    let rig = rig(small(CodecKind::None), Some(8));
    let (swap, counters) = (&rig.swap, &rig.counters);
    for (i, value) in (0..16).enumerate() {
        let mut folio = pages(16, 512);
        folio[value] = page(1, 0);
        let refs: Vec<&PageBytes> = folio.iter().collect();
        let first = swap.store(Cpu(0), GroupId(0), &refs).unwrap();
        swap.check();
        let slot = |n: usize| match swap.space.lock(first.plus(n as u32)).word().location() {
            Location::Slot(place) => place.slot.0,
            other => panic!("page {n} is at {other:?}"),
        };
        for run in [0..value, value + 1..16] {
            let slots = run.map(slot).collect::<Vec<_>>();
            assert!(slots.is_sorted_by(|a, b| a + 1 == *b), "{slots:?}");
        }
        assert_eq!(swap.place(first.plus(value as u32)), Place::SameFilled);
        let whole = i as u64 + 1;
        assert_eq!(counters.swpout[4].get(), whole);
        // One run where the page is the first, one more each time that it has pages on both sides.
        let runs = 1 + 2 * (whole - 1) - u64::from(value == 15);
        assert_eq!(counters.swpout_runs.get(), runs);
        let mut back = [0; PAGE_SIZE];
        for (entry, content) in (0..16).map(|i| first.plus(i)).zip(&folio) {
            swap.load(Cpu(0), entry, &mut back, true).unwrap();
            assert!(back == *content);
        }
    }
    assert_eq!(counters.swpout_fallback[4].get(), 0);
}

/// There is room for the pages before one of one value, not for those behind it.
#[test]
fn a_folio_with_room_for_one_of_its_runs_takes_none() {
    let rig = rig(small(CodecKind::None), Some(1));
    let (swap, cpu, group) = (&rig.swap, Cpu(0), GroupId(0));
    let devices = swap.devices.as_ref().unwrap();
    let content = pages(CLUSTER_SLOTS as u32 - 8, 512);
    for batch in content.chunks(64) {
        let refs: Vec<&PageBytes> = batch.iter().collect();
        let stored = swap.store_each(cpu, group, &refs, &mut [None; 64]);
        assert_eq!(stored, Ok(refs.len()));
    }
    let (entries, used) = (swap.entries(), devices.usage()[0].used);
    let mut folio = pages(16, 512);
    folio[8] = page(1, 0);
    let refs: Vec<&PageBytes> = folio.iter().collect();
    assert_eq!(swap.store(cpu, group, &refs), Err(StoreError::Full));
    swap.check();
    assert_eq!((swap.entries(), devices.usage()[0].used), (entries, used));
    assert_eq!(rig.counters.swpout[4].get(), 0);
    assert!(swap.store(cpu, group, &refs[..9]).is_ok(), "eight slots");
    swap.check();
}

/// The slots of a folio in a full cluster do not wait in the return cache one by one.
#[test]
fn a_folio_side_by_side_is_freed_in_one_piece() {
    let rig = rig(small(CodecKind::None), Some(2));
    let (swap, cpu) = (&rig.swap, Cpu(0));
    let content = pages(64, 512);
    let refs: Vec<&PageBytes> = content.iter().collect();
    let store = || swap.store(cpu, GroupId(0), &refs).unwrap();
    let entries: Vec<EntryId> = (0..CLUSTER_SLOTS / 64).map(|_| store()).collect();
    let devices = swap.devices.as_ref().unwrap();
    while devices.work(cpu, 8) > 0 {}
    let used = devices.usage()[0].used;
    assert_eq!(swap.place(entries[1]), Place::Slot);
    swap.free(cpu, entries[1], 16);
    assert_eq!(devices.usage()[0].used, used - 16);
    assert_eq!(devices.work(cpu, 8), 0, "nothing waits");
    swap.check();
    // Across the boundary of batches and of folios.
    swap.free(cpu, entries[1].plus(16), 48);
    for &entry in entries.iter().filter(|&&e| e != entries[1]) {
        swap.free(cpu, entry, 64);
        swap.check();
    }
    assert_eq!(devices.usage()[0].used, 0);
}

/// Entries are never written over: the page of an older store stays until its owner frees it, and a
/// store that fails half-way leaves nothing that could ever be read.
#[test]
fn a_store_that_fails_half_way_leaves_no_copy() {
    for (codec, clusters) in [(CodecKind::Lz4, None), (CodecKind::None, Some(1))] {
        let rig = rig(small(codec), clusters);
        let (swap, cpu, group) = (&rig.swap, Cpu(0), GroupId(0));
        let content = pages(100, 512);
        let refs: Vec<&PageBytes> = content.iter().collect();
        let mut older = [None; 100];
        assert_eq!(swap.store_each(cpu, group, &refs, &mut older), Ok(100));
        // Some pages find room, later ones do not: one of a single value lies between two runs.
        let mut folio = pages(64, 512);
        folio[20] = page(1, 0);
        let folio: Vec<&PageBytes> = folio.iter().collect();
        let mut whole = Vec::new();
        loop {
            let (entries, memory) = (swap.entries(), swap.memory());
            let stored = swap.store(cpu, group, &folio);
            swap.check();
            if let Ok(first) = stored {
                whole.push(first);
                continue;
            }
            assert_eq!(stored, Err(StoreError::Full));
            assert_eq!(swap.entries(), entries);
            assert_eq!(swap.memory().pool_data_bytes, memory.pool_data_bytes);
            assert_eq!(swap.memory().pool_pages, memory.pool_pages);
            break;
        }
        for (entry, content) in older.into_iter().flatten().zip(&content) {
            let mut out = [0; PAGE_SIZE];
            swap.load(cpu, entry, &mut out, false).unwrap();
            assert!(out == *content);
        }
        whole.iter().for_each(|&first| swap.free(cpu, first, 64));
        swap.check();
        assert_eq!(swap.entries(), 0);
        // The slots that it had taken for a while are there again.
        for _ in 0..=whole.len() {
            let again = swap.store(cpu, group, &folio);
            assert!(again.is_ok(), "{codec:?}: {again:?}");
        }
    }
}

#[test]
fn clusters_of_entries_come_on_demand_and_go_when_empty() {
    let config = Config {
        pool_max_bytes: 64 << 20,
        ..small(CodecKind::Lz4)
    };
    let rig = rig(config, None);
    let (swap, cpu) = (&rig.swap, Cpu(0));
    let idle = swap.space.bytes();
    assert!(idle < 16 << 10, "{idle} bytes for no entry");
    let content = pages(64, 1);
    let one = swap.store(cpu, GroupId(0), &[&content[0]]).unwrap();
    swap.free(cpu, one, 1);
    let directory = swap.space.bytes();
    let refs: Vec<&PageBytes> = content.iter().collect();
    let mut entries = Vec::new();
    for _ in 0..1024 {
        let mut out = [None; 64];
        swap.store_each(cpu, GroupId(0), &refs, &mut out).unwrap();
        entries.extend(out.into_iter().flatten());
    }
    let full = swap.space.bytes();
    let words = entries.len() * 8;
    assert!((words..words * 5 / 4 + directory).contains(&full), "{full}");
    for entry in entries {
        swap.free(cpu, entry, 1);
    }
    // Clusters kept for later are counted, and so are lists of some bytes a cluster.
    let left = swap.space.bytes();
    let clusters = words / (CLUSTER_SLOTS * 8);
    let spare = SPARE * (full - directory) / clusters;
    assert!(
        left <= directory + spare + 64 * clusters,
        "{left} of {full} bytes are left"
    );
    swap.check();
}
