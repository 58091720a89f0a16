//! `madvise`: advice that drops content, that a forked child minds, or that would fill memory behind
//! our back.
//!
//! Whether the process pages is asked with the lock held, and acted on before that goes: the keeper adopts the
//! process, and pages begin to leave, between any two steps.

#![allow(clippy::missing_safety_doc)] // Says "Requires:".

use crate::map::ranges::{Range, Ranges};
use crate::pager::Pager;
use crate::process::base::Locked;
use crate::process::outcome::{Outcome, errno};
use crate::process::vfork_calls::MemoryCall;
use crate::syscalls::vfork_proxy::Executor;
use ebb_engine::PAGE_SIZE;
use ebb_sys::Errno;
use ebb_sys::memory::{self, page_up};
use ebb_sys::paging::Kernel;

/// Linux 6.13's, which the libc crate lacks.
pub(super) const GUARD_INSTALL: i32 = 102;
pub(super) const GUARD_REMOVE: i32 = 103;

/// Other advice changes nothing that the pager knows; some of it fills memory, by faults that are served as
/// any other.
fn concerns_us(advice: i32) -> bool {
    matches!(
        advice,
        libc::MADV_RANDOM
            | libc::MADV_DONTNEED
            | libc::MADV_FREE
            | libc::MADV_DONTNEED_LOCKED
            | GUARD_INSTALL
            | GUARD_REMOVE
            | libc::MADV_DONTFORK
            | libc::MADV_DOFORK
            | libc::MADV_WIPEONFORK
            | libc::MADV_KEEPONFORK
            | libc::MADV_HUGEPAGE
            | libc::MADV_MERGEABLE
            | libc::MADV_WILLNEED
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
    )
}

/// An area that a caller names, which may name what cannot be read.
fn area(areas: *const libc::iovec, n: usize) -> Outcome<libc::iovec> {
    let mut bytes = [0; size_of::<libc::iovec>()];
    memory::read_own(areas.wrapping_add(n) as usize, &mut bytes).map_err(errno)?;
    // SAFETY: an address and a number, of which any value is one.
    Ok(unsafe { std::mem::transmute::<[u8; size_of::<libc::iovec>()], libc::iovec>(bytes) })
}

/// Advises one part of an area after the other, as the kernel does it: behind a hole it goes on. `one` advises the part
/// that begins at an address: where that ends, and what came of it.
fn advise_each(
    (start, end): (usize, usize),
    mut one: impl FnMut(usize) -> (usize, Outcome<()>),
) -> Outcome<()> {
    let (mut at, mut holes) = (start, Ok(()));
    while at < end {
        let (stop, advised) = one(at);
        match advised {
            Err(libc::ENOMEM) => holes = advised,
            advised => advised?,
        }
        at = stop;
    }
    holes
}

/// The same of what is known with the lock held. Managed memory hears of it only if it is `for_managed`; advice about
/// children is noted.
fn advise_parts(
    ranges: &mut Ranges,
    area: (usize, usize),
    for_managed: bool,
    noted: Option<i32>,
    call: impl Fn(usize, usize) -> Outcome<()>,
) -> Outcome<()> {
    advise_each(area, |at| {
        let (stop, managed) = ranges.part(at, area.1);
        let advised = match for_managed || !managed {
            true => call(at, stop - at),
            false => Ok(()),
        };
        if let (Some(advice), Ok(()) | Err(libc::ENOMEM)) = (noted, advised) {
            ranges.change(at, stop, |a| a.in_child = a.in_child.advised(advice));
        }
        (stop, advised)
    })
}

impl<K: Kernel> Pager<K> {
    /// `madvise(2)`. Requires: as the system call.
    pub unsafe fn madvise(&'static self, addr: usize, len: usize, advice: i32) -> Outcome<()> {
        // SAFETY: the caller answers for the system call.
        let call = |addr, len| unsafe { self.kernel.madvise(addr, len, advice) }.map_err(errno);
        let end = addr.saturating_add(page_up(len));
        // The kernel refuses what does not begin and end with a page, and lengths that no whole pages have.
        let refused = !end.is_multiple_of(PAGE_SIZE) || page_up(len) < len;
        if refused || !concerns_us(advice) {
            return call(addr, len);
        }
        match self.executor(MemoryCall::Advise { addr, len, advice }) {
            Executor::Direct => call(addr, len),
            Executor::Done(outcome) => outcome.map(drop),
            // SAFETY: as above.
            Executor::Here => self
                .kernel
                .on_own_stack(move || unsafe { self.advise_locked(addr, len, advice) }),
        }
    }

    /// Advises the parts of an area that are not managed, without the lock: the kernel may read or write for it.
    fn advise_others(
        &'static self,
        area: (usize, usize),
        call: impl Fn(usize, usize) -> Outcome<()>,
    ) -> Outcome<()> {
        advise_each(area, |at| {
            // The lock goes before the call.
            let (stop, managed) = self.lock().ranges.part(at, area.1);
            let advised = match managed {
                true => Ok(()),
                false => call(at, stop - at),
            };
            (stop, advised)
        })
    }

    /// Advice that concerns us, by the calling thread. Requires: as the system call.
    pub(crate) unsafe fn advise_locked(
        &'static self,
        addr: usize,
        len: usize,
        advice: i32,
    ) -> Outcome<()> {
        // SAFETY: the caller answers for the system call.
        let call = |addr, len| unsafe { self.kernel.madvise(addr, len, advice) }.map_err(errno);
        let end = addr.saturating_add(page_up(len));
        let mut state = self.lock();
        let paged = self.process().is_some();
        if state.ranges.overlaps(addr, end) {
            let area = (addr, end);
            match advice {
                libc::MADV_DONTNEED
                | libc::MADV_FREE
                | libc::MADV_DONTNEED_LOCKED
                | GUARD_INSTALL
                | GUARD_REMOVE => {
                    // SAFETY: as above.
                    return unsafe { self.drop_content(state, addr, end, advice) };
                }
                libc::MADV_WIPEONFORK if state.ranges.has_copies(addr, end) => {
                    return Err(libc::EINVAL);
                }
                libc::MADV_DONTFORK
                | libc::MADV_DOFORK
                | libc::MADV_WIPEONFORK
                | libc::MADV_KEEPONFORK => {
                    // Registered ranges are kept from children but at forks that we know of.
                    let ours = paged && matches!(advice, libc::MADV_DONTFORK | libc::MADV_DOFORK);
                    return advise_parts(&mut state.ranges, area, !ours, Some(advice), call);
                }
                // Of no use for anonymous memory, and our mark (`registration::set_apart`).
                libc::MADV_RANDOM => {
                    return advise_parts(&mut state.ranges, area, false, None, call);
                }
                // Filled or merged behind our back, such pages could not be moved out or counted.
                libc::MADV_HUGEPAGE | libc::MADV_MERGEABLE if paged => {
                    return advise_parts(&mut state.ranges, area, false, None, call);
                }
                libc::MADV_WILLNEED | libc::MADV_COLD | libc::MADV_PAGEOUT if paged => {
                    drop(state);
                    return self.advise_others(area, call);
                }
                libc::MADV_HUGEPAGE | libc::MADV_MERGEABLE => return call(addr, len),
                _ => {}
            }
        }
        drop(state);
        call(addr, len)
    }

    /// `process_madvise(2)`. Requires: as the system call.
    pub unsafe fn process_madvise(
        &'static self,
        process: i32,
        areas: *const libc::iovec,
        count: usize,
        advice: i32,
        flags: u32,
    ) -> Outcome<usize> {
        // SAFETY: the caller answers for the system call, here and below.
        let advise = |count, advice| unsafe {
            self.kernel
                .process_madvise(process, areas, count, advice, flags)
        };
        let call = |count| advise(count, advice);
        // The advice that another process's memory may be given. It changes no content.
        const OF_OTHERS: [i32; 4] = [
            libc::MADV_COLD,
            libc::MADV_PAGEOUT,
            libc::MADV_WILLNEED,
            libc::MADV_COLLAPSE,
        ];
        // Other advice is refused, unless the memory is the caller's; of no area it has no effect.
        let is_others = || OF_OTHERS.contains(&advice) && advise(0, libc::MADV_DONTNEED).is_err();
        // The kernel takes so many areas.
        if count > libc::UIO_MAXIOV as usize || !self.wanted() || is_others() {
            return call(count).map_err(errno);
        }
        // The kernel reads all of them before it does anything.
        (0..count).try_for_each(|n| area(areas, n).map(drop))?;
        // Where the call itself is wrong.
        call(0).map_err(errno)?;
        let mut heard = 0;
        for n in 0..count {
            let area = area(areas, n)?;
            // SAFETY: as above.
            match unsafe { self.madvise(area.iov_base as usize, area.iov_len, advice) } {
                Ok(()) => heard += area.iov_len,
                Err(error) if heard == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(heard)
    }

    /// Drops the content of `start..end`, one part after the other, as the kernel does it. Holes do not matter, but
    /// nothing is dropped behind a part whose content may not be.
    ///
    /// Guards are the kernel's business: who touches one gets SIGSEGV, not a fault of ours. But a page
    /// that is filled in takes a guard's place, so no range is both guarded and not.
    unsafe fn drop_content(
        &'static self,
        state: Locked,
        start: usize,
        end: usize,
        advice: i32,
    ) -> Outcome<()> {
        let mut state = self.before_drop(state, start, end)?;
        let (mut at, mut holes) = (start, Ok(()));
        while at < end {
            let copy = state
                .ranges
                .find(at)
                .filter(|r| r.attributes.shadow.is_some());
            if let Some(range) = copy {
                let piece = Range {
                    start: at,
                    end: range.end.min(end),
                    ..range
                };
                self.drop_copy(&mut state, piece, advice)?;
                at = piece.end;
                continue;
            }
            let (stop, managed) = state.ranges.part(at, end);
            let now = match advice {
                // One of the outcomes that it allows. Before it pages, too: the system may drop such a page at any time
                // until it is written, and from a frame of ours as well. A thread that reads that frame waits for ever.
                libc::MADV_FREE if managed => libc::MADV_DONTNEED,
                as_it_is => as_it_is,
            };
            // SAFETY: the caller answers for the system call.
            let call = || unsafe { self.kernel.madvise(at, stop - at, now) };
            let dropped = match managed {
                true => call(),
                // A thread of the program may have to read first that it goes, and need the lock for that.
                false => {
                    drop(state);
                    let dropped = call();
                    state = self.before_drop(self.lock(), stop, end)?;
                    dropped
                }
            };
            match dropped {
                Err(hole @ Errno(libc::ENOMEM)) => holes = Err(errno(hole)),
                result => result.map_err(errno)?,
            }
            if managed {
                match advice {
                    GUARD_REMOVE => state.ranges.change(at, stop, |a| a.guarded = false),
                    GUARD_INSTALL => state.ranges.change(at, stop, |a| a.guarded = true),
                    _ => {}
                }
                if advice != GUARD_REMOVE {
                    // Asked here: while the lock was dropped the process may have begun to page.
                    let swap = self.process().map(|p| p.swap_here());
                    state.pages.forget(swap, at, stop);
                }
            }
            at = stop;
        }
        state.pages.give_back_tables();
        holes
    }
}
