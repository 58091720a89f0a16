//! The real codecs behind the engine's seam.

use ebb_engine::PageBytes;
use ebb_engine::codec::{Codec, Codecs, Coder, Damaged};
use ebb_sys::codec::{Lz4, lz4_decompress};

/// LZ4 and Zstandard from their C libraries.
pub struct Real;

struct Tables {
    lz4: Lz4,
}

impl Codecs for Real {
    fn coder(&self) -> Box<dyn Coder> {
        Box::new(Tables { lz4: Lz4::new() })
    }
    fn coder_bytes(&self) -> usize {
        Lz4::BYTES
    }
}

impl Coder for Tables {
    fn compress(&mut self, codec: Codec, page: &PageBytes, out: &mut [u8]) -> Option<usize> {
        match codec {
            Codec::Lz4 => self.lz4.compress(page, out),
            _ => None,
        }
    }
    fn decompress(
        &mut self,
        codec: Codec,
        data: &[u8],
        page: &mut PageBytes,
    ) -> Result<(), Damaged> {
        match codec {
            Codec::Lz4 if lz4_decompress(data, page) => Ok(()),
            _ => Err(Damaged),
        }
    }
}
