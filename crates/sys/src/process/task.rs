//! Tasks of our own in the memory of a program: the *helper*.
//!
//! Threads of ours must have the program's memory, and nothing else of it. As threads of the program's
//! process they would make it a process with several threads: no new user namespace, no sandbox that looks
//! at `/proc/self/task`. Debuggers would stop them while a thread waits for them to serve a fault. And they
//! would take on its seccomp filters, its root and its limits. So they are a process of their own, which
//! the program does not know of as a child either:
//!
//! 1. A thread of the program makes a *go-between* and waits for it; that makes the helper and ends. The
//!    helper thus has no parent but the nearest subreaper, the supervisor, and neither its end nor an exec of
//!    the program's sends the program SIGCHLD. Neither is traced (`CLONE_UNTRACED`).
//! 2. The helper leaves the process group, takes a table of descriptors of its own with nothing in it, and
//!    calls what it was made for. Threads that it starts are of its thread group. It stays in the session.
//!    The scheduler weighs sessions against each other (autogroups), so in a session of its own a thread
//!    with idle urgency would compete with the program's.
//!
//! A program that is the first process of its PID namespace, or a subreaper itself, would become the
//! helper's parent, and wait for it like for any child. There the helper is its child from the beginning,
//! one that tells nobody of its end and that no `wait` sees but one for such (`__WALL`).
//!
//! libc knows none of these tasks: their control blocks are made by `control_block`, their stacks
//! lie in one area, by which a task of ours knows itself. The number of one that has ended is given again.
//! A forked child has the same areas, empty (MADV_WIPEONFORK), and starts a helper of its own.
//!
//! Not here: noticing that the program has ended (`program`).

use crate::kernel::tasks::{REGISTRY, STACK, STACKS, TASKS};
use crate::kernel::{clock, raw, signal};
use crate::process::control_block::Template;
use crate::process::credentials;
use crate::process::thread::{self, TaskName};
use crate::{Errno, memory, proc};
use libc::c_long;
use once_cell::race::OnceBox;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// A task's first function; it never returns.
pub type Entry = extern "C" fn(usize) -> !;

/// The stack of the go-between, which runs a few instructions. It is a signal handler's afterwards (`end_watch`).
const BETWEEN: usize = TASKS;

/// The function that a task is to run.
struct Order {
    entry: AtomicPtr<()>,
    argument: AtomicUsize,
}

/// The parts from which tasks are made.
struct Launch {
    /// The pattern of their control blocks; none where no task can be started.
    template: OnceBox<Template>,
    /// The place where the control blocks lie, once there are stacks.
    block_area: AtomicUsize,
    orders: [Order; TASKS],
    /// The answer of the go-between's call: a number, or an error's, negated.
    answer: AtomicUsize,
}

/// One for the process: a new task, which has nothing but its number, finds its order there.
// Beside what every process writes as it starts, and on no page of its own.
#[unsafe(link_section = ".data")]
static LAUNCH: Launch = Launch {
    template: OnceBox::new(),
    block_area: AtomicUsize::new(0),
    orders: [const {
        Order {
            entry: AtomicPtr::new(std::ptr::null_mut()),
            argument: AtomicUsize::new(0),
        }
    }; TASKS],
    answer: AtomicUsize::new(0),
};

/// Looks at what tasks will need of the calling thread. Called once, before another thread runs.
pub fn prepare() {
    if let Some(template) = Template::take() {
        let _ = LAUNCH.template.set(Box::new(template));
    }
}

/// On a task of ours: ends the helper.
pub fn end_helper() -> ! {
    // SAFETY: ends all tasks of ours.
    unsafe { raw::call(libc::SYS_exit_group, [0; 6]) };
    unreachable!("exit_group returns to nobody")
}

/// On a task of ours: gives the pages of its stack back that are not in use now.
pub fn give_stack_back() {
    /// Left alone below the caller's frame: what this call itself takes.
    const MARGIN: usize = 2 * memory::PAGE;
    let here = 0u8;
    let Some(number) = REGISTRY.number() else {
        return;
    };
    let end = ((&raw const here) as usize - MARGIN) & !(memory::PAGE - 1);
    let start = top(number) - STACK;
    if start < end {
        // SAFETY: nobody has anything there: it is below every frame.
        let _ = unsafe { memory::madvise(start, end - start, libc::MADV_DONTNEED) };
    }
}

/// In a forked child: there is no helper yet.
pub fn reset_in_child() {
    REGISTRY.reset_in_child();
    proc::forget_directory();
}

/// Starts the helper, on a thread of the program; it runs `entry`. All of its signals are blocked.
///
/// # Errors
/// ENOTSUP where a control block cannot be made, or where the caller's children would be in another PID
/// namespace; else the kernel's: EAGAIN after `patience`.
pub fn start_helper(entry: Entry, argument: usize, patience: Duration) -> Result<(), Errno> {
    if !proc::children_stay_in_namespace() {
        return Err(Errno(libc::ENOTSUP));
    }
    make_areas()?;
    give_order(0, entry, argument);
    // Before it runs: it may start others at once.
    let number = new_number();
    debug_assert_eq!(number, Some(0), "one helper at a time");
    credentials::started(0);
    let _blocked = signal::Blocked::all();
    retried(patience, || {
        // SAFETY: nobody else uses the stack, as only one helper is started at a time, by the first thread
        // that asked for it. The first task's stack and block are used by nobody.
        unsafe {
            if adopts_orphans() {
                answered(make_helper())
            } else {
                let flags = BESIDE | libc::CLONE_VFORK as c_long;
                let between = clone(flags, top(BETWEEN), 0, 0, go_between, 0)?;
                reap(between);
                answered(LAUNCH.answer.load(SeqCst) as c_long)
            }
        }
    })
    .map(drop)
}

/// Whether the program becomes the parent of orphans among its descendants.
fn adopts_orphans() -> bool {
    let mut subreaper: libc::c_int = 0;
    let at = (&raw mut subreaper) as c_long;
    let args = [libc::PR_GET_CHILD_SUBREAPER.into(), at, 0, 0, 0, 0];
    // SAFETY: writes one number of ours.
    let asked = unsafe { raw::checked(libc::SYS_prctl, args) };
    std::process::id() == 1 || asked.is_ok() && subreaper != 0
}

/// Starts a thread beside the calling task of ours, which alone may do so; its number in the system.
///
/// # Errors
/// ENOTSUP if there are too many; else the kernel's: EAGAIN after `patience`.
pub fn spawn(entry: Entry, argument: usize, patience: Duration) -> Result<u32, Errno> {
    let flags = (libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM) as c_long
        | TOLD
        | UNTRACED;
    let Some(number) = new_number() else {
        return Err(Errno(libc::ENOTSUP));
    };
    give_order(number, entry, argument);
    credentials::started(number);
    retried(patience, || {
        // SAFETY: the stack and the block of this number are used by nobody: who had it has ended, says the kernel.
        unsafe { clone_numbered(flags, number, first) }
    })
}

/// On a thread that was spawned: it ends.
pub fn end() -> ! {
    give_stack_back();
    // SAFETY: ends this task alone, which has nothing that another one needs.
    unsafe { raw::call(libc::SYS_exit, [0; 6]) };
    unreachable!("exit returns to nobody")
}

const UNTRACED: c_long = libc::CLONE_UNTRACED as c_long;
/// The task has a control block, and a word that has its number in the system as long as it lives.
const TOLD: c_long =
    (libc::CLONE_CHILD_CLEARTID | libc::CLONE_PARENT_SETTID | libc::CLONE_SETTLS) as c_long;
/// Resources that go-between and helper share with the program; descriptors only until the helper has its
/// own.
const BESIDE: c_long = (libc::CLONE_VM | libc::CLONE_FILES) as c_long | UNTRACED;

extern "C" fn go_between(_: usize) -> ! {
    // The helper has its name from the beginning: it shall not be taken for a process of the program's.
    thread::set_name(TaskName::Helper);
    // SAFETY: the first task's stack and block are used by nobody; this task ends.
    unsafe {
        let answer = make_helper();
        LAUNCH.answer.store(answer as usize, SeqCst);
        raw::call(libc::SYS_exit, [0; 6]);
    }
    unreachable!("exit returns to nobody")
}

/// # Safety
/// The first task's stack and control block are used by nobody.
unsafe fn make_helper() -> c_long {
    // SAFETY: by the caller's contract.
    match unsafe { clone_numbered(BESIDE | TOLD, 0, lead) } {
        Ok(helper) => helper.into(),
        Err(Errno(error)) => -c_long::from(error),
    }
}

/// Starts the task of this number.
///
/// # Safety
/// Its stack and its control block are used by nobody.
unsafe fn clone_numbered(flags: c_long, number: usize, entry: Entry) -> Result<u32, Errno> {
    let word = REGISTRY.tasks[number].as_ptr() as usize;
    // SAFETY: by the caller's contract; the word outlives the task.
    unsafe { clone(flags, top(number), block(number), word, entry, number) }
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
    if let Some(template) = LAUNCH.template.get() {
        template.register_rseq();
    }
    let order = &LAUNCH.orders[number];
    // SAFETY: `give_order` wrote it there, of that type, before this task was made.
    let entry: Entry = unsafe { std::mem::transmute(order.entry.load(SeqCst)) };
    entry(order.argument.load(SeqCst))
}

/// Has nothing in common with the program any more but its memory.
fn leave_program() {
    thread::set_name(TaskName::Helper);
    leave_descriptors();
    // SAFETY: no pointers but to a path.
    unsafe {
        raw::call(libc::SYS_setpgid, [0; 6]);
        raw::call(libc::SYS_chdir, [c"/".as_ptr() as c_long, 0, 0, 0, 0, 0]);
    }
    // The program's limits on files are not those of its swap devices.
    for resource in [libc::RLIMIT_FSIZE, libc::RLIMIT_NOFILE] {
        thread::raise_limit(resource);
    }
    // The helper counts its time for itself, and may be busier than its program: its end would be the program's.
    thread::lift_limit(libc::RLIMIT_CPU);
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
    let Some(template) = LAUNCH.template.get() else {
        return Err(Errno(libc::ENOTSUP));
    };
    if REGISTRY.stack_area().is_none() {
        LAUNCH
            .block_area
            .store(fresh(template.bytes() * TASKS)?, SeqCst);
        REGISTRY.set_stack_area(fresh(STACKS)?);
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
    let order = &LAUNCH.orders[number];
    order.entry.store(entry as *mut (), SeqCst);
    order.argument.store(argument, SeqCst);
}

fn top(number: usize) -> usize {
    REGISTRY.stack_area().expect("there are areas") + (number + 1) * STACK
}

/// On the helper's first task: the end of a stack of [`STACK`] bytes that nobody uses as long as the helper lives.
pub fn spare_stack_end() -> usize {
    top(BETWEEN)
}

/// The number of a task that is about to start, whose control block is zero. There are areas.
fn new_number() -> Option<usize> {
    let (number, was_used) = REGISTRY.free_number()?;
    if was_used {
        let (template, start) = block_place(number);
        // SAFETY: the bytes of one block, in which another task's thread-locals were. It has ended, says the kernel.
        unsafe { (start as *mut u8).write_bytes(0, template.bytes()) };
    }
    Some(number)
}

/// The control block of this number, filled: its thread pointer.
///
/// # Safety
/// No task uses it, and there are areas.
unsafe fn block(number: usize) -> usize {
    let (template, start) = block_place(number);
    // SAFETY: by the caller's contract.
    unsafe { template.write(start) }
}

/// The pattern of control blocks, and where this number's begins.
fn block_place(number: usize) -> (&'static Template, usize) {
    let template = LAUNCH.template.get().expect("there are areas");
    let start = LAUNCH.block_area.load(SeqCst) + number * template.bytes();
    (template, start)
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
                clock::sleep(PAUSE);
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
    // SAFETY: in the caller it is a system call that changes no memory but the word. The new task comes to
    // the call of `entry` with an empty stack, and nothing comes back.
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
    use crate::kernel::futex;
    use crate::kernel::tasks::{helper_lives, is_ours};
    use crate::process::thread::id;
    use std::sync::atomic::AtomicU32;

    /// What the tasks saw: the length of a text, the thread's number, nothing, the tasks of ours that are
    /// the program's, whether its processor time is without a limit.
    static SEEN: [AtomicU32; 5] = [const { AtomicU32::new(0) }; 5];

    /// The most processor time that this process may have.
    fn most_time() -> libc::rlimit {
        // SAFETY: zeros are valid, and the structure is ours to fill.
        unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            assert_eq!(libc::getrlimit(libc::RLIMIT_CPU, &mut limit), 0);
            limit
        }
    }

    extern "C" fn thread(_: usize) -> ! {
        SEEN[1].store(id(), SeqCst);
        futex::wake(&SEEN[1], 1, false);
        loop {
            futex::wait(&SEEN[2], 0, None, false);
        }
    }

    extern "C" fn ends(_: usize) -> ! {
        end()
    }

    /// More than there may be at a time, each with the number of one that ended.
    fn start_and_end_many() {
        for _ in 0..3 * TASKS {
            let started = spawn(ends, 0, Duration::ZERO).expect("a thread that ends");
            let lives = |word: &AtomicU32| word.load(SeqCst) == started;
            while REGISTRY.tasks.iter().any(lives) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        assert_eq!(REGISTRY.living().count(), 1);
        assert_eq!(REGISTRY.free_number(), Some((1, true)));
    }

    extern "C" fn helper(program: usize) -> ! {
        assert!(is_ours() && REGISTRY.number() == Some(0));
        start_and_end_many();
        let beside = spawn(thread, 0, Duration::ZERO).expect("a thread beside this one");
        while SEEN[1].load(SeqCst) != beside {
            futex::wait(&SEEN[1], 0, Some(Duration::from_millis(10)), false);
        }
        // libc and the standard library need these of a control block.
        let error = std::fs::File::open("/nowhere/at/all").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        let text = format!("{error}");
        SEEN[0].store(text.len() as u32, SeqCst);
        // By number: other tests start and end threads of the program meanwhile.
        let is_the_programs =
            |task: &u32| std::path::Path::new(&format!("/proc/{program}/task/{task}")).exists();
        let strays = [id(), beside]
            .iter()
            .filter(|task| is_the_programs(task))
            .count();
        SEEN[3].store(strays as u32, SeqCst);
        let unlimited = most_time().rlim_max == libc::RLIM_INFINITY;
        SEEN[4].store(unlimited.into(), SeqCst);
        end_helper()
    }

    /// One for the process, so one test.
    #[test]
    fn a_helper_has_the_memory_and_is_nobody_s_child() {
        prepare();
        let program = std::process::id() as usize;
        let mut most = most_time();
        most.rlim_max = most.rlim_max.min(100_000);
        most.rlim_cur = most.rlim_cur.min(most.rlim_max);
        // SAFETY: one structure of ours is read.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CPU, &most) }, 0);
        start_helper(helper, program, Duration::ZERO).expect("a helper");
        for _ in 0..10_000 {
            if !helper_lives() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!helper_lives(), "the kernel says when it has ended");
        assert_eq!(
            SEEN[0].load(SeqCst) as usize,
            "No such file or directory (os error 2)".len()
        );
        assert_ne!(SEEN[1].load(SeqCst), 0);
        let may_lift = rustix::thread::capabilities(None).unwrap().effective;
        let may_lift = may_lift.contains(rustix::thread::CapabilitySet::SYS_RESOURCE);
        assert_eq!(SEEN[4].load(SeqCst), u32::from(may_lift));
        assert_eq!(SEEN[3].load(SeqCst), 0, "no task of ours is the program's");
        // SAFETY: asks whether there is a child.
        let child =
            unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WCLONE | libc::WNOHANG) };
        assert_eq!((child, Errno::last().0), (-1, libc::ECHILD));
        assert!(!is_ours());
    }
}
