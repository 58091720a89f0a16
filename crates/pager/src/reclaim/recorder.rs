//! A record of touches: the pages of the program in the order in which they came into memory. `ebb lab reclaim` makes
//! one in a small budget, and asks of each policy how many faults it would have had.
//!
//! A touch of a page that is there leaves no sign. So a process that records brings one page a fault, and evicts pages
//! in the order in which they came. A page in use is then touched anew once in each resident set's worth of evictions:
//! the smaller the budget is, the less is hidden.
//!
//! The file has a number for each touch, 8 bytes in the machine's order: the page's address / 4096. The last ones,
//! fewer than [`AT_ONCE`], are missing: nobody writes them when the process ends. Forked children do not record.

use crate::map::mask::set_bits;
use crate::map::page_map::{Mask, UnitNumber};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Touches that are written at a time.
const AT_ONCE: usize = 512;

/// An open record.
pub struct Recorder {
    file: File,
    touches: Vec<u8>,
}

impl Recorder {
    /// In a file of `directory` that is named by the process.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin(directory: &Path, process: u32) -> Result<Self, String> {
        let path = directory.join(process.to_string());
        let file = File::create(&path);
        let file = file.map_err(|e| format!("cannot record touches: {}: {e}", path.display()))?;
        Ok(Self {
            file,
            touches: Vec::with_capacity(AT_ONCE * size_of::<u64>()),
        })
    }

    /// Pages of a unit are touched. A record that cannot be written is short.
    pub fn touched(&mut self, unit: UnitNumber, pages: Mask) {
        for i in set_bits(pages) {
            let number = unit.first().plus(i).0 as u64;
            self.touches.extend(number.to_ne_bytes());
            if self.touches.len() == self.touches.capacity() {
                let _ = self.file.write_all(&self.touches);
                self.touches.clear();
            }
        }
    }
}
