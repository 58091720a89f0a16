//! When pages came into the pool. The engine reads no clock and knows only their order. Here it is noted now and then
//! how many clusters of pages had come, so that a place in that order can be dated.
//!
//! ```text
//! samples: (came, ms), both rising
//! a cluster that came as the n-th: at the first sample with came >= n, or later than all of them
//! ```
//! When there are too many, that one is forgotten whose neighbours are nearest to each other for their age.
//! So what came just now is dated to milliseconds, and what came long ago to a part of its age.

use arrayvec::ArrayVec;

/// Samples kept.
const SAMPLES: usize = 64;
/// Between two, in ms.
const EACH_MS: u32 = 10;

/// See the module. Times are milliseconds that may wrap.
pub struct AgeSamples {
    samples: ArrayVec<(u64, u32), SAMPLES>,
}

impl AgeSamples {
    /// Nothing has come yet.
    pub const fn new() -> Self {
        Self {
            samples: ArrayVec::new_const(),
        }
    }

    /// `came` clusters have come by now.
    pub fn record(&mut self, came: u64, now_ms: u32) {
        if let Some(&(before, since)) = self.samples.last()
            && (before == came || now_ms.wrapping_sub(since) < EACH_MS)
        {
            return;
        }
        if self.samples.is_full() {
            let age = |(_, ms): &(u64, u32)| u64::from(now_ms.wrapping_sub(*ms)).max(1);
            // In thousandths of the age of the younger.
            let apart = |at: &usize| {
                let (before, after) = (age(&self.samples[at - 1]), age(&self.samples[at + 1]));
                before.saturating_sub(after) * 1000 / after
            };
            let nearest = (1..SAMPLES - 1).min_by_key(apart);
            nearest.map(|at| self.samples.remove(at));
        }
        self.samples.push((came, now_ms));
    }

    /// Both columns rise, the times as a clock that may wrap.
    pub fn check(&self) {
        let rises = |pair: &[(u64, u32)]| {
            pair[0].0 < pair[1].0 && (pair[1].1.wrapping_sub(pair[0].1) as i32) > 0
        };
        assert!(self.samples.windows(2).all(rises), "{:?}", self.samples);
    }

    /// When the `n`-th came, at the latest.
    pub fn date_of(&self, n: u64, now_ms: u32) -> u32 {
        let at = self.samples.partition_point(|&(came, _)| came < n);
        self.samples.get(at).map_or(now_ms, |&(_, ms)| ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a clock that wraps, at rates that change by a factor of a hundred, for a day.
    #[test]
    fn dates_are_within_a_part_of_the_age_and_never_too_early() {
        let mut samples = AgeSamples::new();
        let start = u32::MAX - 5000;
        let mut came: Vec<u32> = Vec::new();
        let end = 86_400_000u32;
        for ms in (0..end).step_by(10) {
            let rate = if ms / 30_000 % 2 == 0 { 10 } else { 1000 };
            if ms % rate == 0 {
                came.push(ms);
            }
            samples.record(came.len() as u64, start.wrapping_add(ms));
            if ms % 1000 == 0 {
                samples.check();
            }
        }
        let now = start.wrapping_add(end);
        for (n, &ms) in (1..).zip(&came) {
            let date = samples.date_of(n, now).wrapping_sub(start);
            let age = end - ms;
            assert!(
                ms <= date && date - ms <= age / 2 + 1000,
                "{n}: {ms} {date}"
            );
        }
        assert_eq!(samples.date_of(came.len() as u64 + 1, now), now);
    }
}
