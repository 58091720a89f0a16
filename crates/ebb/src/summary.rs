//! The last lines of `ebb run`: memory that the programs had, where it was kept, and how long they waited.

use crate::cli::{RunArgs, Switch};
use crate::figures::time;
use ebb_engine::PAGE_SIZE;
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
    let budget = human(stats.budget_bytes);
    let in_memory = match stats.past_budget_bytes {
        None => format!("{} of {budget} at most", human(stats.peak_bytes)),
        Some(past) => format!(
            "{} at most, of a budget of at most {} and {budget} at the end",
            human(stats.peak_bytes),
            human(past.max(stats.budget_bytes))
        ),
    };
    if !stats.paged {
        return vec![format!("{in_memory}; nothing was paged")];
    }
    let had = human(stats.peak_had_bytes);
    let mut lines = vec![format!(
        "the programs had {had}, in {in_memory}; {}",
        kept(stats)
    )];
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

/// Where pages were kept that had left, and how many times smaller the pool made them.
fn kept(stats: &StatsShown) -> String {
    let bytes = |pages| stats.counter(pages) as f64 * PAGE_SIZE as f64;
    let mut text = format!("{} in the pool at most", human(stats.peak_pool_bytes));
    if stats.counter("zswpout_bytes") > 0 {
        let ratio = bytes("zswpout") / stats.counter("zswpout_bytes") as f64;
        text += &format!(", compressed {ratio:.1} times");
    }
    if stats.counter("pswpout") > 0 {
        text += &format!("; {} written to devices", human(bytes("pswpout") as u64));
    }
    text
}

/// The one step that would help most, if the figures tell.
fn advice(stats: &StatsShown, waited: u64) -> Option<String> {
    // Less than a second is no matter.
    if waited < SECOND {
        return None;
    }
    if stats.counter("reject_full") > 0 {
        return Some("devices were full: another --swap would have given room".into());
    }
    more_memory(stats, waited)
}

/// The budget that would have spared most of the waits, by the pages that came back: see `ebb_tree`'s table of refaults.
/// None if none would, up to four times this one, or if the budget changed: nobody knows under which they waited.
fn more_memory(stats: &StatsShown, waited: u64) -> Option<String> {
    if stats.past_budget_bytes.is_some() {
        return None;
    }
    let most = waited / 4 * 3;
    let more = stats.more.iter().find(|more| more.spared_ns >= most)?;
    if more.bytes > 3 * stats.budget_bytes {
        return None;
    }
    // Rounded up, to what people write.
    let step = (stats.budget_bytes.next_power_of_two() / 64).max(1 << 20);
    let budget = (stats.budget_bytes + more.bytes).next_multiple_of(step);
    let left = waited.saturating_sub(more.spared_ns);
    let seconds = |ns: u64| match ns {
        0..SECOND => "less than 1 s".to_owned(),
        _ => format!("about {} s", (ns + SECOND / 2) / SECOND),
    };
    Some(format!(
        "with --memory {}M they would have waited {} instead of {}",
        budget >> 20,
        seconds(left),
        time(waited)
    ))
}

const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_tree::MoreShown;

    fn advised(waited: u64, more: &[(u64, u64)]) -> Option<String> {
        let more = more.iter().map(|&(mib, seconds)| MoreShown {
            bytes: mib << 20,
            spared_ns: seconds * SECOND,
        });
        let stats = StatsShown {
            budget_bytes: 512 << 20,
            more: more.collect(),
            ..StatsShown::default()
        };
        advice(&stats, waited * SECOND)
    }

    #[test]
    fn the_least_budget_that_spares_most_of_the_waits_is_advised() {
        let said = advised(31, &[(100, 8), (390, 27), (900, 30)]);
        let wanted = "with --memory 904M they would have waited about 4 s instead of 31.00 s";
        assert_eq!(said.as_deref(), Some(wanted));
        let said = advised(4, &[(100, 4)]).unwrap();
        assert!(
            said.contains("--memory 616M") && said.contains("less than 1 s"),
            "{said}"
        );
    }

    #[test]
    fn no_more_than_the_largest_budget_was_in_use() {
        let stats = StatsShown {
            budget_bytes: 20 << 20,
            past_budget_bytes: Some(200 << 20),
            peak_bytes: 107 << 20,
            paged: true,
            more: vec![MoreShown {
                bytes: 10 << 20,
                spared_ns: 9 * SECOND,
            }],
            ..StatsShown::default()
        };
        let said = &lines(&stats)[0];
        assert!(
            said.contains("in 107M at most, of a budget of at most 200M and 20M at the end"),
            "{said}"
        );
        assert_eq!(advice(&stats, 10 * SECOND), None);
    }

    #[test]
    fn where_the_figures_tell_nothing_nothing_is_said() {
        assert_eq!(advised(31, &[]), None);
        assert_eq!(
            advised(31, &[(100, 8), (390, 20)]),
            None,
            "most would have been waited for all the same"
        );
        assert_eq!(advised(31, &[(2000, 30)]), None, "far more than it has");
        assert_eq!(advised(0, &[(1, 1)]), None);
    }
}
