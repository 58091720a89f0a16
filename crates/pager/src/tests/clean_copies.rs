//! Pages that kept their copies: they wait, come back and leave with them.

use super::machine::{Machine, PLAIN};
use crate::eviction::make_room::Step;
use crate::map::page_map::{Page, UNIT};
use ebb_engine::EntryId;
use ebb_memory_kernel::PAGE;
use ebb_stores::RamStore;
use ebb_sys::paging::Kernel;

/// Memory of so many units that was out, and was read since: it keeps its copies.
fn read_again(machine: &mut Machine, units: usize) -> usize {
    let pages = units * UNIT;
    let start = machine.map(pages);
    let at = |i: usize| start + i * PAGE;
    (0..pages).for_each(|i| machine.write(at(i), 1 + i as u8 % 250));
    (0..pages).for_each(|i| machine.evict(at(i)));
    machine.store_staged();
    // They are out for long, while others are in use; and many left unchanged before.
    let others = machine.map(1024);
    for i in 0..6 * 1024 {
        machine.touch(2, others + i % 1024 * PAGE, Some(1));
    }
    (0..200).for_each(|_| machine.process.copies.learn(true));
    machine.read_all();
    machine.munmap(others, 1024 * PAGE).unwrap();
    for i in 0..pages {
        assert!(matches!(machine.page(at(i)), Page::Resident(Some(_))));
    }
    start
}

/// They need no room, so a step could take all of them. None is written once more.
#[test]
fn a_step_takes_a_few() {
    let mut machine = Machine::without_pool(768, RamStore::new(4096));
    let start = read_again(&mut machine, 16);
    machine.kernel.pass(std::time::Duration::from_secs(1));
    let step = machine.process.evict_some(&mut machine.worker);
    assert!(step == Step::Progress);
    let left = 16 * UNIT - machine.present(start, 16 * UNIT);
    assert!((1..=2 * UNIT).contains(&left), "{left} left");
    assert!(machine.process.counters().clean_reuse.get() > 0);
    machine.read_all();
    machine.check();
}

/// A unit that was out and was read since waits in its frames, and its entries.
fn waiting(machine: &mut Machine) -> (usize, Vec<EntryId>) {
    let start = read_again(machine, 1);
    let entry = |i: usize| match machine.page(start + i * PAGE) {
        Page::Resident(Some(entry)) => entry,
        page => panic!("{page:?}"),
    };
    let entries = (0..UNIT).map(entry).collect();
    machine.kernel.pass(std::time::Duration::from_secs(1));
    let (process, worker) = (machine.process, &mut machine.worker);
    while (0..UNIT).any(|i| machine.kernel.is_present(start + i * PAGE)) {
        let how = Default::default();
        drop(process.capture(process.lock(), worker, None, how));
    }
    for i in 0..UNIT {
        assert!(matches!(machine.page(start + i * PAGE), Page::Staged(_)));
    }
    machine.check();
    (start, entries)
}

#[test]
fn a_page_that_waits_leaves_by_its_copy() {
    let mut machine = Machine::without_pool(768, RamStore::new(4096));
    let (start, entries) = waiting(&mut machine);
    machine.store_staged();
    for (i, entry) in entries.into_iter().enumerate() {
        assert_eq!(machine.page(start + i * PAGE), Page::Swapped(entry));
    }
    machine.read_all();
    machine.check();
}

/// It may be written from then on, or is protected as before.
#[test]
fn a_page_that_waits_comes_back_with_its_copy_unless_it_is_written() {
    let mut machine = Machine::without_pool(768, RamStore::new(4096));
    let (start, entries) = waiting(&mut machine);
    machine.write(start + PAGE, 99);
    assert_eq!(machine.page(start + PAGE), Page::Resident(None));
    machine.read(start + 3 * PAGE);
    let kept = Page::Resident(Some(entries[3]));
    assert_eq!(machine.page(start + 3 * PAGE), kept);
    machine.check();
    machine.write(start + 3 * PAGE, 98);
    assert_eq!(machine.page(start + 3 * PAGE), Page::Resident(None));
    machine.read_all();
    machine.check();
}

/// Unmapped, or moved to another address. Before a fork the page leaves by it.
#[test]
fn the_copy_of_a_page_that_waits_goes_with_it() {
    let mut machine = Machine::without_pool(768, RamStore::new(4096));
    let (start, _) = waiting(&mut machine);
    let before = machine.process.swap.entries();
    machine.munmap(start, UNIT / 4 * PAGE).unwrap();
    assert_eq!(machine.process.swap.entries(), before - UNIT / 4);
    let to = machine.map(1);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    machine
        .mremap(start + UNIT / 2 * PAGE, PAGE, PAGE, flags, to)
        .unwrap();
    assert_eq!(machine.process.swap.entries(), before - UNIT / 4 - 1);
    let (process, mut refusals) = (machine.process, Default::default());
    while !process.quiesce(&mut machine.worker, &mut refusals) {}
    assert_eq!(process.swap.entries(), before - UNIT / 4 - 1);
    assert_eq!(process.lock().pages.staged_frames(), 0);
    assert_eq!(machine.touch(1, to, None), 1 + (UNIT / 2) as u8);
    (UNIT / 4..UNIT / 2).for_each(|i| machine.read(start + i * PAGE));
    machine.check();
}

/// Read-only pages are copied out. Those that are locked behind the pager stay, and their protection ends: they may have
/// been written when they leave.
#[test]
fn a_page_that_stays_gives_its_copy_up() {
    let mut machine = Machine::without_pool(768, RamStore::new(4096));
    let start = read_again(&mut machine, 1);
    let len = UNIT * PAGE;
    machine.mprotect(start, len, libc::PROT_READ).unwrap();
    machine.kernel.mlock(start, len, 0).unwrap();
    machine.reclaim(8);
    assert_eq!(machine.present(start, UNIT), UNIT);
    for i in 0..UNIT {
        assert_eq!(machine.page(start + i * PAGE), Page::Resident(None));
    }
    machine.kernel.munlock(start, len).unwrap();
    machine.mprotect(start, len, PLAIN).unwrap();
    (0..UNIT).for_each(|i| machine.write(start + i * PAGE, 255));
    (0..UNIT).for_each(|i| machine.evict(start + i * PAGE));
    machine.read_all();
    machine.check();
}

/// A forked child has the copies without the protection, and memory under a key is not protected while relatives live.
#[test]
fn memory_under_a_key_gives_its_copies_up_when_it_is_registered_in_a_child() {
    let mut machine = Machine::without_pool(768, RamStore::new(4096));
    let start = read_again(&mut machine, 1);
    let len = UNIT * PAGE;
    machine
        // SAFETY: the kernel is one in memory.
        .call(|pager| unsafe { pager.pkey_mprotect(start, len, (PLAIN, 1)) })
        .unwrap();
    super::fork::fork(&mut machine);
    assert!(matches!(machine.page(start), Page::Resident(Some(_))));
    machine.kernel.unregister(start, len).unwrap();
    let mut state = machine.process.lock();
    state
        .ranges
        .change(start, start + len, |a| a.registered = false);
    machine.process.register_all(&mut state);
    machine.process.check_copies(&state);
    drop(state);
    assert_eq!(machine.page(start), Page::Resident(None));
    machine.write(start, 255);
    machine.read_all();
    machine.check();
}
