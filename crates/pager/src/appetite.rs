//! When to ask processes of the tree whose memory lies idle for some of it, and for how much.
//!
//! Where one budget is shared, memory belongs to whoever uses it, as if there were one queue of
//! pages for the whole tree. There is none: each process knows the age of its own oldest pages, and
//! publishes it. A process that has to evict asks the two with the oldest pages, if those are so
//! much older than its own that they do not just use what they have alike: each gives a part of what
//! it has, at the same time (`ebb_tree::Member::ask_colder`). Being asked costs a process that is
//! idle nothing, and one that is not the faults by which it shows that it is not: its pages are
//! young then.
//!
//! So that a program that wakes up among idle ones soon has what it needs, and one that is short of
//! little takes little, each wish soon after another is for twice as much. And who has asked with
//! success *hopes*: it waits a moment for what is given, rather than evict pages that it will want
//! again. Hope that brings nothing is given up until somebody was asked again, each time after twice
//! as long: who was asked may be stopped.
//!
//! Not done here: choosing whom to ask, giving, waiting.

use ebb_engine::PAGE_SIZE;
use std::time::Duration;

/// Who evicts fewer pages than this in a [`TURN`] has no need.
const NEED: u64 = 32;
/// Without hunger for so long, the next wish is small again.
const TURN: Duration = Duration::from_millis(20);
/// What was asked for is on its way for so long; then one may ask again.
const GIVEN: Duration = Duration::from_millis(4);
/// Where nobody was to be asked, it is not tried again before this.
const NOBODY: Duration = Duration::from_millis(5);
/// After so many disappointments in a row the pause grows no longer: a second.
const LONGEST: u32 = 8;
/// What each is asked for first, in pages, and the most at once.
const FIRST: u64 = 512;
const MOST: u64 = (64 << 20) / PAGE_SIZE as u64;
/// How much longer than our oldest pages, in percent, and how long at least, idle ones were there.
/// Who gives a quarter of what it has is no longer that much ahead: two that use what they have
/// alike do not ask each other in turn.
const PERCENT: u64 = 150;
const LEAST_MS: u64 = 100;

/// What to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Of those whose oldest pages were brought in before this, in milliseconds of CLOCK_MONOTONIC.
    pub before_ms: u64,
    /// Of each that is asked.
    pub pages: u64,
}

/// What is kept from wish to wish. Times are of CLOCK_MONOTONIC.
pub struct Appetite {
    /// When the turn began, and the pages evicted up to then.
    turn: Duration,
    evicted: u64,
    /// When there was no room last.
    last: Duration,
    /// When one may ask again.
    next: Duration,
    /// What to ask for then.
    pages: u64,
    hopes: bool,
    /// Disappointments in a row.
    vain: u32,
}

impl Appetite {
    /// Of a process that has never been short.
    pub const fn new() -> Self {
        Self {
            turn: Duration::ZERO,
            evicted: 0,
            last: Duration::ZERO,
            next: Duration::ZERO,
            pages: FIRST,
            hopes: false,
            vain: 0,
        }
    }

    /// `pages` of what was evicted others had asked for: it shows no need here.
    pub fn gave(&mut self, pages: u64) {
        self.evicted += pages;
    }

    /// There is no room at `now`: `evicted` pages were by now, since the process pages, and the
    /// oldest that is here came at `oldest_ms`, 0 if none is here. `told` comes after a wish; until
    /// then there is no other.
    pub fn hungers(&mut self, evicted: u64, now: Duration, oldest_ms: u32) -> Option<Wish> {
        if now.saturating_sub(self.last) >= TURN {
            self.pages = FIRST;
        }
        self.last = now;
        if now.saturating_sub(self.turn) >= TURN {
            (self.turn, self.evicted) = (now, evicted);
        }
        let need = self.hopes || evicted.saturating_sub(self.evicted) >= NEED;
        if !need || now < self.next {
            return None;
        }
        self.next = now + NOBODY;
        // Pages are dated by the low bits alone.
        let age = match oldest_ms {
            0 => 0,
            oldest => u64::from((now.as_millis() as u32).wrapping_sub(oldest)),
        };
        let now_ms = now.as_millis() as u64;
        Some(Wish {
            before_ms: now_ms.saturating_sub((age * PERCENT / 100).max(LEAST_MS)),
            pages: self.pages,
        })
    }

    /// The wish was told to somebody, or there is nobody to tell it.
    pub fn told(&mut self, somebody: bool, now: Duration) {
        self.hopes = somebody;
        if somebody {
            self.next = now + GIVEN;
            self.pages = (self.pages * 2).min(MOST);
        }
    }

    /// Whether to wait a moment for what others give.
    pub fn hopes(&self) -> bool {
        self.hopes
    }

    /// Room came.
    pub fn given(&mut self) {
        self.vain = 0;
    }

    /// A moment was waited up to `now`, for nothing. Of several that waited at once the first says so.
    pub fn disappointed(&mut self, now: Duration) {
        if !std::mem::take(&mut self.hopes) {
            return;
        }
        self.next = now + GIVEN * (1 << self.vain);
        self.vain = (self.vain + 1).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn who_stays_short_asks_for_more_each_time_and_who_was_not_begins_anew() {
        let mut appetite = Appetite::new();
        let mut evicted = 0;
        let mut now = ms(10_000);
        assert_eq!(appetite.hungers(NEED - 1, now, 0), None, "no need yet");
        let mut wishes = Vec::new();
        for _ in 0..5000 {
            now += ms(1);
            evicted += NEED;
            if let Some(wish) = appetite.hungers(evicted, now, 9_900) {
                appetite.told(true, now);
                wishes.push(wish.pages);
            }
        }
        appetite.disappointed(now);
        assert_eq!(wishes[..3], [FIRST, 2 * FIRST, 4 * FIRST]);
        assert!(wishes.is_sorted() && wishes.last() == Some(&MOST));
        now += 2 * TURN;
        assert_eq!(appetite.hungers(evicted, now, 0), None);
        let wish = appetite.hungers(evicted + NEED, now, 0);
        assert_eq!(wish.map(|wish| wish.pages), Some(FIRST));
    }

    #[test]
    fn nobody_is_asked_again_before_he_can_have_given() {
        for (somebody, pause) in [(true, GIVEN), (false, NOBODY)] {
            let (mut appetite, now) = (Appetite::new(), ms(10_000));
            appetite.hungers(0, now, 0);
            assert!(appetite.hungers(NEED, now, 0).is_some());
            appetite.told(somebody, now);
            assert_eq!(appetite.hopes(), somebody);
            let early = appetite.hungers(NEED, now + pause - ms(1), 0);
            assert_eq!(early, None);
            assert!(appetite.hungers(NEED, now + pause, 0).is_some());
        }
    }

    #[test]
    fn who_waits_in_vain_soon_seldom_waits() {
        let (mut appetite, mut now, mut waits) = (Appetite::new(), ms(10_000), Vec::new());
        let mut hungry = |appetite: &mut Appetite, given: bool| {
            for evicted in 1..4_000 {
                now += ms(1);
                if appetite.hungers(evicted * NEED, now, 0).is_some() {
                    appetite.told(true, now);
                    waits.push(now);
                }
                match (appetite.hopes(), given) {
                    (true, true) => appetite.given(),
                    (true, false) => appetite.disappointed(now),
                    _ => {}
                }
            }
            std::mem::take(&mut waits)
        };
        let vain = hungry(&mut appetite, false);
        assert!((8..16).contains(&vain.len()), "{vain:?}");
        assert!(hungry(&mut appetite, true).len() > 500);
        assert_eq!(appetite.vain, 0);
    }

    #[test]
    fn what_was_given_away_is_no_need() {
        let mut appetite = Appetite::new();
        appetite.hungers(0, ms(10_000), 0);
        appetite.gave(1000);
        assert_eq!(appetite.hungers(1000 + NEED - 1, ms(10_000), 0), None);
        assert!(appetite.hungers(1000 + NEED, ms(10_000), 0).is_some());
    }

    #[test]
    fn only_pages_much_older_than_ours_are_asked_for() {
        let before = |now, oldest| {
            let mut appetite = Appetite::new();
            appetite.hungers(0, ms(now), oldest);
            appetite.hungers(NEED, ms(now), oldest).unwrap().before_ms
        };
        assert_eq!(before(10_000, 9_000), 8_500);
        assert_eq!(before(10_000, 10_000), 10_000 - LEAST_MS);
        assert_eq!(before(10_000, 0), 10_000 - LEAST_MS);
        assert_eq!(before(50, 60), 0);
    }
}
