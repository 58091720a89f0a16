//! Blocks: pages that recompression put together.

use super::*;
use crate::BLOCK_PAGES;

/// A swap with two codecs and no device, or one of some clusters, that has compressed these pages
/// again; and what else it holds, so that they are the older part.
fn recompressed(pages: usize, clusters: Option<usize>) -> (Rig, Vec<EntryId>) {
    let (rig, entries) = to_recompress(pages, clusters);
    while rig.swap.work(Cpu(0)) {}
    rig.swap.check();
    (rig, entries)
}

/// The same before that.
fn to_recompress(pages: usize, clusters: Option<usize>) -> (Rig, Vec<EntryId>) {
    let config = Config {
        pool_max_bytes: 32 << 20,
        ..small(CodecKind::Lz4ThenZstd { level: 1 })
    };
    let rig = rig(config, clusters);
    let store = |seeds: std::ops::Range<u32>| -> Vec<EntryId> {
        let pages: Vec<PageBytes> = seeds.map(|seed| page(seed, RANDOM)).collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        let mut out = vec![None; pages.len()];
        let stored = rig.swap.store_each(Cpu(0), GroupId(0), &refs, &mut out);
        assert_eq!(stored, Ok(pages.len()));
        out.into_iter().flatten().collect()
    };
    let entries = store(0..pages as u32);
    store(1 << 20..(1 << 20) + pages as u32 + 2 * CLUSTER_SLOTS as u32);
    (rig, entries)
}

/// Of each page, what does not compress.
const RANDOM: usize = 100;

fn handle(swap: &Swap, entry: EntryId) -> Handle {
    match swap.space.lock(entry).word().location() {
        Location::Pool(handle) => handle,
        place => panic!("{entry} is not in the pool but at {place:?}"),
    }
}

fn load(swap: &Swap, entry: EntryId, seed: usize) -> Source {
    let mut out = [0x44; PAGE_SIZE];
    let source = swap.load(Cpu(0), entry, &mut out, false);
    assert!(out == page(seed as u32, RANDOM), "page {seed}");
    swap.check();
    source.unwrap()
}

#[test]
fn idle_neighbours_share_an_object() {
    let (rig, entries) = recompressed(CLUSTER_SLOTS, None);
    let swap = &rig.swap;
    let memory = swap.memory();
    assert_eq!(memory.pool_pages, 4 * CLUSTER_SLOTS as u64);
    for block in entries.chunks(4) {
        let first = handle(swap, block[0]);
        assert!(block.iter().all(|&entry| handle(swap, entry) == first));
        assert_eq!(swap.pool.read(first, &mut []).1, Codec::Block);
    }
    // In any order, alone and together with others.
    let (alone, together) = entries.split_at(256);
    for (k, &entry) in alone.iter().enumerate().rev() {
        assert_eq!(load(swap, entry, k), Source::Pool);
    }
    let mut rooms = vec![[0; PAGE_SIZE]; together.len()];
    let mut out: Vec<&mut PageBytes> = rooms.iter_mut().collect();
    let mut results = vec![Err(LoadError::Empty); together.len()];
    swap.load_each(Cpu(0), together, &mut out, false, &mut results);
    assert_eq!(results, vec![Ok(Source::Pool); together.len()]);
    for (k, room) in rooms.iter().enumerate() {
        assert!(*room == page(256 + k as u32, RANDOM));
    }
    swap.check();
    assert_eq!(swap.memory().pool_pages, 3 * CLUSTER_SLOTS as u64);
}

/// The pages of an object are fetched ahead once, and not where it is being read already.
#[test]
fn a_block_is_fetched_ahead_once() {
    let (rig, entries) = recompressed(CLUSTER_SLOTS, None);
    let swap = &rig.swap;
    let len = swap.pool.read(handle(swap, entries[4]), &mut []).0;
    for (blocks, ahead) in [(1, 0), (2, 1), (4, 3)] {
        let which = &entries[..4 * blocks];
        let mut rooms = vec![[0; PAGE_SIZE]; which.len()];
        let mut out: Vec<&mut PageBytes> = rooms.iter_mut().collect();
        let mut results = vec![Err(LoadError::Empty); which.len()];
        rig.world.prefetched.store(0, Relaxed);
        swap.load_each(Cpu(0), which, &mut out, true, &mut results);
        // With what the table says of each.
        assert_eq!(rig.world.prefetched.load(Relaxed), ahead * (len + 3));
    }
}

/// Where pages together gain too little, one that gains alone is compressed again, and the others stay.
#[test]
fn pages_that_gain_are_recompressed_among_others() {
    let config = Config {
        pool_max_bytes: 32 << 20,
        ..small(CodecKind::Lz4ThenZstd { level: 1 })
    };
    let rig = rig(config, None);
    let swap = &rig.swap;
    // Of the test's codec: only what is short gains.
    let random = |k: usize| [RANDOM, 400, 400, 400][k % 4];
    let store = |from: usize, n: usize| -> Vec<EntryId> {
        let pages: Vec<PageBytes> = (from..from + n)
            .map(|k| page(k as u32, random(k)))
            .collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        let mut out = vec![None; n];
        assert_eq!(swap.store_each(Cpu(0), GroupId(0), &refs, &mut out), Ok(n));
        out.into_iter().flatten().collect()
    };
    let entries = store(0, CLUSTER_SLOTS);
    store(CLUSTER_SLOTS, 3 * CLUSTER_SLOTS);
    while swap.work(Cpu(0)) {}
    swap.check();
    let codec = |k: usize| swap.pool.read(handle(swap, entries[k]), &mut []).1;
    let expected = [Codec::Zstd, Codec::Lz4, Codec::Lz4, Codec::Lz4];
    for k in 0..CLUSTER_SLOTS {
        assert_eq!(codec(k), expected[k % 4], "page {k}");
    }
    let mut out = [0; PAGE_SIZE];
    for (k, &entry) in entries.iter().enumerate() {
        swap.load(Cpu(0), entry, &mut out, false).unwrap();
        assert!(out == page(k as u32, random(k)));
    }
    swap.check();
}

/// Idle is what came before the youngest quarter: that is likelier to come back, and loaded faster as it is.
#[test]
fn the_youngest_pages_are_not_compressed_again() {
    let config = Config {
        pool_max_bytes: 32 << 20,
        ..small(CodecKind::Lz4ThenZstd { level: 1 })
    };
    let rig = rig(config, None);
    let swap = &rig.swap;
    let pages: Vec<PageBytes> = (0..8 * CLUSTER_SLOTS as u32)
        .map(|seed| page(seed, RANDOM))
        .collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    let mut out = vec![None; pages.len()];
    let stored = swap.store_each(Cpu(0), GroupId(0), &refs, &mut out);
    assert_eq!(stored, Ok(pages.len()));
    let entries: Vec<EntryId> = out.into_iter().flatten().collect();
    while swap.work(Cpu(0)) {}
    swap.check();
    let again = |entries: &[EntryId]| {
        let codec = |&entry| swap.pool.read(handle(swap, entry), &mut []).1;
        let codecs = entries.iter().map(codec);
        codecs.filter(|codec| *codec != Codec::Lz4).count()
    };
    assert_eq!(again(&entries[..5 * CLUSTER_SLOTS]), 5 * CLUSTER_SLOTS);
    assert_eq!(again(&entries[6 * CLUSTER_SLOTS..]), 0);
}

/// The rest of a block goes on taking the room of all of its pages, until it is packed again.
#[test]
fn the_rest_of_a_block_is_packed_again() {
    let (rig, entries) = recompressed(CLUSTER_SLOTS, None);
    let swap = &rig.swap;
    let before = swap.memory().pool_data_bytes;
    for (k, &entry) in entries.iter().enumerate().filter(|(k, _)| k % 4 != 1) {
        load(swap, entry, k);
    }
    assert_eq!(swap.memory().pool_data_bytes, before, "no block has gone");
    // Most of it in the background, and all where memory is short.
    let one = || (before - swap.memory().pool_data_bytes) / (3 * CLUSTER_SLOTS as u64 / 4);
    while swap.work(Cpu(0)) {}
    swap.check();
    assert!(one() >= 5 * RANDOM as u64, "{} bytes of each", one());
    swap.shrink_pool(Cpu(0), u64::MAX);
    swap.check();
    assert!(one() >= 8 * RANDOM as u64, "{} bytes of each", one());
    for (k, &entry) in entries.iter().enumerate().filter(|(k, _)| k % 4 == 1) {
        assert_eq!(swap.pool.read(handle(swap, entry), &mut []).1, Codec::Zstd);
        load(swap, entry, k);
    }
}

/// A device has pages, not blocks; and compaction moves a block with all that name it.
#[test]
fn pages_of_blocks_are_written_and_moved() {
    let (rig, entries) = recompressed(CLUSTER_SLOTS, Some(3));
    let swap = &rig.swap;
    // Every second of the blocks' windows' objects goes: room for compaction.
    for (k, block) in entries.chunks(4).enumerate().filter(|(k, _)| k % 2 == 0) {
        for (i, &entry) in block.iter().enumerate() {
            load(swap, entry, 4 * k + i);
        }
    }
    let handles = |entries: &[EntryId]| -> Vec<Handle> {
        entries.iter().map(|&entry| handle(swap, entry)).collect()
    };
    let left: Vec<(usize, EntryId)> = entries.into_iter().enumerate().collect();
    let left: Vec<_> = left.into_iter().filter(|(k, _)| k / 4 % 2 == 1).collect();
    let of_left: Vec<EntryId> = left.iter().map(|&(_, entry)| entry).collect();
    let before = handles(&of_left);
    while swap.compact_step(crate::pool::Worth::Any) {
        swap.check();
    }
    assert_ne!(handles(&of_left), before, "nothing moved");
    // Their first visit takes the second chance, if they have one.
    swap.shrink_pool(Cpu(0), u64::MAX);
    swap.check();
    let source = |&(k, entry): &(usize, EntryId)| load(swap, entry, k);
    assert!(
        left.iter()
            .map(source)
            .all(|source| source == Source::Device)
    );
}

/// Copies that are kept of a block's pages are given up one by one.
#[test]
fn kept_copies_in_blocks_are_given_up() {
    let (rig, entries) = recompressed(CLUSTER_SLOTS, Some(3));
    let swap = &rig.swap;
    let mut out = [0; PAGE_SIZE];
    for &entry in entries.iter().filter(|entry| entry.0 % 4 != 0) {
        swap.load(Cpu(0), entry, &mut out, true).unwrap();
    }
    swap.check();
    swap.shrink_pool(Cpu(0), u64::MAX);
    swap.check();
    for (k, &entry) in entries.iter().enumerate() {
        if entry.0 % 4 == 0 {
            assert_eq!(load(swap, entry, k), Source::Device);
        } else {
            assert_eq!(swap.place(entry), Place::Memory);
            swap.free(Cpu(0), entry, 1);
        }
    }
    swap.check();
}

/// Objects that a fork froze give nothing back: pages that left blocks there stay counted, however short
/// memory is.
#[test]
fn blocks_that_a_fork_froze_stay_as_they_are() {
    let (rig, entries) = recompressed(CLUSTER_SLOTS, None);
    let swap = &rig.swap;
    swap.fork_parent();
    for (k, &entry) in entries.iter().enumerate().filter(|(k, _)| k % 4 != 1) {
        load(swap, entry, k);
    }
    let before = swap.memory().pool_bytes;
    swap.shrink_pool(Cpu(0), u64::MAX);
    while swap.work(Cpu(0)) {}
    swap.check();
    assert_eq!(swap.memory().pool_bytes, before);
}

/// They are compressed again once no relative has them.
#[test]
fn pages_that_a_fork_froze_are_compressed_again_when_it_is_over() {
    let (rig, entries) = to_recompress(CLUSTER_SLOTS, None);
    let swap = &rig.swap;
    swap.fork_parent();
    let codecs = || -> Vec<Codec> {
        let codec = |&entry: &EntryId| swap.pool.read(handle(swap, entry), &mut []).1;
        entries.iter().map(codec).collect()
    };
    for expected in [Codec::Lz4, Codec::Block] {
        // A walk that is at the end begins again with the next step.
        for _ in 0..2 {
            while swap.work(Cpu(0)) {}
        }
        swap.check();
        let found = codecs();
        let same = found.iter().filter(|codec| **codec == expected);
        assert_eq!(same.count(), entries.len(), "{found:?}");
        swap.alone();
    }
}

/// A folio's block of two pages is at most as large as four pages' is for four.
#[test]
fn a_poor_block_is_not_made() {
    let rig = rig(small(CodecKind::Zstd { level: 1 }), None);
    let random = |i: u32| if i.is_multiple_of(2) { 0 } else { 500 };
    let pages: Vec<PageBytes> = (0..16).map(|i| page(i * 4, random(i))).collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    let first = rig.swap.store(Cpu(0), GroupId(0), &refs).unwrap();
    for i in (1..16).step_by(2) {
        let object = handle(&rig.swap, first.plus(i));
        assert_eq!(rig.swap.pool.read(object, &mut []).1, Codec::Raw);
    }
    rig.swap.check();
}

/// Damage of a block is found with each of its pages, and by nobody taken for another page.
#[test]
fn a_damaged_block_gives_no_page() {
    for at in [0, 8] {
        a_block_damaged_at(at);
    }
}

fn a_block_damaged_at(at: usize) {
    let (rig, entries) = recompressed(CLUSTER_SLOTS, Some(3));
    let swap = &rig.swap;
    let damaged = handle(swap, entries[0]);
    swap.pool.damage(damaged, at);
    // Packing it again finds it, too.
    let mut out = [0; PAGE_SIZE];
    let corrupt = Err(LoadError::PoolCorrupt);
    assert_eq!(swap.load(Cpu(0), entries[0], &mut out, false), corrupt);
    swap.free(Cpu(0), entries[0], 1);
    while swap.work(Cpu(0)) {}
    swap.shrink_pool(Cpu(0), u64::MAX);
    for (k, &entry) in entries.iter().enumerate().skip(1) {
        let mut out = [0; PAGE_SIZE];
        let loaded = swap.load(Cpu(0), entry, &mut out, false);
        if k < 4 {
            assert_eq!(loaded, corrupt);
        } else {
            assert_eq!(loaded, Ok(Source::Device));
            assert!(out == page(k as u32, RANDOM));
        }
    }
    swap.free(Cpu(0), entries[1], 3);
    swap.check();
}

/// Folios that the denser codec compresses are in blocks from the first, but for pages of one value, and
/// as long as their pages come back together.
#[test]
fn folios_are_in_blocks_while_their_pages_come_back_together() {
    const FOLIO: usize = 16;
    let rig = rig(small(CodecKind::Zstd { level: 1 }), None);
    let swap = &rig.swap;
    let folio = |seed: usize| -> Vec<PageBytes> {
        let random = |i: usize| if i.is_multiple_of(7) { 0 } else { RANDOM };
        (0..FOLIO)
            .map(|i| page((seed + i) as u32 * 4, random(i)))
            .collect()
    };
    let store = |seed: usize| {
        let pages = folio(seed);
        let refs: Vec<&PageBytes> = pages.iter().collect();
        let first = swap.store(Cpu(0), GroupId(0), &refs).unwrap();
        swap.check();
        first
    };
    let objects = |first: EntryId| {
        let each = (0..FOLIO as u32).map(|i| swap.space.lock(first.plus(i)).word().location());
        let pooled = each.filter(|place| matches!(place, Location::Pool(_)));
        pooled
            .map(|place| format!("{place:?}"))
            .collect::<HashSet<_>>()
            .len()
    };
    let load = |seed: usize, first: EntryId, together: usize| {
        let folio = folio(seed);
        let mut rooms = [[0x55; PAGE_SIZE]; FOLIO];
        for i in (0..FOLIO).step_by(together) {
            let entries: Vec<EntryId> = (i..i + together).map(|i| first.plus(i as u32)).collect();
            let mut out: Vec<&mut PageBytes> = rooms[i..i + together].iter_mut().collect();
            let mut results = vec![Err(LoadError::Empty); together];
            swap.load_each(Cpu(0), &entries, &mut out, false, &mut results);
            assert!(results.iter().all(Result::is_ok));
        }
        assert!(rooms[..] == folio);
        swap.check();
    };
    for round in 0..100 {
        let first = store(round);
        assert_eq!(objects(first), FOLIO / BLOCK_PAGES);
        load(round, first, FOLIO);
    }
    for round in 0..1000 {
        let first = store(round);
        load(round, first, 1);
    }
    // Pages of one value have no object.
    let alone = FOLIO - FOLIO.div_ceil(7);
    let some: Vec<usize> = (0..32).map(|round| objects(store(round))).collect();
    let in_blocks = some.iter().filter(|&&n| n == FOLIO / BLOCK_PAGES).count();
    assert_eq!(in_blocks, 2, "a sample goes on: {some:?}");
    assert!(some.iter().all(|&n| n == alone || n == FOLIO / BLOCK_PAGES));
}

/// Pages are loaded one by one and stored again alone. The rest of their blocks does not fill the pool,
/// in the background, and is all given up where memory is short.
#[test]
fn pages_that_left_blocks_do_not_fill_the_pool() {
    const PAGES: usize = 4096;
    let config = Config {
        pool_max_bytes: 32 << 20,
        ..small(CodecKind::Zstd { level: 1 })
    };
    let rig = rig(config, None);
    let swap = &rig.swap;
    let mut entries = Vec::new();
    for first in (0..PAGES).step_by(16) {
        let pages: Vec<PageBytes> = (first..first + 16)
            .map(|seed| page(seed as u32, RANDOM))
            .collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        let first = swap.store(Cpu(0), GroupId(0), &refs).unwrap();
        entries.extend((0..16).map(|i| first.plus(i)));
    }
    let before = swap.memory().pool_data_bytes;
    let mut most = 0;
    let mut random = 1usize;
    for step in 0..PAGES / 2 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let k = (random >> 33) % PAGES;
        let mut out = [0; PAGE_SIZE];
        swap.load(Cpu(0), entries[k], &mut out, false).unwrap();
        assert!(out == page(k as u32, RANDOM));
        let mut one = [None];
        swap.store_each(Cpu(0), GroupId(0), &[&out], &mut one)
            .unwrap();
        entries[k] = one[0].unwrap();
        if step % 64 == 0 {
            while swap.work(Cpu(0)) {}
            most = most.max(swap.memory().pool_data_bytes);
            swap.check();
        }
    }
    // Without packing again: as many as left stay, two fifths.
    assert!(most * 100 < before * 125, "{before} bytes grew to {most}");
    swap.shrink_pool(Cpu(0), u64::MAX);
    swap.check();
    let after = swap.memory().pool_data_bytes;
    assert!(after * 100 < before * 106, "{before} bytes are {after} now");
}
