//! [`MemoryKernel`]: the pager's system, over page tables in memory, and what a program does beside calls of the pager.

use crate::PAGE;
use crate::frames::Frame;
use crate::page_tables::{Mapping, PageTables, pages_of};
use crate::threads::{Call, Disturbance, Event, Threads};
use ebb_sys::Errno;
use ebb_sys::memory::page_up;
use ebb_sys::pagemap::Mapped;
use ebb_sys::paging::{Entry, Kernel, MemoryDescriptors, NO_KEY, Time};
use ebb_sys::program::Gone;
use ebb_sys::thread::{TaskName, Urgency};
use ebb_sys::userfaultfd::Fault;
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

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

/// See the module.
pub struct MemoryKernel<T: Threads> {
    /// The runner of threads.
    pub threads: T,
    tables: Mutex<PageTables>,
    /// Relatives that were forked and have no pager.
    children: Mutex<Vec<PageTables>>,
}

/// Advice that is an attribute of a mapping. Not here is MADV_DOFORK: at a fork of a process that may have no more mappings
/// nothing can be done about it (LIMITATIONS).
const SPLITTING: [i32; 5] = [
    libc::MADV_RANDOM,
    libc::MADV_NORMAL,
    libc::MADV_DONTFORK,
    libc::MADV_WIPEONFORK,
    libc::MADV_KEEPONFORK,
];

/// The bits of a protection that the system knows, PROT_SEM among them. mmap(2) ignores others, and mprotect(2) refuses them.
const PROTECTIONS: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | 8;

type Done = (usize, Result<(), Errno>);

impl<T: Threads> MemoryKernel<T> {
    /// A process that has no memory yet.
    pub fn new(threads: T) -> Self {
        Self::of_image(threads, 0)
    }

    /// The same, of a process that was so many other programs before.
    pub fn of_image(threads: T, image: u8) -> Self {
        Self {
            threads,
            tables: Mutex::new(PageTables::of_image(image)),
            children: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PageTables> {
        self.tables.lock().expect("no panic is survived")
    }

    /// Looks at the page tables, which nobody changes meanwhile.
    pub fn tables<R>(&self, f: impl FnOnce(&mut PageTables) -> R) -> R {
        f(&mut self.lock())
    }

    fn called(&self, call: Call, start: usize, len: usize) -> MutexGuard<'_, PageTables> {
        self.threads.switch(call, [start as u64, len as u64]);
        self.lock()
    }

    /// The same of a call that may split a mapping: the process may have no more of them.
    fn splits(
        &self,
        call: Call,
        start: usize,
        len: usize,
    ) -> Result<MutexGuard<'_, PageTables>, Errno> {
        let tables = self.called(call, start, len);
        match tables.splits(start, len) && self.threads.strikes(Disturbance::NoMapping, call) {
            true => Err(Errno(libc::ENOMEM)),
            false => Ok(tables),
        }
    }

    fn tell(&self, woken: Vec<u32>) {
        for thread in woken {
            self.threads.notify(Event::Page(thread));
        }
    }

    /// A thread of the program touches a page, to write it or not: `f` gets it.
    ///
    /// # Errors
    /// It has to wait, or gets a signal.
    pub fn access<R>(
        &self,
        thread: u32,
        address: usize,
        write: bool,
        f: impl FnOnce(&mut Frame) -> R,
    ) -> Result<R, Stop> {
        let at = address & !(PAGE - 1);
        let mut tables = self.lock();
        let mapping = *tables.mappings.get(at).ok_or(Stop::Unmapped)?;
        let wanted = if write {
            libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        if mapping.prot & wanted == 0 {
            return Err(Stop::Unmapped);
        }
        if tables.poisoned.contains(&at) {
            return Err(Stop::Poisoned);
        }
        let protected = match tables.pages.get_mut(at) {
            Some(page) if !(page.protected && write) => return Ok(f(page)),
            Some(_) => true,
            None if mapping.registered => false,
            None => {
                let page = tables.pages.insert(at, Frame::new(&[0; PAGE]));
                return Ok(f(page));
            }
        };
        let fault = Fault {
            address,
            write,
            protected,
            thread,
        };
        tables.faults.push_back(fault);
        tables.waiting.push(fault);
        drop(tables);
        self.threads.notify(Event::Fault);
        Err(Stop::Waits)
    }

    /// A thread of the program reads a byte, or writes one.
    ///
    /// # Errors
    /// As [`access`](Self::access).
    pub fn touch(&self, thread: u32, address: usize, write: Option<u8>) -> Result<u8, Stop> {
        self.access(thread, address, write.is_some(), |page| {
            if let Some(byte) = write {
                page.own()[address % PAGE] = byte;
            }
            page.bytes()[address % PAGE]
        })
    }

    /// Whether a thread waits for service.
    pub fn waits(&self, thread: u32) -> bool {
        self.lock().waiting.iter().any(|f| f.thread == thread)
    }

    /// A signal ends a thread's wait for a page. Its fault is nobody's business any more, unless somebody has read it.
    pub fn interrupt(&self, thread: u32) {
        let mut tables = self.lock();
        tables.faults.retain(|fault| fault.thread != thread);
        tables.waiting.retain(|fault| fault.thread != thread);
    }

    /// Whether a page is there.
    pub fn is_present(&self, address: usize) -> bool {
        self.lock().pages.contains(address & !(PAGE - 1))
    }

    /// The system calls `munmap` and `mmap`, made without libc.
    pub fn map_behind(&self, start: usize, pages: usize) {
        let mut tables = self.lock();
        tables.unmap(start, pages * PAGE);
        tables.map(start, pages * PAGE, 3, false);
    }

    /// The system call `munmap`, made without libc. What is mapped, moved or extended next comes there, if it fits.
    pub fn unmap_behind(&self, start: usize, pages: usize) {
        self.lock().open_hole(start, pages * PAGE);
    }

    /// The program unmaps memory without libc, and memory of the pager's own is mapped into the hole.
    pub fn replace_by_own(&self, start: usize, len: usize) {
        let mut tables = self.lock();
        tables.unmap(start, len);
        tables.map(start, len, 3, true);
    }

    /// Whether a page is mapped, be it there or not.
    pub fn is_mapped(&self, address: usize) -> bool {
        self.lock().mappings.get(address).is_some()
    }

    /// Whether missing pages of this memory are faults.
    pub fn is_registered(&self, address: usize) -> bool {
        let mapping = self.lock().mappings.get(address).copied();
        mapping.is_some_and(|mapping| mapping.registered)
    }

    /// The program registers this memory with a descriptor of its own.
    pub fn register_for_program(&self, start: usize, len: usize) {
        let registers = |m: &mut Mapping| (m.registered, m.programs) = (true, true);
        self.lock().change(start, len, registers);
    }

    /// Pins a page, as a transfer of a device does, or ends that.
    pub fn pin(&self, address: usize, on: bool) {
        let mut tables = self.lock();
        let page = tables.pages.get_mut(address).expect("present");
        page.pins = u32::from(on);
    }

    /// Transfers that last long are so many from now on.
    pub fn pin_for_long(&self, pages: u64) {
        self.lock().long_pins = pages;
    }

    /// Copies the process. The copy has no pager.
    pub fn fork(&self) {
        let child = self.lock().child();
        self.children.lock().expect("no panic").push(child);
    }

    /// A child writes a page, if it has it.
    pub fn child_writes(&self, child: usize, address: usize, byte: u8) {
        let mut children = self.children.lock().expect("no panic");
        if let Some(page) = children[child].pages.get_mut(address & !(PAGE - 1)) {
            page.own()[address % PAGE] = byte;
        }
    }

    /// A byte of a child's memory, if it has the page.
    pub fn child_reads(&self, child: usize, address: usize) -> Option<u8> {
        let children = self.children.lock().expect("no panic");
        let page = children[child].pages.get(address & !(PAGE - 1))?;
        Some(page.bytes()[address % PAGE])
    }

    /// All children end.
    pub fn end_children(&self) {
        self.children.lock().expect("no panic").clear();
    }

    /// Before the host copies this process, in it: pages that the child will have are counted twice.
    pub fn count_copies(&self) {
        let Some(sharers) = self.threads.sharers() else {
            return;
        };
        for (_, page) in self.lock().pages.iter_mut() {
            page.count_copy(sharers);
        }
    }

    /// In the copy that the host made. Host memory that a child has no copy of goes, too: the pager must not read it.
    pub fn become_child(&self) {
        let mut tables = self.lock();
        for (start, len, in_child) in tables.own_memory() {
            if in_child.absent {
                // SAFETY: host memory of this kernel's own, to which the pager of a child has no reference.
                let _ = unsafe { ebb_sys::memory::munmap(start, len) };
            } else if in_child.wiped {
                // SAFETY: the same, which the pager takes to be zeros from now on.
                unsafe { (start as *mut u8).write_bytes(0, len) };
            }
        }
        tables.become_child();
    }

    /// The process has ended: it maps nothing any more.
    pub fn clear(&self) {
        *self.lock() = PageTables::default();
    }

    /// The process uses this memory no more, nor does a pager: the host gets its part back, too.
    pub fn free(&self) {
        for (start, len, _) in self.lock().own_memory() {
            // SAFETY: host memory of this kernel's own, to which nobody has a reference that is used.
            let _ = unsafe { ebb_sys::memory::munmap(start, len) };
        }
        self.clear();
    }

    /// One page after the other, until one fails.
    fn transfer(
        &self,
        call: Call,
        len: usize,
        mut one: impl FnMut(&mut PageTables, usize) -> Result<(), Errno>,
    ) -> Done {
        let stops = match self.threads.strikes(Disturbance::Partial, call) {
            true => self.threads.below(len / PAGE) * PAGE,
            false => len,
        };
        let mut tables = self.lock();
        for done in (0..len).step_by(PAGE) {
            if done == stops {
                return (done, Err(Errno(libc::EAGAIN)));
            }
            match one(&mut tables, done) {
                Ok(()) => {}
                Err(_) if done > 0 => return (done, Err(Errno(libc::EAGAIN))),
                Err(error) => return (0, Err(error)),
            }
        }
        (len, Ok(()))
    }

    /// Waits until every page of an area is there, as a call does that populates memory.
    fn populate(&self, addr: usize, len: usize, write: bool) -> Result<(), Errno> {
        if !self.threads.can_wait() {
            return Ok(());
        }
        let thread = self.threads.thread();
        for at in pages_of(addr, len) {
            loop {
                let touched = self.access(thread, at, write, |page| {
                    if write {
                        page.own();
                    }
                });
                match touched {
                    Ok(()) => break,
                    Err(Stop::Waits) => self.threads.wait_event(Event::Page(thread), None),
                    Err(_) => return Err(Errno(libc::ENOMEM)),
                };
            }
        }
        Ok(())
    }

    fn copied(&self, to: usize, from: &[u8], protect: bool, wake: bool) -> Done {
        let whole = {
            let tables = self.called(Call::Copy, to, from.len());
            tables.is_whole(to, from.len()) && tables.mappings[to].registered
        };
        if self.threads.strikes(Disturbance::NoPage, Call::Copy) {
            return (0, Err(Errno(libc::ENOMEM)));
        }
        if !whole {
            return (0, Err(Errno(libc::ENOENT)));
        }
        let (done, result) = self.transfer(Call::Copy, from.len(), |tables, done| {
            if tables.pages.contains(to + done) {
                return Err(Errno(libc::EEXIST));
            }
            let bytes = from[done..done + PAGE].try_into().expect("a page");
            let mut page = Frame::new(bytes);
            page.protected = protect;
            tables.put(to + done, page);
            Ok(())
        });
        if wake {
            let woken = self.lock().wake(to, done);
            self.tell(woken);
        }
        (done, result)
    }

    fn moved(&self, to: usize, from: usize, len: usize) -> Done {
        {
            let tables = self.called(Call::Move, from, len);
            let (source, target) = (tables.mappings.get(from), tables.mappings.get(to));
            let (Some(source), Some(target)) = (source, target) else {
                return (0, Err(Errno(libc::ENOENT)));
            };
            let alike = source.prot == target.prot
                && source.prot & libc::PROT_WRITE != 0
                && source.locked == target.locked;
            let whole = tables.is_whole(from, len) && tables.is_whole(to, len);
            if !alike || !whole || !target.registered {
                return (0, Err(Errno(libc::EINVAL)));
            }
        }
        if self.threads.strikes(Disturbance::Again, Call::Move) {
            return (0, Err(Errno(libc::EAGAIN)));
        }
        let busy = self.threads.strikes(Disturbance::Busy, Call::Move);
        self.transfer(Call::Move, len, |tables, done| {
            if tables.pages.contains(to + done) || tables.poisoned.contains(&(to + done)) {
                return Err(Errno(libc::EEXIST));
            }
            let page = tables.pages.get(from + done);
            let page = page.ok_or(Errno(libc::ENOENT))?;
            if page.pins > 0 || !page.is_exclusive() || busy {
                return Err(Errno(libc::EBUSY));
            }
            let mut page = tables.pages.remove(from + done).expect("looked at");
            page.protected = false;
            tables.put(to + done, page);
            Ok(())
        })
    }
}

impl<T: Threads> Kernel for MemoryKernel<T> {
    fn now(&self) -> Time {
        self.threads.now()
    }
    fn worked(&self) -> Duration {
        self.threads.now()
    }
    fn sleep(&self, time: Duration) {
        self.threads.sleep(time);
    }
    fn wait_word(&self, word: &AtomicU32, seen: u32, timeout: Option<Duration>) {
        self.threads.wait_word(word, seen, timeout);
    }
    fn wake_word(&self, word: &AtomicU32, count: i32) {
        self.threads.wake_word(word, count);
    }
    fn wait_for_news(
        &self,
        seen: u32,
        timeout: Duration,
        wait: impl FnMut(Duration) -> u32,
    ) -> u32 {
        self.threads.wait_for_news(seen, timeout, wait)
    }
    fn thread(&self) -> u32 {
        self.threads.thread()
    }
    fn process(&self) -> u32 {
        self.threads.process()
    }
    fn is_own_thread(&self) -> bool {
        self.threads.is_own_thread()
    }
    fn on_own_stack<R: Copy + 'static, F: FnOnce() -> R + 'static>(&self, f: F) -> R {
        self.threads.masks_signals(true);
        let result = f();
        self.threads.masks_signals(false);
        result
    }
    fn is_on_own_stack(&self) -> bool {
        true
    }
    fn cpu(&self) -> usize {
        self.threads.cpu()
    }
    fn cpu_of(&self, thread: u32) -> Option<usize> {
        self.threads.cpu_of(thread)
    }
    fn allowed_cpus(&self) -> Vec<usize> {
        (0..self.threads.processors()).collect()
    }
    fn processors(&self) -> usize {
        self.threads.processors()
    }
    fn running(&self) -> Option<usize> {
        Some(1)
    }
    fn nodes(&self) -> Vec<u16> {
        vec![0; self.threads.processors()]
    }
    fn bind(&self, _: usize) {}
    fn short_slice(&self) {}
    fn set_urgency(&self, thread: u32, urgency: Urgency) -> bool {
        self.threads.set_urgency(thread, urgency)
    }
    fn spawn(&self, entry: Entry, index: usize, _: Duration) -> Result<u32, Errno> {
        self.threads.spawn(entry, index)
    }
    fn end_thread(&self) -> ! {
        self.threads.end_thread()
    }
    fn name_thread(&self, _: TaskName) {}
    fn start_helper(&self, entry: Entry, _: Duration) -> Result<(), Errno> {
        self.threads.start_helper(entry)
    }
    fn standard_error(&self) -> Option<(u64, u64)> {
        Some((0, 2))
    }
    fn write_standard_error(&self, line: &[u8]) {
        self.threads.say(line);
    }
    fn watch_program(&self) -> Result<(), Errno> {
        Ok(())
    }
    fn program(&self) -> u32 {
        self.threads.process()
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
    fn setting(&self, _: &CStr) -> Option<CString> {
        None
    }
    fn helper_lives(&self) -> bool {
        self.threads.helper_lives()
    }
    fn end_helper(&self) -> ! {
        self.threads.end_helper()
    }
    fn program_is_gone(&self) -> Option<Gone> {
        self.threads.program_is_gone()
    }
    fn kill_program(&self) {
        self.threads.kill_program();
    }
    fn die(&self) -> ! {
        self.threads.die()
    }
    fn follow_user(&self) {}
    fn has_user(&self, _: u32) -> bool {
        true
    }
    fn user_changed(&self, wake: impl Fn()) -> Result<(), String> {
        wake();
        Ok(())
    }
    fn begin(&self) {}
    fn reset_in_child(&self) {}

    fn open(&self) -> Result<(), String> {
        Ok(())
    }
    fn open_given(&self, _: MemoryDescriptors) -> Result<(), String> {
        Ok(())
    }
    fn faults(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn read_faults<'a>(&self, out: &'a mut [Fault]) -> Result<&'a [Fault], Errno> {
        let mut tables = self.called(Call::ReadFaults, 0, out.len());
        let faults = &mut tables.faults;
        let mut count = faults.len().min(out.len());
        if count > 1 && self.threads.strikes(Disturbance::Order, Call::ReadFaults) {
            let all = faults.len();
            for i in (1..all).rev() {
                faults.swap(i, self.threads.below(i + 1));
            }
            count = 1 + self.threads.below(count);
        }
        for (to, fault) in out.iter_mut().zip(faults.drain(..count)) {
            *to = fault;
        }
        drop(tables);
        self.threads.answered(Call::ReadFaults, count as u64);
        Ok(&out[..count])
    }
    fn has_faults(&self, timeout_ms: i32) -> bool {
        drop(self.called(Call::HasFaults, 0, timeout_ms as usize));
        let timeout = Duration::from_millis(timeout_ms as u64);
        let end = self.threads.now() + timeout;
        while self.lock().faults.is_empty() {
            if timeout_ms == 0 {
                return false;
            }
            let left = end.saturating_sub(self.threads.now());
            if left.is_zero() || !self.threads.wait_event(Event::Fault, Some(left)) {
                return !self.lock().faults.is_empty();
            }
        }
        true
    }
    fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut tables = self.splits(Call::Register, start, len)?;
        if !tables.all(start, len, |_| true) {
            return Err(Errno(libc::EINVAL));
        }
        if !tables.all(start, len, |m| !m.programs) {
            return Err(Errno(libc::EBUSY));
        }
        tables.change(start, len, |m| m.registered = true);
        Ok(())
    }
    fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut tables = self.called(Call::Unregister, start, len);
        if !tables.all(start, len, |_| true) {
            return Err(Errno(libc::EINVAL));
        }
        tables.change(start, len, |m| (m.registered, m.programs) = (false, false));
        let woken = tables.wake(start, len);
        drop(tables);
        self.tell(woken);
        Ok(())
    }
    fn copy(&self, to: usize, from: &[u8], protect: bool, wake: bool) -> Done {
        let done = self.copied(to, from, protect, wake);
        self.threads.answered(Call::Copy, answer(done));
        done
    }
    unsafe fn move_pages(&self, to: usize, from: usize, len: usize) -> Done {
        let done = self.moved(to, from, len);
        self.threads.answered(Call::Move, answer(done));
        done
    }
    fn protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        let mut tables = self.called(Call::Protect, start, len | usize::from(on));
        let foreign = tables.first(start, len, |m| !m.registered);
        let done = start..foreign.unwrap_or(start + len);
        for (_, page) in tables.pages.range_mut(done) {
            page.protected = on;
        }
        // Holes are passed over.
        if foreign.is_some() || tables.mapped(start, len) == 0 {
            return Err(Errno(libc::ENOENT));
        }
        Ok(())
    }
    fn is_registered(&self, page: usize) -> bool {
        let tables = self.called(Call::IsRegistered, page, PAGE);
        tables.all(page, PAGE, |m| m.registered)
    }
    fn wake_pages(&self, start: usize, len: usize) {
        let woken = self.called(Call::Wake, start, len).wake(start, len);
        self.tell(woken);
    }
    fn poison(&self, start: usize, len: usize) {
        let mut tables = self.called(Call::Poison, start, len);
        for at in pages_of(start, len) {
            if !tables.pages.contains(at) {
                tables.poisoned.insert(at);
            }
        }
        let woken = tables.wake(start, len);
        drop(tables);
        self.tell(woken);
    }
    fn try_look(&self, start: usize, pages: usize) -> Option<Mapped> {
        let tables = self.called(Call::Look, start, pages);
        let mut mapped = Mapped::default();
        for (at, page) in tables.pages.range(start..start + pages * PAGE) {
            let bit = 1 << ((at - start) / PAGE);
            mapped.present |= bit;
            mapped.protected |= if page.protected { bit } else { 0 };
            mapped.shared |= if page.is_shared() { bit } else { 0 };
        }
        Some(mapped)
    }
    fn scan(
        &self,
        start: usize,
        end: usize,
        mut found: impl FnMut(usize, usize),
    ) -> Result<(), Errno> {
        let tables = self.called(Call::Scan, start, end - start);
        let there: Vec<_> = tables.pages.range(start..end).map(|p| p.0).collect();
        drop(tables);
        there.into_iter().for_each(|at| found(at, at + PAGE));
        Ok(())
    }
    fn shared(&self, start: usize, end: usize) -> usize {
        let tables = self.called(Call::Shared, 0, end - start);
        let pages = tables.pages.range(start..end);
        pages.filter(|(_, page)| page.is_shared()).count()
    }
    fn read_memory(&self, start: usize, out: &mut [u8]) -> bool {
        let tables = self.called(Call::ReadMemory, start, out.len());
        for (at, part) in pages_of(start, out.len()).zip(out.chunks_mut(PAGE)) {
            let Some(page) = tables.pages.get(at) else {
                return false;
            };
            part.copy_from_slice(&page.bytes()[..part.len()]);
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
        let mut tables = self.called(Call::Mmap, addr, len);
        if self.threads.strikes(Disturbance::NoMapping, Call::Mmap) {
            return Err(Errno(libc::ENOMEM));
        }
        let start = match flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) {
            0 => tables.fresh(len, self.threads.below(2) == 1),
            _ => addr,
        };
        if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE
            && tables
                .mappings
                .range(start..start + page_up(len))
                .next()
                .is_some()
        {
            return Err(Errno(libc::EEXIST));
        }
        tables.unmap(start, len);
        tables.map(start, len, prot & PROTECTIONS, false);
        let locked = flags & libc::MAP_LOCKED != 0;
        tables.change(start, len, |m| m.locked = locked);
        Ok(start)
    }
    unsafe fn munmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.splits(Call::Munmap, addr, len)?.free(addr, len);
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
        let mut tables = self.called(Call::Mremap, old, new_len);
        let (old_len, new_len) = (page_up(old_len), page_up(new_len));
        let fixed = flags & libc::MREMAP_FIXED != 0;
        let stays = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) == 0;
        let shrinks = new_len <= old_len && stays;
        // Only memory that moves or grows has to be one mapping.
        if shrinks && tables.mappings.get(old).is_none()
            || !shrinks && !tables.is_whole(old, old_len)
        {
            // As some kernels do it: what is replaced goes first, whatever comes of the call.
            if fixed {
                tables.unmap(new, new_len);
            }
            return Err(Errno(libc::EFAULT));
        }
        if new_len > old_len && !fixed && tables.fills_hole(old + old_len, new_len - old_len) {
            return Ok(old);
        }
        if flags & libc::MREMAP_MAYMOVE == 0 && new_len > old_len
            || !fixed
                && new_len > old_len
                && self.threads.strikes(Disturbance::NoMapping, Call::Mremap)
        {
            return Err(Errno(libc::ENOMEM));
        }
        if shrinks {
            tables.free(old + new_len, old_len - new_len);
            return Ok(old);
        }
        let was = tables.mappings[old];
        assert!(
            new_len <= old_len || !was.locked || was.on_fault,
            "the kernel fills what grows, and its caller holds the lock that service needs"
        );
        let to = match fixed {
            true => new,
            false => tables.fresh(new_len, self.threads.below(2) == 1),
        };
        tables.unmap(to, new_len);
        tables.map(to, new_len, was.prot, false);
        tables.change(to, new_len, |m| {
            *m = Mapping {
                number: m.number,
                registered: false,
                programs: false,
                ..was
            }
        });
        if was.registered && self.threads.below(2) == 1 {
            tables.merge_moved(to, new_len);
        }
        tables.move_pages(old, to, old_len.min(new_len));
        match flags & libc::MREMAP_DONTUNMAP {
            0 => tables.free(old, old_len),
            _ => tables.change(old, old_len, |m| (m.locked, m.on_fault) = (false, false)),
        }
        Ok(to)
    }
    unsafe fn mprotect(&self, addr: usize, len: usize, prot: i32) -> Result<(), Errno> {
        let mut tables = self.splits(Call::Mprotect, addr, len)?;
        if prot & !PROTECTIONS != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let is_code = |mapping: &Mapping| mapping.prot & libc::PROT_EXEC != 0;
        let becomes_code = prot & libc::PROT_EXEC != 0 && !tables.all(addr, len, is_code);
        if tables.refuses_code && becomes_code {
            return Err(Errno(libc::EACCES));
        }
        // What lies before a hole changes all the same.
        let hole = pages_of(addr, len).find(|at| tables.mappings.get(*at).is_none());
        let changed = hole.map_or(len, |at| at - addr);
        tables.change(addr, changed, |m| m.prot = prot);
        hole.map_or(Ok(()), |_| Err(Errno(libc::ENOMEM)))
    }
    unsafe fn pkey_mprotect(
        &self,
        addr: usize,
        len: usize,
        prot: i32,
        key: i32,
    ) -> Result<(), Errno> {
        match key {
            // The program has one key beside the first.
            // SAFETY: passed on to the caller.
            NO_KEY..=1 => unsafe { self.mprotect(addr, len, prot) },
            _ => Err(Errno(libc::EINVAL)),
        }
    }
    unsafe fn madvise(&self, addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
        let mut tables = match SPLITTING.contains(&advice) {
            true => self.splits(Call::Madvise, addr, len)?,
            false => self.called(Call::Madvise, addr, len),
        };
        if page_up(len) < len {
            return Err(Errno(libc::EINVAL));
        }
        // Holes are passed over.
        let whole = tables.all(addr, len, |_| true);
        match advice {
            libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED => {
                let locked = tables.first(addr, len, |m| m.locked).is_some();
                if advice == libc::MADV_DONTNEED && locked {
                    return Err(Errno(libc::EINVAL));
                }
                // A page that was poisoned reads as zeros, too.
                for at in pages_of(addr, len) {
                    tables.pages.remove(at);
                    tables.poisoned.remove(&at);
                }
            }
            libc::MADV_DONTFORK
            | libc::MADV_DOFORK
            | libc::MADV_WIPEONFORK
            | libc::MADV_KEEPONFORK => tables.change(addr, len, |m| m.in_child.follow(advice)),
            libc::MADV_RANDOM | libc::MADV_NORMAL => {
                let random = advice == libc::MADV_RANDOM;
                tables.change(addr, len, |m| m.random = random);
            }
            libc::MADV_POPULATE_WRITE if !whole => {}
            libc::MADV_POPULATE_WRITE if self.threads.is_own_thread() => {
                for (_, page) in tables.pages.range_mut(addr..addr + len) {
                    assert!(!page.protected, "the pager would wait for itself");
                    page.own();
                }
            }
            libc::MADV_POPULATE_WRITE => {
                drop(tables);
                return self.populate(addr, len, true);
            }
            libc::MADV_POPULATE_READ if whole && !self.threads.is_own_thread() => {
                drop(tables);
                return self.populate(addr, len, false);
            }
            _ => {}
        }
        match whole {
            true => Ok(()),
            false => Err(Errno(libc::ENOMEM)),
        }
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
        let mut tables = self.called(Call::Brk, addr, 0);
        let old = page_up(tables.heap_end);
        match addr {
            0 => {}
            up if page_up(up) > old => {
                tables.map(old, page_up(up) - old, 3, false);
                tables.heap_end = up;
            }
            down => {
                tables.unmap(page_up(down), old - page_up(down));
                tables.heap_end = down;
            }
        }
        tables.heap_end
    }
    fn mlock(&self, addr: usize, len: usize, flags: i32) -> Result<(), Errno> {
        let (start, len) = (addr & !(PAGE - 1), page_up(addr % PAGE + len));
        let mut tables = self.splits(Call::Mlock, start, len)?;
        tables.change(start, len, |m| (m.locked, m.on_fault) = (true, flags != 0));
        let whole = tables.all(start, len, |_| true);
        drop(tables);
        match (whole, flags) {
            (false, _) => Err(Errno(libc::ENOMEM)),
            (true, 0) => self.populate(start, len, true),
            (true, _) => Ok(()),
        }
    }
    fn munlock(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let mut tables = self.called(Call::Munlock, addr, len);
        let (start, len) = (addr & !(PAGE - 1), page_up(addr % PAGE + len));
        tables.change(start, len, |m| m.locked = false);
        Ok(())
    }
    fn mlockall(&self, _: i32) -> Result<(), Errno> {
        Ok(())
    }
    fn munlockall(&self) -> Result<(), Errno> {
        self.called(Call::Munlock, 0, 0)
            .mappings
            .iter_mut()
            .for_each(|(_, m)| m.locked = false);
        Ok(())
    }
    fn reserve(&self, len: usize) -> Result<usize, Errno> {
        // Host addresses, which are far from those of the program; the same in each run, if they are free.
        let mut tables = self.lock();
        let wanted = tables.fresh_own(len);
        let start = reserve_at(wanted, len).or_else(|_| ebb_sys::memory::reserve(len))?;
        tables.map(start, len, 3, true);
        Ok(start)
    }
    fn word_of_process(&self) -> Option<&'static AtomicU32> {
        let page = self.reserve(PAGE).ok()?;
        // SAFETY: advice on a page just mapped.
        unsafe { self.madvise(page, PAGE, libc::MADV_WIPEONFORK).ok()? };
        // SAFETY: a page that is never unmapped, and zeros are such a word.
        Some(unsafe { &*(page as *const AtomicU32) })
    }
    fn reserve_alone(&self, len: usize) -> Result<usize, Errno> {
        let start = self.reserve(len)?;
        // SAFETY: advice that changes no content.
        unsafe { self.madvise(start, len, libc::MADV_DONTFORK)? };
        Ok(start)
    }
    fn apart_from_own<R>(
        &self,
        range: Range<usize>,
        act: impl FnOnce() -> R,
    ) -> Result<R, Range<usize>> {
        let first_own = {
            let tables = self.lock();
            let mut mapped = tables.mappings.range(range);
            mapped.find(|(_, mapping)| mapping.own).map(|(at, _)| at)
        };
        match first_own {
            Some(at) => Err(at..at + PAGE),
            None => Ok(act()),
        }
    }
    unsafe fn drop_pages(&self, runs: &[(usize, usize)]) -> bool {
        let first = runs.first().map_or(0, |run| run.0);
        let mut tables = self.called(Call::DropPages, first, runs.len());
        for &(start, len) in runs {
            pages_of(start, len).for_each(|at| drop(tables.pages.remove(at)));
        }
        true
    }
    fn give_back(&self, bytes: &mut [u8]) {
        self.threads.switch(Call::GiveBack, [0, bytes.len() as u64]);
        ebb_sys::memory::give_back(bytes);
    }
    fn prefetch(&self, bytes: &[u8]) {
        ebb_sys::memory::prefetch(bytes);
    }
    fn give_heap_back(&self) {}
    unsafe fn write_memory(&self, to: usize, from: &[u8], _keyed: bool) {
        let mut tables = self.called(Call::WriteMemory, to, from.len());
        for (at, part) in pages_of(to, from.len()).zip(from.chunks(PAGE)) {
            let mapping = tables.mappings[at];
            assert!(mapping.prot & libc::PROT_WRITE != 0 && !mapping.registered);
            tables.put(at, Frame::new(part.try_into().expect("whole pages")));
        }
    }

    fn resident_anonymous_pages(&self) -> Option<u64> {
        Some(self.lock().pages.len() as u64)
    }
    fn table_pages(&self) -> Option<u64> {
        Some(0)
    }
    fn pinned_pages(&self) -> Option<u64> {
        Some(self.lock().long_pins)
    }
}

impl MemoryKernel<crate::alone::Alone> {
    /// A process of a thread that is alone.
    pub fn alone() -> Self {
        Self::new(crate::alone::Alone::default())
    }

    /// The same of so many processors.
    pub fn alone_on(processors: usize) -> Self {
        let mut threads = crate::alone::Alone::default();
        threads.processors = processors;
        Self::new(threads)
    }

    /// Lets so much time pass.
    pub fn pass(&self, time: Duration) {
        self.threads.pass(time);
    }
}

/// The answer of a transfer, for the trace.
fn answer((done, result): Done) -> u64 {
    let error = result.err().map_or(0, |error| error.0 as u64);
    (done / PAGE) as u64 | error << 32
}

/// Memory of the host at this address, if nothing is there.
fn reserve_at(at: usize, len: usize) -> Result<usize, Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = private | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: refused where something is mapped.
    unsafe { ebb_sys::memory::mmap(at, len, prot, flags, -1, 0) }
}
