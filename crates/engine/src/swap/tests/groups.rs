//! The global worker's way over groups.

use super::*;
use crate::PageBytes;
use crate::slots::Drain;
use std::sync::atomic::AtomicBool;

/// Pages that each group stores: four turns' worth.
pub(super) const PAGES: u32 = 4 * super::super::write_batch::BATCH as u32;

/// With a pool that is far from its limit.
fn roomy() -> Rig {
    let config = Config {
        pool_max_bytes: 64 << 20,
        ..small(CodecKind::Lz4)
    };
    rig(config, Some(20))
}

/// Folios whose entries follow each other; the first.
fn store(swap: &Swap, group: u16) -> EntryId {
    let pages: Vec<PageBytes> = (0..PAGES)
        .map(|n| page(n << 8 | u32::from(group), 200))
        .collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    let folios = refs.chunks(super::super::write_batch::BATCH);
    let firsts: Vec<EntryId> = folios
        .map(|folio| swap.store(Cpu(0), GroupId(group), folio).unwrap())
        .collect();
    assert!(firsts.is_sorted_by(|a, b| a.plus(64) == *b), "{firsts:?}");
    firsts[0]
}

/// One turn; how many pages went to the device.
fn turn(swap: &Swap) -> usize {
    let turn = swap.in_background(|background| swap.turn(Cpu(0), background));
    turn.flatten().map_or(0, |turn| turn.written)
}

/// Three groups neither hold the others up nor cost them a turn, and nobody starves: one that ends while
/// the worker stands on it, one with nothing in the pool, and one that may not write back.
#[test]
fn a_group_that_ends_is_empty_or_may_not_write_costs_the_others_no_turn() {
    let rig = roomy();
    let swap = &rig.swap;
    let first = [1, 2, 3, 4, 5].map(|group| store(swap, group));
    swap.set_group_writeback(GroupId(2), false);
    swap.free(Cpu(0), first[2], PAGES);
    let held = |group: u16| swap.group_pool_bytes(GroupId(group));
    let (all, kept) = (held(4), held(2));
    assert_eq!(held(3), 0);

    let written = turn(swap);
    assert!(written > 0 && held(1) < all, "it begins with the first");
    swap.free(Cpu(0), first[0], PAGES);
    swap.remove_group(GroupId(1));
    for turns in 1..=4 {
        assert_eq!(turn(swap), written);
        assert_eq!(held(4), all - all / 4 * turns);
        assert_eq!(turn(swap), written);
        assert_eq!(held(5), held(4), "they take turns");
        swap.check();
    }
    assert_eq!((held(4), held(2)), (0, kept));
    assert_eq!(turn(swap), 0, "only who may not write has any");
    store(swap, 1);
    assert_eq!(turn(swap), written, "one of the same number is another");
    assert_eq!(held(2), kept);
    swap.set_group_writeback(GroupId(2), true);
    assert_eq!(turn(swap), written);
    assert!(held(2) < kept, "it may write now");
    swap.check();
}

/// Groups that ended and left pages that may not be written stand in nobody's way, whatever the
/// name of those that come after them.
#[test]
fn a_group_with_the_name_of_one_that_ended_has_its_own_turns() {
    let rig = roomy();
    let swap = &rig.swap;
    store(swap, 2);
    swap.set_group_writeback(GroupId(2), false);
    swap.remove_group(GroupId(2));
    store(swap, 2);
    store(swap, 3);
    let batch = super::super::write_batch::BATCH;
    let written: [usize; 9] = std::array::from_fn(|_| turn(swap));
    assert_eq!(
        written,
        [batch, batch, batch, batch, batch, batch, batch, batch, 0]
    );
    let left = [2, 3].map(|group| swap.group_pool_bytes(GroupId(group)));
    assert_eq!(left, [0, 0], "all that may be written was");
    swap.check();
}

/// Pages that came long after another group's oldest stay while those are there.
#[test]
fn a_group_with_young_pages_alone_is_passed_over() {
    let rig = roomy();
    let swap = &rig.swap;
    // Four clusters of entries, and half of one.
    for _ in 0..8 {
        store(swap, 1);
    }
    store(swap, 2);
    let held = |group: u16| swap.group_pool_bytes(GroupId(group));
    let young = held(2);
    // Two clusters: their place in the clock makes those behind them older.
    for _ in 0..2 * 8 {
        assert!(turn(swap) > 0);
        assert_eq!(held(2), young);
        swap.check();
    }
    let old = held(1);
    assert!(turn(swap) > 0 && turn(swap) > 0);
    assert!(held(1) < old && held(2) < young, "they take turns");
    while turn(swap) > 0 {}
    assert_eq!([held(1), held(2)], [0, 0]);
    swap.check();
}

/// Groups with a page or two do not cost a write each.
#[test]
fn small_groups_fill_a_batch_together() {
    let rig = rig(small(CodecKind::Lz4), Some(20));
    let swap = &rig.swap;
    for group in 1..=80 {
        swap.store(Cpu(0), GroupId(group), &[&page(group.into(), 200)])
            .unwrap();
    }
    let batch = super::super::write_batch::BATCH;
    assert_eq!([turn(swap), turn(swap), turn(swap)], [batch, 80 - batch, 0]);
    swap.check();
}

/// A store under way while its group ends puts into that group and into the new one of the name; each is
/// charged for its own.
#[test]
fn a_group_that_ends_beside_a_store_is_charged_for_what_is_its_own() {
    let rig = rig(small(CodecKind::Zstd { level: 1 }), Some(6));
    let swap = &rig.swap;
    // Several batches, each of them long.
    rig.codec.delay.store(50, Relaxed);
    let content: Vec<PageBytes> = (0..192).map(|n| page(n, 20)).collect();
    let refs: Vec<&PageBytes> = content.iter().collect();
    let held = || swap.group_pool_bytes(GroupId(1));
    let mut split = 0;
    for _ in 0..5 {
        let mut out = [None; 192];
        let over = AtomicBool::new(false);
        let stored = std::thread::scope(|scope| {
            scope.spawn(|| {
                while held() == 0 && !over.load(Relaxed) {
                    std::thread::yield_now();
                }
                swap.remove_group(GroupId(1));
            });
            let stored = swap.store_each(Cpu(0), GroupId(1), &refs, &mut out);
            over.store(true, Relaxed);
            stored
        });
        assert_eq!(stored, Ok(192));
        swap.check();
        split += usize::from(held() > 0);
        for entry in out.into_iter().flatten() {
            swap.free(Cpu(0), entry, 1);
        }
        let charges = swap.space.groups();
        assert!(charges.iter().all(|group| group.pool_bytes() == 0));
    }
    assert!(split > 0, "it never ended in the midst of a store");
    swap.check();
}

/// Pages of a group that ended are the shrinker's as ever, those too that come back into the pool when
/// nothing of it was there any more.
#[test]
fn an_ended_group_is_known_while_it_has_pages() {
    let rig = roomy();
    let swap = &rig.swap;
    let first = store(swap, 1);
    while turn(swap) > 0 {}
    assert_eq!(swap.place(first), Place::Slot);
    swap.remove_group(GroupId(1));
    swap.let_drained_into_pool(u64::MAX);
    let devices = swap.devices.as_ref().unwrap();
    while devices.drain_step(Cpu(0), DeviceId(0), 64).unwrap() != Drain::Done {}
    assert_eq!(swap.place(first), Place::Pool);
    swap.check();
    devices.readmit(DeviceId(0));
    while turn(swap) > 0 {}
    assert_eq!(swap.place(first), Place::Slot);
    swap.free(Cpu(0), first, PAGES);
    // A group that ended and has nothing is forgotten when another ends.
    store(swap, 2);
    swap.remove_group(GroupId(2));
    swap.remove_group(GroupId(3));
    let known = swap.space.groups();
    assert!(known.iter().any(|group| group.id == GroupId(2)));
    assert!(known.len() <= 2, "the spare clusters may keep one");
    swap.check();
}
