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

/// Clusters looked at in a try to allocate on full devices.
fn looks_in_vain(devices: &Devices, pages: u16) -> u64 {
    let before = taken(LockRank::Cluster);
    let got = devices.allocate(A, pages, EntryId(0), &mut ExtentList::new());
    assert_eq!(got, Err(AllocError::Full));
    taken(LockRank::Cluster) - before
}

/// As on a device of one process alone; also beside clusters that a fork froze, and those that a child
/// only reads.
#[test]
fn a_full_device_that_is_lent_is_not_gone_through_for_each_page() {
    for clusters in [64, 1024] {
        let (devices, lender) = lent(clusters);
        devices.set_cache_reclaim(Arc::new(NoCopies));
        let mut out = ExtentList::new();
        let fill = |share: u32, out: &mut ExtentList| {
            for owner in (0..share * 512).step_by(512) {
                devices.allocate(A, 512, EntryId(owner), out).unwrap();
            }
        };
        let in_vain = || {
            let looks = [1, 1, 16, 16, 1, 512].map(|pages| looks_in_vain(&devices, pages));
            assert!(looks.iter().all(|looks| *looks <= 4), "{looks:?}");
            devices.check();
        };
        fill(clusters / 2, &mut out);
        lender.read.lock().unwrap().extend(0..clusters / 2);
        devices.fork_parent();
        fill(clusters / 2 - 1, &mut out);
        while devices.allocate(A, 1, EntryId(0), &mut out).is_ok() {}
        assert_eq!(devices.usage()[0].used, clusters * 512);
        in_vain();
        // What comes back is found all the same, also where others read no more.
        let back = out[out.len() - 1];
        devices.give(B, back).unwrap();
        devices.allocate(A, 1, EntryId(1), &mut out).unwrap();
        assert_eq!(out[out.len() - 1], back);
        in_vain();
        devices.give(B, single(DeviceId(0), 700)).unwrap();
        in_vain();
        lender.read.lock().unwrap().clear();
        devices.allocate(A, 1, EntryId(1), &mut out).unwrap();
        assert_eq!(out[out.len() - 1], single(DeviceId(0), 700));
        in_vain();
        devices.fork_child();
        in_vain();
    }
}
