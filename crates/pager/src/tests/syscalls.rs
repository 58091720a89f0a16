//! Memory calls of the program while its pages are somewhere else.

use super::machine::{Machine, MemoryKernel, PLAIN};
use crate::map::page_map::{ADDRESSES, Page, PageNumber, UNIT};
use crate::map::ranges::{Attributes, InChild};
use crate::pager::Pager;
use crate::process::outcome::RETRY;
use crate::syscalls::pin::Found;
use ebb_engine::random::Random;
use ebb_memory_kernel::page_tables::{InChild as KernelInChild, PageTables};
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

/// A page in each of so many chunks of the page map, and all of the memory.
fn scattered(machine: &mut Machine, chunks: usize) -> (usize, usize) {
    const CHUNK: usize = 2 << 20;
    let start = machine.map(chunks * CHUNK / PAGE);
    (0..chunks).for_each(|i| machine.write(start + i * CHUNK, 1));
    (start, chunks * CHUNK)
}

/// Allocators drop memory at ever new addresses, and unmap none of it.
#[test]
fn tables_of_memory_that_is_dropped_are_given_back() {
    let mut machine = Machine::new(4096);
    let (start, len) = scattered(&mut machine, 256);
    let tables = |machine: &Machine| machine.process.lock().pages.map().bytes();
    let before = tables(&machine);
    for advice in [libc::MADV_DONTNEED, libc::MADV_FREE] {
        machine.write(start, 1);
        assert_eq!(machine.madvise(start, len, advice), Ok(()));
        machine.model.clear();
        assert!(
            8 * tables(&machine) < before,
            "{before}: {}",
            tables(&machine)
        );
        machine.check();
    }
    assert_eq!(machine.madvise(start, len, libc::MADV_DONTNEED), Ok(()));
    machine.read(start);
    machine.check();
}

/// The same of memory that is let go, or was unmapped without libc.
#[test]
fn tables_of_memory_that_is_not_managed_any_more_are_given_back() {
    let mut machine = Machine::new(4096);
    let tables = |machine: &Machine| machine.process.lock().pages.map().bytes();
    for unmapped in [false, true] {
        let (start, len) = scattered(&mut machine, 256);
        let before = tables(&machine);
        match unmapped {
            true => {
                unregister(&machine, start, start + len);
                machine.kernel.unmap_behind(start, len / PAGE);
            }
            false => {
                let mut state = machine.process.lock();
                state
                    .ranges
                    .change(start, start + len, |a| a.released = true);
            }
        }
        machine.process.register_new();
        machine.model.clear();
        assert!(machine.process.lock().ranges.find(start).is_none());
        assert!(
            8 * tables(&machine) < before,
            "{before}: {}",
            tables(&machine)
        );
        machine.check();
    }
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

fn stays_until_it_is_unlocked(mut machine: Machine, start: usize) {
    machine.reclaim(64);
    assert_eq!(machine.present(start, UNIT), UNIT);
    machine.munlock(start, UNIT * PAGE).unwrap();
    machine.evict(start);
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
    stays_until_it_is_unlocked(machine, start);
}

/// Whatever locked it, it is managed, and may leave once it is unlocked.
#[test]
fn memory_that_is_mapped_locked_stays_until_it_is_unlocked() {
    let mut machine = Machine::new(1024);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_LOCKED;
    let start = machine.mmap(0, UNIT * PAGE, PLAIN, flags, -1, 0).unwrap();
    for i in 0..UNIT {
        machine.write(start + i * PAGE, 1);
    }
    let locked = |tables: &mut PageTables| tables.all(start, UNIT * PAGE, |m| m.locked);
    assert!(machine.kernel.tables(locked));
    stays_until_it_is_unlocked(machine, start);
}

/// The kernel unlocks the memory that MREMAP_DONTUNMAP leaves behind.
#[test]
fn memory_that_stays_behind_is_locked_no_more() {
    let mut machine = Machine::new(1024);
    let (old, len) = (machine.map(UNIT), UNIT * PAGE);
    machine.mlock(old, len, 0).unwrap();
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let new = machine.mremap(old, len, len, how, 0).unwrap();
    assert_ne!(new, old);
    let locked = [old, new].map(|at| attributes(&machine, at).map(|a| a.locked));
    assert_eq!(locked, [Some(false), Some(true)]);
    for i in 0..UNIT {
        machine.write(old + i * PAGE, 1);
    }
    machine.evict(old);
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

/// However much of it there is, memory that must stay is in nobody's way: one step passes all of it by.
#[test]
fn read_only_memory_that_stays_for_a_pin_holds_up_nothing_else() {
    let mut machine = Machine::new(1024);
    let stays: Vec<usize> = (0..48).map(|_| read_only(&mut machine)).collect();
    let goes = machine.map(UNIT);
    (0..UNIT).for_each(|i| machine.write(goes + i * PAGE, 1));
    machine.kernel.pin_for_long(1);
    machine.reclaim(1);
    assert_eq!(machine.present(goes, UNIT), 0);
    for start in stays {
        assert_eq!(machine.present(start, UNIT), UNIT);
    }
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

/// Half of memory is somewhere else, some of it staged, when the program unmaps all of it by an instruction.
fn stale(machine: &mut Machine, start: usize, pages: usize) {
    for i in 0..pages {
        machine.write(start + i * PAGE, 251);
    }
    for i in (0..pages).filter(|i| (i / UNIT).is_multiple_of(2)) {
        machine.evict(start + i * PAGE);
    }
    let state = machine.process.lock();
    let captured = machine
        .process
        .capture(state, &mut machine.worker, None, Default::default());
    drop(captured);
    let out = |page| matches!(page, Page::Staged(_) | Page::Swapped(_));
    assert!((0..pages).any(|i| out(machine.page(start + i * PAGE))));
    machine.kernel.unmap_behind(start, pages);
    machine
        .model
        .retain(|at, _| !(start..start + pages * PAGE).contains(at));
}

/// All that is there now can leave and come back, and `zeros` were not touched yet.
fn is_new(machine: &mut Machine, start: usize, zeros: std::ops::Range<usize>) {
    machine.check();
    machine.read_all();
    zeros.for_each(|i| machine.read(start + i * PAGE));
    machine.reclaim(256);
    machine.store_staged();
    machine.check();
    machine.read_all();
    machine.check();
}

#[test]
fn pages_that_are_out_keep_their_age_when_they_move() {
    let mut machine = Machine::new(1024);
    let old = half_out(&mut machine, 128);
    let ages = |machine: &Machine, start: usize| -> Vec<(u8, usize)> {
        let state = machine.process.lock();
        let pages = (0..128).map(|i| PageNumber::of(start + i * PAGE));
        pages
            .filter(|page| matches!(state.pages.map().get(*page), Page::Swapped(_)))
            .map(|page| (state.pages.age(page), state.pages.rank(page)))
            .collect()
    };
    let before = ages(&machine, old);
    assert!(before.iter().any(|(age, _)| *age > 0), "{before:?}");
    let new = machine.mremap(old, 128 * PAGE, 192 * PAGE, libc::MREMAP_MAYMOVE, 0);
    assert_eq!(ages(&machine, new.unwrap()), before);
}

#[test]
fn memory_that_moves_to_where_an_instruction_unmapped_is_what_it_was() {
    let mut machine = Machine::new(1024);
    let (old, place) = (half_out(&mut machine, 128), machine.map(256));
    stale(&mut machine, place, 256);
    let new = machine.mremap(old, 128 * PAGE, 192 * PAGE, libc::MREMAP_MAYMOVE, 0);
    assert_eq!(new, Ok(place));
    machine.model = std::mem::take(&mut machine.model)
        .into_iter()
        .map(|(at, byte)| (at - old + place, byte))
        .collect();
    is_new(&mut machine, place, 128..192);
}

#[test]
fn memory_that_grows_over_what_an_instruction_unmapped_reads_as_zeros() {
    let mut machine = Machine::new(1024);
    let start = half_out(&mut machine, 64);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let behind = start + 64 * PAGE;
    let mapped = machine.mmap(behind, 64 * PAGE, PLAIN, flags, -1, 0);
    assert_eq!(mapped, Ok(behind));
    stale(&mut machine, behind, 64);
    let grown = machine.mremap(start, 64 * PAGE, 128 * PAGE, 0, 0);
    assert_eq!(grown, Ok(start));
    is_new(&mut machine, start, 64..128);
}

#[test]
fn a_heap_that_grows_over_what_an_instruction_unmapped_reads_as_zeros() {
    let mut machine = Machine::new(1024);
    let begin = machine.brk_set(0).unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let mapped = machine.mmap(begin, 64 * PAGE, PLAIN, flags, -1, 0);
    assert_eq!(mapped, Ok(begin));
    stale(&mut machine, begin, 64);
    let end = begin + 64 * PAGE;
    assert_eq!(machine.brk_set(end), Ok(end));
    is_new(&mut machine, begin, 0..64);
    // An instruction of the program shrinks the heap.
    stale(&mut machine, begin, 64);
    machine.kernel.tables(|tables| tables.heap_end = begin);
    assert_eq!(machine.brk_set(end), Ok(end));
    is_new(&mut machine, begin, 0..64);
}

/// The keeper makes such a call again at its next turn.
#[test]
fn memory_that_moves_to_pages_in_transit_moves_back_until_they_arrived() {
    for grows_there in [false, true] {
        let mut machine = Machine::new(1024);
        let old = half_out(&mut machine, 64);
        let place = match grows_there {
            true => old + 64 * PAGE,
            false => machine.map(128),
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let mapped = machine.mmap(place, 128 * PAGE, PLAIN, flags, -1, 0);
        assert_eq!(mapped, Ok(place));
        stale(&mut machine, place, 128);
        machine.store_staged();
        let out = machine.begin_load(place);
        let call = || {
            let flags = libc::MREMAP_MAYMOVE;
            // SAFETY: memory of the kernel in memory.
            unsafe {
                machine
                    .pager
                    .remap_here((old, 64 * PAGE), 96 * PAGE, flags, 0, &mut 0)
            }
        };
        assert_eq!(call(), Err(RETRY));
        machine.set(place, out);
        machine.read_all();
        machine.check();
        assert!(!machine.kernel.is_mapped(place));
        machine.kernel.unmap_behind(place, 128);
        let new = if grows_there { old } else { place };
        let moved = machine.mremap(old, 64 * PAGE, 96 * PAGE, libc::MREMAP_MAYMOVE, 0);
        assert_eq!(moved, Ok(new));
        machine.model = std::mem::take(&mut machine.model)
            .into_iter()
            .map(|(at, byte)| (at - old + new, byte))
            .collect();
        is_new(&mut machine, new, 64..96);
    }
}

/// Two units, of which the second may only be read.
fn half_sealed(machine: &mut Machine) -> usize {
    let start = half_out(machine, 2 * UNIT);
    let sealed = start + UNIT * PAGE;
    machine
        .mprotect(sealed, UNIT * PAGE, libc::PROT_READ)
        .unwrap();
    start
}

/// The memory in the place may be gone when the kernel refuses to move other memory there.
#[test]
fn what_a_refused_move_unmapped_is_forgotten() {
    let mut machine = Machine::new(1024);
    let place = half_out(&mut machine, 3 * UNIT);
    let old = half_sealed(&mut machine);
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // Memory of several parts moves, but does not grow.
    let (len, grown) = (2 * UNIT * PAGE, 3 * UNIT * PAGE);
    let refused = machine.mremap(old, len, grown, how, place);
    assert_eq!(refused, Err(libc::EFAULT));
    machine.model.retain(|at, _| *at >= place + grown);
    assert!(!machine.kernel.is_mapped(place));
    assert_eq!(machine.page(place), Page::Untouched);
    assert!(machine.process.lock().ranges.find(place).is_none());
    machine.read_all();
    machine.check();
}

/// Memory of two protections is two mappings, of which the kernel moves one at a time.
#[test]
fn memory_of_two_protections_moves_with_one_call() {
    let mut machine = Machine::new(1024);
    let place = half_out(&mut machine, 2 * UNIT);
    let old = half_sealed(&mut machine);
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let len = 2 * UNIT * PAGE;
    assert_eq!(machine.mremap(old, len, len, how, place), Ok(place));
    let known = |at: usize| {
        let range = machine.process.lock().ranges.find(at);
        range.map(|range| range.attributes.protection)
    };
    let now = [old, place, place + UNIT * PAGE].map(known);
    assert_eq!(now, [None, Some(PLAIN), Some(libc::PROT_READ)]);
    machine.model = std::mem::take(&mut machine.model)
        .into_iter()
        .filter(|(at, _)| !(place..place + len).contains(at))
        .map(|(at, byte)| match (old..old + len).contains(&at) {
            true => (at - old + place, byte),
            false => (at, byte),
        })
        .collect();
    machine.read_all();
    machine.check();
}

/// With five levels of page tables there is memory behind the addresses of the page map. It is the program's alone,
/// and no other page is taken for one of it.
#[test]
fn memory_behind_the_page_map_is_not_managed() {
    let mut machine = Machine::new(1024);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let pages = 2 * UNIT;
    let (len, half) = (pages * PAGE, UNIT * PAGE);
    let near = len;
    let whole = machine.mmap(near, len, PLAIN, flags, -1, 0);
    assert_eq!(whole, Ok(near));
    (0..pages).for_each(|i| machine.write(near + i * PAGE, 5));
    (0..pages).for_each(|i| machine.evict(near + i * PAGE));
    for far in [ADDRESSES + near, ADDRESSES - half] {
        assert_eq!(machine.mmap(far, len, PLAIN, flags, -1, 0), Ok(far));
        assert!(machine.process.lock().ranges.find(far).is_none());
        for i in 0..pages {
            let written = machine.kernel.touch(1, far + i * PAGE, Some(7));
            assert_eq!(written, Ok(7), "no fault of ours");
        }
        machine.read(near + half);
        machine.check();
        machine.munmap(far, len).unwrap();
    }
    machine.read_all();
    machine.check();
}

/// Managed memory does not go there. Where the rest of a call is about such addresses, only managed pages are forgotten.
#[test]
fn managed_memory_does_not_move_behind_the_page_map() {
    let mut machine = Machine::new(1024);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let len = UNIT * PAGE;
    let (near, last) = (len, ADDRESSES - len);
    for at in [near, last] {
        assert_eq!(machine.mmap(at, len, PLAIN, flags, -1, 0), Ok(at));
        (0..UNIT).for_each(|i| machine.write(at + i * PAGE, 5));
        machine.evict(at);
    }
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let moved = machine.mremap(near, len, len, how, ADDRESSES + near);
    assert_eq!(moved, Err(libc::ENOMEM));
    assert_eq!(machine.mremap(last, len, 2 * len, 0, 0), Err(libc::ENOMEM));
    assert!(!machine.kernel.is_mapped(ADDRESSES));
    machine.read_all();
    // Memory behind the map that is moved there is the program's own affair.
    let far = ADDRESSES + 4 * len;
    assert_eq!(machine.mmap(far, len, PLAIN, flags, -1, 0), Ok(far));
    assert_eq!(machine.mremap(far, len, len, how, far + len), Ok(far + len));
    machine.evict(near);
    machine.munmap(last, 4 * len).unwrap();
    machine.model.retain(|at, _| *at < last);
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

/// The protection on record, of each page that is managed.
fn protections(machine: &Machine, start: usize, pages: usize) -> Vec<i32> {
    let state = machine.process.lock();
    let protection = |i| Some(state.ranges.find(start + i * PAGE)?.attributes.protection);
    (0..pages).filter_map(protection).collect()
}

/// The kernel changes what lies before a hole, and so does the record: pages leave as their memory allows.
#[test]
fn a_protection_that_meets_a_hole_is_known_up_to_there() {
    for (before, after) in [(libc::PROT_READ, PLAIN), (PLAIN, libc::PROT_READ)] {
        let mut machine = Machine::new(1024);
        let start = half_out(&mut machine, UNIT);
        machine.mprotect(start, UNIT * PAGE, before).unwrap();
        let beyond = machine.mprotect(start, 2 * UNIT * PAGE, after);
        assert_eq!(beyond, Err(libc::ENOMEM));
        assert_eq!(protections(&machine, start, UNIT), [after; UNIT]);
        // A hole of which libc knows nothing.
        let hole = start + 5 * PAGE;
        machine.kernel.unmap_behind(hole, 1);
        machine.model.remove(&hole);
        let within = machine.mprotect(start, UNIT * PAGE, before);
        assert_eq!(within, Err(libc::ENOMEM));
        assert_eq!(protections(&machine, start, 5), [before; 5]);
        assert_eq!(protections(&machine, hole, UNIT - 5), [after; UNIT - 5]);
        machine.read_all();
        machine.check();
    }
}

/// The kernel passes over holes, and so does the record: a child finds zeros, wherever the pages were.
#[test]
fn advice_on_forks_that_meets_a_hole_is_known() {
    let mut machine = Machine::new(1024);
    let start = half_out(&mut machine, 2 * UNIT);
    machine.munmap(start + UNIT * PAGE, PAGE).unwrap();
    let advised = machine.madvise(start, 2 * UNIT * PAGE, libc::MADV_WIPEONFORK);
    assert_eq!(advised, Err(libc::ENOMEM));
    let state = machine.process.lock();
    for page in [start, start + (UNIT + 1) * PAGE] {
        let range = state.ranges.find(page).unwrap();
        assert!(range.attributes.in_child.wiped);
    }
}

/// Advice on managed memory that the pager keeps to itself reaches what else lies in its area, and tells of holes.
#[test]
fn advice_reaches_memory_that_is_not_managed() {
    let mut machine = Machine::new(1024);
    let start = half_out(&mut machine, UNIT);
    let (shared, hole) = (start + UNIT * PAGE, start + (UNIT + 2) * PAGE);
    machine.kernel.map_behind(shared, 2);
    let of_kernel = |machine: &Machine, at| machine.kernel.tables(|t| t.mappings[at].in_child);
    let before = of_kernel(&machine, start);
    for (advice, wanted, noted) in [
        (
            libc::MADV_DONTFORK,
            KernelInChild {
                absent: true,
                wiped: false,
            },
            InChild {
                absent: true,
                wiped: false,
            },
        ),
        (
            libc::MADV_DOFORK,
            KernelInChild::default(),
            InChild::default(),
        ),
    ] {
        let advised = machine.madvise(start, hole - start, advice);
        assert_eq!(advised, Ok(()));
        assert_eq!(of_kernel(&machine, shared), wanted);
        assert_eq!(of_kernel(&machine, start), before, "the pager's own affair");
        let range = machine.process.lock().ranges.find(start).unwrap();
        assert_eq!(range.attributes.in_child, noted);
    }
    for advice in [
        libc::MADV_DONTFORK,
        libc::MADV_RANDOM,
        libc::MADV_HUGEPAGE,
        libc::MADV_WILLNEED,
        libc::MADV_PAGEOUT,
    ] {
        let advised = machine.madvise(start, hole + PAGE - start, advice);
        assert_eq!(advised, Err(libc::ENOMEM), "advice {advice}");
    }
    machine.read_all();
    machine.check();
}

/// Memory that children find wiped stays so to them where it was kept from them for a while.
#[test]
fn advice_on_forks_takes_back_no_other() {
    let mut machine = Machine::new(1024);
    let start = half_out(&mut machine, UNIT);
    let mut advise = |advices: &[i32]| {
        for advice in advices {
            machine.madvise(start, UNIT * PAGE, *advice).unwrap();
        }
        let range = machine.process.lock().ranges.find(start).unwrap();
        let InChild { absent, wiped } = range.attributes.in_child;
        (absent, wiped)
    };
    let (dont, again) = (libc::MADV_DONTFORK, libc::MADV_DOFORK);
    let (wipe, keep) = (libc::MADV_WIPEONFORK, libc::MADV_KEEPONFORK);
    assert_eq!(advise(&[wipe, dont, again]), (false, true));
    assert_eq!(advise(&[dont, keep]), (true, false));
    assert_eq!(advise(&[again]), (false, false));
}

/// The kernel refuses such a length before it looks at anything.
#[test]
fn a_length_beyond_whole_pages_is_no_advice() {
    let mut machine = Machine::new(1024);
    let start = half_out(&mut machine, UNIT);
    let advised = machine.madvise(0, usize::MAX, libc::MADV_DONTFORK);
    assert_eq!(advised, Err(libc::EINVAL));
    let range = machine.process.lock().ranges.find(start).unwrap();
    assert_eq!(range.attributes.in_child, InChild::default());
}

/// The attributes of the page at an address, if it is managed.
fn attributes(machine: &Machine, page: usize) -> Option<Attributes> {
    let range = machine.process.lock().ranges.find(page);
    range.map(|range| range.attributes)
}

/// The kernel shrinks several mappings in one call.
#[test]
fn memory_that_shrinks_keeps_each_protection() {
    let mut machine = Machine::new(1024);
    let start = half_out(&mut machine, 2 * UNIT);
    machine.mprotect(start, PAGE, libc::PROT_NONE).unwrap();
    machine.model.remove(&start);
    let less = UNIT * PAGE;
    let shrunk = machine.mremap(start, 2 * UNIT * PAGE, less, 0, 0);
    assert_eq!(shrunk, Ok(start));
    machine.model.retain(|at, _| *at < start + less);
    let mut wanted = [PLAIN; UNIT];
    wanted[0] = libc::PROT_NONE;
    assert_eq!(protections(&machine, start, 2 * UNIT), wanted);
    machine.read_all();
    machine.evict(start + PAGE);
    machine.read_all();
    machine.check();
}

/// What the kernel knows nothing of goes along page by page. What comes is pinned only if all is.
#[test]
fn pins_and_guards_go_along_with_their_pages() {
    for (pinned, moves) in [(3, false), (0, false), (3, true), (0, true)] {
        let mut machine = Machine::new(1024);
        let old = half_out(&mut machine, UNIT);
        let pin = old + pinned * PAGE;
        machine.touch(1, pin, None);
        let excluded = machine
            .pager
            .pin_locked(pin, pin + PAGE, |p| p.for_good = true);
        assert_eq!(excluded, Ok(Found::Paged));
        let (last, end) = (old + (UNIT - 1) * PAGE, old + UNIT * PAGE);
        let guard = |a: &mut Attributes| a.guarded = true;
        machine.process.lock().ranges.change(last, end, guard);
        if !moves {
            machine.kernel.unmap_behind(end, 8);
        }
        let new = machine
            .mremap(old, UNIT * PAGE, (UNIT + 8) * PAGE, libc::MREMAP_MAYMOVE, 0)
            .unwrap();
        assert_eq!(new != old, moves);
        machine.model = std::mem::take(&mut machine.model)
            .into_iter()
            .map(|(at, byte)| (at - old + new, byte))
            .collect();
        for i in 0..UNIT + 8 {
            let is = attributes(&machine, new + i * PAGE).unwrap();
            let wanted = (i == pinned, i == UNIT - 1, true);
            assert_eq!(
                (is.pinned.is_pinned(), is.guarded, is.registered),
                wanted,
                "page {i}"
            );
        }
        machine.reclaim(256);
        assert!(machine.kernel.is_present(new + pinned * PAGE));
        assert!(!machine.kernel.is_present(new + (pinned + 1) * PAGE));
        machine.read_all();
        machine.check();
    }
}

/// What the program has for itself is not managed. The rest of the mapping is, wherever it goes.
#[test]
fn memory_of_which_the_first_page_is_not_managed_moves_as_a_whole() {
    let pager: &'static Pager<MemoryKernel> =
        Box::leak(Box::new(Pager::new(MemoryKernel::alone())));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: memory of the kernel in memory, here and below.
    let old = unsafe { pager.map_here(0, 8 * PAGE, PLAIN, flags, (-1, 0), true) }.unwrap();
    pager.lock().ranges.remove(old, old + PAGE);
    let how = libc::MREMAP_MAYMOVE;
    // SAFETY: as above.
    let new = unsafe { pager.remap_here((old, 8 * PAGE), 16 * PAGE, how, 0, &mut 0) }.unwrap();
    assert_ne!(new, old);
    let all = || -> Vec<_> {
        let state = pager.lock();
        state.ranges.all().map(|r| (r.start, r.end)).collect()
    };
    assert_eq!(all(), [(new + PAGE, new + 16 * PAGE)]);
    // SAFETY: as above.
    let shrunk = unsafe { pager.remap_here((new, 16 * PAGE), 4 * PAGE, 0, 0, &mut 0) };
    assert_eq!(shrunk, Ok(new));
    assert_eq!(all(), [(new + PAGE, new + 4 * PAGE)]);
}

/// On a thread of ours, which waits for no transit: what was moved is moved for good, and the rest follows.
#[test]
fn a_move_in_parts_goes_on_after_pages_in_transit() {
    let mut machine = Machine::new(1024);
    let (old, to) = (machine.map(64), machine.map(64));
    (0..64).for_each(|i| machine.write(old + i * PAGE, 1 + i as u8));
    machine
        .mprotect(old + 32 * PAGE, 32 * PAGE, libc::PROT_READ)
        .unwrap();
    machine.evict(old + 40 * PAGE);
    machine.store_staged();
    let out = machine.begin_load(old + 40 * PAGE);
    let mut done = 0;
    let mut call = || {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (area, len) = ((old, 64 * PAGE), 64 * PAGE);
        // SAFETY: memory of the kernel in memory.
        let moved = unsafe { machine.pager.remap_here(area, len, flags, to, &mut done) };
        (moved, done)
    };
    assert_eq!(call(), (Err(RETRY), 32 * PAGE));
    machine.set(old + 40 * PAGE, out);
    assert_eq!(call(), (Ok(to), 64 * PAGE));
    let model = std::mem::take(&mut machine.model).into_iter();
    machine.model = model.map(|(at, byte)| (at - old + to, byte)).collect();
    machine.read_all();
    machine.check();
}
