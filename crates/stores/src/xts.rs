//! XTS-AES-256 over whole pages: the `xts-mode` crate's mode over the `aes` crate's cipher,
//! joined so that the cipher's set-up is paid once for many blocks.
//!
//! Asked for one block at a time, as the mode does, the cipher chooses its instructions and
//! spreads its round keys anew for each block, which costs several times the block itself.
//! So the mode is run inside the cipher's own back end, through adapters that hand each
//! block on. Nothing of the mode or the cipher is done here.

use aes::Aes256;
use aes::cipher::consts::{U1, U16};
use aes::cipher::inout::InOut;
use aes::cipher::{
    Array, Block, BlockCipherDecBackend, BlockCipherDecClosure, BlockCipherDecrypt,
    BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser, KeyInit,
    ParBlocksSizeUser,
};
use ebb_engine::PAGE_SIZE;
use xts_mode::Xts128;
use zeroize::Zeroize;

/// The pair of ciphers of one XTS key. The `aes` crate wipes their round keys when dropped.
pub struct Xts {
    data: Aes256,
    tweak: Aes256,
}

/// The tweak of a sector, before encryption.
pub type Tweak = [u8; 16];

impl Xts {
    /// The first half of the key is for data, the second for tweaks.
    pub fn new(key: &[u8; 64]) -> Self {
        let cipher = |half: &[u8]| {
            let mut array: Array<u8, _> = Array([0; 32]);
            array.copy_from_slice(half);
            let cipher = Aes256::new(&array);
            array.as_mut_slice().zeroize();
            cipher
        };
        let (data, tweak) = key.split_at(32);
        Self {
            data: cipher(data),
            tweak: cipher(tweak),
        }
    }

    /// Encrypts each page of `data` in place; `tweak` gives the tweak of page 0, 1, ...
    pub fn encrypt(&self, data: &mut [u8], tweak: impl Fn(u64) -> Tweak) {
        self.data.encrypt_with_backend(Walk {
            data,
            tweak,
            tweak_cipher: &self.tweak,
        });
    }

    /// The inverse of [`Xts::encrypt`].
    pub fn decrypt(&self, data: &mut [u8], tweak: impl Fn(u64) -> Tweak) {
        self.data.decrypt_with_backend(Walk {
            data,
            tweak,
            tweak_cipher: &self.tweak,
        });
    }
}

/// The mode's walk over the pages, to be run inside a back end.
struct Walk<'a, T> {
    data: &'a mut [u8],
    tweak: T,
    tweak_cipher: &'a Aes256,
}

impl<T: Fn(u64) -> Tweak> Walk<'_, T> {
    #[inline(always)]
    fn with<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let mode = Xts128::new(By::Backend(backend), By::Cipher(self.tweak_cipher));
        for (page, number) in self.data.as_chunks_mut::<PAGE_SIZE>().0.iter_mut().zip(0..) {
            mode.encrypt_sector(page, (self.tweak)(number).into());
        }
    }
}

impl<T> BlockSizeUser for Walk<'_, T> {
    type BlockSize = U16;
}

impl<T: Fn(u64) -> Tweak> BlockCipherEncClosure for Walk<'_, T> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        self.with(backend);
    }
}

/// A page is whole blocks, so no ciphertext is stolen, and then decryption is the same walk
/// with the block cipher's inverse in the middle (IEEE 1619-2007, 5.4). The mode's own
/// `decrypt_sector` is not inlined into the back end and takes twice the time.
impl<T: Fn(u64) -> Tweak> BlockCipherDecClosure for Walk<'_, T> {
    #[inline(always)]
    fn call<B: BlockCipherDecBackend<BlockSize = U16>>(self, backend: &B) {
        self.with(&Inverse(backend));
    }
}

/// A decrypting back end where an encrypting one is asked for.
struct Inverse<'a, B>(&'a B);

impl<B> BlockSizeUser for Inverse<'_, B> {
    type BlockSize = U16;
}

impl<B> ParBlocksSizeUser for Inverse<'_, B> {
    type ParBlocksSize = U1;
}

impl<B: BlockCipherDecBackend<BlockSize = U16>> BlockCipherEncBackend for Inverse<'_, B> {
    #[inline(always)]
    fn encrypt_block(&self, block: InOut<'_, '_, Block<Self>>) {
        self.0.decrypt_block(block);
    }
}

/// A cipher that hands blocks to a back end at work, or to a cipher.
enum By<'a, B> {
    Backend(&'a B),
    Cipher(&'a Aes256),
}

impl<B> BlockSizeUser for By<'_, B> {
    type BlockSize = U16;
}

impl<B: BlockCipherEncBackend<BlockSize = U16>> BlockCipherEncrypt for By<'_, B> {
    #[inline(always)]
    fn encrypt_with_backend(&self, f: impl BlockCipherEncClosure<BlockSize = U16>) {
        match self {
            By::Backend(backend) => f.call(*backend),
            By::Cipher(cipher) => cipher.encrypt_with_backend(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        /// The adapters change nothing: the mode alone over the cipher alone gives the same.
        #[test]
        fn like_the_mode_used_plainly(
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
