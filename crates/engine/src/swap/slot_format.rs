//! The format of a slot: the page as it was, or the bytes of its pool object with a footer in the last
//! four: codec, a zero, and the number of bytes. Nothing read is believed before the checksum agrees
//! with the one in memory, not even the footer.

use super::coders::Scratch;
use crate::codec::Codec;
use crate::entries::{EntryWord, Location, SlotPlace};
use crate::slots::Extent;
use crate::{Checksums, PAGE_SIZE, PageBytes, SlotIndex};

/// Bytes of the footer of a compressed slot.
const FOOTER: usize = 4;
const _: () = assert!(crate::pool::MAX_COMPRESSED + FOOTER <= PAGE_SIZE);

/// Lays a pool object out as a slot.
pub fn seal(slot: &mut PageBytes, codec: Codec, len: usize) {
    let [high, low] = (len as u16).to_be_bytes();
    slot[len..PAGE_SIZE - FOOTER].fill(0);
    slot[PAGE_SIZE - FOOTER..].copy_from_slice(&[codec as u8, 0, high, low]);
}

/// The codec and length of a compressed slot, if they can be.
pub fn unseal(slot: &PageBytes) -> Option<(Codec, usize)> {
    let [codec, zero, high, low] = *slot.last_chunk::<FOOTER>()?;
    let len = u16::from_be_bytes([high, low]) as usize;
    let codec = Codec::from_number(codec).filter(|&codec| codec != Codec::Raw)?;
    (zero == 0 && len <= crate::pool::MAX_COMPRESSED).then_some((codec, len))
}

/// The place of a slot of an extent, counted from its first.
pub const fn place(extent: Extent, i: u32, raw: bool) -> SlotPlace {
    SlotPlace {
        device: extent.device,
        slot: SlotIndex(extent.start.0 + i),
        raw,
    }
}

pub const fn single(place: SlotPlace) -> Extent {
    Extent {
        device: place.device,
        start: place.slot,
        len: 1,
    }
}

/// Whether a slot's content is what the word says: its codec and how many bytes.
pub fn verify(checksums: Checksums, word: EntryWord, slot: &PageBytes) -> Option<(Codec, usize)> {
    let Location::Slot(place) = word.location() else {
        return None;
    };
    let (codec, len) = if place.raw {
        (Codec::Raw, PAGE_SIZE)
    } else {
        unseal(slot)?
    };
    word.checksum_matches(checksums.of(codec, &slot[..len]))
        .then_some((codec, len))
}

/// Turns a slot's content into its page, in place, if it is what the word says.
pub fn decode_slot(scratch: &mut Scratch, word: EntryWord, out: &mut PageBytes) -> Option<()> {
    let (codec, len) = verify(scratch.checksums, word, out)?;
    if codec != Codec::Raw {
        scratch.data.0[..len].copy_from_slice(&out[..len]);
        scratch
            .coder
            .decompress(codec, &scratch.data.0[..len], out)
            .ok()?;
    }
    Some(())
}
