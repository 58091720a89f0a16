//! Memory shared between processes: a sealed memfd, mapped for the life of the process and
//! seen as `&'static` structures of atomics.
//!
//! Protocol: the creator makes an [`Area`] of a fixed size and sends its descriptor; others
//! map the same descriptor. The size is sealed, so no holder of the descriptor can shrink
//! the file under a mapping and turn an access into SIGBUS. Untouched pages cost no memory.
//! Mappings are never undone: that is what makes `&'static` true, also in a forked child,
//! which inherits them.
//!
//! Not here: the meaning of the words. Any process that holds the descriptor can write any value, so
//! whoever reads must take each word for an allegation.

use crate::kernel::PAGE;
use crate::memory::own::OWN;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Types that may be seen in memory which other processes write at any moment.
///
/// # Safety
/// Every bit pattern is a valid value. Every byte that can change lies inside an atomic: there are no plain
/// fields, not even padding that is read. The layout is the same in every process that maps it (`repr(C)`
/// or `repr(transparent)`).
pub unsafe trait Shared: Sync + 'static {}

macro_rules! atomics {
    ($($atomic:ty),*) => {$(
        // SAFETY: an atomic integer takes any bit pattern and has the layout of its integer.
        unsafe impl Shared for $atomic {}
    )*};
}
atomics!(
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicI32, AtomicI64
);

// SAFETY: an array has the layout of its elements in a row, and those are `Shared`.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// A mapped memfd.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    start: *const u8,
    len: usize,
}

// SAFETY: the pointer is to a mapping that lives as long as the process and is reached only
// through `Shared` types, which are `Sync`.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Makes a zeroed memfd of `len` bytes and maps it. The name is seen in
    /// `/proc/PID/maps` only.
    ///
    /// # Errors
    /// Those of memfd_create, ftruncate (EFBIG: over `RLIMIT_FSIZE`) and mmap.
    pub fn create(name: &str, len: usize) -> Result<(Self, OwnedFd), Errno> {
        if cfg!(miri) {
            return Self::of_this_process(len);
        }
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let area = Self::map_len(fd.as_fd(), len)?;
        Ok((area, fd))
    }

    /// Memory of this process alone, and a descriptor of nothing: Miri has no memfd.
    fn of_this_process(len: usize) -> Result<(Self, OwnedFd), Errno> {
        let (fd, _) = rustix::pipe::pipe()?;
        let start = OWN.map(len)? as *const u8;
        Ok((Self { start, len }, fd))
    }

    /// Maps a memfd made by [`Area::create`], in this process or another.
    ///
    /// # Errors
    /// EINVAL if the size of the file is not sealed or zero; those of mmap.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let seals = rustix::fs::fcntl_get_seals(fd)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(Errno::INVAL);
        }
        let len = rustix::fs::fstat(fd)?.st_size;
        Self::map_len(fd, usize::try_from(len).map_err(|_| Errno::INVAL)?)
    }

    fn map_len(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let start = OWN.map_file(fd, 0, len, libc::MAP_NORESERVE)?;
        Ok(Self {
            start: start as *const u8,
            len,
        })
    }

    /// Bytes of the mapping.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: an empty area cannot be made.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `T` at `offset`, or none if it does not lie inside or is not aligned.
    pub fn one<T: Shared>(&self, offset: usize) -> Option<&'static T> {
        self.many(offset, 1).map(|slice| &slice[0])
    }

    /// `count` of `T` from `offset`, or none if they do not lie inside or are not aligned.
    pub fn many<T: Shared>(&self, offset: usize, count: usize) -> Option<&'static [T]> {
        let bytes = size_of::<T>().checked_mul(count)?;
        // Mappings are page-aligned, so `offset` tells the alignment up to a page.
        let aligned = offset.is_multiple_of(align_of::<T>()) && align_of::<T>() <= PAGE;
        if offset.checked_add(bytes)? > self.len || !aligned {
            return None;
        }
        // SAFETY: the range lies inside a readable and writable mapping of a sealed file that is never
        // unmapped, and is aligned as checked. Any bytes are a valid `T`, which changes only through
        // atomics.
        Some(unsafe { std::slice::from_raw_parts(self.start.add(offset).cast::<T>(), count) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn two_mappings_are_one_memory() {
        let (a, fd) = Area::create("test", 8192).unwrap();
        let b = Area::map(fd.as_fd()).unwrap();
        a.one::<AtomicU64>(4096).unwrap().store(7, SeqCst);
        assert_eq!(b.one::<AtomicU64>(4096).unwrap().load(SeqCst), 7);
    }

    #[test]
    fn out_of_bounds_and_unaligned_are_refused() {
        let (a, _fd) = Area::create("test", 4096).unwrap();
        assert!(a.one::<AtomicU64>(4092).is_none());
        assert!(a.one::<AtomicU64>(4096).is_none());
        assert!(a.one::<AtomicU64>(usize::MAX).is_none());
        assert!(a.many::<AtomicU64>(0, 513).is_none());
        assert!(a.many::<AtomicU64>(8, usize::MAX).is_none());
        assert_eq!(a.many::<AtomicU64>(0, 512).unwrap().len(), 512);
    }

    #[test]
    fn the_size_cannot_change_and_an_unsealed_file_is_refused() {
        let (_, fd) = Area::create("test", 4096).unwrap();
        assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
        let plain = rustix::fs::memfd_create("plain", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&plain, 4096).unwrap();
        assert_eq!(Area::map(plain.as_fd()).unwrap_err(), Errno::INVAL);
    }
}
