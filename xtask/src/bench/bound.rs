//! The bound of the table's figures: ebb's time is at most so many times the other side's.
//!
//! Where nothing may be slower (a swap file on both sides), equal programs would miss every other time. So
//! the chance that the runs themselves show is granted: twice the standard error of the ratio. Chance alone
//! exceeds that in about one comparison of 20 of three runs a side. But never more than `MOST_NOISE`: where
//! runs differ so much that this is not enough, more of them are needed. A single run shows nothing of
//! chance, and is granted nothing.

use super::side::{Kernel, Side};
use super::{median, rounded};
use ebb_harness::workloads::Workload;

/// The most that is granted for chance.
const MOST_NOISE: f64 = 0.05;

/// Of the whole run's time. The seconds are those of each side's runs.
pub fn whole(side: Side, workload: Workload, other: &[f64], ebb: &[f64]) -> f64 {
    match side {
        Side::Plain if workload == Workload::Processes => 1.25,
        Side::Plain => 1.05,
        Side::Kernel(Kernel::Zram) => 1.2,
        Side::Kernel(Kernel::Zswap | Kernel::File) => rounded(1.0 + noise(other, ebb)),
    }
}

/// Of a phase's time.
pub fn phase(side: Side, workload: Workload, phase: &str) -> Option<f64> {
    match (side, workload, phase) {
        (Side::Kernel(Kernel::Zram), Workload::Touch, "seq1" | "seq2") => Some(0.5),
        (Side::Kernel(Kernel::Zram), Workload::Touch, "fill" | "rand") => Some(1.2),
        _ => None,
    }
}

/// Twice the standard error of the ratio of the medians, within bounds.
fn noise(other: &[f64], ebb: &[f64]) -> f64 {
    match (standard_error(other), standard_error(ebb)) {
        (Some(other), Some(ebb)) => (2.0 * other.hypot(ebb)).min(MOST_NOISE),
        _ => 0.0,
    }
}

/// Of the median, as a share of it; none for less than two runs.
fn standard_error(seconds: &[f64]) -> Option<f64> {
    let runs = seconds.len() as f64;
    if runs < 2.0 {
        return None;
    }
    let mean = seconds.iter().sum::<f64>() / runs;
    let squares: f64 = seconds.iter().map(|s| (s - mean).powi(2)).sum();
    let of_mean = squares / (runs - 1.0) / runs;
    // A median's variance is half pi times a mean's, where what is measured is normally distributed.
    let of_median = of_mean * std::f64::consts::FRAC_PI_2;
    Some(of_median.sqrt() / median(seconds.iter().copied())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZRAM: Side = Side::Kernel(Kernel::Zram);
    const ZSWAP: Side = Side::Kernel(Kernel::Zswap);

    #[test]
    fn as_promised() {
        let one = [1.0];
        assert_eq!(whole(Side::Plain, Workload::Touch, &one, &one), 1.05);
        assert_eq!(whole(ZRAM, Workload::Touch, &one, &one), 1.2);
        assert_eq!(whole(Side::Plain, Workload::Processes, &one, &one), 1.25);
        for kernel in [Kernel::Zswap, Kernel::File] {
            assert_eq!(
                whole(Side::Kernel(kernel), Workload::Touch, &one, &one),
                1.0
            );
        }
        let of_touch = |name| phase(ZRAM, Workload::Touch, name);
        assert_eq!(
            ["fill", "seq1", "seq2", "rand"].map(of_touch),
            [Some(1.2), Some(0.5), Some(0.5), Some(1.2)]
        );
        assert_eq!(phase(ZRAM, Workload::TouchThreads, "rand"), None);
        assert_eq!(phase(ZSWAP, Workload::Touch, "rand"), None);
    }

    #[test]
    fn chance_is_granted_as_much_as_the_runs_show_of_it() {
        let of = |other: &[f64], ebb: &[f64]| whole(ZSWAP, Workload::Touch, other, ebb);
        assert_eq!(of(&[2.0, 2.0, 2.0], &[9.0, 9.0, 9.0]), 1.0);
        // 1% either way: a standard error of 0.72% on each side, 1.02% of the ratio.
        assert_eq!(of(&[0.99, 1.0, 1.01], &[1.98, 2.0, 2.02]), 1.02);
        // More runs that differ as much leave less to chance.
        let few = noise(&[0.99, 1.01], &[0.99, 1.01]);
        let many = noise(&[0.99, 1.01].repeat(8), &[0.99, 1.01].repeat(8));
        assert!(many < few / 2.0, "{many} {few}");
        assert_eq!(of(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]), 1.05);
        // Of one side nothing is known.
        assert_eq!(of(&[1.0, 2.0, 3.0], &[1.0]), 1.0);
        assert_eq!(of(&[], &[]), 1.0);
    }
}
