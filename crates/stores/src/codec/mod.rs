//! The real codecs behind the engine's seam: LZ4 and Zstandard.

mod dictionary;

use dictionary::Dictionary;
use ebb_engine::PageBytes;
use ebb_engine::codec::{Codec, Codecs, Coder, Damaged};
use ebb_sys::lz4::{Lz4, lz4_decompress};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use zstd_safe::{CCtx, CParameter, DCtx, FrameFormat, ResetDirective};

/// Makes coders of LZ4 and of Zstandard at one level.
pub struct PageCodecs {
    zstd_level: i32,
    shared: Arc<Shared>,
}

/// The parts that the coders have in common.
struct Shared {
    dictionary: Option<Dictionary>,
    /// Bytes of the contexts that were made.
    contexts: AtomicUsize,
}

impl PageCodecs {
    /// `zstd_level`: one of [`ebb_engine::swap::ZSTD_LEVELS`].
    pub fn new(zstd_level: i32) -> Self {
        Self::with(zstd_level, None)
    }

    /// The same, with a dictionary that is trained on the first pages it compresses.
    pub fn with_dictionary(zstd_level: i32) -> Self {
        Self::with(zstd_level, Some(Dictionary::new(zstd_level)))
    }

    fn with(zstd_level: i32, dictionary: Option<Dictionary>) -> Self {
        Self {
            zstd_level,
            shared: Arc::new(Shared {
                dictionary,
                contexts: AtomicUsize::new(0),
            }),
        }
    }
}

impl Default for PageCodecs {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Codecs for PageCodecs {
    fn coder(&self) -> Box<dyn Coder> {
        Box::new(PageCoder {
            lz4: Lz4::new(),
            zstd: None,
            with_dictionary: false,
            unzstd: None,
            level: self.zstd_level,
            counted: 0,
            shared: self.shared.clone(),
        })
    }
    fn shared_bytes(&self) -> usize {
        let dictionary = self.shared.dictionary.as_ref();
        self.shared.contexts.load(Relaxed) + dictionary.map_or(0, Dictionary::memory)
    }
    fn work(&self) -> bool {
        self.shared
            .dictionary
            .as_ref()
            .is_some_and(Dictionary::work)
    }
    fn coder_bytes(&self) -> usize {
        Lz4::BYTES
    }
}

struct PageCoder {
    lz4: Lz4,
    // Made on first use: they are large, and most processes use LZ4 alone.
    zstd: Option<CCtx<'static>>,
    /// Flag: `zstd` refers to the dictionary already.
    with_dictionary: bool,
    unzstd: Option<DCtx<'static>>,
    level: i32,
    /// Our part of `shared.contexts`.
    counted: usize,
    shared: Arc<Shared>,
}

impl PageCoder {
    /// Contexts grow when they are first used.
    fn count(&mut self) {
        let now = self.zstd.as_ref().map_or(0, CCtx::sizeof)
            + self.unzstd.as_ref().map_or(0, DCtx::sizeof);
        if now != self.counted {
            self.shared.contexts.fetch_add(now, Relaxed);
            self.shared.contexts.fetch_sub(self.counted, Relaxed);
            self.counted = now;
        }
    }
}

/// In the two bytes before a frame of Zstandard: its length, and whether it refers to the
/// dictionary.
const DICTIONARY: u16 = 1 << 15;

impl PageCoder {
    /// A frame of Zstandard, behind its length, which is shorter than the magic number it replaces:
    /// whoever reads it knows only about where it ends.
    fn zstd(&mut self, bytes: &[u8], dictionary: bool, out: &mut [u8]) -> Option<usize> {
        let zstd = match &mut self.zstd {
            Some(zstd) => zstd,
            none => {
                let mut zstd = CCtx::create();
                for parameter in [
                    CParameter::CompressionLevel(self.level),
                    CParameter::ContentSizeFlag(false),
                    CParameter::ChecksumFlag(false),
                    CParameter::DictIdFlag(false),
                    CParameter::Format(FrameFormat::Magicless),
                ] {
                    zstd.set_parameter(parameter).ok()?;
                }
                self.with_dictionary = false;
                none.insert(zstd)
            }
        };
        let trained = self.shared.dictionary.as_ref().filter(|_| dictionary);
        let trained = trained.and_then(Dictionary::get);
        match trained {
            Some(trained) if !self.with_dictionary => {
                zstd.ref_cdict(&trained.compress).ok()?;
            }
            None if self.with_dictionary => {
                zstd.disable_dictionary().ok()?;
            }
            _ => {}
        }
        self.with_dictionary = trained.is_some();
        let (head, body) = out.split_first_chunk_mut::<2>()?;
        let Ok(len) = zstd.compress2(body, bytes) else {
            // It would stay in the midst of this frame, and take no other dictionary.
            let _ = zstd.reset(ResetDirective::SessionOnly);
            return None;
        };
        let mark = if self.with_dictionary { DICTIONARY } else { 0 };
        let short = u16::try_from(len)
            .ok()
            .filter(|len| len & DICTIONARY == 0)?;
        *head = (short | mark).to_le_bytes();
        self.count();
        Some(2 + len)
    }

    /// Decompresses a frame of `zstd`, made from `bytes.len()` bytes.
    fn unzstd(&mut self, data: &[u8], bytes: &mut [u8]) -> Result<(), Damaged> {
        let unzstd = match &mut self.unzstd {
            Some(unzstd) => unzstd,
            none => {
                let mut unzstd = DCtx::create();
                unzstd
                    .set_parameter(zstd_safe::DParameter::Format(FrameFormat::Magicless))
                    .map_err(|_| Damaged)?;
                none.insert(unzstd)
            }
        };
        let (head, body) = data.split_first_chunk::<2>().ok_or(Damaged)?;
        let head = u16::from_le_bytes(*head);
        // Sets a pointer, no more; a page of before the dictionary must not see it.
        if head & DICTIONARY == 0 {
            unzstd.disable_dictionary().map_err(|_| Damaged)?;
        } else {
            let dictionary = self.shared.dictionary.as_ref().ok_or(Damaged)?;
            let trained = dictionary.get().ok_or(Damaged)?;
            unzstd.ref_ddict(&trained.decompress).map_err(|_| Damaged)?;
        }
        let frame = body.get(..usize::from(head & !DICTIONARY)).ok_or(Damaged)?;
        let good = unzstd.decompress(bytes, frame) == Ok(bytes.len());
        self.count();
        good.then_some(()).ok_or(Damaged)
    }
}

impl Coder for PageCoder {
    fn compress(&mut self, codec: Codec, page: &PageBytes, out: &mut [u8]) -> Option<usize> {
        match codec {
            // For 4096 bytes LZ4 clears its 16 KiB of tables each time, for 4095 only
            // every fifteenth: the last byte goes in front.
            Codec::Lz4 => {
                let (last, rest) = page.split_last()?;
                let (head, body) = out.split_first_mut()?;
                *head = *last;
                self.lz4.compress(rest, body).map(|len| 1 + len)
            }
            Codec::Zstd => {
                if let Some(dictionary) = &self.shared.dictionary
                    && !self.with_dictionary
                    && dictionary.get().is_none()
                {
                    dictionary.offer(page);
                }
                self.zstd(page, true, out)
            }
            Codec::Raw | Codec::Block => None,
        }
    }

    fn decompress(
        &mut self,
        codec: Codec,
        data: &[u8],
        page: &mut PageBytes,
    ) -> Result<(), Damaged> {
        match codec {
            Codec::Lz4 => {
                let (head, body) = data.split_first().ok_or(Damaged)?;
                let (last, rest) = page.split_last_mut().ok_or(Damaged)?;
                *last = *head;
                lz4_decompress(body, rest).then_some(()).ok_or(Damaged)
            }
            Codec::Zstd => self.unzstd(data, page),
            Codec::Raw | Codec::Block => Err(Damaged),
        }
    }

    /// Without the dictionary: on four pages it gains less than they do for each other.
    fn compress_block(&mut self, pages: &[PageBytes], out: &mut [u8]) -> Option<usize> {
        self.zstd(pages.as_flattened(), false, out)
    }

    fn decompress_block(&mut self, data: &[u8], pages: &mut [PageBytes]) -> Result<(), Damaged> {
        self.unzstd(data, pages.as_flattened_mut())
    }
}

impl Drop for PageCoder {
    fn drop(&mut self) {
        self.shared.contexts.fetch_sub(self.counted, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::BLOCK_PAGES;
    use ebb_engine::PAGE_SIZE;
    use ebb_engine::random::Random;
    use std::time::{Duration, Instant};

    /// Records that differ in a few bytes: a page has little to repeat, all pages together much.
    fn records(seed: usize) -> PageBytes {
        let word = |i: usize| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
        std::array::from_fn(|i| {
            let (record, at) = ((seed * 31 + i / 128) % 96, i % 128);
            if at < 4 {
                word(seed * 4096 + i)
            } else {
                word(record << 8 | at)
            }
        })
    }

    #[test]
    fn a_dictionary_is_trained_and_older_pages_are_still_read() {
        let codecs = PageCodecs::with_dictionary(1);
        let (mut coder, mut other) = (codecs.coder(), codecs.coder());
        let mut pages = Vec::new();
        let mut lengths = [0; 2];
        for after in [false, true] {
            for seed in 0..4096 {
                let (page, mut out) = (records(seed), [0; 8192]);
                let len = coder.compress(Codec::Zstd, &page, &mut out).unwrap();
                lengths[usize::from(after)] += len;
                if seed % 64 == 0 {
                    pages.push((page, out[..len + 31].to_vec()));
                }
            }
            assert_eq!(codecs.work(), !after, "trained once");
        }
        assert!(lengths[1] * 10 < lengths[0] * 8, "{lengths:?}: no use");
        assert!(codecs.shared_bytes() > 32 << 10);
        for (page, bytes) in pages.iter().rev().chain(&pages) {
            let mut back = [0; 4096];
            for coder in [&mut coder, &mut other] {
                coder.decompress(Codec::Zstd, bytes, &mut back).unwrap();
                assert_eq!(back, *page);
            }
        }
        let foreign = &pages[pages.len() - 1].1;
        let without = PageCodecs::new(1)
            .coder()
            .decompress(Codec::Zstd, foreign, &mut [0; 4096]);
        assert_eq!(without, Err(Damaged));
    }

    #[test]
    fn every_codec_gives_the_page_back() {
        let mut coder = PageCodecs::default().coder();
        for codec in [Codec::Lz4, Codec::Zstd] {
            for step in 1..60usize {
                let page: PageBytes = std::array::from_fn(|i| (i / step * 31 % 251) as u8);
                let mut out = [0xaa; 4096];
                let len = coder.compress(codec, &page, &mut out).unwrap();
                assert!(len < 4000);
                out[len..len + 31].fill(0);
                let mut back = [0x55; 4096];
                coder
                    .decompress(codec, &out[..len + 31], &mut back)
                    .unwrap();
                assert_eq!(back, page);
                assert_eq!(
                    coder.decompress(codec, &out[..len / 2], &mut back),
                    Err(Damaged)
                );
                assert_eq!(coder.compress(codec, &page, &mut out[..3]), None);
            }
        }
    }

    #[test]
    fn a_block_gives_its_pages_back_and_is_denser() {
        for codecs in [PageCodecs::new(1), PageCodecs::with_dictionary(1)] {
            let mut coder = codecs.coder();
            // With a dictionary that is in use for single pages in between, it is trained.
            let mut out = [0; 8192];
            for seed in 0..4096 {
                coder.compress(Codec::Zstd, &records(seed), &mut out);
            }
            codecs.work();
            for pages in 2..=BLOCK_PAGES {
                let block: Vec<PageBytes> = (0..pages).map(records).collect();
                let single = |page: &PageBytes| {
                    let mut out = [0; 8192];
                    let mut alone = PageCodecs::new(1).coder();
                    alone.compress(Codec::Zstd, page, &mut out).unwrap()
                };
                let alone: usize = block.iter().map(single).sum();
                coder.compress(Codec::Zstd, &records(9), &mut out);
                let mut out = [0xaa; 16384];
                let len = coder.compress_block(&block, &mut out).unwrap();
                assert!(len < alone, "{len} bytes, alone {alone}");
                out[len..len + 63].fill(0);
                let mut back = vec![[0x55; PAGE_SIZE]; pages];
                coder.decompress_block(&out[..len + 63], &mut back).unwrap();
                assert_eq!(back, block);
                let short = coder.decompress_block(&out[..len + 63], &mut back[1..]);
                assert_eq!(short, Err(Damaged));
                assert_eq!(coder.compress_block(&block, &mut out[..64]), None);
                // A block that does not compress is no reason not to compress the next page.
                let next = coder.compress(Codec::Zstd, &records(9), &mut out);
                assert!(next.is_some());
            }
        }
    }

    /// The codecs give up early on pages that do not compress: they look further ahead the less they find.
    /// So such a page costs a quarter of one that is worth it. A look at the page before would save little
    /// of that, and cost all others.
    #[test]
    fn a_page_that_does_not_compress_costs_less_than_one_that_does() {
        let mut random = Random::new(1);
        // Words of some hundred kinds compress to a half or so; random ones not at all.
        let mut pages = |kinds: u64| -> Vec<PageBytes> {
            let mut page = || {
                let mut page = [0; PAGE_SIZE];
                for word in page.chunks_exact_mut(8) {
                    let kind = random.next() % kinds;
                    word.copy_from_slice(&kind.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
                }
                page
            };
            (0..64).map(|_| page()).collect()
        };
        let (some, none) = (pages(128), pages(u64::MAX));
        for codec in [Codec::Lz4, Codec::Zstd] {
            // The quickest of many rounds: other programs, and other machines of the host, take part of the
            // processor, for longer than a series now and then. And where tables and pages lie in caches that collide,
            // all rounds are slow: each series has memory of its own, beside that of those before.
            let mut kept = Vec::new();
            let mut quickest = [(Duration::MAX, 0); 2];
            let mut series = || {
                let mut coder = PageCodecs::default().coder();
                let mut out = vec![0; 2 * PAGE_SIZE];
                let of_this = [some.clone(), none.clone()];
                for _ in 0..400 {
                    for (quickest, pages) in quickest.iter_mut().zip(&of_this) {
                        let start = Instant::now();
                        let bytes: usize = pages
                            .iter()
                            .map(|page| coder.compress(codec, page, &mut out).unwrap_or(PAGE_SIZE))
                            .sum();
                        *quickest = (quickest.0.min(start.elapsed()), bytes / pages.len());
                    }
                }
                println!("{codec:?}: {quickest:?}");
                kept.push((coder, out, of_this));
                quickest[1].0 * 2 < quickest[0].0
            };
            assert!((0..20).any(|_| series()), "{codec:?}");
            assert!(
                quickest[0].1 < 3000 && quickest[1].1 >= PAGE_SIZE,
                "{codec:?}"
            );
        }
    }
}
