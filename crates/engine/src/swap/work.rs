//! Background work, in bounded steps.

use super::Swap;
use crate::Cpu;

/// Emptied windows that keep their memory for the next class that needs one.
const WARM_WINDOWS: usize = 4;

impl Swap {
    /// One bounded step of background work; false when there is nothing to do now.
    pub fn work(&self, _cpu: Cpu) -> bool {
        self.pool.give_back(WARM_WINDOWS) > 0
    }

    /// Makes the pool hold at least `bytes` less memory; returns how much was given back.
    pub fn shrink_pool(&self, _cpu: Cpu, bytes: u64) -> u64 {
        let mut given = 0;
        while given < bytes {
            match self.pool.give_back(0) {
                0 => break,
                more => given += more,
            }
        }
        given
    }

    /// Makes the per-processor scratch, so that no load or store has to.
    pub fn warm_up(&self) {
        self.coders.fill();
    }
}

impl Swap {
    /// In the parent after a fork: nothing to do without devices.
    pub fn fork_parent(&self) {}
    /// In the child after a fork: nothing to do without devices.
    pub fn fork_child(&self) {}
}
