//! How much memory to ask of processes of the tree whose memory lies idle.
//!
//! Where one budget is shared, memory belongs to whoever uses it, as if there were one queue of
//! pages for the whole tree. There is none: each process knows the age of its own oldest pages, and
//! publishes it. A process that has to evict asks the one with the oldest pages, if those are so
//! much older than its own that the two do not just use what they have alike: that one gives a part
//! of what it has (`ebb_tree::Member::ask_colder`). Being asked costs a process that is idle
//! nothing, and one that is not the faults by which it shows that it is not: its pages are young
//! then.
//!
//! So that a program that wakes up among idle ones soon has what it needs, and one that is short of
//! little takes little, each turn in a row in which it still evicts asks for twice as much.
//!
//! Not done here: choosing whom to ask, giving.

use ebb_engine::PAGE_SIZE;

/// Evicting fewer pages in a turn is no need.
const NEED: u64 = 32;
/// Pages asked for in the first turn, for each that was evicted: more of them will be.
const AHEAD: u64 = 4;
/// The most that is asked for at once.
const MOST: u64 = (64 << 20) / PAGE_SIZE as u64;
/// How much longer than our oldest pages, in percent, and how long at least, idle ones were there.
/// Who gives a quarter of what it has is no longer that much ahead: two that use what they have
/// alike do not ask each other in turn.
const PERCENT: u64 = 150;
const LEAST_MS: u64 = 100;

/// What to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Of those whose oldest pages were brought in before this, in the keeper's milliseconds.
    pub before_ms: u64,
    pub pages: u64,
}

/// What is kept from turn to turn.
#[derive(Default)]
pub struct Appetite {
    /// Pages evicted up to the last turn.
    evicted: u64,
    /// By how much the next wish is larger.
    doubled: u32,
}

impl Appetite {
    /// `pages` of what was evicted others had asked for: it shows no need here.
    pub fn gave(&mut self, pages: u64) {
        self.evicted += pages;
    }

    /// A turn of the keeper at `now_ms`: `evicted` pages were by now, since the process pages, and
    /// the oldest that is here came at `oldest_ms`, 0 if none is here.
    pub fn turn(&mut self, evicted: u64, now_ms: u32, oldest_ms: u32) -> Option<Wish> {
        let since = evicted.saturating_sub(std::mem::replace(&mut self.evicted, evicted));
        if since < NEED {
            self.doubled = 0;
            return None;
        }
        let pages = ((since * AHEAD) << self.doubled).min(MOST);
        if pages < MOST {
            self.doubled += 1;
        }
        let age = match oldest_ms {
            0 => 0,
            oldest => u64::from(now_ms.saturating_sub(oldest)),
        };
        let before_ms = u64::from(now_ms).saturating_sub((age * PERCENT / 100).max(LEAST_MS));
        Some(Wish { before_ms, pages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_on_evicting_asks_for_more_each_turn_and_who_stops_begins_anew() {
        let (mut appetite, mut evicted) = (Appetite::default(), 0);
        let mut turn = |pages: u64| {
            evicted += pages;
            appetite.turn(evicted, 10_000, 9_900).map(|wish| wish.pages)
        };
        assert_eq!(turn(NEED - 1), None);
        let wishes: Vec<u64> = (0..12).filter_map(|_| turn(100)).collect();
        assert_eq!(wishes[..3], [400, 800, 1600]);
        assert!(wishes.is_sorted() && wishes[11] == MOST);
        assert_eq!(turn(0), None);
        assert_eq!(turn(100), Some(400));
    }

    #[test]
    fn what_was_given_away_is_no_need() {
        let mut appetite = Appetite::default();
        appetite.gave(1000);
        assert_eq!(appetite.turn(1000 + NEED - 1, 10_000, 9_900), None);
        assert!(appetite.turn(1000 + 2 * NEED, 10_000, 9_900).is_some());
    }

    #[test]
    fn only_pages_much_older_than_ours_are_asked_for() {
        let before = |now, oldest| {
            Appetite::default()
                .turn(NEED, now, oldest)
                .unwrap()
                .before_ms
        };
        assert_eq!(before(10_000, 9_000), 8_500);
        assert_eq!(before(10_000, 10_000), 10_000 - LEAST_MS);
        assert_eq!(before(10_000, 0), 10_000 - LEAST_MS);
        assert_eq!(before(50, 60), 0);
    }
}
