//! Room on its way: out of everybody's reach for the moment, and soon to be found again.
//!
//! A cluster that is discarded, or on its way from or to the lender, is on no list, and no other thread
//! can take from it. The same holds for the target slots of a compaction while its source slots are not
//! free yet, and for the runs of a folio that will turn out not to fit. An allocation that looked
//! everywhere meanwhile must not say that the devices are full.
//!
//! The protocol: whoever is about to take room out of reach says so first ([`InFlight::begin`]), and
//! says so when some can be found again ([`Withdrawn::arrived`]). An allocation notes how often that was
//! said before it looks ([`InFlight::seen`]). If it finds too little it asks [`InFlight::more_since`].
//! Room that arrived since may have come behind its back, and room in flight is waited for; with
//! neither, the devices are full.
//!
//! Room in flight may be long in coming: a device hangs. So who waits goes on too when others have freed
//! as much as it wants, on whichever device. Frees say so only if somebody listens, which is one look at
//! a line that hardly ever changes. An allocation begins to listen ([`InFlight::listen`]) before its
//! last look: a free that this look missed took a lock after it, and finds the listener there.
//!
//! It holds no lock and no room of its own while it waits, and a thread with room in flight waits for no
//! allocation. So the wait ends with that thread's transfer. It is bounded in number too ([`LOOKS`]):
//! who has seen that often how others took what arrived may say "full", for at each of those moments it
//! was.
//!
//! A limitation: slots that others free one by one, and take elsewhere, may pass by an allocation that
//! goes from cluster to cluster.

use crate::locks::{LockRank, Ordered, lock, none_held, wait};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Condvar, notify_all};

/// How often one allocation looks everywhere because room has arrived, at most.
pub(in crate::slots) const LOOKS: u32 = 8;

/// Counts now, and since the beginning.
#[derive(Default)]
struct Counts {
    /// Now.
    under_way: u32,
    /// Allocations that wait, now.
    waiting: u32,
    since: Seen,
}

/// How often room has arrived, and how many pages were freed while somebody listened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::slots) struct Seen {
    arrived: u32,
    freed: u32,
}

/// Whether an allocation that found too little should look again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::slots) enum More {
    /// Room has arrived.
    Arrived,
    /// Others have freed as much as is wanted, and something is under way still.
    Freed,
    /// Something is under way: to be waited for by who listens, after one more look.
    Listen,
    /// The devices are full.
    Nothing,
}

/// Room in flight on all devices of one [`Devices`](super::Devices).
pub(in crate::slots) struct InFlight {
    counts: Ordered<Counts, { LockRank::InFlight as usize }>,
    /// Allocations that want to be told of frees.
    listening: AtomicU32,
    changed: Condvar,
}

/// An allocation that is told of frees as long as this lives.
pub(in crate::slots) struct Listener<'a>(&'a InFlight);

/// Room that is out of reach as long as this lives.
pub(in crate::slots) struct Withdrawn<'a> {
    in_flight: &'a InFlight,
    arrived: bool,
}

impl InFlight {
    pub fn new() -> Self {
        Self {
            counts: Ordered::default(),
            listening: AtomicU32::new(0),
            changed: Condvar::new(),
        }
    }

    /// To be called before the room is out of reach, and before any lock is let go under which
    /// it could still be found.
    pub fn begin(&self) -> Withdrawn<'_> {
        lock(&self.counts).under_way += 1;
        Withdrawn {
            in_flight: self,
            arrived: false,
        }
    }

    /// The counts so far: for [`InFlight::more_since`].
    pub fn seen(&self) -> Seen {
        lock(&self.counts).since
    }

    /// From now on frees are told of.
    pub fn listen(&self) -> Listener<'_> {
        self.listening.fetch_add(1, Ordering::Relaxed);
        Listener(self)
    }

    /// Tells of pages that can be found again. To be called after the lock was taken under which they
    /// were freed.
    #[inline]
    pub fn freed(&self, pages: u32) {
        if self.listening.load(Ordering::Relaxed) > 0 {
            self.tell(pages);
        }
    }

    /// The same where no lock was: whoever begins to listen after this finds the room at its last look.
    #[cold]
    pub fn tell(&self, pages: u32) {
        let mut counts = lock(&self.counts);
        counts.since.freed = counts.since.freed.wrapping_add(pages);
        if counts.waiting > 0 {
            notify_all(&self.changed);
        }
    }

    /// Whether to look for `pages` again: room has arrived since `seen`, or as many were freed,
    /// or does while this waits, which only who listens may. With no lock held, and no room under way.
    pub fn more_since(&self, seen: Seen, pages: usize, listener: Option<&Listener<'_>>) -> More {
        none_held();
        let mut counts = lock(&self.counts);
        loop {
            if counts.since.arrived != seen.arrived {
                return More::Arrived;
            }
            let freed = counts.since.freed.wrapping_sub(seen.freed) as usize;
            match (freed >= pages, counts.under_way > 0) {
                (true, true) => return More::Freed,
                // As good as an arrival: there is nothing to wait for any more.
                (true, false) => return More::Arrived,
                (false, false) => return More::Nothing,
                (false, true) if listener.is_none() => return More::Listen,
                (false, true) => {}
            }
            counts.waiting += 1;
            counts = wait(&self.changed, &self.counts, counts);
            counts.waiting -= 1;
        }
    }

    /// Panics unless nothing is under way.
    pub fn check(&self) {
        let counts = lock(&self.counts);
        assert_eq!((counts.under_way, counts.waiting), (0, 0), "room under way");
        assert_eq!(self.listening.load(Ordering::Relaxed), 0, "listeners");
    }

    /// Threads that wait for room.
    #[cfg(all(test, not(loom)))]
    pub fn waiting(&self) -> u32 {
        lock(&self.counts).waiting
    }
}

impl Withdrawn<'_> {
    /// Some of it can be found again, as soon as the locks that this thread holds can be had.
    /// Dropping this without saying so means that none came back.
    pub fn arrived(mut self) {
        self.arrived = true;
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.0.listening.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seen {
    /// With so many arrivals more, of this allocation's own making.
    pub fn and_own(self, arrivals: u32) -> Self {
        Self {
            arrived: self.arrived.wrapping_add(arrivals),
            ..self
        }
    }
}

impl Drop for Withdrawn<'_> {
    fn drop(&mut self) {
        let mut counts = lock(&self.in_flight.counts);
        counts.under_way -= 1;
        if self.arrived {
            counts.since.arrived = counts.since.arrived.wrapping_add(1);
        }
        if counts.waiting > 0 && (self.arrived || counts.under_way == 0) {
            notify_all(&self.in_flight.changed);
        }
    }
}
