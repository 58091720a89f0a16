//! Who runs: threads are coroutines of their process, and one of all processes runs at a time.
//!
//! A thread gives its turn up at calls of the kernel and at locks ([`pause`]), where chance says so, and where it
//! has to wait ([`wait`]). Its process then picks the next of all threads. If that is another process's, the turn
//! goes there by a word of shared memory. Where nobody can run, time passes up to the next deadline; where there is
//! none, threads wait for ever, and the run has failed.

use crate::chance::Rate;
use crate::trace::What;
use crate::world::{Key, MAX_TASKS, Outcome, Role, SUPERVISOR, State, World};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use ebb_engine::locks;
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

type Thread = Coroutine<(), (), ()>;

/// The turn is nobody's: the run is over.
pub const OVER: u32 = u32::MAX;

/// How long a process waits for its turn before it looks whether the run goes on.
const PATIENCE: Duration = Duration::from_secs(2);

/// Nanoseconds of a call.
const CALL: u64 = 300;

/// Steps in which others run often, after one that was disturbed, as what is done again is seldom thought of; and of a
/// call that others are to meet.
const TENSE: u32 = 8;
/// The rate of changes in these.
const TENSE_RATE: Rate = 1 << 13;

/// Stacks of threads, in bytes.
const STACK: usize = 512 << 10;

/// How often threads change where they need not, and for how long they stand still.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// A change at a call.
    pub switch: Rate,
    /// A change at a lock.
    pub lock: Rate,
    /// A change after which the thread stands still for a while.
    pub stall: Rate,
    /// A signal to a thread of a program, at a call.
    pub signal: Rate,
}

/// The threads of this process, and the world.
pub struct Scheduler {
    world: &'static World,
    rates: Cell<Rates>,
    process: Cell<u8>,
    threads: [RefCell<Option<Thread>>; MAX_TASKS],
    yielders: [Cell<*const Yielder<(), ()>>; MAX_TASKS],
    /// Stacks of threads that ended by themselves, for others: what was touched of them is there.
    stacks: RefCell<Vec<DefaultStack>>,
    /// The place of a forked child's thread before its first turn.
    born: Cell<Option<usize>>,
    /// Flag: the running thread is one of these, not the loop that picks.
    inside: Cell<bool>,
    /// Flag: the thread that runs was resumed to try once more to take a lock.
    tries: Cell<bool>,
    /// Looked at now and then, between two steps.
    oracle: OnceLock<fn(&World)>,
    /// Runs as the process ends.
    at_end: OnceLock<fn()>,
    /// The handler of signals.
    handler: OnceLock<fn()>,
}

// SAFETY: one thread of the host uses it.
unsafe impl Sync for Scheduler {}
// SAFETY: as above.
unsafe impl Send for Scheduler {}

static SCHEDULER: OnceLock<Scheduler> = OnceLock::new();

/// The scheduler of this process.
pub fn scheduler() -> &'static Scheduler {
    SCHEDULER.get().expect("a simulation has begun")
}

/// The world.
pub fn world() -> &'static World {
    scheduler().world
}

/// A simulation begins in this process of the host.
pub fn begin(world: &'static World, rates: Rates, oracle: fn(&World), at_end: fn()) {
    SCHEDULER.get_or_init(|| Scheduler {
        world,
        rates: Cell::new(rates),
        process: Cell::new(0),
        threads: [const { RefCell::new(None) }; MAX_TASKS],
        yielders: [const { Cell::new(std::ptr::null()) }; MAX_TASKS],
        stacks: RefCell::default(),
        born: Cell::new(None),
        inside: Cell::new(false),
        tries: Cell::new(false),
        oracle: OnceLock::from(oracle),
        at_end: OnceLock::from(at_end),
        handler: OnceLock::new(),
    });
    world.now.set(1_000_000_000);
    world.next_id.set(1);
    ebb_engine::sync::simulated::begin(&Locks);
    ebb_sys::clock::simulate(|| scheduler().world.now.get());
}

/// The engine's and the pager's locks.
struct Locks;

impl ebb_engine::sync::simulated::Scheduler for Locks {
    fn before_lock(&self) {
        let scheduler = scheduler();
        scheduler.world.locked.set(scheduler.world.locked.get() + 1);
        scheduler.has_tried();
        if scheduler.inside.get() && scheduler.world.strikes(scheduler.rates.get().lock) {
            scheduler.pause("lock");
        }
    }
    fn lock_taken(&self) {
        let scheduler = scheduler();
        assert!(scheduler.inside.get(), "a lock is taken, and nobody runs");
        scheduler.tries.set(false);
        let me = scheduler.me();
        me.looked.set(scheduler.world.progress.get());
        scheduler.gives_up(State::Tries, Key::Never, 0);
    }
    fn wait(&self, condition: usize, limit: Option<Duration>) -> bool {
        scheduler().wait(Key::Condition(condition), limit)
    }
    fn notify(&self, condition: usize) {
        scheduler().wake(Key::Condition(condition), i32::MAX);
    }
}

impl Scheduler {
    /// This process's number.
    pub fn process(&self) -> u8 {
        self.process.get()
    }

    /// Whether a thread of the simulation runs, not the loop that picks.
    pub fn is_inside(&self) -> bool {
        self.inside.get()
    }

    /// The thread that runs.
    pub fn me(&self) -> &'static crate::world::Task {
        &self.world.tasks.0[self.world.current.get()]
    }

    /// The program, of those that this process was, that the running thread is of.
    pub fn image(&self) -> u8 {
        match self.inside.get() {
            true => self.me().image.get(),
            false => self.world.processes[usize::from(self.process.get())]
                .image
                .get(),
        }
    }

    /// A place for a thread.
    fn place(&self, role: Role, process: u8) -> usize {
        let tasks = &self.world.tasks.0;
        let free = tasks
            .iter()
            .position(|task| task.state.get() == State::Free);
        let index = free.expect("few threads");
        let places = &self.world.places;
        places.set(places.get().max(index + 1));
        let id = self.world.next_id.get();
        self.world.next_id.set(id + 1);
        let task = &tasks[index];
        task.id.set(id);
        task.role.set(role);
        task.process.set(process);
        // A child is the program that its parent is.
        task.image.set(self.image());
        task.cpu.set((id % 2) as u8);
        task.began.set(0);
        task.unaware.set(false);
        task.idle.set(false);
        task.asked.set(false);
        task.child.set(0);
        task.robust.set(0);
        task.masked.set(0);
        task.state.set(State::Ready);
        index
    }

    /// A place for the first thread of a process that is about to be forked.
    pub fn reserve(&self, role: Role, process: u8) -> usize {
        self.place(role, process)
    }

    /// This process of the host is another one of the simulation from now on.
    pub fn become_process(&self, process: u8) {
        self.process.set(process);
    }

    /// Starts a thread of this process; its number.
    pub fn spawn(&self, role: Role, run: impl FnOnce() + 'static) -> u32 {
        let index = self.place(role, self.process.get());
        self.spawn_at(index, run);
        self.world.tasks.0[index].id.get()
    }

    /// The same in a place that is reserved.
    pub fn spawn_at(&self, index: usize, run: impl FnOnce() + 'static) {
        let used = self.stacks.borrow_mut().pop();
        let stack = used.unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for a stack"));
        let thread = Coroutine::with_stack(stack, move |yielder, ()| {
            scheduler().yielders[index].set(yielder);
            run();
            // It may have another place by now, in a forked child.
            scheduler().me().state.set(State::Free);
        });
        // A thread that was here and will not run any more: nothing on its stack is to be dropped.
        if let Some(gone) = self.threads[index].replace(Some(thread)) {
            std::mem::forget(gone);
        }
    }

    /// Gives the turn up, in a state.
    fn gives_up(&self, state: State, key: Key, until: u64) {
        let index = self.world.current.get();
        let me = &self.world.tasks.0[index];
        me.key.set(key);
        me.until.set(until);
        me.woken.set(false);
        me.state.set(state);
        let held = locks::exchange(Default::default());
        self.inside.set(false);
        // SAFETY: that of the running coroutine.
        unsafe { &*self.yielders[index].get() }.suspend(());
        self.inside.set(true);
        locks::exchange(held);
    }

    /// Others may run now; now and then, this thread stands still for a while.
    pub fn pause(&self, why: &'static str) {
        let world = self.world;
        if world.strikes(self.rates.get().stall) {
            let most = 1_000u64 << world.below(16);
            let until = world.now.get() + 1 + world.below(most as usize) as u64;
            world.note(What::Switch, why, [1, until]);
            self.gives_up(State::Waits, Key::Never, until);
        } else {
            world.note(What::Switch, why, [0, 0]);
            self.gives_up(State::Ready, Key::Never, 0);
        }
    }

    /// The running thread of a program begins a touch or a call. What it began before has come to its end.
    pub fn begins(&self) {
        self.me().began.set(self.world.now.get());
    }

    /// A call: time passes, and others may run.
    pub fn step(&self, call: &'static str, about: [u64; 2]) {
        let world = self.world;
        world.steps.set(world.steps.get() + 1);
        world.now.set(world.now.get() + CALL);
        world.note(What::Call, call, about);
        let mut rate = self.rates.get().switch;
        if let Some(left) = world.tense.get().checked_sub(1) {
            world.tense.set(left);
            rate = rate.max(TENSE_RATE);
        }
        if self.inside.get() && world.strikes(rate) {
            self.pause(call);
        }
        if self.is_signalled() {
            self.signal();
        }
    }

    /// Whether the running thread gets a signal now.
    pub fn is_signalled(&self) -> bool {
        let signal = self.rates.get().signal;
        self.inside.get() && signal > 0 && self.takes_signals() && self.world.strikes(signal)
    }

    /// Threads of programs handle signals so.
    pub fn handle_signals(&self, handler: fn()) {
        self.handler.get_or_init(|| handler);
    }

    /// Whether the running thread is one of a program that gets signals now. A child of `vfork` gets none: its handlers would be
    /// its parent's.
    fn takes_signals(&self) -> bool {
        let me = self.me();
        me.role.get() == Role::Program && me.masked.get() == 0 && me.child.get() == 0
    }

    /// A signal: the running thread handles it, and gets no other meanwhile.
    pub fn signal(&self) {
        self.world.note(What::Do, "signal", [0, 0]);
        self.mask_signals(true);
        self.handler.get().iter().for_each(|handler| handler());
        self.mask_signals(false);
    }

    /// The running thread gets no signals from now on, or those again that it got before.
    pub fn mask_signals(&self, masks: bool) {
        let masked = &self.me().masked;
        masked.set(match masks {
            true => masked.get() + 1,
            false => masked.get() - 1,
        });
    }

    /// Whether a thread of this process may be between the question what is mapped and the call that takes it.
    pub fn any_has_asked(&self) -> bool {
        let here = |task: &&crate::world::Task| task.process.get() == self.process.get();
        let mut there = self.world.there().iter().filter(here);
        there.any(|task| task.state.get() != State::Free && task.asked.get())
    }

    /// A call was disturbed, or others are to meet one that comes.
    pub fn is_tense(&self) {
        self.world.tense.set(TENSE);
    }

    /// Waits for an event, or so long; whether it came.
    pub fn wait(&self, key: Key, limit: Option<Duration>) -> bool {
        let until = limit.map_or(0, |limit| self.at(limit));
        self.gives_up(State::Waits, key, until);
        self.me().woken.get()
    }

    /// Looks for something of other processes again and again, for so long at most.
    pub fn looks(&self, key: Key, limit: Duration, mut look: impl FnMut() -> bool) {
        let until = self.at(limit);
        while !look() && self.world.now.get() < until {
            self.me().looked.set(self.world.to_look_for(key));
            self.gives_up(State::Looks, key, until);
        }
    }

    fn at(&self, limit: Duration) -> u64 {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 4);
        self.world.now.get().saturating_add(limit.max(1))
    }

    /// Wakes so many who wait for an event.
    pub fn wake(&self, key: Key, count: i32) {
        let (mut left, image) = (count, self.image());
        for task in self.world.there() {
            let waits = task.state.get() == State::Waits && task.key.get() == key;
            let here = task.process.get() == self.process.get() && task.image.get() == image;
            if left > 0 && waits && here {
                task.woken.set(true);
                task.state.set(State::Ready);
                left -= 1;
            }
        }
    }

    /// Ends a thread, of which nothing runs any more.
    pub fn end(&self, is: impl Fn(&crate::world::Task) -> bool) {
        for task in self.world.there() {
            if task.state.get() != State::Free && is(task) {
                task.state.set(State::Free);
            }
        }
    }

    /// The calling thread ends here.
    pub fn leave(&self) -> ! {
        loop {
            self.gives_up(State::Free, Key::Never, 0);
        }
    }

    /// Runs threads until the world has an outcome, or this process ends.
    pub fn run(&self) {
        loop {
            let world = self.world;
            if let Some(oracle) = self.oracle.get() {
                oracle(world);
            }
            if world.outcome.get() != Outcome::None {
                return;
            }
            let Some(next) = self.pick() else { continue };
            let process = world.tasks.0[next].process.get();
            world.current.set(next);
            if process != self.process.get() && !self.hand_to(process) {
                return;
            }
            // Unless the turn came back to let this process end.
            if self.is_alive() {
                self.resume();
            }
        }
    }

    /// Hands the turn to another process; once it is back, whether the run goes on.
    pub fn hand_to(&self, process: u8) -> bool {
        let alive = self.is_alive();
        if !alive {
            self.at_end.get().iter().for_each(|end| end());
            self.world.count_time();
            self.world.dying.set(std::process::id() as i32);
        }
        self.world.turn.store(process.into(), SeqCst);
        futex_wake(&self.world.turn);
        alive && self.await_turn()
    }

    /// Waits for the turn; whether the run goes on, in this process.
    pub fn await_turn(&self) -> bool {
        let me = u32::from(self.process.get());
        loop {
            let turn = self.world.turn.load(SeqCst);
            if turn == me || turn == OVER {
                break;
            }
            if !is_there(self.world.driver.get()) {
                // Nobody wants to know any more.
                return false;
            }
            ebb_sys::futex::wait(&self.world.turn, turn, Some(PATIENCE), true);
            let host = self.world.processes[turn as usize % (SUPERVISOR + 1)]
                .host
                .get();
            if turn == self.world.turn.load(SeqCst) && host > 0 && !is_there(host) {
                self.world.fail("a process of the host ended by itself");
                self.world.end();
            }
        }
        let dying = self.world.dying.take();
        while dying != 0 && is_there(dying) {
            std::thread::yield_now();
        }
        self.world.outcome.get() == Outcome::None
    }

    /// Whether this process lives in any way.
    fn is_alive(&self) -> bool {
        self.world.processes[usize::from(self.process.get())].is_there()
    }

    /// The running thread is of this program from now on.
    pub fn become_image(&self, image: u8) {
        self.me().image.set(image);
    }

    /// In a forked child, in the thread that forked: it is this process's from now on, in another place, and stands
    /// still until its turn comes. All other threads are the parent's.
    pub fn become_child(&self, process: u8, from: usize, to: usize) {
        self.process.set(process);
        self.born.set(Some(to));
        self.yielders[to].set(self.yielders[from].get());
        let held = locks::exchange(Default::default());
        self.inside.set(false);
        // SAFETY: that of the running coroutine.
        unsafe { &*self.yielders[to].get() }.suspend(());
        self.inside.set(true);
        locks::exchange(held);
    }

    /// Waits until the forked child stands still.
    pub fn await_child(&self) {
        while self.world.child_stands.swap(0, SeqCst) == 0 {
            ebb_sys::futex::wait(&self.world.child_stands, 0, None, true);
        }
    }

    /// A thread that tried to take a lock has it, and may have given up others since: those who wait may try again.
    fn has_tried(&self) {
        if self.tries.take() {
            self.world.progress.set(self.world.progress.get() + 1);
        }
    }

    fn resume(&self) {
        let world = self.world;
        let index = world.current.get();
        let task = &world.tasks.0[index];
        if !matches!(task.state.get(), State::Tries | State::Looks) {
            world.progress.set(world.progress.get() + 1);
        }
        self.tries.set(task.state.get() == State::Tries);
        task.state.set(State::Ready);
        world.switches.set(world.switches.get() + 1);
        world.note(What::Switch, "runs", [index as u64, 0]);
        let thread = self.threads[index].borrow_mut().take();
        let Some(mut thread) = thread else {
            let (task, here) = (task.process.get(), self.process.get());
            panic!("process {here} has no thread {index} of process {task}")
        };
        self.inside.set(true);
        thread.resume(());
        self.has_tried();
        self.inside.set(false);
        if thread.done() {
            self.stacks.borrow_mut().push(thread.into_stack());
            return;
        }
        let place = self.born.take();
        let gone = self.threads[place.unwrap_or(index)].replace(Some(thread));
        std::mem::forget(gone);
        if place.is_some() {
            // The thread that forked stood still in the child: nothing here runs before its turn.
            self.world.child_stands.store(1, SeqCst);
            futex_wake(&self.world.child_stands);
            // Unless it was killed before.
            if self.await_turn() && self.is_alive() {
                self.resume();
            }
        }
    }

    /// The next thread to run. None: time passed instead, or the run is over.
    fn pick(&self) -> Option<usize> {
        let world = self.world;
        let (now, progress) = (world.now.get(), world.progress.get());
        // Those that can run, and after them those that only look, or are idle work.
        let (mut ready, mut look) = ([0u8; MAX_TASKS], [0u8; MAX_TASKS]);
        let (mut runs, mut looks, mut next) = (0, 0, u64::MAX);
        for (index, task) in world.there().iter().enumerate() {
            let until = task.until.get();
            let due = until != 0 && until <= now;
            let (can, only_looks) = match task.state.get() {
                State::Free => continue,
                State::Ready => (true, task.idle.get()),
                State::Waits => (due, task.idle.get()),
                State::Tries => (task.looked.get() != progress, true),
                State::Looks => {
                    let new = world.to_look_for(task.key.get()) != task.looked.get();
                    (due || new, true)
                }
            };
            if !can {
                next = if until != 0 { next.min(until) } else { next };
                continue;
            }
            let (list, count) = match only_looks {
                true => (&mut look, &mut looks),
                false => (&mut ready, &mut runs),
            };
            list[*count] = index as u8;
            *count += 1;
        }
        if runs + looks == 0 {
            self.pass(next);
            return None;
        }
        // Those of the second list come less often.
        let among = match runs > 0 && world.below(4) != 0 {
            true => runs,
            false => runs + looks,
        };
        let one = world.below(among);
        let index = if one < runs {
            ready[one]
        } else {
            look[one - runs]
        };
        Some(usize::from(index))
    }

    /// Nobody can run: time passes.
    fn pass(&self, next: u64) {
        let world = self.world;
        if next == u64::MAX {
            world.fail(&format!("threads wait for ever:\n{}", world.stand()));
            return;
        }
        world.now.set(world.now.get().max(next));
        world.note(What::Time, "passes", [0, 0]);
        world.progress.set(world.progress.get() + 1);
    }
}

/// A member has news.
pub fn news() {
    world().news.set(world().news.get() + 1);
}

/// Whether the host has a process of this number.
fn is_there(process: i32) -> bool {
    // SAFETY: signal 0 is none.
    let asked = unsafe { libc::kill(process, 0) };
    asked == 0
}

fn futex_wake(word: &AtomicU32) {
    ebb_sys::futex::wake(word, i32::MAX, true);
}

impl World {
    /// The places of threads, as far as any was ever taken.
    pub fn there(&self) -> &[crate::world::Task] {
        &self.tasks.0[..self.places.get()]
    }

    /// A number that changes when there may be what a thread looks for.
    fn to_look_for(&self, key: Key) -> u64 {
        match key {
            Key::News => self.news.get(),
            _ => self.progress.get(),
        }
    }

    /// The run has failed, for this reason.
    pub fn fail(&self, why: &str) {
        if self.outcome.get() == Outcome::Bad {
            return;
        }
        let bytes = why.bytes().take(self.message.0.len());
        self.message_len.set(bytes.len());
        self.message
            .0
            .iter()
            .zip(bytes)
            .for_each(|(to, byte)| to.set(byte));
        self.outcome.set(Outcome::Bad);
    }

    /// Why.
    pub fn why(&self) -> String {
        let bytes: Vec<u8> = self.message.0.iter().map(|byte| byte.get()).collect();
        String::from_utf8_lossy(&bytes[..self.message_len.get()]).into_owned()
    }

    /// Where each thread stands.
    pub fn stand(&self) -> String {
        let tasks = self
            .tasks
            .0
            .iter()
            .filter(|task| task.state.get() != State::Free);
        let line = |task: &crate::world::Task| {
            let key = match task.key.get() {
                Key::Word(_) => "a word".to_owned(),
                Key::Condition(_) => "a condition".to_owned(),
                key => format!("{key:?}"),
            };
            format!(
                "  process {} image {} thread {} {:?} {:?} {key} until {}\n",
                task.process.get(),
                task.image.get(),
                task.id.get(),
                task.role.get(),
                task.state.get(),
                task.until.get(),
            )
        };
        tasks.map(line).collect()
    }
}
