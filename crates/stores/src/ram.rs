//! A store in memory, for the lab and for tests.

use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_engine::{Node, PAGE_SIZE, PageBytes};
use std::sync::{Mutex, MutexGuard};

/// Slots that one lock guards.
const STRIPE: usize = 512;

/// Slots in memory. A slot costs its page from its first write until it is discarded; one
/// never written reads as an error, as nothing of the engine ever should.
pub struct RamStore {
    slots: u64,
    stripes: Vec<Mutex<Vec<Option<Box<PageBytes>>>>>,
    wants_discard: bool,
    rotational: bool,
    node: Option<Node>,
}

impl RamStore {
    /// A store of `slots` empty slots that wants discards.
    pub fn new(slots: u64) -> Self {
        let stripes = slots.div_ceil(STRIPE as u64);
        Self {
            slots,
            stripes: (0..stripes).map(|_| Mutex::default()).collect(),
            wants_discard: true,
            rotational: false,
            node: None,
        }
    }

    /// The same store, saying that it rotates.
    pub fn rotating(mut self) -> Self {
        self.rotational = true;
        self
    }

    /// Slots that hold something.
    pub fn written(&self) -> u64 {
        let held =
            |stripe: &Mutex<Vec<Option<Box<PageBytes>>>>| lock(stripe).iter().flatten().count();
        self.stripes.iter().map(held).sum::<usize>() as u64
    }

    fn check(&self, slot: u64, len: usize) -> Result<(), IoError> {
        let end = slot.checked_add((len / PAGE_SIZE) as u64);
        if len == 0 || !len.is_multiple_of(PAGE_SIZE) || end.is_none_or(|end| end > self.slots) {
            return Err(IoError::Request);
        }
        Ok(())
    }

    fn with<T>(&self, slot: u64, f: impl FnOnce(&mut Option<Box<PageBytes>>) -> T) -> T {
        let mut stripe = lock(&self.stripes[slot as usize / STRIPE]);
        let at = slot as usize % STRIPE;
        if stripe.len() <= at {
            stripe.resize_with(at + 1, || None);
        }
        f(&mut stripe[at])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Store for RamStore {
    fn slots(&self) -> u64 {
        self.slots
    }

    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        assert_eq!(ops.len(), results.len());
        for (op, result) in ops.iter().zip(results) {
            *result = self.check(op.slot, op.data.len());
            if result.is_ok() {
                for (slot, page) in (op.slot..).zip(op.data.as_chunks::<PAGE_SIZE>().0) {
                    self.with(slot, |held| match held {
                        Some(held) => **held = *page,
                        None => *held = Some(Box::new(*page)),
                    });
                }
            }
        }
    }

    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        assert_eq!(ops.len(), results.len());
        for (op, result) in ops.iter_mut().zip(results) {
            *result = self.check(op.slot, op.data.len());
            if result.is_ok() {
                for (slot, page) in (op.slot..).zip(op.data.as_chunks_mut::<PAGE_SIZE>().0) {
                    self.with(slot, |held| match held {
                        Some(held) => *page = **held,
                        None => *result = Err(IoError::Slot),
                    });
                }
            }
        }
    }

    fn discard(&self, slot: u64, slots: u64) -> Result<(), IoError> {
        let end = slot.checked_add(slots).ok_or(IoError::Request)?;
        if slots == 0 || end > self.slots {
            return Err(IoError::Request);
        }
        for slot in slot..end {
            self.with(slot, |held| *held = None);
        }
        Ok(())
    }

    fn wants_discard(&self) -> bool {
        self.wants_discard
    }

    fn rotational(&self) -> bool {
        self.rotational
    }

    fn node(&self) -> Option<Node> {
        self.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn like_a_map(steps in proptest::collection::vec((0..3u8, 0..1100u64, 1..4u64, any::<u8>()), 1..80)) {
            let store = RamStore::new(1030);
            let mut model: HashMap<u64, u8> = HashMap::new();
            for (kind, slot, pages, byte) in steps {
                let mut data = vec![byte; pages as usize * PAGE_SIZE];
                let mut results = [Ok(())];
                let fits = slot + pages <= 1030;
                match kind {
                    0 => {
                        store.write(&[WriteOp { slot, data: &data }], &mut results);
                        prop_assert_eq!(results[0].is_ok(), fits);
                        if fits {
                            model.extend((slot..slot + pages).map(|slot| (slot, byte)));
                        }
                    }
                    1 => {
                        store.read(&mut [ReadOp { slot, data: &mut data }], &mut results);
                        let held: Vec<_> = (slot..slot + pages).map(|slot| model.get(&slot)).collect();
                        let expected = match held.iter().all(|held| held.is_some()) {
                            _ if !fits => Err(IoError::Request),
                            true => Ok(()),
                            false => Err(IoError::Slot),
                        };
                        prop_assert_eq!(results[0], expected);
                        for (held, page) in held.iter().zip(data.chunks(PAGE_SIZE)) {
                            if let Some(held) = held.filter(|_| fits) {
                                prop_assert!(page.iter().all(|byte| *byte == *held));
                            }
                        }
                    }
                    _ => {
                        prop_assert_eq!(store.discard(slot, pages).is_ok(), fits);
                        if fits {
                            (slot..slot + pages).for_each(|slot| { model.remove(&slot); });
                        }
                    }
                }
                prop_assert_eq!(store.written(), model.len() as u64);
            }
        }
    }
}
