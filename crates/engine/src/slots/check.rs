//! The allocator's invariants, all of them, in one place. For tests and debugging: no other
//! thread may be inside meanwhile.

use super::Devices;
use super::cluster::table::{SlotOwner, Table};
use super::cluster::{Cluster, ClusterState, LISTS, NIL, Owner};
use super::device::Device;
use crate::locks::lock;
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{CLUSTER_SLOTS, ClusterIndex, Cpu};

impl Devices {
    /// Panics, saying what is wrong, if an invariant does not hold.
    pub fn check(&self) {
        self.in_flight.check();
        for device in self.devices() {
            self.check_device(&device);
        }
    }

    fn check_device(&self, device: &Device) {
        let id = device.id;
        let on_list = lists_of(device);
        let mut sums = Sums::default();
        for (c, cell) in device.cells() {
            let cell = lock(&cell.cluster);
            assert_eq!(
                cell.state.list(),
                on_list[c.index()],
                "device {id}: list of cluster {c}"
            );
            if let ClusterState::OffList(Owner::Cpu(_)) = cell.state {
                assert!(
                    cell.table.is_none() && cell.count == 0,
                    "cluster {c} is twice"
                );
            }
            let said = cell.state;
            drop(cell);
            let cursors = self.cursors_at(device, c);
            self.with_cluster(device, c, |cluster| {
                check_cluster(cluster, c);
                assert_eq!(cluster.state, said, "cluster {c}");
                assert!(
                    cluster.state != ClusterState::Full
                        || cluster.table().cached() == 0
                        || device.copies().said().is_some(),
                    "device {id}: nobody knows of the copies in cluster {c}"
                );
                match cluster.state {
                    ClusterState::OffList(Owner::Cpu(cpu)) => {
                        assert_eq!(cursors, [Some(cpu)], "cluster {c}")
                    }
                    ClusterState::OffList(Owner::Device) => {
                        assert_eq!(cursors, [None], "cluster {c}")
                    }
                    ClusterState::OffList(owner) => {
                        panic!("device {id}: cluster {c} was left with {owner:?}")
                    }
                    _ => assert!(cursors.is_empty(), "cluster {c} has cursors {cursors:?}"),
                }
                sums.add(cluster);
            });
        }
        assert_eq!(sums.used, self.used(device), "device {id}: used slots");
        let ours = self.used_of_ours(device);
        assert_eq!(
            sums.used - sums.used_idle,
            ours,
            "device {id}: used slots of clusters that are ours"
        );
        assert_eq!(sums.bad, device.bad(), "device {id}: bad slots");
        let lists = device.lists();
        assert_eq!(sums.tables, lists.tables, "device {id}: bytes of tables");
        assert_eq!(sums.held, lists.held, "device {id}: slots held");
        assert_eq!(sums.idle, lists.idle, "device {id}: slots of idle clusters");
        if device.lender.is_none() {
            assert_eq!(
                sums.present + lists.fresh,
                device.clusters,
                "device {id}: clusters"
            );
        }
    }

    /// The cursors at a cluster: of processors, or the device's own (None).
    fn cursors_at(&self, device: &Device, c: ClusterIndex) -> Vec<Option<Cpu>> {
        let mut found = Vec::new();
        for (cpu, per_cpu) in self.cpus.iter().enumerate() {
            let mut state = lock(&per_cpu.state);
            let in_hand = state.in_hand().flatten();
            let here = in_hand.filter(|current| current.is(device.id, c));
            found.extend(here.map(|_| Some(Cpu(cpu as u16))));
        }
        let shared = lock(&device.shared);
        let here = shared.iter().filter(|cursor| cursor.cluster == c);
        found.extend(here.map(|_| None));
        found
    }
}

/// Sums over the clusters of a device.
#[derive(Default)]
struct Sums {
    used: u32,
    /// Slots out of service.
    bad: u32,
    /// Bytes of tables.
    tables: usize,
    /// Clusters that are not absent.
    present: u32,
    /// The used ones in frozen and inherited clusters.
    used_idle: u32,
    /// Slots of clusters that are ours to allocate in.
    held: u64,
    /// Slots of frozen and inherited clusters.
    idle: u64,
}

impl Sums {
    fn add(&mut self, cluster: &Cluster) {
        let table = cluster.table.as_ref();
        let used = u32::from(cluster.used());
        self.bad += table.map_or(0, |t| u32::from(t.bad()));
        self.tables += table.map_or(0, Table::bytes);
        self.used += used;
        let slots = CLUSTER_SLOTS as u64;
        match cluster.state {
            ClusterState::Absent => return,
            ClusterState::Frozen | ClusterState::Inherited => {
                self.used_idle += used;
                self.idle += slots;
            }
            _ => self.held += slots,
        }
        self.present += 1;
    }
}

/// The list that each cluster is on.
fn lists_of(device: &Device) -> Vec<Option<usize>> {
    let id = device.id;
    let mut on_list = vec![None; device.clusters as usize];
    for list in 0..LISTS {
        let members = device.members(list);
        assert_eq!(
            members.len() as u32,
            device.len(list),
            "device {id}: length of list {list}"
        );
        for c in members {
            let was = on_list[c.index()].replace(list);
            assert_eq!(was, None, "device {id}: cluster {c} is on two lists");
        }
    }
    on_list
}

impl Device {
    /// The clusters on a list, with the links checked in both directions.
    fn members(&self, list: usize) -> Vec<ClusterIndex> {
        let lists = self.lists();
        let head = lists.heads[list];
        let (mut found, mut prev, mut at) = (Vec::new(), NIL, head.first);
        while at != NIL {
            let cell = self
                .cell(ClusterIndex(at))
                .expect("a listed cluster has a cell");
            assert_eq!(
                cell.prev.load(Relaxed),
                prev,
                "device {}: link before {at}",
                self.id
            );
            found.push(ClusterIndex(at));
            assert!(
                found.len() <= self.clusters as usize,
                "list {list} runs in a circle"
            );
            (prev, at) = (at, cell.next.load(Relaxed));
        }
        assert_eq!(head.last, prev, "device {}: end of list {list}", self.id);
        found
    }
}

fn check_cluster(cluster: &Cluster, c: ClusterIndex) {
    let gone = cluster.table.as_ref().is_some_and(|t| t.gone() > 0);
    assert_eq!(cluster.gone, gone, "whether slots of cluster {c} are gone");
    let Some(table) = &cluster.table else {
        assert_eq!(cluster.count, 0, "cluster {c} has used slots but no table");
        assert!(
            matches!(
                cluster.state,
                ClusterState::Free
                    | ClusterState::Discard
                    | ClusterState::Absent
                    | ClusterState::OffList(_)
            ),
            "cluster {c} is {:?} and has no table",
            cluster.state
        );
        return;
    };
    let count = usize::from(cluster.count);
    assert_eq!(table.used().count(), count, "count of cluster {c}");
    let all = table.owners().count();
    assert_eq!(all, count, "owners of cluster {c}");
    let owners = |is: fn(SlotOwner) -> bool| table.which(is).count();
    assert_eq!(
        owners(SlotOwner::bad),
        usize::from(table.bad()),
        "bad slots of cluster {c}"
    );
    assert_eq!(
        owners(SlotOwner::gone),
        usize::from(table.gone()),
        "gone slots of cluster {c}"
    );
    assert_eq!(
        owners(SlotOwner::cached),
        usize::from(table.cached()),
        "cached slots of cluster {c}"
    );
    for (at, owner) in table.owners() {
        assert!(
            owner.bad() || owner.entry().is_some(),
            "slot {at} of {c} has no owner"
        );
    }
    for at in (0..CLUSTER_SLOTS).filter(|at| !table.used().get(*at)) {
        assert!(
            table.owner(at) == table.owner(at).plain() && !table.owner(at).bad(),
            "slot {at} of cluster {c} is flagged but free"
        );
    }
    check_state(cluster, c, table);
}

/// The state is that of a cluster with so many slots in use.
fn check_state(cluster: &Cluster, c: ClusterIndex, table: &Table) {
    let count = usize::from(cluster.count);
    match cluster.state {
        ClusterState::Free | ClusterState::Discard | ClusterState::Absent => {
            panic!("empty cluster {c} has a table")
        }
        ClusterState::NonFull(order) | ClusterState::Frag(order) => {
            assert_eq!(order, cluster.order, "order of cluster {c}");
            assert!(
                0 < count && count < CLUSTER_SLOTS,
                "cluster {c} is {:?} with {count}",
                cluster.state
            );
            let window = table.used().window(0, order, 1 << order);
            assert!(
                !matches!(cluster.state, ClusterState::Frag(_)) || window.is_none(),
                "cluster {c} is {:?} and has a place at {window:?}",
                cluster.state
            );
        }
        ClusterState::Full => assert_eq!(count, CLUSTER_SLOTS, "cluster {c} is not full"),
        ClusterState::Frozen | ClusterState::Inherited => {
            assert!(count > 0, "cluster {c} is empty")
        }
        // One at a cursor may be full: another processor took its last slot.
        ClusterState::OffList(_) => {}
    }
}
