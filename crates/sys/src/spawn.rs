//! How threads of our own come to be, and how they know themselves.
//!
//! *In a fresh program* by libc's own `pthread_create`, on stacks that lie in one area: so a
//! thread of ours knows itself by its stack, and its control block, which libc puts at the top of
//! the stack, is in memory of ours too.
//!
//! *In a forked child* libc cannot be asked. Its start-up of a thread takes locks that nobody holds
//! any more in the child of `_Fork` or `clone`, and reads memory of the program (the locale) that
//! may be out, when the thread is just what is needed to bring it in. But the child has copies of
//! the stacks and control blocks of its parent's threads of ours, complete and used by nobody: a
//! raw clone starts a new thread on each. libc does not know these threads, and need not: nothing
//! of what they call counts threads.
//!
//! Threads are numbered by the order in which they start, so the child's keeper gets what was its
//! parent's keeper's. A forked child that needs more threads than its parent had asks libc for
//! them, unless the fork left libc's locks as they were: then it does without.
//!
//! Protocol: whoever forks holds `lock_for_fork`, so that no control block is half made in the child.

use crate::Errno;
use crate::thread::id;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use std::time::Duration;

/// A thread's first function; it must not return.
pub type Entry = extern "C" fn(*mut libc::c_void) -> *mut libc::c_void;

type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Entry,
    *mut libc::c_void,
) -> libc::c_int;

type Clone = unsafe extern "C" fn(
    extern "C" fn(*mut libc::c_void) -> libc::c_int,
    *mut libc::c_void,
    libc::c_int,
    *mut libc::c_void,
    *mut libc::pid_t,
    *mut libc::c_void,
    *mut libc::pid_t,
) -> libc::c_int;

unsafe extern "C" {
    fn pthread_attr_setstack(
        attr: *mut libc::pthread_attr_t,
        stack: *mut libc::c_void,
        size: libc::size_t,
    ) -> libc::c_int;
}

/// Functions and data of libc's, looked up once.
struct Libc {
    create: AtomicPtr<libc::c_void>,
    clone: AtomicPtr<libc::c_void>,
    /// Where a thread's `struct rseq` lies, from its thread pointer; null in older libcs.
    rseq_offset: AtomicPtr<libc::c_void>,
    rseq_size: AtomicPtr<libc::c_void>,
}

static LIBC: Libc = Libc {
    create: AtomicPtr::new(std::ptr::null_mut()),
    clone: AtomicPtr::new(std::ptr::null_mut()),
    rseq_offset: AtomicPtr::new(std::ptr::null_mut()),
    rseq_size: AtomicPtr::new(std::ptr::null_mut()),
};

/// Looks up what `spawn` needs of libc, so that it need not: looking symbols up takes the loader's
/// lock, which the calling thread may hold later.
pub fn prepare_spawn() {
    for (place, name) in [
        (&LIBC.create, c"pthread_create"),
        (&LIBC.clone, c"clone"),
        (&LIBC.rseq_offset, c"__rseq_offset"),
        (&LIBC.rseq_size, c"__rseq_size"),
    ] {
        // SAFETY: a lookup by name.
        place.store(
            unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) },
            SeqCst,
        );
    }
}

const STACK: usize = 512 << 10;
pub(crate) const STACKS: usize = 80;
static AREA: AtomicUsize = AtomicUsize::new(usize::MAX);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Held while a thread of ours is started, and across forks: 0 free, 1 held.
static SPAWNING: AtomicU32 = AtomicU32::new(0);
/// The thread that is starting one of ours: what libc allocates for it meanwhile is ours too.
static STARTING: AtomicU32 = AtomicU32::new(0);
/// libc's locks may be held by threads that this process does not have.
static LIBC_STUCK: AtomicBool = AtomicBool::new(false);

/// What is kept of a started thread for its successor in a forked child.
struct Seat {
    /// Its thread pointer; 0 while no thread has been here.
    pointer: AtomicUsize,
    entry: AtomicPtr<libc::c_void>,
    argument: AtomicPtr<libc::c_void>,
    /// The process in which libc does not know the thread that is here; 0 for none.
    raw_in: AtomicU32,
}

static SEATS: [Seat; STACKS] = [const {
    Seat {
        pointer: AtomicUsize::new(0),
        entry: AtomicPtr::new(std::ptr::null_mut()),
        argument: AtomicPtr::new(std::ptr::null_mut()),
        raw_in: AtomicU32::new(0),
    }
}; STACKS];

/// The numbers of this process's threads that libc does not know.
pub(crate) fn raw_threads() -> impl Iterator<Item = usize> {
    // Not those of the parent of a vfork, whose memory this may be.
    let here = std::process::id();
    (0..TAKEN.load(SeqCst)).filter(move |n| SEATS[*n].raw_in.load(SeqCst) == here)
}

/// The number of the calling thread, if it is one of ours.
pub(crate) fn number() -> Option<usize> {
    let here = 0u8;
    let at = (&raw const here) as usize;
    let number = at.wrapping_sub(AREA.load(Relaxed)) / STACK;
    (number < STACKS).then_some(number)
}

/// Whether the caller is a thread of ours, or is starting one. Such a thread must never be given
/// memory of the program: it may have to serve the faults on it.
#[inline(always)]
pub fn is_ours() -> bool {
    let here = 0u8;
    let at = (&raw const here) as usize;
    at.wrapping_sub(AREA.load(Relaxed)) < STACK * STACKS || is_starting()
}

/// Whether the caller may use descriptors that threads of ours opened: in a managed process only
/// those threads share the table that has them; the same numbers are other files to the program.
pub fn has_our_descriptors() -> bool {
    AREA.load(Relaxed) == usize::MAX || is_ours()
}

#[inline(always)]
fn is_starting() -> bool {
    let starting = STARTING.load(Relaxed);
    starting != 0 && is_this(starting)
}

#[cold]
#[inline(never)]
fn is_this(thread: u32) -> bool {
    thread == id()
}

fn lock_spawning() {
    while SPAWNING.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
        crate::futex::wait(&SPAWNING, 1, Some(Duration::from_millis(1)), false);
    }
}

fn unlock_spawning() {
    SPAWNING.store(0, SeqCst);
    crate::futex::wake(&SPAWNING, 1, false);
}

/// Waits until no thread of ours is being started, and lets none start until the fork is over.
pub fn lock_for_fork() {
    lock_spawning();
}

/// The fork is over, in the parent.
pub fn unlock_after_fork() {
    unlock_spawning();
}

/// In a forked child: none of our threads came along; their stacks are free. `libc_stuck`: the fork
/// left libc's locks as they were while other threads may have held them.
pub fn forget_threads(libc_stuck: bool) {
    TAKEN.store(0, SeqCst);
    STARTING.store(0, SeqCst);
    LIBC_STUCK.fetch_or(libc_stuck, SeqCst);
    unlock_spawning();
}

/// Whether `threads` more can be started, as far as can be told before.
pub fn can_spawn(threads: usize) -> bool {
    let taken = TAKEN.load(SeqCst);
    let Some(seats) = SEATS.get(taken..taken + threads) else {
        return false;
    };
    !LIBC_STUCK.load(SeqCst) || seats.iter().all(|seat| seat.pointer.load(SeqCst) != 0)
}

/// Starts a thread that the program's interposed `pthread_create` does not see, with every
/// signal blocked but libc's for a change of user. It is never joined and must not end.
///
/// Requires: `argument` stays valid for the thread.
///
/// # Errors
/// ENOTSUP if there are too many, or libc cannot be asked in this forked child; else libc's or the
/// kernel's: EAGAIN after trying for a while.
pub unsafe fn spawn(entry: Entry, argument: *mut libc::c_void) -> Result<(), Errno> {
    // What the new thread blocks, too.
    let _blocked = crate::signal::Blocked::all_but_changes_of_user();
    let mut patience = PATIENCE;
    loop {
        lock_spawning();
        // SAFETY: passed on to the caller; the lock is held.
        let result = unsafe { spawn_locked(entry, argument) };
        unlock_spawning();
        match result {
            Err(Errno(libc::EAGAIN)) if !patience.is_zero() => {
                // A fork need not wait for that.
                std::thread::sleep(PAUSE);
                patience -= PAUSE;
            }
            other => return other,
        }
    }
}

/// Requires: as `spawn`, and the lock is held.
unsafe fn spawn_locked(entry: Entry, argument: *mut libc::c_void) -> Result<(), Errno> {
    if AREA.load(SeqCst) == usize::MAX {
        AREA.store(crate::memory::reserve(STACK * STACKS)?, SeqCst);
    }
    if LIBC.create.load(SeqCst).is_null() {
        prepare_spawn();
    }
    let number = TAKEN.load(SeqCst);
    let seat = SEATS.get(number).ok_or(Errno(libc::ENOTSUP))?;
    seat.entry.store(entry as *mut libc::c_void, SeqCst);
    seat.argument.store(argument, SeqCst);
    // SAFETY: the stack of this number is used by no thread, and the seat says what to run.
    unsafe {
        if seat.pointer.load(SeqCst) != 0 {
            crate::user::started(number);
            seat.raw_in.store(std::process::id(), SeqCst);
            succeed(number).inspect_err(|_| seat.raw_in.store(0, SeqCst))?;
        } else if LIBC_STUCK.load(SeqCst) {
            return Err(Errno(libc::ENOTSUP));
        } else {
            create(number)?;
        }
    }
    TAKEN.store(number + 1, SeqCst);
    Ok(())
}

/// While another thread is in the midst of exec, the kernel refuses new ones that share its working
/// directory: EAGAIN. Soon the exec has ended this thread too, or it has failed.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Starts the first thread of a seat. Requires: nobody uses its stack; its entry is set.
unsafe fn create(number: usize) -> Result<(), Errno> {
    let create = LIBC.create.load(SeqCst);
    if create.is_null() {
        return Err(Errno(libc::ENOSYS));
    }
    let stack = AREA.load(SeqCst) + number * STACK;
    STARTING.store(id(), SeqCst);
    // SAFETY: calls libc's own function, whose type is as declared, with an attribute object
    // initialised before use and destroyed after; the stack is ours and used by no other thread.
    let (result, thread) = unsafe {
        let create: Create = std::mem::transmute(create);
        let mut attr: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut attr);
        libc::pthread_attr_setdetachstate(&mut attr, libc::PTHREAD_CREATE_DETACHED);
        pthread_attr_setstack(&mut attr, stack as *mut libc::c_void, STACK);
        let mut thread = 0;
        let result = create(&mut thread, &attr, first, number as *mut libc::c_void);
        libc::pthread_attr_destroy(&mut attr);
        (result, thread)
    };
    STARTING.store(0, SeqCst);
    if result != 0 {
        return Err(Errno(result));
    }
    // SAFETY: no arguments.
    let own = unsafe { libc::pthread_self() };
    // A thread pointer lies at the same distance from every thread's control block.
    let pointer = (thread as usize).wrapping_add(thread_pointer().wrapping_sub(own as usize));
    SEATS[number].pointer.store(pointer, SeqCst);
    Ok(())
}

/// Starts a thread on the copies of stack and control block that its predecessor, in the process
/// that forked this one, left. Requires: as `create`, and there was one.
unsafe fn succeed(number: usize) -> Result<(), Errno> {
    let clone = LIBC.clone.load(SeqCst);
    if clone.is_null() {
        return Err(Errno(libc::ENOSYS));
    }
    // The upper half of the stack has the control block and the program's static thread-locals.
    let top = AREA.load(SeqCst) + number * STACK + STACK / 2;
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS;
    // SAFETY: libc's own function, of the type declared; stack and control block are ours and used
    // by nobody. It returns in this thread alone.
    unsafe {
        let clone: Clone = std::mem::transmute(clone);
        let started = clone(
            next,
            top as *mut libc::c_void,
            flags,
            number as *mut libc::c_void,
            std::ptr::null_mut(),
            SEATS[number].pointer.load(SeqCst) as *mut libc::c_void,
            std::ptr::null_mut(),
        );
        if started < 0 {
            return Err(Errno(*libc::__errno_location()));
        }
    }
    Ok(())
}

extern "C" fn first(number: *mut libc::c_void) -> *mut libc::c_void {
    run(number as usize)
}

extern "C" fn next(number: *mut libc::c_void) -> libc::c_int {
    register_rseq();
    run(number as usize);
    SEATS[number as usize].raw_in.store(0, SeqCst);
    0
}

fn run(number: usize) -> *mut libc::c_void {
    let seat = &SEATS[number];
    // SAFETY: `spawn` wrote them there before it started this thread; the type is as it was given.
    let entry: Entry = unsafe { std::mem::transmute(seat.entry.load(SeqCst)) };
    entry(seat.argument.load(SeqCst))
}

/// Restartable sequences are a thread's own: where libc registered its threads (`sched_getcpu`
/// reads the processor there), so must be one that libc does not know. If that fails, libc is told
/// to ask the kernel instead.
fn register_rseq() {
    const LENGTH: usize = 32;
    const SIGNATURE: u32 = 0x5305_3053;
    const UNINITIALIZED: i32 = -1;
    let (offset, size) = (LIBC.rseq_offset.load(SeqCst), LIBC.rseq_size.load(SeqCst));
    if offset.is_null() || size.is_null() {
        return;
    }
    // SAFETY: libc's constants, of these types; where the size is not 0 the area of this thread is at
    // the offset, and no other thread's registration names it.
    unsafe {
        if size.cast::<libc::c_uint>().read() == 0 {
            return;
        }
        let area = (thread_pointer() as isize + offset.cast::<isize>().read()) as *mut i32;
        // The first words: on which processor the sequence started, and which this is.
        area.write_volatile(0);
        area.add(1).write_volatile(UNINITIALIZED);
        area.add(2).cast::<u64>().write_volatile(0);
        libc::syscall(libc::SYS_rseq, area, LENGTH, 0, SIGNATURE);
    }
}

/// This thread's thread pointer.
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads the word at the thread pointer, which the ABI has point to itself.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}
