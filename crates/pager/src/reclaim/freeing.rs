//! Entries that are freed together.

use ebb_engine::swap::Swap;
use ebb_engine::{Cpu, EntryId};

/// Frees entries, neighbours in one call.
#[derive(Default)]
pub struct Freeing {
    first: Option<EntryId>,
    count: u32,
}

impl Freeing {
    /// One more entry to free.
    pub fn add(&mut self, swap: &Swap, cpu: Cpu, entry: EntryId) {
        match self.first {
            Some(first) if first.plus(self.count) == entry => self.count += 1,
            _ => {
                self.finish(swap, cpu);
                (self.first, self.count) = (Some(entry), 1);
            }
        }
    }

    /// Frees what was gathered.
    pub fn finish(&mut self, swap: &Swap, cpu: Cpu) {
        if let Some(first) = self.first.take() {
            swap.free(cpu, first, self.count);
        }
        self.count = 0;
    }
}
