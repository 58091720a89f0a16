//! Background work of the devices beside that of the pool.

use super::*;
use crate::ClusterIndex;
use crate::slots::ExtentList;

/// Clusters of the device.
const CLUSTERS: u32 = 8;

/// A lender whose clusters another process may want.
struct Peer {
    free: std::sync::Mutex<Vec<u32>>,
    wanted: AtomicBool,
}

impl Lender for Peer {
    fn acquire(&self) -> Option<ClusterIndex> {
        self.free.lock().unwrap().pop().map(ClusterIndex)
    }
    fn release(&self, cluster: ClusterIndex) {
        self.free.lock().unwrap().push(cluster.0);
    }
    fn has_readers(&self, _: ClusterIndex) -> bool {
        false
    }
    fn returned(&self) -> u64 {
        0
    }
    fn stop_reading(&self, _: ClusterIndex) {}
    fn adopt(&self, _: ClusterIndex) -> bool {
        false
    }
    fn free_clusters(&self) -> u64 {
        self.free.lock().unwrap().len() as u64
    }
    fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }
}

/// Recompression of a large pool takes minutes, in which others would find no room.
#[test]
fn clusters_that_others_want_go_back_while_the_pool_is_busy() {
    let config = Config {
        pool_max_bytes: 32 << 20,
        ..small(CodecKind::Lz4ThenZstd { level: 1 })
    };
    let peer = Arc::new(Peer {
        free: std::sync::Mutex::new((0..CLUSTERS).collect()),
        wanted: AtomicBool::new(false),
    });
    let rig = rig_lent(config, &[CLUSTERS as usize], Some(peer.clone()));
    let (swap, cpu) = (&rig.swap, Cpu(0));
    let pages: Vec<PageBytes> = (0..8 * CLUSTER_SLOTS as u32)
        .map(|n| page(n, 100))
        .collect();
    let refs: Vec<&PageBytes> = pages.iter().collect();
    let mut stored = vec![None; pages.len()];
    let all = swap.store_each(cpu, GroupId(0), &refs, &mut stored);
    assert_eq!(all, Ok(pages.len()));
    let devices = swap.devices.as_ref().unwrap();
    let mut out = ExtentList::new();
    for owner in (0..CLUSTERS).map(|c| EntryId(c * CLUSTER_SLOTS as u32)) {
        devices
            .allocate(cpu, CLUSTER_SLOTS as u16, owner, &mut out)
            .unwrap();
    }
    for (extent, c) in out.iter().zip(0..) {
        let owner = EntryId(c * CLUSTER_SLOTS as u32);
        devices.free(cpu, owner, *extent).unwrap();
    }
    while devices.work(cpu, 8) > 0 {}
    let kept = u64::from(CLUSTERS) - peer.free_clusters();
    assert!(kept > 0, "some are kept at hand");
    assert!(swap.work(cpu) && !devices.wants_work());
    assert_eq!(u64::from(CLUSTERS) - peer.free_clusters(), kept);

    peer.wanted.store(true, Relaxed);
    assert!(swap.work(cpu));
    assert_eq!(peer.free_clusters(), u64::from(CLUSTERS));
    let busy = swap.in_background(|background| swap.recompress_step(cpu, background));
    assert_eq!(busy, Some(true), "there was more to do");
    // Nor is there work without end where nothing is left to give.
    let steps = (0..10_000).take_while(|_| swap.work(cpu)).count();
    assert!(steps < 2000, "{steps}");
    swap.check();
}
