//! All that the pager asks of the system, as one trait.
//!
//! [`SystemKernel`](crate::system_kernel::SystemKernel) is the real one. A second one, in memory, serves tests and simulations of the pager: it
//! sees every call, gives every time and makes every fault. So the pager has no other clock, no other
//! thread and no other system call than these. Dispatch is static: the fault path pays nothing.
//!
//! Protocol: memory calls work from the first instruction of the process on. Calls that need descriptors
//! ([`read_faults`](Kernel::read_faults) up to [`read_memory`](Kernel::read_memory)) work from
//! [`open`](Kernel::open) on; a forked child opens its own.
//!
//! Not here, as no simulator has to replace it:
//!
//! - what the tree (`ebb_tree`) and the stores ask of the system: those seams are theirs
//! - the internal heap, which allocates for the pager as any allocator does for a program
//! - numbers and types without a question: page size, rounding, [`Errno`]
//! - `robust` locks of children that share memory, which are words of that memory
//! - the areas of a `process_madvise`, which lie in the caller's memory

use crate::Errno;
use crate::kernel::PAGE;
use crate::pagemap::Mapped;
use crate::program::Gone;
pub use crate::thread::Entry;
use crate::thread::{TaskName, Urgency};
use crate::userfaultfd::Fault;
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// A call without a protection key: memory keeps the one it has.
pub const NO_KEY: i32 = -1;

/// A moment: the time since some fixed one, the same in all processes. It never goes back.
pub type Time = Duration;

/// The descriptors by which a helper serves its program, opened by somebody else for one that may not do so itself.
pub struct MemoryDescriptors {
    /// `/dev/userfaultfd`, to open a userfaultfd by and close at once.
    pub device: OwnedFd,
    /// `/proc/self/pagemap`.
    pub pagemap: OwnedFd,
    /// `/proc/self/mem`, to read.
    pub memory: OwnedFd,
}

/// The system, as the pager sees it. Addresses are those of the program.
#[allow(clippy::missing_errors_doc)] // Errors are the kernel's, as the manual page of each call names them.
pub trait Kernel: Sync + Sized + 'static {
    // Clock and threads.

    /// The time now.
    fn now(&self) -> Time;
    /// Processor time that the calling thread has used. A system call.
    fn worked(&self) -> Duration;
    /// Lets so much time pass.
    fn sleep(&self, time: Duration);
    /// Waits until `word` is not `seen`, or it is woken, or the time is over.
    fn wait_word(&self, word: &AtomicU32, seen: u32, timeout: Option<Duration>);
    /// Wakes so many who wait for `word`.
    fn wake_word(&self, word: &AtomicU32, count: i32);
    /// Waits for news of the tree, for so long: `wait` does it, and returns another number than `seen` if there is
    /// some. A simulation calls it with no time, again and again.
    fn wait_for_news(
        &self,
        seen: u32,
        timeout: Duration,
        mut wait: impl FnMut(Duration) -> u32,
    ) -> u32 {
        let _ = seen;
        wait(timeout)
    }
    /// The calling thread's number.
    fn thread(&self) -> u32;
    /// The calling process's number.
    fn process(&self) -> u32;
    /// Whether the calling thread is one of the pager's, not of the program's.
    fn is_own_thread(&self) -> bool;
    /// Runs `f` on a stack that is never paged, with all signals blocked. Its result is plain: nothing that the
    /// heap holds may be dropped where a signal may come.
    fn on_own_stack<R: Copy + 'static, F: FnOnce() -> R + 'static>(&self, f: F) -> R;
    /// Whether the caller is on such a stack.
    fn is_on_own_stack(&self) -> bool;
    /// The processor of the calling thread.
    fn cpu(&self) -> usize;
    /// The processor on which a thread of the program last ran.
    fn cpu_of(&self, thread: u32) -> Option<usize>;
    /// The processors that the process may use.
    fn allowed_cpus(&self) -> Vec<usize>;
    /// Processors that are online.
    fn processors(&self) -> usize;
    /// Threads of the whole system that want to run.
    fn running(&self) -> Option<usize>;
    /// The memory node of each processor.
    fn nodes(&self) -> Vec<u16>;
    /// Binds the calling thread to one processor. Its transfers keep the priority that they have now, whatever its
    /// urgency is later.
    fn bind(&self, cpu: usize);
    /// Sets how a thread competes for its processor; whether that is permitted.
    fn set_urgency(&self, thread: u32, urgency: Urgency) -> bool;
    /// Asks for turns of the processor that are short and come soon, for the calling thread.
    fn short_slice(&self);
    /// Starts a service thread, trying again for `patience` where the system refuses it; its number.
    fn spawn(&self, entry: Entry, index: usize, patience: Duration) -> Result<u32, Errno>;
    /// Ends the calling service thread.
    fn end_thread(&self) -> !;
    /// Names the calling thread.
    fn name_thread(&self, name: TaskName);
    /// Starts the helper, trying again for `patience` where the system refuses it.
    fn start_helper(&self, entry: Entry, patience: Duration) -> Result<(), Errno>;
    /// Standard error, by device and inode.
    fn standard_error(&self) -> Option<(u64, u64)>;
    /// Writes a line there, as far as that goes.
    fn write_standard_error(&self, line: &[u8]);
    /// On the helper's first task: watches the program, so that its end is news. Refused where nobody can.
    fn watch_program(&self) -> Result<(), Errno>;
    /// The program's number.
    fn program(&self) -> u32;
    /// Whether the program has such a thread. Where nothing tells: yes.
    fn thread_lives(&self, _thread: u32) -> bool {
        true
    }
    /// Processor time that the program's threads have used; none: it is not known.
    fn program_time(&self) -> Option<Duration> {
        None
    }
    /// A descriptor of the program, once it is watched, for the supervisor.
    fn program_pidfd(&self) -> Option<BorrowedFd<'static>>;
    /// A word that changes when the program ends, and its value while it lives; none: nobody tells.
    fn program_word(&self) -> Option<(&'static AtomicU32, u32)>;
    /// On the helper's first task: finds its own `/proc`; in a forked child by that of its parent's keeper.
    fn find_proc(&self, parent_keeper: Option<u32>);
    /// Opens what another task has by a number.
    fn reopen(&self, task: u32, fd: i32) -> Result<OwnedFd, Errno>;
    /// A variable of the environment that the process began with.
    fn setting(&self, name: &CStr) -> Option<CString>;
    /// Whether the helper lives.
    fn helper_lives(&self) -> bool;
    /// Ends the helper, of which the calling thread is.
    fn end_helper(&self) -> !;
    /// Whether the program of this helper is gone, and why.
    fn program_is_gone(&self) -> Option<Gone>;
    /// Ends the program.
    fn kill_program(&self);
    /// On a thread of the program's: ends it, with all of its threads.
    fn die(&self) -> !;
    /// On a thread of the pager's: becomes the user that the program has become.
    fn follow_user(&self);
    /// Whether a user is among the calling thread's real, effective and saved ones.
    fn has_user(&self, user: u32) -> bool;
    /// On a thread of the program's, which became another user: all threads of the pager's follow, woken by `wake`.
    /// The reason why one may have the former rights still, if so: the process must end.
    fn user_changed(&self, wake: impl Fn()) -> Result<(), String>;
    /// Before the program runs: its number and its threads are known from now on.
    fn begin(&self);
    /// In a forked child, first: stacks, threads and the program's number are made its own.
    fn reset_in_child(&self);

    // Faults, and the pages that they are about.

    /// Opens the descriptors, those of this process.
    fn open(&self) -> Result<(), String>;
    /// The same with those that somebody else opened.
    fn open_given(&self, given: MemoryDescriptors) -> Result<(), String>;
    /// The descriptor that faults come from, to be given to the supervisor.
    fn faults(&self) -> Option<BorrowedFd<'_>>;
    /// Reads faults, as many as there are and fit; does not wait.
    fn read_faults<'a>(&self, out: &'a mut [Fault]) -> Result<&'a [Fault], Errno>;
    /// Waits for faults to be there, so long at most; whether there are any. Less long, where others follow a change
    /// of user.
    fn has_faults(&self, timeout_ms: i32) -> bool;
    /// Missing pages of this memory are faults from now on.
    fn register(&self, start: usize, len: usize) -> Result<(), Errno>;
    /// Ends that.
    fn unregister(&self, start: usize, len: usize) -> Result<(), Errno>;
    /// Fills missing pages: see [`Userfaultfd::copy`].
    fn copy(&self, to: usize, from: &[u8], protect: bool, wake: bool)
    -> (usize, Result<(), Errno>);
    /// Moves pages: see [`Userfaultfd::move_pages`].
    ///
    /// # Safety
    /// Nobody needs the pages where they are, and the target is the caller's.
    unsafe fn move_pages(&self, to: usize, from: usize, len: usize) -> (usize, Result<(), Errno>);
    /// Protects present pages from writes, or lets them be written. Who waits for that is to be woken.
    fn protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno>;
    /// Writes to a page of the program what it holds: it is the process's own from then on, and no relative's. False: it
    /// has gone, or is protected. Waits for nobody; populating it would wait for its page.
    fn own_page(&self, page: usize) -> bool {
        // In a kernel in memory that waits for nobody either: it passes over what is missing.
        // SAFETY: populating changes no content.
        unsafe { self.madvise(page, PAGE, libc::MADV_POPULATE_WRITE) }.is_ok()
    }
    /// Whether a page lies in registered memory: see [`Userfaultfd::is_registered`].
    fn is_registered(&self, page: usize) -> bool;
    /// Lets threads that wait for these pages try again.
    fn wake_pages(&self, start: usize, len: usize);
    /// Makes missing pages fatal to touch.
    fn poison(&self, start: usize, len: usize);
    /// What is behind up to 64 pages; none: they cannot be looked at.
    fn try_look(&self, start: usize, pages: usize) -> Option<Mapped>;
    /// Calls `found` for each run of present pages.
    fn scan(&self, start: usize, end: usize, found: impl FnMut(usize, usize)) -> Result<(), Errno>;
    /// Counts pages that other processes map too.
    fn shared(&self, start: usize, end: usize) -> usize;
    /// Reads memory of the program, whatever its protection; false: not all of it is there.
    fn read_memory(&self, start: usize, out: &mut [u8]) -> bool;

    // Memory calls.

    /// `mmap(2)`.
    ///
    /// # Safety
    /// As the system call, here and below.
    unsafe fn mmap(
        &self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> Result<usize, Errno>;
    /// `munmap(2)`.
    ///
    /// # Safety
    /// As the system call.
    unsafe fn munmap(&self, addr: usize, len: usize) -> Result<(), Errno>;
    /// `mremap(2)`.
    ///
    /// # Safety
    /// As the system call.
    unsafe fn mremap(
        &self,
        old: usize,
        old_len: usize,
        new_len: usize,
        flags: i32,
        new: usize,
    ) -> Result<usize, Errno>;
    /// `mprotect(2)`.
    ///
    /// # Safety
    /// As the system call.
    unsafe fn mprotect(&self, addr: usize, len: usize, prot: i32) -> Result<(), Errno>;
    /// `pkey_mprotect(2)`, with [`NO_KEY`] as `mprotect(2)`.
    ///
    /// # Safety
    /// As the system call.
    unsafe fn pkey_mprotect(
        &self,
        addr: usize,
        len: usize,
        prot: i32,
        key: i32,
    ) -> Result<(), Errno>;
    /// `madvise(2)`.
    ///
    /// # Safety
    /// As the system call.
    unsafe fn madvise(&self, addr: usize, len: usize, advice: i32) -> Result<(), Errno>;
    /// `process_madvise(2)`.
    ///
    /// # Safety
    /// As the system call.
    unsafe fn process_madvise(
        &self,
        process: i32,
        areas: *const libc::iovec,
        count: usize,
        advice: i32,
        flags: u32,
    ) -> Result<usize, Errno>;
    /// `brk(2)`, as the system call has it.
    ///
    /// # Safety
    /// As the system call.
    unsafe fn brk(&self, addr: usize) -> usize;
    /// Bytes of a regular file of the program's that lies on a disk; none for all else.
    fn file_size(&self, _fd: i32) -> Option<u64> {
        None
    }
    /// Reads of such a file, until `len` bytes from `to` on are full or the file ends: the bytes read. That memory is the
    /// program's, and may be written. It is not registered, or the caller is a thread of the program that holds no lock.
    ///
    /// # Safety
    /// Nobody else uses the memory.
    unsafe fn read_file(
        &self,
        _fd: i32,
        _offset: u64,
        _to: usize,
        _len: usize,
    ) -> Result<usize, Errno> {
        Err(Errno(libc::EBADF))
    }
    /// Such a file among memory of the pager's own, to be read. A forked child has it too.
    fn map_file(&self, _fd: i32, _offset: u64, _len: usize) -> Result<usize, Errno> {
        Err(Errno(libc::EBADF))
    }
    /// Such a mapping, or a part of it, was moved to another place.
    fn let_file_go(&self, _start: usize, _len: usize) {}
    /// Unmaps such a mapping, or a part of it.
    ///
    /// # Safety
    /// Nobody uses it.
    unsafe fn unmap_file(&self, _start: usize, _len: usize) {}
    /// `mlock2(2)`.
    fn mlock(&self, addr: usize, len: usize, flags: i32) -> Result<(), Errno>;
    /// `munlock(2)`.
    fn munlock(&self, addr: usize, len: usize) -> Result<(), Errno>;
    /// `mlockall(2)`.
    fn mlockall(&self, flags: i32) -> Result<(), Errno>;
    /// `munlockall(2)`.
    fn munlockall(&self) -> Result<(), Errno>;
    /// New memory of the pager's own; a forked child has none of it.
    fn reserve_alone(&self, len: usize) -> Result<usize, Errno>;
    /// The same, which the child has too.
    fn reserve(&self, len: usize) -> Result<usize, Errno>;
    /// Whether the program has a limit of addresses or of data, which memory of the pager's own counts against.
    fn has_limited_memory(&self) -> bool {
        false
    }
    /// A word that is zero in each forked child; none where the system refuses it.
    fn word_of_process(&self) -> Option<&'static AtomicU32>;
    /// Calls `act` while no memory of ours is mapped, if none lies in `range`; else the first part that does.
    /// `act` allocates nothing.
    fn apart_from_own<T>(
        &self,
        range: Range<usize>,
        act: impl FnOnce() -> T,
    ) -> Result<T, Range<usize>>;
    /// Drops runs of pages, (address, bytes), with one flush for all; whether all went.
    ///
    /// # Safety
    /// Nobody needs the content.
    unsafe fn drop_pages(&self, runs: &[(usize, usize)]) -> bool;
    /// Gives whole pages of memory of the pager's own back to the system: they read as zeros.
    fn give_back(&self, bytes: &mut [u8]);
    /// So many bytes of zeros for the pager itself, which cost memory as they are written. None: there are no addresses.
    fn zeros(&self, bytes: usize) -> Option<Box<[u8]>> {
        crate::memory::zeros(bytes)
    }
    /// Memory of the pager's own is about to be read.
    fn prefetch(&self, bytes: &[u8]);
    /// Gives what the internal heap holds and does not use back to the system.
    fn give_heap_back(&self);
    /// The same of the calling task's stack.
    fn give_stack_back(&self) {}
    /// Writes to memory of the program that is mapped and may be written. It is not registered, or the caller is a thread
    /// of the program that holds no lock. `keyed`: it has a protection key, which may keep the caller from it.
    ///
    /// # Safety
    /// Nobody else uses it.
    unsafe fn write_memory(&self, to: usize, from: &[u8], keyed: bool);

    // Measures.

    /// Pages of anonymous memory that are resident.
    fn resident_anonymous_pages(&self) -> Option<u64>;
    /// Pages of page tables.
    fn table_pages(&self) -> Option<u64>;
    /// Pages pinned for long.
    fn pinned_pages(&self) -> Option<u64>;
}
