//! The shrinker's writes: their order and their pieces.

use super::*;
use crate::PageBytes;
use crate::random::Random;

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

/// On a mostly full device, where pages were freed in random order, a batch needs no more writes than
/// the holes side by side make: as many a page as there are slots in use a page.
#[test]
fn batches_go_out_in_few_writes_where_the_device_is_nearly_full() {
    for percent in [70, 80, 90] {
        let rig = rig(sixteen_mib(), Some(20));
        let (swap, device) = (&rig.swap, rig.device.as_ref().unwrap());
        let slots = 20 * CLUSTER_SLOTS;
        let mut held = Vec::new();
        let turn = || swap.in_background(|background| swap.turn(Cpu(0), background));
        while rig.counters.zswpwb.get() < slots as u64 {
            held.extend(store_pages(swap, held.len() as u32, 512, false));
            for _ in 0..8 {
                turn();
            }
        }
        let mut random = Random::new(1);
        let mut left = slots;
        while left * 100 > slots * percent {
            let entry = held.swap_remove(random.below(held.len()));
            left -= usize::from(swap.place(entry) == Place::Slot);
            swap.free(Cpu(0), entry, 1);
        }
        swap.devices.as_ref().unwrap().work(Cpu(0), 1000);
        store_pages(swap, 20_000, 512, false);
        let before = device.writes.load(Relaxed);
        let (mut batches, mut pages) = (0, 0);
        while batches < 8 {
            pages += turn().flatten().unwrap().written;
            batches += 1;
        }
        let writes = device.writes.load(Relaxed) - before;
        println!("{percent}% full: {writes} writes for {pages} pages, {batches} batches");
        assert_eq!(pages, 64 * batches as usize);
        let holes = pages * percent / 100;
        assert!(writes as usize <= holes + holes / 16, "{percent}% full");
        swap.check();
    }
}

/// A page that was loaded, kept its copy in the pool and goes back to it unwritten has been used. It has
/// one second chance, while pages that came with it are written.
#[test]
fn a_page_that_was_used_and_not_written_has_a_second_chance() {
    let rig = rig(sixteen_mib(), Some(20));
    let swap = &rig.swap;
    let entries = store_pages(swap, 0, 4096, false);
    let used = [3, 40];
    let mut out = [0; PAGE_SIZE];
    for at in used {
        swap.load(Cpu(0), entries[at], &mut out, true).unwrap();
        assert!(swap.uncache(entries[at]));
    }
    let turn = || swap.in_background(|background| swap.turn(Cpu(0), background));
    assert_eq!(turn().flatten().unwrap().written, 64);
    for (at, &entry) in entries.iter().enumerate().take(64 + used.len()) {
        let place = if used.contains(&at) {
            Place::Pool
        } else {
            Place::Slot
        };
        assert_eq!(swap.place(entry), place, "page {at}");
    }
    // No third one.
    for _ in 0..entries.len() / 64 {
        turn();
    }
    for at in used {
        assert_eq!(swap.place(entries[at]), Place::Slot, "page {at}");
    }
    swap.check();
}

/// Where the worker keeps up, the pool refuses nothing, four times its size through: pages go to the
/// device by writeback alone. Refused pages are counted, whether or not they find another place.
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
    swap.set_group_writeback(GroupId(0), false);
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
/// pages. Pages that fill its holes later get a second chance, and have their turn among those that came
/// with them. No others need one: a cluster is filled in one go, so its pages are as old as it is.
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
    assert!(!swap.needs_writeback(), "it need not hurry");
    assert!(swap.work(Cpu(0)) && written() > 0, "nobody else is there");
    let mut next = entries.iter();
    let mut read = || {
        let on_device = |entry: &&EntryId| swap.place(**entry) == Place::Slot;
        let entry = next.find(on_device).expect("some were written");
        let source = swap.load(Cpu(0), *entry, &mut [0; PAGE_SIZE], true);
        assert_eq!(source, Ok(Source::Device));
    };
    for what in ["read", "refused", "read by another process"] {
        // Work that needs no device comes first, and waits for nobody.
        while swap.pool.give_back(0) > 0 || swap.compact_step(crate::pool::Worth::Much) {}
        match what {
            "read" => read(),
            "refused" => swap.note_refused(),
            _ => swap.others_loaded(swap.env.clock.now_ns()),
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

/// Nearly at its limit it writes whoever else uses the device, unless there is room elsewhere.
#[test]
fn the_worker_hurries_only_where_there_is_no_other_room() {
    let rig = rig(sixteen_mib(), Some(20));
    let (swap, written) = (&rig.swap, || rig.counters.zswpwb.get());
    store_pages(swap, 0, 7168, false);
    let hurries = |patient| {
        swap.set_patient(patient);
        while swap.pool.give_back(0) > 0 || swap.compact_step(crate::pool::Worth::Much) {}
        let bytes = swap.pool.bytes();
        swap.set_limits(bytes / 100 * 101, 50).unwrap();
        let before = written();
        swap.others_loaded(swap.env.clock.now_ns() + 10_000_000);
        swap.work(Cpu(0));
        written() > before
    };
    assert!(
        hurries(false) && hurries(false),
        "its first batch, and another"
    );
    assert!(!hurries(true));
    swap.check();
}

/// A cluster that is open for long, as single pages come seldom between folios, holds pages that are
/// younger than its place in the order.
#[test]
fn pages_that_come_late_to_an_open_cluster_are_written_in_their_turn() {
    let rig = rig(sixteen_mib(), Some(20));
    let swap = &rig.swap;
    let old = store_pages(swap, 0, 16, false);
    let store = |first: u32, cpu| {
        let pages: Vec<PageBytes> = (first..first + 16).map(|n| page(n, 200)).collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        swap.store(cpu, GroupId(0), &refs).unwrap()
    };
    let folios: Vec<EntryId> = (0..160).map(|n| store(100 + 16 * n, Cpu(0))).collect();
    let late = store_pages(swap, 5000, 16, false);
    let cluster = |entry: EntryId| entry.0 / CLUSTER_SLOTS as u32;
    assert_eq!(cluster(late[0]), cluster(old[0]), "it was still open");
    let younger: Vec<EntryId> = (0..160).map(|n| store(6000 + 16 * n, Cpu(1))).collect();
    let on_device = |entries: &[EntryId]| {
        let places = entries.iter().map(|&entry| swap.place(entry));
        places.filter(|&place| place == Place::Slot).count()
    };
    while on_device(&folios) < folios.len() {
        assert_eq!(on_device(&late), 0, "{} of 160", on_device(&folios));
        swap.in_background(|background| swap.turn(Cpu(0), background));
        assert_eq!(on_device(&old), old.len(), "the oldest go first");
        swap.check();
    }
    while on_device(&late) < late.len() {
        swap.in_background(|background| swap.turn(Cpu(0), background));
    }
    assert!(on_device(&younger) < younger.len() / 3, "not the last");
    swap.check();
}

/// Two processors store folios and single pages, now more, now less, while the worker writes: the
/// percentage of pairs, of a page on the device and one in the pool, that are the wrong way round.
#[test]
fn folios_and_single_pages_leave_in_one_order() {
    for seed in 1..=3u64 {
        let rig = rig(sixteen_mib(), Some(60));
        let swap = &rig.swap;
        let mut numbers = Random::new(seed);
        let mut random = |below: usize| numbers.below(below);
        let mut stored = Vec::new();
        while stored.len() < 20_000 {
            // Long stretches in which one kind is rare.
            let stretch = stored.len() / 3000;
            let folio = random(10) > if stretch % 2 == 0 { 0 } else { 8 };
            let cpu = Cpu(u16::from(random(10) < [1, 5, 9][stretch % 3]));
            let first = stored.len() as u32;
            let pages: Vec<PageBytes> = (first..first + 16).map(|n| page(n, 200)).collect();
            let refs: Vec<&PageBytes> = pages.iter().collect();
            if folio {
                let first = swap.store(cpu, GroupId(0), &refs).unwrap();
                stored.extend((0..16).map(|i| first.plus(i)));
            } else {
                let mut out = [None; 16];
                let n = 1 + random(4);
                swap.store_each(cpu, GroupId(0), &refs[..n], &mut out)
                    .unwrap();
                stored.extend(out.into_iter().flatten());
            }
            while swap.work(Cpu(0)) {}
        }
        let (mut inverted, mut pooled, mut on_device) = (0u64, 0u64, 0u64);
        for &entry in &stored {
            match swap.place(entry) {
                Place::Pool => pooled += 1,
                _ => (inverted, on_device) = (inverted + pooled, on_device + 1),
            }
        }
        assert!(pooled > 4000 && on_device > 4000);
        let percent = inverted as f64 * 100.0 / (pooled * on_device) as f64;
        println!("seed {seed}: {percent:.2}% of pairs, {pooled} pages in the pool");
        assert!(percent < 1.0, "seed {seed}: {percent}");
        swap.check();
    }
}

/// With devices full, or a group that may not write, nothing leaves and nothing changes its place: when
/// there is room again it is the turn of the oldest.
#[test]
fn a_page_that_cannot_leave_stays_in_its_place() {
    let rig = rig(sixteen_mib(), Some(1));
    let swap = &rig.swap;
    let entries = store_pages(swap, 0, 4096, false);
    let on_device = || {
        let place = |entry: &&EntryId| swap.place(**entry) == Place::Slot;
        let out = entries.iter().filter(place).count();
        assert_eq!(entries.iter().take_while(place).count(), out, "in order");
        out
    };
    let turn = || swap.in_background(|background| swap.turn(Cpu(0), background));
    for _ in 0..50 {
        turn();
        swap.check();
    }
    assert_eq!(on_device(), CLUSTER_SLOTS);
    // A copy of a resident page gives way, wherever it stands.
    let copy = entries[4000];
    let source = swap.load(Cpu(0), copy, &mut [0; PAGE_SIZE], true);
    assert_eq!(source, Ok(Source::Pool));
    assert!((0..10).any(|_| turn().flatten().unwrap().dropped == 1));
    assert_eq!(swap.place(copy), Place::Memory);
    swap.set_group_writeback(GroupId(0), false);
    for _ in 0..50 {
        turn();
    }
    swap.set_group_writeback(GroupId(0), true);
    for &entry in &entries[..100] {
        swap.load(Cpu(0), entry, &mut [0; PAGE_SIZE], false)
            .unwrap();
    }
    turn();
    turn();
    let place = |i: usize| swap.place(entries[i]);
    for i in CLUSTER_SLOTS..CLUSTER_SLOTS + 100 {
        assert_eq!(place(i), Place::Slot, "page {i}");
    }
    assert_eq!(place(CLUSTER_SLOTS + 100), Place::Pool);
    swap.check();
}

/// A folio for which there is no room comes again page by page, and counts then.
#[test]
fn a_folio_that_is_refused_counts_once() {
    let rig = rig(small(CodecKind::Lz4), None);
    let (swap, counters) = (&rig.swap, &rig.counters);
    let content: Vec<PageBytes> = (0..64).map(|n| page(n, 512)).collect();
    let refs: Vec<&PageBytes> = content.iter().collect();
    let seen = || {
        let counters = [
            &counters.reject_pool,
            &counters.reject_full,
            &counters.pool_limit_hit,
        ];
        counters.map(|counter| counter.get())
    };
    swap.store(Cpu(0), GroupId(0), &refs[..32]).unwrap();
    while swap.store(Cpu(0), GroupId(0), &refs).is_ok() {}
    assert_eq!(seen(), [0; 3]);
    let mut out = [None; 64];
    let stored = swap.store_each(Cpu(0), GroupId(0), &refs, &mut out);
    let refused = 64 - stored.unwrap() as u64;
    assert!(refused > 0);
    let [by_pool, in_full, hits] = seen();
    assert_eq!([by_pool, in_full], [refused; 2]);
    assert!(hits > 0);
    assert!(swap.store(Cpu(0), GroupId(0), &refs[..1]).is_err());
    assert_eq!(
        seen()[..2],
        [refused + 1; 2],
        "a single page counts at once"
    );
}

/// The threshold can be changed at any time, and what is above it then leaves.
#[test]
fn a_lower_threshold_is_worked_down_to() {
    let rig = rig(sixteen_mib(), Some(20));
    let swap = &rig.swap;
    while swap.memory().pool_bytes < 9 << 20 {
        store_pages(swap, swap.entries() as u32, 256, true);
    }
    assert_eq!(rig.counters.zswpwb.get(), 0, "below the threshold of 60%");
    swap.set_limits(16 << 20, 30).unwrap();
    // It stands back after its own writes, and a millisecond passes with each look.
    for _ in 0..10_000 {
        swap.work(Cpu(0));
    }
    let percent = swap.memory().pool_bytes * 100 / (16 << 20);
    assert!((27..=30).contains(&percent), "{percent}%");
    swap.check();
}

/// Turns that move nothing are few: after some it rests, and then tries again.
#[test]
fn a_device_that_takes_nothing_is_left_alone_for_a_while() {
    let rig = rig(sixteen_mib(), Some(20));
    let (swap, device) = (&rig.swap, rig.device.as_ref().unwrap());
    store_pages(swap, 0, 4096, false);
    swap.set_limits(16 << 20, 20).unwrap();
    *device.why.lock().unwrap() = IoError::NoSpace;
    let turns = || {
        let before = rig.counters.reject_reclaim_fail.get();
        device.fail_writes.store(u32::MAX, Relaxed);
        swap.work(Cpu(0));
        u32::from(rig.counters.reject_reclaim_fail.get() > before)
    };
    let now = || rig.world.now.load(Relaxed);
    let begin = now();
    let mut tried = 0;
    while now() - begin < crate::shrinker::REST_NS / 2 {
        tried += turns();
    }
    assert_eq!(tried, crate::shrinker::MAX_FAILURES);
    assert!((0..2000).any(|_| turns() > 0), "it does not try again");
    assert_eq!(rig.counters.zswpwb.get(), 0);
    swap.check();
}

/// Clusters that have no page in the pool any more cost nobody a turn: theirs were the oldest, and were
/// loaded.
#[test]
fn entries_without_pages_in_the_pool_cost_no_turn() {
    let rig = rig(sixteen_mib(), Some(20));
    let swap = &rig.swap;
    for folio in 0..160 {
        let random = |n: u32| if n.is_multiple_of(2) { 0 } else { 10 };
        let pages: Vec<PageBytes> = (0..64).map(|n| page(folio << 6 | n, random(n))).collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        let first = swap.store(Cpu(0), GroupId(0), &refs).unwrap();
        for n in (1..64).step_by(2) {
            let loaded = swap.load(Cpu(0), first.plus(n), &mut [0; PAGE_SIZE], false);
            assert_eq!(loaded, Ok(Source::Pool));
        }
    }
    let entries = store_pages(swap, 50_000, 64, false);
    let turn = swap.in_background(|background| swap.turn(Cpu(0), background));
    assert_eq!(turn.flatten().unwrap().written, 64);
    assert!(
        entries
            .iter()
            .all(|&entry| swap.place(entry) == Place::Slot)
    );
    swap.check();
}

/// A group of few pages is visited again and again for one batch. Pages that no device took go back to
/// where they were, through all visits.
#[test]
fn a_page_that_is_not_written_stays_the_oldest() {
    let rig = rig(sixteen_mib(), Some(20));
    let (swap, device) = (&rig.swap, rig.device.as_ref().unwrap());
    // Three clusters: of one processor's single pages, of its folios, and of another's single pages.
    let pages: Vec<PageBytes> = (0..12).map(|n| page(n, 200)).collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    let mut out = [None; 4];
    let mut each = |cpu, refs: &[&PageBytes]| {
        swap.store_each(cpu, GroupId(0), refs, &mut out).unwrap();
        out[0].unwrap()
    };
    let oldest = each(Cpu(0), &refs[..4]);
    swap.store(Cpu(0), GroupId(0), &refs[4..8]).unwrap();
    each(Cpu(1), &refs[8..]);
    let turn = || {
        let turn = swap.in_background(|background| swap.turn(Cpu(0), background));
        turn.flatten().unwrap().written
    };
    *device.why.lock().unwrap() = IoError::Again;
    device.fail_writes.store(u32::MAX, Relaxed);
    assert_eq!(turn(), 0);
    // The run fails, and then each page of it but the first.
    *device.why.lock().unwrap() = IoError::Slot;
    device.fail_writes.store(0b1_1111_1111_1101, Relaxed);
    assert_eq!(turn(), 1);
    assert_eq!(swap.place(oldest), Place::Slot, "another went first");
    device.fail_writes.store(0, Relaxed);
    swap.check();
}
