//! A request for slots, as the searches pass it on.

use crate::types::EntryId;

/// A request for slots.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub pages: usize,
    pub order: u8,
    pub owner: EntryId,
}

impl Request {
    /// The first `pages` have their slots.
    pub fn advance(&mut self, pages: usize) {
        self.pages -= pages;
        self.owner = self.owner.plus(pages as u32);
    }
}
