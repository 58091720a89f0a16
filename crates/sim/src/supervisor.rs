//! The supervisor of a run: the real one, on a thread of a process of its own, which is the parent of all others. It may
//! be killed like them.
//!
//! Messages of members go through it: a process that the pager ended has to have said why.

use crate::life::programs_are_gone;
use crate::scheduler::{scheduler, world};
use crate::trace::What;
use crate::world::{Key, Outcome, Role, SUPERVISOR};
use ebb_tree::simulated::SimulatedDevice;
use ebb_tree::{Config, Limits, OUT_OF_MEMORY, Setup, Supervisor};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::Duration;

/// Nanoseconds between two turns, at most.
const TURN: usize = 10_000_000;
/// Turns in which all that dead processes had is taken back.
const ENOUGH: u32 = 2000;
/// The most a member waits for an answer; the real one gives up after it, too.
const PATIENCE: Duration = Duration::from_secs(60);

/// Leases of the run's devices.
static DEVICES: OnceLock<Vec<SimulatedDevice>> = OnceLock::new();

/// Those of the device in a row.
pub fn leases(row: usize) -> SimulatedDevice {
    DEVICES.get().expect("a supervisor has begun")[row]
}

/// Waits until a socket is readable, or the member's patience ends.
pub fn wait_until_readable(socket: BorrowedFd<'_>) {
    scheduler().looks(Key::Packet, PATIENCE, || {
        let mut polled = [rustix::event::PollFd::from_borrowed_fd(
            socket,
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec::default();
        rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    });
}

/// A supervisor begins, of a tree of `budget` pages and devices of so many slots each, and this process forks. Its child
/// goes on with what EBB_CONTROL is, and the supervisor's process runs until the run is over.
///
/// # Panics
/// The host has no room for it.
pub fn begin(budget: u64, slots: &[u64], may_run_out: bool, config: Config) -> Option<String> {
    let devices = slots
        .iter()
        .map(|slots| SimulatedDevice::new(*slots).expect("shared memory"));
    let devices = DEVICES.get_or_init(|| devices.collect());
    let setup = Setup {
        budget_pages: budget,
        budgets: Box::new(move || budget..=budget),
        limits: Limits::default(),
        devices: Vec::new(),
        config,
        notices: Some(Box::new(move |line| {
            judge(line, may_run_out);
            None
        })),
        open: None,
        guard: None,
    };
    // In a box, as a thread begins with little on its stack.
    let mut supervisor = Box::new(Supervisor::new(setup).expect("a supervisor"));
    supervisor.add_simulated(devices);
    let control = supervisor.control_value().to_owned();
    let process = &world().processes[SUPERVISOR];
    process.lives.set(true);
    process.host.set(std::process::id() as i32);
    let place = scheduler().reserve(Role::Supervisor, SUPERVISOR as u8);
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no process for a program");
    if child == 0 {
        // Its socket and its queue are not the program's.
        drop(supervisor);
        return Some(control);
    }
    scheduler().become_process(SUPERVISOR as u8);
    scheduler().spawn_at(place, move || supervise(supervisor));
    if scheduler().await_turn() {
        scheduler().run();
    }
    None
}

/// A line for the user.
fn judge(line: &str, may_run_out: bool) {
    world().note(What::Do, "notice", [line.len() as u64, 0]);
    if !line.contains(OUT_OF_MEMORY) {
        return;
    }
    if !may_run_out {
        world().fail(&format!("there was memory enough: {line}"));
    }
    let said_by = |host: i32| line.contains(&format!("[{host}]"));
    for process in world().programs() {
        if said_by(process.host.get()) {
            process.excused.set(true);
        }
    }
}

fn supervise(mut supervisor: Box<Supervisor>) {
    let world = world();
    let mut left = ENOUGH;
    loop {
        scheduler().step("supervise", [0, 0]);
        supervisor.simulated_turn().expect("a queue of events");
        if programs_are_gone() {
            match supervisor.leaves_nothing() {
                Ok(()) => break,
                Err(why) if left == 0 => {
                    world.fail(&format!("dead processes leave something: {why}"));
                    return;
                }
                Err(_) => left -= 1,
            }
        }
        let pause = Duration::from_nanos(1 + world.below(TURN) as u64);
        scheduler().wait(Key::Never, Some(pause));
    }
    let silent = |p: &&crate::world::Process| p.ended_by_pager.get() && !p.excused.get();
    match world.programs().iter().find(silent) {
        Some(_) => world.fail("the pager ended a program, and did not say that memory is out"),
        None if world.outcome.get() == Outcome::None => world.outcome.set(Outcome::Good),
        None => {}
    }
}
