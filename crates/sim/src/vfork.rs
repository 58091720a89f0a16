//! Children of `vfork`: each is a thread of its own in the memory of its parent, whose thread waits until the child has ended.
//! To the pager it is another process.
//!
//! One may be killed at any step. Then the locks that the kernel knows of are taken from it. It ends with its parent's program,
//! as nobody serves the memory any more.

use crate::scheduler::{scheduler, world};
use crate::trace::What;
use crate::world::{Key, Role, State, Task};
use ebb_sys::robust::{self, Simulated};

/// Numbers of such processes begin here.
const FIRST: u32 = 1 << 20;

/// The locks of children are known from now on.
pub fn begin() {
    robust::simulate(Simulated {
        id: || scheduler().me().id.get(),
        list: || scheduler().me().robust.get(),
        set_list: |list| scheduler().me().robust.set(list),
    });
}

/// The calling thread waits until a child of it has done this, or is killed.
pub fn run_child(run: impl FnOnce() + 'static) {
    let world = world();
    let id = scheduler().spawn(Role::Program, move || {
        run();
        world.children.set(world.children.get() - 1);
        let id = scheduler().me().id.get();
        scheduler().me().child.set(0);
        scheduler().wake(Key::Child(id), 1);
    });
    world.children.set(world.children.get() + 1);
    let there = |task: &&Task| task.id.get() == id && task.state.get() != State::Free;
    let child = || world.there().iter().find(there);
    child().expect("just begun").child.set(FIRST + id);
    world.note(What::Do, "vfork", [id.into(), 0]);
    while child().is_some_and(|task| task.child.get() != 0) {
        scheduler().wait(Key::Child(id), None);
    }
}

/// The running thread has done something. If it is a child, its parent does not wait in vain.
pub fn goes_on() {
    let me = scheduler().me();
    if me.child.get() == 0 {
        return;
    }
    let key = Key::Child(me.id.get());
    let waiting = world().there().iter().filter(|task| task.key.get() == key);
    waiting.for_each(|task| task.began.set(world().now.get()));
}

/// SIGKILL to a child of this process's, if there is one.
pub fn kill_child() {
    let (world, process) = (world(), scheduler().process());
    let is_child = |task: &&Task| {
        let lives = task.state.get() != State::Free && task.child.get() != 0;
        lives && task.process.get() == process
    };
    let Some(child) = world.there().iter().find(is_child) else {
        return;
    };
    let id = child.id.get();
    world.note(What::Do, "child killed", [id.into(), 0]);
    world.children.set(world.children.get() - 1);
    world.children_killed.set(world.children_killed.get() + 1);
    child.state.set(State::Free);
    // SAFETY: a list that this thread was given, of a lock of this process's pager.
    unsafe { robust::holder_died(child.robust.get(), id) };
    scheduler().wake(Key::Child(id), 1);
}
