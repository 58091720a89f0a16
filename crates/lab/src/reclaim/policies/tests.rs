//! Tests that hold for each policy, and for the bound.

use super::{KNOWN, Policy, best};
use ebb_engine::random::Random;

/// Faults that a policy has on the touches; it is checked after each.
pub(super) fn faults(policy: &mut dyn Policy, touches: &[u32]) -> usize {
    let mut touch = |page: &&u32| {
        let is_fault = policy.touch(**page);
        policy.check();
        is_fault
    };
    touches.iter().filter(|page| touch(page)).count()
}

/// Touches of pages below `pages`, in runs: scans, loops over a few pages, and single touches of pages of which
/// some are drawn more often than others.
pub(super) fn random_touches(seed: u64, pages: usize, count: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut touches = Vec::new();
    while touches.len() < count {
        let start = random.below(pages);
        let length = 1 + random.below(pages);
        match random.below(3) {
            0 => touches.extend((start..start + length).map(|page| page % pages)),
            1 => touches
                .extend((0..2 * length).map(|step| (start + step % (1 + length / 3)) % pages)),
            _ => touches.extend((0..length).map(|_| {
                let limit = 1 + random.below(pages);
                random.below(limit)
            })),
        }
    }
    touches.truncate(count);
    touches.into_iter().map(|page| page as u32).collect()
}

#[test]
fn policies_keep_to_their_memory_and_are_no_better_than_the_best() {
    for (seed, capacity) in [1, 2, 3, 4, 7, 10, 20, 39].into_iter().enumerate() {
        let touches = random_touches(seed as u64, 40, 3000);
        let least = best(&touches, 40, capacity);
        for known in KNOWN {
            let found = faults(&mut *(known.new)(40, capacity), &touches);
            assert!(
                found >= least,
                "{}: {found} and {least} in {capacity}",
                known.name
            );
            assert!(found <= touches.len());
        }
    }
}

#[test]
fn what_fits_has_first_touches_as_faults_alone() {
    let touches = random_touches(9, 30, 3000);
    assert_eq!(best(&touches, 30, 30), 30);
    for known in KNOWN {
        let found = faults(&mut *(known.new)(30, 30), &touches);
        assert_eq!(found, 30, "{}", known.name);
    }
}

#[test]
fn a_page_just_touched_is_in_memory() {
    for capacity in [1, 2, 5] {
        for known in KNOWN {
            let mut policy = (known.new)(20, capacity);
            for page in random_touches(10, 20, 1000) {
                policy.touch(page);
                assert!(!policy.touch(page), "{} in {capacity}", known.name);
            }
        }
    }
}

#[test]
fn policies_that_see_no_touches_need_only_faults() {
    let touches = random_touches(11, 40, 3000);
    for known in KNOWN.iter().filter(|known| !known.sees_touches) {
        let mut policy = (known.new)(40, 10);
        let faulting: Vec<u32> = touches
            .iter()
            .copied()
            .filter(|page| policy.touch(*page))
            .collect();
        assert!(faulting.len() < touches.len());
        let found = faults(&mut *(known.new)(40, 10), &faulting);
        assert_eq!(found, faulting.len(), "{}", known.name);
    }
}

#[test]
fn a_loop_of_one_page_too_many_faults_always_or_seldom() {
    let all: Vec<u32> = (0..201).collect();
    let touches = all.repeat(20);
    for known in KNOWN {
        let mut policy = (known.new)(201, 200);
        let found = touches.iter().filter(|page| policy.touch(**page)).count();
        match known.name {
            "lru" => assert_eq!(found, touches.len()),
            "LIRS" => assert!(found < 201 + touches.len() / 50, "{found}"),
            "LIRS, 1/10" => assert!(found < 201 + touches.len() / 9, "{found}"),
            _ => {}
        }
    }
}
