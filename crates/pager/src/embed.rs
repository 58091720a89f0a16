//! The engine's surroundings in a real process: clock, processors, memory, codecs, devices.

use ebb_engine::env::{Clock, Memory, Topology};
use ebb_engine::swap::{CodecKind, Config, CountersRef, Env, Swap};
use ebb_engine::{Cpu, Node};
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

/// An empty swap space as the run was configured. It lives as long as the process.
pub fn swap(member: &Member) -> Result<&'static Swap, String> {
    let config = member.config();
    let codec = match config.codec {
        Codec::None => CodecKind::None,
        Codec::Lz4 => CodecKind::Lz4,
        Codec::Zstd(level) => CodecKind::Zstd { level },
    };
    let budget = member.budget() * ebb_engine::PAGE_SIZE as u64;
    let config = Config {
        codec,
        pool_max_bytes: budget.clamp(1 << 20, 64 << 30),
        ..Config::default()
    };
    let env = Env {
        clock: Arc::new(RealClock(Instant::now())),
        topology: Arc::new(RealTopology {
            nodes: ebb_sys::thread::nodes().into_iter().map(Node).collect(),
        }),
        memory: Arc::new(RealMemory),
        counters: CountersRef::Static(member.counters()),
        codecs: Arc::new(crate::codecs::Real),
    };
    let swap = Swap::new(config, env, None).map_err(|e| e.to_string())?;
    Ok(Box::leak(Box::new(swap)))
}
