//! One run, in a process of the host that has begun for it.

use crate::device::{Failing, SimStore};
use crate::life;
use crate::plan::Plan;
use crate::process::{self, Joining, Setting};
use crate::program;
use crate::scheduler::{self, OVER, scheduler};
use crate::supervisor;
use crate::threads::SimThreads;
use crate::trace::What;
use crate::vfork;
use crate::world::{Outcome, Role, Shared, State, World};
use ebb_engine::env::Store;
use ebb_engine::slots::{DeviceSpec, Devices};
use ebb_stores::{Faults, FaultyStore};
use ebb_tree::simulated::Waits;
use ebb_tree::{Config, Member};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

/// Steps in which everything has to end when nothing goes wrong any more.
const BOUND: u64 = 5_000_000;
/// Nanoseconds in which a page has come, or its process has ended for want of memory.
const PATIENCE: u64 = 60_000_000_000;
/// Nanoseconds of a whole run.
const LONGEST: u64 = 1_500_000_000_000;
/// Locks taken in a run that is long enough, if no touch and no call takes more than this many nanoseconds: what never
/// ends is to be seen. Where a program fits badly its pager looks for victims in vain nearly all the time, and one such
/// run would take as long as a hundred others.
const ENOUGH: u64 = 200_000;
const SLOW: u64 = 2_000_000_000;
/// Nanoseconds in which each touch and each call comes to its end once nothing goes wrong any more. Less than all timers that
/// help where somebody was not woken, which would hide that.
const QUIET_PATIENCE: u64 = 6_000_000_000;
/// Steps of one that is, once each touch and each call has come to its end that was begun by then.
const LONG: u64 = 200_000;
/// Processes that are killed in a run, at most.
const MAX_KILLED: u32 = 3;
/// Children of `vfork` that are: those after them live, and see what was left behind.
const MAX_CHILDREN_KILLED: u32 = 24;
/// Changes of the thread that runs, from one look at threads that wait to the next.
const LOOKED: u64 = 64;
/// Changes of the thread that runs, from one look at all invariants to the next.
const CHECKED: u64 = 1024;
/// Changes of the thread that runs between two looks at parked faults.
const PARKED: u64 = 16;

static DEVICES: Mutex<Vec<Arc<dyn Store>>> = Mutex::new(Vec::new());

fn add_devices(devices: &Devices) {
    let stores = DEVICES.lock().expect("no panic is survived");
    for (row, store) in stores.iter().enumerate() {
        let lender = process::lender(row, store.slots());
        let added = devices.add(store.clone(), DeviceSpec::default(), lender);
        added.expect("a device of the right size");
    }
}

/// Runs a plan, up to an outcome.
///
/// # Panics
/// Something of the pager is not as it should be.
pub fn run(shared: &'static Shared, plan: &Plan) {
    let world = shared.world;
    scheduler::begin(world, plan.rates, oracle, process::clear);
    ebb_tree::simulated::begin(Waits {
        until_readable: supervisor::wait_until_readable,
        news: scheduler::news,
        helpers: life::HELPER_CALLS,
    });
    ebb_sys::proc::simulate_images(life::image_of);
    vfork::begin();
    scheduler().handle_signals(program::handle_signal);
    world.kill_child.set(plan.kill_child);
    world.bound.set(BOUND);
    world.quiet_after.set(plan.quiet_after());
    world.kill.set(plan.kill);
    let mut first = 0;
    let mut devices = DEVICES.lock().expect("no panic is survived");
    for device in &plan.devices {
        let slots = &shared.slots[first..first + device.slots];
        first += device.slots;
        let store = SimStore::new(slots, device.latency);
        let faults: Faults = device.faults.parse().expect("faults by their names");
        devices.push(Arc::new(Failing(FaultyStore::new(store, faults))));
    }
    drop(devices);
    let config = Config {
        codec: plan.codec,
        encrypt: false,
        ..Config::default()
    };
    let joining = match plan.supervised {
        false => alone(plan.budget, config),
        true => {
            let slots = plan.devices.iter().map(|device| device.slots as u64);
            let slots: Vec<u64> = slots.collect();
            match supervisor::begin(plan.budget, &slots, plan.may_run_out(), config) {
                Some(control) => Joining::Supervised(control),
                None => return over(world),
            }
        }
    };
    process::begin(Setting {
        threads: SimThreads {
            disturbances: plan.disturbances,
            counts: shared.counts,
            is_privileged: plan.is_privileged,
        },
        joining,
        may_run_out: plan.may_run_out(),
        may_lose: plan.may_lose(),
        devices: add_devices,
    });
    program::prepare(plan.mix, plan.threads, plan.operations);
    for number in 0..u64::from(plan.threads) {
        let seed = plan.seed;
        scheduler().spawn(Role::Program, move || program::run(seed, number));
    }
    scheduler().run();
    over(world);
}

/// This process has come to its end, and perhaps the run.
fn over(world: &World) {
    if world.outcome.get() != Outcome::None {
        world.count_time();
        world.end();
    }
}

/// A tree without a supervisor.
fn alone(budget: u64, config: Config) -> Joining {
    let member = Member::alone(budget, config).expect("a table");
    let kind = SocketType::SEQPACKET;
    let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (connection, messages) = pair.expect("sockets");
    // Nobody listens: nobody answers, either.
    let shut = rustix::net::shutdown(&messages, rustix::net::Shutdown::Write);
    shut.expect("a socket");
    member.tell(rustix::io::dup(&connection).expect("a descriptor"));
    Joining::Alone {
        member: Box::leak(Box::new(member)),
        messages,
        connection,
    }
}

impl World {
    /// Whether a thread of a program is about something since before a moment. It may wait, or look again and again.
    fn any_waits_since(&self, moment: u64) -> bool {
        self.there().iter().any(|task| {
            let lives = task.state.get() != State::Free && task.role.get() == Role::Program;
            lives && (1..moment).contains(&task.began.get())
        })
    }

    /// Whether one waits without an end.
    fn any_starves(&self) -> bool {
        self.any_waits_since(self.now.get().saturating_sub(PATIENCE))
    }

    /// Whether one waits too long though nothing goes wrong any more.
    fn any_starves_in_quiet(&self) -> bool {
        let moment = self.now.get().saturating_sub(QUIET_PATIENCE);
        let quiet = (1..moment).contains(&self.quiet_since.get());
        quiet && self.any_waits_since(moment)
    }

    /// Nothing goes wrong any more, if it is time for that.
    fn become_quiet(&self) {
        let due = (1..self.steps.get()).contains(&self.quiet_after.get());
        if due && self.quiet_since.get() == 0 {
            self.quiet_since.set(self.now.get());
            self.note(What::Do, "quiet", [0, 0]);
        }
    }

    /// Whether the run has been long enough.
    fn is_enough(&self) -> bool {
        let long = self.steps.get() > LONG;
        if long && self.long_since.get() == 0 {
            self.long_since.set(self.now.get());
        }
        let looks = self.switches.get().is_multiple_of(LOOKED);
        let slow = self.now.get().saturating_sub(SLOW);
        let enough = self.locked.get() > ENOUGH && looks && !self.any_waits_since(slow);
        enough || long && looks && !self.any_waits_since(self.long_since.get())
    }

    /// The run is over, for all processes.
    pub fn end(&self) {
        self.turn.store(OVER, SeqCst);
        ebb_sys::futex::wake(&self.turn, i32::MAX, true);
    }

    /// Nothing goes wrong any more, and all has to end.
    pub fn be_calm(&self) {
        self.calm.set(true);
    }
}

/// Looks at everything that must hold between two steps.
fn oracle(world: &World) {
    let late = world.steps.get() > world.bound.get() || world.now.get() > LONGEST;
    world.become_quiet();
    let looks = world.switches.get().is_multiple_of(LOOKED);
    if late || looks && (world.any_starves() || world.any_starves_in_quiet()) {
        world.fail(&format!("it does not end:\n{}", world.stand()));
        return;
    }
    if world.killed.get() < MAX_KILLED && world.goes_wrong(world.kill.get()) {
        life::kill_any();
        return;
    }
    if looks {
        life::kill_left_over();
    }
    let more = world.children_killed.get() < MAX_CHILDREN_KILLED;
    if more && world.children.get() > 0 && world.goes_wrong(world.kill_child.get()) {
        vfork::kill_child();
    }
    life::let_killed_end();
    process::clear_formers();
    if world.enough.get() == 0 && world.is_enough() {
        // Programs end by themselves, and see what is left.
        world.enough.set(world.steps.get() + LONG);
    }
    if (1..world.steps.get()).contains(&world.enough.get()) {
        world.outcome.set(Outcome::Good);
        return;
    }
    if !world.processes.iter().any(|p| p.is_there()) {
        world.outcome.set(Outcome::Good);
        return;
    }
    if !world.calm.get() && world.programs().iter().all(|p| !p.lives.get()) {
        world.be_calm();
    }
    if world.switches.get().is_multiple_of(PARKED) {
        process::check_parked();
    }
    if world.switches.get().is_multiple_of(CHECKED) {
        process::check();
    }
}
