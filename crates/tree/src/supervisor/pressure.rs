//! The pressure stall figures of a tree: `some` is the time in which a process of it waited for a page, `full` the part
//! of it in which no process ran.
//!
//! Each process counts its own in its row. Which of its waits lay beside another's, nobody knows: a word that all of
//! them write at every fault would cost each fault a cache line of all processors. So the supervisor looks every
//! [`WINDOW`] at what each process had in it: its share `s` of time in which it waited, `f` in which it waited and did
//! not run, and `r` in which it ran. As if processes waited and ran at random beside each other:
//! ```text
//! some = 1 - product(1 - s)
//! full = product(1 - r) - product(1 - r - f)        but at most some, and 1 - sum(r) / processors
//! ```
//! Both are exact where one process waits in a window. The kernel, too, adds up the figures of its processors by
//! weights. A keeper writes its row 20 ms apart, or later: what exceeds a window counts in the next ones.
//!
//! Not here: the figures of one process (`fault/pressure.rs` of the pager).

use super::Supervisor;
use crate::table::{Mode, SlotNumber};
use ebb_sys::clock;
use std::collections::HashMap;
use std::time::Duration;

/// Five turns of a keeper.
const WINDOW: Duration = Duration::from_millis(100);
/// Waits that did not fit in their window are counted for so long: a keeper that slept tells of them late.
const LATEST_NS: u64 = 1_000_000_000;

/// What a process had so far or in a window, in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
struct Times {
    /// The time that one of its threads waited.
    some: u64,
    /// The part of it in which none of its threads ran.
    full: u64,
    /// The processor time of its threads.
    ran: u64,
}

impl Times {
    /// The way to `now`: of waits what fits in a window, and the rest is left for the next.
    fn advance(&mut self, now: Self, window: u64) -> Self {
        let waited = |from: &mut u64, to: u64| {
            let part = to.saturating_sub(*from).min(window);
            *from = (*from + part).clamp(to.saturating_sub(LATEST_NS), to);
            part
        };
        Self {
            some: waited(&mut self.some, now.some),
            full: waited(&mut self.full, now.full),
            ran: now
                .ran
                .saturating_sub(std::mem::replace(&mut self.ran, now.ran)),
        }
    }
}

/// The figures of a tree so far.
#[derive(Default)]
pub(super) struct TreePressure {
    /// Nanoseconds in which a process waited.
    pub some_ns: u64,
    /// Nanoseconds of them in which none ran.
    pub full_ns: u64,
    /// The time when the window began: `clock::monotonic_ns`.
    began: u64,
    /// The times that each process had by then.
    seen: HashMap<SlotNumber, Times>,
}

impl TreePressure {
    /// A window ends: `rows` says what each process had so far.
    fn turn(&mut self, now: u64, cpus: usize, rows: impl Iterator<Item = (SlotNumber, Times)>) {
        let window = now.saturating_sub(self.began);
        let times: Vec<Times> = rows
            .map(|(slot, times)| self.seen.entry(slot).or_default().advance(times, window))
            .collect();
        let (some, full) = overlap(window, cpus, &times);
        self.some_ns += some;
        self.full_ns += full;
        self.began = now;
    }
}

/// Some and full of processes that had these times in a window; see the module's text.
fn overlap(window: u64, cpus: usize, times: &[Times]) -> (u64, u64) {
    if times.iter().all(|times| times.some == 0) {
        return (0, 0);
    }
    let share = |ns: u64| ns as f64 / window as f64;
    let product = |of: &dyn Fn(&Times) -> f64| times.iter().map(of).product::<f64>();
    // Threads of a process that ran at the same time count once.
    let ran = |times: &Times| share(times.ran).min(1.0 - share(times.full));
    let some = 1.0 - product(&|times| 1.0 - share(times.some));
    let rest = product(&|times| 1.0 - ran(times) - share(times.full));
    let busy: f64 = times.iter().map(|times| share(times.ran)).sum::<f64>() / cpus as f64;
    let full = (product(&|times| 1.0 - ran(times)) - rest)
        .min(some)
        .min(1.0 - busy);
    let ns = |share: f64| (share.clamp(0.0, 1.0) * window as f64).round() as u64;
    (ns(some), ns(full))
}

impl Supervisor {
    /// Counts how long the tree waited, if it is time.
    pub(super) fn count_pressure(&mut self) {
        let now = clock::monotonic_ns();
        let due = self.pressure.began + WINDOW.as_nanos() as u64;
        if now < due || self.table.mode() != Mode::Paging {
            return;
        }
        let cpus = self.processors;
        let rows = SlotNumber::all()
            .filter(|slot| self.used[slot.index()])
            .map(|slot| {
                let counters = &self.table.slot(slot).counters.0;
                let member = self.members[slot.index()].as_ref();
                let ran = member.and_then(|member| clock::of_process(member.process.pid()));
                let times = Times {
                    some: counters.psi_some_ns.get(),
                    full: counters.psi_full_ns.get(),
                    ran: ran.map_or(0, |ran| ran.as_nanos() as u64),
                };
                (slot, times)
            });
        self.pressure.turn(now, cpus, rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn ms(some: u64, full: u64, ran: u64) -> Times {
        Times {
            some: some * MS,
            full: full * MS,
            ran: ran * MS,
        }
    }

    #[test]
    fn one_process_that_waits_is_exact() {
        let overlap = |times: &[Times]| {
            let (some, full) = overlap(100 * MS, 2, times);
            (some / MS, full / MS)
        };
        assert_eq!(overlap(&[ms(30, 20, 70)]), (30, 20));
        assert_eq!(overlap(&[ms(30, 30, 70), ms(0, 0, 0)]), (30, 30));
        assert_eq!(overlap(&[ms(100, 100, 0)]), (100, 100), "nothing but waits");
        assert_eq!(
            overlap(&[ms(30, 30, 0), ms(0, 0, 100)]),
            (30, 0),
            "another ran all the time"
        );
        assert_eq!(overlap(&[ms(0, 0, 100)]), (0, 0));
        assert_eq!(overlap(&[]), (0, 0));
    }

    #[test]
    fn a_processor_that_is_busy_all_the_time_leaves_no_full() {
        let times = [ms(50, 50, 50), ms(50, 50, 50)];
        assert_eq!(overlap(100 * MS, 1, &times), (75 * MS, 0));
        assert_eq!(overlap(100 * MS, 2, &times), (75 * MS, 25 * MS));
    }

    #[test]
    fn what_exceeds_a_window_counts_later_but_not_for_ever() {
        let mut tree = TreePressure::default();
        let mut at = |now: u64, some: u64| {
            let row = ms(some, some, 0);
            tree.turn(now * MS, 2, std::iter::once((SlotNumber(3), row)));
            tree.some_ns / MS
        };
        assert_eq!(at(100, 120), 100);
        assert_eq!(at(200, 180), 180);
        assert_eq!(at(300, 180), 180);
        // A keeper that slept for 300 ms.
        assert_eq!(at(400, 480), 280);
        assert_eq!(at(500, 480), 380);
        assert_eq!(at(600, 480), 480);
        assert_eq!(at(700, 480), 480);
        // Any word may stand there.
        at(800, u64::MAX / MS);
        let told = (900..)
            .step_by(100)
            .take(100)
            .map(|now| at(now, u64::MAX / MS))
            .last();
        assert!(told < Some(480 + 1200), "{told:?}");
    }

    /// What a process does in a millisecond.
    fn state() -> impl Strategy<Value = [u32; 3]> {
        (0u32..60, 0u32..40).prop_map(|(wait, run)| [wait, run, 100 - wait - run])
    }

    proptest! {
        /// Against processes of one thread that wait and run at random, millisecond by millisecond.
        #[test]
        fn waits_at_random_are_told_as_they_overlap(
            processes in proptest::collection::vec(state(), 1..6), seed: u64,
        ) {
            const WINDOWS: u64 = 300;
            let mut random = proptest::test_runner::TestRng::from_seed(
                proptest::test_runner::RngAlgorithm::XorShift,
                &[seed.to_le_bytes(), (seed | 1).to_le_bytes()].concat(),
            );
            let mut rows = vec![Times::default(); processes.len()];
            let mut tree = TreePressure::default();
            let (mut some, mut full) = (0, 0);
            for window in 1..=WINDOWS {
                for _ in 0..100 {
                    let (mut waits, mut runs) = (false, false);
                    for (row, [wait, run, _]) in rows.iter_mut().zip(&processes) {
                        let chance = random.random_range(0..100u32);
                        if chance < *wait {
                            (row.some, row.full) = (row.some + MS, row.full + MS);
                            waits = true;
                        } else if chance < wait + run {
                            row.ran += MS;
                            runs = true;
                        }
                    }
                    some += u64::from(waits);
                    full += u64::from(waits && !runs);
                }
                let numbered = rows.iter().enumerate();
                let numbered = numbered.map(|(n, row)| (SlotNumber(n as u16), *row));
                tree.turn(window * 100 * MS, 16, numbered);
            }
            let near = |told: u64, true_ms: u64| told.abs_diff(true_ms * MS) < WINDOWS * 2 * MS;
            prop_assert!(near(tree.some_ns, some), "some {} of {some}", tree.some_ns / MS);
            prop_assert!(near(tree.full_ns, full), "full {} of {full}", tree.full_ns / MS);
            let most = rows.iter().map(|row| row.some).max().unwrap_or(0);
            let sum = rows.iter().map(|row| row.some).sum::<u64>();
            prop_assert!((most..=sum).contains(&tree.some_ns));
        }
    }
}
