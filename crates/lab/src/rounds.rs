//! Measuring speed on a machine that does other things too: threads bound to processors, many short
//! rounds, and figures from those in which nobody was interrupted.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;
use std::time::Instant;

/// One round of all threads.
#[derive(Clone, Copy)]
pub struct Round {
    /// Operations per second, all threads together.
    pub per_s: f64,
    /// They ran at the same time, and nothing else on their processors.
    pub undisturbed: bool,
}

/// Runs `work` on each of the bound threads at once; it says how many operations it did.
pub fn together(threads: usize, work: impl Fn(usize) -> usize + Sync) -> Round {
    let barrier = Barrier::new(threads);
    let seen: Vec<_> = std::thread::scope(|scope| {
        let one = |thread| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                bind(thread);
                let switches = interruptions();
                barrier.wait();
                let start = Instant::now();
                let done = work(thread);
                let end = Instant::now();
                let alone = switches.is_some() && interruptions() == switches;
                (done, start, end, alone)
            })
        };
        let running: Vec<_> = (0..threads).map(one).collect();
        let ended = running.into_iter().map(|t| t.join().expect("no panic"));
        ended.collect()
    });
    let done: usize = seen.iter().map(|s| s.0).sum();
    let starts = seen.iter().map(|s| s.1);
    let ends = seen.iter().map(|s| s.2);
    let (Some(first), Some(last)) = (starts.clone().min(), ends.clone().max()) else {
        panic!("no threads");
    };
    let all = last - first;
    let both = match (starts.max(), ends.min()) {
        (Some(start), Some(end)) => end.saturating_duration_since(start),
        _ => all,
    };
    Round {
        per_s: done as f64 / all.as_secs_f64(),
        undisturbed: both * 10 >= all * 9 && seen.iter().all(|s| s.3),
    }
}

/// The median speed of the rounds that nothing disturbed; of all if those are too few.
pub fn speed(rounds: &[Round]) -> f64 {
    median(rounds.iter().map(|r| (r.per_s, r.undisturbed)))
}

/// The median ratio of rounds in turn, by the same rule.
pub fn ratio(rounds: &[Round], others: &[Round]) -> f64 {
    let pairs = rounds.iter().zip(others);
    median(pairs.map(|(a, b)| (a.per_s / b.per_s, a.undisturbed && b.undisturbed)))
}

/// How many rounds nothing disturbed.
pub fn undisturbed(rounds: &[Round]) -> usize {
    rounds.iter().filter(|r| r.undisturbed).count()
}

/// Fewer say nothing.
const ENOUGH: usize = 5;

fn median(values: impl Iterator<Item = (f64, bool)> + Clone) -> f64 {
    let good = values.clone().filter(|v| v.1).count() >= ENOUGH;
    let chosen = values.filter(|v| v.1 || !good);
    let mut chosen: Vec<f64> = chosen.map(|v| v.0).collect();
    chosen.sort_unstable_by(f64::total_cmp);
    chosen[chosen.len() / 2]
}

/// The median of some values.
pub fn middle(values: &[f64]) -> f64 {
    median(values.iter().map(|v| (*v, true)))
}

/// Binds the calling thread to one of the processors it may use, each number to its own as long as
/// there are some.
fn bind(thread: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let processors: Vec<_> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    if let Some(&processor) = processors.get(thread % processors.len().max(1)) {
        let mut own = CpuSet::new();
        own.set(processor);
        // Where it is refused, the scheduler decides.
        let _ = sched_setaffinity(None, &own);
    }
}

/// How often the calling thread lost its processor to another; none if that cannot be known.
fn interruptions() -> Option<u64> {
    interruptions_in(&std::fs::read_to_string("/proc/thread-self/status").ok()?)
}

fn interruptions_in(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_not_taken_for_quiet() {
        let status = "Threads:\t1\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(interruptions_in(status), Some(3));
        for status in ["", "nonvoluntary_ctxt_switches:\n", "Threads:\t1\n"] {
            assert_eq!(interruptions_in(status), None);
        }
    }
}
