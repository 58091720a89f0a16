//! The registry of our own tasks: which there are, and whether the caller is one.
//!
//! Tasks of ours run beside a program, in its memory (`process::task` starts them). Their stacks lie in
//! one area, by which a task of ours knows itself. Each has a number: the lowest that is free as it starts.
//! This module only keeps the books, so that everything below the tasks can ask.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// The name (`comm`) of a helper: a process of ours that shares a program's memory and serves it.
pub const HELPER: &std::ffi::CStr = c"ebb-helper";

/// Bytes of a task's stack.
pub const STACK: usize = 256 << 10;
/// The most tasks of a process at a time: the first, one for each of 64 processors, and as many that take their places.
pub const TASKS: usize = 1 + 2 * 64;
/// Bytes of the area of stacks: one for each task, and one for the go-between.
pub const STACKS: usize = STACK * (TASKS + 1);

/// The tasks of this process.
pub struct Registry {
    /// The place where the stacks lie; `NOWHERE` until there is a helper.
    stack_area: AtomicUsize,
    /// Numbers that were ever given.
    given: AtomicUsize,
    /// The task of each number, by its number in the system; 0: there is none. The kernel clears it when
    /// that task ends, and wakes its waiters.
    pub tasks: [AtomicU32; TASKS],
}

const NOWHERE: usize = usize::MAX;

/// One for the process: a task finds it from nothing but its stack pointer.
pub static REGISTRY: Registry = Registry {
    stack_area: AtomicUsize::new(NOWHERE),
    given: AtomicUsize::new(0),
    tasks: [const { AtomicU32::new(0) }; TASKS],
};

impl Registry {
    /// Where the stacks lie, if there are any.
    pub fn stack_area(&self) -> Option<usize> {
        let area = self.stack_area.load(SeqCst);
        (area != NOWHERE).then_some(area)
    }

    /// The stacks lie here from now on.
    pub fn set_stack_area(&self, area: usize) {
        self.stack_area.store(area, SeqCst);
    }

    /// The helper's first task, by its number in the system; 0: there is none.
    pub fn first(&self) -> &AtomicU32 {
        &self.tasks[0]
    }

    /// A number for a task that is about to start, and whether another had it; none: there are too many. Called by one
    /// thread at a time.
    pub fn free_number(&self) -> Option<(usize, bool)> {
        let free = |task: &AtomicU32| task.load(SeqCst) == 0;
        let number = self.tasks.iter().position(free)?;
        let given = self.given.fetch_max(number + 1, SeqCst);
        Some((number, number < given))
    }

    /// The numbers of those that live.
    pub fn living(&self) -> impl Iterator<Item = usize> {
        let given = self.tasks.iter().enumerate();
        let given = given.take_while(|(number, _)| *number < self.given.load(SeqCst));
        given.filter_map(|(number, task)| (task.load(SeqCst) != 0).then_some(number))
    }

    /// In a forked child: there is no task of ours yet.
    pub fn reset_in_child(&self) {
        self.given.store(0, SeqCst);
        // All of them: the parent's keeper may have started some while the child's copy was made.
        self.tasks.iter().for_each(|task| task.store(0, SeqCst));
    }

    /// How far above the start of the stacks the caller's stack pointer is.
    #[inline(always)]
    fn offset_of_caller(&self) -> usize {
        let here = 0u8;
        let at = (&raw const here) as usize;
        at.wrapping_sub(self.stack_area.load(Relaxed))
    }

    /// The number of the calling task, if it is one of ours.
    pub fn number(&self) -> Option<usize> {
        let number = self.offset_of_caller() / STACK;
        (number < TASKS).then_some(number)
    }
}

/// Whether the caller is a task of ours. Such a task must never be given memory of the program: it may have
/// to serve the faults on it.
#[inline(always)]
pub fn is_ours() -> bool {
    REGISTRY.offset_of_caller() < STACKS
}

/// Whether the caller may use descriptors that tasks of ours opened. In a managed process only those tasks share
/// the table that has them; the same numbers are other files to the program.
pub fn has_our_descriptors() -> bool {
    REGISTRY.stack_area().is_none() || is_ours()
}

/// Whether this process's helper lives, as far as its first task tells.
pub fn helper_lives() -> bool {
    REGISTRY.first().load(SeqCst) != 0
}

/// Whether the caller may hold a lock that tasks of ours take. A handler of the program that runs meanwhile could
/// touch paged memory, and wait for a task that waits for the lock. A panic says what it is about first.
/// For checks: a system call.
pub fn may_hold_lock_of_service() -> bool {
    !helper_lives() || is_ours() || std::thread::panicking() || super::signal::are_blocked()
}
