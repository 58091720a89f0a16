//! Asking other processes to give pages up.
//!
//! A process that is short of memory asks those with the coldest pages. Requests are words of the
//! table: the process asked takes its request over and answers with nothing but what it gives up. Meanwhile it says down to
//! which charge it goes, so that nobody asks for the same again.

use super::{SlotNumber, SlotState, Table};
use ebb_sys::clock::monotonic_ns;
use std::sync::atomic::Ordering::*;

/// Whom [`Member::ask_reclaim`](crate::Member::ask_reclaim) asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Another process was woken.
    Other(SlotNumber),
    /// No other process has any to give, or all that have are asked already.
    Nobody,
}

/// How old memory has to be for its process to be asked for it. CLOCK_MONOTONIC, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgeCutoff {
    /// Resident pages: not known used since.
    pub resident_ns: u64,
    /// Pages in the pool, of which the oldest would go to devices: they came before this.
    pub pool_ns: u64,
}

/// A request to a process to give pages up. In one word, of which the larger stays: more pages, then younger ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReclaimRequest {
    /// The number of pages; 0: nobody asks.
    pub pages: u32,
    /// Milliseconds for which they are to have been idle, or longer; 0: any will do.
    pub idle_ms: u32,
}

impl ReclaimRequest {
    /// Any pages, so many; no more than a word holds.
    pub fn any(pages: u64) -> Self {
        Self {
            pages: u32::try_from(pages).unwrap_or(u32::MAX),
            idle_ms: 0,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.pages) << 32 | u64::from(!self.idle_ms)
    }

    fn unpack(word: u64) -> Self {
        Self {
            pages: (word >> 32) as u32,
            idle_ms: !(word as u32),
        }
    }
}

/// A process that holds fewer pages is not asked for any.
const MIN_DONOR_PAGES: i64 = 64;

impl Table {
    /// The request to `me`, taken over by the caller. If it is for any, [`has_given`](Self::has_given) follows.
    pub fn take_request(&self, me: SlotNumber) -> ReclaimRequest {
        let slot = self.slot(me);
        let gives = |request: ReclaimRequest| {
            let charged = slot.charged.load(SeqCst);
            let down_to = charged.saturating_sub(request.pages.into()).max(1);
            slot.gives_down_to.store(down_to, SeqCst);
            request
        };
        let seen = ReclaimRequest::unpack(slot.request.load(SeqCst));
        if seen.pages == 0 {
            return seen;
        }
        // Before the word is empty: at no time does neither tell of it. It may be asked for more meanwhile.
        gives(seen);
        gives(ReclaimRequest::unpack(slot.request.swap(0, SeqCst)))
    }

    /// `me` has given what it took over, or as much as it could.
    pub fn has_given(&self, me: SlotNumber) {
        self.slot(me).gives_down_to.store(0, SeqCst);
    }

    /// Pages that `whom` is asked for, or is giving now.
    pub fn on_its_way(&self, whom: SlotNumber) -> i64 {
        let slot = self.slot(whom);
        let asked = ReclaimRequest::unpack(slot.request.load(SeqCst))
            .pages
            .into();
        let charged = slot.charged.load(SeqCst).max(0);
        let giving = match slot.gives_down_to.load(SeqCst) {
            0 => 0,
            down_to => charged.saturating_sub(down_to),
        };
        giving.max(asked).min(charged)
    }

    /// Whether `whom` has not taken what it is asked for.
    pub fn is_asked(&self, whom: SlotNumber) -> bool {
        ReclaimRequest::unpack(self.slot(whom).request.load(Relaxed)).pages > 0
    }

    /// Asks `whom` to give up as much at least. Requests do not add up: who is still short asks again.
    pub fn request(&self, whom: SlotNumber, request: ReclaimRequest) {
        let word = request.pack();
        if request.pages > 0 && self.slot(whom).request.fetch_max(word, SeqCst) < word {
            self.wake(whom);
        }
    }

    /// Asks the other paging process with the coldest pages, or the largest where no process has published
    /// how cold its pages are. `me` has found nothing more to give, however cold its pages are. One that has not taken
    /// an earlier request may be stopped: the next is asked.
    pub fn ask_reclaim(&self, me: SlotNumber, pages: u64) -> Asked {
        let these = || self.others(me).filter(|&n| !self.is_asked(n));
        let largest = || these().max_by_key(|&n| self.slot(n).charged.load(Relaxed));
        self.ask(
            self.coldest(these(), u64::MAX, monotonic_ns())
                .or_else(largest),
            ReclaimRequest::any(pages),
        )
    }

    /// Paging processes beside `me` that have something to give.
    fn others(&self, me: SlotNumber) -> impl Iterator<Item = SlotNumber> {
        self.taken()
            .filter(move |(n, word)| *n != me && word.state == SlotState::Paging)
            .map(|(n, _)| n)
            .filter(|&n| self.slot(n).charged.load(Relaxed) >= MIN_DONOR_PAGES)
    }

    /// Which of `these` has the coldest pages, of those that published pages last known used before
    /// `before_ns`.
    fn coldest(
        &self,
        these: impl Iterator<Item = SlotNumber>,
        before_ns: u64,
        now: u64,
    ) -> Option<SlotNumber> {
        let since = |n| match self.slot(n).idle_ns(now) {
            None => 0,
            Some(idle) => now.saturating_sub(idle).max(1),
        };
        oldest(these.map(|n| (since(n), n)), before_ns)
    }

    /// Which of `these`, of which little but the pool is left, has the oldest pages there, if they came
    /// before `before_ns`.
    fn oldest_pool(
        &self,
        these: impl Iterator<Item = SlotNumber>,
        before_ns: u64,
    ) -> Option<SlotNumber> {
        let these = these.filter(|&n| self.slot(n).coldest.load(Relaxed) == 0);
        oldest(
            these.map(|n| (self.slot(n).pool_oldest.load(Relaxed), n)),
            before_ns,
        )
    }

    fn ask(&self, whom: Option<SlotNumber>, request: ReclaimRequest) -> Asked {
        match whom {
            None => Asked::Nobody,
            Some(n) => {
                self.request(n, request);
                Asked::Other(n)
            }
        }
    }

    /// Asks the two other paging processes with the coldest pages for `pages` each, if those were last
    /// known used before `before`. They give at the same time, while the asking process waits. Pages that a
    /// process shares with relatives are not counted: evicting them frees nothing. Where nobody has such
    /// pages, those with the oldest pool. Returns whom it asked first.
    pub fn ask_colder(&self, me: SlotNumber, before: AgeCutoff, pages: u64) -> Asked {
        let own = |n: SlotNumber| {
            let slot = self.slot(n);
            let charged = slot.charged.load(Relaxed);
            charged.saturating_sub(slot.credit.load(Relaxed))
        };
        let now = monotonic_ns();
        let idle_ms = now.saturating_sub(before.resident_ns) / 1_000_000;
        let ask_one = |but: Option<SlotNumber>| {
            let these = || {
                self.others(me)
                    .filter(|&n| own(n) >= MIN_DONOR_PAGES && Some(n) != but)
            };
            let colder = self
                .coldest(these(), before.resident_ns, now)
                .or_else(|| self.oldest_pool(these(), before.pool_ns));
            // Not all it has: it would ask for it back.
            let part = |n| own(n).max(0) as u64 / 4;
            let request = ReclaimRequest {
                idle_ms: u32::try_from(idle_ms).unwrap_or(u32::MAX),
                ..ReclaimRequest::any(pages.min(colder.map_or(0, part)))
            };
            self.ask(colder, request)
        };
        let asked = ask_one(None);
        if let Asked::Other(first) = asked {
            ask_one(Some(first));
        }
        asked
    }
}

/// Of those that say since when, the one that says the earliest, if that is before `before_ns`.
fn oldest(these: impl Iterator<Item = (u64, SlotNumber)>, before_ns: u64) -> Option<SlotNumber> {
    these
        .filter(|(since, _)| (1..before_ns).contains(since))
        .min()
        .map(|(_, n)| n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Config, StateWord};

    #[test]
    fn a_request_gets_a_part_of_the_oldest_memory_that_is_not_shared() {
        let (table, _fd) = Table::create(10_000, Config::default()).unwrap();
        let slots: Vec<SlotNumber> = (0..4)
            .map(|_| table.take_slot(StateWord::of(SlotState::Paging)).unwrap())
            .collect();
        // A relative of the first has older pages than any, all of them shared; the last says nothing
        // of its age.
        for (n, (family, since)) in slots.iter().zip([(1, 900), (1, 100), (2, 300), (3, 0)]) {
            table.slot(*n).family.store(family, SeqCst);
            table.slot(*n).coldest.store(since, SeqCst);
            assert!(table.try_charge(*n, 1000));
        }
        table.add_credit_for_test(slots[1], 1000);
        let asked = |n: usize| u64::from(table.take_request(slots[n]).pages);
        let before = |resident_ns, pool_ns| AgeCutoff {
            resident_ns,
            pool_ns,
        };
        assert_eq!(
            table.ask_colder(slots[0], before(300, 0), 50),
            Asked::Nobody
        );
        assert_eq!(
            table.ask_colder(slots[0], before(301, 0), 50),
            Asked::Other(slots[2])
        );
        assert_eq!([0, 1, 2, 3].map(asked), [0, 0, 50, 0]);
        table.ask_colder(slots[0], before(301, 0), 5000);
        assert_eq!(asked(2), 250, "a quarter of what it has");
        // A process that finds nothing more to give asks the process with the oldest pages.
        assert_eq!(table.ask_reclaim(slots[0], 5000), Asked::Other(slots[1]));
        assert_eq!(asked(1), 5000);
        // Relatives that share little are asked like anybody. The two with the oldest are.
        assert!(table.try_charge(slots[1], 1000));
        table.slot(slots[3]).coldest.store(299, SeqCst);
        let first = table.ask_colder(slots[0], before(301, 0), 5000);
        assert_eq!(first, Asked::Other(slots[1]));
        assert_eq!([0, 1, 2, 3].map(asked), [0, 250, 0, 250]);
        for n in [1, 3] {
            table.slot(slots[n]).coldest.store(0, SeqCst);
        }
        // Of whom only the pool is left gives of that where nobody has anything else.
        for (n, since) in [(2, 90), (3, 200)] {
            table.slot(slots[n]).pool_oldest.store(since, SeqCst);
        }
        table.ask_colder(slots[0], before(301, 201), 50);
        assert_eq!([0, 1, 2, 3].map(asked), [0, 0, 50, 50]);
        table.ask_colder(slots[0], before(200, 200), 50);
        assert_eq!([0, 1, 2, 3].map(asked), [0, 0, 0, 0]);
        table.slot(slots[3]).pool_oldest.store(0, SeqCst);
        // A process with next to nothing is left alone.
        table.uncharge(slots[2], 1000 - MIN_DONOR_PAGES + 1);
        assert_eq!(
            table.ask_colder(slots[0], before(301, 0), 50),
            Asked::Nobody
        );
    }

    /// Those with the oldest pages are frozen.
    #[test]
    fn who_does_not_take_a_request_leaves_the_next_to_be_asked() {
        let (table, _fd) = Table::create(10_000, Config::default()).unwrap();
        let slots = [0, 100, 0, 300].map(|since| {
            let n = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
            table.slot(n).coldest.store(since, SeqCst);
            assert!(table.try_charge(n, 1000));
            n
        });
        let ask = || table.ask_reclaim(slots[0], 5);
        assert_eq!(
            [ask(), ask(), ask()],
            [1, 3, 2].map(|n| Asked::Other(slots[n]))
        );
        assert_eq!(ask(), Asked::Nobody);
        assert_eq!(table.take_request(slots[2]).pages, 5);
        assert_eq!(ask(), Asked::Other(slots[2]));
    }

    #[test]
    fn the_larger_request_stays_and_then_the_one_for_younger_pages() {
        let (table, _fd) = Table::create(10_000, Config::default()).unwrap();
        let whom = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
        let request = |pages, idle_ms| ReclaimRequest { pages, idle_ms };
        assert_eq!(table.take_request(whom).pages, 0);
        for (made, expected) in [
            (vec![request(5, 100), request(9, 50)], request(9, 50)),
            (vec![request(9, 50), request(5, 0)], request(9, 50)),
            (vec![request(9, 50), request(9, 20)], request(9, 20)),
            (vec![request(9, 20), request(9, 50)], request(9, 20)),
            (vec![ReclaimRequest::any(1 << 40)], request(u32::MAX, 0)),
        ] {
            made.into_iter()
                .for_each(|request| table.request(whom, request));
            assert!(table.is_asked(whom));
            assert_eq!(table.take_request(whom), expected);
            assert!(!table.is_asked(whom));
        }
        table.request(whom, request(0, 0));
        assert!(!table.is_asked(whom));
    }
}
