//! userfaultfd: registering ranges, reading faults, filling pages, moving pages, protecting them.
//!
//! The features used: `MOVE` (capture without a copy, from the process itself only), `POISON`
//! (fail closed), `THREAD_ID` (which thread faulted, so that service can follow its core),
//! `WRITE_PROTECT` (writes to pages that are there are faults too, where asked for).
//! Events (fork, remap, remove) are not asked for: the memory calls that cause them are known
//! before they happen.

use crate::Errno;
use crate::kernel::raw;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const API: u64 = 0xAA;
const USER_MODE_ONLY: i32 = 1;

const fn ioc(dir: u64, kind: u8, number: u8, size: usize) -> u64 {
    dir << 30 | (size as u64) << 16 | (kind as u64) << 8 | number as u64
}
const fn both(number: u8, size: usize) -> u64 {
    ioc(3, 0xAA, number, size)
}
const fn read_only(number: u8, size: usize) -> u64 {
    ioc(2, 0xAA, number, size)
}

const NEW: u64 = ioc(0, 0xAA, 0, 0);
const UFFDIO_API: u64 = both(0x3f, 24);
/// The request by which a range is registered; its argument begins with where that is and how long.
pub const UFFDIO_REGISTER: u64 = both(0x00, 32);
const UFFDIO_UNREGISTER: u64 = read_only(0x01, 16);
const UFFDIO_WAKE: u64 = read_only(0x02, 16);
const UFFDIO_COPY: u64 = both(0x03, 40);
const UFFDIO_MOVE: u64 = both(0x05, 40);
const UFFDIO_WRITEPROTECT: u64 = both(0x06, 24);
const UFFDIO_POISON: u64 = both(0x08, 32);

/// Bits of `uffdio_api.features`.
pub mod feature {
    /// Pages can be write-protected, and faults say so.
    pub const WRITE_PROTECT: u64 = 1 << 0;
    /// The faulting thread's id comes with each fault.
    pub const THREAD_ID: u64 = 1 << 8;
    /// Pages can be poisoned.
    pub const POISON: u64 = 1 << 14;
    /// Pages can be moved.
    pub const MOVE: u64 = 1 << 16;
}

/// Features without which nothing can be paged.
pub const NEEDED: u64 =
    feature::WRITE_PROTECT | feature::THREAD_ID | feature::POISON | feature::MOVE;

const MODE_MISSING: u64 = 1;
const MODE_WRITE_PROTECT: u64 = 2;
const DONT_WAKE: u64 = 1;
const PROTECTED: u64 = 2;

/// A page that somebody waits for: it is missing, or there and write-protected.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Address touched, as the kernel gives it: its page's start.
    pub address: usize,
    /// Whether it was a write.
    pub write: bool,
    /// The page is there, but protected from writes.
    pub protected: bool,
    /// The thread that waits.
    pub thread: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u32,
    pad: u32,
}
const _: () = assert!(size_of::<Message>() == 32);

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Protection {
    range: Range,
    mode: u64,
}

#[repr(C)]
struct Transfer {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct RangeMode {
    range: Range,
    mode: u64,
    out: u64,
}

/// Why no userfaultfd could be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The system call is refused and `/dev/userfaultfd` cannot be opened.
    Permission(Errno),
    /// The kernel has no userfaultfd at all.
    Absent,
    /// The kernel lacks these feature bits.
    Features(u64),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Permission(e) => write!(
                f,
                "userfaultfd is not permitted ({e}); give the process read-write access to /dev/userfaultfd \
                 (in a container: --device /dev/userfaultfd), or set vm.unprivileged_userfaultfd=1, or run as root"
            ),
            OpenError::Absent => write!(f, "this kernel has no userfaultfd (CONFIG_USERFAULTFD)"),
            OpenError::Features(missing) => {
                write!(
                    f,
                    "this kernel's userfaultfd lacks features {missing:#x} (MOVE needs Linux 6.8; on arm64, write protection 6.11)"
                )
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// A userfaultfd of this process, or one that another process [gave](From) us.
pub struct Userfaultfd {
    fd: OwnedFd,
}

impl AsFd for Userfaultfd {
    /// Readable when a fault waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<OwnedFd> for Userfaultfd {
    /// One that another process opened: its memory can be filled, protected and poisoned through it, not
    /// [moved](Userfaultfd::move_pages).
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

/// Where no program has memory: below are the pages that Linux maps to nobody.
const LOWEST: u64 = 1 << 20;
/// The end of user memory with four levels of page tables.
const HIGHEST: u64 = (1 << 47) - 4096;

impl Userfaultfd {
    /// Opens one, by the system call or through `/dev/userfaultfd`, whichever is allowed.
    /// Faults of system calls are included: user-mode-only descriptors are of no use.
    pub fn open() -> Result<Self, OpenError> {
        let fd = Self::create()?;
        let mut api = [API, NEEDED, 0u64];
        // SAFETY: UFFDIO_API takes a struct of three u64.
        let r = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, api.as_mut_ptr()) };
        if r < 0 {
            // Ask again for nothing, to learn what there is.
            let fd = Self::create()?;
            let mut api = [API, 0, 0u64];
            // SAFETY: as above.
            unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, api.as_mut_ptr()) };
            return Err(OpenError::Features(NEEDED & !api[1]));
        }
        Ok(Self { fd })
    }

    fn create() -> Result<OwnedFd, OpenError> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: no pointers.
        let r = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let refused = match Errno::of(r) {
            // SAFETY: a fresh descriptor that nobody else owns.
            Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
            Err(e) => e,
        };
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/userfaultfd");
        match device {
            Ok(device) => {
                // SAFETY: USERFAULTFD_IOC_NEW takes its flags as the argument itself.
                let r =
                    unsafe { libc::ioctl(device.as_raw_fd(), NEW as _, flags as libc::c_ulong) };
                match Errno::of(r as _) {
                    // SAFETY: a fresh descriptor that nobody else owns.
                    Ok(fd) => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
                    Err(e) => Err(OpenError::Permission(e)),
                }
            }
            Err(_) if refused.0 == libc::ENOSYS => Err(OpenError::Absent),
            Err(_) => Err(OpenError::Permission(refused)),
        }
    }

    /// Whether a descriptor for user-mode faults alone could be had: tells a lack of privilege
    /// from a lack of the feature.
    pub fn user_mode_only_works() -> bool {
        // SAFETY: no pointers.
        let r = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
        match Errno::of(r) {
            Ok(fd) => {
                // SAFETY: a fresh descriptor that nobody else owns.
                drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
                true
            }
            Err(_) => false,
        }
    }

    /// From now on missing pages of the range, and writes to pages of it that are
    /// [protected](Self::protect), are faults for this descriptor to serve.
    pub fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = RangeMode {
            range: Range {
                start: start as u64,
                len: len as u64,
            },
            mode: MODE_MISSING | MODE_WRITE_PROTECT,
            out: 0,
        };
        self.ioctl(UFFDIO_REGISTER, &mut arg)
    }

    /// Ends that; missing pages read as zeros again, so no page may be swapped out any more.
    pub fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.ioctl(
            UFFDIO_UNREGISTER,
            &mut Range {
                start: start as u64,
                len: len as u64,
            },
        )
    }

    /// Lets the threads that wait for pages of the range try again.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.ioctl(
            UFFDIO_WAKE,
            &mut Range {
                start: start as u64,
                len: len as u64,
            },
        )
    }

    /// Lets all threads that wait try again, those whose faults were read too.
    pub fn wake_all(&self) -> Result<(), Errno> {
        self.wake(LOWEST as usize, (HIGHEST - LOWEST) as usize)
    }

    /// Whether any process still uses the memory that this descriptor is of.
    pub fn is_used(&self) -> bool {
        // Of no effect where nothing is mapped; asked is only for whom. Of what is no userfaultfd, no.
        matches!(
            self.protect(LOWEST as usize, 4096, false),
            Ok(()) | Err(Errno(libc::ENOENT | libc::EAGAIN))
        )
    }

    /// Protects the pages of registered memory that are there now from writes, or lets them be
    /// written again and wakes who waits for that. What is not mapped is passed over. Protection
    /// goes with the page: not to where it is moved or remapped, not to a forked child.
    pub fn protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        let mut arg = Protection {
            range: Range {
                start: start as u64,
                len: len as u64,
            },
            mode: u64::from(on),
        };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut arg)
    }

    /// Reads up to `out.len()` faults, at most `BATCH`; empty if none waits. Does not block.
    pub fn read<'a>(&self, out: &'a mut [Fault]) -> Result<&'a [Fault], Errno> {
        const EMPTY: Message = Message {
            event: 0,
            reserved: [0; 7],
            flags: 0,
            address: 0,
            thread: 0,
            pad: 0,
        };
        let mut messages = [EMPTY; BATCH];
        let messages = &mut messages[..out.len().min(BATCH)];
        // SAFETY: the buffer is as long as we say and holds plain data.
        let r = unsafe {
            libc::read(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr().cast(),
                size_of_val(messages),
            )
        };
        let n = match Errno::of(r as _) {
            Ok(bytes) => bytes / size_of::<Message>(),
            Err(Errno(libc::EINTR | libc::EAGAIN)) => 0,
            Err(e) => return Err(e),
        };
        let mut count = 0;
        for m in &messages[..n] {
            // 0x12 is UFFD_EVENT_PAGEFAULT; no other event was asked for.
            if m.event == 0x12 {
                out[count] = Fault {
                    address: m.address as usize & !4095,
                    write: m.flags & 1 != 0,
                    protected: m.flags & 2 != 0,
                    thread: m.thread,
                };
                count += 1;
            }
        }
        Ok(&out[..count])
    }

    /// Waits until faults can be read, at most `timeout_ms` (-1: for ever); whether there are any.
    pub fn wait(&self, timeout_ms: i32) -> bool {
        let mut p = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&mut p, 1, timeout_ms) == 1 && p.revents & libc::POLLIN != 0 }
    }

    /// Fills missing pages at `to` with new pages that hold a copy of `from`, protected from writes (see
    /// [`Userfaultfd::protect`]) with `protect`. With `wake`, who waits for those that were counted is
    /// woken. Returns the bytes done and why it stopped short, if it did: EEXIST, a
    /// page is already there; EAGAIN, try again; ENOMEM; ENOENT, no such range.
    pub fn copy(
        &self,
        to: usize,
        from: &[u8],
        protect: bool,
        wake: bool,
    ) -> (usize, Result<(), Errno>) {
        let arg = Transfer {
            to: to as u64,
            from: from.as_ptr() as u64,
            len: from.len() as u64,
            mode: if wake { 0 } else { DONT_WAKE } | if protect { PROTECTED } else { 0 },
            done: 0,
        };
        self.transfer(UFFDIO_COPY, arg)
    }

    /// Moves whole pages between two private anonymous ranges of this process. Afterwards
    /// nobody can reach them at `from`: a capture is atomic. Stops at a page that is pinned or shared
    /// (EBUSY), that is not there or not mapped (ENOENT), or where a target page is present
    /// (EEXIST). Returns the bytes done; wakes nobody.
    ///
    /// EEXIST may also mean that pages *were* moved: where the kernel tries again inside the call,
    /// because another thread moves pages at the same time, Linux 6.18 does not count what the
    /// second attempt moved, and finds it there at the third. `from` is empty then.
    ///
    /// Requires: the caller owns what both ranges mean: no Rust reference points into `from`
    /// or `to`, and whoever maps `from` expects its pages to be gone.
    pub unsafe fn move_pages(
        &self,
        to: usize,
        from: usize,
        len: usize,
    ) -> (usize, Result<(), Errno>) {
        self.transfer(
            UFFDIO_MOVE,
            Transfer {
                to: to as u64,
                from: from as u64,
                len: len as u64,
                mode: DONT_WAKE,
                done: 0,
            },
        )
    }

    /// Makes missing pages fatal to touch: SIGBUS for whoever does, never zeros.
    pub fn poison(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = RangeMode {
            range: Range {
                start: start as u64,
                len: len as u64,
            },
            mode: 0,
            out: 0,
        };
        self.ioctl(UFFDIO_POISON, &mut arg)
    }

    fn transfer(&self, request: u64, mut arg: Transfer) -> (usize, Result<(), Errno>) {
        let result = self.ioctl(request, &mut arg);
        (arg.done.max(0) as usize, result)
    }

    fn ioctl<T>(&self, request: u64, arg: &mut T) -> Result<(), Errno> {
        let arg = std::ptr::from_mut(arg) as libc::c_long;
        let args = [self.fd.as_raw_fd().into(), request as _, arg, 0, 0, 0];
        // Not by libc's function, by which the preload library sees the program's.
        // SAFETY: the private callers pair each request with its argument's type.
        unsafe { raw::checked(libc::SYS_ioctl, args) }.map(|_| ())
    }
}

/// Faults read at once at most.
pub const BATCH: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, pagemap::PageMapFile};
    use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

    const PAGE: usize = memory::PAGE;

    #[test]
    fn protected_pages_fault_when_written() {
        let fault = match Userfaultfd::open() {
            Ok(fault) => fault,
            Err(e) => return println!("skipped: no userfaultfd: {e}"),
        };
        let area = memory::reserve(2 * PAGE).unwrap();
        // Another test may fork meanwhile, and would share them.
        // SAFETY: advice that changes no content.
        unsafe { memory::madvise(area, 2 * PAGE, libc::MADV_DONTFORK).unwrap() };
        // SAFETY: two pages of ours alone, mapped for the life of the test, used as atomics only.
        let byte = |page: usize| unsafe { &*((area + page * PAGE) as *const AtomicU8) };
        byte(0).store(1, SeqCst);
        byte(1).store(1, SeqCst);
        fault.register(area, 2 * PAGE).unwrap();
        fault.protect(area, 2 * PAGE, true).unwrap();
        assert_eq!(byte(0).load(SeqCst), 1, "reads are free");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| byte(1).store(2, SeqCst));
            assert!(fault.wait(5000), "a write is a fault");
            let mut buffer = [Fault::default(); BATCH];
            let faults = fault.read(&mut buffer).unwrap();
            assert_eq!(faults.len(), 1);
            assert_eq!(faults[0].address, area + PAGE);
            assert!(faults[0].write && faults[0].protected);
            assert_eq!(byte(1).load(SeqCst), 1, "the writer waits");
            fault.protect(area + PAGE, PAGE, false).unwrap();
            writer.join().unwrap();
        });
        assert_eq!(byte(1).load(SeqCst), 2);
        // Nobody else maps them: a write would copy nothing.
        let mapped = PageMapFile::open().unwrap().look(area, 2);
        assert_eq!((mapped.present, mapped.shared), (3, 0));
        drop(fault);
        // SAFETY: nothing refers to the pages any more.
        unsafe { memory::munmap(area, 2 * PAGE).unwrap() };
    }
}
