//! Processors, each with a thread of the program that touches pages at random and the service thread that serves it,
//! as a simulation of events.
//!
//! A fault is a chain of steps. It is queued on a descriptor. Its service works, and takes the lock of its shard a few
//! times. A page leaves for the one that comes: it is moved, and all other processors that run the program flush their
//! translations. The mover waits for them, and each of them loses time.
//!
//! Not here: caches, more threads than processors, faults that wait for a device.

use ebb_engine::random::Random;
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The costs of the steps of a fault, in microseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// The program: until a fault is queued, and from its end to the next touch.
    pub program: f64,
    /// The lock of the descriptor, held to queue a fault and to read it.
    pub queue: f64,
    /// The same, for each service thread that waits for the descriptor and is woken.
    pub herd: f64,
    /// The share of faults that another processor's service reads, where two share a descriptor.
    pub astray: f64,
    /// The cost of such a fault beyond another: a thread of another processor is woken, and runs late.
    pub wake_far: f64,
    /// Work of the service thread with no lock held.
    pub service: f64,
    /// The lock of the pager's state, held in [`SECTIONS`] parts.
    pub state: f64,
    /// A flush with one other processor, for the one that asks.
    pub flush: f64,
    /// The same for each further processor.
    pub flush_more: f64,
    /// A flush, for each processor that is asked.
    pub interrupt: f64,
    /// Moves of a page that leaves: each has a flush.
    pub moves: f64,
    /// Pages that leave with one flush, where they leave in batches.
    pub batch: f64,
    /// The cost of a page that leaves in a batch, beyond one that is moved.
    pub batch_page: f64,
}

/// Sections under the lock of the state, of a fault.
const SECTIONS: usize = 3;

/// How faults are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// Flag: each processor has a descriptor and a lock of its own.
    pub shards: bool,
    /// Flag: pages leave in batches.
    pub batches: bool,
}

/// A step of a fault.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    Program,
    Queue,
    Work,
    State,
    Flush,
}

/// The steps in their order, between two touches.
const STEPS: [Step; 9] = [
    Step::Program,
    Step::Queue,
    Step::Work,
    Step::State,
    Step::Work,
    Step::State,
    Step::Flush,
    Step::State,
    Step::Work,
];

/// A processor.
#[derive(Clone, Copy, Default)]
struct Processor {
    /// The step of its fault.
    step: usize,
    /// Interrupts that it has not paid for yet.
    owed: f64,
    /// Flag: it waits for a lock, and runs nothing that must flush.
    waits: bool,
    /// The part of a flush that is due; one is made when it is whole.
    flushes: f64,
    faults: u64,
}

/// A lock with those that wait for it, first come first.
#[derive(Clone, Default)]
struct Lock {
    free_at: f64,
    held: f64,
}

/// The outcome.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Faults served a second.
    pub faults: f64,
    /// The share of the time in which the busiest lock of a descriptor is held.
    pub queue_held: f64,
    /// The same of a lock of the state.
    pub state_held: f64,
    /// The share of the processors' time that goes into flushes and interrupts.
    pub flushing: f64,
}

/// A number of processors.
pub struct Model {
    costs: Costs,
    way: Way,
    processors: Vec<Processor>,
    queues: Vec<Lock>,
    states: Vec<Lock>,
    flushing: f64,
    random: Random,
}

impl Model {
    /// At rest.
    #[must_use]
    pub fn new(costs: Costs, way: Way, processors: usize, seed: u64) -> Self {
        let shards = if way.shards { processors } else { 1 };
        Self {
            costs,
            way,
            processors: vec![Processor::default(); processors],
            queues: vec![Lock::default(); shards],
            states: vec![Lock::default(); shards],
            flushing: 0.0,
            random: Random::new(seed),
        }
    }

    /// Runs for so many microseconds.
    #[must_use]
    pub fn run(mut self, us: f64) -> Outcome {
        /// Nanoseconds order events.
        const NS: f64 = 1e3;
        let count = self.processors.len();
        let mut events: BinaryHeap<_> = (0..count).map(|p| Reverse((p as u64, p))).collect();
        while let Some(Reverse((at, processor))) = events.pop() {
            let now = at as f64 / NS;
            if now >= us {
                break;
            }
            let then = self.step(processor, now);
            events.push(Reverse(((then * NS) as u64, processor)));
        }
        let most = |locks: &[Lock]| locks.iter().map(|l| l.held).fold(0.0, f64::max) / us;
        Outcome {
            faults: self.processors.iter().map(|p| p.faults).sum::<u64>() as f64 * 1e6 / us,
            queue_held: most(&self.queues),
            state_held: most(&self.states),
            flushing: self.flushing / (us * count as f64),
        }
    }

    /// The next step of a processor; when it has ended.
    fn step(&mut self, processor: usize, now: f64) -> f64 {
        let owed = std::mem::take(&mut self.processors[processor].owed);
        self.flushing += owed;
        self.processors[processor].waits = false;
        let begin = now + owed;
        let step = STEPS[self.processors[processor].step];
        let works = STEPS.iter().filter(|s| **s == Step::Work).count() as f64;
        let end = match step {
            Step::Program => begin + self.about(self.costs.program),
            Step::Work => begin + self.about(self.costs.service / works) + self.more() / works,
            Step::Queue => self.queue(processor, begin),
            Step::State => self.state(processor, begin),
            Step::Flush => begin + self.flush(processor),
        };
        let at = &mut self.processors[processor];
        at.step = (at.step + 1) % STEPS.len();
        at.faults += u64::from(at.step == 0);
        end
    }

    /// A duration that varies, so that processors do not walk in step.
    fn about(&mut self, us: f64) -> f64 {
        us * (0.5 + self.random.below(1001) as f64 / 1000.0)
    }

    /// The cost of this way beyond the plainest. The more processors share a descriptor, the more faults go astray.
    fn more(&self) -> f64 {
        let others = 1.0 - 1.0 / self.processors.len() as f64;
        let astray = match self.way.shards {
            true => 0.0,
            false => 2.0 * self.costs.astray * others,
        };
        let batched = match self.way.batches {
            true => self.costs.batch_page,
            false => 0.0,
        };
        astray * self.costs.wake_far + batched
    }

    fn queue(&mut self, processor: usize, now: f64) -> f64 {
        let is_waiting = |p: &&Processor| STEPS[p.step] == Step::Program;
        let waiting = match self.way.shards {
            true => 0,
            false => self.processors.iter().filter(is_waiting).count(),
        };
        let long = self.costs.queue + self.costs.herd * waiting as f64;
        let shard = processor % self.queues.len();
        Self::hold(
            &mut self.queues[shard],
            &mut self.processors[processor],
            now,
            long,
        )
    }

    fn state(&mut self, processor: usize, now: f64) -> f64 {
        let long = self.costs.state / SECTIONS as f64;
        let shard = processor % self.states.len();
        Self::hold(
            &mut self.states[shard],
            &mut self.processors[processor],
            now,
            long,
        )
    }

    /// Waits for a lock, and holds it for so long.
    fn hold(lock: &mut Lock, processor: &mut Processor, now: f64, long: f64) -> f64 {
        processor.waits = lock.free_at > now;
        lock.free_at = lock.free_at.max(now) + long;
        lock.held += long;
        lock.free_at
    }

    /// Flushes that are due; how long they take.
    fn flush(&mut self, processor: usize) -> f64 {
        let each = match self.way.batches {
            true => 1.0 / self.costs.batch,
            false => self.costs.moves,
        };
        self.processors[processor].flushes += each;
        let mut took = 0.0;
        while self.processors[processor].flushes >= 1.0 {
            self.processors[processor].flushes -= 1.0;
            let mut asked = 0;
            for (i, other) in self.processors.iter_mut().enumerate() {
                if i != processor && !other.waits {
                    other.owed += self.costs.interrupt;
                    asked += 1;
                }
            }
            if asked > 0 {
                took += self.costs.flush + self.costs.flush_more * f64::from(asked - 1);
            }
        }
        self.flushing += took;
        took
    }
}
