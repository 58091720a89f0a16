//! Charging pages against the budget.
//!
//! # Protocol
//! The sum `charged` and the process's own `charged` are two words, and a process may die
//! between them. Each change is bracketed by the slot's `begun` and `done`; the sum grows
//! first and shrinks last, so what a death leaves behind is a sum too large, never too small.
//! The supervisor puts it right when it finds a moment at which no change was under way
//! anywhere ([`Table::drift`]).
//!
//! `limit` is written by the supervisor (compare-and-swap, recomputed if it changed) and
//! raised by members for pages that would otherwise count twice: credit after a fork, and
//! what was measured of a process that starts to charge for itself.
//!
//! # Invariant, when nothing is under way (checked by [`Table::drift`] = 0)
//! charged = Σ charged of all slots.

use crate::table::{SlotNumber, SlotState, StateWord, Table};
use rustix::thread::futex;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Whom [`Member::ask_reclaim`](crate::Member::ask_reclaim) asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// The caller has the coldest pages itself.
    Me,
    /// Another process was woken.
    Other(SlotNumber),
    /// No process pages.
    Nobody,
}

impl Table {
    fn step<T>(&self, me: SlotNumber, f: impl FnOnce() -> T) -> T {
        let slot = self.slot(me);
        slot.begun.fetch_add(1, SeqCst);
        let result = f();
        slot.done.fetch_add(1, SeqCst);
        result
    }

    /// What the tree uses now: charged + outside - credit.
    pub fn in_use(&self) -> i64 {
        self.charged.0.load(SeqCst) + self.budget.load(Relaxed) - self.limit.0.load(SeqCst)
    }

    pub fn note_peak(&self, charged: i64) {
        let used = charged + self.budget.load(Relaxed) - self.limit.0.load(Relaxed);
        if used > self.peak.0.load(Relaxed) {
            self.peak.0.fetch_max(used, Relaxed);
        }
    }

    pub fn try_charge(&self, me: SlotNumber, pages: i64) -> bool {
        let fits = |charged: i64| charged + pages <= self.limit.0.load(SeqCst);
        let bit = 1 << (me.index() % 64);
        let hungry = &self.hungry.0[me.index() / 64];
        loop {
            let mut now = self.charged.0.load(SeqCst);
            if !fits(now) {
                // Room made before the bit was set woke nobody: look once more after it.
                hungry.fetch_or(bit, SeqCst);
                now = self.charged.0.load(SeqCst);
                if !fits(now) {
                    return false;
                }
            }
            let charged = self.step(me, || {
                let sum = &self.charged.0;
                sum.compare_exchange(now, now + pages, SeqCst, SeqCst)
                    .ok()?;
                self.slot(me).charged.fetch_add(pages, SeqCst);
                Some(now + pages)
            });
            if let Some(sum) = charged {
                self.note_peak(sum);
                return true;
            }
        }
    }

    pub fn charge_forced(&self, me: SlotNumber, pages: i64) {
        self.step(me, || {
            let now = self.charged.0.fetch_add(pages, SeqCst) + pages;
            self.slot(me).charged.fetch_add(pages, SeqCst);
            self.note_peak(now);
        });
    }

    /// Gives back at most what the process has charged.
    pub fn uncharge(&self, me: SlotNumber, pages: i64) {
        self.step(me, || {
            let had = self
                .slot(me)
                .charged
                .fetch_update(SeqCst, SeqCst, |had| Some((had - pages).max(0)))
                .unwrap_or(0);
            debug_assert!(had >= pages, "uncharging {pages} of {had}");
            self.charged.0.fetch_sub(pages.min(had), SeqCst);
        });
        self.feed();
    }

    /// Wakes who waits for room, if anyone does.
    pub fn feed(&self) {
        for (i, word) in self.hungry.0.iter().enumerate() {
            if word.load(Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, SeqCst);
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(slot) = SlotNumber::new(i * 64 + bit) {
                    self.wake(slot);
                }
            }
        }
    }

    /// Pages of `me` that another process has charged too: the limit rises at once.
    pub fn add_credit(&self, me: SlotNumber, pages: i64) {
        self.step(me, || {
            self.slot(me).credit.fetch_add(pages, SeqCst);
            self.limit.0.fetch_add(pages, SeqCst);
        });
    }

    /// From now on `me` charges for itself, beginning with `pages`, and is measured no more.
    pub fn start_paging(&self, me: SlotNumber, pages: i64) {
        // What was measured until now is what is charged: counted twice for a moment, which is no
        // peak.
        self.step(me, || {
            self.charged.0.fetch_add(pages, SeqCst);
            self.slot(me).charged.fetch_add(pages, SeqCst);
        });
        self.set_state(me, StateWord::of(SlotState::Paging));
        self.step(me, || {
            let measured = self.slot(me).measured.swap(0, SeqCst);
            self.limit.0.fetch_add(measured, SeqCst);
        });
        self.note_peak(self.charged.0.load(SeqCst));
    }

    /// What `parent` has charged, charged once more for `child`, with credit for all of it.
    pub fn charge_for_child(&self, parent: SlotNumber, child: SlotNumber) {
        self.step(parent, || {
            let pages = self.slot(parent).charged.load(SeqCst);
            self.slot(child).credit.store(pages, SeqCst);
            self.limit.0.fetch_add(pages, SeqCst);
            self.charged.0.fetch_add(pages, SeqCst);
            self.slot(child).charged.store(pages, SeqCst);
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
            Some(me) => self.step(me, clear),
            None => clear(),
        }
    }

    /// By how much the sum differs from the slots' charges: what killed processes left
    /// behind. None if changes were under way, so that it cannot be told.
    pub fn drift(&self) -> Option<i64> {
        // Every step begun by the end of the look was done before it began.
        let mut done = [0; crate::MAX_SLOTS];
        let mut in_use = [false; crate::MAX_SLOTS];
        for (n, _) in self.taken() {
            in_use[n.index()] = true;
            done[n.index()] = self.slot(n).done.load(SeqCst);
        }
        let sum = self.charged.0.load(SeqCst);
        let mut slots = 0;
        for n in SlotNumber::all().filter(|n| in_use[n.index()]) {
            slots += self.slot(n).charged.load(SeqCst);
        }
        let quiet = SlotNumber::all().all(|n| {
            let taken = self.state(n).state != SlotState::Free;
            taken == in_use[n.index()]
                && (!taken || self.slot(n).begun.load(SeqCst) == done[n.index()])
        });
        quiet.then_some(sum - slots)
    }

    pub fn wake(&self, n: SlotNumber) {
        let word = &self.slot(n).futex;
        word.fetch_add(1, SeqCst);
        // Waking a word that lies in a valid mapping cannot fail.
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until the slot's word differs from `seen`, or the time is over. Returns the word.
    pub fn wait(&self, me: SlotNumber, seen: u32, timeout: Option<Duration>) -> u32 {
        let word = &self.slot(me).futex;
        let timeout = timeout.and_then(|t| t.try_into().ok());
        if word.load(SeqCst) == seen {
            // Whatever ends the wait, the word says whether there is news.
            let _ = futex::wait(word, futex::Flags::empty(), seen, timeout.as_ref());
        }
        word.load(SeqCst)
    }

    /// Asks `whom` to give up at least `pages`. Requests do not add up: who is still short
    /// asks again.
    pub fn request(&self, whom: SlotNumber, pages: u64) {
        if self.slot(whom).request.fetch_max(pages, SeqCst) < pages {
            self.wake(whom);
        }
    }

    /// Asks the paging process with the coldest pages, or where nobody has published how cold
    /// its pages are, the largest.
    pub fn ask_reclaim(&self, me: SlotNumber, pages: u64) -> Asked {
        let candidates = || {
            let paging = self
                .taken()
                .filter(|(_, word)| word.state == SlotState::Paging);
            paging
                .map(|(n, _)| n)
                .filter(|&n| self.slot(n).charged.load(Relaxed) > 0)
        };
        let coldest = candidates()
            .filter_map(|n| match self.slot(n).coldest.load(Relaxed) {
                0 => None,
                since => Some((since, n)),
            })
            .min()
            .map(|(_, n)| n);
        let largest = || candidates().max_by_key(|&n| self.slot(n).charged.load(Relaxed));
        match coldest.or_else(largest) {
            None => Asked::Nobody,
            Some(n) if n == me => Asked::Me,
            Some(n) => {
                self.request(n, pages);
                Asked::Other(n)
            }
        }
    }
}
