//! Transfers, and codecs, that take their time: what becomes of pages while they are on their way.
//!
//! One thread writes the pool's pages out, over and over, to a device that takes a while for each
//! batch and fails now and then. Another meanwhile stores pages, loads those that are just being
//! written, frees others, and knows what each must hold.

use super::tests::{Rig, page, rig};
use super::*;
use crate::PAGE_SIZE;
use crate::random::Random;
use crate::{Cpu, PageBytes};
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

/// Says that all is done, however the test ends: else the other thread would go on for ever.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A thread does `background` over and over while another, in `meanwhile`, has to do with the same
/// pages.
fn run_alongside(config: Config, background: impl Fn(&Swap) + Sync) {
    let mut met = 0;
    for seed in 1..=4u64 {
        let rig = rig(config, Some(12));
        let over = AtomicBool::new(false);
        let mut kept = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    background(&rig.swap);
                    std::thread::yield_now();
                }
            });
            let _done = Done(&over);
            let (busy, pages) = meanwhile(&rig, seed);
            met += busy;
            kept = pages;
        });
        for entry in kept {
            let word = rig.swap.space.lock(entry).word();
            assert!(!word.busy(), "seed {seed}: {entry} stays busy, {word:?}");
            rig.swap.free(Cpu(0), entry, 1);
        }
        while rig.swap.work(Cpu(0)) {}
        rig.swap.check();
        assert_eq!(rig.swap.entries(), 0);
        assert_eq!(rig.swap.memory().pool_data_bytes, 0);
    }
    assert!(met > 0, "nothing was on its way");
}

#[test]
fn pages_on_their_way_are_loaded_freed_and_nothing_is_lost() {
    let config = Config {
        pool_max_bytes: 4 << 20,
        ..Config::default()
    };
    run_alongside(config, |swap| {
        swap.shrink_pool(Cpu(1), 64 * PAGE_SIZE as u64);
        swap.work(Cpu(1));
    });
}

/// The same where pages stay in the pool, and are compressed again and moved there.
#[test]
fn pages_that_are_recompressed_and_compacted_are_loaded_freed_and_nothing_is_lost() {
    let config = Config {
        codec: CodecKind::Lz4ThenZstd { level: 1 },
        pool_max_bytes: 64 << 20,
        ..Config::default()
    };
    run_alongside(config, |swap| {
        while swap.work(Cpu(1)) {}
        swap.in_background(|_| swap.compact_step(crate::pool::Worth::Any));
    });
}

/// Stores that find the pool full while another thread writes back wait for the room that this
/// makes. None of their pages goes to the device before older ones do.
#[test]
fn young_pages_wait_for_room_while_another_thread_makes_it() {
    let rig = rig(
        Config {
            pool_max_bytes: 2 << 20,
            ..Config::default()
        },
        Some(12),
    );
    let (swap, device) = (&rig.swap, rig.device.as_ref().unwrap());
    device.delay.store(500, Relaxed);
    let over = AtomicBool::new(false);
    let full = || swap.pool.bytes() + 2 * PAGE_SIZE as u64 > swap.pool.max();
    let met = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !over.load(Relaxed) {
                if full() {
                    swap.shrink_pool(Cpu(1), 16 * PAGE_SIZE as u64);
                }
                std::thread::yield_now();
            }
        });
        let _done = Done(&over);
        let mut met = 0;
        for first in (0..4800).step_by(16) {
            // However the threads are scheduled, the other has begun to write.
            while full() && device.writing.load(Relaxed) == 0 && !writer.is_finished() {
                std::thread::yield_now();
            }
            met += usize::from(device.writing.load(Relaxed) > 0);
            let pages: Vec<PageBytes> = (first..first + 16).map(|n| page(n, 200)).collect();
            let refs: Vec<&PageBytes> = pages.iter().collect();
            let stored = swap.store_each(Cpu(0), GroupId(0), &refs, &mut [None; 16]);
            assert_eq!(stored, Ok(16));
        }
        met
    });
    let limit_hit = rig.counters.pool_limit_hit.get();
    assert!(met > 0 && limit_hit > 0, "{met} {limit_hit}");
    let at_once = rig.counters.pswpout.get() - rig.counters.zswpwb.get();
    // A store gives up waiting after some steps, or one that takes long, as when the other thread loses
    // its processor: then pages go at once. Without the wait it is one in seven.
    assert!(
        at_once <= 4800 / 50,
        "{at_once} of 4800 pages went to the device at once"
    );
    swap.check();
}

/// The program's work. Returns how often it met a page that was busy just before, and entries of pages
/// that it brought back and kept.
fn meanwhile(rig: &Rig, seed: u64) -> (usize, Vec<EntryId>) {
    let (swap, cpu) = (&rig.swap, Cpu(0));
    let device = rig.device.as_ref().unwrap();
    device.delay.store(100, Relaxed);
    rig.codec.delay.store(100, Relaxed);
    // Oldest first: those that are written out.
    let mut known: VecDeque<(EntryId, Box<PageBytes>)> = VecDeque::new();
    let (mut random, mut number, mut met) = (Random::new(seed), 0, 0);
    let mut kept = Vec::new();
    for step in 0..600 {
        if step % 50 == 49 {
            device.fail_writes.store(1 << (step % 7), Relaxed);
        }
        if known.len() < 1500 {
            let pages: Vec<Box<PageBytes>> = (0..16)
                .map(|_| {
                    number += 1;
                    Box::new(page(number, 20 + random.below(300)))
                })
                .collect();
            let refs: Vec<&PageBytes> = pages.iter().map(|page| &**page).collect();
            let mut entries = [None; 16];
            let stored = swap.store_each(cpu, GroupId(0), &refs, &mut entries);
            assert_eq!(stored, Ok(16), "seed {seed}");
            known.extend(entries.into_iter().flatten().zip(pages));
        }
        for _ in 0..12 {
            let which = random.below((known.len() / 2).max(1));
            let Some((entry, content)) = known.remove(which) else {
                continue;
            };
            met += usize::from(swap.space.lock(entry).word().busy());
            if random.below(3) == 0 {
                swap.free(cpu, entry, 1);
                continue;
            }
            let mut out = [0; PAGE_SIZE];
            let keep = random.below(2) == 0;
            let result = swap.load(cpu, entry, &mut out, keep);
            assert!(result.is_ok(), "seed {seed}: {result:?}");
            kept.extend(keep.then_some(entry));
            assert!(out == *content, "seed {seed}: entry {entry} is another");
        }
    }
    for (entry, content) in known {
        let mut out = [0; PAGE_SIZE];
        assert!(swap.load(cpu, entry, &mut out, false).is_ok());
        assert!(out == *content, "seed {seed}: entry {entry} is another");
    }
    (met, kept)
}
