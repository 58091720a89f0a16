//! When to ask processes of the tree whose memory lies idle for some of it, and for how much.
//!
//! Where one budget is shared, memory belongs to whoever uses it, as if there were one queue of pages for the whole
//! tree. There is none: each process knows the age of its own oldest pages, and publishes it. A process that has to
//! evict asks the two with the oldest pages, if those are much older than its own. Each gives a part of its memory,
//! at the same time (`ebb_tree::Member::ask_colder`). Being asked costs an idle process nothing. A busy one pays with
//! faults, and its pages are young then.
//!
//! Of a process of which little but its pool is left, the pool's oldest pages go to devices then. A page that comes
//! back from there is dearer than the memory gained: it frees a part of a frame, and its fault takes longer than one
//! from the pool. With both as the *price*, it is right if it came back so many times less often, as far as ages
//! tell. A process that writes pages of its own pool to devices asks those whose pool is older than its own: one page
//! goes for the other then.
//!
//! Each request soon after another is for twice as much: a program that wakes up among idle ones soon has enough, and
//! one that is short of little takes little. And who has asked with success waits a moment for what is given, rather
//! than evict pages that it will want again. Waiting that brings nothing is given up until somebody was asked again,
//! each time after twice as long: who was asked may be stopped.
//!
//! Not done here: choosing whom to ask, giving, waiting.

use ebb_engine::PAGE_SIZE;
use ebb_tree::idle_time;
use std::time::Duration;

/// Evictions in a [`TURN`] below which there is no need.
const NEED: u64 = 32;
/// Without a lack of room for so long, the next request is small again.
const TURN: Duration = Duration::from_millis(20);
/// Time that an answer takes; then one may ask again.
const GIVEN: Duration = Duration::from_millis(4);
/// Where nobody was to be asked, it is not tried again before this.
const NOBODY: Duration = Duration::from_millis(5);
/// After so many failed waits in a row the pause grows no longer: a second.
const LONGEST: u32 = 8;
/// Pages that each is asked for first, and the most at once.
const FIRST: u64 = 512;
const MOST: u64 = (64 << 20) / PAGE_SIZE as u64;
/// How much longer than our oldest pages, in percent, and how long at least, idle ones were there. After a process
/// gave a quarter of its memory it is no longer that much ahead: two equally busy processes do not ask each other in
/// turn.
const PERCENT: u64 = 150;
const LEAST_MS: u64 = 5;

/// A request to peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The bound for peers with resident pages: their oldest were brought in before it, in milliseconds of
    /// CLOCK_MONOTONIC.
    pub before_ms: u64,
    /// The bound for peers with nothing but a pool: their oldest pages came there before it.
    pub pool_before_ms: u64,
    /// The pages asked of each.
    pub pages: u64,
}

/// How the process that may request stands. Pages are dated by the low bits of milliseconds, 0: there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Pages evicted since it pages, and those of its pool written to devices.
    pub evicted: u64,
    /// The second of these.
    pub written: u64,
    /// The time when the oldest came that is resident.
    pub oldest_ms: u32,
    /// The time after which most pages come back, 0: most do not.
    pub return_time_ms: u32,
    /// And the oldest in the pool.
    pub pool_oldest_ms: u32,
    /// The price of a page of a pool, see above; 1 at least.
    pub price: u64,
}

/// The state kept from request to request. Times are of CLOCK_MONOTONIC.
pub struct PeerReclaim {
    /// The time when the turn began, and the pages evicted and written to devices up to then.
    turn: Duration,
    evicted: u64,
    written: u64,
    /// Flag: there were any in the turn before.
    wrote: bool,
    /// The time when there was no room last.
    last: Duration,
    /// The time when one may ask again.
    next: Duration,
    /// Pages to ask for then.
    pages: u64,
    is_waiting: bool,
    /// Failed waits in a row.
    failed_waits: u32,
}

impl PeerReclaim {
    /// Of a process that has never been short.
    pub const fn new() -> Self {
        Self {
            turn: Duration::ZERO,
            evicted: 0,
            written: 0,
            wrote: false,
            last: Duration::ZERO,
            next: Duration::ZERO,
            pages: FIRST,
            is_waiting: false,
            failed_waits: 0,
        }
    }

    /// In a forked child: it has evicted nothing, and asked nobody.
    pub fn reset_in_child(&mut self) {
        *self = Self::new();
    }

    /// `pages` of what was evicted others had asked for: it shows no need here.
    pub fn gave(&mut self, pages: u64) {
        self.evicted += pages;
    }

    /// There is no room at `now`. `sent` comes after a request; until then there is no other.
    pub fn next_request(&mut self, now: Duration, standing: &Standing) -> Option<Request> {
        if now.saturating_sub(self.last) >= TURN {
            self.pages = FIRST;
        }
        self.last = now;
        let wrote = standing.written > self.written;
        if now.saturating_sub(self.turn) >= TURN {
            (self.turn, self.evicted) = (now, standing.evicted);
            (self.written, self.wrote) = (standing.written, wrote);
        }
        let need = self.is_waiting || standing.evicted.saturating_sub(self.evicted) >= NEED;
        if !need || now < self.next {
            return None;
        }
        self.next = now + NOBODY;
        let now_ms = now.as_millis() as u64;
        let age = |oldest_ms: u32| match oldest_ms {
            0 => 0,
            oldest => u64::from((now_ms as u32).wrapping_sub(oldest)),
        };
        let idle = idle_time(age(standing.oldest_ms), u64::from(standing.return_time_ms));
        // As many times as old as that.
        let before = |age: u64, times: u64| {
            now_ms.saturating_sub((age * times * PERCENT / 100).max(LEAST_MS))
        };
        Some(Request {
            before_ms: before(idle, 1),
            pool_before_ms: if wrote || self.wrote {
                before(age(standing.pool_oldest_ms), 1)
            } else {
                before(idle, standing.price)
            },
            pages: self.pages,
        })
    }

    /// The request was sent to somebody, or there is nobody to tell it.
    pub fn sent(&mut self, somebody: bool, now: Duration) {
        self.is_waiting = somebody;
        if somebody {
            self.next = now + GIVEN;
            self.pages = (self.pages * 2).min(MOST);
        }
    }

    /// The next request is within its bounds, and so is the pause after failed waits.
    pub fn check(&self) {
        assert!((FIRST..=MOST).contains(&self.pages));
        assert!(self.failed_waits <= LONGEST);
        assert!(self.turn <= self.last);
    }

    /// Whether to wait a moment for what others give.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Room came.
    pub fn received(&mut self) {
        self.failed_waits = 0;
    }

    /// A moment was waited up to `now`, for nothing. Of several that waited at once the first says so.
    pub fn timed_out(&mut self, now: Duration) {
        if !std::mem::take(&mut self.is_waiting) {
            return;
        }
        self.next = now + GIVEN * (1 << self.failed_waits);
        self.failed_waits = (self.failed_waits + 1).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn standing(evicted: u64, oldest_ms: u32) -> Standing {
        Standing {
            evicted,
            written: 0,
            oldest_ms,
            return_time_ms: 0,
            pool_oldest_ms: 0,
            price: 20,
        }
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn requests_double_while_room_is_short_and_begin_anew_after() {
        let mut peer_reclaim = PeerReclaim::new();
        let mut evicted = 0;
        let mut now = ms(10_000);
        assert_eq!(
            peer_reclaim.next_request(now, &standing(NEED - 1, 0)),
            None,
            "no need yet"
        );
        let mut requests = Vec::new();
        for _ in 0..5000 {
            now += ms(1);
            evicted += NEED;
            if let Some(request) = peer_reclaim.next_request(now, &standing(evicted, 9_900)) {
                peer_reclaim.sent(true, now);
                requests.push(request.pages);
            }
        }
        peer_reclaim.timed_out(now);
        assert_eq!(requests[..3], [FIRST, 2 * FIRST, 4 * FIRST]);
        assert!(requests.is_sorted() && requests.last() == Some(&MOST));
        now += 2 * TURN;
        assert_eq!(peer_reclaim.next_request(now, &standing(evicted, 0)), None);
        let request = peer_reclaim.next_request(now, &standing(evicted + NEED, 0));
        assert_eq!(request.map(|request| request.pages), Some(FIRST));
    }

    #[test]
    fn a_peer_is_not_asked_again_before_it_could_answer() {
        for (somebody, pause) in [(true, GIVEN), (false, NOBODY)] {
            let (mut peer_reclaim, now) = (PeerReclaim::new(), ms(10_000));
            peer_reclaim.next_request(now, &standing(0, 0));
            assert!(peer_reclaim.next_request(now, &standing(NEED, 0)).is_some());
            peer_reclaim.sent(somebody, now);
            assert_eq!(peer_reclaim.is_waiting(), somebody);
            let early = peer_reclaim.next_request(now + pause - ms(1), &standing(NEED, 0));
            assert_eq!(early, None);
            assert!(
                peer_reclaim
                    .next_request(now + pause, &standing(NEED, 0))
                    .is_some()
            );
        }
    }

    #[test]
    fn failed_waits_become_rare() {
        let (mut peer_reclaim, mut now, mut waits) = (PeerReclaim::new(), ms(10_000), Vec::new());
        let mut short = |peer_reclaim: &mut PeerReclaim, given: bool| {
            for evicted in 1..4_000 {
                now += ms(1);
                if peer_reclaim
                    .next_request(now, &standing(evicted * NEED, 0))
                    .is_some()
                {
                    peer_reclaim.sent(true, now);
                    waits.push(now);
                }
                match (peer_reclaim.is_waiting(), given) {
                    (true, true) => peer_reclaim.received(),
                    (true, false) => peer_reclaim.timed_out(now),
                    _ => {}
                }
                peer_reclaim.check();
            }
            std::mem::take(&mut waits)
        };
        let failed_waits = short(&mut peer_reclaim, false);
        assert!((8..16).contains(&failed_waits.len()), "{failed_waits:?}");
        assert!(short(&mut peer_reclaim, true).len() > 500);
        assert_eq!(peer_reclaim.failed_waits, 0);
    }

    #[test]
    fn pages_evicted_for_peers_show_no_need() {
        let mut peer_reclaim = PeerReclaim::new();
        peer_reclaim.next_request(ms(10_000), &standing(0, 0));
        peer_reclaim.gave(1000);
        assert_eq!(
            peer_reclaim.next_request(ms(10_000), &standing(1000 + NEED - 1, 0)),
            None
        );
        assert!(
            peer_reclaim
                .next_request(ms(10_000), &standing(1000 + NEED, 0))
                .is_some()
        );
    }

    #[test]
    fn only_pages_much_older_than_ours_are_asked_for() {
        let before = |now, oldest| {
            let mut peer_reclaim = PeerReclaim::new();
            peer_reclaim.next_request(ms(now), &standing(0, oldest));
            peer_reclaim
                .next_request(ms(now), &standing(NEED, oldest))
                .unwrap()
                .before_ms
        };
        assert_eq!(before(10_000, 9_000), 8_500);
        assert_eq!(before(10_000, 10_000), 10_000 - LEAST_MS);
        assert_eq!(before(10_000, 0), 10_000 - LEAST_MS);
        assert_eq!(before(50, 60), 0);
    }

    /// Pages in a pool have to be older than resident ones here by the factor of their price. Where the own pool is
    /// written, they have to be as old as its pages.
    #[test]
    fn pages_in_a_peers_pool_are_requested_where_that_pays() {
        let now = ms(100_000);
        let request = |written: u64| {
            let mut peer_reclaim = PeerReclaim::new();
            let at = |evicted, written| Standing {
                written,
                pool_oldest_ms: 90_000,
                ..standing(evicted, 99_000)
            };
            peer_reclaim.next_request(now - ms(1), &at(0, 0));
            peer_reclaim.next_request(now, &at(NEED, written)).unwrap()
        };
        assert_eq!(request(0).pool_before_ms, 100_000 - 30_000);
        assert_eq!(request(1).pool_before_ms, 100_000 - 15_000);
        assert_eq!(
            (request(0).before_ms, request(1).before_ms),
            (98_500, 98_500)
        );
    }
}
