//! `CLONE_VFORK` for a child with a copy of the memory: its parent goes on when the child execs or ends.
//!
//! The kernel would suspend the forking thread inside the call, in which it holds every lock of ours, and the child may
//! wait for another thread. So the call is made without the flag, and the thread waits once the locks are released, and
//! its turn to fork.
//!
//! It waits for the end of a pipe. The child alone has the other end, which an exec closes, or the child's end,
//! whatever ended it. A child of the child closes its copy first of all. Descriptors of the pipe lie above those that
//! programs count on. One that closes all it has lets its parent go on early.
//!
//! Not here: a child that shares its parent's descriptors (`CLONE_FILES`). Neither its exec nor its end would close
//! one, so the kernel is asked, as where there are no descriptors left.

use core::ffi::{c_int, c_long};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

use ebb_sys::file::Descriptor;
use ebb_sys::raw;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

/// A descriptor of ours.
fn owned(fd: c_int) -> Descriptor {
    // SAFETY: open, and nobody else owns it.
    Descriptor::from(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn number(end: &Descriptor) -> c_int {
    end.as_fd().as_raw_fd()
}

/// The same above those that programs count on, where the limit allows it.
fn raised(end: Descriptor) -> Descriptor {
    const ABOVE: c_long = 512;
    let how = libc::F_DUPFD_CLOEXEC.into();
    let args = [number(&end).into(), how, ABOVE, 0, 0, 0];
    // SAFETY: no pointers.
    match unsafe { raw::checked(libc::SYS_fcntl, args) } {
        Ok(fd) => owned(fd as c_int),
        Err(_) => end,
    }
}

/// The number of a descriptor's file, if it is open.
fn inode(fd: c_int) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    let args = [fd.into(), stat.as_mut_ptr() as c_long, 0, 0, 0, 0];
    // SAFETY: the kernel's structure, filled on success.
    unsafe {
        raw::checked(libc::SYS_fstat, args).ok()?;
        Some(stat.assume_init().st_ino)
    }
}

/// The pipe of the fork whose turn it is.
pub struct Pipe {
    parent: Descriptor,
    child: Descriptor,
}

const NONE: c_int = -1;

/// The parent's end, until it is waited for.
static WAITS: AtomicI32 = AtomicI32::new(NONE);
/// In a child: its end, and the number of that file, as the program may have closed it.
static HELD: AtomicI32 = AtomicI32::new(NONE);
static HELD_INODE: AtomicU64 = AtomicU64::new(0);

impl Pipe {
    /// None: there is none for such a call.
    pub fn of(flags: u64) -> Option<Self> {
        let asks = |flag: c_int| flags & flag as u64 != 0;
        if !asks(libc::CLONE_VFORK) || asks(libc::CLONE_FILES) {
            return None;
        }
        let mut ends = [NONE; 2];
        let args = [
            (&raw mut ends) as c_long,
            libc::O_CLOEXEC.into(),
            0,
            0,
            0,
            0,
        ];
        // SAFETY: two words.
        unsafe { raw::checked(libc::SYS_pipe2, args) }.ok()?;
        let [parent, child] = ends.map(owned).map(raised);
        Some(Self { parent, child })
    }

    /// There is a child: [`wait`] waits for it.
    pub fn keep_in_parent(self) {
        let parent = OwnedFd::from(self.parent).into_raw_fd();
        WAITS.store(parent, SeqCst);
    }

    /// In the child, after [`leave`].
    pub fn keep_in_child(self) {
        let child = OwnedFd::from(self.child).into_raw_fd();
        HELD_INODE.store(inode(child).unwrap_or(0), SeqCst);
        HELD.store(child, SeqCst);
    }
}

/// In each child, first: what its parent has of such a pipe is the parent's alone.
pub fn leave() {
    let held = HELD.swap(NONE, SeqCst);
    // The program may have closed it, and the number is another's then.
    if held != NONE && inode(held) == Some(HELD_INODE.load(SeqCst)) {
        drop(owned(held));
    }
}

/// What this thread has to wait for, and whose turn it is no more. Taken in its turn.
pub struct Wait(Option<Descriptor>);

pub fn take() -> Wait {
    let end = WAITS.swap(NONE, SeqCst);
    Wait((end != NONE).then(|| owned(end)))
}

impl Wait {
    /// Until the child has execed or ended. All signals are blocked, as in the kernel's wait.
    pub fn wait(self) {
        let Some(end) = self.0 else {
            return;
        };
        let mut byte = 0u8;
        let args = [number(&end).into(), (&raw mut byte) as c_long, 1, 0, 0, 0];
        // SAFETY: one byte, of this thread's stack. Nobody writes any.
        while unsafe { raw::call(libc::SYS_read, args) } == -c_long::from(libc::EINTR) {}
    }
}
