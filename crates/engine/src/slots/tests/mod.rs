//! Tests of the slot allocator: random operations beside a naive allocator (`model`, `forks`), and one
//! test for each rule that random operations seldom reach (`rules`, `places`, `reclaim`, `returns`,
//! `elsewhere`, `backing`). Further ones count locks (`scattered`, `sharing`), or run many threads at once
//! (`stress`). Here is what they share.

mod backing;
mod elsewhere;
mod forks;
mod model;
mod places;
mod reclaim;
mod returns;
mod rules;
#[cfg(debug_assertions)]
mod scattered;
#[cfg(debug_assertions)]
mod sharing;
mod stress;

use super::extent::order_of;
use super::*;
use crate::env::{IoError, ReadOp, WriteOp};
use crate::types::{ClusterIndex, Node};
use std::collections::BTreeSet;

struct Cpus(usize);

impl Topology for Cpus {
    fn cpu(&self) -> Cpu {
        Cpu(0)
    }
    fn cpus(&self) -> usize {
        self.0
    }
    fn node(&self, cpu: Cpu) -> Node {
        Node(cpu.0 % 2)
    }
}

/// A device without content that remembers what was discarded.
#[derive(Default)]
struct Blank {
    slots: u64,
    discard: bool,
    rotational: bool,
    discarded: std::sync::Mutex<Vec<(u64, u64)>>,
}

impl Store for Blank {
    fn slots(&self) -> u64 {
        self.slots
    }
    fn write(&self, _: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        results.fill(Ok(()));
    }
    fn read(&self, _: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        results.fill(Ok(()));
    }
    fn discard(&self, slot: u64, slots: u64) -> Result<(), IoError> {
        self.discarded.lock().unwrap().push((slot, slots));
        Ok(())
    }
    fn wants_discard(&self) -> bool {
        self.discard
    }
    fn rotational(&self) -> bool {
        self.rotational
    }
    fn node(&self) -> Option<Node> {
        None
    }
}

fn blank(slots: u64) -> Arc<Blank> {
    Arc::new(Blank {
        slots,
        ..Blank::default()
    })
}

fn one(slots: u64, options: Options) -> (Devices, DeviceId) {
    let devices = Devices::new(Arc::new(Cpus(2)), options);
    let id = devices
        .add(blank(slots), DeviceSpec::default(), None)
        .unwrap();
    (devices, id)
}

impl Devices {
    /// Clusters of a device that are ours.
    fn held(&self, id: DeviceId) -> u64 {
        self.device(id).unwrap().lists().held / CLUSTER_SLOTS as u64
    }
}

/// Fills the first two clusters of a device, and frees all but one page of each: a compaction makes one of them empty.
fn leave_a_page_in_two_clusters(devices: &Devices, id: DeviceId) {
    for owner in [0, 512].map(EntryId) {
        let mut out = ExtentList::new();
        devices.allocate(A, 512, owner, &mut out).unwrap();
    }
    for at in (0..1024).filter(|at| at % 512 != 100) {
        devices.give_now(A, single(id, at)).unwrap();
    }
}

fn single(id: DeviceId, slot: u32) -> Extent {
    Extent {
        device: id,
        start: SlotIndex(slot),
        len: 1,
    }
}

impl Devices {
    /// Frees slots in the name of those who own them.
    fn give(&self, cpu: Cpu, extent: Extent) -> Result<(), FreeError> {
        let mut all = self.by_owners(extent).into_iter();
        all.try_for_each(|(owner, run)| self.free(cpu, owner, run))
    }

    /// The same, past the return cache.
    fn give_now(&self, cpu: Cpu, extent: Extent) -> Result<(), FreeError> {
        let mut all = self.by_owners(extent).into_iter();
        all.try_for_each(|(owner, run)| self.free_now(cpu, owner, run))
    }

    /// An extent as runs whose owners lie side by side. A slot that nobody owns belongs to the owner
    /// before.
    fn by_owners(&self, extent: Extent) -> Vec<(EntryId, Extent)> {
        let of = |i: u16| {
            let slot = extent.start.0.wrapping_add(u32::from(i));
            self.owner(extent.device, SlotIndex(slot))
        };
        let first = of(0).unwrap_or(EntryId(0));
        let mut runs = vec![(first, Extent { len: 0, ..extent })];
        for i in 0..extent.len {
            let (first, run) = runs.last_mut().unwrap();
            match of(i) {
                Some(owner) if owner != first.plus(u32::from(run.len)) => {
                    let start = SlotIndex(extent.start.0 + u32::from(i));
                    runs.push((
                        owner,
                        Extent {
                            start,
                            len: 1,
                            ..extent
                        },
                    ));
                }
                _ => run.len += 1,
            }
        }
        runs
    }
}

const A: Cpu = Cpu(0);
const B: Cpu = Cpu(1);

/// A lender of one process; readers are set by the test.
#[derive(Default)]
struct Lent {
    free: std::sync::Mutex<Vec<u32>>,
    read: std::sync::Mutex<BTreeSet<u32>>,
    stopped: std::sync::Mutex<Vec<u32>>,
    /// Clusters whose owner has ended, and which this process alone reads.
    left: std::sync::Mutex<BTreeSet<u32>>,
    wanted: std::sync::atomic::AtomicBool,
    /// Clusters with readers when that was last looked at, and how often there were fewer.
    returned: std::sync::Mutex<(BTreeSet<u32>, u64)>,
    /// Times that somebody asked for the readers of a cluster.
    asked: AtomicU32,
}

impl Lent {
    fn count_returned(&self) -> u64 {
        let read = self.read.lock().unwrap();
        let (before, returned) = &mut *self.returned.lock().unwrap();
        *returned += u64::from(!before.is_subset(&read));
        before.clone_from(&read);
        *returned
    }
}

impl Lender for Lent {
    fn acquire(&self) -> Option<ClusterIndex> {
        let mut free = self.free.lock().unwrap();
        let read = self.read.lock().unwrap();
        let at = free.iter().rposition(|c| !read.contains(c));
        self.wanted.store(at.is_none(), Relaxed);
        Some(ClusterIndex(free.remove(at?)))
    }
    fn release(&self, cluster: ClusterIndex) {
        let mut free = self.free.lock().unwrap();
        assert!(
            !free.contains(&cluster.0),
            "cluster {cluster} released twice"
        );
        free.push(cluster.0);
        self.wanted.store(false, Relaxed);
    }
    fn has_readers(&self, cluster: ClusterIndex) -> bool {
        self.asked.fetch_add(1, Relaxed);
        self.count_returned();
        self.read.lock().unwrap().contains(&cluster.0)
    }
    fn returned(&self) -> u64 {
        self.count_returned()
    }
    fn stop_reading(&self, cluster: ClusterIndex) {
        self.stopped.lock().unwrap().push(cluster.0);
    }
    fn adopt(&self, cluster: ClusterIndex) -> bool {
        self.left.lock().unwrap().remove(&cluster.0)
    }
    fn free_clusters(&self) -> u64 {
        self.free.lock().unwrap().len() as u64
    }
    fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }
}

fn lent(clusters: u32) -> (Devices, Arc<Lent>) {
    let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
    let lender = Arc::new(Lent::default());
    lender.free.lock().unwrap().extend((0..clusters).rev());
    let store = blank(u64::from(clusters) * 512);
    devices
        .add(store, DeviceSpec::default(), Some(lender.clone()))
        .unwrap();
    (devices, lender)
}
