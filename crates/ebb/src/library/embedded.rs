//! The copy of the preload library inside `ebb`, if `build.rs` has put one there.

use anyhow::{Context, Result};

/// The copy.
pub struct Embedded {
    packed: &'static [u8],
    bytes: usize,
    /// Hash of the content (xxh3, 128 bits, in hex).
    pub hash: &'static str,
}

#[cfg(embedded)]
const COPY: Option<Embedded> = Some(Embedded {
    packed: include_bytes!(concat!(env!("OUT_DIR"), "/library.deflate")),
    bytes: number(env!("EBB_LIBRARY_BYTES")),
    hash: env!("EBB_LIBRARY_HASH"),
});

#[cfg(not(embedded))]
const COPY: Option<Embedded> = None;

/// The copy, if there is one.
pub fn embedded() -> Option<Embedded> {
    COPY
}

impl Embedded {
    /// The library's content.
    ///
    /// # Errors
    /// `ebb` is damaged.
    pub fn content(&self) -> Result<Vec<u8>> {
        miniz_oxide::inflate::decompress_to_vec_with_limit(self.packed, self.bytes)
            .ok()
            .filter(|content| content.len() == self.bytes)
            .context("the library inside ebb is damaged: install ebb again")
    }
}

#[cfg(embedded)]
const fn number(text: &str) -> usize {
    let (digits, mut value, mut i) = (text.as_bytes(), 0, 0);
    while i < digits.len() {
        value = value * 10 + (digits[i] - b'0') as usize;
        i += 1;
    }
    value
}
