//! How long threads waited for pages that more memory would have kept, by how much more.
//!
//! A page that comes back has a rank: how many pages that are out left after it. With that many frames more it would
//! have been resident, and nobody would have waited for it (Mattson's stack distance, 1970). So the sum of the waits up
//! to a rank is what so many frames would have spared. Frames that the pool would have given up for them are left
//! out, and ranks are a guess that gets worse with distance.
//!
//! Of several processes, each may have so many frames more, as far as it has use for them; the sums are the tree's.
//! Those that waited least, an eighth of all waits at most, get none. A page that relatives share counts for each, so
//! this may be more than is needed. Processes that had a slot after one another are one.
//!
//! Each power of two of pages is cut in four. Waits for memory never touched before, and for pages still in memory, are
//! not among them: no memory spares those.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const STEP_BITS: u32 = 2;
/// Ranks below 2^6 pages (256 KiB) are one, and so are those from 2^26 (256 GiB) on.
const LOWEST: u32 = 6;
const HIGHEST: u32 = 26;
const BUCKETS: usize = ((HIGHEST - LOWEST) << STEP_BITS) as usize + 2;

/// Nanoseconds of waits by rank. `repr(C)`, all zeros is none.
#[repr(C)]
pub(crate) struct Refaults([AtomicU64; BUCKETS]);

/// The bucket of a rank.
const fn bucket(rank: u64) -> usize {
    if rank < 1 << LOWEST {
        return 0;
    }
    let top = rank.ilog2();
    if top >= HIGHEST {
        return BUCKETS - 1;
    }
    let step = rank >> (top - STEP_BITS) & ((1 << STEP_BITS) - 1);
    1 + ((((top - LOWEST) << STEP_BITS) as u64) + step) as usize
}

/// The first rank above a bucket; none above the last.
const fn end(bucket: usize) -> Option<u64> {
    if bucket >= BUCKETS - 1 {
        return None;
    }
    let (top, step) = (
        (bucket >> STEP_BITS) as u32 + LOWEST,
        (bucket & ((1 << STEP_BITS) - 1)) as u64,
    );
    Some((1 << top) + (step << (top - STEP_BITS)))
}

impl Refaults {
    /// A thread waited so long for a page of this rank.
    pub fn add(&self, rank: u64, ns: u64) {
        self.0[bucket(rank)].fetch_add(ns, Relaxed);
    }

    /// All waits.
    fn sum(&self) -> u64 {
        let all = self.0.iter().map(|ns| ns.load(Relaxed));
        all.fold(0, u64::saturating_add)
    }

    /// Frames for all of them, and the waits that so many more would have spared; where that is something more than
    /// with fewer.
    pub fn spared<'a>(all: impl Iterator<Item = &'a Self>) -> Vec<(u64, u64)> {
        let mut each: Vec<(&Self, u64)> = most_of(all).into_iter().map(|one| (one, 0)).collect();
        let (mut frames, mut spared) = (0, 0u64);
        let mut points = Vec::new();
        for (at, end) in (0..BUCKETS).filter_map(|at| Some((at, end(at)?))) {
            let before = frames;
            for (one, got) in &mut each {
                let ns = one.0[at].load(Relaxed);
                if ns > 0 {
                    spared = spared.saturating_add(ns);
                    frames += end - std::mem::replace(got, end);
                }
            }
            points.extend((frames > before).then_some((frames, spared)));
        }
        points
    }
}

/// Those that waited longest: the others have an eighth of all waits at most.
fn most_of<'a>(all: impl Iterator<Item = &'a Refaults>) -> Vec<&'a Refaults> {
    let mut each: Vec<(u64, &Refaults)> = all.map(|one| (one.sum(), one)).collect();
    each.sort_by_key(|(waited, _)| Reverse(*waited));
    let add = |sum: u64, (waited, _): &(u64, _)| sum.saturating_add(*waited);
    let most = each.iter().fold(0, add) / 8 * 7;
    let mut before = 0u64;
    let longest = each.into_iter().take_while(|(waited, _)| {
        let is_one = before <= most && *waited > 0;
        before = before.saturating_add(*waited);
        is_one
    });
    longest.map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_ranks() {
        for at in 0..BUCKETS - 1 {
            let end = end(at).unwrap();
            assert_eq!((bucket(end - 1), bucket(end)), (at, at + 1), "{end}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(end(BUCKETS - 1), None);
    }

    fn spared(all: &[&Refaults]) -> Vec<(u64, u64)> {
        Refaults::spared(all.iter().copied())
    }

    fn none() -> Refaults {
        Refaults([const { AtomicU64::new(0) }; BUCKETS])
    }

    #[test]
    fn several_processes_get_what_each_has_use_for() {
        let (near, far, little) = (none(), none(), none());
        near.add(1000, 40);
        far.add(1000, 30);
        far.add(4000, 20);
        little.add(100_000, 5);
        assert_eq!(
            spared(&[&little, &far, &near]),
            [(2048, 70), (1024 + 4096, 90)]
        );
        assert_eq!(spared(&[&none(), &none()]), []);
        far.add(u64::MAX, 1000);
        let alone = [(1024, 30), (4096, 50)];
        assert_eq!(
            spared(&[&near, &far]),
            alone,
            "less than an eighth of the waits gets none"
        );
    }

    #[test]
    fn more_frames_spare_the_waits_for_pages_of_lower_rank() {
        let refaults = none();
        assert_eq!(spared(&[&refaults]), []);
        refaults.add(3, 5);
        refaults.add(1000, 7);
        refaults.add(1023, 1);
        refaults.add(u64::MAX, 9);
        assert_eq!(spared(&[&refaults]), [(64, 5), (1024, 13)]);
        assert_eq!(refaults.sum(), 22);
    }
}
