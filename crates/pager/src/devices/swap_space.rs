//! The engine's surroundings in a real process: clock, processors, memory, codecs, devices.

use crate::budget::generations::Generations;
use crate::devices::device_set::DeviceSet;
use crate::devices::processors::Processors;
use ebb_engine::env::{Clock, Memory, Topology};
use ebb_engine::slots::{Devices, Options};
use ebb_engine::swap::{CodecKind, Config, CountersRef, Env, POOL_MAX, Swap};
use ebb_engine::{Checksums, Cpu, Node, PAGE_SIZE};
use ebb_stores::{self as stores, codec::PageCodecs};
use ebb_sys::paging::Kernel;
use ebb_tree::{Codec, Member};
use std::sync::Arc;

/// The same in all processes: they tell each other when they loaded.
struct RealClock<K: Kernel>(&'static K);

impl<K: Kernel> Clock for RealClock<K> {
    fn now_ns(&self) -> u64 {
        self.0.now().as_nanos() as u64
    }
}

struct RealTopology<K: Kernel> {
    kernel: &'static K,
    processors: Arc<Processors>,
}

impl<K: Kernel> Topology for RealTopology<K> {
    fn cpu(&self) -> Cpu {
        self.processors.number(self.kernel.cpu())
    }
    fn cpus(&self) -> usize {
        self.processors.count()
    }
    fn node(&self, cpu: Cpu) -> Node {
        self.processors.node(cpu)
    }
}

/// `before_give_back` hears of memory that is about to go back to the system.
struct RealMemory<K: Kernel, F: Fn(&[u8])> {
    kernel: &'static K,
    before_give_back: F,
}

impl<K: Kernel, F: Fn(&[u8]) + Send + Sync> Memory for RealMemory<K, F> {
    fn give_back(&self, bytes: &mut [u8]) {
        (self.before_give_back)(bytes);
        self.kernel.give_back(bytes);
    }

    fn zeros(&self, bytes: usize) -> Option<Box<[u8]>> {
        self.kernel.zeros(bytes)
    }

    fn prefetch(&self, bytes: &[u8]) {
        self.kernel.prefetch(bytes);
    }
}

/// The swap space of a process, and the devices under it.
pub struct SwapSpace {
    /// The engine.
    pub swap: Swap,
    /// The numbers of the processors in it.
    pub processors: Arc<Processors>,
    /// The devices.
    pub devices: DeviceSet,
    /// The order in which its pool is written back.
    pub generations: Generations,
}

impl SwapSpace {
    /// Whether pages may go to devices: if the user lets them, and the program's own limit of file sizes does for one.
    pub fn may_write(&self, member: &Member) -> bool {
        member.writeback() && !self.swap.file_limited()
    }

    /// Limits the pool to so many pages, or to what the user allows it, if that is less.
    pub fn limit_pool(&self, member: &Member, pages: u64) {
        let bytes = pages.saturating_mul(PAGE_SIZE as u64);
        let limit = member.pool_limit(bytes);
        let bytes = limit.max.clamp(*POOL_MAX.start(), *POOL_MAX.end());
        // In range: the supervisor refuses other percentages.
        let _ = self.swap.set_limits(bytes, limit.accept_percent);
        self.swap.set_patient(limit.patient);
        let writes = self.may_write(member);
        self.generations
            .choose(&self.swap, writes, member.has_relatives());
    }
}

/// An empty swap space as the run was configured. It lives as long as the process.
/// `before_give_back` hears of memory of the engine that is about to go back to the system.
pub fn open<K: Kernel>(
    kernel: &'static K,
    member: &'static Member,
    before_give_back: impl Fn(&[u8]) + Send + Sync + 'static,
) -> Result<&'static SwapSpace, String> {
    let config = member.config();
    let codec = match config.codec {
        Codec::None => CodecKind::None,
        Codec::Lz4 => CodecKind::Lz4,
        Codec::Zstd(zstd) => CodecKind::Zstd { level: zstd.level },
        Codec::Lz4ThenZstd(zstd) => CodecKind::Lz4ThenZstd { level: zstd.level },
    };
    let processors = Arc::new(Processors::new(&kernel.nodes()));
    let topology = Arc::new(RealTopology {
        kernel,
        processors: processors.clone(),
    });
    let options = Options {
        choice: config.choice,
        ..Options::default()
    };
    let devices = Arc::new(Devices::new(topology.clone(), options));
    let waits = || {
        kernel.follow_user();
        kernel.program_is_gone().is_none()
    };
    let set = DeviceSet::new(devices.clone(), member, waits)?;
    let checksum_key =
        stores::checksum_key().map_err(|e| format!("no key for checksums can be made: {e}"))?;
    let config = Config {
        codec,
        ..Config::default()
    };
    let env = Env {
        clock: Arc::new(RealClock(kernel)),
        topology,
        checksums: Checksums::new(checksum_key),
        memory: Arc::new(RealMemory {
            kernel,
            before_give_back,
        }),
        counters: CountersRef::Static(Arc::new(|| member.counters())),
        codecs: Arc::new(match member.config().codec {
            Codec::Zstd(zstd) | Codec::Lz4ThenZstd(zstd) if zstd.dictionary => {
                PageCodecs::with_dictionary(zstd.level)
            }
            Codec::Zstd(zstd) | Codec::Lz4ThenZstd(zstd) => PageCodecs::new(zstd.level),
            Codec::Lz4 | Codec::None => PageCodecs::default(),
        }),
    };
    let swap = match Swap::new(config, env, Some(devices)) {
        Ok(swap) => swap,
        Err(e) => {
            set.abandon(member);
            return Err(e.to_string());
        }
    };
    let space = SwapSpace {
        swap,
        processors,
        devices: set,
        generations: Generations::new(),
    };
    space.limit_pool(member, member.budget());
    Ok(Box::leak(Box::new(space)))
}

#[cfg(test)]
mod tests {
    use crate::fault::install::Refusals;
    use crate::tests::machine::Machine;
    use ebb_engine::{Cpu, PAGE_SIZE};

    #[test]
    fn the_engine_of_a_forked_child_counts_for_the_child() {
        let mut machine = Machine::new(1024);
        let (pager, process) = (machine.pager, machine.process);
        // Of a page that is not the same everywhere.
        let page: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i / 100) as u8);
        let store = || {
            let group = process.swap_space.generations.youngest();
            process.swap.store(Cpu(0), group, &[&page]).expect("room");
        };
        store();
        let parents = process.member.counters();
        assert_eq!(parents.zswpout.get(), 1);
        while !process.quiesce(&mut machine.worker, &mut Refusals::default()) {}
        let (locked, slot) = pager.reserve_quiescent(process).expect("quiescent");
        pager.reset_in_child(locked, slot);
        let childs = process.member.counters();
        assert!(!std::ptr::eq(parents, childs));
        store();
        assert_eq!((parents.zswpout.get(), childs.zswpout.get()), (1, 1));
    }
}
