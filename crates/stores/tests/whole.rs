//! The whole device on a real file, with faults. Operations reported as done are there, and operations that
//! failed say so. That also holds for data read ahead, and written after that.

use ebb_engine::PAGE_SIZE;
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_stores::{Device, Facts, Keyring};
use proptest::prelude::*;
use std::collections::HashMap;

const SLOTS: u64 = 128;

/// Past the page cache, as devices are used, if the file system can.
fn direct(file: &std::fs::File) -> bool {
    let flags = rustix::fs::fcntl_getfl(file).unwrap();
    rustix::fs::fcntl_setfl(file, flags | rustix::fs::OFlags::DIRECT).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn reports_are_what_happened(
        seed: u64,
        batches in proptest::collection::vec(
            (any::<bool>(), proptest::collection::hash_map(0..SLOTS, any::<u8>(), 1..40),
             proptest::collection::vec((0..SLOTS, 1..40u64), 0..6)), 1..20),
    ) {
        let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.set_len(SLOTS * PAGE_SIZE as u64).unwrap();
        let faults = format!("read=1/20,write=1/20,short=1/30,bad=1/40,seed={seed}");
        let keys = std::sync::Arc::<Keyring>::default();
        let mut facts = Facts::new(SLOTS);
        facts.direct = direct(&file);
        let device = Device::new(
            file.into(), facts, 1, Some(&keys), Some(faults.parse().unwrap()));
        // A slot holds a byte for sure, or after a failed write nobody knows what.
        let mut model: HashMap<u64, Option<u8>> = HashMap::new();
        for (write, slots, expected) in batches {
            let expected: Vec<_> = expected.into_iter()
                .map(|(slot, slots)| slot..(slot + slots).min(SLOTS + 1)).collect();
            device.store.expect(&expected);
            let slots: Vec<_> = slots.into_iter().collect();
            let mut results = vec![Ok(()); slots.len()];
            let mut pages: Vec<_> = slots.iter().map(|&(_, byte)| [byte; PAGE_SIZE]).collect();
            if write {
                let ops: Vec<_> = slots.iter().zip(&pages)
                    .map(|(&(slot, _), data)| WriteOp { slot, data }).collect();
                device.store.write(&ops, &mut results);
                for ((slot, byte), result) in slots.iter().zip(&results) {
                    model.insert(*slot, result.is_ok().then_some(*byte));
                }
            } else {
                let mut ops: Vec<_> = slots.iter().zip(&mut pages)
                    .map(|(&(slot, _), data)| ReadOp { slot, data }).collect();
                device.store.read(&mut ops, &mut results);
                for ((slot, _), (page, result)) in slots.iter().zip(pages.iter().zip(&results)) {
                    if let (Ok(()), Some(Some(byte))) = (result, model.get(slot)) {
                        prop_assert!(*page == [*byte; PAGE_SIZE], "slot {}", slot);
                    }
                }
            }
            for result in results {
                prop_assert!(matches!(result, Ok(()) | Err(IoError::Slot)));
            }
        }
    }
}
