//! The life of a process: whether its program and its helper are there, and how they end.
//!
//! A process may become another program. The helper of the former one sees that, and ends. It is a process of its own to the
//! system, so it may do that late, or be killed alone.

use crate::scheduler::{scheduler, world};
use crate::trace::What;
use crate::world::{Process, Role, SUPERVISOR, Task};
use ebb_sys::program::Gone;
use ebb_tree::simulated::Helpers;
use std::sync::OnceLock;

/// Nanoseconds that a helper has to end by itself once its program has. More than in earnest, so that those that can
/// look once more whether all is as it should be.
const GRACE: u64 = 20_000_000_000;

static BY_PAGER: OnceLock<fn()> = OnceLock::new();

/// What is done when the pager ends the program of this process.
pub fn when_killed_by_pager(f: fn()) {
    BY_PAGER.get_or_init(|| f);
}

/// The pager ends the program, and has said why.
pub fn killed_by_pager() {
    BY_PAGER.get().iter().for_each(|f| f());
}

/// This process in the world.
pub fn this() -> &'static Process {
    &world().processes[usize::from(scheduler().process())]
}

/// Whether the program that the calling thread's helper serves is gone, and how.
pub fn program_is_gone() -> Option<Gone> {
    match this() {
        process if !process.lives.get() => Some(Gone::Dead),
        process if process.image.get() != scheduler().image() => Some(Gone::Other),
        _ => None,
    }
}

/// A keeper begins a turn. One of which the program became another during its last turn sees it in this one.
pub fn keeper_turns() {
    if program_is_gone() == Some(Gone::Other) && scheduler().me().unaware.replace(true) {
        world().fail("a helper does not see that its program became another");
    }
}

/// The helper ends of which the calling thread is.
pub fn end_helper() -> ! {
    let (process, image) = (scheduler().process(), scheduler().image());
    world().note(What::Do, "helper ends", [u64::from(image), 0]);
    if program_is_gone().is_none() {
        world().fail("a helper ended before its program");
    }
    this().helper_ends(image);
    end_threads((process, image), |role| role != Role::Program);
    scheduler().leave()
}

/// Ends threads of a process, those that a program of it had.
fn end_threads((process, image): (u8, u8), is: impl Fn(Role) -> bool) {
    scheduler().end(|task| program_of(task) == (process, image) && is(task.role.get()));
}

/// Exec: all threads of the program vanish, and its process is another program. The helper of the former one lives on. The
/// number of the new program.
pub fn become_another() -> u8 {
    let (world, process) = (world(), this());
    let image = process.image.get();
    end_threads((scheduler().process(), image), |role| role == Role::Program);
    world.execs.set(world.execs.get() + 1);
    if process.served.replace(false) {
        process.formers.set(process.formers.get() | 1 << image);
    }
    process.addresses.set(world.execs.get());
    process.became.set(world.now.get());
    process.image.set(image + 1);
    world.note(What::Do, "execs", [u64::from(image), 0]);
    image + 1
}

fn program_ends(process: &Process) {
    process.lives.set(false);
    process.ended.set(world().now.get());
}

/// The program of this process ends, as by SIGKILL.
pub fn kill_program() {
    let process = (scheduler().process(), this().image.get());
    world().note(What::Do, "program ends", [0, 0]);
    program_ends(this());
    end_threads(process, |role| role == Role::Program);
}

/// SIGKILL: a process ends between two steps, whatever it does; or its program alone, which its helper survives.
pub fn kill_any() {
    let world = world();
    let there = |p: &&crate::world::Process| p.host.get() > 0 && p.is_there();
    let alive = world.processes.iter().filter(there).count();
    if alive == 0 {
        return;
    }
    let one = world.below(alive);
    let all = world.processes.iter().enumerate();
    let (number, _) = all.filter(|(_, p)| there(p)).nth(one).expect("one of them");
    let whole = number == SUPERVISOR || world.below(3) > 0;
    world.note(What::Do, "killed", [number as u64, u64::from(whole)]);
    world.killed.set(world.killed.get() + 1);
    kill(number, whole);
}

fn kill(number: usize, whole: bool) {
    let process = &world().processes[number];
    if process.lives.get() {
        program_ends(process);
    }
    if whole {
        process.served.set(false);
    }
    let threads = (number as u8, process.image.get());
    end_threads(threads, |role| whole || role == Role::Program);
    let_end(number);
}

/// SIGKILL to the helper of a program that a process is, or was.
fn kill_helper(number: usize, image: u8) {
    world().processes[number].helper_ends(image);
    end_threads((number as u8, image), |role| role != Role::Program);
    let ends = &world().ends;
    ends.set(ends.get() | 1 << number);
}

/// Between two steps: those of whom the last was killed end in their own processes of the host.
pub fn let_killed_end() {
    let ends = &world().ends;
    while ends.get() != 0 {
        let number = ends.get().trailing_zeros() as usize;
        ends.set(ends.get() & !(1 << number));
        let_end(number);
    }
}

/// Who was killed may have been the last of its process.
fn let_end(number: usize) {
    let process = &world().processes[number];
    if number != usize::from(scheduler().process()) && !process.is_there() {
        // It ends in its own process of the host.
        scheduler().hand_to(number as u8);
    }
}

/// As guard and supervisor do: kills helpers that are left over. A program that is killed may hold a lock for which its
/// helper waits.
pub fn kill_left_over() {
    let now = world().now.get();
    let is_due = |p: &Process| !p.lives.get() && p.served.get() && now > p.ended.get() + GRACE;
    let left = world().programs().iter().position(is_due);
    if let Some(number) = left {
        world().note(What::Do, "left over", [number as u64, 0]);
        kill(number, true);
    }
    let is_due = |p: &Process| p.formers.get() != 0 && now > p.became.get() + 2 * GRACE;
    let left = world().programs().iter().position(is_due);
    if let Some(number) = left {
        kill_former_helper(number);
    }
}

/// The same for the helper of a program that became another: others hold it up, as it would have seen that by now.
fn kill_former_helper(number: usize) {
    let image = world().processes[number].formers.get().trailing_zeros() as u8;
    world().note(What::Do, "left over", [number as u64, 1 + u64::from(image)]);
    kill_helper(number, image);
}

/// The program that a thread is of: the process, and which of those it was.
fn program_of(task: &Task) -> (u8, u8) {
    (task.process.get(), task.image.get())
}

/// Numbers of helpers begin here: the system gives a process none of these.
const HELPERS: u32 = 1 << 30;

/// The helper behind a number.
fn helper(number: u32) -> (usize, u8) {
    (((number - HELPERS) >> 8) as usize, number as u8)
}

/// Helpers, as the supervisor sees them.
pub const HELPER_CALLS: Helpers = Helpers {
    of: |host| {
        let number = by_host(host).expect("who joins is a process of the run");
        let image = world().processes[number].image.get();
        HELPERS | (number as u32) << 8 | u32::from(image)
    },
    live: |number| {
        let (process, image) = helper(number);
        world().processes[process].has_helper(image)
    },
    kill: |number| {
        let (process, image) = helper(number);
        if world().processes[process].has_helper(image) {
            world().note(What::Do, "helper killed", [process as u64, image.into()]);
            kill_helper(process, image);
        }
    },
    program_lives: |host| by_host(host).is_some_and(|n| world().processes[n].lives.get()),
};

fn by_host(host: u32) -> Option<usize> {
    let mut all = world().programs().iter();
    all.position(|process| process.host.get() == host as i32)
}

/// A number for the program that a process of the host runs.
pub fn image_of(host: u32) -> u64 {
    by_host(host).map_or(0, |number| world().processes[number].addresses.get())
}

/// Whether all programs have ended, and their helpers.
pub fn programs_are_gone() -> bool {
    world().programs().iter().all(|p| !p.is_there())
}

/// Whether those of all other processes have.
pub fn others_are_gone() -> bool {
    let mine = usize::from(scheduler().process());
    let mut others = world().programs().iter().enumerate();
    others.all(|(n, p)| n == mine || !p.is_there())
}
