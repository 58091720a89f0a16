//! The programs of both benchmarks, and the machine that they run on.

use super::order::Watched;
use super::world::{Actor, World};
use super::{Counts, Options, PAGE, POOR};
use ebb_engine::random::Random;
use std::collections::VecDeque;

/// Pages that reclaim lets go of together.
const RECLAIMED: usize = 32;
/// Filling a page: 1.53 s of processor time for 2 GiB.
const FILL_NS: u64 = 2_900;
/// Computation of the active process between two accesses: with those, its ten runs took 36 s beside the
/// waits for pages.
const THINK_NS: u64 = 60_000;
/// The cost, for the active process's group, of each page that comes back and of the page that it
/// replaces: that group reclaims for itself. The patches cost 6.5 s more of system time, with 267368
/// more faults.
const FAULT_NS: u64 = 20_000;
/// How often an idle worker looks.
const POLL_NS: u64 = 1_000_000;
/// Idle time of the services before the active process begins.
const REST_NS: u64 = 120_000_000_000;
/// How often it runs.
const RUNS: u16 = 10;
/// Pages it has more than its limit holds: each of the ten runs wrote so many more than it read, with
/// 6.10.
const EXCESS: u64 = 1203;

/// Groups, in the order of their numbers. The first three services have the twelve pages that 6.10
/// could write back before it came upon a group that had ended.
const FIRST_SERVICES: std::ops::Range<u16> = 0..3;
const ENDED: u16 = 3;
/// Every other of these has nothing in the pool.
const SERVICES: std::ops::Range<u16> = 4..40;
const IDLE: u16 = 40;
const ACTIVE: u16 = 41;

/// Names a page of a group: every twentieth does not compress.
fn page(group: u16, number: u64) -> u64 {
    let poor = if number % 20 == 19 { POOR } else { 0 };
    u64::from(group) << 32 | number | poor
}

/// Lets the background catch up with the program.
fn background(world: &World, swapping: &mut Watched) {
    world.act(Actor::Worker);
    let until = world.time_of(Actor::Program);
    while world.time_of(Actor::Worker) < until {
        if !swapping.inner.work() {
            world.spend(POLL_NS);
        }
    }
    world.act(Actor::Program);
}

/// The services of any system, which hardly ever do anything.
fn boot(swapping: &mut Watched, options: &Options) {
    for group in FIRST_SERVICES.chain([ENDED]).chain(SERVICES) {
        swapping.inner.begin(group);
        let pages = match group {
            ENDED => 0,
            group if FIRST_SERVICES.contains(&group) => 4,
            group if group % 2 == 0 => 0,
            _ => (64 / options.scale).max(1),
        };
        let pages: Vec<u64> = (0..pages).map(|number| page(group, number)).collect();
        swapping.store(group, &pages);
    }
    swapping.inner.end(ENDED);
}

/// Stores a page after the other, as reclaim does.
fn store_all(world: &World, swapping: &mut Watched, group: u16, pages: u64) {
    let pages: Vec<u64> = (0..pages).map(|number| page(group, number)).collect();
    for pages in pages.chunks(RECLAIMED) {
        world.spend(FILL_NS * pages.len() as u64);
        swapping.store(group, pages);
        background(world, swapping);
    }
}

/// Idle services fill the pool; then a process works in less memory than it has pages, ten times over.
/// Its pages in the pool count as its memory.
pub fn active(world: &World, swapping: &mut Watched, options: &Options) -> (f64, Counts) {
    let bytes = |mib: u64| (mib << 20) / options.scale;
    boot(swapping, options);
    swapping.inner.begin(IDLE);
    // Pages of the 1.5 GiB left on devices and in the pool.
    store_all(world, swapping, IDLE, bytes(840) / PAGE as u64);
    world.spend(REST_NS);
    background(world, swapping);
    let (start, before) = (world.now(), super::counts(world, swapping.inner));
    let mut random = Random::new(options.seed);
    for run in 0..RUNS {
        let work = Work {
            group: ACTIVE + run,
            limit: bytes(60),
            pages: bytes(60) / PAGE as u64 + EXCESS / options.scale,
            accesses: options.accesses / u64::from(RUNS) / options.scale,
        };
        let out = work.run(world, swapping, &mut random);
        if run + 1 < RUNS {
            out.into_iter().for_each(|page| swapping.free(page));
            swapping.inner.end(work.group);
        }
    }
    let elapsed = world.now() - start;
    let counts = super::counts(world, swapping.inner).since(&before);
    (elapsed as f64 / 1e9, counts)
}

/// A run of the active process.
struct Work {
    group: u16,
    limit: u64,
    pages: u64,
    accesses: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Untouched,
    Resident,
    Out,
}

impl Work {
    /// Touches every page, and then some at random. Which are out in the end.
    fn run(&self, world: &World, swapping: &mut Watched, random: &mut Random) -> Vec<u64> {
        swapping.inner.begin(self.group);
        let mut states = vec![State::Untouched; self.pages as usize];
        let mut resident: VecDeque<usize> = VecDeque::new();
        let named = |number: usize| page(self.group, number as u64);
        for access in 0..self.pages + self.accesses {
            world.spend(THINK_NS);
            let number = if access < self.pages {
                access as usize
            } else {
                random.below(self.pages as usize)
            };
            if states[number] == State::Out {
                world.spend(FAULT_NS);
                swapping.load(named(number));
            }
            if states[number] != State::Resident {
                states[number] = State::Resident;
                resident.push_back(number);
            }
            while (resident.len() * PAGE) as u64 + swapping.inner.group_bytes(self.group)
                > self.limit
            {
                let out: Vec<usize> = resident.drain(..RECLAIMED.min(resident.len())).collect();
                out.iter().for_each(|&number| states[number] = State::Out);
                let out: Vec<u64> = out.into_iter().map(named).collect();
                swapping.store(self.group, &out);
            }
            background(world, swapping);
        }
        let out = (0..states.len()).filter(|&number| states[number] == State::Out);
        out.map(named).collect()
    }
}

/// 2 GiB of pages that compress to three quarters are filled in 1 GiB of memory, of which 256 MiB
/// belong to others. The pool is in the same memory.
pub fn allocate(world: &World, swapping: &mut Watched, options: &Options) -> (f64, Counts) {
    let bytes = |mib: u64| (mib << 20) / options.scale;
    boot(swapping, options);
    swapping.inner.begin(ACTIVE);
    let name = |number: u64| u64::from(ACTIVE) << 32 | number;
    let mut out = 0;
    for number in 0..bytes(2048) / PAGE as u64 {
        world.spend(FILL_NS);
        while (number + 1 - out) * PAGE as u64 + swapping.inner.pool_bytes() > bytes(768) {
            let pages: [u64; RECLAIMED] = std::array::from_fn(|i| name(out + i as u64));
            swapping.store(ACTIVE, &pages);
            out += RECLAIMED as u64;
        }
        background(world, swapping);
    }
    let elapsed = world.now();
    (elapsed as f64 / 1e9, super::counts(world, swapping.inner))
}
