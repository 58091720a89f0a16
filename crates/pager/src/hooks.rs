//! What the preload library asks of the pager: memory calls, threads, forks.
//!
//! All follow the kernel's convention, `Ok(value)` or `Err(errno)`, and allocate nothing from
//! managed memory. Each call that changes what is mapped runs under the pager's lock together
//! with its bookkeeping, so that the two never disagree.
//!
//! It does so on a stack of ours (`ebb_sys::stack`): functions called `_locked`, here and beside. Waits that
//! may be long (for the keeper, for the tree) are on the program's stack, with the signals it has.
//!
//! Nothing is registered at first: memory runs at full speed until the tree nears its budget.
#![allow(clippy::missing_safety_doc)]

use crate::errand::{self, Call, Maker};
use crate::map::{Page, PageNumber};
use crate::process::{Process, cpu};
use crate::ranges::Attributes;
use crate::state::{self, Locked, State};
use crate::{advice, failure, fork, growth, keeper, pinned, remap, user};
use ebb_sys::memory::{self, page_up};
use ebb_sys::{Errno, futex, program, raw, stack, thread};
use libc::c_long;
use std::io::Write;
use std::ops::ControlFlow::Continue;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

pub(crate) type Outcome<T> = Result<T, i32>;

/// When the program maps as much as this, at once or bit by bit, it is registered before the
/// program can fill it.
const AT_ONCE: usize = 1 << 20;
/// Bytes that may be written to and are not registered yet, about, in a process that pages.
pub(crate) static UNREGISTERED: AtomicUsize = AtomicUsize::new(0);

static CONTROL: OnceLock<Option<String>> = OnceLock::new();
/// What was standard error as the program began, by device and inode.
static STANDARD_ERROR: OnceLock<(u64, u64)> = OnceLock::new();
/// What there is of a keeper: one of the three below.
static KEEPER: AtomicU32 = AtomicU32::new(NO_KEEPER);
const NO_KEEPER: u32 = 0;
const HAS_KEEPER: u32 = 1;
/// There can be none: the process is not in a tree, or none can be started.
const NEVER_A_KEEPER: u32 = 2;
/// The end of the heap, once the program asked for it.
static BREAK: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn errno(e: Errno) -> i32 {
    e.0
}

/// How to reach the tree's supervisor, if this process is in a tree.
pub fn control() -> Option<&'static str> {
    CONTROL.get()?.as_deref()
}

/// Whether this process pages.
pub fn pages() -> bool {
    Process::current().is_some()
}

/// Whether the calling thread's memory may be paged one day: before `start` one cannot know, so yes.
pub fn wanted() -> bool {
    !thread::is_ours() && CONTROL.get().is_none_or(Option::is_some)
}

/// Starts the pager; called once, from the library's constructor, before any other library's.
/// Memory calls may come earlier than this.
pub fn start() {
    CONTROL.get_or_init(|| std::env::var("EBB_CONTROL").ok().filter(|v| !v.is_empty()));
    if !wanted() {
        let mut state = state::lock();
        state.ranges = Default::default();
        return;
    }
    if let Some(file) = standard_error() {
        let _ = STANDARD_ERROR.set(file);
    }
    failure::end_on_panic();
    errand::begin();
    program::begin();
    thread::prepare();
}

/// Starts the keeper, unless there is one.
pub(crate) fn start_first_keeper() {
    let none = || KEEPER.compare_exchange(NO_KEEPER, HAS_KEEPER, SeqCst, SeqCst);
    if control().is_some() && none().is_ok() {
        start_keeper_or_tell();
    }
}

/// Starts the keeper; a process that may have none is told of, and measured as a small one is.
pub(crate) fn start_keeper_or_tell() {
    let start = || start_keeper(Duration::ZERO).unwrap_or_else(tell_unmanaged);
    stack::borrow(start);
}

/// Tells, as no helper is there to do so, that this process runs unmanaged: on standard error, unless the program
/// closed that, and something else has its number by now.
fn tell_unmanaged(Errno(error): Errno) {
    let why = match error {
        libc::EAGAIN => {
            "no process may be started to serve it; raise `ulimit -u`, or pids.max of its cgroup"
        }
        libc::ENOTSUP => "none can be started to serve it here",
        _ => "none could be started to serve it",
    };
    if standard_error() != STANDARD_ERROR.get().copied() {
        return;
    }
    let mut line = [0u8; 256];
    let mut to = &mut line[..];
    let id = std::process::id();
    let _ = writeln!(
        to,
        "ebb: process {id} runs unmanaged, its memory stays in RAM: {why}"
    );
    let left = to.len();
    let len = line.len() - left;
    let args = [2, line.as_ptr() as c_long, len as c_long, 0, 0, 0];
    // SAFETY: so many bytes of the line are read. Not by libc's function, which is a point of cancellation.
    unsafe { raw::call(libc::SYS_write, args) };
}

/// Standard error, by device and inode.
fn standard_error() -> Option<(u64, u64)> {
    // SAFETY: one structure of ours, of which zeros are a value, is filled.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let args = [2, (&raw mut stat) as c_long, 0, 0, 0, 0];
        (raw::call(libc::SYS_fstat, args) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

/// Starts the keeper, and so the helper; where the system refuses it again and again for `patience`.
pub(crate) fn start_keeper(patience: Duration) -> Result<(), Errno> {
    let started = thread::start_helper(keeper::run, 0, patience);
    if started.is_err() {
        KEEPER.store(NEVER_A_KEEPER, SeqCst);
    }
    started
}

/// The keeper has nothing to do here, and ends.
pub(crate) fn keeper_ends() {
    KEEPER.store(NEVER_A_KEEPER, SeqCst);
    errand::retire();
    growth::news();
}

/// Whether there is none and never will be.
pub(crate) fn keeperless() -> bool {
    KEEPER.load(SeqCst) == NEVER_A_KEEPER
}

/// Whether there is a keeper, or in a forked child: its parent had one.
pub(crate) fn had_keeper() -> bool {
    KEEPER.load(SeqCst) == HAS_KEEPER
}

const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const NEVER: i32 =
    libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_LOCKED | libc::MAP_SHARED;
/// Linux gives MAP_SHARED_VALIDATE the bits of both; anything but plain private is not ours.
fn manageable(prot: i32, flags: i32) -> bool {
    flags & PRIVATE == PRIVATE && flags & NEVER == 0 && !only_code(prot)
}

/// What cannot be written cannot be moved out.
fn only_code(prot: i32) -> bool {
    prot & (libc::PROT_EXEC | libc::PROT_WRITE) == libc::PROT_EXEC
}

/// Forgets what was mapped in `start..end`; no page of it is in transit, and the memory itself is
/// gone already.
pub(crate) fn forget(state: &mut Locked, start: usize, end: usize) {
    let swap = Process::current().map(|p| p.swap);
    state.drop_pages(swap, cpu(), start, end);
    state.ranges.remove(start, end);
    state.map.forget(PageNumber::of(start), PageNumber::of(end));
}

/// `len` bytes from `start` on may be written to from now on, and are not registered. Waits for
/// that if they are many by now: what the program fills meanwhile goes past the budget.
fn writable(start: usize, len: usize) {
    if Process::current().is_none() {
        growth::grows(len);
    } else if UNREGISTERED.fetch_add(len, SeqCst) + len >= AT_ONCE {
        registered(start);
    }
}

/// Readies `start..end` for being dropped or replaced: waits until no page of it is in transit, and
/// accounts for those that forked relatives keep.
pub(crate) fn before_drop(state: Locked, start: usize, end: usize) -> Outcome<Locked> {
    let mut state = state::settled(state, start, end)?;
    if let Some(process) = Process::current() {
        process.before_drop(&mut state, start, end);
    }
    Ok(state)
}

/// Waits until the keeper has registered what was just mapped.
pub(crate) fn registered(start: usize) {
    let Some(process) = Process::current() else {
        return;
    };
    if thread::is_ours() {
        return process.register_new();
    }
    loop {
        let seen = keeper::ANSWERED.load(SeqCst);
        let range = stack::borrow(move || state::lock().ranges.find(start));
        if range.is_none_or(|r| r.attributes.registered) {
            return;
        }
        process.member.wake_self();
        futex::wait(
            &keeper::ANSWERED,
            seen,
            Some(Duration::from_millis(20)),
            false,
        );
    }
}

/// Waits until all of `start..end` that is ours is registered: then it is alike to the kernel.
pub(crate) fn all_registered(start: usize, end: usize) {
    let mut at = start;
    while Process::current().is_some() && at < end {
        let next = stack::borrow(move || state::lock().ranges.next(at, end));
        let Some(range) = next else { return };
        registered(range.start);
        at = range.end;
    }
}

/// The calling thread changed its user or groups. A child that shares our memory did so for itself.
pub fn user_changed() {
    if errand::is_child() {
        return;
    }
    ebb_sys::credentials::changed(|| {
        if let Some(process) = Process::current() {
            process.services.nudge();
            process.member.wake_self();
        } else if let Some(member) = fork::watching() {
            member.wake_self();
        }
    });
    user::changed();
}

/// `mmap(2)`. Requires: as the system call.
pub unsafe fn mmap(
    addr: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Outcome<usize> {
    // SAFETY: the caller answers for the system call.
    unsafe { map(addr, len, prot, flags, fd, offset, true) }
}

/// `mmap(2)` of what will not be filled as a whole: [`growth::grows`] is told of what will be.
/// Requires: as the system call.
pub unsafe fn reserve(
    addr: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Outcome<usize> {
    // SAFETY: as above.
    unsafe { map(addr, len, prot, flags, fd, offset, false) }
}

unsafe fn map(
    addr: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
    filled: bool,
) -> Outcome<usize> {
    // SAFETY: the caller answers for the system call.
    let plain = || unsafe { memory::mmap(addr, len, prot, flags, fd, offset) }.map_err(errno);
    let ours = manageable(prot, flags);
    if !(ours || flags & libc::MAP_FIXED != 0) {
        return plain();
    }
    // The keeper has not the file, which comes in the place of what it maps.
    let (of_keeper, prot_of_keeper) = match ours {
        true => (flags, prot),
        false => (EMPTY | libc::MAP_FIXED, libc::PROT_NONE),
    };
    let call = Call::Map {
        addr,
        len,
        prot: prot_of_keeper,
        flags: of_keeper,
        filled,
    };
    match errand::maker(call) {
        Maker::Plain => plain(),
        Maker::Done(Ok(_)) if !ours => plain(),
        Maker::Done(outcome) => outcome,
        // SAFETY: as above.
        Maker::Here => unsafe { map_here(addr, len, prot, flags, (fd, offset), filled) },
    }
}

/// Addresses that hold nothing and are not managed.
const EMPTY: i32 = PRIVATE | libc::MAP_NORESERVE | libc::MAP_STACK;

unsafe fn map_here(
    addr: usize,
    len: usize,
    prot: i32,
    flags: i32,
    (fd, offset): (i32, i64),
    filled: bool,
) -> Outcome<usize> {
    // SAFETY: the caller answers for the system call.
    let locked = move || unsafe { map_locked(addr, len, prot, flags, (fd, offset)) };
    let start = stack::borrow(locked)?;
    let fills = filled || Process::current().is_some();
    if manageable(prot, flags) && prot != libc::PROT_NONE && fills {
        writable(start, page_up(len));
    }
    Ok(start)
}

unsafe fn map_locked(
    addr: usize,
    len: usize,
    prot: i32,
    flags: i32,
    (fd, offset): (i32, i64),
) -> Outcome<usize> {
    let bytes = page_up(len);
    let fixed = flags & libc::MAP_FIXED != 0;
    let ours = manageable(prot, flags);
    let mut state = state::lock();
    let over = addr.saturating_add(bytes);
    let replaces = fixed && state.ranges.overlaps(addr, over);
    if replaces {
        state = before_drop(state, addr, over)?;
    }
    // SAFETY: the caller answers for the system call.
    let start = unsafe { memory::mmap(addr, len, prot, flags, fd, offset) }.map_err(errno)?;
    let end = start + bytes;
    errand::heed(&mut state);
    if state.ranges.overlaps(start, end) {
        // Replaced on purpose, or unmapped behind libc's back before.
        if !replaces {
            let unmap = |_: &i32| {
                // SAFETY: just mapped, and nobody knows of it yet.
                let _ = unsafe { memory::munmap(start, bytes) };
            };
            state = state::settled(state, start, end).inspect_err(unmap)?;
        }
        forget(&mut state, start, end);
    }
    if ours {
        state.ranges.insert(start, end, Attributes::mapped(prot));
    }
    Ok(start)
}

/// `munmap(2)`. Requires: as the system call.
pub unsafe fn munmap(addr: usize, len: usize) -> Outcome<()> {
    match errand::maker(Call::Unmap { addr, len }) {
        // SAFETY: the caller answers for the system call, here and below.
        Maker::Plain => unsafe { memory::munmap(addr, len) }.map_err(errno),
        Maker::Done(outcome) => outcome.map(drop),
        // SAFETY: as above.
        Maker::Here => stack::borrow(move || unsafe { unmap_locked(addr, len) }),
    }
}

unsafe fn unmap_locked(addr: usize, len: usize) -> Outcome<()> {
    let end = addr.saturating_add(page_up(len));
    let mut state = state::lock();
    if !state.ranges.overlaps(addr, end) {
        drop(state);
        // SAFETY: the caller answers for the system call.
        return unsafe { memory::munmap(addr, len) }.map_err(errno);
    }
    state = before_drop(state, addr, end)?;
    // SAFETY: as above.
    unsafe { memory::munmap(addr, len) }.map_err(errno)?;
    forget(&mut state, addr, end);
    Ok(())
}

/// `mprotect(2)`, and `pkey_mprotect(2)` with no key. Requires: as the system call.
pub unsafe fn mprotect(addr: usize, len: usize, prot: i32) -> Outcome<()> {
    match errand::maker(Call::Protect { addr, len, prot }) {
        // SAFETY: the caller answers for the system call, here and below.
        Maker::Plain => unsafe { memory::mprotect(addr, len, prot) }.map_err(errno),
        Maker::Done(outcome) => outcome.map(drop),
        // SAFETY: as above.
        Maker::Here => unsafe { protect_here(addr, len, prot) },
    }
}

unsafe fn protect_here(addr: usize, len: usize, prot: i32) -> Outcome<()> {
    // SAFETY: the caller answers for the system call.
    let opens = stack::borrow(move || unsafe { protect_locked(addr, len, prot) })?;
    if opens {
        writable(addr, page_up(len));
    }
    Ok(())
}

/// True if it may be filled from now on, and is not registered.
unsafe fn protect_locked(addr: usize, len: usize, prot: i32) -> Outcome<bool> {
    let end = addr.saturating_add(page_up(len));
    let mut state = state::lock();
    if state.ranges.overlaps(addr, end) {
        state = state::settled(state, addr, end)?;
    }
    // SAFETY: the caller answers for the system call.
    unsafe { memory::mprotect(addr, len, prot) }.map_err(errno)?;
    if !state.ranges.overlaps(addr, end) {
        return Ok(false);
    }
    change(&mut state, addr, end, |a| a.protection = prot);
    let range = state.ranges.find(addr);
    Ok(prot != libc::PROT_NONE && range.is_some_and(|r| !r.attributes.registered))
}

/// Changes attributes; pages that may be evicted now join the queue again.
pub(crate) fn change(state: &mut Locked, start: usize, end: usize, f: impl Fn(&mut Attributes)) {
    state.ranges.change(start, end, f);
    let State { map, queue, .. } = &mut **state;
    let mut last = None;
    let mut at = PageNumber::of(start);
    let end = PageNumber::of(end);
    // One unit at a time: the map cannot change while it is walked.
    while at < end {
        let mut found = None;
        map.each(at, end, |number, page| {
            if matches!(page, Page::Resident(_)) {
                found = Some(number);
                return std::ops::ControlFlow::Break(());
            }
            Continue(())
        });
        let Some(number) = found else { return };
        if last.replace(number.unit()) != Some(number.unit()) {
            queue.requeue(map, number.unit());
        }
        at = number.unit().first().plus(crate::map::UNIT);
    }
}

/// `brk(2)` as the system call has it: asks for a break, answers the break there is.
pub unsafe fn brk_set(addr: usize) -> Outcome<usize> {
    match errand::maker(Call::Break { addr }) {
        Maker::Plain => {
            // SAFETY: the caller answers for the system call, here and below.
            let now = unsafe { memory::brk(addr) };
            BREAK.store(page_up(now), SeqCst);
            Ok(now)
        }
        Maker::Done(outcome) => outcome,
        // SAFETY: as above.
        Maker::Here => unsafe { break_here(addr) },
    }
}

/// The end of the heap.
pub(crate) fn known_break() -> usize {
    match BREAK.load(SeqCst) {
        // SAFETY: asks for nothing.
        0 => page_up(unsafe { memory::brk(0) }),
        known => known,
    }
}

unsafe fn break_here(addr: usize) -> Outcome<usize> {
    // SAFETY: the caller answers for the system call.
    let (now, grown) = stack::borrow(move || unsafe { break_locked(addr) })?;
    if grown > 0 {
        writable(page_up(now) - grown, grown);
    }
    Ok(now)
}

/// The break, and by how many bytes what is managed grew.
unsafe fn break_locked(addr: usize) -> Outcome<(usize, usize)> {
    let mut state = state::lock();
    let old = known_break();
    if addr < old && addr != 0 {
        state = before_drop(state, page_up(addr), old)?;
    }
    // SAFETY: the caller answers for the system call.
    let now = unsafe { memory::brk(addr) };
    let top = page_up(now);
    if top < old {
        forget(&mut state, top, old);
    } else if top > old {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        errand::heed(&mut state);
        state.ranges.insert(old, top, Attributes::mapped(prot));
    }
    BREAK.store(top, SeqCst);
    Ok((now, top.saturating_sub(old)))
}

/// In the keeper: makes the call of a child that shares this memory, as any thread would its own, but for
/// waits: [`errand::LATER`]. Requires: as the system call.
pub(crate) unsafe fn make(call: Call) -> Outcome<usize> {
    // SAFETY: the child answers for the system call.
    unsafe {
        match call {
            Call::Map {
                addr,
                len,
                prot,
                flags,
                filled,
            } => map_here(addr, len, prot, flags, (-1, 0), filled),
            Call::Unmap { addr, len } => unmap_locked(addr, len).map(|()| 0),
            Call::Protect { addr, len, prot } => protect_here(addr, len, prot).map(|()| 0),
            Call::Remap {
                old,
                old_len,
                new_len,
                flags,
                new_addr,
            } => remap::remap_here(old, old_len, new_len, flags, new_addr),
            Call::Advise { addr, len, advice } => {
                advice::advise_locked(addr, len, advice).map(|()| 0)
            }
            Call::Break { addr } => break_here(addr),
            Call::Exclude { start, end } => pinned::exclude_locked(start, end).map(usize::from),
        }
    }
}

pub use crate::advice::{madvise, process_madvise};
pub use crate::cede::cede;
pub use crate::fork::{after_fork_child, after_fork_parent, before_fork, make_ready};
pub use crate::growth::grows;
pub use crate::pinned::{exclude, mlock, mlockall, munlock, munlockall};
pub use crate::remap::mremap;
