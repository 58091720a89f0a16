//! The last lines of `ebb run`: memory that the programs had, where it was kept, and how long they waited.

use crate::cli::{RunArgs, Switch};
use crate::figures::time;
use ebb_stores::human;
use ebb_tree::StatsShown;
use std::io::{IsTerminal, stderr};

/// Whether there is something to say, and somebody to read it.
pub fn wanted(args: &RunArgs, stats: &StatsShown) -> bool {
    match args.summary {
        Some(Switch::On) => true,
        Some(Switch::Off) => false,
        None => stats.paged && stderr().is_terminal(),
    }
}

/// One to three lines.
pub fn lines(stats: &StatsShown) -> Vec<String> {
    let mut lines = vec![format!(
        "{} of {} at most; {}",
        human(stats.peak_bytes),
        human(stats.budget_bytes),
        match stats.paged {
            true => format!("{} in the pool at most", human(stats.peak_pool_bytes)),
            false => "nothing was paged".into(),
        }
    )];
    if !stats.paged {
        return lines;
    }
    let (pool, device) = (stats.faults("pool"), stats.faults("device"));
    let waited = stats.waited_ns();
    lines.push(format!(
        "{} faults from the pool, {} from devices; threads waited {} in all",
        pool.count,
        device.count,
        time(waited)
    ));
    lines.extend(advice(stats, waited));
    lines
}

/// The one step that would help most, if there is one.
fn advice(stats: &StatsShown, waited: u64) -> Option<String> {
    // Less than a second is no matter.
    if waited < 1_000_000_000 {
        return None;
    }
    let device = stats.faults("device").sum_ns;
    Some(if stats.counter("reject_full") > 0 {
        "devices were full: another --swap would have given room".into()
    } else if device > waited / 2 && stats.peak_pool_bytes < stats.budget_bytes / 4 {
        "most of it for devices: --pool zstd holds more in RAM".into()
    } else {
        format!(
            "a larger --memory than {} would have waited less",
            human(stats.budget_bytes)
        )
    })
}
