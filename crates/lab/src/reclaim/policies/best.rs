//! The least faults that a memory can have on a trace: the bound that policies are held against.
//!
//! The page that goes is the one whose next touch is the furthest away. So the future has to be known: this is
//! no policy that a system could have. Belady, "A study of replacement algorithms for a virtual-storage
//! computer", IBM Systems Journal 5(2), 1966; Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for
//! storage hierarchies", IBM Systems Journal 9(2), 1970, prove it.
//!
//! Pages come in at their touches alone: reading ahead is not in the bound.

use std::collections::BinaryHeap;

/// Next touch of a page that is not touched any more.
const NEVER: u32 = u32::MAX;

/// For each touch, the place in the trace of the next touch of its page.
fn next_touches(touches: &[u32], pages: usize) -> Vec<u32> {
    let mut later = vec![NEVER; pages];
    let mut next = vec![NEVER; touches.len()];
    for (at, page) in touches.iter().enumerate().rev() {
        let place = u32::try_from(at).expect("traces have less than 2^32 touches");
        next[at] = std::mem::replace(&mut later[*page as usize], place);
    }
    next
}

/// Belady's: faults where the future is known, first touches included. The pages are numbered below `pages`, and
/// memory has `capacity` of them, one or more.
#[must_use]
pub fn best(touches: &[u32], pages: usize, capacity: usize) -> usize {
    assert!(capacity > 0, "a page that is touched is in memory");
    let next = next_touches(touches, pages);
    // An entry for each page in memory, with its next touch, and old ones whose touch has been. Old ones have
    // the smaller numbers, so the top is a page in memory.
    let mut furthest: BinaryHeap<(u32, u32)> = BinaryHeap::new();
    let mut in_memory = vec![false; pages];
    let (mut used, mut faults) = (0, 0);
    for (at, page) in touches.iter().enumerate() {
        if !std::mem::replace(&mut in_memory[*page as usize], true) {
            faults += 1;
            used += 1;
            if used > capacity {
                let (_, victim) = furthest.pop().expect("memory is full");
                in_memory[victim as usize] = false;
                used -= 1;
            }
        }
        furthest.push((next[at], *page));
        if furthest.len() > 4 * capacity {
            furthest.retain(|(next, _)| *next as usize > at);
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;

    /// The least faults of the touches, whichever pages go.
    fn by_trial(touches: &[u32], memory: &[u32], capacity: usize) -> usize {
        let Some((page, rest)) = touches.split_first() else {
            return 0;
        };
        if memory.contains(page) {
            return by_trial(rest, memory, capacity);
        }
        let with = |kept: &[u32]| by_trial(rest, &[kept, &[*page]].concat(), capacity);
        if memory.len() < capacity {
            return 1 + with(memory);
        }
        let left =
            (0..memory.len()).map(|gone| with(&[&memory[..gone], &memory[gone + 1..]].concat()));
        1 + left.min().unwrap()
    }

    #[test]
    fn no_other_choice_has_fewer_faults() {
        let mut random = Random::new(2);
        for round in 0..600 {
            let (pages, capacity) = (2 + round % 4, 1 + random.below(4));
            let touches: Vec<u32> = (0..11).map(|_| random.below(pages) as u32).collect();
            let least = by_trial(&touches, &[], capacity);
            assert_eq!(
                best(&touches, pages, capacity),
                least,
                "{touches:?} in {capacity}"
            );
        }
    }

    #[test]
    fn a_loop_loses_what_does_not_fit() {
        let touches: Vec<u32> = (0..40).flat_map(|_| 0..11).collect();
        // All 11 at first. Then 10 fit: one fault for every ten touches.
        assert_eq!(best(&touches, 11, 10), 11 + (40 * 11 - 11) / 10);
    }
}
