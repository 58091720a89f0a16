//! Sparse swap files on a file system without room.

use super::*;

/// Stores pages that no pool takes, batch by batch; those that were stored.
fn store(swap: &Swap, pages: std::ops::Range<u32>) -> Vec<(EntryId, u32)> {
    let mut stored = Vec::new();
    for first in pages.step_by(64) {
        let batch: Vec<PageBytes> = (first..first + 64).map(|n| page(n, 512)).collect();
        let refs: Vec<&PageBytes> = batch.iter().collect();
        let mut out = [None; 64];
        let _ = swap.store_each(Cpu(0), GroupId(0), &refs, &mut out);
        let entries = out.into_iter().zip(first..);
        stored.extend(entries.filter_map(|(entry, n)| Some((entry?, n))));
    }
    stored
}

fn load(swap: &Swap, stored: &[(EntryId, u32)]) {
    let mut back = [0; PAGE_SIZE];
    for &(entry, n) in stored {
        swap.load(Cpu(0), entry, &mut back, false).unwrap();
        assert!(back == page(n, 512), "page {n}");
    }
}

fn used(swap: &Swap, device: usize) -> u32 {
    swap.devices.as_ref().unwrap().usage()[device].used
}

/// The first device has blocks for a cluster and a half.
#[test]
fn pages_go_to_the_next_device_where_the_first_finds_no_block() {
    let rig = rig_of(small(CodecKind::None), &[8, 8]);
    let swap = &rig.swap;
    rig.devices[0].blocks.lock().unwrap().1 = 768;
    let stored = store(swap, 0..2048);
    assert_eq!(stored.len(), 2048, "a page found no place");
    assert_eq!((used(swap, 0), used(swap, 1)), (768, 1280));
    let failed = rig.counters.write_error.get();
    assert!((1..=128).contains(&failed), "{failed} writes failed");
    swap.check();
    // There is room again.
    rig.devices[0].blocks.lock().unwrap().1 = usize::MAX;
    let more = store(swap, 10_000..15_000);
    assert!(used(swap, 0) > 768, "the device does not come back");
    load(swap, &more);
    load(swap, &stored);
    swap.check();
}

/// Where there is no other device the page stays in memory, and slots that have blocks are used again.
#[test]
fn a_file_without_blocks_uses_again_what_has_some() {
    let rig = rig(small(CodecKind::None), Some(8));
    let swap = &rig.swap;
    let device = rig.device.as_ref().unwrap();
    device.blocks.lock().unwrap().1 = 1024 + 32;
    let mut stored = store(swap, 0..4096);
    assert_eq!(stored.len(), 1024 + 32);
    let failed = rig.counters.write_error.get();
    assert!(failed < 4096 / 2, "{failed} writes failed");
    // Slots here and there of both full clusters.
    for round in 0..20 {
        let freed: Vec<_> = stored
            .extract_if(.., |(_, n)| *n < 1024 && *n % 20 == round)
            .collect();
        load(swap, &freed);
        let first = 10_000 + 64 * round;
        let again = store(swap, first..first + 64);
        assert_eq!(again.len(), freed.len(), "round {round}");
        stored.extend(again);
        swap.check();
    }
    load(swap, &stored);
    swap.check();
}
