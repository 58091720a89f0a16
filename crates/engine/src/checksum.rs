//! The checksum of stored bytes, compared when they are read: 31 bits of xxh3 (`entries::EntryWord`).
//!
//! The hash is keyed: who can write a device, and does not know the key, cannot make bytes that pass but
//! by chance, one in 2^31. It is the same key for as long as there are entries, so the words of a forked
//! child hold in it. Not a proof against who knows the key; [`crate::env`] says whence it comes.

use crate::codec::Codec;
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// Bytes of the key: those of a secret of xxh3's.
pub const CHECKSUM_KEY_BYTES: usize = 192;

/// Computes checksums. The key is where its owner keeps secrets.
#[derive(Clone, Copy)]
pub struct Checksums(&'static [u8; CHECKSUM_KEY_BYTES]);

impl Checksums {
    /// Keyed with random bytes.
    pub const fn new(key: &'static [u8; CHECKSUM_KEY_BYTES]) -> Self {
        Self(key)
    }

    /// Of the bytes that `codec` made. The codec is part of it, so that bytes are never read as
    /// another one's.
    #[inline]
    pub(crate) fn of(self, codec: Codec, bytes: &[u8]) -> u64 {
        xxh3_64_with_secret(bytes, self.0) ^ (codec as u64)
    }
}

impl Default for Checksums {
    /// For where no device is out of the process's hands: simulations and tests.
    fn default() -> Self {
        const KEY: [u8; CHECKSUM_KEY_BYTES] = {
            let mut key = [0; CHECKSUM_KEY_BYTES];
            let (mut i, mut state) = (0, 0x9e37_79b9_7f4a_7c15u64);
            while i < CHECKSUM_KEY_BYTES {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                key[i] = (state >> 56) as u8;
                i += 1;
            }
            key
        };
        Self::new(&KEY)
    }
}

impl std::fmt::Debug for Checksums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Checksums(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_key_or_codec_gives_another() {
        let one = Checksums::default();
        let other = Checksums::new(&[7; CHECKSUM_KEY_BYTES]);
        for len in [0, 1, 16, 100, 240, 241, 1000, 4096] {
            let bytes = vec![3; len];
            assert_ne!(
                one.of(Codec::Raw, &bytes),
                other.of(Codec::Raw, &bytes),
                "{len}"
            );
            assert_ne!(
                one.of(Codec::Raw, &bytes),
                one.of(Codec::Lz4, &bytes),
                "{len}"
            );
        }
        assert_eq!(format!("{one:?}"), "Checksums(..)");
    }
}
