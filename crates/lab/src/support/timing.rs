//! Measuring speed on a machine that does other things too: threads bound to processors, many short
//! rounds, and figures from those in which nobody was interrupted.

use ebb_sys::thread::allowed_cpus;
use ebb_sys::thread::switches;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// One round of all threads.
#[derive(Clone, Copy)]
pub struct Round {
    /// Operations per second, all threads together.
    pub per_s: f64,
    /// The same by the clock, where `per_s` is by the time on processors.
    pub clock_per_s: f64,
    /// Flag: the threads ran at the same time, and nothing else on their processors.
    pub undisturbed: bool,
}

/// Runs `work` on so many bound threads, and what each gave; they meet at the barrier.
fn bound<T: Send>(threads: usize, work: impl Fn(usize, &Barrier) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let one = |thread| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                bind(thread);
                work(thread, barrier)
            })
        };
        let running: Vec<_> = (0..threads).map(one).collect();
        let ended = running.into_iter().map(|t| t.join().expect("no panic"));
        ended.collect()
    })
}

/// Runs `work` on each of the bound threads at once; it says how many operations it did.
pub fn together(threads: usize, work: impl Fn(usize) -> usize + Sync) -> Round {
    let seen = bound(threads, |thread, barrier| {
        let forced = switches().forced;
        barrier.wait();
        let start = Instant::now();
        let done = work(thread);
        let end = Instant::now();
        let alone = switches().forced == forced;
        (done, start, end, alone)
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
    let per_s = done as f64 / all.as_secs_f64();
    Round {
        per_s,
        clock_per_s: per_s,
        undisturbed: both * 10 >= all * 9 && seen.iter().all(|s| s.3),
    }
}

/// As `together`, of more threads than there are processors: operations per second of their processor
/// time, as if they had all processors, so that other programs change nothing. Nor does a wait in which
/// processors are idle, as for a lock whose owner has lost its own: that is in the speed by the clock
/// alone.
pub fn crowded(threads: usize, work: impl Fn(usize) -> usize + Sync) -> Round {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let seen = bound(threads, |thread, barrier| {
        barrier.wait();
        let (begun, start) = (processor_time(), Instant::now());
        (work(thread), processor_time() - begun, start)
    });
    let (done, time, begun) = seen.into_iter().fold(
        (0, Duration::ZERO, Instant::now()),
        |(done, time, begun), one| (done + one.0, time + one.1, begun.min(one.2)),
    );
    Round {
        per_s: (processors.min(threads) * done) as f64 / time.as_secs_f64(),
        clock_per_s: done as f64 / begun.elapsed().as_secs_f64(),
        undisturbed: true,
    }
}

/// Nanoseconds that a cache line takes from one processor to another, back and forth between the first
/// two. Processors that share a cache take 30, others 170; virtual processors may be placed either way.
/// None if there is one processor alone.
pub fn line_transfer_ns() -> Option<f64> {
    const TRANSFERS: u32 = 128;
    const CHUNKS: u32 = 33;
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return None;
    }
    let turn = AtomicU32::new(0);
    let seen = bound(2, |thread, barrier| {
        barrier.wait();
        let chunk = |chunk: u32| {
            let start = Instant::now();
            let (from, to) = (chunk * TRANSFERS, (chunk + 1) * TRANSFERS);
            for mine in (from + thread as u32..to).step_by(2) {
                let mut spins = 0u32;
                while turn.load(Ordering::Acquire) != mine {
                    std::hint::spin_loop();
                    spins += 1;
                    // The other one may wait for this processor.
                    if spins.is_multiple_of(1 << 14) {
                        std::thread::yield_now();
                    }
                }
                turn.store(mine + 1, Ordering::Release);
            }
            start.elapsed().as_nanos() as f64 / f64::from(TRANSFERS)
        };
        (0..CHUNKS).map(chunk).collect::<Vec<_>>()
    });
    // In some, one of the two was without its processor.
    Some(middle(&seen[0]))
}

/// Processor time that this thread has had.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Operations of a thread, one chunk of work after the other.
#[derive(Default)]
struct Chunks {
    /// The times when each began and ended, and what it did, of those in which the thread kept its processor.
    whole: Vec<(Instant, Instant, usize)>,
    /// The time when the thread may have been without.
    gaps: Vec<(Instant, Instant)>,
    /// Operations in all, and their time.
    all: (usize, Duration),
}

impl Chunks {
    /// A thread that waited for a lock may have waited for its processor too, which takes far longer
    /// than all else.
    fn take_out_the_slow(&mut self) {
        let time = |chunk: &(Instant, Instant, usize)| chunk.1 - chunk.0;
        let mut times: Vec<_> = self.whole.iter().map(time).collect();
        times.sort_unstable();
        let Some(usual) = times.get(times.len() / 2).copied() else {
            return;
        };
        let (whole, slow) = std::mem::take(&mut self.whole)
            .into_iter()
            .partition(|chunk| time(chunk) <= 10 * usual);
        self.whole = whole;
        let slow: Vec<_> = slow;
        self.gaps
            .extend(slow.iter().map(|chunk| (chunk.0, chunk.1)));
    }
}

/// As `together`, in many short chunks of work: what counts are those chunks in which all threads
/// had their processors all the time. So on a machine that other programs fill, the moments count in
/// which it was ours.
pub fn side_by_side(
    threads: usize,
    duration: Duration,
    chunk: impl Fn(usize) -> usize + Sync,
) -> Round {
    let seen = bound(threads, |thread, barrier| {
        let mut chunks = Chunks::default();
        barrier.wait();
        let begun = Instant::now();
        let (mut forced, mut before) = (switches().forced, begun);
        while before - begun < duration {
            let start = Instant::now();
            let done = chunk(thread);
            let end = Instant::now();
            let after = switches().forced;
            chunks.all.0 += done;
            if std::mem::replace(&mut forced, after) == after {
                chunks.whole.push((start, end, done));
            } else {
                chunks.gaps.push((before, Instant::now()));
            }
            before = end;
        }
        chunks.all.1 = before - begun;
        chunks.take_out_the_slow();
        // Before and after there is no telling.
        chunks.gaps.push((begun - FAR, begun));
        chunks.gaps.push((before, before + FAR));
        chunks
    });
    let mut round = Round {
        per_s: 0.0,
        clock_per_s: 0.0,
        undisturbed: true,
    };
    for mine in &seen {
        let gaps = || seen.iter().flat_map(|other| &other.gaps);
        let all_ran = |(start, end, _): &&(Instant, Instant, usize)| {
            !gaps().any(|(from, to)| from < end && start < to)
        };
        let (mut time, mut done, mut counted) = (Duration::ZERO, 0, 0);
        for (start, end, some) in mine.whole.iter().filter(all_ran) {
            time += *end - *start;
            done += some;
            counted += 1;
        }
        if counted < ENOUGH {
            round.undisturbed = false;
            (done, time) = mine.all;
        }
        round.per_s += done as f64 / time.as_secs_f64();
    }
    round.clock_per_s = round.per_s;
    round
}

/// Longer than any round.
const FAR: Duration = Duration::from_secs(3600);

/// The median speed of the rounds that nothing disturbed; of all if those are too few.
pub fn speed(rounds: &[Round]) -> f64 {
    median(rounds.iter().map(|r| (r.per_s, r.undisturbed)))
}

/// How fast some rounds were beside others that took turns with them.
#[derive(Clone, Copy)]
pub struct Ratio {
    /// The median of the pairs in which neither was disturbed; of all if those are too few.
    pub of_speed: f64,
    /// The same by the clock.
    pub by_clock: f64,
    /// The number of pairs that nothing disturbed.
    pub pairs: usize,
}

/// The outcome of rounds relative to the others, each against the one in turn with it.
pub fn ratio(rounds: &[Round], others: &[Round]) -> Ratio {
    let pairs = || rounds.iter().zip(others);
    let good = |(a, b): &(&Round, &Round)| a.undisturbed && b.undisturbed;
    Ratio {
        of_speed: median(pairs().map(|p| (p.0.per_s / p.1.per_s, good(&p)))),
        by_clock: median(pairs().map(|p| (p.0.clock_per_s / p.1.clock_per_s, good(&p)))),
        pairs: pairs().filter(good).count(),
    }
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

/// Between which bounds the median lies of what these values are samples of: at 99.8%, whatever
/// their distribution, by their order (Conover, "Practical Nonparametric Statistics", 3.2).
pub fn median_between(values: &[f64]) -> (f64, f64) {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    // The expected number below the median, with its square root as deviation.
    let (half, deviation) = (
        values.len() as f64 / 2.0,
        (values.len() as f64).sqrt() / 2.0,
    );
    let rank = |at: f64| (at.max(0.0) as usize).min(values.len() - 1);
    let low = rank(half - 3.09 * deviation - 1.0);
    let high = rank(half + 3.09 * deviation);
    (values[low], values[high])
}

/// Binds the calling thread to one of the processors it may use, each number to its own as long as
/// there are some.
fn bind(thread: usize) {
    let allowed = allowed_cpus();
    // Where it is refused, the scheduler decides.
    let _ = ebb_sys::thread::bind(allowed[thread % allowed.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;

    /// Of a thousand samples the bounds leave out the true median twice, as a rule.
    #[test]
    fn the_bounds_of_a_median_hold_it() {
        let mut random = Random::new(1);
        let mut missed = 0;
        for _ in 0..1000 {
            // The median is 0.5² of what is skewed.
            let mut one = || (random.below(1 << 20) as f64 / f64::from(1 << 20)).powi(2);
            let values: Vec<f64> = (0..401).map(|_| one()).collect();
            let (low, high) = median_between(&values);
            assert!(low < high && high - low < 0.3, "{low} to {high}");
            missed += usize::from(!(low..=high).contains(&0.25));
        }
        assert!(missed <= 8, "missed {missed} times");
        assert_eq!(median_between(&[3.0]), (3.0, 3.0));
    }
}
