//! The content of pages: each is named by a kind and a stamp, and can be made and recognised by these.

use ebb_engine::random::mix;
use ebb_memory_kernel::PAGE;
use std::sync::OnceLock;

/// The content of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Content {
    /// Zeros.
    #[default]
    Zero,
    /// One word again and again.
    Same(u32),
    /// A pattern of few bytes, and others at the ends.
    Sparse(u32),
    /// Noise, and a pattern of few bytes.
    Half(u32),
    /// All of it is noise.
    Noise(u32),
    /// It was lost, with a message.
    Lost,
}

const NOISE: usize = 1 << 20;

/// Before processes are forked for runs: the noise is made once, not in each.
pub fn prepare() {
    noise();
}

fn noise() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let words = (0..(NOISE + PAGE) as u64 / 8).map(|i| mix(i ^ 0x5eed).to_le_bytes());
        words.flatten().collect()
    })
}

fn at(stamp: u32) -> usize {
    mix(stamp.into()) as usize % NOISE
}

impl Content {
    /// By chance, with this stamp.
    pub fn of(chance: u64, stamp: u32) -> Self {
        match chance % 16 {
            0 => Content::Zero,
            1 | 2 => Content::Same(stamp),
            3..9 => Content::Sparse(stamp),
            9..13 => Content::Half(stamp),
            _ => Content::Noise(stamp),
        }
    }

    /// Makes a page of it.
    pub fn fill(self, page: &mut [u8; PAGE]) {
        match self {
            Content::Zero | Content::Lost => page.fill(0),
            Content::Same(stamp) => page
                .chunks_exact_mut(4)
                .for_each(|word| word.copy_from_slice(&stamp.to_le_bytes())),
            Content::Sparse(stamp) => {
                fill(page, stamp);
                page[..8].copy_from_slice(&mix(stamp.into()).to_le_bytes());
                page[PAGE - 8..].copy_from_slice(&mix(!u64::from(stamp)).to_le_bytes());
            }
            Content::Half(stamp) => {
                page[..PAGE / 2].copy_from_slice(&noise()[at(stamp)..][..PAGE / 2]);
                fill(&mut page[PAGE / 2..], stamp);
            }
            Content::Noise(stamp) => page.copy_from_slice(&noise()[at(stamp)..][..PAGE]),
        }
        if let Content::Half(stamp) | Content::Noise(stamp) = self {
            page[..4].copy_from_slice(&stamp.to_le_bytes());
        }
    }

    /// Whether a page is of it.
    pub fn is(self, page: &[u8; PAGE]) -> bool {
        match self {
            Content::Zero => page[0] == 0 && page[1..] == page[..PAGE - 1],
            Content::Same(stamp) => page.chunks_exact(4).all(|word| word == stamp.to_le_bytes()),
            Content::Sparse(stamp) => {
                page[..8] == mix(stamp.into()).to_le_bytes()
                    && page[PAGE - 8..] == mix(!u64::from(stamp)).to_le_bytes()
                    && is_filled(&page[8..PAGE - 8], 8, stamp)
            }
            Content::Half(stamp) => {
                page[..4] == stamp.to_le_bytes()
                    && page[4..PAGE / 2] == noise()[at(stamp)..][4..PAGE / 2]
                    && is_filled(&page[PAGE / 2..], 0, stamp)
            }
            Content::Noise(stamp) => {
                page[..4] == stamp.to_le_bytes() && page[4..] == noise()[at(stamp)..][4..PAGE]
            }
            Content::Lost => false,
        }
    }
}

/// Bytes after which a pattern comes again: codecs copy so many at once.
const PERIOD: usize = 32;

fn pattern(stamp: u32) -> [u8; PERIOD] {
    std::array::from_fn(|i| (stamp as u8 | 1).wrapping_add(i as u8 & 24))
}

/// Fills bytes with the pattern of a stamp.
fn fill(bytes: &mut [u8], stamp: u32) {
    let pattern = pattern(stamp);
    let parts = bytes.chunks_exact_mut(PERIOD);
    parts.for_each(|part| part.copy_from_slice(&pattern));
}

/// Whether bytes are those of the pattern, from so far within it on.
fn is_filled(bytes: &[u8], from: usize, stamp: u32) -> bool {
    let mut pattern = pattern(stamp);
    pattern.rotate_left(from);
    bytes[..PERIOD] == pattern && bytes[PERIOD..] == bytes[..bytes.len() - PERIOD]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_recognised_and_told_from_others() {
        let mut all = vec![Content::Zero];
        for stamp in [1, 2, 258] {
            all.extend(
                [
                    Content::Same,
                    Content::Sparse,
                    Content::Half,
                    Content::Noise,
                ]
                .map(|k| k(stamp)),
            );
        }
        for made in &all {
            let mut page = [7; PAGE];
            made.fill(&mut page);
            for other in &all {
                assert_eq!(other.is(&page), other == made, "{other:?} {made:?}");
            }
            page[2048] ^= 1;
            assert!(!made.is(&page), "{made:?}");
        }
    }
}
