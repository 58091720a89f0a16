//! XTS-AES-256 over whole pages (IEEE 1619-2007), over the `aes` crate's cipher.
//!
//! A page is 256 whole blocks, so no ciphertext is stolen, and both ways are the same but for the cipher's
//! direction. Each block is added to its tweak, sent through the cipher, and added to it again (5.3 and 5.4
//! there). The cipher gets all blocks of a page at once and keeps several in flight. The `xts-mode` crate
//! asks for one block at a time. That crate is what the tests compare with.

use aes::cipher::{Array, Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Aes256Enc};
use ebb_engine::PAGE_SIZE;

/// Bytes of a block.
const BLOCK: usize = 16;
/// Blocks of a page.
const BLOCKS: usize = PAGE_SIZE / BLOCK;

/// The pair of ciphers of one XTS key. The `aes` crate wipes their round keys when dropped.
pub struct Xts {
    data: Aes256,
    tweak: Aes256Enc,
}

/// The tweak of a sector, before encryption.
pub type Tweak = [u8; BLOCK];

impl Xts {
    /// The first half of the key is for data, the second for tweaks.
    pub fn new(key: &[u8; 64]) -> Self {
        let (data, tweak) = key.split_at(32);
        Self {
            data: Aes256::new(data.try_into().expect("half a key")),
            tweak: Aes256Enc::new(tweak.try_into().expect("half a key")),
        }
    }

    /// Encrypts each page of `data` in place; `tweak` gives the tweak of page 0, 1, ...
    pub fn encrypt(&self, data: &mut [u8], tweak: impl Fn(u64) -> Tweak) {
        self.each_page(data, tweak, |blocks| self.data.encrypt_blocks(blocks));
    }

    /// The inverse of [`Xts::encrypt`].
    pub fn decrypt(&self, data: &mut [u8], tweak: impl Fn(u64) -> Tweak) {
        self.each_page(data, tweak, |blocks| self.data.decrypt_blocks(blocks));
    }

    fn each_page(
        &self,
        data: &mut [u8],
        tweak: impl Fn(u64) -> Tweak,
        cipher: impl Fn(&mut [Block<Aes256>]),
    ) {
        for (page, number) in data.as_chunks_mut::<PAGE_SIZE>().0.iter_mut().zip(0..) {
            let tweaks = self.tweaks(tweak(number));
            add(page, &tweaks);
            cipher(Array::cast_slice_from_core_mut(page.as_chunks_mut().0));
            add(page, &tweaks);
        }
    }

    /// The tweaks of a page's blocks: each is the one before it times x, in the field of the
    /// standard.
    fn tweaks(&self, tweak: Tweak) -> [u128; BLOCKS] {
        let mut first = Array(tweak);
        self.tweak.encrypt_block(&mut first);
        let mut next = u128::from_le_bytes(first.0);
        std::array::from_fn(|_| {
            let tweak = next;
            let carry = next >> 127;
            next = (next << 1) ^ (carry * 0x87);
            tweak
        })
    }
}

/// Adds (in that field: without carry) its tweak to each block.
fn add(page: &mut [u8; PAGE_SIZE], tweaks: &[u128; BLOCKS]) {
    for (block, tweak) in page.as_chunks_mut::<BLOCK>().0.iter_mut().zip(tweaks) {
        *block = (u128::from_le_bytes(*block) ^ tweak).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xts_mode::Xts128;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
            .collect()
    }

    /// IEEE 1619-2007, vector 10: XTS-AES-256, a sector of 512 bytes, tweak ff.
    #[test]
    fn the_standards_vector() {
        let key = hex(concat!(
            "2718281828459045235360287471352662497757247093699959574966967627",
            "3141592653589793238462643383279502884197169399375105820974944592",
        ));
        let xts = Xts::new(key.as_slice().try_into().unwrap());
        // A longer sector starts as the shorter one does: block by block.
        let plain: Vec<u8> = (0..PAGE_SIZE).map(|i| i as u8).collect();
        let mut sector = plain.clone();
        let tweak = |_| u128::from(0xffu8).to_le_bytes();
        xts.encrypt(&mut sector, tweak);
        let start = "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b";
        assert_eq!(sector[..32], hex(start));
        xts.decrypt(&mut sector, tweak);
        assert!(sector == plain);
    }

    proptest! {
        /// The `xts-mode` crate over the same cipher gives the same.
        #[test]
        fn like_another_implementation(
            key in proptest::collection::vec(any::<u8>(), 64), seed: u64, first: u64, pages in 1..4usize,
        ) {
            let key: [u8; 64] = key.try_into().unwrap();
            let mut state = seed | 1;
            let plain: Vec<u8> = (0..pages * PAGE_SIZE).map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (state >> 56) as u8
            }).collect();
            let tweak = |page: u64| u128::from(first.wrapping_add(page)).to_le_bytes();
            let xts = Xts::new(&key);
            let mut data = plain.clone();
            xts.encrypt(&mut data, tweak);
            let half = |at: usize| Aes256::new(&Array(<[u8; 32]>::try_from(&key[at..at + 32]).unwrap()));
            let plainly = Xts128::new(half(0), half(32));
            let mut expected = plain.clone();
            for (page, number) in expected.chunks_mut(PAGE_SIZE).zip(0..) {
                plainly.encrypt_sector(page, tweak(number).into());
            }
            prop_assert!(data == expected);
            xts.decrypt(&mut data, tweak);
            prop_assert!(data == plain);
            for (page, number) in expected.chunks_mut(PAGE_SIZE).zip(0..) {
                plainly.decrypt_sector(page, tweak(number).into());
            }
            prop_assert!(expected == plain);
        }
    }
}
