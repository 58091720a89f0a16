//! Tasks of our own in the memory of a program: the *helper*.
//!
//! Threads of ours must have the program's memory, and nothing else of it. As threads of its process they
//! would make it one with several threads (no new user namespace, no sandbox that looks at
//! `/proc/self/task`), would be stopped by debuggers while somebody waits for them to serve a fault, and
//! would take on its seccomp filters, its root and its limits. So they are a process of their own, which the
//! program does not know of as a child either:
//!
//! 1. A thread of the program makes a *go-between* and waits for it; that makes the helper and ends. The
//!    helper thus has no parent but the nearest subreaper, the supervisor, and neither its end nor an exec of
//!    the program's sends the program SIGCHLD. Neither is traced (`CLONE_UNTRACED`).
//! 2. The helper leaves the process group, takes a table of descriptors of its own with nothing in it, and
//!    calls what it was made for. Threads that it starts are of its thread group. It stays in the session: the
//!    scheduler weighs sessions against each other (autogroups), and in one of its own a thread with idle
//!    urgency would compete with the program's.
//!
//! Where the program is the first process of its PID namespace, or a subreaper itself, it would become the
//! helper's parent, and wait for it like for any child. There the helper is its child from the beginning, one
//! that tells nobody of its end and that no `wait` sees but one for such (`__WALL`).
//!
//! libc knows none of these tasks: their control blocks are made by [`crate::control_block`], their stacks
//! lie in one area, by which a task of ours knows itself. Tasks are numbered in the order in which they
//! start. A forked child has the same areas, empty (MADV_WIPEONFORK), and starts a helper of its own.
//!
//! What it does not do: say when the program has ended, which is `program`.

use crate::control_block::Template;
use crate::thread::TaskName;
use crate::{Errno, memory, raw, signal};
use libc::c_long;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// A task's first function; it never returns.
pub type Entry = extern "C" fn(usize) -> !;

const STACK: usize = 256 << 10;
pub(crate) const TASKS: usize = 80;
/// The stack of the go-between, which runs a few instructions.
const BETWEEN: usize = TASKS;
const STACKS: usize = STACK * (TASKS + 1);

/// Where the stacks lie, and the control blocks; `NOWHERE` until there is a helper.
static STACK_AREA: AtomicUsize = AtomicUsize::new(NOWHERE);
static BLOCK_AREA: AtomicUsize = AtomicUsize::new(NOWHERE);
const NOWHERE: usize = usize::MAX;
/// Tasks started in this process.
static STARTED: AtomicUsize = AtomicUsize::new(0);
static TEMPLATE: OnceLock<Option<Template>> = OnceLock::new();

/// What a task is to run.
struct Order {
    entry: AtomicPtr<()>,
    argument: AtomicUsize,
}

static ORDERS: [Order; TASKS] = [const {
    Order {
        entry: AtomicPtr::new(std::ptr::null_mut()),
        argument: AtomicUsize::new(0),
    }
}; TASKS];

/// The helper's first task, by its number in the system; 0: there is none. The kernel clears it when that
/// ends, and wakes who waits for it.
static FIRST: AtomicU32 = AtomicU32::new(0);
/// What the go-between's call answered: a number, or an error's, negated.
static ANSWER: AtomicUsize = AtomicUsize::new(0);

/// Looks at what tasks will need of the calling thread. Called once, before another thread runs.
pub fn prepare() {
    TEMPLATE.get_or_init(Template::take);
}

/// How many tasks of ours there are.
pub(crate) fn started() -> usize {
    STARTED.load(SeqCst)
}

/// The number of the calling task, if it is one of ours.
pub(crate) fn number() -> Option<usize> {
    let here = 0u8;
    let at = (&raw const here) as usize;
    let number = at.wrapping_sub(STACK_AREA.load(Relaxed)) / STACK;
    (number < TASKS).then_some(number)
}

/// Whether the caller is a task of ours. Such a one must never be given memory of the program: it may have
/// to serve the faults on it.
#[inline(always)]
pub fn is_ours() -> bool {
    let here = 0u8;
    let at = (&raw const here) as usize;
    at.wrapping_sub(STACK_AREA.load(Relaxed)) < STACKS
}

/// Whether the caller may use descriptors that tasks of ours opened: in a managed process only those share
/// the table that has them; the same numbers are other files to the program.
pub fn has_our_descriptors() -> bool {
    STACK_AREA.load(Relaxed) == NOWHERE || is_ours()
}

/// Whether this process's helper lives, as far as its first task tells.
pub fn helper_lives() -> bool {
    FIRST.load(SeqCst) != 0
}

/// On a task of ours: ends the helper.
pub fn end_helper() -> ! {
    // SAFETY: ends all tasks of ours.
    unsafe { raw::call(libc::SYS_exit_group, [0; 6]) };
    unreachable!("exit_group returns to nobody")
}

/// In a forked child: there is no helper yet.
pub fn forget() {
    STARTED.store(0, SeqCst);
    FIRST.store(0, SeqCst);
    crate::proc::forget_directory();
}

/// Starts the helper, on a thread of the program; it runs `entry`. All of its signals are blocked.
///
/// # Errors
/// ENOTSUP where a control block cannot be made, or where the caller's children would be in another PID
/// namespace; else the kernel's: EAGAIN after `patience`.
pub fn start_helper(entry: Entry, argument: usize, patience: Duration) -> Result<(), Errno> {
    if !crate::proc::children_stay_in_namespace() {
        return Err(Errno(libc::ENOTSUP));
    }
    make_areas()?;
    give_order(0, entry, argument);
    // Before it runs: it may start others at once.
    STARTED.store(1, SeqCst);
    crate::credentials::started(0);
    let _blocked = signal::Blocked::all();
    retried(patience, || {
        // SAFETY: nobody else uses the stack, as only one helper is started at a time, by whoever asked for it
        // first; and the first task's stack and block are used by nobody.
        unsafe {
            if adopts_orphans() {
                answered(make_helper())
            } else {
                let flags = BESIDE | libc::CLONE_VFORK as c_long;
                let between = clone(flags, top(BETWEEN), 0, 0, go_between, 0)?;
                reap(between);
                answered(ANSWER.load(SeqCst) as c_long)
            }
        }
    })
    .map(drop)
}

/// Whether the program becomes the parent of orphans among its descendants.
fn adopts_orphans() -> bool {
    let mut subreaper = 0;
    // SAFETY: writes one number of ours.
    let asked = unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut subreaper) };
    std::process::id() == 1 || asked == 0 && subreaper != 0
}

/// Starts a thread beside the calling task of ours; its number in the system.
///
/// # Errors
/// ENOTSUP if there are too many; else the kernel's: EAGAIN after trying for a while.
pub fn spawn(entry: Entry, argument: usize) -> Result<u32, Errno> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let flags = (libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS) as c_long
        | UNTRACED;
    let number = STARTED.load(SeqCst);
    if number >= TASKS {
        return Err(Errno(libc::ENOTSUP));
    }
    give_order(number, entry, argument);
    crate::credentials::started(number);
    let thread = retried(PATIENCE, || {
        // SAFETY: the stack and the block of this number are used by nobody.
        unsafe { clone(flags, top(number), block(number), 0, first, number) }
    })?;
    STARTED.store(number + 1, SeqCst);
    Ok(thread)
}

const UNTRACED: c_long = libc::CLONE_UNTRACED as c_long;
/// What go-between and helper have in common with the program; the descriptors until they have their own.
const BESIDE: c_long = (libc::CLONE_VM | libc::CLONE_FILES) as c_long | UNTRACED;

extern "C" fn go_between(_: usize) -> ! {
    // The helper has its name from the beginning: it shall not be taken for a process of the program's.
    crate::thread::set_name(TaskName::Helper);
    // SAFETY: the first task's stack and block are used by nobody; this task ends.
    unsafe {
        let answer = make_helper();
        ANSWER.store(answer as usize, SeqCst);
        raw::call(libc::SYS_exit, [0; 6]);
    }
    unreachable!("exit returns to nobody")
}

/// # Safety
/// The first task's stack and control block are used by nobody.
unsafe fn make_helper() -> c_long {
    let cleared = libc::CLONE_CHILD_CLEARTID | libc::CLONE_PARENT_SETTID | libc::CLONE_SETTLS;
    // SAFETY: by the caller's contract; the word outlives the task.
    let made = unsafe {
        let word = FIRST.as_ptr() as usize;
        clone(BESIDE | cleared as c_long, top(0), block(0), word, lead, 0)
    };
    match made {
        Ok(helper) => helper.into(),
        Err(Errno(error)) => -c_long::from(error),
    }
}

fn answered(answer: c_long) -> Result<u32, Errno> {
    u32::try_from(answer).map_err(|_| Errno(-answer as i32))
}

/// The helper's first function: see the module's text.
extern "C" fn lead(number: usize) -> ! {
    leave_program();
    first(number)
}

extern "C" fn first(number: usize) -> ! {
    if let Some(Some(template)) = TEMPLATE.get() {
        template.register_rseq();
    }
    let order = &ORDERS[number];
    // SAFETY: `give_order` wrote it there, of that type, before this task was made.
    let entry: Entry = unsafe { std::mem::transmute(order.entry.load(SeqCst)) };
    entry(order.argument.load(SeqCst))
}

/// Has nothing in common with the program any more but its memory.
fn leave_program() {
    crate::thread::set_name(TaskName::Helper);
    leave_descriptors();
    // SAFETY: no pointers but to a path.
    unsafe {
        raw::call(libc::SYS_setpgid, [0; 6]);
        raw::call(libc::SYS_chdir, [c"/".as_ptr() as c_long, 0, 0, 0, 0, 0]);
    }
    // What the program may open and write is not what its swap devices may.
    for resource in [libc::RLIMIT_FSIZE, libc::RLIMIT_NOFILE] {
        crate::thread::raise_limit(resource);
    }
}

/// Has a table of descriptors of its own, with nothing in it; where that cannot be, nothing may be opened.
fn leave_descriptors() {
    const UNSHARE: c_long = 1 << 1;
    let all = c_long::from(u32::MAX);
    let files = c_long::from(libc::CLONE_FILES);
    // SAFETY: no pointers. The table was the program's; what is closed is this task's copy.
    unsafe {
        if raw::call(libc::SYS_close_range, [0, all, UNSHARE, 0, 0, 0]) == 0 {
            return;
        }
        // A filter of the program's refuses the call.
        if raw::call(libc::SYS_unshare, [files, 0, 0, 0, 0, 0]) != 0 {
            end_helper();
        }
        let most = libc::sysconf(libc::_SC_OPEN_MAX).clamp(1024, 1 << 20);
        for fd in 0..most {
            raw::call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        }
    }
}

/// Makes the areas of stacks and control blocks, if there are none.
fn make_areas() -> Result<(), Errno> {
    let Some(Some(template)) = TEMPLATE.get() else {
        return Err(Errno(libc::ENOTSUP));
    };
    if STACK_AREA.load(SeqCst) == NOWHERE {
        BLOCK_AREA.store(fresh(template.bytes() * TASKS)?, SeqCst);
        STACK_AREA.store(fresh(STACKS)?, SeqCst);
    }
    Ok(())
}

/// Memory that a forked child has empty.
fn fresh(len: usize) -> Result<usize, Errno> {
    let start = memory::reserve(len)?;
    // SAFETY: advice on memory of ours, just mapped.
    unsafe { memory::madvise(start, len, libc::MADV_WIPEONFORK)? };
    Ok(start)
}

fn give_order(number: usize, entry: Entry, argument: usize) {
    let order = &ORDERS[number];
    order.entry.store(entry as *mut (), SeqCst);
    order.argument.store(argument, SeqCst);
}

fn top(number: usize) -> usize {
    STACK_AREA.load(SeqCst) + (number + 1) * STACK
}

/// A new control block for this number: its thread pointer.
///
/// # Safety
/// No task uses it, and there are areas.
unsafe fn block(number: usize) -> usize {
    let template = TEMPLATE
        .get()
        .and_then(Option::as_ref)
        .expect("there are areas");
    // SAFETY: by the caller's contract.
    unsafe { template.write(BLOCK_AREA.load(SeqCst) + number * template.bytes()) }
}

/// Waits for the go-between, which has ended.
fn reap(between: u32) {
    const WALL: c_long = libc::__WALL as c_long;
    // SAFETY: asks for nothing but the child's end. Another thread of the program may have been faster.
    unsafe { raw::call(libc::SYS_wait4, [between.into(), 0, WALL, 0, 0, 0]) };
}

/// `EAGAIN` of clone: too many processes at the moment.
fn retried<T>(
    mut patience: Duration,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    const PAUSE: Duration = Duration::from_millis(1);
    loop {
        match call() {
            Err(Errno(libc::EAGAIN)) if !patience.is_zero() => {
                std::thread::sleep(PAUSE);
                patience = patience.saturating_sub(PAUSE);
            }
            result => return result,
        }
    }
}

/// `clone(2)` with no signal at the end: the new task calls `entry(argument)` on the stack below `top`. `word`
/// is for the flags that name one.
///
/// # Safety
/// The stack and the control block `tls` are used by nobody; `word` outlives the task where the flags name it.
unsafe fn clone(
    flags: c_long,
    top: usize,
    tls: usize,
    word: usize,
    entry: Entry,
    argument: usize,
) -> Result<u32, Errno> {
    let result: c_long;
    // SAFETY: in the caller it is a system call that changes no memory but the word; the new task comes to the
    // call of `entry` with an empty stack, and nothing comes back.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => result,
            in("rdi") flags, in("rsi") top, in("rdx") word, in("r10") word, in("r8") tls,
            in("r12") entry, in("r13") argument,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    answered(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::futex;
    use crate::thread::id;

    static SEEN: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

    extern "C" fn thread(_: usize) -> ! {
        SEEN[1].store(id(), SeqCst);
        futex::wake(&SEEN[1], 1, false);
        loop {
            futex::wait(&SEEN[2], 0, None, false);
        }
    }

    extern "C" fn helper(argument: usize) -> ! {
        assert!(is_ours() && number() == Some(0));
        let beside = spawn(thread, 0).expect("a thread beside this one");
        while SEEN[1].load(SeqCst) != beside {
            futex::wait(&SEEN[1], 0, Some(Duration::from_millis(10)), false);
        }
        // What libc and the standard library need of a control block.
        let error = std::fs::File::open("/nowhere/at/all").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        let text = format!("{argument} {error}");
        SEEN[0].store(text.len() as u32, SeqCst);
        end_helper()
    }

    /// One for the process, so one test.
    #[test]
    fn a_helper_has_the_memory_and_is_nobody_s_child() {
        prepare();
        let tasks = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = tasks();
        start_helper(helper, 12345, Duration::ZERO).expect("a helper");
        for _ in 0..10_000 {
            if !helper_lives() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!helper_lives(), "the kernel says when it has ended");
        assert_eq!(
            SEEN[0].load(SeqCst) as usize,
            "12345 No such file or directory (os error 2)".len()
        );
        assert_ne!(SEEN[1].load(SeqCst), 0);
        assert_eq!(tasks(), before);
        // SAFETY: asks whether there is a child.
        let child =
            unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WCLONE | libc::WNOHANG) };
        assert_eq!((child, Errno::last().0), (-1, libc::ECHILD));
        assert!(!is_ours());
    }
}
