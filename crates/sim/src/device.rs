//! Devices: slots in shared memory, with latency, and transfers of a batch in any order.
//!
//! Faults are those of `ebb_stores::FaultyStore`, which lies over it. Over that lies [`Failing`]: once the run is quiet,
//! nothing fails.

use crate::scheduler::{scheduler, world};
use crate::trace::What;
use crate::world::Key;
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_stores::FaultyStore;
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// See the module.
pub struct SimStore {
    slots: &'static [Cell<[u8; 4096]>],
    /// The most nanoseconds of a transfer.
    latency: usize,
}

// SAFETY: one thread of all processes runs at a time.
unsafe impl Sync for SimStore {}
// SAFETY: as above.
unsafe impl Send for SimStore {}

impl SimStore {
    /// A device of these slots.
    pub fn new(slots: &'static [Cell<[u8; 4096]>], latency: usize) -> Self {
        Self { slots, latency }
    }

    fn takes_time(&self, what: &'static str, slot: u64) {
        world().operations.fetch_add(1, SeqCst);
        world().note(What::Device, what, [slot, 0]);
        if self.latency > 0 && scheduler().is_inside() {
            let time = 1 + world().below(self.latency) as u64;
            scheduler().wait(Key::Never, Some(Duration::from_nanos(time)));
        }
    }

    /// The order of a batch.
    fn order(&self, len: usize) -> impl Iterator<Item = usize> + use<> {
        let first = if len > 1 { world().below(len) } else { 0 };
        (0..len).map(move |i| (first + i) % len)
    }
}

impl Store for SimStore {
    fn slots(&self) -> u64 {
        self.slots.len() as u64
    }

    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        for i in self.order(ops.len()) {
            let op = &ops[i];
            self.takes_time("write", op.slot);
            for (page, slot) in op.data.chunks(4096).zip(op.slot as usize..) {
                // SAFETY: one thread of all processes runs, and this is a copy to a slot by it.
                unsafe { (*self.slots[slot].as_ptr()).copy_from_slice(page) };
            }
            results[i] = Ok(());
        }
    }

    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        for i in self.order(ops.len()) {
            let op = &mut ops[i];
            self.takes_time("read", op.slot);
            for (page, slot) in op.data.chunks_mut(4096).zip(op.slot as usize..) {
                // SAFETY: as above, from a slot.
                page.copy_from_slice(unsafe { &*self.slots[slot].as_ptr() });
            }
            results[i] = Ok(());
        }
    }
}

/// See the module.
pub struct Failing(pub FaultyStore<SimStore>);

impl Failing {
    fn quiet(&self) -> Option<&SimStore> {
        (world().quiet_since.get() != 0).then(|| self.0.inner())
    }
}

impl Store for Failing {
    fn slots(&self) -> u64 {
        self.0.slots()
    }

    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        match self.quiet() {
            Some(store) => store.write(ops, results),
            None => self.0.write(ops, results),
        }
    }

    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        match self.quiet() {
            Some(store) => store.read(ops, results),
            None => self.0.read(ops, results),
        }
    }
}
