//! Codecs for a block of pages, from which single pages can be taken again.

use ebb_engine::PAGE_SIZE;
use ebb_sys::lz4::{Lz4, Lz4Dictionary, lz4_decompress};
use zstd_safe::{CCtx, CDict, CParameter, DCtx, DDict, FrameFormat};

/// Compresses blocks of one to 16 pages.
pub trait Packer {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize>;
    /// The first `out.len()` bytes of a block of `whole` bytes.
    fn decompress(&mut self, data: &[u8], whole: usize, out: &mut [u8]) -> bool;
}

pub struct PlainLz4(Lz4);

impl PlainLz4 {
    pub fn new() -> Self {
        Self(Lz4::new())
    }
}

impl Packer for PlainLz4 {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        // As the pool does it: see `ebb_stores::codec`.
        let (last, rest) = block.split_last()?;
        let (head, body) = out.split_first_mut()?;
        *head = *last;
        self.0.compress(rest, body).map(|len| 1 + len)
    }
    fn decompress(&mut self, data: &[u8], whole: usize, out: &mut [u8]) -> bool {
        let n = out.len().min(whole - 1);
        if out.len() == whole {
            out[n] = data[0];
        }
        lz4_decompress(&data[1..], &mut out[..n])
    }
}

pub struct DictLz4 {
    lz4: Lz4,
    dictionary: Lz4Dictionary,
}

impl DictLz4 {
    pub fn new(dictionary: &[u8]) -> Self {
        Self {
            lz4: Lz4::new(),
            dictionary: Lz4Dictionary::new(dictionary),
        }
    }
}

impl Packer for DictLz4 {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        self.lz4.compress_with(&self.dictionary, block, out)
    }
    fn decompress(&mut self, data: &[u8], _: usize, out: &mut [u8]) -> bool {
        self.dictionary.decompress(data, out)
    }
}

/// Zstandard, with a dictionary or without.
pub struct Zstd {
    compressor: CCtx<'static>,
    decompressor: DCtx<'static>,
    room: Vec<u8>,
}

impl Zstd {
    pub fn new(level: i32, dictionary: Option<&[u8]>) -> Self {
        let mut compressor = CCtx::create();
        let mut decompressor = DCtx::create();
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
            CParameter::Format(FrameFormat::Magicless),
        ] {
            compressor
                .set_parameter(parameter)
                .expect("known to this version");
        }
        let format = zstd_safe::DParameter::Format(FrameFormat::Magicless);
        decompressor
            .set_parameter(format)
            .expect("known to this version");
        if let Some(dictionary) = dictionary {
            // Leaked: an experiment makes a handful, and a reference must outlive the context.
            let cdict: &'static CDict<'static> =
                Box::leak(Box::new(CDict::create(dictionary, level)));
            let ddict: &'static DDict<'static> = Box::leak(Box::new(DDict::create(dictionary)));
            compressor.ref_cdict(cdict).expect("made by us");
            decompressor.ref_ddict(ddict).expect("made by us");
        }
        Self {
            compressor,
            decompressor,
            room: vec![0; 16 * PAGE_SIZE],
        }
    }
}

impl Packer for Zstd {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        self.compressor.compress2(out, block).ok()
    }
    fn decompress(&mut self, data: &[u8], whole: usize, out: &mut [u8]) -> bool {
        // A frame of this size is one block of the format: there is no taking part of it.
        if out.len() == whole {
            return self.decompressor.decompress(out, data) == Ok(whole);
        }
        let Self {
            decompressor, room, ..
        } = self;
        let good = decompressor.decompress(&mut room[..whole], data) == Ok(whole);
        out.copy_from_slice(&room[..out.len()]);
        good
    }
}

/// A dictionary of `size` bytes trained on some of the pages.
pub fn train(samples: &[&[u8]], size: usize) -> Option<Vec<u8>> {
    let sizes: Vec<usize> = samples.iter().map(|s| s.len()).collect();
    let all = samples.concat();
    let mut dictionary = vec![0; size];
    let len = zstd_safe::train_from_buffer(&mut dictionary[..], &all, &sizes).ok()?;
    dictionary.truncate(len);
    Some(dictionary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_page_of_a_block_comes_back() {
        let block: Vec<u8> = (0..16 * PAGE_SIZE)
            .map(|i| (i / 7 % 251) as u8 ^ (i / 4096) as u8)
            .collect();
        let dictionary: Vec<u8> = (0..8192usize).map(|i| (i / 7 % 251) as u8).collect();
        let packers: [Box<dyn Packer>; 4] = [
            Box::new(PlainLz4::new()),
            Box::new(DictLz4::new(&dictionary)),
            Box::new(Zstd::new(1, None)),
            Box::new(Zstd::new(3, Some(&dictionary))),
        ];
        for mut packer in packers {
            for pages in [1, 4, 16] {
                let block = &block[..pages * PAGE_SIZE];
                let mut room = vec![0; 2 * block.len()];
                let len = packer.compress(block, &mut room).expect("compressible");
                assert!(len < block.len());
                for n in 1..=pages {
                    let mut out = vec![0xaa; n * PAGE_SIZE];
                    assert!(packer.decompress(&room[..len], block.len(), &mut out));
                    assert_eq!(out, block[..n * PAGE_SIZE]);
                }
            }
        }
    }
}
