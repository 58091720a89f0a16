//! The life of a process: whether its program and its helper are there, and how they end.

use crate::scheduler::{scheduler, world};
use crate::trace::What;
use crate::world::{Process, Role};
use std::sync::OnceLock;

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

/// The program of this process ends, as by SIGKILL.
pub fn kill_program() {
    let process = scheduler().process();
    world().note(What::Do, "program ends", [0, 0]);
    this().lives.set(false);
    end_threads(process, |role| role == Role::Program);
}

/// Whether all other processes have ended.
pub fn others_are_gone() -> bool {
    let mine = usize::from(scheduler().process());
    let processes = world().processes.iter().enumerate();
    let mut others = processes.filter(|(n, _)| *n != mine);
    others.all(|(_, p)| !p.lives.get() && !p.served.get())
}
