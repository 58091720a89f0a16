//! The life of a process: whether its program and its helper are there, and how they end.

use crate::scheduler::{scheduler, world};
use crate::trace::What;
use crate::world::{Process, Role, SUPERVISOR};
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

/// The helper lives or not.
pub fn served(lives: bool) {
    this().served.set(lives);
}

/// The helper of this process ends, of which the calling thread is.
pub fn end_helper() -> ! {
    let process = scheduler().process();
    world().note(What::Do, "helper ends", [0, 0]);
    served(false);
    if this().lives.get() {
        world().fail("a helper ended before its program");
    }
    end_threads(process, |role| role != Role::Program);
    scheduler().leave()
}

fn end_threads(process: u8, is: impl Fn(Role) -> bool) {
    scheduler().end(|task| task.process.get() == process && is(task.role.get()));
}

fn program_ends(process: &Process) {
    process.lives.set(false);
    process.ended.set(world().now.get());
}

/// The program of this process ends, as by SIGKILL.
pub fn kill_program() {
    let process = scheduler().process();
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
    end_threads(number as u8, |role| whole || role == Role::Program);
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
