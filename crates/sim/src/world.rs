//! What all processes of a simulation share: clock, chance, threads, trace, outcome ([`World`]).
//!
//! A simulated process is a process of the host, so that a fork is one, with the copy of all private memory that
//! it makes. The world lies in memory that they share. Exactly one thread of all runs at any time: the others of
//! its process are coroutines, and the other processes wait for their turn. So plain cells do.

use crate::trace::{Event, RING, What, mixed, name};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// Threads of all processes together.
pub const MAX_TASKS: usize = 96;
/// Processes of programs.
pub const MAX_PROCESSES: usize = 8;
/// The supervisor's process.
pub const SUPERVISOR: usize = MAX_PROCESSES;
/// Programs that a process may be, one after the other.
pub const MAX_IMAGES: usize = 4;
/// Pages that several processes map, at most.
pub const MAX_SHARED: usize = 1 << 18;
/// Slots of all devices together.
pub const MAX_SLOTS: usize = 1 << 14;
/// Bytes of a message.
pub const MAX_MESSAGE: usize = 2048;

/// A thread's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum State {
    /// There is no such thread.
    #[default]
    Free,
    /// It can run.
    Ready,
    /// It waits for its key, or until its time.
    Waits,
    /// It waits for a lock, and tries again when others have run.
    Tries,
    /// It waits for something of other processes, and looks again when there may be some, or at its time.
    Looks,
}

/// A thread's part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Role {
    /// A thread of the program.
    #[default]
    Program,
    /// A service thread.
    Service,
    /// The helper's first thread.
    Keeper,
    /// The supervisor's thread.
    Supervisor,
}

/// An event that threads wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Key {
    /// Nothing: time alone.
    #[default]
    Never,
    /// A word of memory.
    Word(usize),
    /// A condition variable.
    Condition(usize),
    /// A fault can be read.
    Fault,
    /// The thread of this number may try its page again.
    Page(u32),
    /// The child of `vfork` of this number is gone.
    Child(u32),
    /// News of the tree.
    News,
    /// A packet, of which nobody tells.
    Packet,
}

/// A thread.
#[derive(Default)]
pub struct Task {
    /// Flag: it can run.
    pub state: Cell<State>,
    /// The part.
    pub role: Cell<Role>,
    /// The process.
    pub process: Cell<u8>,
    /// The program that its process was when it began, by number.
    pub image: Cell<u8>,
    /// The number.
    pub id: Cell<u32>,
    /// The process that it is alone, a child of `vfork` in the memory of the other; 0: it is of that one.
    pub child: Cell<u32>,
    /// Reasons for which it gets no signal now.
    pub masked: Cell<u8>,
    /// The list of locks that are to be taken from it if it dies.
    pub robust: Cell<usize>,
    /// The processor.
    pub cpu: Cell<u8>,
    /// Flag: its last call asked what is mapped in order to take it, or is about to.
    pub asked: Cell<bool>,
    /// Flag: it is idle work, which runs less often than what competes.
    pub idle: Cell<bool>,
    /// The cause of its wait.
    pub key: Cell<Key>,
    /// The end of its wait; 0: for ever.
    pub until: Cell<u64>,
    /// The moment at which its program's thread began what it is about: a touch, or a call. 0: nothing yet.
    pub began: Cell<u64>,
    /// Flag: it was woken, not timed out.
    pub woken: Cell<bool>,
    /// Steps of others when it last tried or looked; news, where it waits for those.
    pub looked: Cell<u64>,
    /// Flag: as a keeper, it began a turn since its program became another.
    pub unaware: Cell<bool>,
}

/// A process.
#[derive(Default)]
pub struct Process {
    /// Flag: its program lives.
    pub lives: Cell<bool>,
    /// Flag: its helper lives.
    pub served: Cell<bool>,
    /// Number of the host's process.
    pub host: Cell<i32>,
    /// The time when its program ended.
    pub ended: Cell<u64>,
    /// The program that it is, by number; the next after each exec.
    pub image: Cell<u8>,
    /// The addresses that its last exec drew, as a number. A fork copies it.
    pub addresses: Cell<u64>,
    /// Helpers that live of programs that it was, a bit each.
    pub formers: Cell<u8>,
    /// The time of its last exec.
    pub became: Cell<u64>,
    /// Flag: the pager ended its program.
    pub ended_by_pager: Cell<bool>,
    /// Flag: it has said why.
    pub excused: Cell<bool>,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Outcome {
    /// It has not.
    #[default]
    None,
    /// All was as it should be.
    Good,
    /// Something was not, as the message says.
    Bad,
}

/// See the module.
#[derive(Default)]
pub struct World {
    /// The seed.
    pub seed: Cell<u64>,
    /// Numbers drawn.
    pub drawn: Cell<u64>,
    /// Numbers before and after which nothing is out of the ordinary.
    pub window: Cell<(u64, u64)>,
    /// Nanoseconds.
    pub now: Cell<u64>,
    /// Calls at which others may run.
    pub steps: Cell<u64>,
    /// The moment at which the run was long; 0: it is not.
    pub long_since: Cell<u64>,
    /// Changes of the thread that runs.
    pub switches: Cell<u64>,
    /// Times a thread ran that did not only try or look.
    pub progress: Cell<u64>,
    /// News of members.
    pub news: Cell<u64>,
    /// Places of threads that were ever taken.
    pub places: Cell<usize>,
    /// The thread that runs.
    pub current: Cell<usize>,
    /// The address that a pager's last call is about, or was.
    pub near: Cell<usize>,
    /// Steps left in which others run often.
    pub tense: Cell<u32>,
    /// Flag: faults are over: all has to end now.
    pub calm: Cell<bool>,
    /// Steps after which nothing fails and nobody is killed any more; 0: something may all the time.
    pub quiet_after: Cell<u64>,
    /// The moment since which it is so; 0: not yet.
    pub quiet_since: Cell<u64>,
    /// Steps after which programs end, as the run was long enough; 0: not yet known.
    pub enough: Cell<u64>,
    /// The number of steps by which all has to have ended; 0: not yet known.
    pub bound: Cell<u64>,
    /// The number of the next thread.
    pub next_id: Cell<u32>,
    /// Faults that were served.
    pub faults: Cell<u64>,
    /// Evicted pages, loads and what else was seen, by number.
    pub seen: [Cell<u64>; 16],
    /// Events so far, and what they amount to.
    pub events: Cell<u64>,
    /// The sum of all events.
    pub hash: Cell<u64>,
    /// The process whose turn it is.
    pub turn: AtomicU32,
    /// A fork's child stands still.
    pub child_stands: AtomicU32,
    /// The host's process that ends now.
    pub dying: Cell<i32>,
    /// The host's process that waits for all of these.
    pub driver: Cell<i32>,
    /// The way in which it ended.
    pub outcome: Cell<Outcome>,
    /// Bytes of the message.
    pub message_len: Cell<usize>,
    /// Descriptor of a file that the trace goes to, and one more.
    pub trace_to: Cell<i32>,
    /// The rate at which a process is killed, at a change of the thread that runs.
    pub kill: Cell<u32>,
    /// Processes that were killed.
    pub killed: Cell<u32>,
    /// Processes: those of programs, and the supervisor's.
    pub processes: [Process; MAX_PROCESSES + 1],
    /// Threads.
    pub tasks: TaskList,
    /// The message.
    pub message: Bytes<MAX_MESSAGE>,
    /// The last events.
    pub ring: Ring,
    /// The place where free counts of shared pages are looked for.
    pub next_shared: AtomicU32,
    /// Operations of devices.
    pub operations: AtomicU64,
    /// Processes of which a helper was killed, a bit each.
    pub ends: Cell<u32>,
    /// The rate at which a child of `vfork` is killed, at a change of the thread that runs.
    pub kill_child: Cell<u32>,
    /// Children of `vfork` so far that have not ended by themselves.
    pub children: Cell<u32>,
    /// Children that were killed.
    pub children_killed: Cell<u32>,
    /// Programs that replaced others.
    pub execs: Cell<u64>,
    /// Locks that were taken.
    pub locked: Cell<u64>,
    /// Nanoseconds of a processor that processes of the host took which have ended.
    pub spent: AtomicU64,
}

/// Threads.
pub struct TaskList(pub [Task; MAX_TASKS]);

impl Default for TaskList {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Task::default()))
    }
}

/// Bytes.
pub struct Bytes<const N: usize>(pub [Cell<u8>; N]);

impl<const N: usize> Default for Bytes<N> {
    fn default() -> Self {
        Self([const { Cell::new(0) }; N])
    }
}

/// Events, the last ones.
pub struct Ring(pub [Cell<Event>; RING]);

impl Default for Ring {
    fn default() -> Self {
        Self([const { Cell::new(Event::NONE) }; RING])
    }
}

// SAFETY: one thread of all processes runs at a time, and hands its turn on by an atomic word.
unsafe impl Sync for World {}

impl Process {
    /// Whether its program or a helper of it lives.
    pub fn is_there(&self) -> bool {
        self.lives.get() || self.served.get() || self.formers.get() != 0
    }

    /// Whether the helper lives of the program of this number that it is, or was.
    pub fn has_helper(&self, image: u8) -> bool {
        match image == self.image.get() {
            true => self.served.get(),
            false => self.formers.get() & 1 << image != 0,
        }
    }

    /// That helper has ended.
    pub fn helper_ends(&self, image: u8) {
        match image == self.image.get() {
            true => self.served.set(false),
            false => self.formers.set(self.formers.get() & !(1 << image)),
        }
    }
}

impl World {
    /// This process of the host is about to end: what it took of a processor counts. Nobody waits for it who would be
    /// told.
    pub fn count_time(&self) {
        let clock = rustix::time::ClockId::ProcessCPUTime;
        let time = rustix::time::clock_gettime(clock);
        let nanoseconds = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        self.spent.fetch_add(nanoseconds, SeqCst);
    }

    /// Processes of programs.
    pub fn programs(&self) -> &[Process] {
        &self.processes[..MAX_PROCESSES]
    }

    /// Notes an event of the thread that runs.
    pub fn note(&self, what: What, code: &'static str, about: [u64; 2]) {
        let thread = self.tasks.0[self.current.get()].id.get();
        let event = Event {
            at: self.now.get(),
            thread,
            what,
            code,
            about,
        };
        let number = self.events.get();
        self.ring.0[number as usize % RING].set(event);
        self.events.set(number + 1);
        let words = [
            event.at,
            u64::from(thread) << 8 | what as u64 | (name(code)) << 40,
            about[0],
            about[1],
        ];
        self.hash.set(
            words
                .iter()
                .fold(self.hash.get(), |hash, word| mixed(hash, *word)),
        );
        let to = self.trace_to.get();
        if to > 0 {
            let mut line = event.line();
            line.push('\n');
            // SAFETY: the line is read. A trace that cannot be written is missing.
            unsafe { libc::write(to - 1, line.as_ptr().cast(), line.len()) };
        }
    }

    /// The last events, one a line.
    pub fn last_events(&self, most: usize) -> String {
        let end = self.events.get();
        let first = end.saturating_sub(most.min(RING) as u64);
        let lines = (first..end).map(|n| self.ring.0[n as usize % RING].get().line() + "\n");
        lines.collect()
    }
}

/// Memory of a simulation.
pub struct Shared {
    /// The world.
    pub world: &'static World,
    /// Counts of mappings of pages.
    pub counts: &'static [AtomicU32],
    /// The content of devices.
    pub slots: &'static [Cell<[u8; 4096]>],
}

impl Shared {
    /// New memory that this process shares with all that it forks.
    ///
    /// # Panics
    /// There is none.
    pub fn new() -> Self {
        Self::with_slots(MAX_SLOTS)
    }

    /// The same, with so many slots.
    ///
    /// # Panics
    /// As above.
    pub fn with_slots(count: usize) -> Self {
        let world = shared(size_of::<World>()).cast::<World>();
        let counts = shared(MAX_SHARED * 4).cast::<AtomicU32>();
        let slots = shared(count * 4096).cast::<Cell<[u8; 4096]>>();
        // SAFETY: mapped for good, aligned to pages, zeros, and handed out once.
        unsafe {
            world.write(World::default());
            Self {
                world: &*world,
                counts: std::slice::from_raw_parts(counts, MAX_SHARED),
                slots: std::slice::from_raw_parts(slots, count),
            }
        }
    }

    /// A world before its first step.
    pub fn reset(&self) {
        let world = std::ptr::from_ref(self.world).cast_mut();
        // SAFETY: no process of a simulation lives, and all is in cells and atomics.
        unsafe { world.write(World::default()) };
        let bytes = MAX_SHARED * 4;
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(self.counts.as_ptr().cast_mut().cast::<u8>(), 0, bytes) };
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::new()
    }
}

fn shared(len: usize) -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory at no fixed address.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert!(start != libc::MAP_FAILED, "no shared memory of {len} bytes");
    start.cast()
}
