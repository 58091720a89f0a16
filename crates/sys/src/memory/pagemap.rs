//! Which pages of a range are present, found by the kernel in one walk (PAGEMAP_SCAN), and which
//! of them other processes map too (`/proc/self/pagemap`). Pages that the kernel has swapped out, or moves elsewhere at
//! that moment, are there as others are: a touch of them is no fault of ours.
//!
//! By system calls without libc: those of files are points of cancellation there, and threads of the
//! program look too.

use std::os::fd::{IntoRawFd, OwnedFd};

use crate::Errno;
use crate::kernel::{PAGE, raw};
use std::ffi::{c_int, c_long};

const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
/// Guards (MADV_GUARD_INSTALL) look like swapped pages. Kernels before 6.15 do not tell them apart.
const GUARD: u64 = 1 << 8;
const SCAN: u64 = 3 << 30 | (size_of::<ScanArg>() as u64) << 16 | (b'f' as u64) << 8 | 16;

/// The argument of PAGEMAP_SCAN.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// A run of pages that the scan found.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// This process's page map: a descriptor of the table it was opened in.
pub struct PageMapFile(c_int);

impl PageMapFile {
    /// Opens `/proc/self/pagemap`.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open() -> Result<Self, Errno> {
        let file = crate::proc::open(b"/proc/self/pagemap", rustix::fs::OFlags::RDONLY);
        let file = file.map_err(|e| Errno(e.raw_os_error()))?;
        Ok(Self(OwnedFd::from(file).into_raw_fd()))
    }

    /// The file of this process's memory that somebody else has opened.
    pub fn given(file: OwnedFd) -> Self {
        Self(file.into_raw_fd())
    }

    /// Calls `found(start, end)` for each run of present pages in `start..end`. Allocates nothing.
    pub fn present(
        &self,
        start: usize,
        end: usize,
        mut found: impl FnMut(usize, usize),
    ) -> Result<(), Errno> {
        let mut regions = [Region::default(); 64];
        let mut at = start as u64;
        let mut guards = GUARD;
        while at < end as u64 {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                flags: 0,
                start: at,
                end: end as u64,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                max_pages: 0,
                category_inverted: guards,
                category_mask: guards,
                category_anyof_mask: PRESENT | SWAPPED,
                return_mask: PRESENT,
            };
            // SAFETY: the argument has the kernel's layout and `vec` is as long as it says.
            let found_runs = unsafe {
                let arg = &raw mut arg as c_long;
                raw::checked(libc::SYS_ioctl, [self.0.into(), SCAN as _, arg, 0, 0, 0])
            };
            let n = match found_runs {
                Err(Errno(libc::EINVAL)) if guards != 0 => {
                    guards = 0;
                    continue;
                }
                n => n?,
            };
            for r in &regions[..n] {
                found(r.start as usize, r.end as usize);
            }
            if arg.walk_end <= at {
                break;
            }
            at = arg.walk_end;
        }
        Ok(())
    }

    /// Looks at `pages` pages from `start`, at most 64: about 0.5 µs and 0.04 more a page. None is
    /// taken for present if they cannot be looked at.
    pub fn look(&self, start: usize, pages: usize) -> Mapped {
        self.try_look(start, pages).unwrap_or_default()
    }

    /// The same; none if they cannot be looked at.
    pub fn try_look(&self, start: usize, pages: usize) -> Option<Mapped> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const PROTECTED: u64 = 1 << 57;
        const EXCLUSIVE: u64 = 1 << 56;
        let mut entries = [0u8; 64 * 8];
        let entries = &mut entries[..pages * 8];
        let (buffer, len) = (entries.as_mut_ptr() as c_long, entries.len());
        let at = (start / PAGE * 8) as c_long;
        // SAFETY: a buffer as long as we say.
        let read = unsafe {
            raw::checked(
                libc::SYS_pread64,
                [self.0.into(), buffer, len as c_long, at, 0, 0],
            )
        };
        let mut mapped = Mapped::default();
        if read != Ok(len) {
            return None;
        }
        for (i, entry) in entries.as_chunks().0.iter().enumerate() {
            let entry = u64::from_ne_bytes(*entry);
            mapped.present |= u64::from(entry & (PRESENT | SWAPPED) != 0) << i;
            mapped.protected |= u64::from(entry & PROTECTED != 0) << i;
            mapped.shared |= u64::from(entry & (PRESENT | EXCLUSIVE) == PRESENT) << i;
        }
        Some(mapped)
    }

    /// Counts the pages of `start..end` that other processes map too.
    pub fn shared(&self, start: usize, end: usize) -> usize {
        let mut count = 0;
        // A range that cannot be scanned counts as empty.
        let _ = self.present(start, end, |start, end| {
            for at in (start..end).step_by(64 * PAGE) {
                let pages = ((end - at) / PAGE).min(64);
                count += self.look(at, pages).shared.count_ones() as usize;
            }
        });
        count
    }
}

impl Drop for PageMapFile {
    fn drop(&mut self) {
        // SAFETY: our own descriptor; there is nothing to do if it cannot be closed.
        let _ = unsafe { raw::checked(libc::SYS_close, [self.0.into(), 0, 0, 0, 0, 0]) };
    }
}

/// The state of a few pages, bit 0 the first.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Pages that are there.
    pub present: u64,
    /// Pages that another process maps, too, or the zero page: a write makes a copy.
    pub shared: u64,
    /// A write to it is a fault of userfaultfd's.
    pub protected: u64,
}
