//! What the shrinker writes, in which order, and in what pieces.

use super::*;
use crate::PageBytes;

fn sixteen_mib() -> Config {
    Config {
        pool_max_bytes: 16 << 20,
        ..small(CodecKind::Lz4)
    }
}

/// Stores `count` single pages in batches of 16; the worker comes after each if `worked`.
fn store_pages(swap: &Swap, first: u32, count: u32, worked: bool) -> Vec<EntryId> {
    let mut entries = Vec::new();
    for start in (first..first + count).step_by(16) {
        let pages: Vec<PageBytes> = (start..start + 16).map(|n| page(n, 200)).collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        let mut out = [None; 16];
        swap.store_each(Cpu(0), GroupId(0), &refs, &mut out)
            .unwrap();
        entries.extend(out.into_iter().flatten());
        while worked && swap.work(Cpu(0)) {}
    }
    entries
}

/// On an empty device a batch goes out in one write, two where it crosses into another cluster.
#[test]
fn batches_go_out_in_large_writes() {
    let rig = rig(sixteen_mib(), Some(20));
    let (swap, device) = (&rig.swap, rig.device.as_ref().unwrap());
    store_pages(swap, 0, 4096, false);
    let before = rig.counters.zswpwb.get();
    let mut batches = 0;
    while rig.counters.zswpwb.get() - before < 2048 {
        let writes = device.writes.load(Relaxed);
        let turn = swap.in_background(|background| swap.turn(Cpu(0), background));
        assert_eq!(turn.flatten().unwrap().written, 64);
        assert!(device.writes.load(Relaxed) - writes <= 2);
        batches += 1;
    }
    let writes = device.writes.load(Relaxed);
    assert!(
        writes <= batches + 2048 / CLUSTER_SLOTS as u32,
        "{writes} for {batches} batches"
    );
    swap.check();
}

/// Where the worker keeps up, the pool refuses nothing, four times its size through: pages go to the
/// device by writeback alone. What is refused is counted, whether or not it finds another place.
#[test]
fn the_pool_refuses_only_where_nothing_else_helps() {
    let rig = rig(sixteen_mib(), Some(40));
    let (swap, counters) = (&rig.swap, &rig.counters);
    store_pages(swap, 0, 16384, true);
    let seen = [
        &counters.reject_pool,
        &counters.pool_limit_hit,
        &counters.reject_full,
    ];
    assert_eq!(seen.map(|counter| counter.get()), [0; 3]);
    assert_eq!(counters.pswpout.get(), counters.zswpwb.get());
    assert!(
        counters.zswpwb.get() > 8192,
        "the pool was never near its limit"
    );

    // Stored all at once, with nobody to make room but the store itself.
    store_pages(swap, 20000, 8192, false);
    assert!(counters.pool_limit_hit.get() > 0);
    assert_eq!(counters.reject_pool.get(), 0, "the oldest made room");

    // The group may write no more: the next have no place.
    swap.set_group_limits(GroupId(0), u64::MAX, false).unwrap();
    let pages: Vec<PageBytes> = (0..1024).map(|n| page(30000 + n, 512)).collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    let mut out = [None; 1024];
    let stored = swap
        .store_each(Cpu(0), GroupId(0), &refs, &mut out)
        .unwrap_or(0);
    assert!(stored < 1024);
    assert_eq!(counters.reject_pool.get(), 1024 - stored as u64);
    assert_eq!(counters.reject_full.get(), 1024 - stored as u64);
    swap.check();
}

/// Pages leave in the order in which they came. A cluster's place in that order is that of its first
/// pages: those that fill its holes later get a second chance, and are there when it has its turn.
/// No others need one at first: a cluster is filled in one go, so its pages are as old as it is.
#[test]
fn pages_in_holes_of_older_clusters_are_written_after_their_neighbours() {
    let rig = rig(sixteen_mib(), Some(20));
    let swap = &rig.swap;
    let old = store_pages(swap, 0, 2048, false);
    // Half of the oldest cluster is free again, and filled by the youngest pages.
    let (freed, kept) = old[..CLUSTER_SLOTS].split_at(CLUSTER_SLOTS / 2);
    for &entry in freed {
        swap.free(Cpu(0), entry, 1);
    }
    let cluster = |entry: &EntryId| entry.0 / CLUSTER_SLOTS as u32;
    let mut young = store_pages(swap, 5000, 512, false);
    young.retain(|entry| cluster(entry) == cluster(&kept[0]));
    assert_eq!(
        young.len(),
        CLUSTER_SLOTS / 2,
        "the cluster was opened again"
    );
    let older = [kept, &old[CLUSTER_SLOTS..]].concat();
    let on_device = |entries: &[EntryId]| {
        let places = entries.iter().map(|&entry| swap.place(entry));
        places.filter(|&place| place == Place::Slot).count()
    };
    while on_device(&older) < older.len() {
        assert_eq!(
            on_device(&young),
            0,
            "{} of {}",
            on_device(&older),
            older.len()
        );
        swap.in_background(|background| swap.turn(Cpu(0), background));
        swap.check();
    }
    swap.shrink_pool(Cpu(0), u64::MAX);
    assert_eq!(on_device(&young), young.len(), "the second is the last");
}

/// After a page was read from the device, or the pool refused one, the worker lets a few batches'
/// time pass before it writes the next.
#[test]
fn the_worker_stands_back_after_others_used_the_device() {
    let rig = rig(sixteen_mib(), Some(20));
    let (swap, written) = (&rig.swap, || rig.counters.zswpwb.get());
    let entries = store_pages(swap, 0, 7168, false);
    assert!(!swap.behind(), "it need not hurry");
    assert!(swap.work(Cpu(0)) && written() > 0, "nobody else is there");
    let mut next = entries.iter();
    let mut read = || {
        let on_device = |entry: &&EntryId| swap.place(**entry) == Place::Slot;
        let entry = next.find(on_device).expect("some were written");
        let source = swap.load(Cpu(0), *entry, &mut [0; PAGE_SIZE], true);
        assert_eq!(source, Ok(Source::Device));
    };
    for what in ["read", "refused"] {
        // What needs no device comes first, and waits for nobody.
        while swap.pool.give_back(0) > 0 || swap.compact_step(false) {}
        match what {
            "read" => read(),
            _ => swap.note_refused(),
        }
        let before = written();
        swap.work(Cpu(0));
        assert_eq!(written(), before, "{what}: it wrote at once");
        // A millisecond passes with each look.
        (0..100).any(|_| swap.work(Cpu(0)) && written() > before);
        assert!(written() > before, "{what}: it did not go on");
    }
    swap.check();
}
