//! Processors, as the engine numbers them.

use ebb_engine::Cpu;

/// Processors served at most; more share.
pub const MAX_CPUS: usize = 64;

/// The processor the caller runs on, as the engine numbers them.
pub fn cpu() -> Cpu {
    Cpu((ebb_sys::thread::cpu() % MAX_CPUS) as u16)
}
