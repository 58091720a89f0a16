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

use ebb_sys::raw;

/// A descriptor, closed when dropped. libc's `close` would be a point where the thread can be cancelled.
struct Descriptor(c_int);

impl Descriptor {
    /// The same above those that programs count on, where the limit allows it.
    fn raised(self) -> Self {
        const ABOVE: c_long = 512;
        let args = [self.0.into(), libc::F_DUPFD_CLOEXEC.into(), ABOVE, 0, 0, 0];
        // SAFETY: no pointers.
        match unsafe { raw::checked(libc::SYS_fcntl, args) } {
            Ok(fd) => Self(fd as c_int),
            Err(_) => self,
        }
    }

    /// The number of its file, if it is open.
    fn inode(&self) -> Option<u64> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        let args = [self.0.into(), stat.as_mut_ptr() as c_long, 0, 0, 0, 0];
        // SAFETY: the kernel's structure, filled on success.
        unsafe {
            raw::checked(libc::SYS_fstat, args).ok()?;
            Some(stat.assume_init().st_ino)
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: a descriptor of ours.
        unsafe { raw::call(libc::SYS_close, [self.0.into(), 0, 0, 0, 0, 0]) };
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
        let [parent, child] = ends.map(Descriptor);
        Some(Self {
            parent: parent.raised(),
            child: child.raised(),
        })
    }

    /// There is a child: [`wait`] waits for it.
    pub fn keep_in_parent(self) {
        WAITS.store(self.parent.0, SeqCst);
        core::mem::forget(self.parent);
    }

    /// In the child, after [`leave`].
    pub fn keep_in_child(self) {
        HELD_INODE.store(self.child.inode().unwrap_or(0), SeqCst);
        HELD.store(self.child.0, SeqCst);
        core::mem::forget(self.child);
    }
}

/// In each child, first: what its parent has of such a pipe is the parent's alone.
pub fn leave() {
    let held = HELD.swap(NONE, SeqCst);
    if held != NONE {
        let held = Descriptor(held);
        if held.inode() != Some(HELD_INODE.load(SeqCst)) {
            // The program closed it, and the number is another's.
            core::mem::forget(held);
        }
    }
}

/// What this thread has to wait for, and whose turn it is no more. Taken in its turn.
pub struct Wait(Option<Descriptor>);

pub fn take() -> Wait {
    let end = WAITS.swap(NONE, SeqCst);
    Wait((end != NONE).then_some(Descriptor(end)))
}

impl Wait {
    /// Until the child has execed or ended. All signals are blocked, as in the kernel's wait.
    pub fn wait(self) {
        let Some(end) = self.0 else {
            return;
        };
        let mut byte = 0u8;
        let args = [end.0.into(), (&raw mut byte) as c_long, 1, 0, 0, 0];
        // SAFETY: one byte, of this thread's stack. Nobody writes any.
        while unsafe { raw::call(libc::SYS_read, args) } == -c_long::from(libc::EINTR) {}
    }
}
