//! userfaultfd: registering ranges, reading faults, filling pages, moving pages, protecting them.
//!
//! The features used: `MOVE` captures without a copy, from the process itself only. `POISON` fails closed.
//! `THREAD_ID` names the thread that faulted, so that service can follow its core. `WRITE_PROTECT` makes
//! writes to present pages faults too, where asked for. Events (fork, remap, remove) are not asked for: the
//! memory calls that cause them are known before they happen.

use crate::Errno;
use crate::kernel::{PAGE, raw};
use crate::proc;
use std::ffi::{c_int, c_long};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const API: u64 = 0xAA;

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
/// The same for the end of a registration.
pub const UFFDIO_UNREGISTER: u64 = read_only(0x01, 16);
const UFFDIO_WAKE: u64 = read_only(0x02, 16);
const UFFDIO_COPY: u64 = both(0x03, 40);
/// The request by which pages are moved; its argument is where to, where from and how many bytes.
pub const UFFDIO_MOVE: u64 = both(0x05, 40);
const UFFDIO_WRITEPROTECT: u64 = both(0x06, 24);
const UFFDIO_CONTINUE: u64 = both(0x07, 32);
const UFFDIO_POISON: u64 = both(0x08, 32);

/// Bits of `uffdio_api.features`.
pub mod feature {
    /// Pages can be write-protected, and faults say so.
    pub const WRITE_PROTECT: u64 = 1 << 0;
    /// The faulting thread's id comes with each fault.
    pub const THREAD_ID: u64 = 1 << 8;
    /// A fault says at which byte it is.
    pub const EXACT_ADDRESS: u64 = 1 << 11;
    /// Pages can be poisoned.
    pub const POISON: u64 = 1 << 14;
    /// Pages can be moved.
    pub const MOVE: u64 = 1 << 16;
}

/// Features without which nothing can be paged.
pub const NEEDED: u64 = feature::WRITE_PROTECT
    | feature::THREAD_ID
    | feature::EXACT_ADDRESS
    | feature::POISON
    | feature::MOVE;

/// Missing pages are faults.
pub(crate) const MODE_MISSING: u64 = 1;
/// Writes to protected pages are faults.
pub(crate) const MODE_WRITE_PROTECT: u64 = 2;
const DONT_WAKE: u64 = 1;
const PROTECTED: u64 = 2;

/// A page that somebody waits for: it is missing, or there and write-protected.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Address touched: a byte of the page.
    pub address: usize,
    /// Flag: it was a write.
    pub write: bool,
    /// Flag: the page is there, but protected from writes.
    pub protected: bool,
    /// The thread that waits.
    pub thread: u32,
}

impl Fault {
    /// The address of the page.
    pub fn page(&self) -> usize {
        self.address & !(PAGE - 1)
    }
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
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

/// `UFFDIO_WRITEPROTECT_MODE_WP` and `_DONTWAKE`, which go together with nothing.
const MODE_PROTECTED: u64 = 1;
const MODE_UNWOKEN: u64 = 2;

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

/// How a userfaultfd is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// userfaultfd(2).
    Syscall,
    /// /dev/userfaultfd.
    DeviceFile,
}

const FLAGS: c_int = libc::O_CLOEXEC | libc::O_NONBLOCK;

/// Why no userfaultfd can be opened.
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
                    "this kernel's userfaultfd lacks features {missing:#x} (run Linux 6.12 or newer)"
                )
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// A userfaultfd of this process, or one that another process [gave](From) us.
#[derive(Debug)]
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

/// What `/proc` shows descriptors of this kind as. Of files it shows paths, which begin with a slash.
const KIND: &[u8] = b"anon_inode:[userfaultfd]";

/// Where no program has memory: below are the pages that Linux maps to nobody.
const LOWEST: u64 = 1 << 20;
/// The end of user memory with four levels of page tables.
const HIGHEST: u64 = (1 << 47) - PAGE as u64;

impl Userfaultfd {
    /// Opens one, by the system call or through `/dev/userfaultfd`, whichever is allowed.
    /// Faults of system calls are included: user-mode-only descriptors are of no use.
    pub fn open() -> Result<Self, OpenError> {
        Self::with_features(Self::create()?)
    }

    /// Opens one through `/dev/userfaultfd`, which somebody else has opened.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_through(device: &File) -> Result<Self, OpenError> {
        Self::with_features(Self::by_device(device).map_err(OpenError::Permission)?)
    }

    /// Opens `/dev/userfaultfd`.
    ///
    /// # Errors
    /// There is none, or this user may not.
    pub fn open_device() -> io::Result<File> {
        File::options()
            .read(true)
            .write(true)
            .open("/dev/userfaultfd")
    }

    /// One that another process gave us, who may mean harm. None: it is of another kind, whose system calls may
    /// wait for anything, or [its readers wait](Self::is_nonblocking).
    pub fn given(fd: OwnedFd) -> Option<Self> {
        let mut shown = [MaybeUninit::uninit(); 64];
        let of_this_kind = proc::path_of_fd(fd.as_raw_fd(), &mut shown).is_some_and(|s| s == KIND);
        let given = Self { fd };
        (of_this_kind && given.is_nonblocking()).then_some(given)
    }

    /// Whether readers do not wait. Without that the descriptor counts as readable for ever. All who hold one of the
    /// same file can change it.
    pub fn is_nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.fd)
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    fn with_features(this: Self) -> Result<Self, OpenError> {
        if this.enable(NEEDED).is_err() {
            // Ask a fresh one for nothing, to learn what there is.
            let offered = Self::create()?.enable(0).unwrap_or(0);
            return Err(OpenError::Features(NEEDED & !offered));
        }
        Ok(this)
    }

    fn create() -> Result<Self, OpenError> {
        let refused = match Self::by_syscall() {
            Ok(this) => return Ok(this),
            Err(e) => e,
        };
        match Self::open_device() {
            Ok(device) => Self::by_device(&device).map_err(OpenError::Permission),
            Err(_) if refused.0 == libc::ENOSYS => Err(OpenError::Absent),
            Err(_) => Err(OpenError::Permission(refused)),
        }
    }

    /// Opens one in this way alone; no feature is enabled yet.
    ///
    /// # Errors
    /// EPERM without privilege, ENOSYS where a filter or the kernel lacks it; for the device
    /// ENOENT and EACCES.
    pub fn open_by(access: Access) -> io::Result<Self> {
        let opened = match access {
            Access::Syscall => Self::by_syscall(),
            Access::DeviceFile => Self::by_device(&Self::open_device()?),
        };
        opened.map_err(|e| io::Error::from_raw_os_error(e.0))
    }

    fn by_syscall() -> Result<Self, Errno> {
        // SAFETY: no pointers.
        let opened = unsafe { raw::checked(libc::SYS_userfaultfd, [FLAGS.into(), 0, 0, 0, 0, 0]) };
        opened.map(Self::fresh)
    }

    fn by_device(device: &File) -> Result<Self, Errno> {
        // SAFETY: USERFAULTFD_IOC_NEW takes its flags as the argument itself.
        let opened = unsafe { libc::ioctl(device.as_raw_fd(), NEW as _, FLAGS) };
        Errno::of(opened.into()).map(Self::fresh)
    }

    fn fresh(fd: usize) -> Self {
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Self { fd }
    }

    /// Enables `features` on a fresh descriptor, once; the features that the kernel offers.
    ///
    /// # Errors
    /// EINVAL where a feature is unknown.
    pub fn enable(&self, features: u64) -> Result<u64, Errno> {
        let mut api = Api {
            api: API,
            features,
            ioctls: 0,
        };
        self.ioctl(UFFDIO_API, &mut api)?;
        Ok(api.features)
    }

    /// From now on missing pages of the range, and writes to pages of it that are
    /// [protected](Self::protect), are faults for this descriptor to serve.
    pub fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.register_for(start, len, MODE_MISSING | MODE_WRITE_PROTECT)
    }

    /// The same for some kinds of faults alone: [`MODE_MISSING`], [`MODE_WRITE_PROTECT`].
    pub(crate) fn register_for(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let mut arg = RangeMode {
            range: Range {
                start: start as u64,
                len: len as u64,
            },
            mode,
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
        // Of no effect where nothing is mapped; asked is only for whom. A descriptor of another kind
        // counts as unused.
        matches!(
            self.protect(LOWEST as usize, PAGE, false),
            Ok(()) | Err(Errno(libc::ENOENT | libc::EAGAIN))
        )
    }

    /// Protects the pages of registered memory that are there now from writes, or lets them be written
    /// again. Who waits for that is to be [woken](Self::wake). Pages that are not mapped are passed over. Protection goes with
    /// the page: not to where it is moved or remapped, not to a forked child.
    pub fn protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        let mut arg = Protection {
            range: Range {
                start: start as u64,
                len: len as u64,
            },
            mode: if on { MODE_PROTECTED } else { MODE_UNWOKEN },
        };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut arg)
    }

    /// Reads up to `out.len()` faults, at most `BATCH`; empty if none waits. Does not block, unless somebody has
    /// taken [the flag](Self::is_nonblocking) away.
    pub fn read<'a>(&self, out: &'a mut [Fault]) -> Result<&'a [Fault], Errno> {
        read_faults(out, |buffer| {
            let args = [
                self.number(),
                buffer.iov_base as c_long,
                buffer.iov_len as c_long,
                0,
                0,
                0,
            ];
            // SAFETY: the buffer is as long as we say and holds plain data.
            unsafe { raw::checked(libc::SYS_read, args) }
        })
    }

    /// The same of one that another process gave us: does not block whatever its flags are, or become in the midst
    /// of it.
    pub fn read_given<'a>(&self, out: &'a mut [Fault]) -> Result<&'a [Fault], Errno> {
        read_faults(out, |buffer| {
            let (fd, vector) = (self.number(), &raw const buffer as c_long);
            // -1: a file without offsets.
            let args = [fd, vector, 1, -1, -1, libc::RWF_NOWAIT.into()];
            // SAFETY: the buffer is as long as we say and holds plain data.
            match unsafe { raw::checked(libc::SYS_preadv2, args) } {
                // Before Linux 6.10 the flags alone say whether it waits.
                Err(Errno(libc::EOPNOTSUPP)) if self.is_nonblocking() => {
                    // SAFETY: the same.
                    unsafe { raw::checked(libc::SYS_readv, [fd, vector, 1, 0, 0, 0]) }
                }
                read => read,
            }
        })
    }

    /// Waits until faults can be read, at most `timeout_ms` (-1: for ever); whether there are any.
    pub fn wait(&self, timeout_ms: i32) -> bool {
        let mut p = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let args = [&raw mut p as c_long, 1, timeout_ms.into(), 0, 0, 0];
        // SAFETY: one valid pollfd.
        let ready = unsafe { raw::checked(libc::SYS_poll, args) };
        ready == Ok(1) && p.revents & libc::POLLIN != 0
    }

    fn number(&self) -> c_long {
        self.fd.as_raw_fd().into()
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
    /// EEXIST may also mean that pages *were* moved. The kernel tries again inside the call when another
    /// thread moves pages at the same time. Linux 6.18 does not count the pages that its second attempt
    /// moved, and finds them there at the third. `from` is empty then.
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

    /// Whether a page of private memory lies in registered memory. Nothing changes, whatever it is.
    ///
    /// UFFDIO_CONTINUE is for shared memory alone. The kernel refuses it for private memory, but only where that is
    /// registered, and without a look at pages. UFFDIO_WRITEPROTECT would tell as well. But the kernel takes it for a
    /// change, and of two at a time each has all processors flush all translations.
    pub fn is_registered(&self, page: usize) -> bool {
        let mut arg = RangeMode {
            range: Range {
                start: page as u64,
                len: PAGE as u64,
            },
            mode: DONT_WAKE,
            out: 0,
        };
        self.ioctl(UFFDIO_CONTINUE, &mut arg) != Err(Errno(libc::ENOENT))
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

/// Reads faults into a buffer by `read`, which returns as read(2) does.
fn read_faults(
    out: &mut [Fault],
    read: impl FnOnce(libc::iovec) -> Result<usize, Errno>,
) -> Result<&[Fault], Errno> {
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
    let buffer = libc::iovec {
        iov_base: messages.as_mut_ptr().cast(),
        iov_len: size_of_val(messages),
    };
    let n = match read(buffer) {
        Ok(bytes) => bytes / size_of::<Message>(),
        Err(Errno(libc::EINTR | libc::EAGAIN)) => 0,
        Err(e) => return Err(e),
    };
    let mut count = 0;
    for m in &messages[..n] {
        // 0x12 is UFFD_EVENT_PAGEFAULT; no other event was asked for.
        if m.event == 0x12 {
            out[count] = Fault {
                address: m.address as usize,
                write: m.flags & 1 != 0,
                protected: m.flags & 2 != 0,
                thread: m.thread,
            };
            count += 1;
        }
    }
    Ok(&out[..count])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, pagemap::PageMapFile};
    use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

    #[test]
    fn the_kernel_numbers_are_right() {
        assert_eq!(UFFDIO_API, 0xC018_AA3F);
        assert_eq!(UFFDIO_MOVE, 0xC028_AA05);
        assert_eq!(UFFDIO_WRITEPROTECT, 0xC018_AA06);
        assert_eq!(UFFDIO_CONTINUE, 0xC020_AA07);
        assert_eq!(NEW, 0xAA00);
    }

    #[test]
    fn memory_is_known_to_be_registered_whatever_its_pages_are() {
        let fault = match Userfaultfd::open() {
            Ok(fault) => fault,
            Err(e) => return println!("skipped: no userfaultfd: {e}"),
        };
        let area = memory::reserve(3 * PAGE).unwrap();
        fault.register(area, 2 * PAGE).unwrap();
        let asked = || [0, 1, 2].map(|page| fault.is_registered(area + page * PAGE));
        assert_eq!(asked(), [true, true, false], "missing");
        assert!(fault.copy(area, &[7; PAGE], true, false).1.is_ok());
        assert_eq!(asked(), [true, true, false], "present and protected");
        let mapped = PageMapFile::open().unwrap().look(area, 3);
        assert_eq!((mapped.present, mapped.protected), (1, 1), "as it was");
        // SAFETY: nobody refers to the pages.
        unsafe { memory::munmap(area, 3 * PAGE).unwrap() };
        assert_eq!(asked(), [false; 3], "unmapped");
    }

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
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(byte(1).load(SeqCst), 1, "the writer is not woken");
            fault.wake(area + PAGE, PAGE).unwrap();
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

    /// A descriptor that never says what it is asked would hold up whoever reads it.
    #[test]
    fn nobody_waits_for_what_another_process_gave() {
        use rustix::fs::{OFlags, fcntl_setfl};
        let fault = match Userfaultfd::open() {
            Ok(fault) => fault,
            Err(e) => return println!("skipped: no userfaultfd: {e}"),
        };
        let given = |of: &Userfaultfd| Userfaultfd::given(of.fd.try_clone().unwrap());
        let taken = given(&fault).expect("readers do not wait");
        fcntl_setfl(&fault, OFlags::empty()).unwrap();
        assert!(!taken.is_nonblocking(), "the flag is of both");
        assert!(given(&fault).is_none());
        let (done, read) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [Fault::default(); BATCH];
            let _ = done.send(taken.read_given(&mut buffer).map(<[Fault]>::len));
        });
        let limit = std::time::Duration::from_secs(10);
        assert_eq!(read.recv_timeout(limit), Ok(Ok(0)), "it waits");
        let other = File::options().read(true).open("/dev/null").unwrap();
        fcntl_setfl(&other, OFlags::NONBLOCK).unwrap();
        assert!(Userfaultfd::given(other.into()).is_none(), "another kind");
    }
}
