//! The global worker's way over groups.

use super::*;
use crate::PageBytes;
use crate::slots::Drain;
use std::sync::atomic::AtomicBool;

/// Pages that each group stores: four turns' worth.
const PAGES: u32 = 4 * super::super::writeback::BATCH as u32;

/// With a pool that is far from its limit.
fn roomy() -> Rig {
    let config = Config {
        pool_max_bytes: 64 << 20,
        ..small(CodecKind::Lz4)
    };
    rig(config, Some(20))
}

fn store(swap: &Swap, group: u16) -> EntryId {
    let pages: Vec<PageBytes> = (0..PAGES)
        .map(|n| page(n << 8 | u32::from(group), 200))
        .collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    swap.store(Cpu(0), GroupId(group), &refs).unwrap()
}

/// One turn; how many pages went to the device.
fn turn(swap: &Swap) -> usize {
    let turn = swap.in_background(|background| swap.turn(Cpu(0), background));
    turn.flatten().map_or(0, |turn| turn.written)
}

/// A group that ends while the worker stands on it, one that has nothing in the pool and one that may
/// not write back neither hold the others up nor cost them a turn, and nobody starves.
#[test]
fn whoever_ends_is_empty_or_may_not_write_costs_the_others_no_turn() {
    let rig = roomy();
    let swap = &rig.swap;
    let first = [1, 2, 3, 4, 5].map(|group| store(swap, group));
    swap.set_group_limits(GroupId(2), u64::MAX, false).unwrap();
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
    swap.set_group_limits(GroupId(2), u64::MAX, true).unwrap();
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
    swap.set_group_limits(GroupId(2), u64::MAX, false).unwrap();
    swap.remove_group(GroupId(2));
    store(swap, 2);
    store(swap, 3);
    let batch = super::super::writeback::BATCH;
    let written: [usize; 9] = std::array::from_fn(|_| turn(swap));
    assert_eq!(
        written,
        [batch, batch, batch, batch, batch, batch, batch, batch, 0]
    );
    let left = [2, 3].map(|group| swap.group_pool_bytes(GroupId(group)));
    assert_eq!(left, [0, 0], "all that may be written was");
    swap.check();
}

/// A group at its own limit gives up its oldest pages for its youngest, however much room the pool
/// has, and the others' stay.
#[test]
fn a_group_at_its_limit_keeps_its_youngest_pages() {
    const LIMIT: u64 = 256 << 10;
    let rig = roomy();
    let swap = &rig.swap;
    store(swap, 2);
    let other = swap.group_pool_bytes(GroupId(2));
    swap.set_group_limits(GroupId(1), LIMIT, true).unwrap();
    let entries: Vec<EntryId> = (0..1024)
        .map(|n| {
            let stored = swap.store(Cpu(0), GroupId(1), &[&page(n, 100)]);
            assert!(swap.group_pool_bytes(GroupId(1)) <= LIMIT);
            while swap.work(Cpu(0)) {}
            stored.unwrap()
        })
        .collect();
    let on_device = |entry: &&EntryId| swap.place(**entry) == Place::Slot;
    let oldest = entries.iter().take_while(on_device).count();
    assert_eq!(entries.iter().filter(on_device).count(), oldest, "in order");
    let held = swap.group_pool_bytes(GroupId(1));
    assert!(held > LIMIT / 2, "{held} of {LIMIT} bytes used");
    assert_eq!(swap.group_pool_bytes(GroupId(2)), other);
    assert_eq!(rig.counters.pswpout.get(), rig.counters.zswpwb.get());
    assert_eq!(rig.counters.reject_pool.get(), 0);
    swap.check();
}

/// A limit that is lowered is reached in the background, by that group's oldest pages; while it may
/// not write it stays above, and holds up nobody else.
#[test]
fn a_group_goes_down_to_a_lower_limit_in_the_background() {
    /// More than a batch, which goes out whole.
    const LIMIT: u64 = 256 << 10;
    let rig = roomy();
    let swap = &rig.swap;
    let entries = [1, 2, 3].map(|group| store(swap, group));
    let held = |group: u16| swap.group_pool_bytes(GroupId(group));
    let all = [1, 2, 3].map(held);
    while swap.work(Cpu(0)) {}
    assert_eq!([1, 2, 3].map(held), all, "the pool has room");
    let limit = |group, limit, writeback| {
        let set = swap.set_group_limits(GroupId(group), limit, writeback);
        set.unwrap();
        while swap.work(Cpu(0)) {}
        swap.check();
    };
    limit(1, LIMIT, false);
    assert_eq!([1, 2, 3].map(held), all);
    limit(2, LIMIT, true);
    assert!((LIMIT / 2..=LIMIT).contains(&held(2)), "{} bytes", held(2));
    assert_eq!([held(1), held(3)], [all[0], all[2]]);
    let place = |n| swap.place(entries[1].plus(n));
    let out = (0..PAGES).take_while(|&n| place(n) == Place::Slot).count() as u32;
    assert!((out..PAGES).all(|n| place(n) == Place::Pool), "in order");
    limit(1, LIMIT, true);
    assert!(held(1) <= LIMIT && held(3) == all[2]);
    limit(3, u64::MAX, true);
    assert_eq!(held(3), all[2]);
}

/// One that may not write either stores up to its limit, to the page, and says why no more.
#[test]
fn a_group_at_its_limit_that_may_not_write_is_refused() {
    let rig = rig(small(CodecKind::Lz4), Some(2));
    let swap = &rig.swap;
    let content: Vec<PageBytes> = (0..64).map(|n| page(n, 512)).collect();
    let refs: Vec<&PageBytes> = content.iter().collect();
    let limit = 21 * PAGE_SIZE as u64;
    swap.set_group_limits(GroupId(1), limit, false).unwrap();
    let mut out = [None; 64];
    assert_eq!(swap.store_each(Cpu(0), GroupId(1), &refs, &mut out), Ok(21));
    assert_eq!(swap.group_pool_bytes(GroupId(1)), limit);
    let more = swap.store(Cpu(0), GroupId(1), &refs[..1]);
    assert_eq!(more, Err(StoreError::GroupFull));
    // A clean copy of a resident page makes way.
    let mut back = [0; PAGE_SIZE];
    let entry = out[0].unwrap();
    swap.load(Cpu(0), entry, &mut back, true).unwrap();
    assert!(swap.store(Cpu(0), GroupId(1), &refs[..1]).is_ok());
    assert_eq!(swap.place(entry), Place::Memory);
    assert_eq!(rig.counters.pswpout.get(), 0);
    assert_eq!(rig.counters.reject_pool.get(), 64 - 21 + 1);
    assert_eq!(rig.counters.reject_full.get(), 64 - 21 + 1);
    swap.check();
}

/// What came long after another group's oldest stays while those are there.
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
    let batch = super::super::writeback::BATCH;
    assert_eq!([turn(swap), turn(swap), turn(swap)], [batch, 80 - batch, 0]);
    swap.check();
}

/// A store that is under way while its group ends puts into that group and into the new one of the
/// name, and each is charged for what is its own.
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
    // What ended and has nothing is forgotten when another ends.
    store(swap, 2);
    swap.remove_group(GroupId(2));
    swap.remove_group(GroupId(3));
    let known = swap.space.groups();
    assert!(known.iter().any(|group| group.id == GroupId(2)));
    assert!(known.len() <= 2, "the spare clusters may keep one");
    swap.check();
}

/// What a group holds above its limit and cannot give up is nothing that the others have to pay for.
#[test]
fn a_group_stuck_above_its_limit_costs_the_others_nothing() {
    let config = Config {
        pool_max_bytes: 64 << 20,
        ..small(CodecKind::Zstd { level: 1 })
    };
    let rig = rig(config, Some(20));
    let swap = &rig.swap;
    let stuck = store(swap, 1);
    for n in 0..PAGES {
        let Location::Pool(handle) = swap.space.lock(stuck.plus(n)).word().location() else {
            panic!("it is in the pool");
        };
        if n.is_multiple_of(crate::BLOCK_PAGES as u32) {
            // Neither written nor dropped: a load will say.
            swap.pool.damage(handle, 8);
        }
    }
    store(swap, 2);
    let held = swap.group_pool_bytes(GroupId(2));
    swap.set_group_limits(GroupId(1), 4096, true).unwrap();
    for _ in 0..2000 {
        swap.work(Cpu(0));
    }
    assert_eq!(swap.group_pool_bytes(GroupId(2)), held);
    assert_eq!(rig.counters.zswpwb.get(), 0);
    swap.check();
}
