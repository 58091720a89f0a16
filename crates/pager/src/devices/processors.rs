//! Processors, as the engine numbers them.

use ebb_engine::Cpu;

/// Processors served at most; more share.
pub const MAX_CPUS: usize = 64;

/// The engine's number of a processor.
pub fn number(cpu: usize) -> Cpu {
    Cpu((cpu % MAX_CPUS) as u16)
}
