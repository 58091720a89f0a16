//! Which process may use which clusters of a device: the shared side of [`Lender`].
//!
//! # Words
//! A cluster is *free* (no owner), or *owned* by one slot of the process table. A process
//! that was forked while its parent owned (or read) a cluster is a *reader* of it: its page
//! map may name slots there. A cluster is *handed out* only when it is free and has no reader.
//!
//! # Protocol
//! - `acquire`: compare-and-swap the owner from free to us, **then** look for readers, and
//!   give it up again if there is one. Looking first would not do: between the look and the
//!   swap another process could own the cluster, fork, and free it. Once we own it no new
//!   reader can appear except by inheritance from a reader.
//! - A reader's bit is set by its parent **before** the fork, while the parent is owner or reader itself.
//!   So from the fork of an owner to the last `stop_reading` some bit is set at every instant. But a look
//!   goes through the rows one after the other, and the bit may hop from a row not yet seen to one already
//!   seen. Each inheritance therefore adds to `inherited` after its bits are set and before the parent can
//!   clear its own. A look counts only if `inherited` did not change under it.
//! - `adopt`: a reader becomes the owner of a cluster whose owner was reaped. The swap comes first, **then** the look for
//!   other readers, as in `acquire`, and its own bit goes last. So the cluster is owned or read at every instant.
//! - The supervisor reaps a dead process once the kernel says that every thread of it is gone; until then a
//!   write to the device may be in flight. Its clusters become free, and its row of reader bits is cleared.
//!   Rows of its children are their own.
//!
//! - A device that is to be removed is *closed*: nobody acquires. `acquire` looks again after
//!   its swap, so whoever closed the device and then finds nobody who owns or reads
//!   ([`Leases::is_idle`]) knows that it stays so.
//!
//! - A process that looked through all clusters in vain says so (`wanted`). Keepers then give back the
//!   empty clusters that they keep ready. The word names the `returned` of that look: the next cluster that
//!   comes back answers it, whoever gets that, and who still lacks one says so again. So nobody has to take
//!   it back: of who was killed meanwhile, it lives until then, and costs the others what they kept ready.
//!
//! # Layout
//! One word for the owner of each cluster, one for how full it is, and for each process slot a row of one bit a
//! cluster. Rows of processes that inherited nothing are never touched, so they cost no
//! memory; `reading` says which rows to look at.
//!
//! # Invariants (checked by [`Leases::check`])
//! owner ∈ {free} ∪ live slots; a row has bits only if its slot is live; a row with bits is
//! named by `reading`.
//!
//! [`Lender`]: ebb_engine::env::Lender

use ebb_engine::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

/// Words of a bitmap of process slots.
pub(crate) const SLOT_WORDS: usize = crate::MAX_MEMBERS.div_ceil(64);

/// The words of a device that belong to no cluster. `repr(C)`, all zeros is a fresh start.
#[repr(C)]
pub(crate) struct LeaseHeader {
    /// The process slots that have a row with bits; a superset.
    reading: [AtomicU64; SLOT_WORDS],
    /// Inheritances completed.
    inherited: AtomicU64,
    /// Times a cluster may have become free to hand out, or has one reader less. A process whose scan found nothing
    /// need not scan again until this changes.
    returned: AtomicU64,
    /// `returned` + 1 as it was before the last scan that found nothing; 0: there was none.
    wanted: AtomicU64,
    /// Clusters below this were never free since it was set; a hint.
    first_free: AtomicU32,
    /// Clusters from this on were never owned.
    touched: AtomicU32,
    /// Clusters without owner; a hint, put right when a process is reaped.
    free: AtomicU64,
    /// A bar: while it is not 0, nobody acquires.
    closed: AtomicU32,
}

/// The leases of one device. `'a` is `'static` but for tests.
#[derive(Clone, Copy)]
pub(crate) struct Leases<'a> {
    pub header: &'a LeaseHeader,
    /// 0: free; slot + 1: owned.
    pub owner: &'a [AtomicU32],
    /// Slots in use, by the owner's word when it was last asked for the map.
    pub fill: &'a [AtomicU32],
    /// Row after row, `row_words(clusters)` each.
    pub rows: &'a [AtomicU64],
}

/// Words of a row, whole cache lines.
pub(crate) const fn row_words(clusters: usize) -> usize {
    clusters.div_ceil(64).next_multiple_of(8)
}

#[cfg_attr(loom, allow(dead_code, reason = "the models do not need all of it"))]
impl<'a> Leases<'a> {
    fn row(&self, slot: usize) -> &'a [AtomicU64] {
        let words = row_words(self.owner.len());
        &self.rows[slot * words..(slot + 1) * words]
    }

    /// Makes all clusters free. The creator calls it once.
    pub fn init(&self) {
        self.header.free.store(self.owner.len() as u64, SeqCst);
    }

    /// Takes a free cluster that nobody reads, the lowest that is found. `seen` is the
    /// caller's memory of a scan in vain, `u64::MAX` at first.
    pub fn acquire(&self, me: usize, seen: &AtomicU64) -> Option<usize> {
        let returned = self.header.returned.load(SeqCst);
        if seen.load(Relaxed) == returned || self.is_closed() {
            return None;
        }
        let n = self.owner.len();
        let start = (self.header.first_free.load(Relaxed) as usize).min(n);
        for c in (start..n).chain(0..start) {
            // The look for readers here only saves the swap; the one after it decides.
            if self.owner[c].load(Relaxed) != 0 || self.look_for_reader(c, usize::MAX) {
                continue;
            }
            // Before the swap, so that whoever reads `touched` after an inheritance began
            // knows of every cluster the forking process owns.
            self.header.touched.fetch_max(c as u32 + 1, SeqCst);
            if !self.own(me, c, usize::MAX) {
                if self.is_closed() {
                    return None;
                }
                continue;
            }
            if c >= start {
                let next = (c as u32 + 1).min(n as u32);
                let _ =
                    self.header
                        .first_free
                        .compare_exchange(start as u32, next, Relaxed, Relaxed);
            }
            self.fill[c].store(0, Relaxed);
            return Some(c);
        }
        seen.store(returned, Relaxed);
        // A slower process takes nothing back.
        self.header
            .wanted
            .fetch_max(returned.wrapping_add(1), SeqCst);
        None
    }

    /// `me` comes to own a cluster that nobody owned. Not, if the device is closed or a process other than `reader` reads
    /// the cluster; the look comes after the swap.
    fn own(&self, me: usize, c: usize, reader: usize) -> bool {
        let owner = &self.owner[c];
        if owner
            .compare_exchange(0, me as u32 + 1, SeqCst, Relaxed)
            .is_err()
        {
            return false;
        }
        // With the one in `close`: one of the two sees the other. (Loom takes SeqCst on a
        // load for Acquire, so the fences say it.)
        fence(SeqCst);
        if self.is_closed() || self.has_readers(c, reader) {
            owner.store(0, SeqCst);
            self.header.returned.fetch_add(1, SeqCst);
            return false;
        }
        self.take_free(1);
        true
    }

    /// Whether somebody scanned in vain, and nothing has become free since.
    pub fn is_wanted(&self) -> bool {
        let wanted = self.header.wanted.load(SeqCst);
        wanted != 0 && wanted == self.header.returned.load(SeqCst).wrapping_add(1)
    }

    /// Nobody acquires from now on.
    pub fn close(&self) {
        self.header.closed.store(1, SeqCst);
        fence(SeqCst);
    }

    /// The opposite of [`close`](Self::close).
    pub fn reopen(&self) {
        self.header.closed.store(0, SeqCst);
        self.header.returned.fetch_add(1, SeqCst);
    }

    fn is_closed(&self) -> bool {
        self.header.closed.load(SeqCst) != 0
    }

    /// Whether nobody owns or reads a cluster. On a closed device that is for good.
    pub fn is_idle(&self) -> bool {
        let reads = |slot: usize| self.row(slot).iter().any(|word| word.load(SeqCst) != 0);
        loop {
            let before = self.header.inherited.load(SeqCst);
            let touched = (self.header.touched.load(SeqCst) as usize).min(self.owner.len());
            if self.owner[..touched].iter().any(|o| o.load(SeqCst) != 0) {
                return false;
            }
            if (0..crate::MAX_MEMBERS).any(|slot| self.is_reading(slot) && reads(slot)) {
                return false;
            }
            if self.header.inherited.load(SeqCst) == before {
                return true;
            }
        }
    }

    /// Gives back a cluster that `me` owns. False, and nothing done, if it does not.
    pub fn release(&self, me: usize, c: usize) -> bool {
        let Some(owner) = self.owner.get(c) else {
            return false;
        };
        if owner
            .compare_exchange(me as u32 + 1, 0, SeqCst, Relaxed)
            .is_err()
        {
            return false;
        }
        self.header.free.fetch_add(1, Relaxed);
        self.may_be_free(c);
        true
    }

    fn may_be_free(&self, c: usize) {
        self.header.first_free.fetch_min(c as u32, Relaxed);
        self.header.returned.fetch_add(1, SeqCst);
    }

    fn take_free(&self, n: u64) {
        let _ = self
            .header
            .free
            .fetch_update(Relaxed, Relaxed, |f| Some(f.saturating_sub(n)));
    }

    /// Whether any process but `me` may read slots of the cluster.
    pub fn has_readers(&self, c: usize, me: usize) -> bool {
        loop {
            let before = self.header.inherited.load(SeqCst);
            if self.look_for_reader(c, me) {
                return true;
            }
            if self.header.inherited.load(SeqCst) == before {
                return false;
            }
        }
    }

    /// Times a cluster may have become free, or lost a reader: that comes first. So who asked this, then found a reader
    /// and finds the same count again need not look again.
    pub fn returned(&self) -> u64 {
        self.header.returned.load(SeqCst)
    }

    fn look_for_reader(&self, c: usize, me: usize) -> bool {
        for (i, word) in self.header.reading.iter().enumerate() {
            let mut bits = word.load(SeqCst);
            while bits != 0 {
                let slot = i * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if slot != me && self.reads(slot, c) {
                    return true;
                }
            }
        }
        false
    }

    fn reads(&self, slot: usize, c: usize) -> bool {
        self.row(slot)[c / 64].load(SeqCst) >> (c % 64) & 1 == 1
    }

    /// `me` no longer refers to any slot of the cluster.
    pub fn stop_reading(&self, me: usize, c: usize) {
        if c >= self.owner.len() {
            return;
        }
        let bit = 1u64 << (c % 64);
        if self.row(me)[c / 64].fetch_and(!bit, SeqCst) & bit != 0 {
            self.may_be_free(c);
        }
    }

    /// `me`, which reads the cluster, comes to own it, if nobody owns it and no other process reads it. False, and nothing
    /// done, if not. Nothing of `me` forks meanwhile.
    pub fn adopt(&self, me: usize, c: usize) -> bool {
        let Some(owner) = self.owner.get(c) else {
            return false;
        };
        // Looks alone, which decide nothing, save the swap.
        if owner.load(Relaxed) != 0 || !self.reads(me, c) || self.look_for_reader(c, me) {
            return false;
        }
        let owned = self.own(me, c, me);
        if owned {
            self.row(me)[c / 64].fetch_and(!(1 << (c % 64)), SeqCst);
        }
        owned
    }

    /// Before `me` forks: `child` will read all that `me` owns or reads. Nothing of `me`
    /// acquires, releases or stops reading meanwhile.
    pub fn inherit(&self, me: usize, child: usize) {
        let touched = (self.header.touched.load(SeqCst) as usize).min(self.owner.len());
        let parent_reads = self.is_reading(me);
        let mut any = false;
        for (w, word) in self
            .row(child)
            .iter()
            .enumerate()
            .take(touched.div_ceil(64))
        {
            let mut bits = if parent_reads {
                self.row(me)[w].load(SeqCst)
            } else {
                0
            };
            for (i, owner) in self.owner.iter().skip(w * 64).take(64).enumerate() {
                if owner.load(SeqCst) == me as u32 + 1 {
                    bits |= 1 << i;
                }
            }
            if bits != 0 {
                if !any {
                    // Before the first bit: a look must know of the row.
                    self.mark_reading(child, true);
                    any = true;
                }
                word.fetch_or(bits, SeqCst);
            }
        }
        self.header.inherited.fetch_add(1, SeqCst);
    }

    fn mark_reading(&self, slot: usize, yes: bool) {
        let word = &self.header.reading[slot / 64];
        if yes {
            word.fetch_or(1 << (slot % 64), SeqCst);
        } else {
            word.fetch_and(!(1 << (slot % 64)), SeqCst);
        }
    }

    fn is_reading(&self, slot: usize) -> bool {
        self.header.reading[slot / 64].load(SeqCst) >> (slot % 64) & 1 == 1
    }

    /// `slot` reads nothing any more: it never came to life, or is dead.
    pub fn forget_reader(&self, slot: usize) {
        if !self.is_reading(slot) {
            return;
        }
        for (w, word) in self.row(slot).iter().enumerate() {
            if word.load(Relaxed) != 0 && word.swap(0, SeqCst) != 0 {
                self.header.first_free.fetch_min(w as u32 * 64, Relaxed);
            }
        }
        self.mark_reading(slot, false);
        self.header.returned.fetch_add(1, SeqCst);
    }

    /// Takes back everything from a process that is dead for good. Returns how many
    /// clusters it owned.
    ///
    /// Others count what they take and give back meanwhile, and that must not be lost. So the count of free clusters is
    /// put right only where it did not change under the look. A process that was between a cluster and its count makes it
    /// wrong by one, until the next death.
    pub fn reap(&self, slot: usize) -> usize {
        self.forget_reader(slot);
        let count = &self.header.free;
        let before = count.load(SeqCst);
        let touched = (self.header.touched.load(SeqCst) as usize).min(self.owner.len());
        let mut owned = 0;
        let mut free = self.owner.len() - touched;
        for (c, owner) in self.owner[..touched].iter().enumerate() {
            if owner
                .compare_exchange(slot as u32 + 1, 0, SeqCst, SeqCst)
                .is_ok()
            {
                owned += 1;
                self.header.first_free.fetch_min(c as u32, Relaxed);
            }
            free += (owner.load(SeqCst) == 0) as usize;
        }
        if count
            .compare_exchange(before, free as u64, SeqCst, Relaxed)
            .is_err()
        {
            count.fetch_add(owned as u64, SeqCst);
        }
        self.header.returned.fetch_add(1, SeqCst);
        owned
    }

    /// The owner of each cluster by its slot, and the slots in use, up to the last that was ever owned.
    pub fn map(&self) -> impl Iterator<Item = (Option<usize>, u32)> + use<'a> {
        let touched = (self.header.touched.load(Relaxed) as usize).min(self.owner.len());
        let clusters = self.owner[..touched].iter().zip(self.fill);
        clusters.map(|(owner, fill)| {
            let owner = (owner.load(Relaxed) as usize).checked_sub(1);
            (owner, owner.map_or(0, |_| fill.load(Relaxed)))
        })
    }

    /// Clusters that can be handed out: without owner and reader. It looks at each that was ever owned.
    pub fn takeable(&self) -> u64 {
        let touched = (self.header.touched.load(SeqCst) as usize).min(self.owner.len());
        let is_free =
            |c: &usize| self.owner[*c].load(Relaxed) == 0 && !self.look_for_reader(*c, usize::MAX);
        let untouched = self.owner.len() - touched;
        (untouched + (0..touched).filter(is_free).count()) as u64
    }

    /// Clusters without owner, those with readers among them; a hint.
    pub fn free(&self) -> u64 {
        self.header.free.load(Relaxed)
    }

    /// Checks the invariants while nobody changes them. `live` says whether a slot is taken.
    pub fn check(&self, live: impl Fn(usize) -> bool) -> Result<(), String> {
        for (c, owner) in self.owner.iter().enumerate() {
            let owner = owner.load(SeqCst) as usize;
            if owner > crate::MAX_MEMBERS {
                return Err(format!("cluster {c} has the impossible owner {owner}"));
            }
            if owner != 0 && !live(owner - 1) {
                return Err(format!(
                    "cluster {c} is owned by the dead slot {}",
                    owner - 1
                ));
            }
        }
        for slot in (0..crate::MAX_MEMBERS).filter(|&slot| self.is_reading(slot)) {
            if !live(slot) {
                return Err(format!("the dead slot {slot} is a reader"));
            }
        }
        Ok(())
    }
}

#[cfg(all(test, loom))]
#[path = "lease_loom.rs"]
mod loom_tests;
