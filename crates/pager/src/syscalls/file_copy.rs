//! Private mappings of files that may be written, such as the class archives of Java. The kernel lets no userfaultfd
//! have them, so what the program writes there could never leave. Java writes all of its archive, as it moves it.
//!
//! # Protocol
//! The call maps anonymous memory instead, and copies the file's bytes into it before it returns: until then nobody
//! knows of that memory. It is managed like any other. The file is mapped too, elsewhere and unread: its *shadow*. The
//! range knows how far away that is (`Attributes::shadow`).
//!
//! Where the program drops pages (MADV_DONTNEED) the file's bytes are to be there again. The shadow is moved there, and
//! the pages are not managed any more. It is unmapped with the range, and goes along when that moves.
//!
//! What the kernel refuses for mappings of files is refused here too. Not done: memory that the program itself
//! unmapped by an instruction leaves its shadow behind, as do forked children that are to have none of it. Both cost
//! addresses alone.
#![allow(clippy::missing_safety_doc)] // Each says "Requires:".

use crate::map::ranges::{Attributes, InChild, Range, Ranges, Shadow};
use crate::pager::Pager;
use crate::process::base::Locked;
use crate::process::outcome::{Outcome, errno};
use ebb_sys::memory::page_up;
use ebb_sys::paging::Kernel;

/// Sizes of mappings that are copied. Little is gained with smaller ones. Of larger ones little may ever be written, and
/// the page cache gives the rest back at once.
const SIZES: std::ops::RangeInclusive<usize> = 1 << 20..=64 << 20;

/// So much is copied at a time: it lies on the program's stack.
const STEP: usize = 8 << 10;

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
    let is_copy = |range: Range| range.attributes.shadow.is_some();
    let error = match flags & libc::MREMAP_DONTUNMAP {
        0 if bytes <= area.1 - area.0 => return None,
        0 => libc::ENOMEM,
        _ => libc::EINVAL,
    };
    ranges.within(area.0, area.1).any(is_copy).then_some(error)
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
        if !may_copy(prot, flags, len) || !self.wanted() || self.is_child() {
            return None;
        }
        let offset = u64::try_from(offset).ok()?;
        let rest = self.kernel.file_size(fd)?.checked_sub(offset)?;
        let bytes = len.min(usize::try_from(rest).ok()?);
        let file = File {
            fd,
            offset,
            bytes,
            len: page_up(len),
            shadow: self.map_shadow(len, fd, offset)?,
        };
        let unmap = || {
            // SAFETY: just mapped, and nobody knows of it.
            let _ = unsafe { self.kernel.munmap(file.shadow, file.len) };
        };
        // What lies behind the end of the file is no memory.
        if page_up(bytes) < file.len {
            unmap();
            return None;
        }
        let place = flags & PLACE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the caller answers for the system call.
        let mapped = unsafe { self.mmap(addr, len, prot, place, -1, 0) };
        match mapped {
            Ok(start) => self.copy_in(start, &file),
            Err(_) => unmap(),
        }
        Some(mapped)
    }

    fn map_shadow(&self, len: usize, fd: i32, offset: u64) -> Option<usize> {
        let offset = i64::try_from(offset).ok()?;
        let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: replaces nothing.
        unsafe { self.kernel.mmap(0, len, prot, flags, fd, offset) }.ok()
    }

    /// Fills memory that was just mapped. Where the file cannot be read its mapping takes the memory's place.
    fn copy_in(&'static self, start: usize, file: &File) {
        let (end, shadow) = (start + file.len, Shadow(file.shadow.wrapping_sub(start)));
        self.admit_filled(file.len);
        self.kernel.on_own_stack(move || {
            let mark = |a: &mut Attributes| a.shadow = Some(shadow);
            self.change(&mut self.lock(), start, end, mark);
        });
        if self.fill_from(start, file) {
            return;
        }
        let _: Outcome<()> = self.kernel.on_own_stack(move || {
            let mut state = self.before_drop(self.lock(), start, end)?;
            let range = state.ranges.find(start).ok_or(libc::ENOMEM)?;
            let piece = Range {
                start,
                end,
                ..range
            };
            self.uncover(&mut state, piece, shadow)
        });
    }

    /// False if the file has become shorter, or the disk has an error.
    fn fill_from(&self, start: usize, file: &File) -> bool {
        let mut buffer = [0; STEP];
        let mut done = 0;
        while done < file.bytes {
            let wanted = STEP.min(file.bytes - done);
            let out = &mut buffer[..wanted];
            if self
                .kernel
                .read_file(file.fd, out, file.offset + done as u64)
                != Ok(wanted)
            {
                return false;
            }
            // SAFETY: mapped by this call, and known to nobody else yet.
            unsafe { self.kernel.write_memory(start + done, out) };
            done += wanted;
        }
        true
    }

    /// The program advises that the content of a copy be dropped, and nothing of it is in transit.
    ///
    /// # Errors
    /// EINVAL: the kernel advises no such thing for mappings of files, or locked ones; ENOMEM: it has no room for one
    /// more mapping.
    pub(crate) fn drop_copy(
        &'static self,
        state: &mut Locked,
        piece: Range,
        advice: i32,
    ) -> Outcome<()> {
        match piece.attributes.shadow {
            Some(shadow) if advice == libc::MADV_DONTNEED && !piece.attributes.locked => {
                self.uncover(state, piece, shadow)
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// The shadow takes the place of memory, which is forgotten.
    fn uncover(&'static self, state: &mut Locked, piece: Range, shadow: Shadow) -> Outcome<()> {
        const MOVES: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (start, len) = (piece.start, piece.end - piece.start);
        let from = shadow.of(start);
        // SAFETY: the shadow is the pager's, and what it replaces is what the program gives up.
        unsafe {
            self.kernel
                .mprotect(from, len, piece.attributes.protection)
                .and_then(|()| self.kernel.mremap(from, len, len, MOVES, start))
                .map_err(errno)?;
            if piece.attributes.in_child == InChild::Absent {
                let _ = self.kernel.madvise(start, len, libc::MADV_DONTFORK);
            }
        }
        state.ranges.change(start, piece.end, |a| a.shadow = None);
        self.forget(state, start, piece.end);
        Ok(())
    }

    /// Unmaps the shadows of what is to be forgotten.
    pub(crate) fn unmap_shadows(&self, ranges: &Ranges, start: usize, end: usize) {
        for range in ranges.within(start, end) {
            if let Some(shadow) = range.attributes.shadow {
                let len = range.end - range.start;
                // SAFETY: the pager's own, of which nobody else knows.
                let _ = unsafe { self.kernel.munmap(shadow.of(range.start), len) };
            }
        }
    }
}
