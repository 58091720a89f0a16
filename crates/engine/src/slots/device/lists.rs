//! The lists of a device's clusters, and how a cluster moves between them.
//!
//! A cluster changes state only with its own lock and the lists' lock held, in that order.
//! So either lock alone is enough to rely on a state, and a cluster is always on the list that its state
//! names. A thread that goes from a list to a cluster holds the lists' lock, and only *tries* the
//! cluster's lock ([`Device::isolate`]).

use super::Device;
use super::compact_walk::CompactWalk;
use crate::locks::{lock, try_lock};
use crate::slots::cluster::{Cluster, ClusterGuard, ClusterState, LISTS, NIL, Owner};
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::{CLUSTER_SLOTS, ClusterIndex};

/// A doubly linked list through the cells; its links are guarded by the lists' lock.
#[derive(Clone, Copy)]
pub(in crate::slots) struct Head {
    pub first: u32,
    pub last: u32,
    pub len: u32,
}

/// The lists of a device.
///
/// `tables` = Σ bytes of clusters' tables; `fresh` = clusters not used so far, the last ones of the
/// device (0 with a lender). `held` = slots of clusters that are ours to allocate in; `idle` = slots of
/// frozen and inherited clusters.
pub(in crate::slots) struct Lists {
    pub heads: [Head; LISTS],
    pub fresh: u32,
    pub tables: usize,
    pub held: u64,
    pub idle: u64,
    /// Flag: this process may only read the device, which accepts nothing any more.
    pub only_read: bool,
    /// Flag: this process may write nothing further on in its file (`IoError::FileLimit`), and the device accepts
    /// nothing any more.
    pub file_limited: bool,
    /// The way of compaction through the part-filled ones.
    pub compaction: CompactWalk,
}

/// Whether another thread's hold on a cluster is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::slots) enum Patience {
    /// Contended clusters are passed over.
    Skip,
    /// The last attempt: they are waited for.
    Wait,
}

impl Device {
    fn unlink(&self, lists: &mut Lists, list: usize, c: u32) {
        let cell = self.listed(c);
        let (prev, next) = (cell.prev.load(Relaxed), cell.next.load(Relaxed));
        let head = &mut lists.heads[list];
        match prev {
            NIL => head.first = next,
            p => self.listed(p).next.store(next, Relaxed),
        }
        match next {
            NIL => head.last = prev,
            n => self.listed(n).prev.store(prev, Relaxed),
        }
        head.len -= 1;
    }

    fn link_last(&self, lists: &mut Lists, list: usize, c: u32) {
        let cell = self.listed(c);
        let head = &mut lists.heads[list];
        cell.prev.store(head.last, Relaxed);
        cell.next.store(NIL, Relaxed);
        match head.last {
            NIL => head.first = c,
            last => self.listed(last).next.store(c, Relaxed),
        }
        head.last = c;
        head.len += 1;
    }

    /// Gives a cluster a state and puts it on that state's list, at the end.
    pub fn set_state(
        &self,
        lists: &mut Lists,
        c: ClusterIndex,
        cluster: &mut Cluster,
        to: ClusterState,
    ) {
        if let Some(list) = cluster.state.list() {
            self.unlink(lists, list, c.0);
        }
        if let Some(list) = to.list() {
            self.link_last(lists, list, c.0);
        }
        if to == ClusterState::Full && cluster.table.as_ref().is_some_and(|t| t.cached() > 0) {
            self.copies().say();
        }
        let was = cluster.state;
        let slots = CLUSTER_SLOTS as u64;
        lists.held += slots * u64::from(to.is_ours());
        lists.held -= slots * u64::from(was.is_ours());
        lists.idle += slots * u64::from(to.is_idle());
        lists.idle -= slots * u64::from(was.is_idle());
        if to.is_idle() != was.is_idle() {
            // In this order the sum of both is never too large.
            let used = i64::from(cluster.used());
            self.count_in(was, -used);
            self.count_in(to, used);
        }
        cluster.state = to;
    }

    /// Moves the clusters of a list up to `last`, which is on it, to the list's end.
    fn rotate(&self, lists: &mut Lists, list: usize, last: u32) {
        let head = &mut lists.heads[list];
        let cell = self.listed(last);
        let next = cell.next.load(Relaxed);
        if next == NIL {
            return;
        }
        self.listed(next).prev.store(NIL, Relaxed);
        self.listed(head.last).next.store(head.first, Relaxed);
        self.listed(head.first).prev.store(head.last, Relaxed);
        cell.next.store(NIL, Relaxed);
        (head.first, head.last) = (next, last);
    }

    /// Goes through a list until `wanted` says so of a cluster, or none of `looks` is left. Whom another
    /// thread holds it sees as None. Clusters that were looked at go to the list's end.
    pub fn look(
        &self,
        lists: &mut Lists,
        list: usize,
        looks: &mut u32,
        mut wanted: impl FnMut(ClusterIndex, Option<&Cluster>) -> bool,
    ) -> Option<ClusterIndex> {
        let (mut at, mut last) = (lists.heads[list].first, NIL);
        let mut found = None;
        while at != NIL && *looks > 0 && found.is_none() {
            *looks -= 1;
            let (c, cell) = (ClusterIndex(at), self.listed(at));
            let cluster = try_lock(&cell.cluster);
            found = wanted(c, cluster.as_deref()).then_some(c);
            (last, at) = (at, cell.next.load(Relaxed));
        }
        if last != NIL {
            self.rotate(lists, list, last);
        }
        found
    }

    /// Takes the first cluster off a list whose lock can be had at once, or, with patience, that
    /// others hold for a moment only. Returns it locked.
    pub fn isolate(
        &self,
        list: usize,
        owner: Owner,
        patience: Patience,
    ) -> Option<(ClusterIndex, ClusterGuard<'_>)> {
        let found = self.take_first(list, |_| ClusterState::OffList(owner));
        if found.is_some() || patience == Patience::Skip {
            return found;
        }
        while let Some(c) = self.next_of(list) {
            let mut cluster = lock(&self.listed(c.0).cluster);
            // Else its holder has put it elsewhere.
            if cluster.state.list() == Some(list) {
                let to = ClusterState::OffList(owner);
                self.set_state(&mut self.lists(), c, &mut cluster, to);
                return Some((c, cluster));
            }
        }
        None
    }

    /// Takes the first cluster off a list whose lock can be had at once, and gives it the state that
    /// `to` says. Returns it locked.
    pub fn take_first(
        &self,
        list: usize,
        to: impl FnOnce(&Cluster) -> ClusterState,
    ) -> Option<(ClusterIndex, ClusterGuard<'_>)> {
        let mut lists = self.lists();
        let mut at = lists.heads[list].first;
        while at != NIL {
            let cell = self.listed(at);
            if let Some(mut cluster) = try_lock(&cell.cluster) {
                let c = ClusterIndex(at);
                let to = to(&cluster);
                self.set_state(&mut lists, c, &mut cluster, to);
                return Some((c, cluster));
            }
            at = cell.next.load(Relaxed);
        }
        None
    }

    /// As `isolate`, of one cluster, with the lock held already. False if it is not on a
    /// list from which it may be taken, or the device accepts nothing.
    pub fn isolate_this(&self, c: ClusterIndex, cluster: &mut Cluster, owner: Owner) -> bool {
        let takable = matches!(
            cluster.state,
            ClusterState::NonFull(_) | ClusterState::Frag(_) | ClusterState::Full
        );
        if !takable || !self.accepting() {
            return false;
        }
        self.set_state(&mut self.lists(), c, cluster, ClusterState::OffList(owner));
        true
    }

    /// The first cluster of a list, which goes to the list's end.
    pub fn next_of(&self, list: usize) -> Option<ClusterIndex> {
        let mut lists = self.lists();
        let first = lists.heads[list].first;
        if first == NIL {
            return None;
        }
        self.rotate(&mut lists, list, first);
        Some(ClusterIndex(first))
    }

    /// How many clusters are on a list.
    pub fn len(&self, list: usize) -> u32 {
        self.lists().heads[list].len
    }
}
