//! Pages that leave at once, as their copies are good.

use super::machine::{Machine, PLAIN};
use crate::eviction::make_room::Step;
use crate::map::page_map::{Page, UNIT};
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

/// They need no room, so a step could take all of them.
#[test]
fn a_step_takes_a_few() {
    let mut machine = Machine::without_pool(768, RamStore::new(4096));
    let start = read_again(&mut machine, 16);
    machine.kernel.pass(std::time::Duration::from_secs(1));
    let step = machine.process.evict_some(&mut machine.worker);
    assert!(step == Step::Progress);
    let left = 16 * UNIT - machine.present(start, 16 * UNIT);
    assert!((1..2 * UNIT).contains(&left), "{left} left");
    machine.read_all();
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
