//! What every memory call does around its system call: waits, bookkeeping, registration.

use crate::devices::processors::cpu;
use crate::fault::registration;
use crate::map::page_map::{Page, PageNumber};
use crate::map::ranges::Attributes;
use crate::process::outcome::Outcome;
use crate::process::paging::Process;
use crate::process::state::{self, Locked, State};
use ebb_sys::{futex, stack, thread};
use std::ops::ControlFlow::Continue;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Forgets what was mapped in `start..end`; no page of it is in transit, and the memory itself is
/// gone already.
pub(crate) fn forget(state: &mut Locked, start: usize, end: usize) {
    let swap = Process::current().map(|p| p.swap);
    state.drop_pages(swap, cpu(), start, end);
    state.ranges.remove(start, end);
    state.map.forget(PageNumber::of(start), PageNumber::of(end));
}

/// Readies `start..end` for being dropped or replaced: waits until no page of it is in transit, and
/// accounts for those that forked relatives keep.
pub(crate) fn before_drop(state: Locked, start: usize, end: usize) -> Outcome<Locked> {
    let mut state = state::settled(state, start, end)?;
    if let Some(process) = Process::current() {
        process.before_drop(&mut state, start, end);
    }
    Ok(state)
}

/// Waits until the keeper has registered what was just mapped.
pub(crate) fn registered(start: usize) {
    let Some(process) = Process::current() else {
        return;
    };
    if thread::is_ours() {
        return process.register_new();
    }
    loop {
        let seen = registration::REGISTERED.load(SeqCst);
        let range = stack::borrow(move || state::lock().ranges.find(start));
        if range.is_none_or(|r| r.attributes.registered) {
            return;
        }
        process.member.wake_self();
        futex::wait(
            &registration::REGISTERED,
            seen,
            Some(Duration::from_millis(20)),
            false,
        );
    }
}

/// Waits until all of `start..end` that is ours is registered: then it is alike to the kernel.
pub(crate) fn all_registered(start: usize, end: usize) {
    let mut at = start;
    while Process::current().is_some() && at < end {
        let next = stack::borrow(move || state::lock().ranges.next(at, end));
        let Some(range) = next else { return };
        registered(range.start);
        at = range.end;
    }
}

/// Changes attributes; pages that may be evicted now join the queue again.
pub(crate) fn change(state: &mut Locked, start: usize, end: usize, f: impl Fn(&mut Attributes)) {
    state.ranges.change(start, end, f);
    let State { map, queue, .. } = &mut **state;
    let mut last = None;
    let mut at = PageNumber::of(start);
    let end = PageNumber::of(end);
    // One unit at a time: the map cannot change while it is walked.
    while at < end {
        let mut found = None;
        map.each(at, end, |number, page| {
            if matches!(page, Page::Resident(_)) {
                found = Some(number);
                return std::ops::ControlFlow::Break(());
            }
            Continue(())
        });
        let Some(number) = found else { return };
        if last.replace(number.unit()) != Some(number.unit()) {
            queue.requeue(map, number.unit());
        }
        at = number.unit().first().plus(crate::map::page_map::UNIT);
    }
}
