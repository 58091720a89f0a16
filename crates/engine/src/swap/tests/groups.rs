//! The global worker's way over groups.

use super::*;

/// Pages that each group stores: four turns' worth.
const PAGES: u32 = 4 * super::super::writeback::BATCH as u32;

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
    let config = Config {
        pool_max_bytes: 64 << 20,
        ..small(CodecKind::Lz4)
    };
    let rig = rig(config, Some(20));
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
    let config = Config {
        pool_max_bytes: 64 << 20,
        ..small(CodecKind::Lz4)
    };
    let rig = rig(config, Some(20));
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
