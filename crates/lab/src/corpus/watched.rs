//! The codecs of the pool, and how much of what they are given to decompress is padding: the zeros at
//! its end. The codecs themselves end with other bytes, but for LZ4 where a page does so with zeros that
//! it found nowhere before: those count as padding, too.

use ebb_engine::PageBytes;
use ebb_engine::codec::{Codec, Codecs, Coder, Damaged};
use ebb_stores::codec::PageCodecs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct Watched {
    codecs: PageCodecs,
    padding: Arc<AtomicU64>,
}

impl Watched {
    pub fn new(codecs: PageCodecs) -> Self {
        Self {
            codecs,
            padding: Arc::default(),
        }
    }

    /// Bytes of padding in what was decompressed since somebody last looked.
    pub fn take_padding(&self) -> u64 {
        self.padding.swap(0, Relaxed)
    }
}

impl Codecs for Watched {
    fn coder(&self) -> Box<dyn Coder> {
        Box::new(WatchedCoder {
            coder: self.codecs.coder(),
            padding: self.padding.clone(),
        })
    }
    fn coder_bytes(&self) -> usize {
        self.codecs.coder_bytes()
    }
    fn shared_bytes(&self) -> usize {
        self.codecs.shared_bytes()
    }
    fn work(&self) -> bool {
        self.codecs.work()
    }
}

struct WatchedCoder {
    coder: Box<dyn Coder>,
    padding: Arc<AtomicU64>,
}

impl WatchedCoder {
    fn watch(&self, data: &[u8]) {
        let zeros = data.iter().rev().take_while(|&&byte| byte == 0).count();
        self.padding.fetch_add(zeros as u64, Relaxed);
    }
}

impl Coder for WatchedCoder {
    fn compress(&mut self, codec: Codec, page: &PageBytes, out: &mut [u8]) -> Option<usize> {
        self.coder.compress(codec, page, out)
    }
    fn decompress(
        &mut self,
        codec: Codec,
        data: &[u8],
        page: &mut PageBytes,
    ) -> Result<(), Damaged> {
        self.watch(data);
        self.coder.decompress(codec, data, page)
    }
    fn compress_block(&mut self, pages: &[PageBytes], out: &mut [u8]) -> Option<usize> {
        self.coder.compress_block(pages, out)
    }
    fn decompress_block(&mut self, data: &[u8], pages: &mut [PageBytes]) -> Result<(), Damaged> {
        self.watch(data);
        self.coder.decompress_block(data, pages)
    }
}
