//! That processors keep out of each other's way, by the locks that they take.

use super::*;
use crate::locks::{LockRank, taken};
use std::collections::VecDeque;

/// Folios that a processor holds: whole clusters' worth.
const HELD: usize = 128;
const ORDER: u8 = 4;

/// Locks of a place for each pair of allocation and free, in hundredths, where two processors, in
/// turn, allocate a folio and free their oldest.
fn locks_of_pairs(place: LockRank, pairs: usize) -> u64 {
    let (devices, _) = one(1 << 15, Options::default());
    let mut out = ExtentList::new();
    let mut allocate = |cpu| {
        out.clear();
        devices
            .allocate(cpu, 1 << ORDER, EntryId(0), &mut out)
            .unwrap();
        out[0]
    };
    let cpus = [A, B];
    let mut held = cpus.map(|cpu| (0..HELD).map(|_| allocate(cpu)).collect::<VecDeque<_>>());
    let mut before = 0;
    for pair in 0..2 * pairs {
        if pair == pairs {
            before = taken(place);
        }
        let (cpu, held) = (cpus[pair % 2], &mut held[pair % 2]);
        held.push_back(allocate(cpu));
        let oldest = held.pop_front().unwrap();
        devices.free(cpu, EntryId(0), oldest).unwrap();
    }
    devices.check();
    let after = taken(place);
    100 * (after - before) / pairs as u64
}

/// A processor that frees all it has and then nothing more keeps no cluster from others.
#[test]
fn a_cluster_emptied_by_a_processor_goes_back_to_the_lender() {
    let (devices, lender) = lent(8);
    let mut out = ExtentList::new();
    for i in 0..4 * 32 {
        devices.allocate(A, 16, EntryId(i), &mut out).unwrap();
    }
    for run in out.0.drain(..) {
        devices.give(A, run).unwrap();
    }
    while devices.work(A, 64) > 0 {}
    devices.check();
    let kept = 8 - lender.free_clusters();
    // Those that are held ready for whoever comes (`RESERVE`).
    assert!(kept <= 2, "{kept} clusters are kept");
}

#[test]
fn processors_that_free_and_allocate_keep_out_of_each_others_way() {
    let [cpus, clusters, lists] = [LockRank::Cpu, LockRank::Cluster, LockRank::Lists]
        .map(|place| locks_of_pairs(place, 6400));
    println!("{cpus} of processors, {clusters} of clusters, {lists} of lists, for 100 pairs");
    // Each of its own: one to allocate, one to free.
    assert!(cpus <= 210, "{cpus} locks of processors for 100 pairs");
    assert!(clusters <= 25, "{clusters} locks of clusters for 100 pairs");
    assert!(lists <= 25, "{lists} locks of lists for 100 pairs");
}

/// Pages that are swapped out alike: in what size, and by which processor.
#[derive(Clone, Copy)]
struct Kind {
    pages: u16,
    cpu: Cpu,
}

const FOLIOS: Kind = Kind { pages: 16, cpu: A };

/// Locks of clusters and of lists for 100 pairs of free and allocation, on a device kept 90% full, half
/// with `stay` and half with `go`. Slots are replaced in random order: of `stay` one in `every`.
fn locks_of_kinds(stay: Kind, go: Kind, every: usize) -> [u64; 2] {
    let slots = 1 << 15;
    let (devices, _) = one(slots, Options::default());
    let mut out = ExtentList::new();
    let mut allocate = |kind: Kind| {
        out.clear();
        devices
            .allocate(kind.cpu, kind.pages, EntryId(0), &mut out)
            .unwrap();
        assert_eq!(out.len(), 1, "placement alone finds room");
        out[0]
    };
    let half = slots as usize * 9 / 20;
    let mut held = [stay, go].map(|kind| {
        let count = half / usize::from(kind.pages);
        (kind, (0..count).map(|_| allocate(kind)).collect::<Vec<_>>())
    });
    let places = [LockRank::Cluster, LockRank::Lists];
    let mut random = 1u64;
    let (mut before, rounds) = ([0; 2], 20_000);
    for round in 0..2 * rounds {
        if round == rounds {
            before = places.map(taken);
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
        let (kind, held) = &mut held[usize::from(round % every != 0)];
        let at = (random >> 33) as usize % held.len();
        devices.free(kind.cpu, EntryId(0), held[at]).unwrap();
        held[at] = allocate(*kind);
    }
    devices.check();
    let now = places.map(taken);
    [0, 1].map(|i| 100 * (now[i] - before[i]) / rounds as u64)
}

/// By 5% at least: one cursor for both would take as many.
fn assert_fewer(together: [u64; 2], apart: [u64; 2]) {
    println!("of clusters and lists, for 100 pairs: {together:?} together, {apart:?} apart");
    for (together, apart) in together.into_iter().zip(apart) {
        assert!(20 * apart <= 19 * together, "{apart} against {together}");
    }
}

/// Pages of different sizes lie in different clusters, which costs no search: each size has its own
/// list and its own cursor. And clusters are filled and emptied by fewer turns.
#[test]
fn to_keep_sizes_apart_takes_fewer_locks() {
    let pages = Kind { pages: 1, ..FOLIOS };
    assert_fewer(
        locks_of_kinds(FOLIOS, FOLIOS, 2),
        locks_of_kinds(FOLIOS, pages, 2),
    );
}

/// Pages that stay and pages that come and go lie apart where two processors swap them out (`ebb lab
/// lifetimes`), which costs no search either: each has its own cursors.
#[test]
fn to_keep_lifetimes_apart_takes_fewer_locks() {
    let others = Kind { cpu: B, ..FOLIOS };
    assert_fewer(
        locks_of_kinds(FOLIOS, FOLIOS, 100),
        locks_of_kinds(FOLIOS, others, 100),
    );
}
