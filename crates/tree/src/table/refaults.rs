//! How long threads waited for pages that more memory would have kept, by how much more.
//!
//! A page that comes back has a rank: how many pages that are out left after it. With that many frames more it would
//! have been resident, and nobody would have waited for it (Mattson's stack distance, 1970). So the sum of the waits up
//! to a rank is what so many frames would have spared. Frames that the pool would have given up for them are left
//! out, and ranks are a guess that gets worse with distance.
//!
//! Each power of two of pages is cut in four. Waits for memory never touched before, and for pages still in memory, are
//! not among them: no memory spares those.

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
    pub fn sum(&self) -> u64 {
        let all = self.0.iter().map(|ns| ns.load(Relaxed));
        all.fold(0, u64::saturating_add)
    }

    /// Frames, and the waits that so many more would have spared; where that is something more than with fewer.
    pub fn spared(&self) -> Vec<(u64, u64)> {
        let mut sum = 0u64;
        let mut spared = Vec::new();
        for (at, ns) in self.0.iter().enumerate() {
            let ns = ns.load(Relaxed);
            sum = sum.saturating_add(ns);
            spared.extend(end(at).filter(|_| ns > 0).map(|frames| (frames, sum)));
        }
        spared
    }
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

    #[test]
    fn more_frames_spare_the_waits_for_pages_of_lower_rank() {
        let refaults = Refaults([const { AtomicU64::new(0) }; BUCKETS]);
        assert_eq!(refaults.spared(), []);
        refaults.add(3, 5);
        refaults.add(1000, 7);
        refaults.add(1023, 1);
        refaults.add(u64::MAX, 9);
        assert_eq!(refaults.spared(), [(64, 5), (1024, 13)]);
        assert_eq!(refaults.sum(), 22);
    }
}
