//! Memory that has to stay while somebody needs it.

use super::machine::{Machine, PLAIN};
use crate::map::ranges::Attributes;
use ebb_memory_kernel::PAGE;
use ebb_sys::paging::NO_KEY;

const PAGES: usize = 64;

fn written(machine: &mut Machine) -> usize {
    let start = machine.map(PAGES);
    (0..PAGES).for_each(|i| machine.write(start + i * PAGE, 7));
    start
}

fn attributes(machine: &Machine, at: usize) -> Attributes {
    machine.process.lock().ranges.find(at).unwrap().attributes
}

/// The pages that stay.
fn pinned(machine: &Machine, start: usize) -> Vec<usize> {
    let is_pinned = |i: &usize| attributes(machine, start + i * PAGE).stays();
    (0..PAGES).filter(is_pinned).collect()
}

#[test]
fn what_two_hold_stays_until_the_last_is_gone() {
    let mut machine = Machine::new(1024);
    let start = written(&mut machine);
    let (stack, mutex) = (start + 100, start + 3 * PAGE + 200);
    machine.call(|pager| {
        // SAFETY: memory of the kernel in memory, here and below.
        unsafe {
            assert!(pager.hold_stack(stack, 3 * PAGE));
            pager.hold_mutex(mutex);
        }
    });
    assert_eq!(pinned(&machine, start), [0, 1, 2, 3]);
    machine.call(|pager| pager.stack_begins(stack));
    machine.pager.end_holders();
    assert_eq!(pinned(&machine, start), [0, 1, 2, 3], "its thread lives");
    // SAFETY: as above.
    let other = machine.call(|pager| unsafe { pager.hold_stack(start + 200, 2 * PAGE) });
    machine.pager.end_holders();
    assert!(other);
    assert_eq!(pinned(&machine, start), [0, 1, 2, 3]);
    machine.call(|pager| pager.stack_is_unused(start + 200));
    machine.pager.end_holders();
    assert_eq!(pinned(&machine, start), [3]);
    machine.reclaim(256);
    assert!(!machine.kernel.is_present(start));
    assert!(machine.kernel.is_present(mutex));
    machine.call(|pager| pager.mutex_is_gone(mutex));
    machine.pager.end_holders();
    assert!(pinned(&machine, start).is_empty());
    machine.read_all();
    machine.check();
}

#[test]
fn memory_stays_while_it_is_under_a_key() {
    let mut machine = Machine::new(1024);
    let start = written(&mut machine);
    let protect = |machine: &mut Machine, pages: usize, prot: i32, key: i32| {
        // SAFETY: as above.
        machine.call(|pager| unsafe { pager.pkey_mprotect(start, pages * PAGE, (prot, key)) })
    };
    let unknown = protect(&mut machine, PAGES, PLAIN, 9);
    assert_eq!(unknown, Err(libc::EINVAL));
    assert_eq!(protect(&mut machine, 2, PLAIN, 1), Ok(()));
    let plain = protect(&mut machine, PAGES, PLAIN, NO_KEY);
    assert_eq!(plain, Ok(()), "it keeps what it has");
    assert_eq!(pinned(&machine, start), [0, 1]);
    machine.reclaim(256);
    assert!(machine.kernel.is_present(start) && !machine.kernel.is_present(start + 2 * PAGE));
    assert_eq!(protect(&mut machine, 1, libc::PROT_READ, 0), Ok(()));
    assert_eq!(pinned(&machine, start), [1]);
    assert_eq!(attributes(&machine, start).protection, libc::PROT_READ);
    machine.read_all();
    machine.check();
}
