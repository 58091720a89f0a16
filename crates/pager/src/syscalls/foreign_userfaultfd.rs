//! Memory that the program has a userfaultfd of its own for: a mapping can be registered with one alone, so
//! ours lets it go.
//!
//! 1. The calling thread is about to register it. It has all pages stay, and brings in those that are out, one
//!    by one, on its own stack. Pages that nobody has touched stay missing: their faults are the program's.
//! 2. The keeper, which has the descriptor, ends our registration and forgets the range ([`Process::release_to_program`]).
//!    It stays in memory from then on, and counts as memory that is not managed does.
//!
//! The range is not taken back when the program ends its registration. And nothing tells whether the descriptor
//! is of this process: if the addresses are another's, the same addresses here are let go for nothing.

use crate::fault::registration;
use crate::fault::registration::RELEASED;
use crate::map::page_map::{Page, PageNumber};
use crate::process::lifecycle::wanted;
use crate::process::outcome::Outcome;
use crate::process::paging::Process;
use crate::process::state;
use crate::syscalls::areas::forget;
use crate::syscalls::vfork_proxy;
use ebb_engine::PAGE_SIZE;
use ebb_sys::memory::{self, page_up};
use ebb_sys::{futex, stack};
use std::ops::ControlFlow::{Break, Continue};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// The program is about to register `len` bytes from `start` on with a userfaultfd.
pub fn release_to_program(start: usize, len: usize) {
    let end = start.saturating_add(page_up(len));
    if !wanted() || vfork_proxy::is_child() || !start.is_multiple_of(PAGE_SIZE) {
        return;
    }
    if stack::borrow(move || stays(start, end)) != Ok(true) {
        return;
    }
    let mut at = start;
    while let Some(page) = stack::borrow(move || first_out(at, end)) {
        // SAFETY: populating changes no content. A page that is lost, or unmapped by now, stays so.
        let _ = unsafe { memory::madvise(page, PAGE_SIZE, libc::MADV_POPULATE_READ) };
        at = page + PAGE_SIZE;
    }
    stack::borrow(move || {
        let mut state = state::lock();
        state.ranges.change(start, end, |a| a.released = true);
    });
    while let Some(process) = Process::current() {
        let seen = registration::REGISTERED.load(SeqCst);
        if !stack::borrow(move || state::lock().ranges.overlaps(start, end)) {
            return;
        }
        process.member.wake_self();
        let pause = Some(Duration::from_millis(20));
        futex::wait(&registration::REGISTERED, seen, pause, false);
    }
}

/// Nothing of it leaves from now on. True if more has to be done: the process pages.
fn stays(start: usize, end: usize) -> Outcome<bool> {
    let mut state = state::settled(state::lock(), start, end)?;
    let bytes: usize = state
        .ranges
        .within(start, end)
        .map(|r| r.end - r.start)
        .sum();
    if bytes == 0 {
        return Ok(false);
    }
    RELEASED.fetch_add(bytes, SeqCst);
    if Process::current().is_none() {
        forget(&mut state, start, end);
        return Ok(false);
    }
    state.ranges.change(start, end, |a| a.pinned = true);
    Ok(true)
}

/// The first page from `start` on that is somewhere else.
fn first_out(start: usize, end: usize) -> Option<usize> {
    let state = state::settled(state::lock(), start, end).ok()?;
    let mut out = None;
    state.map.each(
        PageNumber::of(start),
        PageNumber::of(end),
        |number, page| {
            if matches!(page, Page::Resident(_) | Page::Poisoned) {
                return Continue(());
            }
            out = Some(number.address());
            Break(())
        },
    );
    out
}
