//! Pages that refuse to leave: others leave all the same, and the refusers once they do no more.

use super::machine::{Machine, PLAIN};
use crate::map::page_map::{Page, UNIT};
use crate::map::ranges::Attributes;
use ebb_engine::slots::DeviceSpec;
use ebb_memory_kernel::PAGE;
use ebb_stores::RamStore;
use ebb_tree::{Codec, Config};
use std::sync::Arc;
use std::time::Duration;

const BUDGET: u64 = 8192;
/// Units that refuse: more than are tried for one capture.
const REFUSING: usize = 200;

/// A process with a device, and with so many units that will refuse: whether as they are `pinned`, or as the kernel drops
/// nothing of read-only memory. Where those are.
fn refusing(pinned: bool) -> (Machine, usize) {
    let config = Config {
        codec: Codec::Lz4,
        ..Config::default()
    };
    let mut machine = Machine::with(BUDGET, config, |devices| {
        let store = Arc::new(RamStore::new(BUDGET));
        let added = devices.add(store, DeviceSpec::default(), None);
        added.expect("a device");
    });
    let (pages, bytes) = (REFUSING * UNIT, REFUSING * UNIT * PAGE);
    let start = machine.map(pages);
    (0..pages).for_each(|i| machine.write(start + i * PAGE, 1 + i as u8 % 100));
    match pinned {
        true => (0..pages).for_each(|i| machine.kernel.pin(start + i * PAGE, true)),
        false => {
            assert_eq!(machine.mprotect(start, bytes, libc::PROT_READ), Ok(()));
            locks(&machine, start, true);
        }
    }
    (machine, start)
}

/// Locks them for the kernel alone, or unlocks them.
fn locks(machine: &Machine, start: usize, locked: bool) {
    let bytes = REFUSING * UNIT * PAGE;
    machine
        .kernel
        .tables(|tables| tables.change(start, bytes, |m| m.locked = locked));
}

/// Pages come and go beside most that refuse. Each of these was tried once or twice, and few of them for each of the others.
#[test]
fn pages_that_refuse_are_in_nobodys_way() {
    const WORK: usize = 8;
    for pinned in [true, false] {
        let (mut machine, start) = refusing(pinned);
        let work = machine.map(WORK * UNIT);
        let busy = || machine.process.counters().evict_busy.get() as usize / UNIT;
        for round in 0..40 {
            for i in 0..WORK * UNIT {
                machine.write(work + i * PAGE, 1 + (round + i) as u8 % 100);
            }
            let before = busy();
            machine.reclaim(4 * WORK);
            while machine.process.release_frames(&mut machine.process.lock()) {}
            let left = WORK * UNIT - machine.present(work, WORK * UNIT);
            assert_eq!(left, WORK * UNIT, "in round {round}");
            let tried = busy() - before;
            let most = if round == 0 { REFUSING } else { 0 };
            assert!(tried <= most + 2 * WORK, "{tried} tries in round {round}");
            machine.check();
        }
        assert_eq!(machine.present(start, REFUSING * UNIT), REFUSING * UNIT);
        machine.read_all();
        machine.check();
    }
}

/// Pages that refuse no more leave, one after the other, though nothing else is there that might.
#[test]
fn pages_that_refused_leave_when_they_do_no_more() {
    for pinned in [true, false] {
        let (mut machine, start) = refusing(pinned);
        machine.reclaim(64);
        let pages = REFUSING * UNIT;
        assert_eq!(machine.present(start, pages), pages);
        assert_eq!(machine.process.lock().pages.refused(), pages);
        match pinned {
            true => (0..pages).for_each(|i| machine.kernel.pin(start + i * PAGE, false)),
            false => locks(&machine, start, false),
        }
        for _ in 0..2 * REFUSING {
            machine.kernel.pass(Duration::from_millis(2));
            machine.reclaim(1);
        }
        assert_eq!(machine.present(start, pages), 0);
        assert_eq!(machine.process.lock().pages.refused(), 0);
        machine.check();
        machine.read_all();
    }
}

/// Memory that refused and was unmapped is not known as such any more; new memory in its place leaves.
#[test]
fn memory_in_the_place_of_what_refused_leaves() {
    let (mut machine, start) = refusing(true);
    machine.reclaim(64);
    let (pages, bytes) = (REFUSING * UNIT, REFUSING * UNIT * PAGE);
    assert_eq!(machine.munmap(start, bytes), Ok(()));
    machine.check();
    machine.model.clear();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    assert_eq!(machine.mmap(start, bytes, PLAIN, flags, -1, 0), Ok(start));
    (0..pages).for_each(|i| machine.write(start + i * PAGE, 7));
    for _ in 0..3 * REFUSING {
        machine.kernel.pass(Duration::from_millis(2));
        machine.reclaim(1);
    }
    assert_eq!(machine.present(start, pages), 0);
    machine.read_all();
    machine.check();
}

/// A page that refuses counts as memory that cannot be swapped out, unless that is known of its range.
#[test]
fn pages_that_refuse_are_counted_once_as_those_that_stay() {
    let (mut machine, start) = refusing(true);
    let stays = |machine: &Machine| machine.process.stays().0;
    let before = stays(&machine);
    machine.reclaim(64);
    let refused = (REFUSING * UNIT) as u64;
    assert_eq!(stays(&machine) - before, refused);
    let lock = |a: &mut Attributes| a.locked = true;
    let end = start + REFUSING * UNIT * PAGE;
    machine.process.lock().ranges.change(start, end, lock);
    assert_eq!(stays(&machine) - before, refused);
    assert!(matches!(machine.page(start), Page::Resident(_)));
}
