//! Charging pages against the budget.
//!
//! # Protocol
//! The sum `charged` and the process's own `charged` are two words, and a process may die between them.
//! Each change is bracketed by the slot's `begun` and `done`. The sum grows first and shrinks last, so a
//! death leaves a sum too large, never too small. The supervisor puts it right when it finds a moment at
//! which no change was under way anywhere ([`Table::drift`]).
//!
//! The supervisor writes `limit` (compare-and-swap, of a sum that no change under way disturbed). Members
//! raise it for pages that would otherwise count twice: for credit after a fork, and for the measured pages
//! of a process that starts to charge for itself. Members lower it again, with the credit, when pages that
//! a fork made them share are copied or dropped ([`Table::unshare`]).
//!
//! While the budget is being lowered, it and the limit lose half of all pages that members give back, before these
//! are free for anybody. Otherwise a busy program would charge them again at once, and the budget would never sink.
//! The other half is for members that wait for room. Without a supervisor the budget stays ([`Member::end_reduction`]).
//!
//! [`Member::end_reduction`]: crate::Member::end_reduction
//!
//! # Invariant, when nothing is under way (checked by [`Table::drift`] = 0)
//! charged = Σ charged of all slots.

use super::slot::Slot;
use super::start::start_room;
use super::{Mode, SlotNumber, SlotState, StateWord, Table};
use std::sync::atomic::Ordering::*;

/// See [`Table::delays_growth`].
const UNPAGED: i64 = 8;
/// The most pages that a process is let grow by at a time: memory that it only asks for holds up nobody.
const LET_GROW: i64 = (4 << 20) / ebb_engine::PAGE_SIZE as i64;
/// How long a process has to fill what it was let grow by. On a crowded machine it may take longer.
const LET_GROW_NS: u64 = 500_000_000;

impl Slot {
    /// Pages that it may yet fill.
    fn let_grow(&self, now: u64) -> i64 {
        let since = self.let_grow_ns.load(SeqCst);
        if since == 0 || now.saturating_sub(since) > LET_GROW_NS {
            return 0;
        }
        let measured = self.measured.load(SeqCst);
        self.let_grow.load(SeqCst).saturating_sub(measured).max(0)
    }
}

impl Table {
    /// A step of `me`'s on the shared sums.
    pub fn bracketed<T>(&self, me: SlotNumber, f: impl FnOnce() -> T) -> T {
        let slot = self.slot(me);
        slot.begun.fetch_add(1, SeqCst);
        let result = f();
        slot.done.fetch_add(1, SeqCst);
        result
    }

    /// Pages that are charged to nobody, of which the limit leaves less than the budget; less the credit.
    pub fn outside(&self) -> i64 {
        let limit = self.limit.0.load(Relaxed);
        self.budget.load(Relaxed).saturating_sub(limit)
    }

    /// The sum of a figure of all slots in use.
    pub fn sum_of_slots(&self, figure: impl Fn(&Slot) -> u64) -> u64 {
        let slots = self.taken().map(|(n, _)| self.slot(n));
        slots.map(figure).fold(0, u64::saturating_add)
    }

    /// The tree's use now: charged + outside - credit.
    pub fn in_use(&self) -> i64 {
        let (charged, limit) = (self.charged.0.load(SeqCst), self.limit.0.load(SeqCst));
        let charged = charged.saturating_add(self.budget.load(Relaxed));
        charged.saturating_sub(limit)
    }

    /// Whether a process that grows and does not page waits until it does. It waits if there is little
    /// room, and processes that do not page use more than one part in [`UNPAGED`] of the budget.
    pub fn delays_growth(&self) -> bool {
        let budget = self.budget.load(Relaxed);
        let limit = self.limit.0.load(SeqCst);
        self.mode() == Mode::Paging
            && limit.saturating_sub(self.charged.0.load(SeqCst)) < start_room(budget)
            && budget.saturating_sub(limit) > budget / UNPAGED
    }

    /// Whether `me`, which has so many pages and does not page, may have `more`: they fit beside the growth that was
    /// allowed to others lately and has not been measured yet. If so it stays noted.
    pub fn lets_grow(&self, me: SlotNumber, has: i64, more: i64) -> bool {
        let now = ebb_sys::clock::monotonic_ns();
        let slot = self.slot(me);
        let up_to = has.saturating_add(more.min(LET_GROW));
        // Noted before the others' is looked at: of two processes that ask at a time, one sees the other.
        let before = slot.let_grow.swap(up_to, SeqCst);
        let since = slot.let_grow_ns.swap(now, SeqCst);
        let own = up_to.saturating_sub(slot.measured.load(SeqCst));
        let others = self
            .taken()
            .filter(|(n, word)| *n != me && word.state == SlotState::Joined)
            .map(|(n, _)| self.slot(n).let_grow(now));
        let all = others.fold(own.max(0), i64::saturating_add);
        let room = self.budget.load(Relaxed).saturating_sub(self.in_use());
        let fits = all <= room;
        if !fits {
            // Refused where another thread of the process has asked since. The time first: what is late stays so.
            let _ = slot
                .let_grow_ns
                .compare_exchange(now, since, SeqCst, SeqCst);
            let _ = slot
                .let_grow
                .compare_exchange(up_to, before, SeqCst, SeqCst);
        }
        fits
    }

    /// Whether `me`, which has so many pages, asks for `more` at once than the tree has room for. It may fill them faster
    /// than the tree begins to page.
    pub fn outgrows(&self, me: SlotNumber, has: i64, more: i64) -> bool {
        let measured = self.slot(me).measured.load(SeqCst);
        let own = has.saturating_add(more).saturating_sub(measured);
        let room = self.budget.load(Relaxed).saturating_sub(self.in_use());
        more > LET_GROW && own > room
    }

    /// Notes what is in use while this is charged under this limit, as far as that is known: what
    /// only seems to be is none of it.
    pub fn note_peak(&self, charged: i64, limit: i64) {
        let suspected = self.suspected.load(Relaxed);
        if suspected < 0 {
            return;
        }
        let used = charged
            .saturating_sub(suspected)
            .saturating_add(self.budget.load(Relaxed))
            .saturating_sub(limit);
        if used > self.peak.0.load(Relaxed) {
            self.peak.0.fetch_max(used, Relaxed);
        }
    }

    pub fn try_charge(&self, me: SlotNumber, pages: i64) -> bool {
        // The limit, if they fit under it.
        let fits = |charged: i64| {
            let limit = self.limit.0.load(SeqCst);
            (charged.checked_add(pages)? <= limit).then_some(limit)
        };
        loop {
            let mut now = self.charged.0.load(SeqCst);
            let mut under = fits(now);
            if under.is_none() {
                // Room made before this woke nobody: look once more after it.
                self.waiters.0.add(me.index());
                now = self.charged.0.load(SeqCst);
                under = fits(now);
            }
            let Some(limit) = under else {
                return false;
            };
            let charged = self.bracketed(me, || {
                let sum = &self.charged.0;
                sum.compare_exchange(now, now + pages, SeqCst, SeqCst)
                    .ok()?;
                self.slot(me).charged.fetch_add(pages, SeqCst);
                Some(now + pages)
            });
            if let Some(sum) = charged {
                self.note_peak(sum, limit);
                return true;
            }
        }
    }

    /// If that passes the limit, it is the supervisor who notes the peak, when nothing is under way.
    pub fn charge_forced(&self, me: SlotNumber, pages: i64) {
        self.bracketed(me, || {
            self.charged.0.fetch_add(pages, SeqCst);
            self.slot(me).charged.fetch_add(pages, SeqCst);
        });
    }

    /// Takes half of `freed` pages off the budget, as long as that is being lowered. In a bracket.
    fn share_with_reduction(&self, freed: i64) {
        if self.reduction.load(Relaxed) <= 0 {
            return;
        }
        let half = freed.saturating_add(1) / 2;
        let taken = self.reduction.fetch_update(SeqCst, SeqCst, |left| {
            (left > 0).then(|| left - half.min(left))
        });
        if let Ok(left) = taken {
            self.budget.fetch_sub(half.min(left), SeqCst);
            self.limit.0.fetch_sub(half.min(left), SeqCst);
        }
    }

    /// Gives back at most what the process has charged.
    pub fn uncharge(&self, me: SlotNumber, pages: i64) {
        self.uncharge_in_use(me, pages, 0);
    }

    /// The same of pages of which some stay `in_use`, as others have them.
    fn uncharge_in_use(&self, me: SlotNumber, pages: i64, in_use: i64) {
        self.bracketed(me, || {
            let had = self
                .slot(me)
                .charged
                .fetch_update(SeqCst, SeqCst, |had| Some(had.saturating_sub(pages).max(0)))
                .unwrap_or(0);
            debug_assert!(cfg!(fuzzing) || had >= pages, "uncharging {pages} of {had}");
            self.share_with_reduction(pages.min(had).saturating_sub(in_use).max(0));
            self.charged.0.fetch_sub(pages.min(had), SeqCst);
        });
        self.wake_waiters();
    }

    /// Members of a family, `me` among them: what one of them has charged may be shared with the
    /// others, since a fork.
    pub fn relatives(&self, me: SlotNumber) -> impl Iterator<Item = SlotNumber> + '_ {
        let family = self.slot(me).family.load(SeqCst);
        self.taken()
            .map(|(n, _)| n)
            .filter(move |&n| family != 0 && self.slot(n).family.load(SeqCst) == family)
    }

    /// Takes up to `pages` of credit from these slots, in their order; how much they had.
    pub fn take_credit(&self, from: impl Iterator<Item = SlotNumber>, pages: i64) -> i64 {
        let mut left = pages.max(0);
        for n in from {
            if left == 0 {
                break;
            }
            let credit = &self.slot(n).credit;
            let took =
                credit.fetch_update(SeqCst, SeqCst, |had| (had > 0).then(|| had - had.min(left)));
            let Ok(had) = took else { continue };
            self.limit.0.fetch_sub(had.min(left), SeqCst);
            left -= had.min(left);
        }
        pages.max(0) - left
    }

    /// `pages` of `me`'s charge stand for pages it shared with its family and shares no more: it has a
    /// copy, or has dropped them while others keep them. Use was credit + these pages less than what was
    /// charged, and is the same after. `since` is the value of [`rollups`](Table::rollups) when they ceased
    /// to be shared. A measurement of the credit since then may have taken them off already, and has to be
    /// repeated.
    pub fn unshare(&self, me: SlotNumber, pages: i64, since: u32) {
        // Before and after: what is suspected counts as no peak, and is not forgotten by whoever measures
        // just now.
        let doubtful = self.rollups.load(SeqCst) != since;
        if doubtful && self.suspected.load(SeqCst) >= 0 {
            self.suspected.fetch_add(pages, SeqCst);
        }
        // Credit first: for a moment too much is in use, never too little.
        let took = self.bracketed(me, || {
            let others = self.relatives(me).filter(|&n| n != me);
            self.take_credit(std::iter::once(me).chain(others), pages)
        });
        if doubtful || self.rollups.load(SeqCst) != since {
            self.doubted.fetch_add(pages, SeqCst);
        }
        self.uncharge_in_use(me, pages, took);
    }

    /// From now on `me` charges for itself, beginning with `pages`, and is measured no more.
    pub fn start_paging(&self, me: SlotNumber, pages: i64) {
        // The measured pages become the charge: they count twice for a moment.
        self.bracketed(me, || {
            self.charged.0.fetch_add(pages, SeqCst);
            self.slot(me).charged.fetch_add(pages, SeqCst);
        });
        // A child that the supervisor has not heard of is known by its parent.
        self.change_state(me, |word| StateWord {
            state: SlotState::Paging,
            charges: false,
            ..word
        });
        self.bracketed(me, || {
            let measured = self.slot(me).measured.swap(0, SeqCst);
            self.limit.0.fetch_add(measured, SeqCst);
        });
    }

    /// A process that does not charge for itself counts with so many pages, and the limit leaves less by as many.
    pub fn set_measured(&self, n: SlotNumber, pages: i64) {
        let slot = self.slot(n);
        let before = slot.measured.swap(pages, SeqCst);
        let more = pages.saturating_sub(before);
        self.limit.0.fetch_sub(more, SeqCst);
        // It may have begun to charge for itself meanwhile.
        if self.state(n).state == SlotState::Paging {
            let measured = slot.measured.swap(0, SeqCst);
            self.limit.0.fetch_add(measured, SeqCst);
        }
        if more < 0 {
            self.wake_waiters();
        }
    }

    /// See [`Member::fork_fits`](crate::Member::fork_fits).
    pub fn fork_fits(&self, me: SlotNumber, pages: i64) -> bool {
        let grown = pages
            .saturating_sub(self.slot(me).measured.load(SeqCst))
            .max(0);
        let forked = self.forked.fetch_add(pages, SeqCst).saturating_add(pages);
        let copies = self.overlap.load(SeqCst).saturating_add(forked);
        let use_then = self.in_use().saturating_add(grown).saturating_add(copies);
        let fits = use_then <= self.budget.load(SeqCst);
        if !fits {
            self.end_forked(pages);
        }
        fits
    }

    /// Forks of so many pages have been measured, or failed. Those that are left.
    pub fn end_forked(&self, pages: i64) -> i64 {
        let less = |forked: i64| Some(forked.saturating_sub(pages).max(0));
        let before = self.forked.fetch_update(SeqCst, SeqCst, less);
        before.ok().and_then(less).unwrap_or(0)
    }

    /// Charges `parent`'s charge once more for `child`, with credit for all of it. Excepted are `alone`
    /// pages, which the child will not have.
    pub fn charge_for_child(&self, parent: SlotNumber, child: SlotNumber, alone: i64) {
        self.bracketed(parent, || {
            let pages = self.slot(parent).charged.load(SeqCst);
            let pages = pages.saturating_sub(alone).max(0);
            // Charge first: nobody may take for room what the credit adds to the limit.
            self.charged.0.fetch_add(pages, SeqCst);
            self.slot(child).charged.store(pages, SeqCst);
            self.slot(child).credit.store(pages, SeqCst);
            self.limit.0.fetch_add(pages, SeqCst);
        });
    }

    /// Takes back what a slot has charged and been credited, when its process is gone.
    /// Returns its charge.
    pub fn clear_charges(&self, by: Option<SlotNumber>, gone: SlotNumber) -> i64 {
        let clear = || {
            let slot = self.slot(gone);
            let charged = slot.charged.swap(0, SeqCst);
            self.charged.0.fetch_sub(charged, SeqCst);
            self.limit.0.fetch_sub(slot.credit.swap(0, SeqCst), SeqCst);
            self.limit
                .0
                .fetch_add(slot.measured.swap(0, SeqCst), SeqCst);
            charged
        };
        match by {
            Some(me) => self.bracketed(me, clear),
            None => clear(),
        }
    }

    /// By how much the sum differs from the slots' charges: what killed processes left
    /// behind. None if changes were under way, so that it cannot be told.
    pub fn drift(&self) -> Option<i64> {
        self.undisturbed(|| {
            let slots: i64 = self
                .taken()
                .map(|(n, _)| self.slot(n).charged.load(SeqCst))
                .fold(0, i64::saturating_add);
            self.charged.0.load(SeqCst).saturating_sub(slots)
        })
    }

    /// The charges and the limit, at one moment. None as for [`drift`](Self::drift).
    pub fn charged_and_limit(&self) -> Option<(i64, i64)> {
        self.undisturbed(|| (self.charged.0.load(SeqCst), self.limit.0.load(SeqCst)))
    }

    /// The result of `look`, if no change of any member was under way meanwhile.
    pub fn undisturbed<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        // Every step begun by the end of the look was done before it began.
        let mut done = [0; crate::MAX_MEMBERS];
        let mut in_use = [false; crate::MAX_MEMBERS];
        for (n, _) in self.taken() {
            in_use[n.index()] = true;
            done[n.index()] = self.slot(n).done.load(SeqCst);
        }
        let seen = look();
        let quiet = SlotNumber::all().all(|n| {
            let taken = self.state(n).state != SlotState::Free;
            taken == in_use[n.index()]
                && (!taken || self.slot(n).begun.load(SeqCst) == done[n.index()])
        });
        quiet.then_some(seen)
    }
}

#[cfg(test)]
impl Table {
    /// Credit of `pages`, as a fork gives it.
    pub fn add_credit_for_test(&self, n: SlotNumber, pages: i64) {
        self.slot(n).credit.fetch_add(pages, SeqCst);
        self.limit.0.fetch_add(pages, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Config, SlotState, StateWord};
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    /// Another member may write what it likes: figures are wrong then, and no sum overflows.
    #[test]
    fn words_of_any_value_are_no_overflow() {
        let extremes = [i64::MIN, -1, 0, 1, i64::MAX];
        let me = SlotNumber::new(0).unwrap();
        for (a, b) in extremes.iter().flat_map(|a| extremes.map(|b| (*a, b))) {
            let (table, _fd) = Table::create(1000, Config::default()).unwrap();
            for slot in 0..2 {
                table.set_state(
                    SlotNumber::new(slot).unwrap(),
                    StateWord::of(SlotState::Paging),
                );
                table.slots[slot].charged.store(a, SeqCst);
                table.slots[slot].credit.store(b, SeqCst);
                table.slots[slot].measured.store(b, SeqCst);
            }
            table.charged.0.store(a, SeqCst);
            table.limit.0.store(b, SeqCst);
            table.overlap.store(a, SeqCst);
            table.forked.store(b, SeqCst);
            table.suspected.store(b, SeqCst);
            table.mode.store(1, SeqCst);
            let _ = (table.in_use(), table.delays_growth(), table.drift());
            table.fork_fits(me, 5);
            table.lets_grow(me, a, b);
            table.try_charge(me, 5);
            table.ask_reclaim(me, 5);
            table.charge_for_child(me, SlotNumber::new(1).unwrap(), 5);
        }
    }

    /// A family of three with ten pages shared by all, then random copies and drops. The table's figure of
    /// use equals a count of the distinct pages.
    #[derive(Clone, Copy, Debug)]
    enum Op {
        /// A member writes a page.
        Write(usize, usize),
        /// A member drops a page.
        Drop(usize, usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..3usize, 0..10usize).prop_map(|(m, p)| Op::Write(m, p)),
            (0..3usize, 0..10usize).prop_map(|(m, p)| Op::Drop(m, p)),
        ]
    }

    /// A member's copy of a page: none, the shared one, or its own.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Has {
        Nothing,
        Shared,
        Own,
    }

    fn used(pages: &[[Has; 10]; 3]) -> i64 {
        let own = pages.iter().flatten().filter(|h| **h == Has::Own).count();
        let shared = (0..10).filter(|p| pages.iter().any(|m| m[*p] == Has::Shared));
        (own + shared.count()) as i64
    }

    /// Growth that was allowed counts until it is measured, until its process pages or ends, or until it is late.
    #[test]
    fn growth_that_is_allowed_is_reserved() {
        let (table, _fd) = Table::create(1000, Config::default()).unwrap();
        let joined = || table.take_slot(StateWord::of(SlotState::Joined)).unwrap();
        let [a, b, c] = [joined(), joined(), joined()];
        assert!(table.lets_grow(a, 100, 300));
        assert!(table.lets_grow(b, 100, 400));
        assert!(!table.lets_grow(c, 50, 100), "900 of 1000 are taken");
        assert!(table.lets_grow(a, 100, 300), "what was refused is reserved");
        assert!(table.lets_grow(c, 50, 50));
        assert!(table.lets_grow(a, 100, 300), "its own is not counted twice");
        // Measured: it is in use, and reserved no more.
        table.slot(a).measured.store(400, SeqCst);
        table.limit.0.fetch_sub(400, SeqCst);
        assert!(!table.lets_grow(c, 50, 100));
        // It pages, and charges for itself.
        table.set_state(b, StateWord::of(SlotState::Paging));
        assert!(table.lets_grow(c, 50, 400));
        assert!(!table.lets_grow(a, 400, 200));
        let late = table.slot(c).let_grow_ns.load(SeqCst) - LET_GROW_NS - 1;
        table.slot(c).let_grow_ns.store(late, SeqCst);
        assert!(table.lets_grow(a, 400, 200));
    }

    /// What is asked for at once is compared with all the room there is, and what was measured counts once.
    #[test]
    fn more_than_there_is_room_for_at_once() {
        let budget = 10 * LET_GROW;
        let (table, _fd) = Table::create(budget as u64, Config::default()).unwrap();
        let me = table.take_slot(StateWord::of(SlotState::Joined)).unwrap();
        assert!(!table.outgrows(me, 100, budget - 100));
        assert!(table.outgrows(me, 100, budget - 99));
        table.slot(me).measured.store(4 * LET_GROW, SeqCst);
        table.limit.0.fetch_sub(4 * LET_GROW, SeqCst);
        assert!(!table.outgrows(me, 4 * LET_GROW, 6 * LET_GROW));
        assert!(table.outgrows(me, 5 * LET_GROW, 6 * LET_GROW));
        assert!(!table.outgrows(me, budget, LET_GROW), "bit by bit");
    }

    /// Each of the two fits alone.
    #[test]
    fn two_that_grow_at_a_time_see_each_other() {
        let (table, _fd) = Table::create(1000, Config::default()).unwrap();
        let joined = || table.take_slot(StateWord::of(SlotState::Joined)).unwrap();
        let both = [joined(), joined()];
        let [asking, grown, twice] = [const { AtomicU64::new(0) }; 3];
        let meet = |count: u64| {
            asking.fetch_add(1, SeqCst);
            let mut looks = 0;
            while asking.load(SeqCst) < count {
                looks += 1;
                match looks % 1000 {
                    0 => std::thread::yield_now(),
                    _ => std::hint::spin_loop(),
                }
            }
        };
        std::thread::scope(|scope| {
            for me in both {
                let (meet, grown, twice) = (&meet, &grown, &twice);
                scope.spawn(move || {
                    for round in 0..5000 {
                        table.slot(me).let_grow_ns.store(0, SeqCst);
                        meet(4 * round + 2);
                        let grows = table.lets_grow(me, 0, 600);
                        grown.fetch_add(grows as u64, SeqCst);
                        meet(4 * round + 4);
                        twice.fetch_add(grown.swap(0, SeqCst) / 2, SeqCst);
                    }
                });
            }
        });
        assert_eq!(twice.load(SeqCst), 0, "rounds in which both grew");
    }

    proptest! {
        /// A budget that is being lowered loses what came free, and nothing for pages that others have.
        #[test]
        fn unsharing_keeps_use_exact(
            ops in prop::collection::vec(op(), 1..60), mut reduction in 0..10i64,
        ) {
            let (table, _fd) = Table::create(100, Config::default()).unwrap();
            let members: Vec<SlotNumber> = (0..3)
                .map(|_| table.take_slot(StateWord::of(SlotState::Paging)).unwrap())
                .collect();
            for &n in &members {
                table.slot(n).family.store(7, SeqCst);
            }
            prop_assert!(table.try_charge(members[0], 10));
            table.charge_for_child(members[0], members[1], 0);
            table.charge_for_child(members[0], members[2], 0);
            let mut pages = [[Has::Shared; 10]; 3];
            prop_assert_eq!(table.in_use(), used(&pages));
            table.reduction.store(reduction, SeqCst);
            let lowered = reduction;
            for op in ops {
                let (Op::Write(m, p) | Op::Drop(m, p)) = op;
                let has = pages[m][p];
                let others = (0..3).any(|o| o != m && pages[o][p] == Has::Shared);
                pages[m][p] = match op {
                    Op::Write(..) => Has::Own,
                    Op::Drop(..) => Has::Nothing,
                };
                // As a member does: a page that nobody else maps needs no copy.
                match (op, has) {
                    (Op::Write(..), Has::Nothing) => table.charge_forced(members[m], 1),
                    (Op::Write(..), Has::Shared) if others => {
                        table.charge_forced(members[m], 1);
                        table.unshare(members[m], 1, 0);
                    }
                    (Op::Write(..), _) | (Op::Drop(..), Has::Nothing) => {}
                    (Op::Drop(..), Has::Shared) if others => table.unshare(members[m], 1, 0),
                    (Op::Drop(..), _) => table.uncharge(members[m], 1),
                }
                prop_assert_eq!(table.in_use(), used(&pages));
                prop_assert_eq!(table.drift(), Some(0));
                let comes_free = matches!((op, has), (Op::Drop(..), Has::Own))
                    || matches!((op, has, others), (Op::Drop(..), Has::Shared, false));
                reduction -= i64::from(comes_free).min(reduction);
                prop_assert_eq!(table.reduction.load(SeqCst), reduction);
                prop_assert_eq!(table.budget.load(SeqCst), 100 - lowered + reduction);
            }
        }
    }

    /// A member that charges again all that it gives back cannot keep the budget up.
    #[test]
    fn a_lower_budget_has_half_of_what_comes_free() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        let me = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
        assert!(table.try_charge(me, 100));
        table.reduction.store(40, SeqCst);
        for _ in 0..20 {
            table.uncharge(me, 5);
            (0..5).for_each(|_| _ = table.try_charge(me, 1));
            assert_eq!(table.in_use(), table.charged.0.load(SeqCst));
        }
        assert_eq!(table.reduction.load(SeqCst), 0);
        assert_eq!(table.budget.load(SeqCst), 60);
        assert_eq!(table.limit.0.load(SeqCst), 60);
        assert_eq!(table.charged.0.load(SeqCst), 60);
    }

    #[test]
    fn credit_of_strangers_is_not_taken() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        let slots: Vec<SlotNumber> = (0..3)
            .map(|_| table.take_slot(StateWord::of(SlotState::Paging)).unwrap())
            .collect();
        for (n, family) in slots.iter().zip([1, 1, 2]) {
            table.slot(*n).family.store(family, SeqCst);
        }
        assert_eq!(table.relatives(slots[0]).count(), 2);
        assert_eq!(table.relatives(slots[2]).count(), 1);
        assert!(table.try_charge(slots[0], 10));
        table.add_credit_for_test(slots[1], 4);
        table.add_credit_for_test(slots[2], 5);
        table.unshare(slots[0], 10, 0);
        let credit = |i: usize| table.slot(slots[i]).credit.load(SeqCst);
        assert_eq!((credit(0), credit(1), credit(2)), (0, 0, 5));
        assert_eq!(table.limit.0.load(SeqCst), 105);
        assert_eq!(table.charged.0.load(SeqCst), 0);
    }
}
