//! What this kernel lets this process do: each probe tries it.
//!
//! Every probe works on memory and descriptors of its own and leaves nothing behind. A probe
//! answers `Ok` or the error of the system call; its caller says what follows from it.

use crate::Errno;
use crate::io::batch_reads::{BatchReads, Read};
use crate::kernel::raw;
use crate::memory::pagemap::PageMapFile;
use crate::memory::userfaultfd::{Access, MODE_MISSING, MODE_WRITE_PROTECT, Userfaultfd, feature};
use crate::memory::{self, PAGE};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// Private anonymous memory, unmapped when dropped.
struct Pages {
    base: usize,
    len: usize,
}

impl Pages {
    fn map(pages: usize) -> Result<Self, Errno> {
        let len = pages * PAGE;
        let base = memory::reserve(len)?;
        Ok(Self { base, len })
    }

    fn address(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    fn write(&self, page: usize, byte: u8) {
        assert!(page * PAGE < self.len);
        // SAFETY: the page lies inside this mapping, which is writable and ours alone.
        unsafe { ptr::write_volatile(self.address(page) as *mut u8, byte) }
    }

    fn read(&self, page: usize) -> u8 {
        assert!(page * PAGE < self.len);
        // SAFETY: as in `write`.
        unsafe { ptr::read_volatile(self.address(page) as *const u8) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made by `map`; nothing refers to it after the drop.
        let _ = unsafe { memory::release(self.base, self.len) };
    }
}

fn with_feature(access: Access, feature: u64) -> io::Result<Userfaultfd> {
    let userfaultfd = Userfaultfd::open_by(access)?;
    userfaultfd.enable(feature)?;
    Ok(userfaultfd)
}

fn arrived(good: bool) -> io::Result<()> {
    match good {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Moves a page into a registered range and reads it there.
///
/// # Errors
/// Those of UFFDIO_MOVE, or `InvalidData` if the content did not arrive.
pub fn move_works(access: Access) -> io::Result<()> {
    let userfaultfd = with_feature(access, feature::MOVE)?;
    let pages = Pages::map(2)?;
    pages.write(1, 0x5A);
    userfaultfd.register_for(pages.address(0), PAGE, MODE_MISSING)?;
    // SAFETY: source and destination are whole pages of our own mapping; nobody holds a
    // reference into either.
    let (_, moved) = unsafe { userfaultfd.move_pages(pages.address(0), pages.address(1), PAGE) };
    moved?;
    arrived(pages.read(0) == 0x5A)
}

/// Poisons a page of a registered range. Does not touch it.
///
/// # Errors
/// Those of UFFDIO_POISON.
pub fn poison_works(access: Access) -> io::Result<()> {
    let userfaultfd = with_feature(access, feature::POISON)?;
    let pages = Pages::map(1)?;
    userfaultfd.register_for(pages.address(0), PAGE, MODE_MISSING)?;
    Ok(userfaultfd.poison(pages.address(0), PAGE)?)
}

/// Write-protects one of two pages and asks the page map which.
///
/// # Errors
/// Those of UFFDIO_WRITEPROTECT and of reading the page map, or `InvalidData` if the answer was
/// wrong.
pub fn write_protection_works(access: Access) -> io::Result<()> {
    let userfaultfd = with_feature(access, feature::WRITE_PROTECT)?;
    let pages = Pages::map(2)?;
    (0..2).for_each(|p| pages.write(p, 1));
    userfaultfd.register_for(pages.address(0), 2 * PAGE, MODE_WRITE_PROTECT)?;
    userfaultfd.protect(pages.address(1), PAGE, true)?;
    let mapped = PageMapFile::open()?.try_look(pages.address(0), 2);
    arrived(mapped.is_some_and(|mapped| mapped.protected == 0b10))
}

/// Drops pages of this process with one process_madvise call.
///
/// # Errors
/// EINVAL on kernels that refuse MADV_DONTNEED there, EPERM under a filter.
pub fn process_madvise_works() -> io::Result<()> {
    let pages = Pages::map(2)?;
    pages.write(0, 1);
    let args = [std::process::id().into(), 0, 0, 0, 0, 0];
    // SAFETY: pidfd_open of ourselves returns a new descriptor or an error.
    let fd = unsafe { raw::checked(libc::SYS_pidfd_open, args)? };
    // SAFETY: the kernel has just returned this descriptor, nobody else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let range = libc::iovec {
        iov_base: pages.base as *mut libc::c_void,
        iov_len: pages.len,
    };
    // SAFETY: the vector names our own mapping alone, whose content nobody needs.
    let dropped =
        unsafe { memory::process_madvise(pidfd.as_raw_fd(), &range, 1, libc::MADV_DONTNEED, 0)? };
    arrived(dropped == pages.len && pages.read(0) == 0)
}

/// Reads a few bytes asynchronously, as swap files are read.
///
/// # Errors
/// ENOSYS or EPERM where that is compiled out or filtered; EAGAIN where the system has too many requests.
pub fn asynchronous_reads_work() -> io::Result<()> {
    let mut batch = BatchReads::new()?;
    let file = std::fs::File::open("/proc/self/exe")?;
    let mut bytes = [0; 4];
    let mut read = [Read {
        offset: 0,
        data: &mut [io::IoSliceMut::new(&mut bytes)],
        result: Err(rustix::io::Errno::IO),
    }];
    batch.read(file.as_fd(), &mut read, Duration::ZERO)?;
    let result = read[0].result;
    if result? == bytes.len() && bytes == *b"\x7fELF" {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_agree_with_the_features_the_kernel_names() {
        let offered = [Access::Syscall, Access::DeviceFile]
            .into_iter()
            .find_map(|access| Some((access, Userfaultfd::open_by(access).ok()?)));
        let Some((access, userfaultfd)) = offered else {
            println!("skipped: no permission for userfaultfd");
            return;
        };
        let offered = userfaultfd.enable(0).unwrap();
        assert_eq!(move_works(access).is_ok(), offered & feature::MOVE != 0);
        assert_eq!(poison_works(access).is_ok(), offered & feature::POISON != 0);
        assert_eq!(
            write_protection_works(access).is_ok(),
            offered & feature::WRITE_PROTECT != 0
        );
    }
}
