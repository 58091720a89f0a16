//! Page-aligned memory for transfers whose own memory the device cannot reach.

use ebb_engine::PAGE_SIZE;

/// A buffer that starts at a page boundary. Zeroed memory costs nothing until it is used.
pub struct Bounce {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    /// Flag: it was used since it was last looked at.
    used: bool,
    /// Flag: it was used since its memory was last given back.
    touched: bool,
}

impl Bounce {
    /// `pages` pages.
    pub fn new(pages: usize) -> Self {
        let len = pages * PAGE_SIZE;
        let bytes = vec![0; len + PAGE_SIZE];
        let start = bytes.as_ptr().align_offset(PAGE_SIZE);
        Self {
            bytes,
            start,
            len,
            used: false,
            touched: false,
        }
    }

    /// The aligned bytes.
    pub fn get(&mut self) -> &mut [u8] {
        (self.used, self.touched) = (true, true);
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Gives its memory back to the system, if it was not used since the last call. Whether it was not.
    pub fn free_idle(&mut self) -> bool {
        let idle = !std::mem::take(&mut self.used);
        if idle && std::mem::take(&mut self.touched) {
            ebb_sys::memory::give_back(&mut self.bytes[self.start..self.start + self.len]);
        }
        idle
    }
}

/// One page on the stack, for when no buffer is at hand.
#[repr(C, align(4096))]
pub struct StackPage(pub [u8; PAGE_SIZE]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_as_long_as_asked() {
        for pages in [1, 3, 64] {
            let mut bounce = Bounce::new(pages);
            assert_eq!(bounce.get().len(), pages * PAGE_SIZE);
            assert_eq!(bounce.get().as_ptr().addr() % PAGE_SIZE, 0);
        }
        assert_eq!(align_of::<StackPage>(), PAGE_SIZE);
    }
}
