//! The real codecs behind the engine's seam.

use ebb_engine::PageBytes;
use ebb_engine::codec::{Codec, Coder, Codecs, Damaged};
use ebb_sys::codec::Lz4;

/// LZ4 and Zstandard from their C libraries.
pub struct Real;
