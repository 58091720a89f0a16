//! That processors keep out of each other's way: by the locks that they take and by what lies on one
//! cache line.

use super::*;
use crate::Cpu;
use crate::entries::Vacated;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The operations of a store, and of the free after it, on entries.
fn store_and_free(space: &Space, cpu: Cpu) {
    let mut out = [EntryId(0); 16];
    space.reserve_each(cpu, GroupId(0), &mut out).unwrap();
    let (first, _) = space.reserve_run(cpu, GroupId(0), 16).unwrap();
    for entry in out.into_iter().chain((0..16).map(|i| first.plus(i))) {
        space.lock(entry).set(EntryWord::same(1));
        assert!(matches!(space.lock(entry).release(), Vacated::Place(_)));
    }
}

fn lines<T>(thing: &T) -> RangeInclusive<usize> {
    let start = std::ptr::from_ref(thing) as usize;
    start / 64..=(start + size_of::<T>() - 1) / 64
}

/// Checked by addresses: a processor's own part, its clusters, their places in the directory, and the
/// counts of its hold on the group that all have in common.
#[test]
fn processors_share_no_cache_line_on_the_fast_path() {
    const CPUS: u16 = 8;
    let space = Space::new(CPUS.into());
    for round in 0..300 {
        for cpu in (0..CPUS).map(Cpu) {
            let mut out = [EntryId(0); 16];
            space.reserve_each(cpu, GroupId(0), &mut out).unwrap();
            space.reserve_run(cpu, GroupId(0), 16).unwrap();
            if round % 3 > 0 {
                store_and_free(&space, cpu);
            }
        }
    }
    let mut owners = BTreeMap::new();
    let mut own = |cpu: usize, lines: RangeInclusive<usize>| {
        for line in lines {
            let other = owners.insert(line, cpu).filter(|&other| other != cpu);
            assert_eq!(other, None, "processor {cpu} shares a line");
        }
    };
    space.each_cluster(|number, cluster| {
        let cpu = usize::from(cluster.maker);
        own(cpu, lines(space.slot(number)));
        own(cpu, lines(cluster));
        let counts = cluster.group.line() as usize / 64;
        own(cpu, counts..=counts);
    });
    for (cpu, part) in space.cpus.iter().enumerate() {
        own(cpu, lines(part));
    }
    assert!(owners.len() > 8 * 20 * 64, "there are many clusters");
}

/// Somebody holds all that is not this processor's: the table of groups, the group's lists, the spare
/// clusters, the other processors' cursors.
#[test]
fn a_store_waits_for_no_lock_that_is_not_its_processors() {
    let space = Space::new(2);
    store_and_free(&space, Cpu(0));
    store_and_free(&space, Cpu(1));
    let group = space.group(GroupId(0));
    let held = (
        space.groups.write(),
        crate::locks::try_lock(&group.lists).unwrap(),
        crate::locks::try_lock(&space.spare).unwrap(),
        crate::locks::try_lock(&space.cpus[1].cursors).unwrap(),
    );
    std::thread::scope(|scope| {
        let store = scope.spawn(|| store_and_free(&space, Cpu(0)));
        let begun = Instant::now();
        while !store.is_finished() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        let waits = !store.is_finished();
        drop(held);
        assert!(!waits);
    });
    space.check();
}

/// And none of those that all have in common.
#[cfg(debug_assertions)]
#[test]
fn a_store_takes_its_processors_locks_alone() {
    use crate::locks::taken;
    let space = Space::new(2);
    store_and_free(&space, Cpu(0));
    let count = || {
        let ranks = [LockRank::EntryCursor, LockRank::GroupLists, LockRank::Leaf];
        ranks.map(taken)
    };
    let before = count();
    (0..10).for_each(|_| store_and_free(&space, Cpu(0)));
    let after = count();
    let taken = [0, 1, 2].map(|i| after[i] - before[i]);
    assert_eq!(taken, [20, 0, 0], "once for singles and once for a run");
}
