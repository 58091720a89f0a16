//! Compaction of devices, with the entries themselves as what moves.

use super::*;
use crate::slots::ExtentList;

/// Two pages cannot be read, and the entries of one folio are not all under one lock: both stay, or
/// move in parts, and hold nothing up beside them.
#[test]
fn compaction_gets_on_past_what_cannot_be_moved() {
    const FOLIO: usize = 16;
    const IN_CLUSTER: usize = CLUSTER_SLOTS / FOLIO;
    let rig = rig(small(CodecKind::None), Some(5));
    let (swap, cpu) = (&rig.swap, Cpu(0));
    let devices = swap.devices.clone().unwrap();
    let store = |first: usize, pages: usize, random: usize| {
        let pages: Vec<PageBytes> = (first..first + pages)
            .map(|seed| page(seed as u32, random))
            .collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        let mut out = vec![None; pages.len()];
        let stored = swap.store_each(cpu, GroupId(0), &refs, &mut out);
        assert_eq!(stored, Ok(pages.len()));
        out[0].unwrap()
    };
    // Of zeros: they take entries and no slots, so that folios do not lie alike in both.
    store(0, FOLIO / 2, 0);
    let folios: Vec<EntryId> = (0..5 * IN_CLUSTER)
        .map(|k| store(k * FOLIO, FOLIO, 512))
        .collect();
    let crosses = |first: &EntryId| first.0 / 512 != (first.0 + FOLIO as u32 - 1) / 512;
    let across = folios.iter().position(crosses).unwrap();
    assert!(across < IN_CLUSTER, "it is in the first cluster");
    let damaged = [IN_CLUSTER + 5, 2 * IN_CLUSTER + 5];
    // Two folios in the first cluster, one in the two that follow, half of them in the others.
    let stays = |k: usize| match k / IN_CLUSTER {
        0 => k == across || k == 3,
        1 | 2 => damaged.contains(&k),
        _ => k.is_multiple_of(2),
    };
    for (k, &first) in folios.iter().enumerate() {
        if !stays(k) {
            swap.free(cpu, first, FOLIO as u32);
        }
    }
    for k in damaged {
        let slot = (0..5 * CLUSTER_SLOTS as u32)
            .map(SlotIndex)
            .find(|&slot| devices.owner(DeviceId(0), slot) == Some(folios[k]));
        let at = slot.unwrap().0 as usize * PAGE_SIZE;
        rig.device.as_ref().unwrap().data.lock().unwrap()[at] ^= 1;
    }

    for _ in 0..100 {
        swap.work(cpu);
        swap.check();
    }
    let mut out = ExtentList::new();
    for owner in [1 << 20, 1 << 21].map(EntryId) {
        out.clear();
        devices.allocate(cpu, 512, owner, &mut out).unwrap();
        assert_eq!(out.len(), 1, "two clusters are whole");
        devices.free(cpu, owner, out[0]).unwrap();
    }
    for (k, &first) in folios.iter().enumerate().filter(|&(k, _)| stays(k)) {
        for i in 0..FOLIO {
            let mut out = [0; PAGE_SIZE];
            let loaded = swap.load(cpu, first.plus(i as u32), &mut out, false);
            if damaged.contains(&k) && i == 0 {
                assert!(matches!(loaded, Err(LoadError::Corrupt { .. })));
            } else {
                assert_eq!(loaded, Ok(Source::Device));
                assert!(out == page((k * FOLIO + i) as u32, 512));
            }
        }
    }
    swap.check();
}
