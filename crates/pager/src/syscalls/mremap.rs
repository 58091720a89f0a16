//! `mremap`: memory that is somewhere else afterwards, and what is known of it goes along.
//!
//! The kernel takes the registration away from memory that it moves. So the place is marked first, to stay a mapping
//! of its own (`registration::set_apart`), and the keeper registers it before the call returns. Staged pages are not
//! where the program had them, and are copied to the new place: see [`mremap_carry`](super::mremap_carry).
//!
//! One mapping of the kernel's may be several ranges here, as it knows nothing of pins and guards. A call that makes
//! memory smaller is about as many mappings as the program likes. So what is known goes along range by range, and what
//! comes is like the last. The other way round a range may be several mappings: see
//! [`mremap_pieces`](super::mremap_pieces). An area of which a part alone is managed: [`mremap_parts`](super::mremap_parts).
//!
//! The kernel may put memory where the pager still knows of other memory, which the program unmapped by an instruction.
//! That is forgotten before anything else is said of the place. Pages of it that are in transit cannot be: then the
//! call is undone, and made again when they have arrived.

#![allow(clippy::missing_safety_doc)] // Says "Requires:".

use crate::map::page_map::ADDRESSES;
use crate::map::ranges::{Attributes, Pinned, Ranges};
use crate::pager::{Pager, is_in_transit};
use crate::process::base::Locked;
use crate::process::outcome::{Outcome, RETRY, errno};
use crate::process::state::State;
use crate::process::vfork_calls::MemoryCall;
use crate::syscalls::file_copy::refuses_remap;
use crate::syscalls::mlock::ON_FAULT;
use crate::syscalls::mremap_pieces::{Pieces, of_one_mapping};
use crate::syscalls::vfork_proxy::Executor;
use ebb_engine::PAGE_SIZE;
use ebb_sys::Errno;
use ebb_sys::memory::page_up;
use ebb_sys::paging::Kernel;

/// What comes behind the memory of `start..end` as it grows. The program has put no guard there. Where a part is not
/// pinned the mapping is like any other, and the pins are of pages in it.
fn grown(ranges: &Ranges, (start, end): (usize, usize)) -> Option<Attributes> {
    let all = |reason: fn(Pinned) -> bool| {
        let mut parts = ranges.within(start, end);
        parts.all(|r| reason(r.attributes.pinned))
    };
    let pinned = Pinned {
        for_good: all(|p| p.for_good),
        // Nobody holds what comes.
        held: false,
        keyed: all(|p| p.keyed),
    };
    let last = ranges.within(start, end).last()?.attributes;
    Some(Attributes {
        registered: false,
        guarded: false,
        pinned,
        ..last
    })
}

impl<K: Kernel> Pager<K> {
    /// `mremap(2)`. Requires: as the system call.
    pub unsafe fn mremap(
        &'static self,
        old: usize,
        old_len: usize,
        new_len: usize,
        flags: i32,
        new_addr: usize,
    ) -> Outcome<usize> {
        let asked = MemoryCall::Remap {
            old,
            old_len,
            new_len,
            flags,
            new_addr,
            done: 0,
        };
        match self.executor(asked) {
            Executor::Direct => {
                // SAFETY: the caller answers for the system call, here and below.
                unsafe { self.kernel.mremap(old, old_len, new_len, flags, new_addr) }.map_err(errno)
            }
            Executor::Done(outcome) => outcome,
            // SAFETY: as above.
            Executor::Here => unsafe {
                self.remap_here((old, old_len), new_len, flags, new_addr, &mut 0)
            },
        }
    }

    /// The same, made by the calling thread. `done`: bytes that were moved, if it is made part by part.
    pub(crate) unsafe fn remap_here(
        &'static self,
        (old, old_len): (usize, usize),
        new_len: usize,
        flags: i32,
        new_addr: usize,
        done: &mut usize,
    ) -> Outcome<usize> {
        match *done > 0 || self.moves_parts((old, old_len), new_len, flags, new_addr) {
            // SAFETY: the caller answers for the system call, here and below.
            true => unsafe { self.remap_parts((old, old_len), flags, new_addr, done) },
            // SAFETY: as above.
            false => unsafe { self.remap_alike(old, old_len, new_len, flags, new_addr) },
        }
    }

    /// A call about memory that is alike, or that the kernel refuses without having changed anything.
    pub(super) unsafe fn remap_alike(
        &'static self,
        old: usize,
        old_len: usize,
        new_len: usize,
        flags: i32,
        new_addr: usize,
    ) -> Outcome<usize> {
        loop {
            self.all_registered(old, old.saturating_add(page_up(old_len)));
            // SAFETY: the caller answers for the system call.
            let locked =
                move || unsafe { self.remap_locked(old, old_len, new_len, flags, new_addr) };
            let (moved, unregistered) = self.kernel.on_own_stack(locked);
            if let Some(start) = unregistered {
                self.registered(start);
                if moved.is_ok() {
                    self.admit(page_up(new_len).saturating_sub(page_up(old_len)));
                }
            }
            if moved != Err(RETRY) || self.kernel.is_own_thread() {
                return moved;
            }
            self.bring_in_stuck(old, old.saturating_add(page_up(old_len)))?;
        }
    }

    /// The answer, and where memory begins that is to be registered before the program has it.
    unsafe fn remap_locked(
        &'static self,
        old: usize,
        old_len: usize,
        new_len: usize,
        flags: i32,
        new_addr: usize,
    ) -> (Outcome<usize>, Option<usize>) {
        // SAFETY: here and below, the caller answers for the system call.
        let call = |old_len| unsafe { self.kernel.mremap(old, old_len, new_len, flags, new_addr) };
        let (old_len, bytes) = (page_up(old_len), page_up(new_len));
        let fixed = flags & libc::MREMAP_FIXED != 0;
        let target = match fixed {
            true => (new_addr, new_addr.saturating_add(bytes)),
            false => (0, 0),
        };
        let end = old.saturating_add(old_len.max(bytes));
        if end.max(new_addr.saturating_add(bytes)) > ADDRESSES {
            let far = || call(old_len);
            return (self.remap_far((old, end), target, far), None);
        }
        let source = (old, old + old_len);
        let (mut state, is_managed) = match self.readied(source, target, bytes) {
            Ok(readied) => readied,
            Err(error) => return (Err(error), None),
        };
        if !is_managed && !state.ranges.overlaps(target.0, target.1) {
            drop(state);
            return (
                self.remap_others(source, bytes, flags, || call(old_len)),
                None,
            );
        }
        let moves = bytes > old_len || flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
        if moves && let Err(error) = self.ready_to_move(&state, source, bytes, flags) {
            return (Err(error), None);
        }
        let (moved, begun) = match (call(old_len), of_one_mapping(&state.ranges, source)) {
            (Err(Errno(libc::EFAULT)), Some(like)) => {
                let mut pieces = Pieces::new(self, like, source, bytes, flags, target.0);
                (pieces.remap(), pieces.begun)
            }
            (moved, _) => (moved, false),
        };
        if moves && moved.map_or(!begun, |_| flags & libc::MREMAP_DONTUNMAP != 0) {
            self.join_pieces_again(&state.ranges, source);
        }
        let new = match moved {
            Ok(new) => new,
            Err(error) => {
                if fixed {
                    self.forget_gone(&mut state, target);
                    self.forget_gone(&mut state, (old + bytes, source.1));
                }
                let tried = error == Errno(libc::ENOMEM) && flags & libc::MREMAP_MAYMOVE != 0;
                let came_back = is_managed && (begun || tried);
                let first = came_back.then(|| self.came_back(&mut state, old, old_len));
                return (Err(errno(error)), first.flatten());
            }
        };
        let Ok(mut state) = self.landed(state, source, (new, new + bytes), flags) else {
            return (Err(RETRY), Some(old));
        };
        if !is_managed {
            return (Ok(new), None);
        }
        self.vfork_calls.apply_unmanaged(&mut state);
        let unregistered = self.settle_in(&mut state, (old, old_len), (new, bytes), flags);
        (Ok(new), unregistered)
    }

    /// A call about memory that is not managed, made without the lock. Where the program has a userfaultfd of its own for
    /// it, the call lasts until a thread of the program has read of it, and that thread may need the lock.
    ///
    /// Memory that comes to be managed there meanwhile is that of a program whose threads do not agree.
    fn remap_others(
        &'static self,
        source: (usize, usize),
        bytes: usize,
        flags: i32,
        call: impl FnOnce() -> Result<usize, Errno>,
    ) -> Outcome<usize> {
        let new = call().map_err(errno)?;
        self.landed(self.lock(), source, (new, new + bytes), flags)
            .map(|_| new)
    }

    /// A call about addresses that the page map does not have. Mostly the kernel has none, either: it refuses, and
    /// changes nothing. Elsewhere managed memory has no part in such a call.
    fn remap_far(
        &'static self,
        source: (usize, usize),
        target: (usize, usize),
        call: impl FnOnce() -> Result<usize, Errno>,
    ) -> Outcome<usize> {
        let state = self.lock();
        let managed = [source, target].map(|(start, end)| state.ranges.overlaps(start, end));
        drop(state);
        if managed.contains(&true) && self.has_far_addresses() {
            return Err(libc::ENOMEM);
        }
        call().map_err(errno)
    }

    /// Whether programs have memory behind the addresses of the page map: five levels of page tables.
    fn has_far_addresses(&self) -> bool {
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces nothing. Nobody knows of it before it is unmapped.
        let page = unsafe {
            self.kernel
                .mmap(ADDRESSES, PAGE_SIZE, libc::PROT_NONE, how, -1, 0)
        };
        if page.is_ok() {
            // SAFETY: just mapped.
            let _ = unsafe { self.kernel.munmap(ADDRESSES, PAGE_SIZE) };
        }
        page.is_ok() || page == Err(Errno(libc::EEXIST))
    }

    /// Locks the state with nothing of both areas in transit, and what the call drops ready for that; and whether any
    /// of the source is managed.
    fn readied(
        &'static self,
        source: (usize, usize),
        target: (usize, usize),
        bytes: usize,
    ) -> Outcome<(Locked, bool)> {
        // Both at once, and before anything is looked up: a wait lets the lock go.
        let mut state = self.all_settled(self.lock(), &[source, target])?;
        let is_managed = source.0 < source.1 && state.ranges.overlaps(source.0, source.1);
        if state.ranges.overlaps(target.0, target.1) {
            state = self.before_drop(state, target.0, target.1)?;
        }
        if is_managed && source.0 + bytes < source.1 {
            state = self.before_drop(state, source.0 + bytes, source.1)?;
        }
        if source.0 + bytes > source.1 {
            // Else the kernel fills what comes, and waits for service that waits for the lock. It stays locked.
            let lock = |start, end| self.kernel.mlock(start, end - start, ON_FAULT);
            let pieces = || state.ranges.within(source.0, source.1);
            // With pages that are not managed it is one mapping to the kernel, and stays one.
            if pieces().all(|piece| piece.attributes.locked) && is_managed {
                let _ = lock(source.0, source.1);
            } else {
                for piece in pieces().filter(|piece| piece.attributes.locked) {
                    let _ = lock(piece.start, piece.end);
                }
            }
        }
        Ok((state, is_managed))
    }

    /// Sets memory apart that is about to be moved.
    ///
    /// # Errors
    /// Those of a copy of a file ([`refuses_remap`]). ENOMEM, or [`RETRY`] as [`refuses_carry`](Self::refuses_carry) has it:
    /// nothing may be moved.
    fn ready_to_move(
        &self,
        state: &State,
        source: (usize, usize),
        bytes: usize,
        flags: i32,
    ) -> Outcome<()> {
        let refused = refuses_remap(&state.ranges, source, bytes, flags);
        if let Some(error) = refused.or_else(|| self.refuses_carry(state, source)) {
            return Err(error);
        }
        self.set_pieces_apart(&state.ranges, source).map_err(|e| {
            self.join_pieces_again(&state.ranges, source);
            errno(e)
        })
    }

    /// Forgets what was known where the memory of `source` is now and was not before: the call replaced it, or the
    /// program had unmapped it by an instruction.
    ///
    /// # Errors
    /// [`RETRY`]: pages there are in transit. The call was undone, and they were waited for on a thread of the
    /// program's.
    fn landed(
        &'static self,
        mut state: Locked,
        source: (usize, usize),
        new: (usize, usize),
        flags: i32,
    ) -> Outcome<Locked> {
        let fresh = match new.0 == source.0 {
            true => (source.1, new.1),
            false => new,
        };
        if fresh.0 >= fresh.1 || !state.ranges.overlaps(fresh.0, fresh.1) {
            return Ok(state);
        }
        if is_in_transit(&state, fresh) {
            self.take_back(&mut state, source, new, flags);
            drop(self.settled(state, fresh.0, fresh.1)?);
            return Err(RETRY);
        }
        self.forget(&mut state, fresh.0, fresh.1);
        Ok(state)
    }

    /// Undoes a call that moved or extended the memory of `source`: it was where it is at `new` now.
    fn take_back(
        &'static self,
        state: &mut Locked,
        (old, end): (usize, usize),
        new: (usize, usize),
        flags: i32,
    ) {
        let kept = end - old;
        // Another thread may have mapped memory in the hole meanwhile, without the lock.
        let is_ours = flags & libc::MREMAP_DONTUNMAP != 0 || new.0 == old || self.takes(old, kept);
        let moved = match is_ours {
            _ if new.0 == old => Ok(()),
            true => self.move_each(new.0, old, kept, 0).map_err(|(_, e)| e),
            false => Err(Errno(libc::EEXIST)),
        };
        if let Err(error) = moved
            && let Some(process) = self.process()
        {
            process.fail(&format!(
                "memory that was moved from {old:#x} to {:#x} cannot be moved back: {error}",
                new.0
            ));
        }
        let more = new.0 + kept;
        // SAFETY: mapped by the call, which has not returned yet.
        let _ = unsafe { self.kernel.munmap(more, new.1 - more) };
        self.came_back(state, old, kept);
    }

    /// Forgets `start..end` if nothing is mapped there. Some kernels unmap first what a call replaces or cuts off,
    /// and fail then.
    fn forget_gone(&'static self, state: &mut Locked, (start, end): (usize, usize)) {
        if start >= end || !state.ranges.overlaps(start, end) || is_in_transit(state, (start, end))
        {
            return;
        }
        if self.is_unmapped(start, end) {
            self.forget(state, start, end);
        }
    }

    /// Whether nothing is mapped there.
    fn is_unmapped(&self, start: usize, end: usize) -> bool {
        match self.take(start, end - start) {
            Ok(_) => {
                // SAFETY: just mapped.
                let _ = unsafe { self.kernel.munmap(start, end - start) };
                true
            }
            Err(Errno(libc::EEXIST)) => false,
            // The system makes no mapping now. It refuses advice of this kind only where nothing is.
            Err(_) => (start..end).step_by(PAGE_SIZE).all(|page| {
                // SAFETY: it changes no content.
                let advised = unsafe { self.kernel.madvise(page, PAGE_SIZE, libc::MADV_COLD) };
                advised == Err(Errno(libc::ENOMEM))
            }),
        }
    }

    /// Maps addresses where nothing is; whether that is so. Nobody may touch them.
    pub(super) fn takes(&self, start: usize, len: usize) -> bool {
        self.take(start, len).is_ok()
    }

    fn take(&self, start: usize, len: usize) -> Result<usize, Errno> {
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces nothing.
        unsafe { self.kernel.mmap(start, len, libc::PROT_NONE, how, -1, 0) }
    }

    /// The call failed, and pages were moved and came back, by us or by the kernel. They lost their protection on
    /// the way, perhaps their registration too. So none keeps a clean copy, and the keeper looks at all of them.
    /// Where the first of it begins.
    fn came_back(&'static self, state: &mut Locked, old: usize, old_len: usize) -> Option<usize> {
        if let Some(process) = self.process() {
            state
                .pages
                .drop_copies(process.swap, process.cpu(), old, old + old_len);
        }
        let lost = |a: &mut Attributes| a.registered = false;
        state.ranges.change(old, old + old_len, lost);
        let first = state.ranges.next(old, old + old_len);
        first.map(|range| range.start)
    }

    /// The memory of `old..`, and all that was known of it, is at its new place from now on. Where the first part of it
    /// is that is to be registered.
    fn settle_in(
        &'static self,
        state: &mut Locked,
        (old, old_len): (usize, usize),
        (new, bytes): (usize, usize),
        flags: i32,
    ) -> Option<usize> {
        let kept = old_len.min(bytes);
        let (mut first, mut at, end) = (None, old, old + kept);
        let grown = grown(&state.ranges, (old, end)).filter(|_| kept < bytes);
        while (new != old || grown.is_some())
            && let Some(piece) = state.ranges.next(at, end)
        {
            let to = new + (piece.start - old);
            if new != old {
                self.carry(state, piece, to);
            }
            // A range that moved is registered no more, and one that grew only in part.
            let shadow = piece.attributes.shadow;
            let moved = Attributes {
                shadow: shadow.map(|shadow| shadow.after_move(piece.start, to)),
                registered: false,
                ..piece.attributes
            };
            if new != old {
                state
                    .ranges
                    .change(piece.start, piece.end, |a| a.shadow = None);
            }
            state
                .ranges
                .insert(to, to + (piece.end - piece.start), moved);
            first = first.or(Some(to));
            at = piece.end;
        }
        if let Some(grown) = grown {
            state.ranges.insert(new + kept, new + bytes, grown);
        }
        if flags & libc::MREMAP_DONTUNMAP != 0 {
            // What stays is locked no more.
            self.change(state, old, old + old_len, |a| a.locked = false);
        }
        let gone = match new == old {
            true => old + kept,
            false if flags & libc::MREMAP_DONTUNMAP != 0 => old + old_len,
            false => old,
        };
        if gone < old + old_len {
            self.forget(state, gone, old + old_len);
        }
        first
    }
}
