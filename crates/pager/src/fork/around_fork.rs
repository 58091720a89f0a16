//! Forks: how a child comes to a pager of its own.
//!
//! The child gets a copy-on-write copy of everything: pages, page map, pool. What it does not get
//! is threads, descriptors, and registration of its ranges: until those are set up again its
//! swapped pages would read as zeros, so the program's code does not run before.
//!
//! 0. `make_ready` (the forking thread, before any lock): where the tree does not page yet and has
//!    no room for all that the child might copy, it pages first. Copies in processes that do not
//!    page are seen when the supervisor measures them, which may be late. Where it pages, and as
//!    many processes as can be are managed already, the fork waits until one of them ends.
//! 1. `before_fork` (the forking thread): asks the keeper to bring the process to rest: most of what
//!    the budget has no room to duplicate is evicted, no page is in transit, none staged (the staging area is not inherited), no thread of ours inside the engine.
//!    Then takes the lock and holds it while the system copies the process.
//!    Registered ranges are kept from children (`MADV_DONTFORK`) but for the time of such a fork: a
//!    child made by a system call that we do not see gets SIGSEGV, not zeros.
//! 2. `after_fork_parent`: what was stored on devices at the fork may be read by the child for as
//!    long as it likes (`Swap::fork_parent`); shared pages cannot be moved until written, and the
//!    keeper protects them (`sharing`) before the forking thread goes on.
//! 3. `after_fork_child`: drops what belongs to the parent, starts a helper of its own, whose keeper joins
//!    the tree in the slot reserved for it, opens a userfaultfd, registers every range; and waits
//!    for that. If it fails the child ends: it must not read zeros.

#![allow(clippy::missing_safety_doc)] // Each says "Requires:".

use crate::budget::generations;
use crate::devices::processors::cpu;
use crate::fork::rest::SHORT;
use crate::map::ranges::{InChild, Range};
use crate::process::failure;
use crate::process::fork_stage::CHILD_READY;
use crate::process::fork_stage::EVER;
use crate::process::fork_stage::INHERITED;
use crate::process::fork_stage::PROTECTED;
use crate::process::fork_stage::STAGE;
use crate::process::fork_stage::WATCHING;
use crate::process::fork_stage::WHY;
use crate::process::fork_stage::child_fails;
use crate::process::fork_stage::watching;
use crate::process::lifecycle;
use crate::process::paging::Process;
use crate::process::state;
use crate::process::state::Locked;
use crate::syscalls::admission;
use crate::syscalls::vfork_proxy;

use ebb_sys::{futex, memory, program};
use ebb_tree::ChildSlot;
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How long a fork waits for the tree to page: a supervisor that is gone limits nobody any more.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a child tries to start its helper.
const PATIENCE_OF_CHILD: Duration = Duration::from_secs(5);

/// In a child of vfork whose parent is dead: nobody could keep what was out from reading as zeros in a copy
/// of its memory.
fn end_orphan() {
    if vfork_proxy::is_orphaned() {
        failure::end(
            None,
            "a child of vfork whose parent has ended forks, and what was swapped out of their memory is \
             lost: it is ended; end children of vfork before their parent",
        );
    }
}

/// A fork is near, and no lock of ours or of the allocator's is held: starting service takes both.
/// See the module's text.
pub fn make_ready() {
    end_orphan();
    while let Some(process) = Process::current()
        && !process.member.has_place()
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let Some(member) = watching() else {
        return;
    };
    let Some(pages) = memory::resident_anonymous_pages() else {
        return;
    };
    if member.fork_fits(pages) {
        return;
    }
    member.wish_to_page();
    let begin = Instant::now();
    while watching().is_some() && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// What the forking thread holds across the fork.
struct Held(UnsafeCell<Option<(Locked, Option<ChildSlot>)>>);
// SAFETY: only the thread that holds the state's lock, inside, touches it.
unsafe impl Sync for Held {}
static HELD: Held = Held(UnsafeCell::new(None));

/// A fork is near; false if another took the last place for a child since [`make_ready`], and
/// nothing was done. Requires: unless that, one of the `after_fork` calls follows on this thread.
pub unsafe fn before_fork() -> bool {
    let unpaged = || {
        let locked = state::lock();
        // It may have been adopted while we waited for the lock.
        Process::current().is_none().then_some(locked)
    };
    let (locked, slot) = match unpaged() {
        Some(locked) => {
            EVER.store(true, SeqCst);
            (locked, None)
        }
        None => {
            let process = Process::current().expect("once there, it stays");
            while STAGE.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
                end_orphan();
                std::thread::sleep(Duration::from_micros(100));
            }
            loop {
                end_orphan();
                process.member.wake_self();
                futex::wait(&STAGE, 1, Some(Duration::from_millis(5)), false);
                if STAGE.load(SeqCst) != 2 {
                    continue;
                }
                let mut locked = state::lock();
                let staged = locked.staging.as_ref().map_or(0, |b| b.staged_frames());
                if locked.map.in_transit() == 0 && staged == 0 {
                    // The child's charge is a copy of ours and all of it is credited as shared:
                    // nothing must be in it that stands for no page.
                    let used = locked.used(process.swap);
                    locked.charge.settle(process.member, used, 0);
                    // It does not inherit the staging area.
                    let frames = locked.staging.as_ref().map_or(0, |b| b.unused_frames());
                    let slot = process.member.reserve_child(frames as u64);
                    if slot.is_none() {
                        drop(locked);
                        go_on();
                        return false;
                    }
                    break (locked, slot);
                }
                drop(locked);
                std::thread::sleep(SHORT);
            }
        }
    };
    inherit(&locked, true);
    // SAFETY: we hold the state's lock.
    unsafe { *HELD.0.get() = Some((locked, slot)) };
    true
}

/// The process needs no rest any more.
fn go_on() {
    STAGE.store(3, SeqCst);
    futex::wake(&STAGE, i32::MAX, false);
}

/// Lets a forked child have what is or was registered, or not. Memory that `mremap` has just moved is
/// registered no more, but would still be kept from children.
fn inherit(locked: &Locked, on: bool) {
    if Process::current().is_none() {
        return;
    }
    let advice = if on {
        libc::MADV_DOFORK
    } else {
        libc::MADV_DONTFORK
    };
    let concerned =
        |r: &Range| (on || r.attributes.registered) && r.attributes.in_child != InChild::Absent;
    for range in locked.ranges.all().filter(concerned) {
        // SAFETY: advice that changes no content.
        let _ = unsafe { memory::madvise(range.start, range.end - range.start, advice) };
    }
}

/// In a forked child: forgets the content of what the program wanted it to have no copy of.
fn disinherit(locked: &mut Locked, parent: &Process) {
    let mut at = 0;
    while let Some(range) = locked.ranges.next(at, usize::MAX) {
        at = range.end;
        let kind = range.attributes.in_child;
        if kind == InChild::Copied {
            continue;
        }
        locked.drop_pages(Some(parent.swap), cpu(), range.start, range.end);
        if kind == InChild::Absent {
            locked.ranges.remove(range.start, range.end);
        }
    }
}

/// The fork is over, in the parent; `child` where it is known. Requires: `before_fork` on this thread.
pub unsafe fn after_fork_parent(child: Option<i32>) {
    // SAFETY: `before_fork` on this thread took the lock, which is inside.
    let Some((mut locked, slot)) = (unsafe { (*HELD.0.get()).take() }) else {
        return;
    };
    inherit(&locked, false);
    if let Some(process) = Process::current() {
        if let Some(slot) = slot {
            process.swap.fork_parent();
            process.swap_space.devices.part(false);
            generations::begin(process.swap);
            process.forked.store(true, SeqCst);
            locked.sharing.begins();
            match child {
                Some(pid) if pid > 0 => process.member.child_forked(slot, pid as u32),
                Some(_) => process.member.cancel_child(slot),
                // The supervisor finds out whether there is one.
                None => process.member.child_forked(slot, 0),
            }
        }
        let seen = PROTECTED.load(SeqCst);
        drop(locked);
        go_on();
        while PROTECTED.load(SeqCst) == seen {
            futex::wait(&PROTECTED, seen, Some(Duration::from_millis(5)), false);
        }
    }
}

/// The fork is over, in the child: the first of ours or the program's to run there. Requires: `before_fork`
/// on the thread that forked.
pub unsafe fn after_fork_child() {
    program::begin();
    ebb_sys::thread::forget();
    ebb_sys::stack::alone();
    vfork_proxy::reset_in_child();
    admission::reset_in_child();
    // SAFETY: as above; the child has this thread alone, and its copy of the lock is held by it.
    let Some((mut locked, slot)) = (unsafe { (*HELD.0.get()).take() }) else {
        return;
    };
    STAGE.store(0, SeqCst);
    // Locks on memory are not inherited.
    locked.ranges.change(0, usize::MAX, |a| a.locked = false);
    let Some(parent) = Process::current() else {
        let gone: Vec<_> = locked
            .ranges
            .all()
            .filter(|r| r.attributes.in_child == InChild::Absent)
            .collect();
        for range in gone {
            locked.ranges.remove(range.start, range.end);
        }
        WATCHING.store(null_mut(), SeqCst);
        drop(locked);
        if lifecycle::had_keeper() {
            // Without one the child is measured, as a small process is.
            let _ = lifecycle::start_keeper(Duration::ZERO);
        }
        return;
    };
    let slot = slot.expect("a process that pages forks with a place for its child");
    parent.member.child_started(slot);
    parent.swap.fork_child();
    generations::begin(parent.swap);
    locked.staging = None;
    locked.parked.clear();
    locked.attempts.clear();
    disinherit(&mut locked, parent);
    parent.swap_space.devices.part(true);
    let charged = parent.member.own_charge();
    locked.charge.begins_with(charged as i64);
    locked
        .ranges
        .change(0, usize::MAX, |a| a.registered = false);
    Process::retract();
    INHERITED.store(std::ptr::from_ref(parent).cast_mut(), SeqCst);
    CHILD_READY.store(0, SeqCst);
    drop(locked);
    if let Err(e) = lifecycle::start_keeper(PATIENCE_OF_CHILD) {
        parent.fail(&format!(
            "no thread can be started in a forked child, which cannot be served and is ended: {e}; \
             raise `ulimit -u`"
        ));
    }
    while CHILD_READY.load(SeqCst) == 0 {
        futex::wait(&CHILD_READY, 0, Some(Duration::from_millis(100)), false);
        if !ebb_sys::thread::helper_lives() && CHILD_READY.load(SeqCst) == 0 {
            child_fails("its helper was killed".into());
        }
    }
    if CHILD_READY.load(SeqCst) == 2 {
        let why = WHY
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        parent.fail(&format!(
            "a forked child cannot be served and is ended: {}; `ebb doctor` says what is low or missing here",
            why.unwrap_or_default()
        ));
    }
}
