//! Pages that forked relatives share: charged once, and copied only with room.

use super::machine::Machine;
use crate::fault::install::Refusals;
use crate::map::page_map::UNIT;
use crate::process::shared_pages::Sharing;
use crate::syscalls::pin::Found;
use ebb_memory_kernel::PAGE;
use ebb_sys::paging::Kernel;
use ebb_sys::userfaultfd::Fault;
use std::time::Duration;

/// Forks as the program's thread and the keeper do together.
pub fn fork(machine: &mut Machine) {
    let (pager, process) = (machine.pager, machine.process);
    process.count_before_fork();
    while !process.quiesce(&mut machine.worker, &mut Refusals::default()) {}
    let (mut locked, slot) = pager.reserve_quiescent(process).expect("quiescent");
    pager.inherit(&locked, true);
    machine.kernel.fork();
    pager.inherit(&locked, false);
    pager.share_with(
        process,
        &mut locked,
        slot.expect("there is a place"),
        Some(1000),
    );
    process.protect_shared(&mut locked);
}

/// All who have places may wait, each for another's.
#[test]
fn a_fork_for_which_there_is_no_place_fails_in_the_end() {
    let machine = Machine::new(1024);
    let member = machine.process.member;
    assert!(machine.pager.make_ready());
    let mut children = Vec::new();
    while let Some(child) = member.reserve_child(0) {
        children.push(child);
    }
    let begin = machine.kernel.now();
    assert!(!machine.pager.make_ready());
    assert!(machine.kernel.now() - begin >= Duration::from_secs(10));
    member.cancel_child(children[0]);
    assert!(machine.pager.make_ready());
}

/// Memory of so many pages that all hold `value`.
fn written(machine: &mut Machine, pages: usize, value: u8) -> usize {
    let start = machine.map(pages);
    for i in 0..pages {
        machine.write(start + i * PAGE, value);
    }
    start
}

/// A fork keeps managed memory from later children. They inherit memory that the program mapped there itself.
#[test]
fn memory_mapped_behind_the_pager_is_inherited() {
    let mut machine = Machine::new(1024);
    let start = written(&mut machine, UNIT, 1);
    machine.kernel.map_behind(start, UNIT);
    machine.kernel.touch(1, start, Some(9)).unwrap();
    fork(&mut machine);
    assert_eq!(machine.kernel.child_reads(0, start), Some(9));
    machine.kernel.end_children();
    machine.reclaim(64);
    assert!(machine.process.lock().ranges.find(start).is_none());
    fork(&mut machine);
    assert_eq!(machine.kernel.child_reads(0, start), Some(9));
}

/// Owning a shared page writes to it. Its protection is lifted before, beside foreign memory too: else the pager's thread
/// would wait for itself.
#[test]
fn shared_pages_beside_memory_mapped_behind_the_pager_are_owned_up_to_there() {
    let mut machine = Machine::new(1024);
    let start = written(&mut machine, UNIT, 1);
    fork(&mut machine);
    let behind = start + 3 * PAGE;
    machine.kernel.map_behind(behind, 1);
    machine.kernel.touch(1, behind, Some(9)).unwrap();
    assert_eq!(machine.process.own(start, UNIT, true), (3, 3));
    assert_eq!(machine.process.own(behind, UNIT - 3, true), (0, 0));
    assert_eq!(machine.process.own(behind + PAGE, 4, true), (4, 4));
    machine.reclaim(64);
    assert_eq!(machine.kernel.touch(1, behind, None), Ok(9));
    machine.check();
}

/// The kernel lifts protection from pages in a row up to the first that is not ours any more. Each copy is charged once all
/// the same.
#[test]
fn shared_pages_beside_memory_mapped_behind_the_pager_can_be_written() {
    let mut machine = Machine::new(1024);
    let start = written(&mut machine, 4 * UNIT, 1);
    fork(&mut machine);
    let others = |i: &usize| i % UNIT != 3;
    for unit in 0..4 {
        machine
            .kernel
            .map_behind(start + (unit * UNIT + 3) * PAGE, 1);
    }
    for i in (0..4 * UNIT).filter(others) {
        machine.write(start + i * PAGE, 2);
    }
    let copies = machine.process.counters().unshared.get();
    assert_eq!(copies, 4 * (UNIT as u64 - 1));
    machine.model.retain(|at, _| others(&((at - start) / PAGE)));
    machine.read_all();
    machine.check();
}

/// Else the child would charge it once more, and nobody would be credited for it.
#[test]
fn memory_filled_before_it_is_registered_is_credited() {
    let mut machine = Machine::new(2048);
    machine.fill_unregistered(200, 200, 5);
    fork(&mut machine);
    let member = machine.process.member;
    let credit = member.limit() - 2048;
    assert!(credit >= 200, "{credit}");
    assert_eq!(member.charged() - member.own_charge(), credit);
    machine.read_all();
    machine.check();
}

#[test]
fn parent_and_child_keep_their_own_pages() {
    let mut machine = Machine::new(2048);
    let start = written(&mut machine, 256, 7);
    fork(&mut machine);
    assert_eq!(
        machine.process.lock().protection.sharing(),
        Sharing::Protected
    );
    for i in 0..64 {
        machine.write(start + i * PAGE, 8);
    }
    machine.kernel.child_writes(0, start + 100 * PAGE, 9);
    machine.read_all();
    for i in 0..256 {
        let wanted = if i == 100 { 9 } else { 7 };
        let child = machine.kernel.child_reads(0, start + i * PAGE);
        assert_eq!(child, Some(wanted), "page {i}");
    }
    assert!(machine.process.counters().unshared.get() >= 64);
    machine.check();
}

#[test]
fn shared_pages_stay_and_the_parents_own_leave() {
    let mut machine = Machine::new(2048);
    let start = written(&mut machine, 128, 1);
    fork(&mut machine);
    for i in 0..64 {
        machine.write(start + i * PAGE, 2);
    }
    machine.reclaim(128);
    assert_eq!(
        machine.present(start + 64 * PAGE, 64),
        64,
        "shared ones stay"
    );
    assert_eq!(machine.present(start, 64), 0, "its own leave");
    machine.read_all();
    machine.check();
}

/// Nobody has written them since: they are not the process's own to the kernel yet.
#[test]
fn pages_that_a_fork_shared_leave_once_their_relatives_have_ended() {
    let mut machine = Machine::new(2048);
    let start = written(&mut machine, 64, 1);
    fork(&mut machine);
    machine.kernel.end_children();
    machine.reclaim(64);
    assert_eq!(machine.present(start, 64), 0);
    machine.read_all();
    machine.check();
}

#[test]
fn protection_ends_with_the_last_relative() {
    let mut machine = Machine::new(2048);
    let start = written(&mut machine, 64, 1);
    fork(&mut machine);
    machine.kernel.end_children();
    machine
        .process
        .lift_protection(&mut machine.process.lock(), start, 64 * PAGE);
    let faults = machine.process.counters().fault.get();
    for i in 0..64 {
        machine.write(start + i * PAGE, 2);
    }
    assert_eq!(
        machine.process.counters().fault.get(),
        faults,
        "no write faults"
    );
    machine.read_all();
    machine.check();
}

/// A thread of the program may wait for a lock of ours, or hold it, while the kernel stores to its `struct rseq`.
#[test]
fn what_is_pinned_is_written_without_service() {
    let mut machine = Machine::new(2048);
    let start = written(&mut machine, 64, 1);
    let pinned = machine
        .pager
        .pin_locked(start, start + 4 * PAGE, |p| p.for_good = true);
    assert_eq!(pinned, Ok(Found::Paged));
    fork(&mut machine);
    let faults = |machine: &Machine| machine.process.counters().fault.get();
    let before = faults(&machine);
    for i in 0..4 {
        machine.write(start + i * PAGE, 2);
    }
    assert_eq!(faults(&machine), before);
    machine.write(start + 4 * PAGE, 2);
    assert!(faults(&machine) > before, "the rest is protected");
    machine.read_all();
    machine.check();
}

/// It would wake them, at addresses where it has something else by then. Nothing is in transit at a fork, but memory
/// that `mremap` has just moved may be waited for.
#[test]
fn a_forked_child_has_no_parked_faults() {
    let mut machine = Machine::new(2048);
    written(&mut machine, 64, 1);
    let (pager, process) = (machine.pager, machine.process);
    while !process.quiesce(&mut machine.worker, &mut Refusals::default()) {}
    let (mut locked, slot) = pager.reserve_quiescent(process).expect("quiescent");
    locked.parked.park_early(Fault::default());
    pager.reset_in_child(locked, slot);
    assert!(pager.lock_service().parked.take_early().is_empty());
}
