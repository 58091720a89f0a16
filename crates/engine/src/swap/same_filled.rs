//! Pages that are one value repeated.

use crate::PageBytes;

/// The 32-bit word a page consists of, if it consists of one.
///
/// Most pages are told apart by their first and last words.
pub fn pattern_of(page: &PageBytes) -> Option<u32> {
    let (words, _) = page.as_chunks::<8>();
    let first = words[0];
    if first[..4] != first[4..]
        || words[words.len() - 1] != first
        || words[words.len() / 2] != first
    {
        return None;
    }
    let pattern = u64::from_ne_bytes(first);
    let (lines, _) = words.as_chunks::<8>();
    let same = lines.iter().all(|line| {
        line.iter().fold(0, |differs, word| {
            differs | u64::from_ne_bytes(*word) ^ pattern
        }) == 0
    });
    same.then_some(u32::from_ne_bytes([first[0], first[1], first[2], first[3]]))
}

/// Fills a page with a word.
pub fn fill(page: &mut PageBytes, pattern: u32) {
    if pattern == 0 {
        page.fill(0);
    } else {
        page.as_chunks_mut::<4>().0.fill(pattern.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_counts() {
        for pattern in [0u32, 1, 0xdead_beef, u32::MAX] {
            let mut page = [0u8; 4096];
            fill(&mut page, pattern);
            assert_eq!(pattern_of(&page), Some(pattern));
            for at in 0..page.len() {
                page[at] ^= 0x10;
                assert_eq!(pattern_of(&page), None, "byte {at}");
                page[at] ^= 0x10;
            }
        }
    }
}
