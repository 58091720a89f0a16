//! A kernel in memory: page tables as maps, several processes, faults at will.
//!
//! Pages of the program lie in the kernel's tables. Memory of the pager's own ([`Kernel::reserve`]) has host
//! memory behind it as well, since the pager reads staged frames by their addresses.

use ebb_sys::Errno;
use ebb_sys::memory::page_up;
use ebb_sys::pagemap::Mapped;
use ebb_sys::paging::{Entry, Kernel, Time};
use ebb_sys::program::Gone;
use ebb_sys::thread::{TaskName, Urgency};
use ebb_sys::userfaultfd::Fault;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

pub const PAGE: usize = 4096;
type Bytes = Arc<[u8; PAGE]>;

/// A page that is there.
#[derive(Clone)]
struct Present {
    bytes: Bytes,
    protected: bool,
    pinned: bool,
}

/// A mapped page's mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mapping {
    /// Pages of one call have one number.
    number: u32,
    prot: i32,
    registered: bool,
    /// Bytes of the pager's own, with host memory behind.
    own: bool,
}

/// Why a touch did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The thread waits for service.
    Waits,
    /// SIGSEGV.
    Unmapped,
    /// SIGBUS.
    Poisoned,
}

#[derive(Clone, Default)]
struct Process {
    mappings: BTreeMap<usize, Mapping>,
    pages: BTreeMap<usize, Present>,
    poisoned: BTreeSet<usize>,
    numbers: u32,
    next: usize,
    heap_end: usize,
    faults: VecDeque<Fault>,
    /// Faults read or not, whose threads wait.
    waiting: Vec<Fault>,
}

/// See the module.
pub struct MemoryKernel {
    process: Mutex<Process>,
    /// Relatives that were forked: they share pages, and have no pager.
    children: Mutex<Vec<Process>>,
    ns: AtomicU64,
    /// The calling thread is one of the pager's.
    pub is_own: AtomicBool,
    /// Pages that the system will still refuse.
    pub refuses: AtomicU32,
    /// Pages pinned for long.
    pub pinned_for_long: AtomicU64,
    /// Runs while a thread of the program waits: the keeper's turn.
    pub while_waiting: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

const FIRST: usize = 0x1000_0000_0000;

fn pages_of(start: usize, len: usize) -> impl Iterator<Item = usize> {
    (start..start + page_up(len)).step_by(PAGE)
}

impl MemoryKernel {
    pub fn new() -> Self {
        let process = Process {
            next: FIRST,
            heap_end: 0x2000_0000_0000,
            ..Process::default()
        };
        Self {
            process: Mutex::new(process),
            children: Mutex::default(),
            ns: AtomicU64::new(1_000_000_000),
            is_own: AtomicBool::new(true),
            refuses: AtomicU32::new(0),
            pinned_for_long: AtomicU64::new(0),
            while_waiting: OnceLock::new(),
        }
    }

    /// The program unmaps memory without libc, and memory of the pager's own is mapped into the hole.
    pub fn replace_by_own(&self, start: usize, len: usize) {
        let mut process = self.lock();
        process.unmap(start, len);
        process.map(start, len, 3, true);
    }

    /// Whether missing pages of this memory are faults.
    pub fn is_registered(&self, address: usize) -> bool {
        let mapping = self.lock().mappings.get(&address).copied();
        mapping.is_some_and(|mapping| mapping.registered)
    }

    fn lock(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap()
    }

    /// A thread of the program reads a byte, or writes one.
    pub fn touch(&self, thread: u32, address: usize, write: Option<u8>) -> Result<u8, Stop> {
        let mut process = self.lock();
        let at = address & !(PAGE - 1);
        let mapping = *process.mappings.get(&at).ok_or(Stop::Unmapped)?;
        if process.poisoned.contains(&at) {
            return Err(Stop::Poisoned);
        }
        let fault = |protected| Fault {
            address: at,
            write: write.is_some(),
            protected,
            thread,
        };
        let stop = match process.pages.get(&at) {
            None if mapping.registered => Some(fault(false)),
            None => {
                process.pages.insert(at, Present::new([0; PAGE]));
                None
            }
            Some(page) if page.protected && write.is_some() => Some(fault(true)),
            Some(_) => None,
        };
        if let Some(fault) = stop {
            process.faults.push_back(fault);
            process.waiting.push(fault);
            return Err(Stop::Waits);
        }
        let page = process.pages.get_mut(&at).expect("present by now");
        if let Some(byte) = write {
            Arc::make_mut(&mut page.bytes)[address - at] = byte;
        }
        Ok(page.bytes[address - at])
    }

    /// Whether a thread waits for service.
    pub fn waits(&self, thread: u32) -> bool {
        self.lock().waiting.iter().any(|f| f.thread == thread)
    }

    /// Whether a page is there.
    pub fn is_present(&self, address: usize) -> bool {
        self.lock().pages.contains_key(&(address & !(PAGE - 1)))
    }

    /// The system calls `munmap` and `mmap`, made without libc.
    pub fn map_behind(&self, start: usize, pages: usize) {
        let mut process = self.lock();
        process.unmap(start, pages * PAGE);
        process.map(start, pages * PAGE, 3, false);
    }

    /// Pins a page, as a transfer of a device does.
    pub fn pin(&self, address: usize, on: bool) {
        let mut process = self.lock();
        process.pages.get_mut(&address).expect("present").pinned = on;
    }

    /// Copies the process.
    pub fn fork(&self) {
        let mut child = self.lock().clone();
        child.faults.clear();
        child.waiting.clear();
        for mapping in child.mappings.values_mut() {
            mapping.registered = false;
        }
        for page in child.pages.values_mut() {
            page.protected = false;
        }
        self.children.lock().unwrap().push(child);
    }

    /// A child writes a page, if it has it.
    pub fn child_writes(&self, child: usize, address: usize, byte: u8) {
        let mut children = self.children.lock().unwrap();
        if let Some(page) = children[child].pages.get_mut(&(address & !(PAGE - 1))) {
            Arc::make_mut(&mut page.bytes)[address % PAGE] = byte;
        }
    }

    /// A byte of a child's memory, if it has the page.
    pub fn child_reads(&self, child: usize, address: usize) -> Option<u8> {
        let children = self.children.lock().unwrap();
        let page = children[child].pages.get(&(address & !(PAGE - 1)))?;
        Some(page.bytes[address % PAGE])
    }

    /// All children end.
    pub fn end_children(&self) {
        self.children.lock().unwrap().clear();
    }

    /// Lets so much time pass.
    pub fn pass(&self, time: Duration) {
        self.ns.fetch_add(time.as_nanos() as u64, SeqCst);
    }

    fn transfer(
        &self,
        len: usize,
        mut one: impl FnMut(&mut Process, usize) -> Result<(), Errno>,
    ) -> (usize, Result<(), Errno>) {
        let mut process = self.lock();
        for done in (0..len).step_by(PAGE) {
            match one(&mut process, done) {
                Ok(()) => {}
                Err(_) if done > 0 => return (done, Err(Errno(libc::EAGAIN))),
                Err(error) => return (0, Err(error)),
            }
        }
        (len, Ok(()))
    }
}

impl Present {
    fn new(bytes: [u8; PAGE]) -> Self {
        Self {
            bytes: Arc::new(bytes),
            protected: false,
            pinned: false,
        }
    }

    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.bytes) > 1
    }
}

impl Process {
    fn map(&mut self, start: usize, len: usize, prot: i32, own: bool) {
        self.numbers += 1;
        let mapping = Mapping {
            number: self.numbers,
            prot,
            registered: false,
            own,
        };
        self.mappings
            .extend(pages_of(start, len).map(|at| (at, mapping)));
    }

    fn unmap(&mut self, start: usize, len: usize) {
        for at in pages_of(start, len) {
            self.mappings.remove(&at);
            self.pages.remove(&at);
            self.poisoned.remove(&at);
        }
        self.wake(start, len);
    }

    fn fresh(&mut self, len: usize) -> usize {
        let start = self.next;
        self.next += page_up(len) + 16 * PAGE;
        start
    }

    fn wake(&mut self, start: usize, len: usize) {
        let inside = |f: &Fault| (start..start + len).contains(&f.address);
        self.waiting.retain(|f| !inside(f));
        self.faults.retain(|f| !inside(f));
    }

    fn put(&mut self, at: usize, page: Present) {
        if self.mappings[&at].own {
            // SAFETY: host memory of this kernel's own, mapped for good.
            unsafe { (at as *mut u8).copy_from_nonoverlapping(page.bytes.as_ptr(), PAGE) };
        }
        self.pages.insert(at, page);
    }
}

impl Kernel for MemoryKernel {
    fn now(&self) -> Time {
        Duration::from_nanos(self.ns.fetch_add(100, SeqCst))
    }
    fn sleep(&self, time: Duration) {
        self.pass(time);
    }
    fn wait_word(&self, word: &AtomicU32, seen: u32, timeout: Option<Duration>) {
        if word.load(SeqCst) == seen {
            self.pass(timeout.expect("nobody else could wake it"));
            if !self.is_own.swap(true, SeqCst) {
                self.while_waiting.get().iter().for_each(|turn| turn());
                self.is_own.store(false, SeqCst);
            }
        }
    }
    fn wake_word(&self, _: &AtomicU32, _: i32) {}
    fn thread(&self) -> u32 {
        1
    }
    fn process(&self) -> u32 {
        1
    }
    fn is_own_thread(&self) -> bool {
        self.is_own.load(SeqCst)
    }
    fn on_own_stack<R: 'static, F: FnOnce() -> R + 'static>(&self, f: F) -> R {
        f()
    }
    fn is_on_own_stack(&self) -> bool {
        true
    }
    fn cpu(&self) -> usize {
        0
    }
    fn cpu_of(&self, _: u32) -> Option<usize> {
        Some(0)
    }
    fn allowed_cpus(&self) -> Vec<usize> {
        vec![0]
    }
    fn processors(&self) -> usize {
        1
    }
    fn running(&self) -> Option<usize> {
        Some(1)
    }
    fn nodes(&self) -> Vec<u16> {
        vec![0]
    }
    fn bind(&self, _: usize) {}
    fn set_urgency(&self, _: u32, _: Urgency) -> bool {
        true
    }
    fn spawn(&self, _: Entry, index: usize) -> Result<u32, Errno> {
        Ok(100 + index as u32)
    }
    fn name_thread(&self, _: TaskName) {}
    fn start_helper(&self, _: Entry, _: Duration) -> Result<(), Errno> {
        Ok(())
    }
    fn standard_error(&self) -> Option<(u64, u64)> {
        Some((0, 2))
    }
    fn write_standard_error(&self, _: &[u8]) {}
    fn watch_program(&self) -> Result<(), Errno> {
        Ok(())
    }
    fn program(&self) -> u32 {
        1
    }
    fn program_pidfd(&self) -> Option<BorrowedFd<'static>> {
        None
    }
    fn program_word(&self) -> Option<(&'static AtomicU32, u32)> {
        None
    }
    fn find_proc(&self, _: Option<u32>) {}
    fn reopen(&self, _: u32, _: i32) -> Result<OwnedFd, Errno> {
        Err(Errno(libc::ENOENT))
    }
    fn setting(&self, _: &str) -> Option<String> {
        None
    }
    fn helper_lives(&self) -> bool {
        true
    }
    fn end_helper(&self) -> ! {
        panic!("the helper ends")
    }
    fn program_is_gone(&self) -> Option<Gone> {
        None
    }
    fn kill_program(&self) {
        panic!("the program is killed")
    }
    fn die(&self) -> ! {
        panic!("the program dies")
    }
    fn follow_user(&self) {}
    fn has_user(&self, _: u32) -> bool {
        true
    }
    fn user_changed(&self, wake: impl Fn()) {
        wake();
    }
    fn begin(&self) {}
    fn reset_in_child(&self) {}

    fn open(&self) -> Result<(), String> {
        Ok(())
    }
    fn faults(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn read_faults<'a>(&self, out: &'a mut [Fault]) -> Result<&'a [Fault], Errno> {
        let mut process = self.lock();
        let count = process.faults.len().min(out.len());
        for (to, fault) in out.iter_mut().zip(process.faults.drain(..count)) {
            *to = fault;
        }
        Ok(&out[..count])
    }
    fn has_faults(&self, timeout_ms: i32) -> bool {
        let there = !self.lock().faults.is_empty();
        if !there {
            self.pass(Duration::from_millis(timeout_ms as u64));
        }
        there
    }
    fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut process = self.lock();
        for at in pages_of(start, len) {
            let mapping = process.mappings.get_mut(&at).ok_or(Errno(libc::EINVAL))?;
            mapping.registered = true;
        }
        Ok(())
    }
    fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut process = self.lock();
        for at in pages_of(start, len) {
            let mapping = process.mappings.get_mut(&at).ok_or(Errno(libc::EINVAL))?;
            mapping.registered = false;
        }
        process.wake(start, len);
        Ok(())
    }
    fn copy(
        &self,
        to: usize,
        from: &[u8],
        protect: bool,
        wake: bool,
    ) -> (usize, Result<(), Errno>) {
        let refuse = |left: u32| left.checked_sub(1);
        if self.refuses.fetch_update(SeqCst, SeqCst, refuse).is_ok() {
            return (0, Err(Errno(libc::ENOMEM)));
        }
        let number = |p: &Process, at: usize| {
            let mapping = p.mappings.get(&at).filter(|m| m.registered);
            mapping.map(|m| m.number)
        };
        let first = number(&self.lock(), to);
        let whole =
            first.is_some() && pages_of(to, from.len()).all(|at| number(&self.lock(), at) == first);
        if !whole {
            return (0, Err(Errno(libc::ENOENT)));
        }
        let (done, result) = self.transfer(from.len(), |process, done| {
            if process.pages.contains_key(&(to + done)) {
                return Err(Errno(libc::EEXIST));
            }
            let mut page = Present::new(from[done..done + PAGE].try_into().unwrap());
            page.protected = protect;
            process.put(to + done, page);
            Ok(())
        });
        if wake {
            self.lock().wake(to, done);
        }
        (done, result)
    }
    unsafe fn move_pages(&self, to: usize, from: usize, len: usize) -> (usize, Result<(), Errno>) {
        {
            let process = self.lock();
            let number = |at| process.mappings.get(&at).map(|m| m.number);
            let whole = |start| pages_of(start, len).all(|at| number(at) == number(start));
            let (Some(source), Some(target)) =
                (process.mappings.get(&from), process.mappings.get(&to))
            else {
                return (0, Err(Errno(libc::ENOENT)));
            };
            let alike = source.prot == target.prot && source.prot & libc::PROT_WRITE != 0;
            if !alike || !whole(from) || !whole(to) {
                return (0, Err(Errno(libc::EINVAL)));
            }
        }
        self.transfer(len, |process, done| {
            if process.pages.contains_key(&(to + done)) {
                return Err(Errno(libc::EEXIST));
            }
            let page = process.pages.get(&(from + done));
            let page = page.ok_or(Errno(libc::ENOENT))?;
            if page.pinned || page.is_shared() {
                return Err(Errno(libc::EBUSY));
            }
            let mut page = process.pages.remove(&(from + done)).expect("looked at");
            page.protected = false;
            process.put(to + done, page);
            Ok(())
        })
    }
    fn protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        let mut process = self.lock();
        let registered = |at: &usize| process.mappings.get(at).is_some_and(|m| m.registered);
        if !pages_of(start, len).all(|at| registered(&at)) {
            return Err(Errno(libc::ENOENT));
        }
        for (_, page) in process.pages.range_mut(start..start + len) {
            page.protected = on;
        }
        if !on {
            process.wake(start, len);
        }
        Ok(())
    }
    fn wake_pages(&self, start: usize, len: usize) {
        self.lock().wake(start, len);
    }
    fn poison(&self, start: usize, len: usize) {
        let mut process = self.lock();
        process.poisoned.extend(pages_of(start, len));
        process.wake(start, len);
    }
    fn try_look(&self, start: usize, pages: usize) -> Option<Mapped> {
        let process = self.lock();
        let mut mapped = Mapped::default();
        for i in 0..pages {
            let Some(page) = process.pages.get(&(start + i * PAGE)) else {
                continue;
            };
            mapped.present |= 1 << i;
            mapped.protected |= u64::from(page.protected) << i;
            mapped.shared |= u64::from(page.is_shared()) << i;
        }
        Some(mapped)
    }
    fn scan(
        &self,
        start: usize,
        end: usize,
        mut found: impl FnMut(usize, usize),
    ) -> Result<(), Errno> {
        let there: Vec<_> = self.lock().pages.range(start..end).map(|p| *p.0).collect();
        there.into_iter().for_each(|at| found(at, at + PAGE));
        Ok(())
    }
    fn shared(&self, start: usize, end: usize) -> usize {
        let process = self.lock();
        let pages = process.pages.range(start..end);
        pages.filter(|(_, page)| page.is_shared()).count()
    }
    fn read_memory(&self, start: usize, out: &mut [u8]) -> bool {
        let process = self.lock();
        for (at, part) in pages_of(start, out.len()).zip(out.chunks_mut(PAGE)) {
            let Some(page) = process.pages.get(&at) else {
                return false;
            };
            part.copy_from_slice(&page.bytes[..part.len()]);
        }
        true
    }

    unsafe fn mmap(
        &self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        _: i32,
        _: i64,
    ) -> Result<usize, Errno> {
        let mut process = self.lock();
        let start = match flags & libc::MAP_FIXED {
            0 => process.fresh(len),
            _ => addr,
        };
        process.unmap(start, len);
        process.map(start, len, prot, false);
        Ok(start)
    }
    unsafe fn munmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.lock().unmap(addr, len);
        Ok(())
    }
    unsafe fn mremap(
        &self,
        old: usize,
        old_len: usize,
        new_len: usize,
        flags: i32,
        new: usize,
    ) -> Result<usize, Errno> {
        if flags & libc::MREMAP_MAYMOVE == 0 && new_len > old_len {
            return Err(Errno(libc::ENOMEM));
        }
        let mut process = self.lock();
        if new_len <= old_len && flags & libc::MREMAP_FIXED == 0 {
            process.unmap(old + page_up(new_len), old_len - page_up(new_len));
            return Ok(old);
        }
        let to = match flags & libc::MREMAP_FIXED {
            0 => process.fresh(new_len),
            _ => new,
        };
        process.unmap(to, new_len);
        let prot = process.mappings[&old].prot;
        process.map(to, new_len, prot, false);
        for done in (0..old_len.min(page_up(new_len))).step_by(PAGE) {
            if let Some(mut page) = process.pages.remove(&(old + done)) {
                page.protected = false;
                process.pages.insert(to + done, page);
            }
        }
        process.unmap(old, old_len);
        Ok(to)
    }
    unsafe fn mprotect(&self, addr: usize, len: usize, prot: i32) -> Result<(), Errno> {
        let mut process = self.lock();
        for at in pages_of(addr, len) {
            let mapping = process.mappings.get_mut(&at).ok_or(Errno(libc::ENOMEM))?;
            mapping.prot = prot;
        }
        Ok(())
    }
    unsafe fn madvise(&self, addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
        let mut process = self.lock();
        if !pages_of(addr, len).all(|at| process.mappings.contains_key(&at)) {
            return Err(Errno(libc::ENOMEM));
        }
        match advice {
            libc::MADV_DONTNEED | libc::MADV_FREE => {
                pages_of(addr, len).for_each(|at| drop(process.pages.remove(&at)));
            }
            libc::MADV_POPULATE_WRITE => {
                for (_, page) in process.pages.range_mut(addr..addr + len) {
                    assert!(!page.protected, "the pager would wait for itself");
                    Arc::make_mut(&mut page.bytes);
                }
            }
            _ => {}
        }
        Ok(())
    }
    unsafe fn process_madvise(
        &self,
        _: i32,
        _: *const libc::iovec,
        _: usize,
        _: i32,
        _: u32,
    ) -> Result<usize, Errno> {
        Err(Errno(libc::ENOSYS))
    }
    unsafe fn brk(&self, addr: usize) -> usize {
        let mut process = self.lock();
        let old = page_up(process.heap_end);
        match addr {
            0 => {}
            up if page_up(up) > old => {
                process.map(old, page_up(up) - old, 3, false);
                process.heap_end = up;
            }
            down => {
                process.unmap(page_up(down), old - page_up(down));
                process.heap_end = down;
            }
        }
        process.heap_end
    }
    fn mlock(&self, _: usize, _: usize, _: i32) -> Result<(), Errno> {
        Ok(())
    }
    fn munlock(&self, _: usize, _: usize) -> Result<(), Errno> {
        Ok(())
    }
    fn mlockall(&self, _: i32) -> Result<(), Errno> {
        Ok(())
    }
    fn munlockall(&self) -> Result<(), Errno> {
        Ok(())
    }
    fn reserve(&self, len: usize) -> Result<usize, Errno> {
        // Host addresses, which are far from those of the program.
        let start = ebb_sys::memory::reserve(len)?;
        self.lock().map(start, len, 3, true);
        Ok(start)
    }
    fn reserve_alone(&self, len: usize) -> Result<usize, Errno> {
        let start = self.reserve(len)?;
        // SAFETY: advice that changes no content.
        unsafe { self.madvise(start, len, libc::MADV_DONTFORK)? };
        Ok(start)
    }
    fn apart_from_own<T>(
        &self,
        range: Range<usize>,
        act: impl FnOnce() -> T,
    ) -> Result<T, Range<usize>> {
        let first_own = {
            let process = self.lock();
            let mut mapped = process.mappings.range(range);
            mapped.find(|(_, mapping)| mapping.own).map(|(at, _)| *at)
        };
        match first_own {
            Some(at) => Err(at..at + PAGE),
            None => Ok(act()),
        }
    }
    unsafe fn drop_pages(&self, runs: &[(usize, usize)]) -> bool {
        let mut process = self.lock();
        for &(start, len) in runs {
            pages_of(start, len).for_each(|at| drop(process.pages.remove(&at)));
        }
        true
    }
    fn give_back(&self, bytes: &mut [u8]) {
        ebb_sys::memory::give_back(bytes);
    }
    fn prefetch(&self, bytes: &[u8]) {
        ebb_sys::memory::prefetch(bytes);
    }
    fn give_heap_back(&self) {}
    unsafe fn write_memory(&self, to: usize, from: &[u8]) {
        let mut process = self.lock();
        for (at, part) in pages_of(to, from.len()).zip(from.chunks(PAGE)) {
            process.put(at, Present::new(part.try_into().expect("whole pages")));
        }
    }

    fn resident_anonymous_pages(&self) -> Option<u64> {
        Some(self.lock().pages.len() as u64)
    }
    fn table_pages(&self) -> Option<u64> {
        Some(0)
    }
    fn pinned_pages(&self) -> Option<u64> {
        Some(self.pinned_for_long.load(SeqCst))
    }
}
