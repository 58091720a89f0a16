//! What a run is like, as its seed has it: [`Plan`]. With `swarm`, what may go wrong and what programs do are random subsets.

use crate::chance::{Rate, Stream};
use crate::program::Mix;
use crate::scheduler::Rates;
use crate::threads::Disturbances;
use crate::world::MAX_SLOTS;
use ebb_tree::{Codec, Zstd};

/// A swap device.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// The slots.
    pub slots: usize,
    /// The most nanoseconds of a transfer.
    pub latency: usize,
    /// Faults, as `EBB_FAULTS` has them.
    pub faults: String,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Pages of the budget.
    pub budget: u64,
    /// The compression of pages.
    pub codec: Codec,
    /// Swap devices.
    pub devices: Vec<DevicePlan>,
    /// Changes of the thread that runs.
    pub rates: Rates,
    /// Disturbed calls.
    pub disturbances: Disturbances,
    /// Threads of the program.
    pub threads: u32,
    /// Operations of the program.
    pub operations: u64,
    /// The program's work.
    pub mix: Mix,
    /// Flag: processes have a supervisor, which takes back what dead ones had.
    pub supervised: bool,
    /// Flag: processes have CAP_SYS_NICE.
    pub is_privileged: bool,
    /// The rate at which a process is killed, at a change of the thread that runs.
    pub kill: Rate,
    /// The rate at which a child of `vfork` is killed, at a change of the thread that runs.
    pub kill_child: Rate,
}

/// Faults of devices: first those that lose nothing, as what is not written stays where it is.
const KINDS: [&str; 7] = ["write", "short", "read", "corrupt", "rot", "lost", "bad"];
const HARMLESS: usize = 2;
/// Slots of the smallest device.
const CLUSTER: usize = 512;

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64, swarm: bool) -> Self {
        let stream = &mut Stream::new(seed, 0x71a9);
        let forks = up_to(stream, 20, 5);
        let (pressed, budget) = budget(stream, forks);
        let codec = codec(stream);
        let devices = devices(stream, codec);
        let noise = noise(stream, &devices);
        let mut sometimes = |percent: usize, most: u32| -> Rate {
            match !swarm && most < 4096 || stream.percent(percent) {
                true => 1 + stream.below(most as usize) as Rate,
                false => 0,
            }
        };
        let disturbances = Disturbances {
            partial: sometimes(50, 2000),
            again: sometimes(50, 1000),
            busy: sometimes(60, 3000),
            no_page: sometimes(30, 300),
            no_mapping: sometimes(30, 500),
            order: sometimes(60, 60_000),
        };
        let rates = Rates {
            switch: sometimes(100, [200, 2000, 10_000][seed as usize % 3]),
            lock: sometimes(70, [100, 1000, 6_000][seed as usize / 3 % 3]),
            stall: sometimes(70, 8000),
            signal: 0,
        };
        let threads = 1 + stream.below(5) as u32;
        let mix = mix(stream, swarm, (forks, pressed), budget as usize);
        let supervised = stream.percent(60);
        let is_privileged = stream.percent(50);
        let kill = one_of(stream, 30, 1, 4);
        let operations = 150 + stream.below(700) as u64;
        let mix = Mix {
            execs: match supervised {
                true => up_to(stream, 25, 6),
                false => 0,
            },
            vforks: vforks(stream),
            removals: removals(seed, &devices),
            noise,
            ..mix
        };
        let kill_child = one_of(stream, 70, 64, 7);
        let (devices, mix) = match Stream::new(seed, 0x4009).percent(40) {
            true => with_room(seed, mix),
            false => (devices, mix),
        };
        let rates = Rates {
            signal: one_of(stream, 30, 16, 7),
            ..rates
        };
        Self {
            seed,
            budget,
            codec,
            devices,
            rates,
            disturbances,
            threads,
            operations,
            mix,
            supervised,
            is_privileged,
            kill,
            kill_child,
        }
    }

    /// Whether a program may be ended for want of memory: its memory may not fit, or devices fail. A page that the system refuses
    /// now and then is asked for again.
    pub fn may_run_out(&self) -> bool {
        let room: usize = self.devices.iter().map(|d| d.slots).sum();
        let fails = self.devices.iter().any(|d| !d.faults.is_empty());
        let processes = processes(&self.mix);
        let goes = self.mix.removals > 0;
        fails || goes || room < processes * self.mix.most
    }

    /// Steps after which nothing goes wrong any more, and all that waits has to come soon; 0: there is no such time. Not where
    /// a program may wait for its end for want of memory, or for what was killed.
    pub fn quiet_after(&self) -> u64 {
        let stream = &mut Stream::new(self.seed, 0x9e1e);
        match !self.may_run_out() && self.kill == 0 && self.kill_child == 0 && stream.percent(70) {
            true => [2_000, 8_000, 30_000, 100_000][stream.below(4)],
            false => 0,
        }
    }

    /// Whether pages may be lost.
    pub fn may_lose(&self) -> bool {
        let loses = |d: &DevicePlan| {
            ["read", "corrupt", "rot", "lost", "bad", "gone"]
                .iter()
                .any(|f| d.faults.contains(f))
        };
        self.devices.iter().any(loses)
    }
}

/// Processes that may have a program's memory at a time. Two children may copy what their parent has, and each has children of
/// its own. The memory of a former program goes a moment later.
fn processes(mix: &Mix) -> usize {
    let processes = if mix.forks > 0 { 6 } else { 2 };
    processes << usize::from(mix.execs > 0)
}

/// A device that takes all pages of a program, if there is one so large, stays, and does not fail. Noise does not compress.
fn with_room(seed: u64, mix: Mix) -> (Vec<DevicePlan>, Mix) {
    let stream = &mut Stream::new(seed, 0x4009);
    let pages = processes(&mix) * mix.most;
    let device = DevicePlan {
        slots: pages.next_multiple_of(CLUSTER).min(MAX_SLOTS),
        latency: [0, 20_000, 200_000][stream.below(3)],
        faults: String::new(),
    };
    (vec![device], Mix { removals: 0, ..mix })
}

/// In so many of a hundred plans, a number from 1 to `most`; 0 in the others.
fn up_to(stream: &mut Stream, percent: usize, most: usize) -> usize {
    match stream.percent(percent) {
        true => 1 + stream.below(most),
        false => 0,
    }
}

/// Children of `vfork`, in thousandths of operations. In some plans nearly all are: what each that is killed leaves behind adds up.
fn vforks(stream: &mut Stream) -> usize {
    match stream.below(100) {
        0..30 => 1 + stream.below(80),
        30..36 => 600,
        _ => 0,
    }
}

/// Changes of what devices are to leave, in thousandths of operations. Drawn by themselves: seeds keep their plans.
fn removals(seed: u64, devices: &[DevicePlan]) -> usize {
    let stream = &mut Stream::new(seed, 0x1ea7);
    match !devices.is_empty() && stream.percent(40) {
        true => [4, 20, 100][stream.below(3)],
        false => 0,
    }
}

/// In so many of a hundred plans, one of these rates, each twice the one before it.
fn one_of(stream: &mut Stream, percent: usize, first: Rate, rates: usize) -> Rate {
    match stream.percent(percent) {
        true => first << stream.below(rates),
        false => 0,
    }
}

/// Whether programs that fork do it with much swapped out, which the child reads, and the budget.
fn budget(stream: &mut Stream, forks: usize) -> (bool, u64) {
    let pressed = forks > 0 && stream.percent(50);
    // Copies of processes take room.
    let copies = if forks > 0 && !pressed { 4 } else { 1 };
    (pressed, [512, 768, 1024, 2048][stream.below(4)] * copies)
}

/// The work of a program that forks so often, or not.
fn mix(stream: &mut Stream, swarm: bool, (forks, pressed): (usize, bool), budget: usize) -> Mix {
    let mut part = |percent: usize, most: usize| match swarm && !stream.percent(percent) {
        true => 0,
        false => 1 + stream.below(most),
    };
    Mix {
        calls: part(80, 15),
        transfers: part(50, 4),
        forks,
        execs: 0,
        vforks: 0,
        removals: 0,
        writes: 2 + part(75, 78),
        noise: 0,
        most: match forks {
            0 => budget * 3 / 2 + part(100, 2 * budget),
            _ if pressed => budget * 3 / 4 + part(100, budget),
            _ => budget / 3,
        },
        dies_after: u64::from(swarm) * part(15, 1500) as u64,
    }
}

/// The slow codecs are rarer: other sizes are all that a pager sees of them.
fn codec(stream: &mut Stream) -> Codec {
    let zstd = Zstd {
        level: 1,
        dictionary: false,
    };
    match stream.below(16) {
        0 | 1 => Codec::None,
        2 => Codec::Zstd(zstd),
        3 => Codec::Lz4ThenZstd(zstd),
        _ => Codec::Lz4,
    }
}

fn devices(stream: &mut Stream, codec: Codec) -> Vec<DevicePlan> {
    let fails = stream.percent(25);
    let wanted = match codec {
        Codec::None => 1 + stream.below(2),
        _ => [0, 1, 1, 2][stream.below(4)],
    };
    let devices = (0..wanted).map(|_| DevicePlan {
        slots: CLUSTER * (4 + stream.below(8)),
        latency: [0, 20_000, 200_000, 3_000_000][stream.below(4)],
        faults: if fails { faults(stream) } else { String::new() },
    });
    devices.collect()
}

/// What compresses fits into the pool, and devices would stand idle.
fn noise(stream: &mut Stream, devices: &[DevicePlan]) -> usize {
    match devices.is_empty() {
        true => 0,
        false => [0, 0, 50, 90][stream.below(4)],
    }
}

/// Half of the devices that fail lose nothing: where one page of a run may be lost, every lost page is taken for one.
fn faults(stream: &mut Stream) -> String {
    let loses = stream.percent(50);
    let (kinds, percent) = match loses {
        true => (&KINDS[..], 35),
        false => (&KINDS[..HARMLESS], 70),
    };
    let mut all: Vec<String> = Vec::new();
    for kind in kinds {
        if stream.percent(percent) {
            all.push(format!("{kind}=1/{}", 20 << stream.below(6)));
        }
    }
    if loses && stream.percent(15) {
        all.push(format!("gone-after={}", 1 + stream.below(3000)));
    }
    if stream.percent(15) {
        all.push(format!("enospc-after={}K", 4 * (1 + stream.below(3000))));
    }
    all.push(format!("seed={}", stream.below(1000)));
    all.join(",")
}
