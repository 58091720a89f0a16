//! Memory that moves (`mremap`) while pages of it are staged or the system refuses a part of it.

use super::machine::{Machine, PLAIN};
use crate::map::page_map::{Page, UNIT};
use crate::process::outcome::Outcome;
use ebb_memory_kernel::PAGE;
use std::time::Duration;

const LEN: usize = UNIT * PAGE;
const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// A unit of written memory, mapped with one protection and protected with another since. Its pages are staged.
fn staged(machine: &mut Machine, mapped: i32, protected: Option<i32>) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let start = machine.mmap(0, LEN, mapped, flags, -1, 0).unwrap();
    (0..UNIT).for_each(|i| machine.write(start + i * PAGE, 1 + i as u8));
    if let Some(prot) = protected {
        machine.mprotect(start, LEN, prot).unwrap();
    }
    machine.kernel.pass(Duration::from_secs(1));
    for _ in 0..4 {
        let state = machine.process.lock();
        let worker = &mut machine.worker;
        drop(
            machine
                .process
                .capture(state, worker, None, Default::default()),
        );
    }
    assert!(matches!(machine.page(start), Page::Staged(_)));
    start
}

/// Moves it, and looks at all of it.
fn moves(machine: &mut Machine, old: usize) -> Outcome<usize> {
    let new = machine.mremap(old, LEN, 2 * LEN, libc::MREMAP_MAYMOVE, 0)?;
    machine.model = std::mem::take(&mut machine.model)
        .into_iter()
        .map(|(at, byte)| (at - old + new, byte))
        .collect();
    machine.read_all();
    machine.check();
    Ok(new)
}

/// `mmap` ignores bits of a protection that it does not know, and `mprotect` refuses them.
#[test]
fn staged_pages_of_memory_with_unknown_bits_of_protection_move() {
    let mut machine = Machine::new(1024);
    let old = staged(&mut machine, PLAIN | libc::MAP_NORESERVE, None);
    let new = moves(&mut machine, old).unwrap();
    let range = machine.process.lock().ranges.find(new).unwrap();
    assert_eq!(range.attributes.protection, PLAIN);
    let sealed = machine.mprotect(new, LEN, PLAIN | libc::MAP_NORESERVE);
    assert_eq!(sealed, Err(libc::EINVAL));
}

/// After PR_SET_MDWE memory that was opened for writing never becomes code again. Its pages are brought in first.
#[test]
fn staged_pages_of_code_move_where_no_memory_becomes_code() {
    let mut machine = Machine::new(1024);
    let old = staged(&mut machine, PLAIN, Some(CODE));
    machine.kernel.tables(|tables| tables.refuses_code = true);
    machine.serve_calls();
    let new = moves(&mut machine, old).unwrap();
    machine.kernel.tables(|tables| {
        assert!(tables.all(new, 2 * LEN, |mapping| mapping.prot == CODE));
    });
}

/// The keeper, which makes the call for a child, can bring in nothing. The memory stays where it is then.
#[test]
fn staged_pages_that_cannot_be_brought_in_stay() {
    let mut machine = Machine::new(1024);
    let old = staged(&mut machine, PLAIN, Some(CODE));
    machine.kernel.tables(|tables| tables.refuses_code = true);
    let how = libc::MREMAP_MAYMOVE;
    // SAFETY: memory of the kernel in memory.
    let moved = unsafe {
        machine
            .pager
            .remap_here((old, LEN), 2 * LEN, how, 0, &mut 0)
    };
    assert_eq!(moved, Err(libc::ENOMEM));
    machine.read_all();
    machine.check();
}
