//! That processors keep out of each other's way, by the locks that they take.

use super::*;
use crate::locks::{Place, taken};
use std::collections::VecDeque;

/// Folios that a processor holds: whole clusters' worth.
const HELD: usize = 128;
const ORDER: u8 = 4;

/// Locks of a place for each pair of allocation and free, in hundredths, where two processors, in
/// turn, allocate a folio and free their oldest.
fn locks_of_pairs(place: Place, pairs: usize) -> u64 {
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
fn what_a_processor_emptied_goes_back_to_the_lender() {
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
    let [cpus, clusters, lists] =
        [Place::Cpu, Place::Cluster, Place::Lists].map(|place| locks_of_pairs(place, 6400));
    println!("{cpus} of processors, {clusters} of clusters, {lists} of lists, for 100 pairs");
    // Each of its own: one to allocate, one to free.
    assert!(cpus <= 210, "{cpus} locks of processors for 100 pairs");
    assert!(clusters <= 25, "{clusters} locks of clusters for 100 pairs");
    assert!(lists <= 25, "{lists} locks of lists for 100 pairs");
}

/// Locks of clusters and of lists for 100 allocations, where a processor keeps a device 90% full and
/// replaces what it has, in no order: folios alone, or pages and folios in turn, which lie apart.
fn locks_of_sizes(pages_too: bool) -> [u64; 2] {
    let slots = 1 << 15;
    let (devices, _) = one(slots, Options::default());
    let mut out = ExtentList::new();
    let mut allocate = |len: u16| {
        out.clear();
        devices.allocate(A, len, EntryId(0), &mut out).unwrap();
        assert_eq!(out.len(), 1, "placement alone finds room");
        out[0]
    };
    let folios = if pages_too { slots / 32 } else { slots / 16 } as usize * 9 / 10;
    let mut held: Vec<Extent> = (0..folios).map(|_| allocate(16)).collect();
    if pages_too {
        held.extend((0..folios * 16).map(|_| allocate(1)));
    }
    let places = [Place::Cluster, Place::Lists];
    let mut random = 1u64;
    let (mut before, rounds) = ([0; 2], 20_000);
    for round in 0..2 * rounds {
        if round == rounds {
            before = places.map(taken);
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
        // Of the folios or of the pages, as often.
        let from = if pages_too && round % 2 == 0 {
            folios..held.len()
        } else {
            0..folios
        };
        let at = from.start + (random >> 33) as usize % from.len();
        devices.free(A, EntryId(0), held[at]).unwrap();
        held[at] = allocate(held[at].len);
    }
    devices.check();
    let now = places.map(taken);
    [0, 1].map(|i| 100 * (now[i] - before[i]) / rounds as u64)
}

/// Pages of different sizes lie in different clusters, which costs no search: each size has its own
/// list and its own cursor.
#[test]
fn to_keep_sizes_apart_takes_no_more_locks() {
    let [alone, both] = [false, true].map(locks_of_sizes);
    println!("of clusters and lists, for 100 pairs: {alone:?} folios alone, {both:?} with pages");
    for (alone, both) in alone.into_iter().zip(both) {
        assert!(10 * both <= 11 * alone, "{both} against {alone}");
    }
}
