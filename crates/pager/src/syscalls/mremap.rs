//! `mremap`: memory that is somewhere else afterwards, and what is known of it goes along.
//!
//! The kernel takes the registration away from memory that it moves. So the place is marked first, to stay a mapping
//! of its own (`registration::set_apart`), and the keeper registers it before the call returns. Staged pages are not
//! where the program had them, and are copied to the new place.
//!
//! One range here may be several mappings to the kernel: parts that were protected, or that a fork has copied, do not
//! merge again when they are alike. It refuses to move or resize those in one call (EFAULT), as a program that knows
//! nothing of us does not expect. They are moved one by one.
//!
//! The kernel may put memory where the pager still knows of other memory, which the program unmapped by an instruction.
//! That is forgotten before anything else is said of the place. Pages of it that are in transit cannot be: then the
//! call is undone, and made again when they have arrived.

#![allow(clippy::missing_safety_doc)] // Says "Requires:".

use crate::map::page_map::{ADDRESSES, Page, PageNumber};
use crate::map::ranges::{Attributes, Range};
use crate::pager::{Pager, is_in_transit};
use crate::process::base::Locked;
use crate::process::outcome::{Outcome, RETRY, errno};
use crate::process::vfork_calls::MemoryCall;
use crate::syscalls::mlock::ON_FAULT;
use crate::syscalls::vfork_proxy::Executor;
use ebb_engine::PAGE_SIZE;
use ebb_sys::Errno;
use ebb_sys::memory::page_up;
use ebb_sys::paging::Kernel;
use std::ops::ControlFlow::Break;

const PLAIN: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// A call that the kernel refuses because the memory is several mappings to it.
struct Pieces<'a, K: Kernel> {
    pager: &'a Pager<K>,
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: i32,
    /// The place where it is to be, with MREMAP_FIXED.
    target: usize,
    protection: i32,
    /// Flag: something was mapped or moved.
    begun: bool,
}

impl<'a, K: Kernel> Pieces<'a, K> {
    fn new(
        pager: &'a Pager<K>,
        range: &Range,
        (old, end): (usize, usize),
        new_len: usize,
        flags: i32,
        target: usize,
    ) -> Self {
        Self {
            pager,
            old,
            old_len: end - old,
            new_len,
            flags,
            target,
            protection: range.attributes.protection,
            begun: false,
        }
    }

    fn remap(&mut self) -> Result<usize, Errno> {
        const KNOWN: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let &mut Self {
            old,
            old_len,
            new_len,
            flags,
            target,
            ..
        } = self;
        if flags & !KNOWN != 0 || new_len == 0 {
            return Err(Errno(libc::EFAULT));
        }
        let leaves = flags & libc::MREMAP_DONTUNMAP != 0;
        if leaves && (flags & libc::MREMAP_MAYMOVE == 0 || new_len != old_len) {
            return Err(Errno(libc::EINVAL));
        }
        if flags & libc::MREMAP_FIXED != 0 {
            let apart = target + new_len <= old || old + old_len <= target;
            let aligned = target.is_multiple_of(PAGE_SIZE);
            if flags & libc::MREMAP_MAYMOVE == 0 || !apart || !aligned {
                return Err(Errno(libc::EINVAL));
            }
            self.begun = true;
            self.map(target, new_len, libc::MAP_FIXED)?;
            return self.move_to(target);
        }
        if leaves {
            return self.move_anywhere();
        }
        if new_len <= old_len {
            if new_len < old_len {
                // SAFETY: what the program gives up.
                unsafe { self.pager.kernel.munmap(old + new_len, old_len - new_len)? };
            }
            return Ok(old);
        }
        let more = new_len - old_len;
        match self.map(old + old_len, more, libc::MAP_FIXED_NOREPLACE) {
            Ok(_) => Ok(old),
            Err(_) if flags & libc::MREMAP_MAYMOVE == 0 => Err(Errno(libc::ENOMEM)),
            Err(_) => self.move_anywhere(),
        }
    }

    /// Maps memory as this is.
    fn map(&self, at: usize, len: usize, how: i32) -> Result<usize, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | how;
        // SAFETY: what lies there is the program's to replace, where anything is replaced.
        unsafe {
            self.pager
                .kernel
                .mmap(at, len, self.protection, flags, -1, 0)
        }
    }

    /// Moves all of it to where the kernel has room.
    fn move_anywhere(&mut self) -> Result<usize, Errno> {
        let to = self.map(0, self.new_len, 0)?;
        self.begun = true;
        self.move_to(to)
    }

    /// Moves all of it to `to`, where memory of the new length is mapped.
    fn move_to(&self, to: usize) -> Result<usize, Errno> {
        let kept = self.old_len.min(self.new_len);
        let leaves = self.flags & libc::MREMAP_DONTUNMAP;
        let Err((moved, error)) = self.pager.move_each(self.old, to, kept, leaves) else {
            if kept < self.old_len {
                // SAFETY: what the program gives up. If it cannot be unmapped it is nobody's.
                let _ = unsafe {
                    self.pager
                        .kernel
                        .munmap(self.old + kept, self.old_len - kept)
                };
            }
            return Ok(to);
        };
        if self.pager.move_each(to, self.old, moved, 0).is_err()
            && let Some(process) = self.pager.process()
        {
            process.fail(&format!(
                "memory at {:#x} was moved in part and can neither be moved on nor back ({error}): \
                 the process has too many mappings; raise vm.max_map_count",
                self.old
            ));
        }
        // SAFETY: mapped by `map`, and nothing of the program's is there.
        let _ = unsafe { self.pager.kernel.munmap(to, self.new_len) };
        Err(error)
    }
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
        };
        match self.executor(asked) {
            Executor::Direct => {
                // SAFETY: the caller answers for the system call, here and below.
                unsafe { self.kernel.mremap(old, old_len, new_len, flags, new_addr) }.map_err(errno)
            }
            Executor::Done(outcome) => outcome,
            // SAFETY: as above.
            Executor::Here => unsafe { self.remap_here(old, old_len, new_len, flags, new_addr) },
        }
    }

    /// The same, made by the calling thread.
    pub(crate) unsafe fn remap_here(
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
        let (mut state, range) = match self.readied(source, target, bytes) {
            Ok(readied) => readied,
            Err(error) => return (Err(error), None),
        };
        let marked = range.is_some_and(|r| r.attributes.registered);
        if marked && let Err(e) = self.set_apart(old, old_len) {
            self.join_again(old, old_len);
            return (Err(errno(e)), None);
        }
        let (moved, begun) = match (call(old_len), &range) {
            (Err(Errno(libc::EFAULT)), Some(range)) if range.end >= source.1 => {
                let mut pieces = Pieces::new(self, range, source, bytes, flags, target.0);
                (pieces.remap(), pieces.begun)
            }
            (moved, _) => (moved, false),
        };
        let stays = moved.map_or(!begun, |_| flags & libc::MREMAP_DONTUNMAP != 0);
        if marked && stays {
            self.join_again(old, old_len);
        }
        let new = match moved {
            Ok(new) => new,
            Err(error) => {
                if fixed {
                    self.forget_gone(&mut state, target);
                    self.forget_gone(&mut state, (old + bytes, source.1));
                }
                let tried = error == Errno(libc::ENOMEM) && flags & libc::MREMAP_MAYMOVE != 0;
                let back = range.is_some() && (begun || tried);
                if back {
                    self.came_back(&mut state, old, old_len);
                }
                return (Err(errno(error)), back.then_some(old));
            }
        };
        let Ok(mut state) = self.landed(state, source, (new, new + bytes), flags) else {
            return (Err(RETRY), Some(old));
        };
        let Some(range) = range else {
            return (Ok(new), None);
        };
        self.vfork_calls.apply_unmanaged(&mut state);
        self.settle_in(&mut state, range, (old, old_len), (new, bytes), flags);
        (Ok(new), Some(new))
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

    /// Locks the state with nothing of both areas in transit, and what the call drops ready for that; and the
    /// range that is to be moved.
    fn readied(
        &'static self,
        source: (usize, usize),
        target: (usize, usize),
        bytes: usize,
    ) -> Outcome<(Locked, Option<Range>)> {
        // Both at once, and before anything is looked up: a wait lets the lock go.
        let mut state = self.all_settled(self.lock(), &[source, target])?;
        let range = state.ranges.find(source.0).filter(|_| source.0 < source.1);
        if state.ranges.overlaps(target.0, target.1) {
            state = self.before_drop(state, target.0, target.1)?;
        }
        if range.is_some() && source.0 + bytes < source.1 {
            state = self.before_drop(state, source.0 + bytes, source.1)?;
        }
        let len = source.1 - source.0;
        if range.is_some_and(|r| r.attributes.locked) && bytes > len {
            // Else the kernel fills what comes, and waits for service that waits for the lock. It stays locked.
            let _ = self.kernel.mlock(source.0, len, ON_FAULT);
        }
        Ok((state, range))
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
        if self.takes(start, end - start) {
            // SAFETY: just mapped.
            let _ = unsafe { self.kernel.munmap(start, end - start) };
            self.forget(state, start, end);
        }
    }

    /// Maps addresses where nothing is; whether that is so. Nobody may touch them.
    fn takes(&self, start: usize, len: usize) -> bool {
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces nothing.
        unsafe { self.kernel.mmap(start, len, libc::PROT_NONE, how, -1, 0) }.is_ok()
    }

    /// The call failed, and pages were moved and came back, by us or by the kernel. They lost their protection on
    /// the way, perhaps their registration too. So none keeps a clean copy, and the keeper looks at all of them.
    fn came_back(&'static self, state: &mut Locked, old: usize, old_len: usize) {
        if let Some(process) = self.process() {
            state
                .pages
                .drop_copies(process.swap, self.cpu(), old, old + old_len);
        }
        let lost = |a: &mut Attributes| a.registered = false;
        state.ranges.change(old, old + old_len, lost);
    }

    /// The pages of `range`, and all that was known of them, are at their new place from now on.
    fn settle_in(
        &'static self,
        state: &mut Locked,
        range: Range,
        (old, old_len): (usize, usize),
        (new, bytes): (usize, usize),
        flags: i32,
    ) {
        let kept = old_len.min(bytes);
        if new != old {
            self.carry(state, old, new, kept, range.attributes.protection);
        }
        let gone = if new == old { old + kept } else { old };
        if gone < old + old_len {
            self.forget(state, gone, old + old_len);
        }
        if flags & libc::MREMAP_DONTUNMAP != 0 {
            state.ranges.insert(old, old + old_len, range.attributes);
        }
        // A range that moved is registered no more, and one that grew only in part.
        let moved = Attributes {
            registered: false,
            ..range.attributes
        };
        state.ranges.insert(new, new + bytes, moved);
    }

    /// The pages of `old..` are at `new..` now, of this `protection`, and so is what is known of them.
    fn carry(
        &'static self,
        state: &mut Locked,
        old: usize,
        new: usize,
        len: usize,
        protection: i32,
    ) {
        let (mut at, end) = (PageNumber::of(old), PageNumber::of(old + len));
        let swap = self.process().map(|p| p.swap);
        let mut opened = false;
        loop {
            let mut next = None;
            state.pages.map().each(at, end, |number, page| {
                next = Some((number, page));
                Break(())
            });
            let Some((number, page)) = next else { break };
            at = number.plus(1);
            let to = PageNumber::of(new + (number.address() - old));
            if matches!(page, Page::Staged(_)) {
                // Nobody knows of the new place yet, but for who named it.
                opened = opened || protection != PLAIN && self.protect_moved(new, len, PLAIN);
                let from = state.pages.frame_address(number) as *const ebb_engine::PageBytes;
                // SAFETY: the frame is present. The new place is mapped, may be written, is registered
                // nowhere yet and known to nobody but this call.
                unsafe { self.kernel.write_memory(to.address(), &*from) };
            }
            if let Some(entry) = state.pages.carry(number, to) {
                let swap = swap.expect("a process that pages has a swap space");
                swap.free(self.cpu(), entry, 1);
            }
        }
        if opened {
            self.protect_moved(new, len, protection);
        }
    }

    /// Protects memory that has just been moved; true, as nothing else can be done.
    fn protect_moved(&'static self, start: usize, len: usize, protection: i32) -> bool {
        // SAFETY: the program's memory, which it does not use before the call that moves it returns.
        if let Err(error) = unsafe { self.kernel.mprotect(start, len, protection) }
            && let Some(process) = self.process()
        {
            process.fail(&format!(
                "memory that was moved to {start:#x} cannot be protected: {error}"
            ));
        }
        true
    }

    /// Moves `len` bytes from `from` to `to`, as many mappings as they are, which stay if it `leaves` them
    /// (MREMAP_DONTUNMAP); else how many were, and why no more.
    fn move_each(
        &self,
        from: usize,
        to: usize,
        len: usize,
        leaves: i32,
    ) -> Result<(), (usize, Errno)> {
        let (mut at, mut most) = (0, len);
        while at < len {
            let piece = most.min(len - at);
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | leaves;
            // SAFETY: moves the program's memory as it asked for, over what was mapped for that.
            match unsafe { self.kernel.mremap(from + at, piece, piece, how, to + at) } {
                Ok(_) => {
                    at += piece;
                    most = 2 * piece;
                }
                // Still more than one.
                Err(Errno(libc::EFAULT)) if piece > PAGE_SIZE => {
                    most = piece / 2 / PAGE_SIZE * PAGE_SIZE
                }
                Err(error) => return Err((at, error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_sys::memory;
    use ebb_sys::system_kernel::SystemKernel;

    static PAGER: Pager<SystemKernel> = Pager::new(SystemKernel::new());

    fn page(start: usize, n: usize) -> *mut u8 {
        (start + n * PAGE_SIZE) as *mut u8
    }

    /// Eight pages, each with its number in it, that the kernel holds as several mappings, as advice sets some of
    /// them apart. Two programs would call them one memory.
    fn several() -> usize {
        let start = memory::reserve(8 * PAGE_SIZE).unwrap();
        for n in 0..8 {
            // SAFETY: memory of this test's own.
            unsafe { page(start, n).write(n as u8 + 1) };
        }
        for n in [1, 4, 5] {
            PAGER.set_apart(start + n * PAGE_SIZE, PAGE_SIZE).unwrap();
        }
        start
    }

    fn pieces(
        old: usize,
        old_pages: usize,
        new_pages: usize,
        flags: i32,
        target: usize,
    ) -> Pieces<'static, SystemKernel> {
        Pieces {
            pager: &PAGER,
            old,
            old_len: old_pages * PAGE_SIZE,
            new_len: new_pages * PAGE_SIZE,
            flags,
            target,
            protection: PLAIN,
            begun: false,
        }
    }

    fn holds(start: usize, pages: &[u8]) {
        for (n, &wanted) in pages.iter().enumerate() {
            // SAFETY: as above.
            assert_eq!(unsafe { page(start, n).read() }, wanted, "page {n}");
        }
    }

    #[test]
    fn a_move_that_the_kernel_refuses_is_made_piece_by_piece() {
        let start = several();
        let whole = 8 * PAGE_SIZE;
        // SAFETY: as above.
        let refused = unsafe { memory::mremap(start, whole, 2 * whole, libc::MREMAP_MAYMOVE, 0) };
        assert_eq!(refused, Err(Errno(libc::EFAULT)));
        // Nothing can grow where it is, if something lies behind it.
        let grown = pieces(start, 7, 20, libc::MREMAP_MAYMOVE, 0)
            .remap()
            .unwrap();
        assert_ne!(grown, start);
        holds(grown, &[1, 2, 3, 4, 5, 6, 7, 0, 0]);
        let fixed = memory::reserve(4 * PAGE_SIZE).unwrap();
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        assert_eq!(pieces(grown, 20, 4, how, fixed).remap(), Ok(fixed));
        holds(fixed, &[1, 2, 3, 4]);
        // The old mapping may stay, and holds zeros then.
        PAGER.set_apart(fixed + PAGE_SIZE, PAGE_SIZE).unwrap();
        let leaves = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let moved = pieces(fixed, 4, 4, leaves, 0).remap().unwrap();
        holds(moved, &[1, 2, 3, 4]);
        holds(fixed, &[0, 0, 0, 0]);
        let resized = pieces(moved, 4, 3, leaves, 0).remap();
        assert_eq!(resized, Err(Errno(libc::EINVAL)));
        assert_eq!(pieces(moved, 4, 2, 0, 0).remap(), Ok(moved));
        holds(moved, &[1, 2]);
    }

    #[test]
    fn an_impossible_move_is_refused_and_changes_nothing() {
        let start = several();
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let over = start + 2 * PAGE_SIZE;
        assert_eq!(
            pieces(start, 8, 8, how, over).remap(),
            Err(Errno(libc::EINVAL))
        );
        assert_eq!(pieces(start, 7, 9, 0, 0).remap(), Err(Errno(libc::ENOMEM)));
        holds(start, &[1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
