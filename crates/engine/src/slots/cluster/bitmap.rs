//! One bit for each slot of a cluster, and the searches an allocator makes in them.
//!
//! Knows nothing of clusters' states or owners.

use crate::types::{CLUSTER_SLOTS, MAX_ORDER, ORDERS};

const BITS: usize = u64::BITS as usize;
const WORDS: usize = CLUSTER_SLOTS / BITS;

const _: () = assert!(WORDS * BITS == CLUSTER_SLOTS);

/// A set of positions 0..512 inside a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::slots) struct Bitmap([u64; WORDS]);

/// Bits at the multiples of 2^order, for orders that fit in a word.
const fn aligned(order: u8) -> u64 {
    let mut mask = 0;
    let mut at = 0;
    while at < BITS {
        mask |= 1 << at;
        at += 1 << order;
    }
    mask
}

const ALIGNED: [u64; 7] = [
    aligned(0),
    aligned(1),
    aligned(2),
    aligned(3),
    aligned(4),
    aligned(5),
    aligned(6),
];

impl Bitmap {
    pub const EMPTY: Self = Self([0; WORDS]);

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    pub fn get(&self, at: usize) -> bool {
        self.0[at / BITS] >> (at % BITS) & 1 == 1
    }

    pub fn set(&mut self, at: usize, to: bool) {
        let bit = 1 << (at % BITS);
        if to {
            self.0[at / BITS] |= bit;
        } else {
            self.0[at / BITS] &= !bit;
        }
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// How many positions before `at` are set.
    #[inline]
    pub fn rank(&self, at: usize) -> usize {
        let (word, bit) = (at / BITS, at % BITS);
        let before: u32 = self.0[..word].iter().map(|w| w.count_ones()).sum();
        (before + (self.0[word] & ((1 << bit) - 1)).count_ones()) as usize
    }

    /// The part of word `word` that lies in `start..start + len`.
    fn mask(word: usize, start: usize, len: usize) -> u64 {
        let low = (word * BITS).max(start);
        let high = ((word + 1) * BITS).min(start + len);
        if low >= high {
            return 0;
        }
        let width = high - low;
        let ones = if width == BITS {
            u64::MAX
        } else {
            (1 << width) - 1
        };
        ones << (low - word * BITS)
    }

    fn words(start: usize, len: usize) -> std::ops::Range<usize> {
        start / BITS..(start + len).div_ceil(BITS)
    }

    #[inline]
    pub fn set_range(&mut self, start: usize, len: usize, to: bool) {
        if len == 1 {
            return self.set(start, to);
        }
        for w in Self::words(start, len) {
            let mask = Self::mask(w, start, len);
            if to {
                self.0[w] |= mask;
            } else {
                self.0[w] &= !mask;
            }
        }
    }

    #[inline]
    pub fn range_is_set(&self, start: usize, len: usize) -> bool {
        Self::words(start, len).all(|w| !self.0[w] & Self::mask(w, start, len) == 0)
    }

    pub fn range_is_clear(&self, start: usize, len: usize) -> bool {
        Self::words(start, len).all(|w| self.0[w] & Self::mask(w, start, len) == 0)
    }

    /// The first window of `pages` clear positions that starts at a multiple of 2^order,
    /// looking from `from` on and then from the beginning. `pages` is at most 2^order.
    #[inline]
    pub fn window(&self, from: usize, order: u8, pages: usize) -> Option<usize> {
        debug_assert!(order <= MAX_ORDER && pages <= 1 << order && from < CLUSTER_SLOTS);
        let size = 1usize << order;
        if pages != size || size > BITS {
            let windows = CLUSTER_SLOTS / size;
            let first = from / size;
            return (0..windows)
                .map(|i| (first + i) % windows * size)
                .find(|&start| self.range_is_clear(start, pages));
        }
        let first = from / BITS;
        for i in 0..=WORDS {
            let w = (first + i) % WORDS;
            let mut free = !self.0[w];
            let mut shift = 1;
            while shift < size {
                free &= free >> shift;
                shift *= 2;
            }
            free &= ALIGNED[order as usize];
            if i == 0 {
                free &= u64::MAX << (from % BITS);
            }
            if free != 0 {
                return Some(w * BITS + free.trailing_zeros() as usize);
            }
        }
        None
    }

    /// The first of the longest runs of clear positions, of which no more than `enough`, at least 1,
    /// count: its start and its length. None if every position is set.
    pub fn longest_run(&self, enough: usize) -> Option<(usize, usize)> {
        // `runs[k]`: where 2^k clear positions begin.
        let mut runs = [Self::EMPTY; ORDERS];
        runs[0] = Self(self.0.map(|word| !word));
        if runs[0].is_empty() {
            return None;
        }
        let mut k = 0;
        while 2 << k <= enough {
            runs[k + 1] = runs[k].followed_by(&runs[k], 1 << k);
            if runs[k + 1].is_empty() {
                break;
            }
            k += 1;
        }
        let (mut longest, mut len) = (runs[k], 1 << k);
        for k in (0..k).rev() {
            let longer = longest.followed_by(&runs[k], len);
            if len + (1 << k) <= enough && !longer.is_empty() {
                (longest, len) = (longer, len + (1 << k));
            }
        }
        Some((longest.next(0, true)?, len))
    }

    /// The positions in `self` such that the one `by` further on is in `other`.
    fn followed_by(&self, other: &Self, by: usize) -> Self {
        let (words, bits) = (by / BITS, by % BITS);
        let word = |w: usize| other.0.get(w).copied().unwrap_or(0);
        Self(std::array::from_fn(|w| {
            let low = word(w + words) >> bits;
            // In two steps: by 64 at a time cannot be shifted.
            let high = word(w + words + 1) << 1 << (BITS - 1 - bits);
            self.0[w] & (low | high)
        }))
    }

    /// The first position from `from` on whose bit is `value`.
    pub fn next(&self, from: usize, value: bool) -> Option<usize> {
        if from >= CLUSTER_SLOTS {
            return None;
        }
        let flip = if value { 0 } else { u64::MAX };
        let mut w = from / BITS;
        let mut word = (self.0[w] ^ flip) & (u64::MAX << (from % BITS));
        while word == 0 {
            w += 1;
            if w == WORDS {
                return None;
            }
            word = self.0[w] ^ flip;
        }
        Some(w * BITS + word.trailing_zeros() as usize)
    }

    /// The positions set, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let found = self.next(at, true)?;
            at = found + 1;
            Some(found)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive_window(set: &[bool], from: usize, order: u8, pages: usize) -> Vec<usize> {
        let size = 1 << order;
        let fits = |s: &usize| set[*s..*s + pages].iter().all(|b| !b);
        let starts: Vec<_> = (0..CLUSTER_SLOTS).step_by(size).filter(fits).collect();
        // The search may begin at the window that holds `from` or at the next one.
        let floor = from / size * size;
        let after: Vec<_> = starts
            .iter()
            .copied()
            .filter(|s| *s >= floor)
            .take(2)
            .collect();
        if after.is_empty() {
            starts.into_iter().take(1).collect()
        } else {
            after
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_vector_of_bools(
            ranges in proptest::collection::vec((0usize..512, 1usize..200, any::<bool>()), 0..40),
            from in 0usize..512, pages in 1usize..=512,
        ) {
            let mut bits = Bitmap::EMPTY;
            let mut set = vec![false; CLUSTER_SLOTS];
            for (start, len, to) in ranges {
                let len = len.min(CLUSTER_SLOTS - start);
                bits.set_range(start, len, to);
                set[start..start + len].fill(to);
            }
            prop_assert_eq!(bits.count(), set.iter().filter(|b| **b).count());
            for (at, value) in set.iter().enumerate() {
                prop_assert_eq!(bits.get(at), *value);
                prop_assert_eq!(bits.rank(at), set[..at].iter().filter(|b| **b).count());
            }
            let len = pages.min(CLUSTER_SLOTS - from);
            prop_assert_eq!(bits.range_is_set(from, len), set[from..from + len].iter().all(|b| *b));
            prop_assert!(bits.iter().eq((0..CLUSTER_SLOTS).filter(|i| set[*i])));

            let order = pages.next_power_of_two().trailing_zeros() as u8;
            let expected = naive_window(&set, from, order, pages);
            match bits.window(from, order, pages) {
                None => prop_assert!(expected.is_empty()),
                Some(start) => {
                    prop_assert_eq!(start % (1 << order), 0);
                    prop_assert!(bits.range_is_clear(start, pages));
                    prop_assert!(!set[start..start + pages].contains(&true));
                    prop_assert!(!expected.is_empty());
                }
            }

            let runs: Vec<usize> = set.split(|b| *b).map(<[bool]>::len).filter(|n| *n > 0).collect();
            match bits.longest_run(pages) {
                None => prop_assert!(runs.is_empty()),
                Some((start, len)) => {
                    prop_assert!(bits.range_is_clear(start, len));
                    prop_assert_eq!(len, pages.min(*runs.iter().max().unwrap()));
                    prop_assert!(!(0..start).any(|at| at + len <= CLUSTER_SLOTS && bits.range_is_clear(at, len)));
                }
            }
        }
    }
}
