//! Size classes: which there are, and how many objects fill how many pages of a window.

use super::layout::{CHUNK, OBJECTS, WINDOW};
use crate::BLOCK_PAGES;
use crate::PAGE_SIZE;
use crate::codec::Codec;

/// Sizes are multiples of this. A finer step wastes less behind each object and more in
/// half-empty windows of more classes.
pub const STEP: usize = 32;
/// The largest compressed size worth keeping compressed: above, a page saves too little to
/// pay for decompressing it.
pub const MAX_COMPRESSED: usize = 3840;
/// The same of blocks, whose sizes are multiples of this, as they are larger.
pub const BLOCK_STEP: usize = 64;
/// The largest block: three quarters of its pages.
pub const MAX_BLOCK: usize = BLOCK_PAGES * PAGE_SIZE / 4 * 3;
/// The largest object.
pub const MAX_OBJECT: usize = MAX_BLOCK;

const SIZES: usize = MAX_COMPRESSED / STEP;
const BLOCK_SIZES: usize = MAX_BLOCK / BLOCK_STEP;
/// Classes: each size for each codec, whole pages, and blocks.
pub const CLASSES: usize = 2 * SIZES + 1 + BLOCK_SIZES;
/// The class of pages kept as they are.
const RAW_CLASS: usize = 2 * SIZES;
/// Classes where there are no blocks.
pub const PAGE_CLASSES: usize = RAW_CLASS + 1;

/// A size class, with its codec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class(pub(super) u16);

impl Class {
    /// The smallest for `len` bytes of `codec`.
    pub fn fitting(codec: Codec, len: usize) -> Self {
        let size = len.max(1).div_ceil(Self::step(codec)) - 1;
        let class = match codec {
            Codec::Raw => RAW_CLASS,
            Codec::Lz4 => size,
            Codec::Zstd => SIZES + size,
            Codec::Block => RAW_CLASS + 1 + size,
        };
        Self(class as u16)
    }

    /// The step of the sizes of a codec's classes.
    pub const fn step(codec: Codec) -> usize {
        match codec {
            Codec::Raw => PAGE_SIZE,
            Codec::Lz4 | Codec::Zstd => STEP,
            Codec::Block => BLOCK_STEP,
        }
    }

    /// As an array position.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a class's windows are cut.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of an object.
    pub size: u32,
    /// Objects of a window: at most 256, so that a byte names one.
    pub objects: u16,
    /// The way in which the objects' bytes are to be read.
    pub codec: Codec,
}

impl Shape {
    /// Where an object begins.
    pub const fn start(&self, object: u8) -> usize {
        object as usize * self.size as usize
    }

    /// Pages that hold the first `objects` objects.
    pub const fn pages(&self, objects: usize) -> usize {
        (objects * self.size as usize).div_ceil(PAGE_SIZE)
    }

    /// As many objects as a window has room for, in whole chunks of its table where they are no larger
    /// than pages. At most half a page of 130 KiB is wasted behind the last, and mostly nothing.
    const fn of(size: usize, codec: Codec) -> Self {
        let fit = WINDOW / size;
        let fit = if fit < CHUNK {
            fit
        } else {
            fit / CHUNK * CHUNK
        };
        Self {
            size: size as u32,
            objects: if fit < OBJECTS { fit } else { OBJECTS } as u16,
            codec,
        }
    }
}

/// The table of shapes.
pub struct Classes([Shape; CLASSES]);

impl Classes {
    pub fn new() -> Self {
        let of = |class: usize| match class {
            c if c < SIZES => Shape::of((c + 1) * STEP, Codec::Lz4),
            c if c < RAW_CLASS => Shape::of((c - SIZES + 1) * STEP, Codec::Zstd),
            RAW_CLASS => Shape::of(PAGE_SIZE, Codec::Raw),
            c => Shape::of((c - RAW_CLASS) * BLOCK_STEP, Codec::Block),
        };
        Self(std::array::from_fn(of))
    }

    pub fn get(&self, class: Class) -> &Shape {
        &self.0[class.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAX_BYTES;
    use super::*;
    use crate::entries::Handle;

    #[test]
    fn objects_fit_and_waste_little() {
        let classes = Classes::new();
        for shape in &classes.0 {
            assert!(shape.start(0) + shape.objects as usize * shape.size as usize <= WINDOW);
            let held = shape.pages(shape.objects as usize) * PAGE_SIZE;
            let data = shape.objects as usize * shape.size as usize;
            let waste = (held - data) as f64 / held as f64;
            assert!(waste < 0.016, "size {} wastes {waste:.3}", shape.size);
        }
    }

    /// Windows are as many as a handle can name. Where they are small, as many objects.
    #[test]
    fn every_class_reaches_the_largest_limit() {
        for shape in &Classes::new().0 {
            let pages = shape.pages(shape.objects as usize) as u64;
            let held = u64::from(Handle::MAX_WINDOWS) * pages * PAGE_SIZE as u64;
            assert!(
                held >= MAX_BYTES || shape.objects == 1 << Handle::OBJECT_BITS,
                "size {}: {held} bytes",
                shape.size
            );
        }
    }

    #[test]
    fn fitting_is_the_smallest_that_holds() {
        let classes = Classes::new();
        for (codec, most) in [
            (Codec::Lz4, MAX_COMPRESSED),
            (Codec::Zstd, MAX_COMPRESSED),
            (Codec::Raw, PAGE_SIZE),
            (Codec::Block, MAX_BLOCK),
        ] {
            let step = Class::step(codec);
            for len in 1..=most {
                let shape = classes.get(Class::fitting(codec, len));
                assert_eq!(shape.codec, codec);
                assert!(shape.size as usize >= len && shape.size as usize - len < step);
            }
        }
    }
}
