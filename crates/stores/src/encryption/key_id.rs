//! The number of a key, as rings and slots name it.

use std::num::NonZeroU16;

/// The number of a key in its ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyId(NonZeroU16);

impl KeyId {
    /// None is 0. The last number means "each slot its own" to [`crate::SlotKeys`].
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number)
            .filter(|n| n.get() < u16::MAX)
            .map(Self)
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0.get()
    }

    /// Its position in the ring.
    pub fn index(self) -> usize {
        usize::from(self.get() - 1)
    }
}
