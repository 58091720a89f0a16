//! The way out and in: capture, swap out, swap in, resolve, room.

use super::machine::Machine;
use crate::eviction::make_room::{Step, When};
use crate::map::page_map::{Page, UNIT};
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_engine::random::Random;
use ebb_memory_kernel::{PAGE, Stop};
use ebb_stores::{FaultyStore, RamStore};
use ebb_sys::paging::Kernel;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Four times as much memory as the budget, touched at random and in order, by content of its own.
#[test]
fn every_page_comes_back_as_it_was_written() {
    let mut machine = Machine::new(2048);
    let (pages, mut random) = (8192, Random::new(7));
    let start = machine.map(pages);
    for step in 0..30_000usize {
        let page = match step / 4096 % 2 {
            0 => step % pages,
            _ => random.below(pages),
        };
        let address = start + page * PAGE + page % PAGE;
        match random.below(3) {
            0 => machine.read(address),
            _ => machine.write(address, (step * 31 + page) as u8),
        }
        if step % 500 == 0 {
            machine.check();
        }
    }
    machine.read_all();
    machine.check();
    let counters = machine.process.counters();
    assert!(counters.evicted.get() > 8192, "{}", counters.evicted.get());
    assert!(counters.map_disagrees.get() == 0);
    assert!(machine.present(start, pages) < 2048);
}

/// Several threads wait at once, for one page and for different ones.
#[test]
fn threads_that_wait_for_one_page_are_all_served() {
    let mut machine = Machine::new(1024);
    let start = machine.map(64);
    machine.write(start, 5);
    machine.evict(start);
    for thread in 1..=4 {
        let touched = machine.kernel.touch(thread, start, None);
        assert_eq!(touched, Err(Stop::Waits));
    }
    machine.serve();
    for thread in 1..=4 {
        assert!(!machine.kernel.waits(thread));
        assert_eq!(machine.kernel.touch(thread, start, None), Ok(5));
    }
    machine.check();
}

/// A page that is pinned stays where it is, and leaves once it is not.
#[test]
fn a_pinned_page_is_not_captured() {
    let mut machine = Machine::new(1024);
    let start = machine.map(UNIT);
    for i in 0..UNIT {
        machine.write(start + i * PAGE, 1 + i as u8);
    }
    machine.kernel.pin(start + 3 * PAGE, true);
    machine.reclaim(64);
    assert_eq!(machine.present(start, UNIT), 1);
    assert!(machine.kernel.is_present(start + 3 * PAGE));
    machine.check();
    machine.kernel.pin(start + 3 * PAGE, false);
    machine.evict(start + 3 * PAGE);
    machine.read_all();
}

/// Memory that the program mapped anew without libc is managed no more, and nothing of it is taken.
#[test]
fn memory_mapped_behind_the_pager_is_left_alone() {
    let mut machine = Machine::new(1024);
    let start = machine.map(UNIT);
    for i in 0..UNIT {
        machine.write(start + i * PAGE, 1);
    }
    machine.kernel.map_behind(start, UNIT);
    machine.kernel.touch(1, start, Some(9)).unwrap();
    machine.reclaim(64);
    assert_eq!(machine.kernel.touch(1, start, None), Ok(9));
    assert!(machine.process.lock().ranges.find(start).is_none());
    assert_eq!(machine.page(start), Page::Untouched);
    machine.check();
}

/// A page that the program dropped without libc reads as zeros, as it would without a pager, and is counted.
#[test]
fn memory_dropped_behind_the_pager_reads_as_zeros() {
    let mut machine = Machine::new(1024);
    let start = machine.map(4);
    machine.write(start, 7);
    // SAFETY: memory of the kernel in memory.
    let dropped = unsafe { machine.kernel.madvise(start, PAGE, libc::MADV_DONTNEED) };
    assert_eq!(dropped, Ok(()));
    assert_eq!(machine.touch(1, start, None), 0);
    assert_eq!(machine.process.counters().map_disagrees.get(), 1);
    machine.check();
}

/// Where the system has no page for a while the fault waits, and is served then.
#[test]
fn a_page_that_the_system_refuses_is_waited_for() {
    let mut machine = Machine::new(1024);
    let start = machine.map(4);
    machine.write(start, 1);
    machine.evict(start);
    machine.kernel.threads.refuses.store(20, SeqCst);
    machine.read(start);
    assert_eq!(machine.kernel.threads.refuses.load(SeqCst), 0);
    machine.check();
}

/// A thread that was woken for its fault to come once more finds the page there, which another's fault has brought. Its
/// fault never comes: it holds no page for that.
#[test]
fn a_thread_that_was_woken_unserved_waits_no_more() {
    let mut machine = Machine::new(1024);
    let page = machine.page_out();
    machine.store_staged();
    let out = machine.begin_load(page);
    assert_eq!(machine.kernel.touch(7, page, None), Err(Stop::Waits));
    machine.serve();
    assert!(machine.is_held(page), "it waits for the transit");
    machine.set(page, out);
    machine.process.lock().parked.unpark(&mut machine.worker);
    machine.process.attend_waiting(&mut machine.worker);
    assert!(!machine.kernel.waits(7));
    machine.read_all();
    assert!(!machine.is_held(page));
    machine.check();
}

/// The same, where the keeper met the fault and the system had no page for it.
#[test]
fn a_thread_that_the_keeper_did_not_serve_waits_no_more() {
    let mut machine = Machine::new(1024);
    let page = machine.map(1);
    let keeper = machine.kernel.thread();
    machine.process.base.lifecycle.keeper_begins(keeper);
    machine.parks_on_worker(7, page);
    machine.kernel.threads.refuses.store(1, SeqCst);
    machine.process.serve_again(&mut machine.worker);
    assert!(!machine.kernel.waits(7), "it comes once more");
    assert!(!machine.is_held(page));
    machine.read_all();
    machine.check();
}

/// A staged page that is wanted again goes back without having been stored.
#[test]
fn a_staged_page_is_remapped() {
    let mut machine = Machine::new(1024);
    let start = machine.map(UNIT);
    machine.write(start, 77);
    let stored = machine.process.swap.memory().pool_pages;
    machine.kernel.pass(Duration::from_secs(1));
    let worker = &mut machine.worker;
    let state = machine.process.lock();
    let (state, captured) = machine
        .process
        .capture(state, worker, None, Default::default());
    drop(state);
    assert_eq!(captured, 1);
    assert!(matches!(machine.page(start), Page::Staged(_)));
    machine.check();
    machine.read(start);
    assert_eq!(machine.process.swap.memory().pool_pages, stored);
    assert_eq!(machine.process.counters().fault_cache.get(), 1);
    machine.check();
}

/// Pages that come back while many wait do not leave so many frames without use.
#[test]
fn frames_of_pages_that_came_back_are_few() {
    let mut machine = Machine::without_pool(2048, RamStore::new(8192));
    let (pages, mut random) = (8192, Random::new(3));
    let start = machine.map(pages);
    let mut most_waiting = 0;
    for step in 0..60_000usize {
        // Pages in use, which change slowly, and some at random.
        let page = match random.below(50) {
            0 => random.below(pages),
            _ => (step / 20 + random.below(1500)) % pages,
        };
        machine.write(start + page * PAGE, step as u8);
        machine.process.make_room(&mut machine.worker, When::Soon);
        let state = machine.process.lock();
        let (staging, pages) = (state.pages.staging(), &state.pages);
        most_waiting = most_waiting.max(staging.staged_frames());
        let wasted = staging.wasted_frames();
        assert!(wasted <= pages.in_memory() / 128 + UNIT, "{wasted} frames");
    }
    assert!(most_waiting > 2048 / 32, "{most_waiting} wait at most");
    let came_back = machine.process.counters().fault_cache.get();
    assert!(came_back > 500, "{came_back} came back");
    machine.check();
}

/// An array on a device that is read out of order comes in few transfers. Pages of which each unit has one come alone.
#[test]
fn the_rest_of_a_unit_comes_with_its_second_load() {
    let mut machine = Machine::without_pool(4096, RamStore::new(8192));
    let (pages, mut random) = (2048, Random::new(9));
    let start = machine.map(pages);
    (0..pages).for_each(|page| machine.write(start + page * PAGE, (page % 255 + 1) as u8));
    (0..pages).for_each(|page| machine.evict(start + page * PAGE));
    machine.store_staged();
    let counters = machine.process.counters();
    for unit in 0..pages / UNIT / 2 {
        machine.read(start + (unit * UNIT + unit * 7 % UNIT) * PAGE);
    }
    let alone = (pages / UNIT / 2) as u64;
    assert_eq!(
        (counters.fault_device.get(), counters.readahead.get()),
        (alone, 0)
    );
    let mut order: Vec<_> = (pages / 2..pages).collect();
    (1..order.len()).for_each(|i| order.swap(i, random.below(i + 1)));
    for page in order {
        machine.read(start + page * PAGE);
    }
    let transfers = counters.fault_device.get() - alone;
    assert!(transfers < pages as u64 / 2 / 4, "{transfers} transfers");
    machine.check();
}

/// A device that notes which slots were expected before they were read.
struct Foreseen {
    ram: RamStore,
    expected: Mutex<HashSet<u64>>,
    hits: AtomicUsize,
}

impl Store for Foreseen {
    fn slots(&self) -> u64 {
        self.ram.slots()
    }
    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        self.ram.write(ops, results);
    }
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        let mut expected = self.expected.lock().unwrap();
        let hits = ops.iter().filter(|op| expected.remove(&op.slot));
        self.hits.fetch_add(hits.count(), SeqCst);
        self.ram.read(ops, results);
    }
    fn expect(&self, slots: &[Range<u64>]) {
        self.expected
            .lock()
            .unwrap()
            .extend(slots.iter().cloned().flatten());
    }
}

/// Rows of 19.5 pages, of which columns are read. A walk begins at the third row; the next one at its second.
#[test]
fn the_pages_of_a_column_are_read_ahead() {
    let device = Arc::new(Foreseen {
        ram: RamStore::new(8192),
        expected: Mutex::default(),
        hits: AtomicUsize::new(0),
    });
    let mut machine = Machine::without_pool(4096, device.clone());
    let (row, rows) = (80_000, 100);
    let start = machine.map(rows * row / PAGE + 1);
    (0..rows).for_each(|n| machine.write(start + n * row, n as u8 + 1));
    (0..rows).for_each(|n| machine.evict((start + n * row) / PAGE * PAGE));
    machine.store_staged();
    (0..rows).for_each(|n| machine.read(start + n * row));
    let hits = device.hits.load(SeqCst);
    assert!(hits >= rows - 4, "{hits} of {rows} pages were on their way");
    machine.check();
}

/// Where two pages of a unit are wanted before it leaves, the rest soon comes no more.
#[test]
fn units_that_are_not_wanted_whole_come_page_by_page() {
    let mut machine = Machine::without_pool(2048, RamStore::new(16_384));
    let (units, mut random) = (1024, Random::new(4));
    let start = machine.map(units * UNIT);
    for page in 0..units * UNIT {
        machine.write(start + page * PAGE, (page % 255 + 1) as u8);
    }
    let mut came_along = Vec::new();
    for _ in 0..6 {
        let before = machine.process.counters().readahead.get();
        for i in 0..units {
            let unit = i * 389 % units;
            // Too far apart for a scan.
            let (one, other) = (random.below(3), 12 + random.below(3));
            for page in [one, other] {
                machine.read(start + (unit * UNIT + page) * PAGE);
            }
        }
        came_along.push(machine.process.counters().readahead.get() - before);
        machine.check();
    }
    let units = units as u64;
    assert!(came_along[0] > units, "{came_along:?}");
    assert!(came_along[5] < units / 2, "{came_along:?}");
}

/// A page that cannot be read back is lost, and leaves nothing behind on its device.
#[test]
fn a_lost_page_leaves_no_entry_and_no_slot() {
    let faults = "read=1/1".parse().unwrap();
    let store = FaultyStore::new(RamStore::new(1024), faults);
    let mut machine = Machine::without_pool(1024, store);
    let slots = |machine: &Machine| machine.process.swap_space.devices.devices.usage()[0].used;
    let start = machine.map(UNIT);
    machine.write(start, 77);
    machine.evict(start);
    machine.store_staged();
    assert_eq!((machine.process.swap.entries(), slots(&machine)), (1, 1));
    assert_eq!(machine.kernel.touch(1, start, None), Err(Stop::Waits));
    machine.serve();
    assert_eq!(machine.kernel.touch(1, start, None), Err(Stop::Poisoned));
    assert_eq!(machine.page(start), Page::Poisoned);
    assert_eq!((machine.process.swap.entries(), slots(&machine)), (0, 0));
    machine.process.swap.check();
    machine.check();
}

/// Pages that come along with another are not lost when they cannot be read: nobody touched them, and the device may be back
/// when somebody does.
#[test]
fn who_comes_along_is_not_lost() {
    let faults = "read=1/1".parse().unwrap();
    let store = FaultyStore::new(RamStore::new(1024), faults);
    let mut machine = Machine::without_pool(1024, store);
    let start = machine.map(UNIT);
    let pages: [usize; UNIT] = std::array::from_fn(|i| start + i * PAGE);
    pages.iter().for_each(|page| machine.write(*page, 77));
    pages.iter().for_each(|page| machine.evict(*page));
    machine.store_staged();
    let (touched, others) = pages.split_at(3);
    for &page in touched {
        assert_eq!(machine.kernel.touch(1, page, None), Err(Stop::Waits));
        machine.serve();
        assert_eq!(machine.kernel.touch(1, page, None), Err(Stop::Poisoned));
    }
    let states = others.iter().map(|page| machine.page(*page));
    assert!(
        states
            .into_iter()
            .all(|page| matches!(page, Page::Swapped(_)))
    );
    assert_eq!(machine.process.swap.entries(), others.len());
    machine.process.swap.check();
    machine.check();
}

/// Pages that hold nothing but zeros take no room anywhere.
#[test]
fn zeros_take_no_room() {
    let mut machine = Machine::new(1024);
    let start = machine.map(256);
    for i in 0..256 {
        machine.read(start + i * PAGE);
    }
    for i in 0..256 {
        machine.evict(start + i * PAGE);
    }
    machine.store_staged();
    assert_eq!(machine.process.swap.memory().pool_pages, 0);
    machine.read_all();
    machine.check();
}

/// A process whose memory has to stay, more than the budget, ends with a message.
#[test]
#[should_panic(expected = "the program is killed")]
fn memory_that_cannot_leave_ends_the_process() {
    let mut machine = Machine::new(1024);
    let start = machine.map(4096);
    // SAFETY: memory of the kernel in memory.
    let locked = machine.call(|pager| unsafe { pager.mlock(start, 4096 * PAGE, 0) });
    assert_eq!(locked, Ok(()));
    for i in 0..4096 {
        machine.touch(1, start + i * PAGE, Some(1));
    }
}

/// Where peers were asked and are waited for, room is not made here ahead of need, and no lock is kept.
#[test]
fn room_from_peers_is_waited_for_without_the_lock() {
    let mut machine = Machine::new(1024);
    let start = machine.map(4096);
    let mut waited = 0;
    for page in 0..4096 {
        machine.write(start + page * PAGE, 1);
        if page < 2048 {
            continue;
        }
        // The time of waits for peers is the tree's, so none is left waiting for a fault.
        let peers = |sent: bool| {
            let now = machine.process.now();
            let mut state = machine.process.lock();
            match sent {
                true => state.peer_reclaim.sent(true, now),
                false => state.peer_reclaim.timed_out(now),
            }
        };
        peers(true);
        let made = machine.process.make_room(&mut machine.worker, When::Soon);
        peers(false);
        waited += usize::from(made.step == Step::Enough);
    }
    assert!(waited > 0);
    machine.read_all();
    machine.check();
}

/// A thread that waits until nothing is in transit is not kept from that by new faults; nor are these by it, for long.
#[test]
fn no_fault_is_begun_while_it_is_closed_but_by_the_keeper() {
    let mut machine = Machine::new(1024);
    let start = machine.map(3 * UNIT);
    let process = machine.process;
    let served_in = |machine: &mut Machine, unit: usize| {
        let begin = process.now();
        machine.touch(1, start + unit * UNIT * PAGE, Some(1));
        process.now() - begin
    };
    let second = Duration::from_secs(1);
    assert!(served_in(&mut machine, 0) < second);
    let closed = process.base.transit.close(machine.kernel);
    assert!(served_in(&mut machine, 1) >= second);
    process
        .base
        .lifecycle
        .keeper_begins(machine.kernel.thread());
    assert!(served_in(&mut machine, 2) < second);
    drop(closed);
    machine.check();
}
