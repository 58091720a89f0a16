//! The seam of the codecs. They are C libraries behind unsafe bindings, so the engine sees
//! only this trait; the embedder passes the real ones, tests a plain one.
//!
//! A coder is owned by one caller at a time and keeps its tables between pages, so that
//! neither call allocates.

use crate::PageBytes;

/// How the bytes of a stored page are to be read. The numbers are written to devices, but for the
/// last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Codec {
    /// The page as it was.
    Raw = 0,
    /// LZ4 block format.
    Lz4 = 1,
    /// Zstandard frame without checksum.
    Zstd = 2,
    /// Such a frame of the pages of a block.
    Block = 3,
}

impl Codec {
    /// The codec that is written to devices as `number`, if there is one.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Raw),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// The bytes are not what any compressor of this codec writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the compressed bytes are damaged")]
pub struct Damaged;

/// Makes coders; one is made for each processor, and more if threads crowd on one.
pub trait Codecs: Send + Sync {
    /// A coder with tables of its own.
    fn coder(&self) -> Box<dyn Coder>;
    /// Bytes one coder holds.
    fn coder_bytes(&self) -> usize;
    /// Bytes that all coders have in common.
    fn shared_bytes(&self) -> usize {
        0
    }
    /// One step of what they do for later pages, where no page waits; whether there was any.
    fn work(&self) -> bool {
        false
    }
}

/// Compresses and decompresses pages, one by one with [`Codec::Lz4`] and [`Codec::Zstd`].
pub trait Coder: Send {
    /// Compresses `page` into `out`, which has room for two pages, so that LZ4 need not watch its end.
    /// Returns the length, or none where it gave up: Zstandard does so at the end of `out`.
    fn compress(&mut self, codec: Codec, page: &PageBytes, out: &mut [u8]) -> Option<usize>;
    /// Decompresses exactly one page. `data` is what `compress` wrote, followed by zero bytes that belong
    /// to nothing.
    fn decompress(
        &mut self,
        codec: Codec,
        data: &[u8],
        page: &mut PageBytes,
    ) -> Result<(), Damaged>;
    /// Compresses 2 to [`crate::BLOCK_PAGES`] pages into one frame of Zstandard; its length, or none if `out`
    /// has no room for it. A coder need not know this.
    fn compress_block(&mut self, _pages: &[PageBytes], _out: &mut [u8]) -> Option<usize> {
        None
    }
    /// Decompresses exactly as many pages as went in. `data` is what `compress_block` wrote, followed by
    /// zero bytes.
    fn decompress_block(&mut self, _data: &[u8], _pages: &mut [PageBytes]) -> Result<(), Damaged> {
        Err(Damaged)
    }
}
