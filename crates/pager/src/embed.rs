//! The engine's surroundings in a real process: clock, processors, memory, codecs, devices.

use ebb_engine::env::{Clock, Memory, Topology};
use ebb_engine::slots::{DeviceSpec, Devices, Options};
use ebb_engine::swap::{CodecKind, Config, CountersRef, Env, Swap};
use ebb_engine::{Cpu, Node};
use ebb_stores::codec::PageCodecs;
use ebb_stores::{self as stores, Faults, FileStore, Key};
use ebb_tree::{Codec, Member};
use std::sync::Arc;
use std::time::Instant;

struct RealClock(Instant);

impl Clock for RealClock {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

struct RealTopology {
    nodes: Vec<Node>,
}

impl Topology for RealTopology {
    fn cpu(&self) -> Cpu {
        crate::process::cpu()
    }
    fn cpus(&self) -> usize {
        self.nodes.len()
    }
    fn node(&self, cpu: Cpu) -> Node {
        self.nodes.get(cpu.index()).copied().unwrap_or(Node(0))
    }
}

struct RealMemory;

impl Memory for RealMemory {
    fn give_back(&self, bytes: &mut [u8]) {
        ebb_sys::memory::give_back(bytes);
    }
}

/// The swap space of a process, and the files behind it.
pub struct Embedded {
    /// The engine.
    pub swap: Swap,
    /// The devices' files, in the order in which the tree has them: a forked child gives them
    /// descriptors of its own.
    pub files: Vec<Arc<FileStore>>,
}

/// With devices, the most of the budget that the pool may hold, in percent: beyond it cold pages
/// move to the devices. Without devices it may hold all of it.
const POOL_SHARE: u64 = 50;

/// An empty swap space as the run was configured. It lives as long as the process.
pub fn swap(member: &Member, given: Vec<ebb_tree::Device>) -> Result<&'static Embedded, String> {
    let config = member.config();
    let codec = match config.codec {
        Codec::None => CodecKind::None,
        Codec::Lz4 => CodecKind::Lz4,
        Codec::Zstd(zstd) => CodecKind::Zstd { level: zstd.level },
        Codec::Lz4ThenZstd(zstd) => CodecKind::Lz4ThenZstd { level: zstd.level },
    };
    let budget = member.budget() * ebb_engine::PAGE_SIZE as u64;
    let pool = if given.is_empty() {
        budget
    } else {
        budget * POOL_SHARE / 100
    };
    let topology = Arc::new(RealTopology {
        nodes: ebb_sys::thread::nodes().into_iter().map(Node).collect(),
    });
    let mut files = Vec::new();
    let devices = if given.is_empty() {
        None
    } else {
        let devices = Devices::new(topology.clone(), Options::default());
        let key = config.encrypt.then(|| Key::from_bytes(member.key()));
        let faults = Faults::from_environment().map_err(|e| e.to_string())?;
        for (number, device) in given.into_iter().enumerate() {
            let facts = device.facts;
            let real = stores::Device::new(device.fd, facts, number as u64, key.as_ref(), faults);
            let spec = DeviceSpec {
                priority: device.priority,
                node: real.store.node(),
                discard: Some(real.store.wants_discard()),
                rotational: Some(real.store.rotational()),
            };
            devices
                .add(real.store, spec, member.lender(number))
                .map_err(|e| format!("swap device {number} cannot be used: {e}"))?;
            files.push(real.file);
        }
        Some(Arc::new(devices))
    };
    let config = Config {
        codec,
        pool_max_bytes: pool.clamp(1 << 20, 64 << 30),
        ..Config::default()
    };
    let env = Env {
        clock: Arc::new(RealClock(Instant::now())),
        topology,
        memory: Arc::new(RealMemory),
        counters: CountersRef::Static(member.counters()),
        codecs: Arc::new(match member.config().codec {
            Codec::Zstd(zstd) | Codec::Lz4ThenZstd(zstd) if zstd.dictionary => {
                PageCodecs::with_dictionary(zstd.level)
            }
            Codec::Zstd(zstd) | Codec::Lz4ThenZstd(zstd) => PageCodecs::new(zstd.level),
            Codec::Lz4 | Codec::None => PageCodecs::default(),
        }),
    };
    let swap = Swap::new(config, env, devices).map_err(|e| e.to_string())?;
    swap.warm_up();
    Ok(Box::leak(Box::new(Embedded { swap, files })))
}

impl Embedded {
    /// In a forked child: the same files by descriptors of its own.
    pub fn reattach(&self, given: Vec<ebb_tree::Device>) -> Result<(), String> {
        if given.len() < self.files.len() {
            return Err("a swap device of the parent was not handed on".into());
        }
        for (file, device) in self.files.iter().zip(given) {
            file.reattach(device.fd)
                .map_err(|e| format!("a swap device cannot be taken over: {e:?}"))?;
        }
        Ok(())
    }
}
