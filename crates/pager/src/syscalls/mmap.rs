//! `mmap`, `munmap`, `mprotect` and `brk`: memory that comes, goes or changes its protection.
#![allow(clippy::missing_safety_doc)] // Each says "Requires:".

use crate::map::page_map::ADDRESSES;
use crate::map::ranges::{Attributes, recorded};
use crate::pager::Pager;
use crate::process::base::Locked;
use crate::process::outcome::{Outcome, errno};
use crate::process::vfork_calls::MemoryCall;
use crate::syscalls::vfork_proxy::Executor;
use ebb_engine::PAGE_SIZE;
use ebb_sys::memory::page_up;
use ebb_sys::paging::{Kernel, NO_KEY};

/// When the program maps as much as this, at once or bit by bit, it is registered before the
/// program can fill it.
const AT_ONCE: usize = 1 << 20;

/// So much is filled in one call.
const FILL: usize = 64 << 10;

const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// Mappings that are not managed. MAP_STACK says nothing to the kernel: stacks of libc's threads are named by `exclude`,
/// and others, as of fibers, are memory like any other.
const NEVER: i32 =
    libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_LOCKED | libc::MAP_SHARED | OURS;
/// A flag that the kernel ignores and no program sets: memory that is to be empty.
const OURS: i32 = libc::MAP_EXECUTABLE;

/// Whether all of it is to be there when the call returns.
fn fills(flags: i32) -> bool {
    flags & (libc::MAP_POPULATE | libc::MAP_NONBLOCK) == libc::MAP_POPULATE
}

/// The advice that fills memory as MAP_POPULATE does: with pages that may be written without a fault, but for shared ones.
fn filling(prot: i32, flags: i32) -> i32 {
    match prot & libc::PROT_WRITE != 0 && flags & libc::MAP_SHARED == 0 {
        true => libc::MADV_POPULATE_WRITE,
        false => libc::MADV_POPULATE_READ,
    }
}

/// Linux gives MAP_SHARED_VALIDATE the bits of both; anything but plain private is not ours.
fn manageable(prot: i32, flags: i32) -> bool {
    flags & PRIVATE == PRIVATE && flags & NEVER == 0 && !only_code(prot)
}

/// Memory that cannot be written cannot be moved out.
fn only_code(prot: i32) -> bool {
    prot & (libc::PROT_EXEC | libc::PROT_WRITE) == libc::PROT_EXEC
}

/// The change of memory that is protected so. Without a key it keeps the one it has.
fn protected_so(prot: i32, key: i32) -> impl Fn(&mut Attributes) {
    move |a| {
        a.protection = recorded(prot);
        if key != NO_KEY {
            a.pinned.keyed = key != 0;
        }
    }
}

/// Addresses that hold nothing and are not managed.
const EMPTY: i32 = PRIVATE | libc::MAP_NORESERVE | OURS;

/// At the address that is named.
const PLACED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

/// The sizes of pages.
const PAGE_SIZES: [usize; 3] = [PAGE_SIZE, 2 << 20, 1 << 30];

/// Memory that may be written may be read, too, whatever a program asks for: the processor knows nothing else. The kernel moves
/// pages only where both sides are alike by name.
fn readable(prot: i32) -> i32 {
    match prot & libc::PROT_WRITE {
        0 => prot,
        _ => prot | libc::PROT_READ,
    }
}

impl<K: Kernel> Pager<K> {
    /// `len` bytes from `start` on may be written to from now on, and are not registered. Waits for
    /// that if they are many by now: what the program fills meanwhile goes past the budget.
    fn writable(&'static self, start: usize, len: usize) {
        if self.process().is_none() {
            self.admit(len);
        } else if self.registration.add_unregistered(len) >= AT_ONCE {
            self.registered(start);
        }
    }

    /// `mmap(2)`. Requires: as the system call.
    pub unsafe fn mmap(
        &'static self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> Outcome<usize> {
        // SAFETY: the caller answers for the system call.
        unsafe { self.map(addr, len, prot, flags, (fd, offset), true) }
    }

    /// `mmap(2)` of what will not be filled as a whole: [`admission::admit`] is told of what will be.
    /// Requires: as the system call.
    pub unsafe fn reserve(
        &'static self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> Outcome<usize> {
        // SAFETY: as above.
        unsafe { self.map(addr, len, prot, flags, (fd, offset), false) }
    }

    unsafe fn map(
        &'static self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        (fd, offset): (i32, i64),
        filled: bool,
    ) -> Outcome<usize> {
        if self.locks(prot, flags) {
            // SAFETY: the caller answers for the system call.
            return unsafe { self.map_to_lock(addr, len, prot, flags) };
        }
        let ours = manageable(prot, flags);
        let prot = if ours { readable(prot) } else { prot };
        // SAFETY: the caller answers for the system call.
        let plain =
            |flags| unsafe { self.kernel.mmap(addr, len, prot, flags, fd, offset) }.map_err(errno);
        // SAFETY: as above.
        let copied = unsafe { self.map_copy((addr, len), prot, flags, (fd, offset)) };
        if let Some(copied) = copied {
            return copied;
        }
        if !(ours || flags & libc::MAP_FIXED != 0) {
            return plain(flags);
        }
        // The kernel would fill it while the lock is held, and what is ours before it is registered, however little room
        // there is.
        let unfilled = flags & !libc::MAP_POPULATE;
        // The keeper has not the file, which comes in the place of what it maps.
        let (of_keeper, prot_of_keeper) = match ours {
            true => (unfilled, prot),
            false => (EMPTY | flags & PLACED, libc::PROT_NONE),
        };
        if !ours && self.wanted() && self.is_child() {
            // SAFETY: as above.
            unsafe { self.try_elsewhere(len, prot, unfilled, (fd, offset))? };
        }
        let call = MemoryCall::Map {
            addr,
            len,
            prot: prot_of_keeper,
            flags: of_keeper,
            filled,
        };
        let start = match self.executor(call) {
            Executor::Direct => return plain(flags),
            Executor::Done(Ok(_)) if !ours => return plain(flags & !libc::MAP_FIXED_NOREPLACE),
            Executor::Done(outcome) => {
                let start = outcome?;
                if ours && filled && prot != libc::PROT_NONE {
                    self.admit(page_up(len));
                }
                start
            }
            // SAFETY: as above.
            Executor::Here => unsafe {
                self.map_here(addr, len, prot, unfilled, (fd, offset), filled)?
            },
        };
        if fills(flags) {
            self.fill(start, page_up(len), filling(prot, flags), ours);
        }
        Ok(start)
    }

    /// Whether the kernel maps this at all. Where it refuses, what lies in the place has to stay.
    unsafe fn try_elsewhere(
        &'static self,
        len: usize,
        prot: i32,
        flags: i32,
        (fd, offset): (i32, i64),
    ) -> Outcome<()> {
        // SAFETY: the kernel chooses a place that is free.
        match unsafe { self.kernel.mmap(0, len, prot, flags & !PLACED, fd, offset) } {
            Ok(start) => {
                // Of huge pages it takes back whole ones alone.
                // SAFETY: just mapped, and nobody knows of it yet.
                let unmap = |unit| unsafe { self.kernel.munmap(start, len.next_multiple_of(unit)) };
                let _ = PAGE_SIZES.into_iter().any(|unit| unmap(unit).is_ok());
                Ok(())
            }
            // There may be room for it once the other is gone.
            Err(error) if errno(error) == libc::ENOMEM => Ok(()),
            Err(error) => Err(errno(error)),
        }
    }

    /// Whether a call maps memory that is managed as if `mlock` had locked it. Not in the place of other memory: whether so
    /// much may be locked is known when that is gone.
    fn locks(&'static self, prot: i32, flags: i32) -> bool {
        let locked = flags & (libc::MAP_LOCKED | libc::MAP_FIXED) == libc::MAP_LOCKED;
        locked && manageable(prot, flags & !libc::MAP_LOCKED) && self.wanted() && !self.is_child()
    }

    /// Maps memory, and locks it then: once the program unlocks it, it may leave.
    unsafe fn map_to_lock(
        &'static self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
    ) -> Outcome<usize> {
        // Locking fills it, whatever these say.
        let other = flags & !(libc::MAP_LOCKED | libc::MAP_POPULATE | libc::MAP_NONBLOCK);
        // SAFETY: the caller answers for the system call.
        let start = unsafe { self.map(addr, len, prot, other, (-1, 0), true)? };
        let lock = move || self.lock_unfilled(start, len);
        if let Err(error) = self.kernel.on_own_stack(lock) {
            // SAFETY: just mapped, and nobody knows of it yet.
            let _ = unsafe { self.munmap(start, len) };
            return Err(match error {
                libc::EPERM => error,
                _ => libc::EAGAIN,
            });
        }
        // As there it is no error where that fails.
        let _ = self.kernel.mlock(start, len, 0);
        Ok(start)
    }

    /// Touches all of it, page after page, as MAP_POPULATE does. As there it is no error where that fails. In small steps:
    /// while the kernel fills some, nobody can map or register memory. A keeper that starts does so a hundred times.
    fn fill(&'static self, start: usize, len: usize, advice: i32, ours: bool) {
        if ours {
            self.admit_filled(len);
        }
        for done in (0..len).step_by(FILL) {
            let step = FILL.min(len - done);
            if ours && !self.is_child() {
                // Where paging has begun meanwhile.
                self.registered(start + done);
            }
            // SAFETY: populating changes no content.
            if unsafe { self.kernel.madvise(start + done, step, advice) }.is_err() {
                return;
            }
        }
    }

    pub unsafe fn map_here(
        &'static self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        (fd, offset): (i32, i64),
        filled: bool,
    ) -> Outcome<usize> {
        // SAFETY: the caller answers for the system call.
        let locked = move || unsafe { self.map_locked(addr, len, prot, flags, (fd, offset)) };
        let start = self.kernel.on_own_stack(locked)?;
        let fills = filled || self.process().is_some();
        if manageable(prot, flags) && prot != libc::PROT_NONE && fills {
            self.writable(start, page_up(len));
        }
        Ok(start)
    }

    unsafe fn map_locked(
        &'static self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        (fd, offset): (i32, i64),
    ) -> Outcome<usize> {
        let bytes = page_up(len);
        let fixed = flags & libc::MAP_FIXED != 0;
        let ours = manageable(prot, flags);
        let mut state = self.lock();
        let over = addr.saturating_add(bytes);
        let replaces = fixed && state.ranges.overlaps(addr, over);
        if replaces {
            state = self.before_drop(state, addr, over)?;
        }
        // Memory with a userfaultfd of the program's own goes when a thread of the program has read that it does. That
        // thread may need the lock.
        let held = match fixed && !replaces {
            true => {
                drop(state);
                None
            }
            false => Some(state),
        };
        // SAFETY: the caller answers for the system call.
        let start =
            unsafe { self.kernel.mmap(addr, len, prot, flags, fd, offset) }.map_err(errno)?;
        let end = start + bytes;
        // What became managed there meanwhile was replaced, as if it had been there before.
        let mut state = held.unwrap_or_else(|| self.lock());
        self.vfork_calls.apply_unmanaged(&mut state);
        if state.ranges.overlaps(start, end) {
            // Replaced on purpose, or unmapped behind libc's back before.
            if !replaces {
                let unmap = |_: &i32| {
                    // SAFETY: just mapped, and nobody knows of it yet.
                    let _ = unsafe { self.kernel.munmap(start, bytes) };
                };
                state = self.settled(state, start, end).inspect_err(unmap)?;
            }
            self.forget(&mut state, start, end);
        }
        if ours && end <= ADDRESSES {
            state.ranges.insert(start, end, Attributes::mapped(prot));
        }
        Ok(start)
    }

    /// `munmap(2)`. Requires: as the system call.
    pub unsafe fn munmap(&'static self, addr: usize, len: usize) -> Outcome<()> {
        match self.executor(MemoryCall::Unmap { addr, len }) {
            // SAFETY: the caller answers for the system call, here and below.
            Executor::Direct => unsafe { self.kernel.munmap(addr, len) }.map_err(errno),
            Executor::Done(outcome) => outcome.map(drop),
            // SAFETY: as above.
            Executor::Here => self
                .kernel
                .on_own_stack(move || unsafe { self.unmap_locked(addr, len) }),
        }
    }

    pub unsafe fn unmap_locked(&'static self, addr: usize, len: usize) -> Outcome<()> {
        let end = addr.saturating_add(page_up(len));
        let mut state = self.lock();
        if !state.ranges.overlaps(addr, end) {
            drop(state);
            // SAFETY: the caller answers for the system call.
            return unsafe { self.kernel.munmap(addr, len) }.map_err(errno);
        }
        state = self.before_drop(state, addr, end)?;
        // SAFETY: as above.
        unsafe { self.kernel.munmap(addr, len) }.map_err(errno)?;
        self.forget(&mut state, addr, end);
        Ok(())
    }

    /// `mprotect(2)`. Requires: as the system call.
    pub unsafe fn mprotect(&'static self, addr: usize, len: usize, prot: i32) -> Outcome<()> {
        // SAFETY: the caller answers for the system call, here and below.
        unsafe { self.pkey_mprotect(addr, len, (prot, NO_KEY)) }
    }

    /// `pkey_mprotect(2)` with a protection and a key. Memory with a key is not paged: the kernel moves no page to a
    /// place with another one. Requires: as the system call.
    pub unsafe fn pkey_mprotect(
        &'static self,
        addr: usize,
        len: usize,
        prot: (i32, i32),
    ) -> Outcome<()> {
        match self.executor(MemoryCall::Protect { addr, len, prot }) {
            Executor::Direct => {
                // SAFETY: as above.
                unsafe { self.kernel.pkey_mprotect(addr, len, prot.0, prot.1) }.map_err(errno)
            }
            Executor::Done(outcome) => outcome.map(drop),
            // SAFETY: as above.
            Executor::Here => unsafe { self.protect_here(addr, len, prot) },
        }
    }

    pub unsafe fn protect_here(
        &'static self,
        addr: usize,
        len: usize,
        prot: (i32, i32),
    ) -> Outcome<()> {
        // SAFETY: the caller answers for the system call.
        let opens = self
            .kernel
            .on_own_stack(move || unsafe { self.protect_locked(addr, len, prot) })?;
        if opens {
            self.writable(addr, page_up(len));
        }
        Ok(())
    }

    /// True if it may be filled from now on, and is not registered.
    unsafe fn protect_locked(
        &'static self,
        addr: usize,
        len: usize,
        (mut prot, key): (i32, i32),
    ) -> Outcome<bool> {
        let end = addr.saturating_add(page_up(len));
        let mut state = self.lock();
        if state.ranges.overlaps(addr, end) {
            prot = readable(prot);
            state = self.settled(state, addr, end)?;
            self.protect_shadows(&state.ranges, (addr, end), prot)?;
        }
        // SAFETY: the caller answers for the system call.
        let protected = unsafe { self.kernel.pkey_mprotect(addr, len, prot, key) };
        if !state.ranges.overlaps(addr, end) {
            return protected.map(|()| false).map_err(errno);
        }
        if let Err(error) = protected {
            // The kernel refuses anything else before it changes anything.
            if end.is_multiple_of(PAGE_SIZE) {
                // SAFETY: as above.
                unsafe { self.protect_again(&mut state, addr, end, (prot, key)) };
            }
            return Err(errno(error));
        }
        self.change(&mut state, addr, end, protected_so(prot, key));
        let range = state.ranges.find(addr);
        Ok(prot != libc::PROT_NONE && range.is_some_and(|r| !r.attributes.registered))
    }

    /// Repeats a call that failed, bit by bit up to where it fails, and notes what is protected so. The kernel changes
    /// what lies before a hole, or before a mapping that it cannot split.
    unsafe fn protect_again(
        &'static self,
        state: &mut Locked,
        start: usize,
        end: usize,
        (prot, key): (i32, i32),
    ) {
        let (mut at, mut most) = (start, end - start);
        while at < end {
            let piece = most.min(end - at);
            // SAFETY: the caller answers for the system call.
            match unsafe { self.kernel.pkey_mprotect(at, piece, prot, key) } {
                Ok(()) => {
                    self.change(state, at, at + piece, protected_so(prot, key));
                    at += piece;
                }
                Err(_) if piece > PAGE_SIZE => most = piece / 2 / PAGE_SIZE * PAGE_SIZE,
                Err(_) => return,
            }
        }
    }

    /// `brk(2)` as the system call has it: asks for a break, answers the break there is.
    pub unsafe fn brk_set(&'static self, addr: usize) -> Outcome<usize> {
        match self.executor(MemoryCall::Break { addr }) {
            Executor::Direct => {
                // SAFETY: the caller answers for the system call, here and below.
                let now = unsafe { self.kernel.brk(addr) };
                self.heap_break.set(page_up(now));
                Ok(now)
            }
            Executor::Done(outcome) => outcome,
            // SAFETY: as above.
            Executor::Here => unsafe { self.break_here(addr) },
        }
    }

    pub unsafe fn break_here(&'static self, addr: usize) -> Outcome<usize> {
        // SAFETY: the caller answers for the system call.
        let (now, grown) = self
            .kernel
            .on_own_stack(move || unsafe { self.break_locked(addr) })?;
        if grown > 0 {
            self.writable(page_up(now) - grown, grown);
        }
        Ok(now)
    }

    /// The break, and by how many bytes what is managed grew.
    unsafe fn break_locked(&'static self, addr: usize) -> Outcome<(usize, usize)> {
        let mut state = self.lock();
        let mut old = self.asked_break();
        loop {
            let wanted = match addr {
                0 => old,
                _ => page_up(addr).min(ADDRESSES),
            };
            state = match wanted < old {
                true => self.before_drop(state, wanted, old)?,
                // Memory that the program unmapped by an instruction may still be known there.
                false => self.settled(state, old, wanted)?,
            };
            // While the lock was free another thread may have moved it.
            let now = self.asked_break();
            if now == old {
                break;
            }
            old = now;
        }
        // SAFETY: the caller answers for the system call.
        let now = unsafe { self.kernel.brk(addr) };
        let top = page_up(now);
        if top < old {
            self.forget(&mut state, top, old);
        } else if top > old {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            self.vfork_calls.apply_unmanaged(&mut state);
            if state.ranges.overlaps(old, top) {
                self.forget(&mut state, old, top);
            }
            state.ranges.insert(old, top, Attributes::mapped(prot));
        }
        self.heap_break.set(top);
        Ok((now, top.saturating_sub(old)))
    }
}
