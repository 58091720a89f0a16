//! The size of an object: that of the smallest class which holds it, where that class has objects
//! enough, else that of a larger one.
//!
//! The last page of the window that a class fills is half empty, in the mean. Where a pool is small, or
//! objects of some size are few, that weighs more than what a fine step saves. So the objects of a class
//! are at first made as large as those of a *host*, up to an eighth larger than need be. Only when this
//! waste comes to [`ENOUGH`] does the class get windows of its own. It never wastes much more than with
//! its own windows from the start, and the many classes with hardly any objects waste much less. Hosts
//! are of few sizes, so they soon have enough.
//!
//! Each shard counts for itself, as each fills windows of its own. A class that has lost all of its
//! objects begins anew, and so do all when a fork freezes the windows that they had.
//!
//! Advice only: any class takes objects of its size whenever they come. Nothing here is locked, and
//! where processors of one shard meet a count may be lost.

use super::class::{Class, MAX_BLOCK, MAX_COMPRESSED, STEP};
use crate::BLOCK_PAGES;
use crate::Cpu;
use crate::codec::Codec;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Bytes that a class's objects may waste as larger ones before it gets windows of its own.
const ENOUGH: u16 = 1024;
/// The least step from one host to the next.
const HOST_STEP: usize = 2 * STEP;
/// A host is at most so much larger than what it is host to, as a share of it: one part in so many, but
/// for the smallest.
const HOST_SHARE: usize = 8;

/// The longest that there are of a page, and of blocks of each number of pages, are hosts.
const _: () = {
    assert!(MAX_COMPRESSED.is_multiple_of(host_step(MAX_COMPRESSED)));
    let mut pages = 2;
    while pages <= BLOCK_PAGES {
        let longest = MAX_BLOCK / BLOCK_PAGES * pages;
        assert!(longest.is_multiple_of(host_step(longest)));
        pages += 1;
    }
};

/// The step between hosts of about this size, a power of two.
const fn host_step(size: usize) -> usize {
    let most = size / HOST_SHARE;
    if most < HOST_STEP {
        HOST_STEP
    } else {
        1 << most.ilog2()
    }
}

/// See the module.
pub struct Sizes {
    /// Bytes that the objects of each shard and class wasted as larger ones, up to [`ENOUGH`] or a little more.
    wasted: Box<[Box<[AtomicU16]>]>,
}

impl Sizes {
    /// Of a pool that has so many shards and classes.
    pub fn new(shards: usize, classes: usize) -> Self {
        let of_shard = |_| (0..classes).map(|_| AtomicU16::new(0)).collect();
        Self {
            wasted: (0..shards).map(of_shard).collect(),
        }
    }

    /// How many bytes an object is to have of which `codec` wrote `len`.
    pub fn fitting(&self, cpu: Cpu, codec: Codec, len: usize) -> usize {
        let wasted = &self.wasted[cpu.index() % self.wasted.len()];
        let of = |size: usize| &wasted[Class::fitting(codec, size).index()];
        let step = Class::step(codec);
        let size = len.max(1).next_multiple_of(step);
        let so_far = of(size).load(Relaxed);
        let host = size.next_multiple_of(host_step(size));
        if so_far >= ENOUGH || size == host {
            return size;
        }
        let has_enough = |size: &usize| of(*size).load(Relaxed) >= ENOUGH;
        let between = (size + step..host).step_by(step).find(has_enough);
        let given = between.unwrap_or(host);
        of(size).store(so_far + (given - size) as u16, Relaxed);
        given
    }

    /// This class has no objects any more.
    pub fn forget(&self, class: Class) {
        for wasted in &self.wasted {
            wasted[class.index()].store(0, Relaxed);
        }
    }

    /// No class has windows that it fills.
    pub fn forget_all(&self) {
        for wasted in self.wasted.iter().flatten() {
            wasted.store(0, Relaxed);
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.wasted
            .iter()
            .map(|wasted| size_of_val(&**wasted))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::class::{BLOCK_STEP, CLASSES};
    use super::*;

    const A: Cpu = Cpu(0);

    /// However objects come, they fit, waste an eighth at most beside the step, and all of a class
    /// together no more than [`ENOUGH`] and what one wastes.
    #[test]
    fn a_class_wastes_little_before_it_has_windows_of_its_own() {
        let sizes = Sizes::new(1, CLASSES);
        let longest = [
            (Codec::Lz4, MAX_COMPRESSED),
            (Codec::Zstd, MAX_COMPRESSED),
            (Codec::Block, MAX_BLOCK),
        ];
        for (codec, longest) in longest {
            let mut wasted = vec![0; longest + 1];
            for len in (0..400_000).map(|i| i * 7919 % longest + 1) {
                let size = sizes.fitting(A, codec, len);
                let own = len.next_multiple_of(Class::step(codec));
                assert!((own..=longest).contains(&size) && size.is_multiple_of(Class::step(codec)));
                assert!(
                    size - own < HOST_STEP.max(own / HOST_SHARE),
                    "{len} bytes in {size}"
                );
                wasted[own] += size - own;
            }
            let most = usize::from(ENOUGH) + longest / HOST_SHARE;
            assert!(wasted.iter().all(|&wasted| wasted <= most));
        }
    }

    #[test]
    fn few_objects_share_their_hosts() {
        let sizes = Sizes::new(2, CLASSES);
        let lens = || (2049..=4096usize).step_by(BLOCK_STEP);
        let given = |lens: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
            let mut given: Vec<usize> = lens
                .map(|len| sizes.fitting(A, Codec::Block, len))
                .collect();
            given.dedup();
            given
        };
        assert_eq!(
            given(&mut lens()),
            [2304, 2560, 2816, 3072, 3328, 3584, 3840, 4096]
        );
        // One that has enough is host to those just below it.
        while sizes.fitting(A, Codec::Block, 2200) > 2240 {}
        assert_eq!(given(&mut lens())[..3], [2240, 2304, 2560]);
        assert_eq!(
            sizes.fitting(Cpu(1), Codec::Block, 2200),
            2304,
            "for each shard"
        );
        sizes.forget(Class::fitting(Codec::Block, 2200));
        assert_eq!(sizes.fitting(A, Codec::Block, 2200), 2304);
    }
}
