//! The real codecs behind the engine's seam: LZ4 and Zstandard.

use ebb_engine::PageBytes;
use ebb_engine::codec::{Codec, Codecs, Coder, Damaged};
use ebb_sys::codec::{Lz4, lz4_decompress};
use zstd_safe::{CCtx, CParameter, DCtx, FrameFormat};

/// Makes coders of LZ4 and of Zstandard at one level.
pub struct PageCodecs {
    zstd_level: i32,
}

impl PageCodecs {
    /// `zstd_level`: 1 to 19.
    pub fn new(zstd_level: i32) -> Self {
        Self { zstd_level }
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
            unzstd: None,
            level: self.zstd_level,
        })
    }
    fn coder_bytes(&self) -> usize {
        Lz4::BYTES
    }
}

struct PageCoder {
    lz4: Lz4,
    // Made on first use: they are large, and most processes use LZ4 alone.
    zstd: Option<CCtx<'static>>,
    unzstd: Option<DCtx<'static>>,
    level: i32,
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
                        none.insert(zstd)
                    }
                };
                // The frame's length comes first, for whoever reads it knows only about
                // where it ends; that is shorter than the magic number it replaces.
                let (head, body) = out.split_first_chunk_mut::<2>()?;
                let len = zstd.compress2(body, page).ok()?;
                *head = u16::try_from(len).ok()?.to_le_bytes();
                Some(2 + len)
            }
            Codec::Raw => None,
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
            Codec::Zstd => {
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
                let frame = body
                    .get(..u16::from_le_bytes(*head) as usize)
                    .ok_or(Damaged)?;
                match unzstd.decompress(&mut page[..], frame) {
                    Ok(len) if len == page.len() => Ok(()),
                    _ => Err(Damaged),
                }
            }
            Codec::Raw => Err(Damaged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
