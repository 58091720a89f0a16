//! [`OwnMappings`]: where memory of ours lies in a program's address space.
//!
//! The pager learns of the program's memory by its memory calls. A program that unmaps memory by an instruction of its
//! own leaves a hole in what the pager noted, and the kernel may put the next mapping of ours there. Such memory must
//! never be registered with the program's: a thread of ours would wait for itself to serve its fault. So all private
//! memory of ours is mapped here and listed, and registration leaves out what the list has ([`OwnMappings::apart`]).
//!
//! Memory of ours, shared mappings too, has a part of the address space for itself ([`region`](super::region)). So a
//! mapping of the program's that grows down finds nothing of ours in its way.
//!
//! # Protocol
//! A mapping is made, moved, listed and unmapped under one lock; it leaves the list first. So whoever holds the
//! lock sees every mapping of ours that there is. The lock's holder makes system calls that wait for nobody, and
//! allocates nothing. It survives a fork as the heap's does, which takes both ([`heap`](super::heap)).
//!
//! # Invariants (checked by [`Listed::check`])
//! No part is empty, and each ends before the next one begins. Parts that a child has, or parts that it has not, do not touch.
//!
//! Not here: `malloc` of the program.

use super::futex_lock::FutexLock;
use super::region::Region;
use crate::Errno;
use crate::kernel::tasks::may_hold_lock_of_service;
use libc::c_int;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The most parts. A process has about fifty; the list is touched only as far as it is used.
const PARTS: usize = 2048;

/// Whether a forked child has a mapping too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InChild {
    Present,
    Absent,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    start: usize,
    end: usize,
    in_child: InChild,
}

const NO_PART: Part = Part {
    start: 0,
    end: 0,
    in_child: InChild::Present,
};

/// The parts in use, in the order of their addresses, and where new ones go. Their number lies beside the first of
/// them, so a small process touches one page.
#[repr(C)]
struct Listed {
    count: usize,
    region: Option<Region>,
    parts: [Part; PARTS],
}

impl Listed {
    const EMPTY: Self = Self {
        count: 0,
        region: None,
        parts: [NO_PART; PARTS],
    };

    fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }

    /// The number of the first part that ends behind an address.
    fn behind(&self, address: usize) -> usize {
        self.parts().partition_point(|part| part.end <= address)
    }

    /// Maps memory of whole pages in the region, or elsewhere if there is no place in it. It is not a part yet.
    fn map(&mut self, len: usize, content: Content) -> Result<usize, Errno> {
        // An interpreter has no address space of a kernel's.
        if cfg!(miri) {
            return content.map(None, len);
        }
        let mut region = self.region.take().unwrap_or_else(Region::choose);
        let mut mapped = Err(TAKEN);
        for _ in 0..TRIES {
            let parts = self.parts().iter().map(|part| part.start..part.end);
            let Some(place) = region.place(len, parts) else {
                break;
            };
            mapped = content.map(Some(place), len);
            if mapped != Err(TAKEN) {
                break;
            }
            region.refused(place);
        }
        self.region = Some(region);
        match mapped {
            Err(TAKEN) => content.map(None, len),
            mapped => mapped,
        }
    }

    /// Requires: nothing of it is a part.
    ///
    /// # Errors
    /// ENOMEM: there are too many parts.
    fn add(&mut self, mut new: Part) -> Result<(), Errno> {
        let mut at = self.behind(new.start);
        let joins = |a: &Part, b: &Part| a.end == b.start && a.in_child == b.in_child;
        if at < self.count && joins(&new, &self.parts[at]) {
            new.end = self.parts[at].end;
            self.drop_part(at);
        }
        if at > 0 && joins(&self.parts[at - 1], &new) {
            at -= 1;
            new.start = self.parts[at].start;
            self.drop_part(at);
        }
        self.insert(at, new)
    }

    /// Mappings are cut as the caller likes: from the midst of a part too. What finds no place is still ours and
    /// not listed; there is one part more than before at most.
    fn remove(&mut self, start: usize, end: usize) {
        let mut at = self.behind(start);
        while at < self.count && self.parts[at].start < end {
            let part = self.parts[at];
            self.drop_part(at);
            for (start, end) in [(part.start, start), (end, part.end)] {
                let rest = Part { start, end, ..part };
                if start < end && self.insert(at, rest).is_ok() {
                    at += 1;
                }
            }
        }
    }

    fn insert(&mut self, at: usize, part: Part) -> Result<(), Errno> {
        if self.count == PARTS {
            return Err(Errno(libc::ENOMEM));
        }
        self.parts.copy_within(at..self.count, at + 1);
        self.parts[at] = part;
        self.count += 1;
        Ok(())
    }

    /// Requires: a range of ours of whole pages; the caller forgets the old address.
    unsafe fn move_to_new_place(
        &mut self,
        start: usize,
        old: usize,
        new: usize,
    ) -> Result<usize, Errno> {
        let anywhere = libc::MREMAP_MAYMOVE;
        if let Ok(place) = self.map(new, ZEROS) {
            // SAFETY: the place has just been mapped, and nobody knows of it; the rest is passed on to the caller.
            unsafe {
                let moved = super::mremap(start, old, new, anywhere | libc::MREMAP_FIXED, place);
                if moved.is_ok() {
                    return moved;
                }
                let _ = super::munmap(place, new);
            }
        }
        // Both at once may be more than the program's limit of addresses lets pass.
        // SAFETY: passed on to the caller.
        unsafe { super::mremap(start, old, new, anywhere, 0) }
    }

    /// Moves a mapping to a place of ours. It is not a part yet. Where that fails it stays where it was.
    ///
    /// Requires: a mapping of whole pages that the kernel lets be moved; the caller forgets the old address.
    unsafe fn move_in(&mut self, start: usize, len: usize) -> Result<usize, Errno> {
        let place = self.map(len, ZEROS)?;
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the place has just been mapped, and nobody knows of it; the rest is passed on to the caller.
        let moved = unsafe { super::mremap(start, len, len, fixed, place) };
        if moved.is_err() {
            // SAFETY: as above.
            let _ = unsafe { super::munmap(place, len) };
        }
        moved
    }

    fn drop_part(&mut self, at: usize) {
        self.parts.copy_within(at + 1..self.count, at);
        self.count -= 1;
    }

    /// The first part of ours in a range, cut to it.
    fn first_in(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let part = self.parts().get(self.behind(range.start))?;
        let cut = part.start.max(range.start)..part.end.min(range.end);
        (!cut.is_empty()).then_some(cut)
    }

    /// In a child: what it does not have is no part any more.
    fn forget_absent(&mut self) {
        let mut kept = 0;
        for at in 0..self.count {
            if self.parts[at].in_child == InChild::Present {
                self.parts[kept] = self.parts[at];
                kept += 1;
            }
        }
        self.count = kept;
    }

    #[cfg(test)]
    fn check(&self) {
        let parts = self.parts();
        assert!(parts.iter().all(|part| part.start < part.end));
        let apart = |a: &Part, b: &Part| a.end + usize::from(a.in_child == b.in_child) <= b.start;
        assert!(
            parts.windows(2).all(|two| apart(&two[0], &two[1])),
            "{parts:?}"
        );
    }
}

/// The list and its lock.
#[repr(C)]
pub struct OwnMappings {
    lock: FutexLock,
    listed: UnsafeCell<Listed>,
}

// SAFETY: `listed` is reached only by `with`, under `lock`.
unsafe impl Sync for OwnMappings {}

/// One for the process: the global allocator, which has no value that could own it, maps by it.
pub static OWN: OwnMappings = OwnMappings {
    lock: FutexLock::new(),
    listed: UnsafeCell::new(Listed::EMPTY),
};

/// The content of a mapping.
#[derive(Clone, Copy)]
struct Content {
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: u64,
}

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

const ZEROS: Content = Content {
    protection: READ_WRITE,
    flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    file: -1,
    offset: 0,
};

impl Content {
    /// At `place`, or where the kernel likes.
    fn map(self, place: Option<usize>, len: usize) -> Result<usize, Errno> {
        let fixed = place.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
        let (at, flags) = (place.unwrap_or(0), self.flags | fixed);
        let offset = self.offset as i64;
        // SAFETY: nobody uses the addresses: it replaces nothing.
        unsafe { super::mmap(at, len, self.protection, flags, self.file, offset) }
    }
}

/// Somebody else has memory there.
const TAKEN: Errno = Errno(libc::EEXIST);

/// The places that are tried. A program that names its addresses itself may have one.
const TRIES: usize = 4;

impl OwnMappings {
    fn with<T>(&self, work: impl FnOnce(&mut Listed) -> T) -> T {
        debug_assert!(may_hold_lock_of_service());
        self.lock.acquire();
        // SAFETY: the lock makes this the only reference; `work` neither panics nor comes back here.
        let result = work(unsafe { &mut *self.listed.get() });
        self.lock.release();
        result
    }

    /// New private read-write memory, not reserved against the commit limit.
    ///
    /// # Errors
    /// Those of mmap(2); ENOMEM also if there are too many mappings of ours.
    pub fn map(&self, len: usize) -> Result<usize, Errno> {
        self.map_new(len, ZEROS, InChild::Present)
    }

    /// The same; a forked child has no such memory.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_alone(&self, len: usize) -> Result<usize, Errno> {
        self.map_new(len, ZEROS, InChild::Absent)
    }

    /// Part of a file, shared with whoever else maps it. `flags`: besides MAP_SHARED.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_file(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        flags: c_int,
    ) -> Result<usize, Errno> {
        let content = Content {
            protection: READ_WRITE,
            flags: libc::MAP_SHARED | flags,
            file: file.as_raw_fd(),
            offset,
        };
        self.map_new(len, content, InChild::Present)
    }

    /// Part of a file, to be read.
    ///
    /// # Errors
    /// As [`map`](Self::map); those of mremap(2).
    pub fn map_private_file(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<usize, Errno> {
        let content = Content {
            protection: libc::PROT_READ,
            flags: libc::MAP_PRIVATE,
            file: file.as_raw_fd(),
            offset,
        };
        let len = super::page_up(len);
        // Without the lock: a file system may ask a server that does not answer.
        let start = content.map(None, len)?;
        let taken = self.with(|listed| {
            let room = listed.count < PARTS;
            room.then_some(()).ok_or(Errno(libc::ENOMEM))?;
            // SAFETY: just mapped, and nobody knows of it.
            let place = unsafe { listed.move_in(start, len) }?;
            // There is room.
            let _ = listed.add(Part {
                start: place,
                end: place + len,
                in_child: InChild::Present,
            });
            Ok(place)
        });
        if taken.is_err() {
            // SAFETY: just mapped; nobody knows of it.
            let _ = unsafe { super::munmap(start, len) };
        }
        taken
    }

    fn map_new(&self, len: usize, content: Content, in_child: InChild) -> Result<usize, Errno> {
        let len = super::page_up(len);
        self.with(|listed| {
            let start = listed.map(len, content)?;
            let end = start + len;
            let made = match in_child {
                InChild::Present => Ok(()),
                // SAFETY: advice on memory just mapped.
                InChild::Absent => unsafe { super::madvise(start, len, libc::MADV_DONTFORK) },
            };
            let new = Part {
                start,
                end,
                in_child,
            };
            if let Err(error) = made.and_then(|()| listed.add(new)) {
                // SAFETY: just mapped; nobody knows of it.
                let _ = unsafe { super::munmap(start, len) };
                return Err(error);
            }
            Ok(start)
        })
    }

    /// Moves a mapping that the kernel made for us to a place of ours, where a forked child does not have it. Returns
    /// that place.
    ///
    /// Requires: a mapping of whole pages that the kernel lets be moved; the caller forgets the old address.
    ///
    /// # Errors
    /// Those of mmap(2) and mremap(2): the mapping stays where it was. Those of madvise(2), ENOMEM also if there are too
    /// many mappings of ours: it lies elsewhere, and is not listed.
    pub unsafe fn take_in(&self, start: usize, len: usize) -> Result<usize, Errno> {
        self.with(|listed| {
            // SAFETY: passed on to the caller.
            let place = unsafe { listed.move_in(start, len) }?;
            // SAFETY: advice on the mapping that was moved.
            unsafe { super::madvise(place, len, libc::MADV_DONTFORK) }?;
            listed.add(Part {
                start: place,
                end: place + len,
                in_child: InChild::Absent,
            })?;
            Ok(place)
        })
    }

    /// A range of ours is the kernel's to unmap from now on, or was moved away.
    pub fn let_go(&self, start: usize, len: usize) {
        self.with(|listed| listed.remove(start, start + len));
    }

    /// Requires: a range of ours of whole pages that nobody uses any more.
    ///
    /// # Errors
    /// Those of munmap(2).
    pub unsafe fn unmap(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.with(|listed| {
            listed.remove(start, start + len);
            // SAFETY: passed on to the caller.
            unsafe { super::munmap(start, len) }
        })
    }

    /// Makes a range of ours larger or smaller, wherever it then lies.
    ///
    /// Requires: a range of [`map`](Self::map) of whole pages; the caller forgets the old address.
    ///
    /// # Errors
    /// Those of mremap(2); the range stays as it was.
    pub unsafe fn remap(&self, start: usize, old: usize, new: usize) -> Result<usize, Errno> {
        self.with(|listed| {
            // SAFETY: passed on to the caller.
            let in_place = unsafe { super::mremap(start, old, new, 0, 0) };
            let moved = match in_place {
                Ok(start) => start,
                // SAFETY: passed on to the caller.
                Err(_) => unsafe { listed.move_to_new_place(start, old, new)? },
            };
            listed.remove(start, start + old);
            // There is room: a part has just gone, or was made smaller.
            let _ = listed.add(Part {
                start: moved,
                end: moved + new,
                in_child: InChild::Present,
            });
            Ok(moved)
        })
    }

    /// Calls `act` while no memory of ours is mapped or moved, if none lies in `range`. Else it answers the first
    /// part that does. `act` allocates nothing.
    pub fn apart<T>(
        &self,
        range: Range<usize>,
        act: impl FnOnce() -> T,
    ) -> Result<T, Range<usize>> {
        self.with(|listed| match listed.first_in(&range) {
            Some(part) => Err(part),
            None => Ok(act()),
        })
    }

    /// Takes the lock so that a fork finds the list whole.
    pub(super) fn lock_for_fork(&self) {
        self.lock.acquire();
    }

    /// Releases it in the parent. Requires: [`lock_for_fork`](Self::lock_for_fork) on this thread.
    pub(super) fn unlock_in_parent(&self) {
        self.lock.release();
    }

    /// Releases it in the child, which has not all that its parent has. Requires: the calling thread is the copy of
    /// one that holds the lock by [`lock_for_fork`](Self::lock_for_fork).
    pub(super) fn unlock_in_child(&self) {
        // SAFETY: the lock is held, by the caller's copy.
        let listed = unsafe { &mut *self.listed.get() };
        listed.forget_absent();
        self.lock.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::PAGE;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Add(usize, usize, bool),
        Remove(usize, usize),
        Fork,
    }

    fn op() -> impl Strategy<Value = Op> {
        let range = || (0..60usize, 1..6usize);
        prop_oneof![
            8 => (range(), any::<bool>()).prop_map(|((at, len), alone)| Op::Add(at, at + len, alone)),
            4 => range().prop_map(|(at, len)| Op::Remove(at, at + len)),
            1 => Just(Op::Fork),
        ]
    }

    proptest! {
        /// The list names the pages that a set of them has, and the first of any range.
        #[test]
        fn the_list_is_a_set_of_pages(ops in prop::collection::vec(op(), 1..80)) {
            let mut listed = Listed::EMPTY;
            let mut model = [None; 70];
            for op in ops {
                match op {
                    // The kernel maps nothing over what is there.
                    Op::Add(start, end, alone) if model[start..end].iter().all(Option::is_none) => {
                        let in_child = if alone { InChild::Absent } else { InChild::Present };
                        listed.add(Part { start, end, in_child }).unwrap();
                        model[start..end].fill(Some(in_child));
                    }
                    Op::Add(..) => {}
                    Op::Remove(start, end) => {
                        listed.remove(start, end);
                        model[start..end].fill(None);
                    }
                    Op::Fork => {
                        listed.forget_absent();
                        let absent = model.iter_mut().filter(|page| **page == Some(InChild::Absent));
                        absent.for_each(|page| *page = None);
                    }
                }
                listed.check();
                for start in 0..70 {
                    let first = (start..70).find(|&page| model[page].is_some());
                    let part = listed.first_in(&(start..70));
                    prop_assert_eq!(part.as_ref().map(|part| part.start), first);
                    prop_assert!(part.is_none_or(|part| part.clone().all(|page| model[page].is_some())));
                }
            }
        }
    }

    /// Real mappings: each is named until it is unmapped, where it lies then.
    #[test]
    fn memory_of_ours_is_left_out() {
        let start = OWN.map(8 * PAGE).unwrap();
        let around = start - PAGE..start + 9 * PAGE;
        assert!(OWN.apart(around.clone(), || ()).is_err());
        // SAFETY: the test's own memory.
        unsafe {
            OWN.unmap(start, 4 * PAGE).unwrap();
            assert_eq!(OWN.apart(start..start + 4 * PAGE, || 7), Ok(7));
            let moved = OWN.remap(start + 4 * PAGE, 4 * PAGE, 64 * PAGE).unwrap();
            let named = OWN.apart(moved..moved + 64 * PAGE, || ());
            assert_eq!(named, Err(moved..moved + 64 * PAGE));
            OWN.unmap(moved, 64 * PAGE).unwrap();
            assert_eq!(OWN.apart(moved..moved + 64 * PAGE, || 7), Ok(7));
        }
    }

    #[test]
    fn a_full_list_refuses_memory() {
        let mut listed = Listed::EMPTY;
        let part = |number: usize| Part {
            start: 10 * number,
            end: 10 * number + 5,
            ..NO_PART
        };
        for number in 0..PARTS {
            listed.add(part(number)).unwrap();
        }
        assert_eq!(listed.add(part(PARTS)), Err(Errno(libc::ENOMEM)));
        listed.check();
    }
}
