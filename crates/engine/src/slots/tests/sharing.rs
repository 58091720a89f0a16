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
