//! Memory calls of the program while its pages are somewhere else.

use super::machine::{Machine, PLAIN};
use crate::map::page_map::{Page, UNIT};
use ebb_engine::random::Random;
use ebb_memory_kernel::page_tables::PageTables;
use ebb_memory_kernel::{PAGE, Stop};

/// Writes to pages, and evicts every second unit of them.
fn half_out(machine: &mut Machine, pages: usize) -> usize {
    let start = machine.map(pages);
    for i in 0..pages {
        machine.write(start + i * PAGE, 1 + i as u8 % 250);
    }
    for i in (0..pages).filter(|i| (i / UNIT).is_multiple_of(2)) {
        machine.evict(start + i * PAGE);
    }
    start
}

#[test]
fn memory_that_is_dropped_reads_as_zeros_wherever_it_was() {
    let mut machine = Machine::new(1024);
    let start = half_out(&mut machine, 128);
    let advised = machine.madvise(start, 64 * PAGE, libc::MADV_DONTNEED);
    assert_eq!(advised, Ok(()));
    machine
        .model
        .retain(|address, _| *address >= start + 64 * PAGE);
    machine.check();
    for i in 0..128 {
        machine.read(start + i * PAGE);
    }
    machine.check();
}

#[test]
fn memory_that_is_unmapped_is_forgotten_and_what_comes_there_is_new() {
    let mut machine = Machine::new(1024);
    let start = half_out(&mut machine, 128);
    machine.munmap(start, 128 * PAGE).unwrap();
    machine.model.clear();
    assert_eq!(machine.kernel.touch(1, start, None), Err(Stop::Unmapped));
    let state = machine.process.lock();
    assert!(state.pages.map().in_memory() == 0 && state.ranges.find(start).is_none());
    drop(state);
    machine.check();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let again = machine.mmap(start, 16 * PAGE, PLAIN, flags, -1, 0);
    assert_eq!(again, Ok(start));
    machine.read(start);
    machine.check();
}

#[test]
fn pages_follow_memory_that_is_moved() {
    let mut machine = Machine::new(1024);
    let old = half_out(&mut machine, 128);
    // Some are staged, not stored yet.
    let state = machine.process.lock();
    drop(
        machine
            .process
            .capture(state, &mut machine.worker, None, Default::default()),
    );
    let new = machine
        .mremap(old, 128 * PAGE, 256 * PAGE, libc::MREMAP_MAYMOVE, 0)
        .unwrap();
    assert_ne!(new, old);
    machine.model = machine
        .model
        .iter()
        .map(|(address, byte)| (address - old + new, *byte))
        .collect();
    machine.check();
    assert_eq!(machine.page(old), Page::Untouched);
    machine.read_all();
    machine.read(new + 200 * PAGE);
    machine.check();
}

/// Leaves memory as `mremap` does until the keeper's turn.
fn unregister(machine: &Machine, start: usize, end: usize) {
    machine.kernel.tables(|tables| {
        let moved = tables.mappings.range_mut(start..end);
        moved.for_each(|(_, mapping)| mapping.registered = false);
    });
    let mut state = machine.process.lock();
    state.ranges.change(start, end, |a| a.registered = false);
}

#[test]
fn a_fault_from_before_memory_moved_there_waits_for_its_registration() {
    let mut machine = Machine::new(1024);
    let start = half_out(&mut machine, UNIT);
    machine.store_staged();
    assert!(matches!(machine.page(start), Page::Swapped(_)));
    let (end, before) = (start + UNIT * PAGE, machine.kernel.touch(2, start, None));
    assert_eq!(before, Err(Stop::Waits));
    unregister(&machine, start, end);
    machine.serve();
    machine.process.register_new();
    machine.read_all();
    machine.check();
}

#[test]
fn locked_memory_stays_until_it_is_unlocked() {
    let mut machine = Machine::new(1024);
    let start = machine.map(UNIT);
    for i in 0..UNIT {
        machine.write(start + i * PAGE, 1);
    }
    machine.mlock(start, UNIT * PAGE, 0).unwrap();
    machine.reclaim(64);
    assert_eq!(machine.present(start, UNIT), UNIT);
    machine.munlock(start, UNIT * PAGE).unwrap();
    machine.evict(start);
    machine.read_all();
    machine.check();
}

/// A unit of written memory that may only be read from now on.
fn read_only(machine: &mut Machine) -> usize {
    let start = machine.map(UNIT);
    for i in 0..UNIT {
        machine.write(start + i * PAGE, 1 + i as u8);
    }
    let protected = machine.mprotect(start, UNIT * PAGE, libc::PROT_READ);
    assert_eq!(protected, Ok(()));
    start
}

/// Memory that may only be read is copied out, as the kernel does not move it.
#[test]
fn read_only_memory_leaves_by_copy() {
    let mut machine = Machine::new(1024);
    let start = read_only(&mut machine);
    machine.evict(start);
    machine.check();
    machine.read_all();
    // While something is pinned for long, it stays.
    machine.evict(start);
    machine.read_all();
    machine.kernel.pin_for_long(1);
    machine.reclaim(64);
    assert_eq!(machine.present(start, UNIT), UNIT);
    machine.check();
}

/// The kernel drops no locked page: such a page of read-only memory stays.
#[test]
fn read_only_memory_that_was_locked_behind_the_pager_stays() {
    let mut machine = Machine::new(1024);
    let start = read_only(&mut machine);
    let locked = start + 3 * PAGE;
    let lock = |tables: &mut PageTables| tables.change(locked, PAGE, |m| m.locked = true);
    machine.kernel.tables(lock);
    machine.reclaim(64);
    assert!(matches!(machine.page(locked), Page::Resident(_)));
    assert!(machine.kernel.is_present(locked));
    machine.read_all();
    machine.check();
}

#[test]
fn the_heap_grows_and_shrinks() {
    let mut machine = Machine::new(1024);
    let begin = machine.brk_set(0).unwrap();
    let end = begin + 64 * PAGE;
    assert_eq!(machine.brk_set(end), Ok(end));
    for i in 0..64 {
        machine.write(begin + i * PAGE, 3);
    }
    machine.evict(begin);
    let half = begin + 32 * PAGE;
    assert_eq!(machine.brk_set(half), Ok(half));
    machine.model.retain(|address, _| *address < half);
    assert_eq!(machine.kernel.touch(1, half, None), Err(Stop::Unmapped));
    machine.read_all();
    machine.check();
}

/// Random calls over random touches, against the model.
#[test]
fn calls_and_pages_never_disagree() {
    let mut machine = Machine::new(1024);
    let mut random = Random::new(3);
    const PAGES: usize = 256;
    let areas: Vec<usize> = (0..8).map(|_| machine.map(PAGES)).collect();
    for step in 0..20_000usize {
        let area = areas[random.below(areas.len())];
        let page = random.below(PAGES);
        let pages = 1 + random.below(PAGES - page);
        let (start, len) = (area + page * PAGE, pages * PAGE);
        match random.below(200) {
            0 => {
                let drop = libc::MADV_DONTNEED;
                machine.madvise(start, len, drop).unwrap();
                machine
                    .model
                    .retain(|at, _| !(start..start + len).contains(at));
            }
            1 => {
                machine.munmap(start, len).unwrap();
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                machine.mmap(start, len, PLAIN, flags, -1, 0).unwrap();
                machine
                    .model
                    .retain(|at, _| !(start..start + len).contains(at));
            }
            2 => {
                let prot = [libc::PROT_READ, PLAIN][random.below(2)];
                machine.mprotect(start, len, prot).unwrap();
                machine.mprotect(start, len, PLAIN).unwrap();
            }
            n if n % 2 == 0 => machine.write(start, step as u8),
            _ => machine.read(start),
        }
        if step % 250 == 0 {
            machine.check();
        }
    }
    machine.read_all();
    machine.check();
    assert_eq!(machine.process.counters().map_disagrees.get(), 0);
}

/// Pages of one unit leave it in two ways.
#[test]
fn a_unit_of_which_half_may_only_be_read_leaves_whole() {
    let mut machine = Machine::new(1024);
    let start = read_only(&mut machine);
    let opened = machine.mprotect(start, UNIT / 2 * PAGE, PLAIN);
    assert_eq!(opened, Ok(()));
    (0..UNIT).for_each(|i| machine.evict(start + i * PAGE));
    machine.read_all();
    machine.check();
}

/// A unit whose turn it was before the keeper had registered it anew has one again.
#[test]
fn what_was_looked_at_while_it_moved_leaves_later() {
    let mut machine = Machine::new(1024);
    let start = machine.map(UNIT);
    for i in 0..UNIT {
        machine.write(start + i * PAGE, 1);
    }
    unregister(&machine, start, start + UNIT * PAGE);
    machine.reclaim(64);
    assert_eq!(machine.present(start, UNIT), UNIT);
    machine.process.register_new();
    machine.evict(start);
    machine.read_all();
    machine.check();
}
