//! [`SystemKernel`]: the kernel that this process runs on.
//!
//! Descriptors are opened by the keeper, and by that of each forked child anew: until then only memory calls, clock and
//! threads work. They are never closed, as service threads may wait on them.
//!
//! Not here: what the calls mean ([`Kernel`]).

use crate::interruption::Interruption;
use crate::io::aio_context::WATCHERS;
use crate::memory::own::OWN;
use crate::memory_file::MemoryFile;
use crate::pagemap::{Mapped, PageMapFile};
use crate::paging::{Kernel, MemoryDescriptors, NO_KEY, Time};
use crate::program::{self, Gone};
use crate::thread::{self, Entry, TaskName, Urgency};
use crate::userfaultfd::{Fault, Userfaultfd};
use crate::{Errno, clock, credentials, file, futex, heap, memory, proc, raw, secret, stack};
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

/// The kernel that this process runs on.
pub struct SystemKernel {
    /// Null before [`open`](Kernel::open).
    descriptors: AtomicPtr<Descriptors>,
}

struct Descriptors {
    fault: Userfaultfd,
    pagemap: PageMapFile,
    memory: MemoryFile,
    /// The interruption of waits for faults.
    interruption: Interruption,
    /// The program of whose helper they are: in a forked child the numbers mean other files.
    program: u32,
}

impl Default for SystemKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl SystemKernel {
    /// Without descriptors yet.
    pub const fn new() -> Self {
        Self {
            descriptors: AtomicPtr::new(null_mut()),
        }
    }

    fn interruption() -> Result<Interruption, String> {
        Interruption::new().map_err(|e| format!("cannot open an eventfd: {e}"))
    }

    fn has_opened(&self, descriptors: Descriptors) {
        // Locks on memory are not inherited. Where it was never forked this changes nothing.
        secret::relock();
        let opened = Box::leak(Box::new(descriptors));
        self.descriptors.store(opened, Ordering::Release);
    }

    #[cold]
    fn interrupt_waits(&self) {
        // SAFETY: null, or leaked by `open`.
        let descriptors = unsafe { self.descriptors.load(Ordering::Acquire).as_ref() };
        if let Some(ours) = descriptors.filter(|d| d.program == program::pid()) {
            ours.interruption.raise();
        }
    }

    #[inline(always)]
    fn descriptors(&self) -> &Descriptors {
        // SAFETY: null, or leaked by `open`.
        let descriptors = unsafe { self.descriptors.load(Ordering::Acquire).as_ref() };
        descriptors.expect("opened before the first fault")
    }
}

impl Kernel for SystemKernel {
    #[inline(always)]
    fn now(&self) -> Time {
        Duration::from_nanos(clock::monotonic_ns())
    }
    fn worked(&self) -> Duration {
        clock::of_thread()
    }
    fn sleep(&self, time: Duration) {
        clock::sleep(time);
    }
    #[inline]
    fn wait_word(&self, word: &AtomicU32, seen: u32, timeout: Option<Duration>) {
        futex::wait(word, seen, timeout, false);
    }
    #[inline]
    fn wake_word(&self, word: &AtomicU32, count: i32) {
        futex::wake(word, count, false);
    }
    #[inline]
    fn thread(&self) -> u32 {
        thread::id()
    }
    fn process(&self) -> u32 {
        std::process::id()
    }
    #[inline(always)]
    fn is_own_thread(&self) -> bool {
        thread::is_ours()
    }
    #[inline(always)]
    fn on_own_stack<R: Copy + 'static, F: FnOnce() -> R + 'static>(&self, f: F) -> R {
        stack::borrow(f)
    }
    fn is_on_own_stack(&self) -> bool {
        stack::is_borrowed()
    }
    #[inline]
    fn cpu(&self) -> usize {
        thread::cpu()
    }
    fn cpu_of(&self, thread: u32) -> Option<usize> {
        thread::cpu_of(thread)
    }
    fn allowed_cpus(&self) -> Vec<usize> {
        thread::allowed_cpus()
    }
    fn processors(&self) -> usize {
        thread::processors()
    }
    fn running(&self) -> Option<usize> {
        let watchers = WATCHERS.load(Ordering::Relaxed) as usize;
        Some(proc::running_threads()?.saturating_sub(watchers))
    }
    fn nodes(&self) -> Vec<u16> {
        thread::nodes()
    }
    fn bind(&self, cpu: usize) {
        // Where it cannot be bound, it serves from elsewhere.
        let _ = thread::bind(cpu);
        thread::keep_transfer_priority();
    }
    fn short_slice(&self) {
        thread::short_slice();
    }
    fn set_urgency(&self, thread: u32, urgency: Urgency) -> bool {
        thread::set_urgency(thread, urgency).is_ok()
    }
    fn spawn(&self, entry: Entry, index: usize, patience: Duration) -> Result<u32, Errno> {
        thread::spawn(entry, index, patience)
    }
    fn end_thread(&self) -> ! {
        thread::end()
    }
    fn name_thread(&self, name: TaskName) {
        thread::set_name(name);
    }
    fn start_helper(&self, entry: Entry, patience: Duration) -> Result<(), Errno> {
        thread::start_helper(entry, 0, patience)
    }
    fn standard_error(&self) -> Option<(u64, u64)> {
        // SAFETY: one structure of ours, of which zeros are a value, is filled.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            let args = [2, (&raw mut stat) as libc::c_long, 0, 0, 0, 0];
            (raw::call(libc::SYS_fstat, args) == 0).then_some((stat.st_dev, stat.st_ino))
        }
    }
    fn write_standard_error(&self, line: &[u8]) {
        file::write_standard_error(line);
    }
    fn watch_program(&self) -> Result<(), Errno> {
        program::watch()?;
        crate::process::end_watch::begin();
        Ok(())
    }
    fn program(&self) -> u32 {
        program::pid()
    }
    fn thread_lives(&self, thread: u32) -> bool {
        program::has_thread(thread)
    }
    fn program_time(&self) -> Option<Duration> {
        program::time()
    }
    fn program_pidfd(&self) -> Option<BorrowedFd<'static>> {
        program::pidfd()
    }
    fn program_word(&self) -> Option<(&'static AtomicU32, u32)> {
        program::word()
    }
    fn find_proc(&self, parent_keeper: Option<u32>) {
        proc::find_directory(parent_keeper);
    }
    fn reopen(&self, task: u32, fd: i32) -> Result<OwnedFd, Errno> {
        proc::reopen(task, fd).map_err(|error| Errno(error.raw_os_error()))
    }
    #[unsafe(link_section = ".text.startup")]
    fn setting(&self, name: &CStr) -> Option<CString> {
        // Without the lock of Rust's library: two page faults fewer as a program starts.
        // SAFETY: a name that ends; as with any use of the environment, no other thread changes it meanwhile.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        // SAFETY: not null: a string that ends, and stays while nobody changes the environment.
        (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_owned())
    }
    fn helper_lives(&self) -> bool {
        thread::helper_lives()
    }
    fn end_helper(&self) -> ! {
        thread::end_helper()
    }
    fn program_is_gone(&self) -> Option<Gone> {
        program::is_gone()
    }
    fn kill_program(&self) {
        program::kill();
    }
    fn die(&self) -> ! {
        // SAFETY: raising a signal. The first process of a PID namespace cannot send it to itself: that one
        // exits, with all of its threads.
        unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
            libc::_exit(128 + libc::SIGKILL)
        }
    }
    #[inline]
    fn follow_user(&self) {
        if credentials::follow() {
            self.interrupt_waits();
        }
    }
    fn has_user(&self, user: u32) -> bool {
        credentials::users().contains(&user)
    }
    fn user_changed(&self, wake: impl Fn()) -> Result<(), String> {
        credentials::changed(wake)
    }
    // Beside the library's constructor, which calls it in every process.
    #[unsafe(link_section = ".text.startup")]
    fn begin(&self) {
        program::begin();
        thread::prepare();
    }
    fn reset_in_child(&self) {
        program::begin();
        thread::reset_in_child();
        stack::reset_in_child();
    }

    fn open(&self) -> Result<(), String> {
        // A program of root's that is another user for a while has what it may open as root.
        credentials::as_user(0, || {
            let fault = Userfaultfd::open().map_err(|e| e.to_string())?;
            let pagemap =
                PageMapFile::open().map_err(|e| format!("cannot open /proc/self/pagemap: {e}"))?;
            let memory =
                MemoryFile::open().map_err(|e| format!("cannot open /proc/self/mem: {e}"))?;
            self.has_opened(Descriptors {
                fault,
                pagemap,
                memory,
                interruption: Self::interruption()?,
                program: program::pid(),
            });
            Ok(())
        })
    }
    fn open_given(&self, given: MemoryDescriptors) -> Result<(), String> {
        let fault = Userfaultfd::open_through(&given.device.into()).map_err(|e| e.to_string())?;
        self.has_opened(Descriptors {
            fault,
            pagemap: PageMapFile::given(given.pagemap),
            memory: MemoryFile::given(given.memory),
            interruption: Self::interruption()?,
            program: program::pid(),
        });
        Ok(())
    }
    fn faults(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptors().fault.as_fd())
    }
    #[inline]
    fn read_faults<'a>(&self, out: &'a mut [Fault]) -> Result<&'a [Fault], Errno> {
        self.descriptors().fault.read(out)
    }
    #[inline]
    fn has_faults(&self, timeout_ms: i32) -> bool {
        let descriptors = self.descriptors();
        match timeout_ms {
            0 => descriptors.fault.wait(0),
            _ => {
                let timeout = Duration::from_millis(timeout_ms as u64);
                let interruption = &descriptors.interruption;
                interruption.wait_beside(&descriptors.fault, timeout)
            }
        }
    }
    fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.descriptors().fault.register(start, len)
    }
    fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.descriptors().fault.unregister(start, len)
    }
    #[inline]
    fn copy(
        &self,
        to: usize,
        from: &[u8],
        protect: bool,
        wake: bool,
    ) -> (usize, Result<(), Errno>) {
        self.descriptors().fault.copy(to, from, protect, wake)
    }
    #[inline]
    unsafe fn move_pages(&self, to: usize, from: usize, len: usize) -> (usize, Result<(), Errno>) {
        // SAFETY: passed on to the caller.
        unsafe { self.descriptors().fault.move_pages(to, from, len) }
    }
    #[inline]
    fn protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        self.descriptors().fault.protect(start, len, on)
    }
    fn own_page(&self, page: usize) -> bool {
        futex::rewrite(page).is_ok()
    }
    #[inline]
    fn is_registered(&self, page: usize) -> bool {
        self.descriptors().fault.is_registered(page)
    }
    #[inline]
    fn wake_pages(&self, start: usize, len: usize) {
        // Unmapped meanwhile: nobody waits there.
        let _ = self.descriptors().fault.wake(start, len);
    }
    fn poison(&self, start: usize, len: usize) {
        // Unmapped meanwhile: nobody can touch it.
        let _ = self.descriptors().fault.poison(start, len);
    }
    #[inline]
    fn try_look(&self, start: usize, pages: usize) -> Option<Mapped> {
        self.descriptors().pagemap.try_look(start, pages)
    }
    fn scan(&self, start: usize, end: usize, found: impl FnMut(usize, usize)) -> Result<(), Errno> {
        self.descriptors().pagemap.present(start, end, found)
    }
    fn shared(&self, start: usize, end: usize) -> usize {
        self.descriptors().pagemap.shared(start, end)
    }
    fn read_memory(&self, start: usize, out: &mut [u8]) -> bool {
        self.descriptors().memory.read(start, out).is_ok()
    }

    #[inline]
    unsafe fn mmap(
        &self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> Result<usize, Errno> {
        // SAFETY: passed on to the caller, here and below.
        unsafe { memory::mmap(addr, len, prot, flags, fd, offset) }
    }
    #[inline]
    unsafe fn munmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: as above.
        unsafe { memory::munmap(addr, len) }
    }
    #[inline]
    unsafe fn mremap(
        &self,
        old: usize,
        old_len: usize,
        new_len: usize,
        flags: i32,
        new: usize,
    ) -> Result<usize, Errno> {
        // SAFETY: as above.
        unsafe { memory::mremap(old, old_len, new_len, flags, new) }
    }
    #[inline]
    unsafe fn mprotect(&self, addr: usize, len: usize, prot: i32) -> Result<(), Errno> {
        // SAFETY: as above.
        unsafe { memory::mprotect(addr, len, prot) }
    }
    unsafe fn pkey_mprotect(
        &self,
        addr: usize,
        len: usize,
        prot: i32,
        key: i32,
    ) -> Result<(), Errno> {
        // SAFETY: as above. Without a key it is the plain call, which filters of the program's know.
        unsafe {
            match key {
                NO_KEY => memory::mprotect(addr, len, prot),
                _ => memory::pkey_mprotect(addr, len, prot, key),
            }
        }
    }
    #[inline]
    unsafe fn madvise(&self, addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
        // SAFETY: as above.
        unsafe { memory::madvise(addr, len, advice) }
    }
    unsafe fn process_madvise(
        &self,
        process: i32,
        areas: *const libc::iovec,
        count: usize,
        advice: i32,
        flags: u32,
    ) -> Result<usize, Errno> {
        // SAFETY: as above.
        unsafe { memory::process_madvise(process, areas, count, advice, flags) }
    }
    #[inline]
    unsafe fn brk(&self, addr: usize) -> usize {
        // SAFETY: as above.
        unsafe { memory::brk(addr) }
    }
    fn mlock(&self, addr: usize, len: usize, flags: i32) -> Result<(), Errno> {
        memory::mlock(addr, len, flags)
    }
    fn munlock(&self, addr: usize, len: usize) -> Result<(), Errno> {
        memory::munlock(addr, len)
    }
    fn mlockall(&self, flags: i32) -> Result<(), Errno> {
        memory::mlockall(flags)
    }
    fn munlockall(&self) -> Result<(), Errno> {
        memory::munlockall()?;
        secret::lock_again();
        Ok(())
    }
    fn reserve_alone(&self, len: usize) -> Result<usize, Errno> {
        memory::reserve_alone(len)
    }
    fn has_limited_memory(&self) -> bool {
        memory::heap::is_limited()
    }
    fn word_of_process(&self) -> Option<&'static AtomicU32> {
        program::word_of_process()
    }
    fn reserve(&self, len: usize) -> Result<usize, Errno> {
        memory::reserve(len)
    }
    fn apart_from_own<T>(
        &self,
        range: Range<usize>,
        act: impl FnOnce() -> T,
    ) -> Result<T, Range<usize>> {
        OWN.apart(range, act)
    }
    #[inline]
    unsafe fn drop_pages(&self, runs: &[(usize, usize)]) -> bool {
        // SAFETY: as above.
        unsafe { memory::drop_pages(runs) }
    }
    #[inline]
    fn give_back(&self, bytes: &mut [u8]) {
        memory::give_back(bytes);
    }
    #[inline(always)]
    fn prefetch(&self, bytes: &[u8]) {
        memory::prefetch(bytes);
    }
    fn give_heap_back(&self) {
        heap::InternalHeap::give_back();
    }
    fn give_stack_back(&self) {
        crate::process::task::give_stack_back();
    }
    fn file_size(&self, fd: i32) -> Option<u64> {
        file::size_on_disk(fd)
    }
    unsafe fn read_file(
        &self,
        fd: i32,
        offset: u64,
        to: usize,
        len: usize,
    ) -> Result<usize, Errno> {
        // SAFETY: by the caller's contract the memory is there, and nobody else's.
        let into = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, len) };
        file::read_up_to(programs_file(fd), into, offset)
            .map_err(|error| Errno(error.raw_os_error()))
    }
    fn map_file(&self, fd: i32, offset: u64, len: usize) -> Result<usize, Errno> {
        OWN.map_private_file(programs_file(fd), offset, len)
    }
    fn let_file_go(&self, start: usize, len: usize) {
        OWN.let_go(start, len);
    }
    unsafe fn unmap_file(&self, start: usize, len: usize) {
        // SAFETY: as above.
        let _ = unsafe { OWN.unmap(start, len) };
    }
    unsafe fn write_memory(&self, to: usize, from: &[u8], keyed: bool) {
        // The system's own writes heed no key.
        if keyed && memory::write_own(to, from).is_ok() {
            return;
        }
        // SAFETY: by the caller's contract the memory is there and nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
    }

    fn resident_anonymous_pages(&self) -> Option<u64> {
        proc::resident_anonymous_pages()
    }
    fn table_pages(&self) -> Option<u64> {
        proc::table_pages()
    }
    fn pinned_pages(&self) -> Option<u64> {
        proc::pinned_pages()
    }
}

/// A descriptor that the program gave with a call, for the time of that call.
fn programs_file(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: used for calls alone, which say so if it is none.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
