//! Private mappings of files that may be written, such as the class archives of Java. The kernel lets no userfaultfd
//! have them, so what the program writes there could never leave. Java writes all of its archive, as it moves it.
//!
//! # Protocol
//! The call maps anonymous memory instead, and reads the file into it before it returns: until then nobody knows of that
//! memory. It is managed like any other. The file is mapped too, among memory of ours: its *shadow*, which nobody reads.
//! The range knows how far away that is (`Attributes::shadow`).
//!
//! Over what is mapped already (MAP_FIXED) the file is copied only if that is managed and may not be touched (PROT_NONE).
//! Of other memory another thread would see zeros for a moment.
//!
//! Where the program drops pages (MADV_DONTNEED) the file's bytes are to be there again. The shadow is moved there, and
//! the pages are not managed any more. It is unmapped with the range, and goes along when that moves.
//!
//! What the kernel refuses for mappings of files is refused here too. Not done: memory that the program itself
//! unmapped by an instruction leaves its shadow behind, as do forked children that are to have none of it. Both cost
//! addresses alone.
#![allow(clippy::missing_safety_doc)] // Each says "Requires:".

use crate::map::ranges::{Attributes, Range, Ranges, Shadow};
use crate::pager::Pager;
use crate::process::base::Locked;
use crate::process::outcome::{Outcome, errno};
use crate::syscalls::madvise::{GUARD_INSTALL, GUARD_REMOVE};
use crate::syscalls::mlock::ON_FAULT;
use ebb_sys::memory::page_up;
use ebb_sys::paging::Kernel;

/// Sizes of mappings that are copied. Little is gained with smaller ones. Of larger ones little may ever be written, and
/// the page cache gives the rest back at once.
const SIZES: std::ops::RangeInclusive<usize> = 1 << 20..=64 << 20;

/// Bytes of copies that a process has at most. Linkers map all that they read so, gigabytes of it: what nobody writes is
/// the page cache's at no cost, and would have to be stored.
const MOST: usize = *SIZES.end();

/// Flags of the call that say where the memory is to be.
const PLACE: i32 =
    libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT | libc::MAP_NORESERVE;
/// Flags that say nothing, or that the copy does by itself.
const IGNORED: i32 =
    libc::MAP_POPULATE | libc::MAP_NONBLOCK | libc::MAP_DENYWRITE | libc::MAP_EXECUTABLE;

/// A file that is to be copied, and its shadow.
struct File {
    fd: i32,
    offset: u64,
    /// Bytes up to its end. Zeros follow, up to the end of the page.
    bytes: usize,
    /// Bytes of the mapping.
    len: usize,
    shadow: usize,
}

/// Whether such a mapping may be copied, by what the call says of it.
fn may_copy(prot: i32, flags: i32, len: usize) -> bool {
    prot == libc::PROT_READ | libc::PROT_WRITE
        && flags & !(PLACE | IGNORED) == libc::MAP_PRIVATE
        && SIZES.contains(&len)
}

/// Why the memory of `area` is not remapped so, if it is not. Of a file no kernel before 5.13 leaves it where it was. As
/// it grows, more of the file would have to be copied.
pub fn refuses_remap(
    ranges: &Ranges,
    area: (usize, usize),
    bytes: usize,
    flags: i32,
) -> Option<i32> {
    let error = match flags & libc::MREMAP_DONTUNMAP {
        0 if bytes <= area.1 - area.0 => return None,
        0 => libc::ENOMEM,
        _ => libc::EINVAL,
    };
    ranges.has_copies(area.0, area.1).then_some(error)
}

impl<K: Kernel> Pager<K> {
    /// `mmap(2)` of a file, copied if it is to be. None: the kernel makes the call. Requires: as the system call.
    pub(crate) unsafe fn map_copy(
        &'static self,
        (addr, len): (usize, usize),
        prot: i32,
        flags: i32,
        (fd, offset): (i32, i64),
    ) -> Option<Outcome<usize>> {
        let replaces = flags & libc::MAP_FIXED != 0;
        if !may_copy(prot, flags, len)
            || !self.wanted()
            || self.is_child()
            || replaces && !self.is_reserved(addr, len)
            || !self.has_room_for_copy(len)
        {
            return None;
        }
        let offset = u64::try_from(offset).ok()?;
        let rest = self.kernel.file_size(fd)?.checked_sub(offset)?;
        let len = page_up(len);
        let bytes = len.min(usize::try_from(rest).ok()?);
        // Pages behind the end of a file are no memory.
        if page_up(bytes) < len {
            return None;
        }
        let map = move || self.kernel.map_file(fd, offset, len);
        let shadow = self.kernel.on_own_stack(map).ok()?;
        let file = File {
            fd,
            offset,
            bytes,
            len,
            shadow,
        };
        let place = flags & PLACE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the caller answers for the system call.
        let mapped = unsafe { self.mmap(addr, len, prot, place, -1, 0) };
        if mapped.is_err() {
            // SAFETY: just mapped, and nobody knows of it.
            let unmap = move || unsafe { self.kernel.unmap_file(shadow, len) };
            self.kernel.on_own_stack(unmap);
        }
        match mapped {
            // Without a shadow there may be room.
            Err(libc::ENOMEM) => None,
            Err(error) => Some(Err(error)),
            Ok(start) => Some(self.copy_in(start, &file).map(|()| start)),
        }
    }

    /// Whether so much may be copied beside the copies that there are.
    fn has_room_for_copy(&'static self, len: usize) -> bool {
        self.kernel.on_own_stack(move || {
            let state = self.lock();
            let copies = state
                .ranges
                .all()
                .filter(|range| range.attributes.shadow.is_some());
            copies.map(|range| range.end - range.start).sum::<usize>() + len <= MOST
        })
    }

    /// Whether such an area is managed, and nobody may touch it.
    fn is_reserved(&'static self, start: usize, len: usize) -> bool {
        let end = start.saturating_add(page_up(len));
        self.kernel.on_own_stack(move || {
            let state = self.lock();
            let reserved = |range: &Range| range.attributes.protection == libc::PROT_NONE;
            let ranges = state.ranges.within(start, end).filter(reserved);
            ranges.map(|range| range.end - range.start).sum::<usize>() == end - start
        })
    }

    /// Fills memory that was just mapped. Where the file cannot be read its mapping takes the memory's place.
    ///
    /// # Errors
    /// ENOMEM: nor can that be; nothing is mapped.
    fn copy_in(&'static self, start: usize, file: &File) -> Outcome<()> {
        let (end, shadow) = (start + file.len, Shadow(file.shadow.wrapping_sub(start)));
        self.admit_filled(file.len);
        self.kernel.on_own_stack(move || {
            let mark = |a: &mut Attributes| a.shadow = Some(shadow);
            self.change(&mut self.lock(), start, end, mark);
        });
        // SAFETY: mapped by this call, and known to nobody else yet.
        let read = unsafe {
            self.kernel
                .read_file(file.fd, file.offset, start, file.bytes)
        };
        // Else the file has become shorter, or the disk has an error.
        if read == Ok(file.bytes) {
            return Ok(());
        }
        let uncovered: Outcome<()> = self.kernel.on_own_stack(move || {
            let mut state = self.before_drop(self.lock(), start, end)?;
            let range = state.ranges.find(start).ok_or(libc::ENOMEM)?;
            let piece = Range {
                start,
                end,
                ..range
            };
            self.uncover(&mut state, piece, shadow)
        });
        if uncovered.is_err() {
            // SAFETY: as above.
            let _ = unsafe { self.munmap(start, file.len) };
        }
        uncovered
    }

    /// The program advises that the content of a copy be dropped, and nothing of it is in transit.
    ///
    /// # Errors
    /// EINVAL: the kernel advises no such thing for mappings of files (guards before 6.15), or locked ones. Or the pager does
    /// not know how the memory is protected. ENOMEM: there is no room for one more mapping.
    pub(crate) fn drop_copy(
        &'static self,
        state: &mut Locked,
        piece: Range,
        advice: i32,
    ) -> Outcome<()> {
        let Attributes {
            shadow,
            locked,
            pinned,
            ..
        } = piece.attributes;
        let drops = match advice {
            // Under a protection key.
            _ if pinned.keyed => false,
            libc::MADV_DONTNEED | GUARD_INSTALL => !locked,
            libc::MADV_DONTNEED_LOCKED | GUARD_REMOVE => true,
            _ => false,
        };
        let shadow = shadow.filter(|_| drops).ok_or(libc::EINVAL)?;
        if matches!(advice, GUARD_INSTALL | GUARD_REMOVE) {
            let (from, len) = (shadow.of(piece.start), piece.end - piece.start);
            // The kernel says whether files may have guards. They go along with the shadow.
            // SAFETY: the shadow is the pager's.
            unsafe { self.kernel.madvise(from, len, advice) }.map_err(errno)?;
        }
        match advice {
            // A copy has no guards.
            GUARD_REMOVE => Ok(()),
            _ => self.uncover(state, piece, shadow),
        }
    }

    /// The shadow takes the place of memory, which is forgotten.
    fn uncover(&'static self, state: &mut Locked, piece: Range, shadow: Shadow) -> Outcome<()> {
        let (start, len) = (piece.start, piece.end - piece.start);
        let from = shadow.of(start);
        // SAFETY: the shadow is the pager's.
        unsafe {
            self.kernel
                .mprotect(from, len, piece.attributes.protection)
                .map_err(errno)?;
        }
        let moved = self.move_each(from, start, len, 0);
        let bytes = match moved {
            Ok(()) => len,
            Err((bytes, _)) => bytes,
        };
        if piece.attributes.in_child.absent {
            // SAFETY: advice that changes no content.
            let _ = unsafe { self.kernel.madvise(start, bytes, libc::MADV_DONTFORK) };
        }
        if piece.attributes.locked {
            // That it is locked is the kernel's business from now on.
            let _ = self.kernel.mlock(start, bytes, ON_FAULT);
        }
        self.kernel.let_file_go(from, bytes);
        state
            .ranges
            .change(start, start + bytes, |a| a.shadow = None);
        self.forget(state, start, start + bytes);
        moved.map_err(|(_, error)| errno(error))
    }

    /// Why the memory of an area is not protected so, if it is not: a file may be one that is not to be executed.
    ///
    /// # Errors
    /// EACCES.
    pub(crate) fn protect_shadows(
        &self,
        ranges: &Ranges,
        (start, end): (usize, usize),
        prot: i32,
    ) -> Outcome<()> {
        if prot & libc::PROT_EXEC == 0 {
            return Ok(());
        }
        for (range, shadow) in ranges.shadows(start, end) {
            let len = range.end - range.start;
            // SAFETY: the shadow is the pager's.
            unsafe { self.kernel.mprotect(shadow.of(range.start), len, prot) }.map_err(errno)?;
        }
        Ok(())
    }

    /// Unmaps the shadows of what is to be forgotten.
    pub(crate) fn unmap_shadows(&self, ranges: &Ranges, start: usize, end: usize) {
        for (range, shadow) in ranges.shadows(start, end) {
            // SAFETY: the pager's own, of which nobody else knows.
            unsafe {
                self.kernel
                    .unmap_file(shadow.of(range.start), range.end - range.start)
            };
        }
    }
}
