//! What this kernel lets this process do, found by doing it.
//!
//! Every probe works on memory and descriptors of its own and leaves nothing behind. A probe
//! answers `Ok` or the error the system call gave: what follows from it is the caller's to say.

use crate::io::ring::{Read, Ring};
use crate::memory::userfaultfd::feature;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr;

const PAGE: usize = 4096;

/// `_IOWR(kind, number, T)` of the kernel's ioctl numbering.
const fn iowr<T>(kind: u8, number: u8) -> libc::c_ulong {
    (3 << 30)
        | ((size_of::<T>() as libc::c_ulong) << 16)
        | ((kind as libc::c_ulong) << 8)
        | number as libc::c_ulong
}

const UFFD: u8 = 0xAA;
const USERFAULTFD_IOC_NEW: libc::c_ulong = (UFFD as libc::c_ulong) << 8;

#[repr(C)]
#[derive(Default)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Poison {
    start: u64,
    len: u64,
    mode: u64,
    updated: i64,
}

#[repr(C)]
struct Protect {
    start: u64,
    len: u64,
    mode: u64,
}

#[repr(C)]
struct Move {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

/// How a userfaultfd is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// userfaultfd(2).
    Syscall,
    /// /dev/userfaultfd.
    DeviceFile,
}

/// Opens a userfaultfd that also sees faults raised inside system calls.
///
/// # Errors
/// EPERM without privilege, ENOSYS where a filter or the kernel lacks it; for the device
/// ENOENT and EACCES.
pub fn userfaultfd(access: Access) -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let fd = match access {
        // SAFETY: userfaultfd(2) takes flags alone.
        Access::Syscall => unsafe { libc::syscall(libc::SYS_userfaultfd, flags) as i32 },
        Access::DeviceFile => {
            let device = std::fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/userfaultfd")?;
            // SAFETY: this ioctl takes its flags by value and returns a new descriptor.
            unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags) }
        }
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Enables `features` on a fresh userfaultfd; 0 asks what there is. Returns all that the
/// kernel offers (see [`feature`]).
///
/// # Errors
/// EINVAL where a feature is unknown.
pub fn features(uffd: &OwnedFd, features: u64) -> io::Result<u64> {
    let mut api = Api {
        api: 0xAA,
        features,
        ioctls: 0,
    };
    // SAFETY: `api` is the struct this ioctl reads and fills.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), iowr::<Api>(UFFD, 0x3F), &mut api) })?;
    Ok(api.features)
}

/// Private anonymous memory, unmapped when dropped.
struct Pages {
    base: *mut u8,
    len: usize,
}

impl Pages {
    fn map(pages: usize) -> io::Result<Self> {
        let len = pages * PAGE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                prot,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            base: base.cast(),
            len,
        })
    }

    fn address(&self, page: usize) -> u64 {
        self.base as u64 + (page * PAGE) as u64
    }

    fn write(&self, page: usize, byte: u8) {
        assert!(page * PAGE < self.len);
        // SAFETY: the page lies inside this mapping, which is writable and ours alone.
        unsafe { ptr::write_volatile(self.base.add(page * PAGE), byte) }
    }

    fn read(&self, page: usize) -> u8 {
        assert!(page * PAGE < self.len);
        // SAFETY: as in `write`.
        unsafe { ptr::read_volatile(self.base.add(page * PAGE)) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made by `map`; nothing refers to it after the drop.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn register(uffd: &OwnedFd, start: u64, len: usize, mode: u64) -> io::Result<()> {
    let mut arg = Register {
        start,
        len: len as u64,
        mode,
        ioctls: 0,
    };
    // SAFETY: `arg` is the struct this ioctl reads and fills; registering changes no content.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), iowr::<Register>(UFFD, 0x00), &mut arg) })
}

/// Moves a page into a registered range and reads it there.
///
/// # Errors
/// Those of UFFDIO_MOVE, or `InvalidData` if the content did not arrive.
pub fn move_works(access: Access) -> io::Result<()> {
    let uffd = userfaultfd(access)?;
    features(&uffd, feature::MOVE)?;
    let pages = Pages::map(2)?;
    pages.write(1, 0x5A);
    register(&uffd, pages.address(0), PAGE, 1)?;
    let mut arg = Move {
        dst: pages.address(0),
        src: pages.address(1),
        len: PAGE as u64,
        mode: 0,
        moved: 0,
    };
    // SAFETY: source and destination are whole pages of our own mapping; nobody holds a
    // reference into either.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), iowr::<Move>(UFFD, 0x05), &mut arg) })?;
    if pages.read(0) == 0x5A {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Poisons a page of a registered range. Does not touch it.
///
/// # Errors
/// Those of UFFDIO_POISON.
pub fn poison_works(access: Access) -> io::Result<()> {
    let uffd = userfaultfd(access)?;
    features(&uffd, feature::POISON)?;
    let pages = Pages::map(1)?;
    register(&uffd, pages.address(0), PAGE, 1)?;
    let mut arg = Poison {
        start: pages.address(0),
        len: PAGE as u64,
        mode: 0,
        updated: 0,
    };
    // SAFETY: the range is one page of our own mapping, which nobody reads afterwards.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), iowr::<Poison>(UFFD, 0x08), &mut arg) })
}

/// Write-protects one of two pages and asks the page map which.
///
/// # Errors
/// Those of UFFDIO_WRITEPROTECT and of reading the page map, or `InvalidData` if the answer was
/// wrong.
pub fn write_protection_works(access: Access) -> io::Result<()> {
    const PROTECTED: u64 = 1 << 57;
    let uffd = userfaultfd(access)?;
    features(&uffd, feature::WRITE_PROTECT)?;
    let pages = Pages::map(2)?;
    (0..2).for_each(|p| pages.write(p, 1));
    register(&uffd, pages.address(0), 2 * PAGE, 2)?;
    let mut arg = Protect {
        start: pages.address(1),
        len: PAGE as u64,
        mode: 1,
    };
    // SAFETY: the range is one page of our own mapping, which nobody writes from now on.
    check(unsafe { libc::ioctl(uffd.as_raw_fd(), iowr::<Protect>(UFFD, 0x06), &mut arg) })?;
    let pagemap = std::fs::File::open("/proc/self/pagemap")?;
    let mut words = [0; 16];
    pagemap.read_exact_at(&mut words, pages.address(0) / PAGE as u64 * 8)?;
    let (first, second) = words.split_at(8);
    let protected = |word: &[u8]| {
        let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        word & PROTECTED != 0
    };
    if !protected(first) && protected(second) {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Drops pages of this process with one process_madvise call.
///
/// # Errors
/// EINVAL on kernels that refuse MADV_DONTNEED there, EPERM under a filter.
pub fn process_madvise_works() -> io::Result<()> {
    let pages = Pages::map(2)?;
    pages.write(0, 1);
    // SAFETY: pidfd_open of ourselves returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) as i32 };
    check(fd)?;
    // SAFETY: the kernel has just returned this descriptor, nobody else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(fd) };
    let range = libc::iovec {
        iov_base: pages.base.cast(),
        iov_len: pages.len,
    };
    // SAFETY: the vector names our own mapping alone, whose content nobody needs.
    let n = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd.as_raw_fd(),
            &range,
            1usize,
            libc::MADV_DONTNEED,
            0,
        )
    };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    if n as usize == pages.len && pages.read(0) == 0 {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Sets up the io_uring that swap files use, and reads a few bytes through it.
///
/// # Errors
/// ENOSYS or EPERM where it is compiled out, disabled by sysctl or filtered.
pub fn io_uring_works() -> io::Result<()> {
    let mut ring = Ring::new(2)?;
    let file = std::fs::File::open("/proc/self/exe")?;
    let mut bytes = [0; 4];
    let mut read = [Read {
        offset: 0,
        data: &mut [io::IoSliceMut::new(&mut bytes)],
        result: Err(rustix::io::Errno::IO),
    }];
    ring.read(file.as_fd(), &mut read)?;
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

    fn access() -> Option<Access> {
        [Access::Syscall, Access::DeviceFile]
            .into_iter()
            .find(|&d| userfaultfd(d).is_ok())
    }

    #[test]
    fn the_kernel_numbers_are_right() {
        assert_eq!(iowr::<Api>(UFFD, 0x3F), 0xC018_AA3F);
        assert_eq!(iowr::<Move>(UFFD, 0x05), 0xC028_AA05);
        assert_eq!(iowr::<Protect>(UFFD, 0x06), 0xC018_AA06);
    }

    #[test]
    fn probes_agree_with_the_features_the_kernel_names() {
        let Some(access) = access() else {
            println!("skipped: no permission for userfaultfd");
            return;
        };
        let offered = features(&userfaultfd(access).unwrap(), 0).unwrap();
        assert_eq!(move_works(access).is_ok(), offered & feature::MOVE != 0);
        assert_eq!(poison_works(access).is_ok(), offered & feature::POISON != 0);
        assert_eq!(
            write_protection_works(access).is_ok(),
            offered & feature::WRITE_PROTECT != 0
        );
    }
}
