//! Simulated surroundings of the engine, for experiments without real devices.

use ebb_engine::env::{IoError, ReadOp, Store, Topology, WriteOp};
use ebb_engine::{Cpu, Node};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A number of processors, spread over memory nodes in turn.
pub struct Machine {
    pub cpus: usize,
    pub nodes: u16,
}

impl Topology for Machine {
    fn cpu(&self) -> Cpu {
        Cpu(0)
    }
    fn cpus(&self) -> usize {
        self.cpus
    }
    fn node(&self, cpu: Cpu) -> Node {
        Node(cpu.0 % self.nodes)
    }
}

/// A device whose content nobody looks at.
pub struct Blank {
    pub slots: u64,
    pub node: Option<Node>,
    /// The time that a discard keeps its caller waiting; None: not wanted.
    pub discard: Option<Duration>,
    /// Slots discarded so far.
    pub discarded: AtomicU64,
}

impl Blank {
    pub fn new(slots: u64) -> Self {
        Self {
            slots,
            node: None,
            discard: None,
            discarded: AtomicU64::new(0),
        }
    }
}

impl Store for Blank {
    fn slots(&self) -> u64 {
        self.slots
    }
    fn write(&self, _: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        results.fill(Ok(()));
    }
    fn read(&self, _: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        results.fill(Ok(()));
    }
    fn discard(&self, _: u64, slots: u64) -> Result<(), IoError> {
        self.discarded.fetch_add(slots, Relaxed);
        if let Some(time) = self.discard {
            std::thread::sleep(time);
        }
        Ok(())
    }
    fn wants_discard(&self) -> bool {
        self.discard.is_some()
    }
    fn node(&self) -> Option<Node> {
        self.node
    }
}
