//! Sets of pages of one unit, as bit masks.

use crate::map::page_map::{Mask, UNIT};

/// The positions in a unit that a mask names.
pub fn set_bits(mask: Mask) -> impl Iterator<Item = usize> {
    (0..UNIT).filter(move |i| mask & 1 << i != 0)
}

/// Splits a mask into runs of ones, (start, length).
pub fn runs(mask: Mask) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= 64 || mask >> at == 0 {
            return None;
        }
        let start = at + (mask >> at).trailing_zeros() as usize;
        let len = (!(mask >> start)).trailing_zeros() as usize;
        at = start + len;
        Some((start, len))
    })
}

/// `len` ones from `start` on.
pub const fn ones(start: usize, len: usize) -> Mask {
    if len >= 64 {
        !0
    } else {
        ((1 << len) - 1) << start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_split_masks() {
        assert_eq!(
            runs(0b1011_0110).collect::<Vec<_>>(),
            [(1, 2), (4, 2), (7, 1)]
        );
        assert_eq!(runs(!0).collect::<Vec<_>>(), [(0, 64)]);
    }
}
