//! How much is looked at for a folio that has no place as a whole: no more on a large device than on a
//! small one. Counted in locks, which debug builds do.

use super::*;
use crate::locks::{LockRank, taken};

/// Owners are asked for their copies; there are none.
struct NoCopies;

impl CacheReclaim for NoCopies {
    fn reclaim(&self, owner: EntryId) -> bool {
        panic!("entry {owner} holds no copy");
    }
}

/// A device full of folios of so many pages, but for holes of four slots in a tenth of its clusters.
fn with_holes(clusters: u32, pages: u16) -> (Devices, DeviceId) {
    let (devices, id) = one(u64::from(clusters) * 512, Options::default());
    devices.set_cache_reclaim(Arc::new(NoCopies));
    let mut out = ExtentList::new();
    for owner in (0..clusters * 512).step_by(usize::from(pages)) {
        devices
            .allocate(A, pages, EntryId(owner), &mut out)
            .unwrap();
    }
    for start in (0..clusters).step_by(10).map(|c| c * 512) {
        for slot in (start..start + 512).filter(|slot| slot % 8 < 4) {
            devices.give_now(A, single(id, slot)).unwrap();
        }
    }
    (devices, id)
}

/// Locks taken for an allocation of 16 pages.
fn locks(devices: &Devices, out: &mut ExtentList) -> (Result<(), AllocError>, u64) {
    let all = || -> u64 {
        let ranks = [LockRank::Cpu, LockRank::Cluster, LockRank::Lists];
        ranks.map(taken).iter().sum()
    };
    let before = all();
    out.clear();
    let got = devices.allocate(A, 16, EntryId(0), out);
    (got, all() - before)
}

#[test]
fn a_scattered_folio_costs_no_more_on_a_large_device() {
    let mut out = ExtentList::new();
    for pages in [1, 4, 16] {
        let most = [64, 1024].map(|clusters| {
            let (devices, id) = with_holes(clusters, pages);
            let mut most = 0;
            // The first one may find clusters that nobody has scanned since slots of them were freed.
            for folio in 0..100 {
                let (got, locks) = locks(&devices, &mut out);
                assert_eq!((got, out.len()), (Ok(()), 4), "folio {folio}");
                most = most.max(if folio > 0 { locks } else { 0 });
            }
            // Nor where it turns out that nothing is left.
            while devices.allocate(A, 4, EntryId(0), &mut out).is_ok() {}
            assert_eq!(devices.usage()[id.index()].used, clusters * 512);
            let (got, in_vain) = locks(&devices, &mut out);
            assert_eq!(got, Err(AllocError::Full));
            devices.check();
            (most, in_vain)
        });
        for (scattered, in_vain) in most {
            assert!(scattered <= 60 && in_vain <= 30, "{most:?}");
        }
    }
}
