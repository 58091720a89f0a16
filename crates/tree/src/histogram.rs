//! Latency histograms in shared memory.
//!
//! Log-linear buckets, as in HdrHistogram: each power of two is cut into [`STEPS`] equal parts, so a value
//! is known to 1/16. Recording is two relaxed additions and, when it is a new maximum, a third; any thread
//! of any process may record. A reader sees each bucket alone, not a snapshot. A histogram is 5 KiB, of
//! which untouched pages cost nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets in each power of two.
const STEPS: u64 = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Values from 2^40 ns (18 minutes) on share the last bucket.
const TOP_BIT: u32 = 40;
const BUCKETS: usize = ((TOP_BIT - STEP_BITS + 1) as u64 * STEPS) as usize;

/// Bounds of the coarse histogram that people and programs are shown: about 1 us, and its powers of two up to about
/// 8 s. Each is the end of a bucket, so that the counts are exact.
pub const BOUNDS_NS: [u64; 24] = {
    let mut bounds = [0; 24];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = (1024 << at) - 1;
        at += 1;
    }
    bounds
};

/// Counts of durations, in nanoseconds. `repr(C)`, all zeros is an empty one.
#[repr(C)]
pub struct Histogram {
    max: AtomicU64,
    sum: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            max: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

/// The bucket of a value.
const fn bucket(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let top = ns.ilog2();
    if top >= TOP_BIT {
        return BUCKETS - 1;
    }
    let shift = top - STEP_BITS;
    // The leading bit makes (ns >> shift) lie in STEPS..2*STEPS.
    (shift as u64 * STEPS + (ns >> shift)) as usize
}

/// The largest value of a bucket.
const fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    (((bucket % STEPS + STEPS) + 1) << shift) - 1
}

const _: () = assert!(bucket(STEPS) == STEPS as usize);
const _: () = assert!(bucket((1 << TOP_BIT) - 1) == BUCKETS - 1);
const _: () = assert!(upper(BUCKETS - 1) == (1 << TOP_BIT) - 1);

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Relaxed);
        self.sum.fetch_add(ns, Relaxed);
        if ns > self.max.load(Relaxed) {
            self.max.fetch_max(ns, Relaxed);
        }
    }

    /// Adds every count of `other` to this one.
    pub fn absorb(&self, other: &Histogram) {
        for (a, b) in self.buckets.iter().zip(&other.buckets) {
            let n = b.load(Relaxed);
            if n != 0 {
                a.fetch_add(n, Relaxed);
            }
        }
        self.max.fetch_max(other.max.load(Relaxed), Relaxed);
        self.sum.fetch_add(other.sum(), Relaxed);
    }

    /// How many durations were no longer than each of [`BOUNDS_NS`] and longer than the one before; last, those
    /// longer than all.
    pub fn counts(&self) -> [u64; BOUNDS_NS.len() + 1] {
        let mut counts = [0u64; BOUNDS_NS.len() + 1];
        for (at, bucket) in self.buckets.iter().enumerate() {
            let place = BOUNDS_NS.partition_point(|bound| *bound < upper(at));
            counts[place] = counts[place].saturating_add(bucket.load(Relaxed));
        }
        counts
    }

    /// The sum of all durations.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// Counts, percentiles and maximum as they are now.
    pub fn summary(&self) -> Summary {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let count = counts.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let max = self.max.load(Relaxed);
        // The value at rank ceil(permille/1000 · count), as the upper end of its bucket.
        let at = |permille: u64| {
            let rank = (count as u128 * permille as u128).div_ceil(1000) as u64;
            let mut seen = 0;
            counts
                .iter()
                .position(|&n| {
                    seen = n.saturating_add(seen);
                    seen >= rank.max(1)
                })
                .map_or(0, |bucket| upper(bucket).min(max))
        };
        Summary {
            counts: self.counts(),
            count,
            sum: self.sum(),
            p50: at(500),
            p99: at(990),
            p999: at(999),
            max,
        }
    }
}

/// A histogram in a few numbers; durations in nanoseconds, exact to 1/16 above, `max` exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The counts, as [`Histogram::counts`] has them.
    pub counts: [u64; BOUNDS_NS.len() + 1],
    /// Durations recorded.
    pub count: u64,
    /// The exact sum of the values.
    pub sum: u64,
    /// Half were no longer.
    pub p50: u64,
    /// 99% were no longer.
    pub p99: u64,
    /// 99.9% were no longer.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, on a sorted vector.
    fn percentile(sorted: &[u64], permille: usize) -> u64 {
        let rank = (sorted.len() * permille).div_ceil(1000).max(1);
        sorted[rank - 1]
    }

    #[test]
    fn buckets_tile_the_range() {
        for b in 0..BUCKETS {
            assert_eq!(bucket(upper(b)), b);
            if b + 1 < BUCKETS {
                assert_eq!(bucket(upper(b) + 1), b + 1);
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_empty_one_is_all_zero() {
        assert_eq!(Histogram::default().summary(), Summary::default());
    }

    proptest! {
        #[test]
        fn percentiles_agree_with_a_sorted_vector(
            // Durations of every magnitude.
            draws in proptest::collection::vec((0u32..40, any::<u64>()), 1..3000),
            split in 0usize..3000,
        ) {
            let mut values: Vec<u64> =
                draws.iter().map(|&(bits, x)| x & ((1u64 << bits) - 1)).collect();
            let (a, b) = (Histogram::default(), Histogram::default());
            for (i, &v) in values.iter().enumerate() {
                if i < split { a.record(v) } else { b.record(v) }
            }
            a.absorb(&b);
            values.sort_unstable();
            let got = a.summary();
            prop_assert_eq!(got.count, values.len() as u64);
            prop_assert_eq!(got.max, *values.last().unwrap());
            prop_assert_eq!(got.sum, values.iter().sum::<u64>());
            for (at, bound) in BOUNDS_NS.iter().enumerate() {
                let exact = values.iter().filter(|value| *value <= bound).count() as u64;
                prop_assert_eq!(got.counts[..=at].iter().sum::<u64>(), exact);
            }
            prop_assert_eq!(got.counts.iter().sum::<u64>(), got.count);
            for (got, permille) in [(got.p50, 500), (got.p99, 990), (got.p999, 999)] {
                let exact = percentile(&values, permille);
                prop_assert!(got >= exact && got <= exact + exact / STEPS,
                    "{permille}: {got} for {exact}");
            }
        }
    }
}
