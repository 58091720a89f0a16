//! Memory that the program has a userfaultfd of its own for: a mapping can be registered with one alone, so
//! ours lets it go.
//!
//! 1. The calling thread is about to register it. It has all pages stay, and brings in those that are out, one
//!    by one, on its own stack. Pages that nobody has touched stay missing: their faults are the program's.
//! 2. The keeper, which has the descriptor, ends our registration and forgets the range ([`Process::cede`]).
//!    It stays in memory from then on, and counts as memory that is not managed does.
//!
//! The range is not taken back when the program ends its registration. And nothing tells whether the descriptor
//! is of this process: if the addresses are another's, the same addresses here are let go for nothing.

use crate::errand;
use crate::hooks::{Outcome, forget, wanted};
use crate::keeper;
use crate::map::{Page, PageNumber};
use crate::process::{Process, cpu};
use crate::ranges::InChild;
use crate::state::{self, State};
use ebb_engine::PAGE_SIZE;
use ebb_sys::memory::{self, page_up};
use ebb_sys::{futex, stack};
use std::ops::ControlFlow::{Break, Continue};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Bytes that were let go and that nobody was told of.
static CEDED: AtomicUsize = AtomicUsize::new(0);

/// The program is about to register `len` bytes from `start` on with a userfaultfd.
pub fn cede(start: usize, len: usize) {
    let end = start.saturating_add(page_up(len));
    if !wanted() || errand::is_child() || !start.is_multiple_of(PAGE_SIZE) {
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
        state.ranges.change(start, end, |a| a.ceded = true);
    });
    while let Some(process) = Process::current() {
        let seen = keeper::ANSWERED.load(SeqCst);
        if !stack::borrow(move || state::lock().ranges.overlaps(start, end)) {
            return;
        }
        process.member.wake_self();
        let pause = Some(Duration::from_millis(20));
        futex::wait(&keeper::ANSWERED, seen, pause, false);
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
    CEDED.fetch_add(bytes, SeqCst);
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

impl Process {
    /// In the keeper: lets go what is to be let go; whether there was any.
    pub fn cede(&self, state: &mut State) -> bool {
        let mut at = 0;
        let mut any = false;
        while let Some(range) = state.ranges.next(at, usize::MAX) {
            at = range.end;
            if !range.attributes.ceded {
                continue;
            }
            any = true;
            let (start, len) = (range.start, range.end - range.start);
            // Something else may be mapped there by now: then there is nothing to end.
            let _ = self.fault.unregister(start, len);
            if range.attributes.in_child != InChild::Absent {
                // SAFETY: advice that changes no content.
                let _ = unsafe { memory::madvise(start, len, libc::MADV_DOFORK) };
            }
            state.drop_pages(Some(self.swap), cpu(), range.start, range.end);
            state.ranges.remove(range.start, range.end);
        }
        any
    }

    /// In the keeper: says once that there is such memory.
    pub fn tell_of_ceded(&self) {
        let bytes = CEDED.swap(0, SeqCst);
        if bytes > 0 {
            self.member.message(&format!(
                "process {} has a userfaultfd of its own for {} KiB of its memory: they stay in RAM, and count",
                std::process::id(),
                bytes >> 10
            ));
        }
    }
}
