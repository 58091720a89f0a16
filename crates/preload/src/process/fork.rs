//! Forks: the pager and every lock of ours are at rest while the system copies the process.
//!
//! That is for the one system call which copies it, and no longer. On the way of `fork`, libc may need memory that is
//! out before and after it, and locks whose holders do. So on a thread in one of libc's forking functions the call is
//! caught (`ebb_sys::syscall_trap`) and made by [`copy`]. In the child that returns when all memory is served. Words
//! that the kernel would store in the program's memory on the way are stored by us, afterwards, in parent and child.
//!
//! `fork`, `forkpty` and `daemon` run the handlers of `pthread_atfork`; `_Fork` and `clone` without `CLONE_VM`
//! are wrapped, and `syscall` for the same by number. `vfork`, `posix_spawn`, `system` and `popen` share the
//! address space until the exec and need nothing. A parent that asks to be suspended until a copy's exec waits when
//! all locks are free again ([`copied_vfork`]).
//!
//! A process with one thread that does not page needs no trap: nothing of it is out, and nobody holds a lock.
//! There the locks are held from the handler before the fork to the one after it. A process that pages where
//! the system refuses the trap (a filter of its own) has children that nobody of ours sees.
//!
//! Where every place in the tree's table is taken, and stays so, a fork fails with EAGAIN. Without the trap, and with
//! nothing held, its child is one that nobody of ours sees.
//!
//! Lock order: the turn to fork → mimalloc → pager → internal heap.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};

use ebb_pager::hooks;
use ebb_sys::futex_lock::FutexLock;
use ebb_sys::heap::InternalHeap;
use ebb_sys::signal::Blocked;
use ebb_sys::syscall_trap::{self, Call, Copied, Forking};
use ebb_sys::{memory, raw, secret, stack};

use crate::process::copied_vfork::{self, Pipe};
use crate::symbols::dlsym_next::{DlsymNext, libc_dlsym};
use crate::symbols::errno::{keeping_errno, not_there};

unsafe extern "C" {
    // csrc/allocator.c
    fn ebb_malloc_before_fork();
    fn ebb_malloc_after_fork();
    fn ebb_malloc_after_fork_in_child();
}

unsafe extern "C" {
    // csrc/glue.c
    static __dso_handle: *mut c_void;
    // libc's part of pthread_atfork(3).
    fn __register_atfork(
        before: unsafe extern "C" fn(),
        parent: unsafe extern "C" fn(),
        child: unsafe extern "C" fn(),
        library: *mut c_void,
    ) -> c_int;
}

type CloneEntry = unsafe extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(
    CloneEntry,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

// SAFETY: the types are those of the manual pages.
static FORK_ALONE: DlsymNext<unsafe extern "C" fn() -> libc::pid_t> =
    unsafe { DlsymNext::new(c"_Fork") };
// SAFETY: as above; what follows the fourth argument is variadic, passed as if declared.
static CLONE: DlsymNext<Clone> = unsafe { DlsymNext::new(c"clone") };
/// Whether libc has seen one thread alone; null in older ones.
static SINGLE_THREADED: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

pub fn resolve() {
    FORK_ALONE.get();
    CLONE.get();
    // SAFETY: no handle.
    let single = unsafe { libc_dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded") };
    SINGLE_THREADED.store(single.cast_mut().cast(), SeqCst);
}

/// Registers the handlers. Being the first to register makes ours the last before a fork
/// and the first after it, so the handlers of the program run with the pager at work.
pub fn register() {
    // `pthread_atfork` itself is code in each library, which would be one more page to load.
    // SAFETY: the handlers live as long as the process (`-z nodelete`); the handle is that of this library.
    unsafe { __register_atfork(before, after_in_parent, after_in_child, __dso_handle) };
}

/// Held while it is some thread's turn to fork.
static TURN: FutexLock = FutexLock::new();
/// That thread. It is known by where its `errno` lies: a filter of the program's may not let it ask for its number.
static FORKER: AtomicUsize = AtomicUsize::new(0);
/// It holds the locks, without a trap.
static HOLDS: AtomicBool = AtomicBool::new(false);

fn take_turn() {
    TURN.acquire();
    FORKER.store(own_errno(), SeqCst);
}

fn own_errno() -> usize {
    // SAFETY: asks for an address alone.
    unsafe { libc::__errno_location() as usize }
}

/// Called with all signals blocked, as the thread may have to wait for its child.
extern "C" fn end_turn() {
    let wait = copied_vfork::take();
    FORKER.store(0, SeqCst);
    TURN.release();
    wait.wait();
}

const FORKING: Forking = Forking {
    copy,
    over: end_turn,
};

/// Where there is no place for a child: libc's function fails as its call does.
const REFUSED: Forking = Forking {
    copy: refuse,
    over: end_turn,
};

/// As the kernel says that there are too many processes.
const TOO_MANY: c_long = -(libc::EAGAIN as c_long);

/// The deed in a fork's call, once the process is as ready for it as it gets.
fn forking() -> Forking {
    match hooks::make_ready() {
        true => FORKING,
        false => REFUSED,
    }
}

unsafe fn refuse(_: Call) -> Copied {
    Copied {
        result: TOO_MANY,
        stack: 0,
    }
}

/// Whether what libc does around the copy may need what is at rest then.
fn needs_trap() -> bool {
    // SAFETY: null, or libc's variable.
    let single = unsafe { SINGLE_THREADED.load(SeqCst).as_ref() };
    hooks::pages() || single.is_none_or(|single| *single == 0)
}

unsafe extern "C" fn before() {
    // A handler that forks would wait for the turn of its own thread.
    let mut signals = Blocked::all();
    take_turn();
    let forking = forking();
    // SAFETY: this thread's turn; libc calls the handlers on the way of its fork.
    unsafe {
        if needs_trap() {
            match syscall_trap::arm(forking, signals) {
                Ok(()) => return,
                Err(back) => signals = back,
            }
        }
        if stack::borrow(hold_unpaged) {
            *SIGNALS.0.get() = Some(signals);
            return HOLDS.store(true, SeqCst);
        }
        if let Err(_signals) = syscall_trap::arm(forking, signals) {
            end_turn();
        }
    }
}

/// Takes the locks, unless the process pages by now: what libc does next may need the pager then.
fn hold_unpaged() -> bool {
    // SAFETY: what takes the locks, and what gives them back where no call follows.
    unsafe {
        if !hold() {
            return false;
        }
        let pages = hooks::pages();
        if pages {
            release_in_parent(Some(NO_CHILD));
        }
        !pages
    }
}

/// The signals of the thread that holds the locks: a handler would wait for them.
struct Signals(UnsafeCell<Option<Blocked>>);
// SAFETY: only the thread whose turn it is uses it.
unsafe impl Sync for Signals {}
static SIGNALS: Signals = Signals(UnsafeCell::new(None));

/// In the place of a child's number: there is none.
const NO_CHILD: i32 = -1;

unsafe extern "C" fn after_in_parent() {
    // SAFETY: libc calls it after `before`.
    unsafe { finish_in_parent(None) }
}

/// After libc's part, in the parent; `child`: what the fork answered, where that is known. A caught call is finished
/// by then, and the turn another's, perhaps. `errno` stays what libc made it.
unsafe fn finish_in_parent(child: Option<i32>) {
    if FORKER.load(SeqCst) != own_errno() {
        return;
    }
    // SAFETY: the location is this thread's.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    // SAFETY: this thread's turn, and so what it armed or holds.
    let signals = unsafe {
        if HOLDS.swap(false, SeqCst) {
            release_in_parent(child);
            (*SIGNALS.0.get()).take()
        } else {
            syscall_trap::disarm()
        }
    };
    end_turn();
    drop(signals);
    *errno = before;
}

unsafe extern "C" fn after_in_child() {
    if HOLDS.load(SeqCst) {
        // SAFETY: the copy of this thread took the locks.
        unsafe {
            begin_child();
            *SIGNALS.0.get() = None;
        }
    }
}

/// Brings the process to rest, and takes the locks. False: there is no place for a child, and no lock is held.
unsafe fn hold() -> bool {
    // SAFETY: each lock is released by the matching function below, or here.
    unsafe {
        loop {
            ebb_malloc_before_fork();
            if hooks::before_fork() {
                break;
            }
            ebb_malloc_after_fork();
            if !hooks::make_ready() {
                return false;
            }
        }
    }
    secret::lock_for_fork();
    InternalHeap::lock_for_fork();
    true
}

/// After the copy, in the parent; `child` as the call answered it, where it is known.
unsafe fn release_in_parent(child: Option<i32>) {
    // SAFETY: `hold` took the locks, on this thread.
    unsafe {
        InternalHeap::unlock_in_parent();
        secret::unlock_after_fork();
        hooks::after_fork_parent(child);
        ebb_malloc_after_fork();
    }
}

/// The first in a child.
unsafe fn begin_child() {
    HOLDS.store(false, SeqCst);
    FORKER.store(0, SeqCst);
    TURN.release();
    copied_vfork::leave();
    // SAFETY: the copy of this thread took the locks.
    unsafe {
        InternalHeap::unlock_in_child();
        secret::unlock_after_fork();
        hooks::after_fork_child();
        ebb_malloc_after_fork_in_child();
    }
}

/// Makes a call that copies the process. On a stack of ours, with all signals blocked, on the thread whose turn
/// it is. The turn ends when that stack is left.
unsafe fn copy(call: Call) -> Copied {
    // SAFETY: the program's call.
    unsafe {
        let Some(mut request) = Request::of(call) else {
            // As the kernel answers it: there is no child then that would need us.
            let result = raw::call(call.number, call.args);
            return Copied { result, stack: 0 };
        };
        let pipe = Pipe::of(request.args.flags);
        if pipe.is_some() {
            request.args.flags &= !VFORK;
        }
        if !hold() {
            return refuse(call);
        }
        let result = request.make();
        if result == 0 {
            request.name_clear_tid();
            begin_child();
            if let Some(pipe) = pipe {
                pipe.keep_in_child();
            }
            request.store_in_child();
            return Copied {
                result,
                stack: request.stack,
            };
        }
        let words = *WORDS.0.get();
        release_in_parent(Some(result as i32));
        if result > 0 {
            request.store_in_parent(words);
            if let Some(pipe) = pipe {
                pipe.keep_in_parent();
            }
        }
        Copied { result, stack: 0 }
    }
}

/// The kernel's `struct clone_args`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// A call that copies the process, as the kernel is asked for it, and what is done in its stead.
struct Request {
    args: CloneArgs,
    /// Bytes of them that are known here, or 0: the older call is made.
    len: usize,
    /// The place where the child goes on.
    stack: usize,
    /// The stores that the program wants.
    wanted: CloneArgs,
    /// The numbers that it wants for the child, in its PID namespaces.
    numbers: [u32; NUMBERS],
}

/// The kernel has no more PID namespaces in each other.
const NUMBERS: usize = 32;

/// Written by the kernel in the program's stead: the child's number and its pidfd for the parent, and in the child its
/// number.
struct Words(UnsafeCell<[u32; 3]>);
// SAFETY: only the thread whose turn it is uses them.
unsafe impl Sync for Words {}
static WORDS: Words = Words(UnsafeCell::new([0; 3]));

const VFORK: u64 = libc::CLONE_VFORK as u64;
const SETTLS: u64 = libc::CLONE_SETTLS as u64;
const PARENT_SETTID: u64 = libc::CLONE_PARENT_SETTID as u64;
const CHILD_SETTID: u64 = libc::CLONE_CHILD_SETTID as u64;
const CHILD_CLEARTID: u64 = libc::CLONE_CHILD_CLEARTID as u64;
const PIDFD: u64 = libc::CLONE_PIDFD as u64;

/// Whether the structure of a call goes on with zeros, so that it is one that is known here. The kernel takes none
/// that is longer than a page.
fn has_nothing_more(mut from: usize, mut len: usize) -> bool {
    const LONGEST: usize = 4096;
    let mut bytes = [0; 64];
    if len > LONGEST {
        return false;
    }
    while len > 0 {
        let part = len.min(bytes.len());
        let read = memory::read_own(from, &mut bytes[..part]).is_ok();
        if !read || bytes[..part].iter().any(|byte| *byte != 0) {
            return false;
        }
        (from, len) = (from + part, len - part);
    }
    true
}

/// The numbers that a call asks for. None: the kernel refuses it for them.
fn numbers(wanted: &CloneArgs) -> Option<[u32; NUMBERS]> {
    let mut bytes = [0; NUMBERS * size_of::<u32>()];
    let count = wanted.set_tid_size as usize;
    if wanted.set_tid != 0 {
        let bytes = bytes.get_mut(..count.checked_mul(size_of::<u32>())?)?;
        memory::read_own(wanted.set_tid as usize, bytes).ok()?;
    }
    let mut numbers = [0; NUMBERS];
    for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(size_of::<u32>())) {
        *number = u32::from_ne_bytes(bytes.try_into().ok()?);
    }
    Some(numbers)
}

impl Request {
    /// None: what it names cannot be read or written.
    unsafe fn of(call: Call) -> Option<Self> {
        let [a, b, c, d, e, _] = call.args.map(|arg| arg as u64);
        let mut len = 0;
        let wanted = match call.number {
            libc::SYS_clone3 => {
                let mut bytes = [0; size_of::<CloneArgs>()];
                len = (b as usize).min(bytes.len());
                memory::read_own(a as usize, &mut bytes[..len]).ok()?;
                has_nothing_more(a as usize + len, b as usize - len).then_some(())?;
                // SAFETY: words, of which any value is one.
                let args = unsafe {
                    core::mem::transmute::<[u8; size_of::<CloneArgs>()], CloneArgs>(bytes)
                };
                // The kernel refuses one without the other.
                ((args.stack == 0) == (args.stack_size == 0)).then_some(())?;
                args
            }
            libc::SYS_clone => CloneArgs {
                flags: a & !SIGNAL,
                exit_signal: a & SIGNAL,
                stack: b,
                // The older call has one place for both.
                pidfd: c,
                parent_tid: c,
                child_tid: d,
                tls: e,
                ..CloneArgs::default()
            },
            _ => CloneArgs {
                exit_signal: libc::SIGCHLD as u64,
                ..CloneArgs::default()
            },
        };
        let numbers = numbers(&wanted)?;
        let asks = |flag: u64| wanted.flags & flag != 0;
        // The kernel would say so before there is a child.
        if asks(PIDFD) {
            let mut word = [0; 4];
            memory::read_own(wanted.pidfd as usize, &mut word).ok()?;
            memory::write_own(wanted.pidfd as usize, &word).ok()?;
        }
        if asks(CHILD_CLEARTID) {
            // Written when the child ends, when nobody serves faults of its thread.
            // SAFETY: names the range only.
            unsafe { hooks::exclude(wanted.child_tid as usize, size_of::<u32>()) };
        }
        let words = WORDS.0.get() as u64;
        let mut args = wanted;
        args.flags &= !(SETTLS | CHILD_CLEARTID);
        args.flags |= CHILD_SETTID;
        (args.parent_tid, args.pidfd, args.child_tid) = (words, words + 4, words + 8);
        (args.stack, args.stack_size, args.tls) = (0, 0, 0);
        Some(Self {
            args,
            len,
            stack: (wanted.stack + wanted.stack_size) as usize,
            wanted,
            numbers,
        })
    }

    fn asks(&self, flag: u64) -> bool {
        self.wanted.flags & flag != 0
    }

    /// Makes it.
    unsafe fn make(&mut self) -> c_long {
        if self.args.set_tid != 0 {
            self.args.set_tid = (&raw const self.numbers) as u64;
        }
        let args = &self.args;
        let words = match self.asks(PIDFD) {
            true => args.pidfd,
            false => args.parent_tid,
        };
        let (number, call) = match self.len {
            0 => {
                let flags = args.flags | args.exit_signal;
                let args = [flags, 0, words, args.child_tid, 0, 0];
                (libc::SYS_clone, args.map(|arg| arg as c_long))
            }
            len => {
                let args = (&raw const *args) as c_long;
                (libc::SYS_clone3, [args, len as c_long, 0, 0, 0, 0])
            }
        };
        // SAFETY: the program's call, but for what it writes to; the child goes on here.
        unsafe { raw::call(number, call) }
    }

    /// Stores what the kernel would have, from what it was given instead.
    fn store_in_parent(&self, [tid, pidfd, _]: [u32; 3]) {
        let stores = [
            (PARENT_SETTID, self.wanted.parent_tid, tid),
            (PIDFD, self.wanted.pidfd, pidfd),
        ];
        for (_, at, word) in stores.into_iter().filter(|(flag, ..)| self.asks(*flag)) {
            let _ = memory::write_own(at as usize, &word.to_ne_bytes());
        }
    }

    /// In the child, first: the word that the kernel clears at its end, by which its helper learns of that.
    unsafe fn name_clear_tid(&self) {
        if self.asks(CHILD_CLEARTID) {
            let args = [self.wanted.child_tid as c_long, 0, 0, 0, 0, 0];
            // SAFETY: names a word, to be cleared and woken when the thread ends.
            unsafe { raw::call(libc::SYS_set_tid_address, args) };
        }
    }

    /// The same in the child, and its thread-locals.
    unsafe fn store_in_child(&self) {
        const SET_FS: c_long = 0x1002;
        if self.asks(CHILD_SETTID) {
            // SAFETY: the child has this thread alone.
            let [.., id] = unsafe { *WORDS.0.get() };
            let _ = memory::write_own(self.wanted.child_tid as usize, &id.to_ne_bytes());
        }
        if self.asks(SETTLS) {
            let args = [SET_FS, self.wanted.tls as c_long, 0, 0, 0, 0];
            // SAFETY: what the program wanted; nothing of ours uses thread-locals after this.
            unsafe { raw::call(libc::SYS_arch_prctl, args) };
        }
    }
}

/// The signal at the child's end, in the flags of the older call.
const SIGNAL: u64 = 0xff;

/// A call by number, whose child returns as its caller does.
///
/// # Safety
/// That of the system call.
pub unsafe fn by_number(number: c_long, args: [c_long; 6]) -> c_long {
    let _signals = Blocked::all();
    take_turn();
    let forking = forking();
    let call = Call { number, args };
    // SAFETY: this thread's turn.
    let copied = stack::borrow(move || unsafe { (forking.copy)(call) });
    end_turn();
    copied.result
}

/// `fork` without the handlers of `pthread_atfork`.
///
/// # Safety
/// `_Fork(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let Some(fork_alone) = FORK_ALONE.get() else {
        // libc is older than `_Fork`, so the program cannot have meant this symbol.
        return not_there();
    };
    // SAFETY: handlers in their order around the fork.
    unsafe {
        before();
        match fork_alone() {
            0 => {
                after_in_child();
                0
            }
            child => {
                finish_in_parent(Some(child));
                child
            }
        }
    }
}

/// A call with these flags is about to be made that copies no memory, and the word at `child_tid` is the child's.
pub fn prepare_sharing(flags: c_int, child_tid: usize) {
    /// A thread, or a child whose exec is waited for: it maps little.
    const OTHER: c_int = libc::CLONE_THREAD | libc::CLONE_VFORK;
    if flags & libc::CLONE_VM == 0 {
        return;
    }
    keeping_errno(|| {
        if flags & OTHER == 0 {
            hooks::prepare_sharing();
        }
        if flags & libc::CLONE_CHILD_CLEARTID != 0 {
            // Written when the thread ends, when nobody serves faults of its.
            // SAFETY: names the range only.
            unsafe { hooks::exclude(child_tid, size_of::<u32>()) };
        }
    });
}

/// # Safety
/// `clone(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    entry: CloneEntry,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    let Some(next) = CLONE.get() else {
        return not_there();
    };
    // SAFETY: the caller's call as it stands, here and below.
    let call = || unsafe { next(entry, stack, flags, arg, parent_tid, tls, child_tid) };
    if flags & libc::CLONE_VM != 0 {
        prepare_sharing(flags, child_tid as usize);
        return call();
    }
    let signals = Blocked::all();
    take_turn();
    let forking = forking();
    // SAFETY: this thread's turn, and libc's function makes that call alone. Where it cannot be caught the
    // child is one that nobody of ours sees.
    unsafe {
        if let Err(_signals) = syscall_trap::arm(forking, signals) {
            end_turn();
        }
        let child = call();
        // Where libc refused it without a call.
        finish_in_parent(Some(child));
        child
    }
}
