//! LZ4 with tables that live on between pages.
//!
//! The usual entry points clear 16 KiB of tables for each call, more than what a page
//! itself costs. These keep them.

use lz4_sys::{c_char, c_int};

unsafe extern "C" {
    // Exported by liblz4, but not declared by lz4-sys.
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut core::ffi::c_void,
        source: *const c_char,
        destination: *mut c_char,
        source_size: c_int,
        room: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_initStream(buffer: *mut core::ffi::c_void, size: usize) -> *mut core::ffi::c_void;
    fn LZ4_loadDictSlow(
        stream: *mut core::ffi::c_void,
        dictionary: *const c_char,
        size: c_int,
    ) -> c_int;
    fn LZ4_resetStream_fast(stream: *mut core::ffi::c_void);
    fn LZ4_attach_dictionary(stream: *mut core::ffi::c_void, dictionary: *const core::ffi::c_void);
    fn LZ4_compress_fast_continue(
        stream: *mut core::ffi::c_void,
        source: *const c_char,
        destination: *mut c_char,
        source_size: c_int,
        room: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_partial_usingDict(
        source: *const c_char,
        destination: *mut c_char,
        source_size: c_int,
        target_size: c_int,
        room: c_int,
        dictionary: *const c_char,
        dictionary_size: c_int,
    ) -> c_int;
}

/// A dictionary: bytes that every page compressed with it may refer to. Never changed, so any
/// number of compressors may use it at once.
pub struct Lz4Dictionary {
    bytes: Box<[u8]>,
    state: Box<[u64]>,
}

impl Lz4Dictionary {
    /// The most bytes that a page can refer to.
    pub const MAX: usize = 60 << 10;

    /// Takes the last [`Lz4Dictionary::MAX`] of `bytes` as a dictionary.
    pub fn new(bytes: &[u8]) -> Self {
        let bytes: Box<[u8]> = bytes[bytes.len().saturating_sub(Self::MAX)..].into();
        let mut state = Lz4::new().state;
        // SAFETY: the state was initialised; the bytes are as long as we say, and stay where
        // they are as long as the state, which will refer to them.
        unsafe {
            LZ4_loadDictSlow(
                state.as_mut_ptr().cast(),
                bytes.as_ptr().cast(),
                bytes.len() as c_int,
            )
        };
        Self { bytes, state }
    }

    /// Bytes it holds.
    pub fn memory(&self) -> usize {
        self.bytes.len() + Lz4::BYTES
    }

    /// [`lz4_decompress`] of what was compressed with this dictionary.
    pub fn decompress(&self, data: &[u8], out: &mut [u8]) -> bool {
        decompress(data, out, &self.bytes)
    }
}

/// A compressor's tables. They are memory of Rust's allocator, never of C's `malloc`: inside the
/// preload library that is the program's, and may be paged out.
pub struct Lz4 {
    state: Box<[u64]>,
}

impl Lz4 {
    /// Bytes of the tables.
    pub const BYTES: usize = 16416;

    /// Fresh tables.
    pub fn new() -> Self {
        let mut state = vec![0u64; Self::BYTES.div_ceil(8)].into_boxed_slice();
        // SAFETY: the memory is as long as we say and aligned; LZ4 checks both and says null.
        let ready = unsafe { LZ4_initStream(state.as_mut_ptr().cast(), size_of_val(&*state)) };
        assert!(!ready.is_null(), "LZ4's tables have grown: raise BYTES");
        Self { state }
    }

    /// Compresses `data` into `out`; the length, or none where it does not fit.
    pub fn compress(&mut self, data: &[u8], out: &mut [u8]) -> Option<usize> {
        let (len, room) = lengths(data, out)?;
        // SAFETY: the state was initialised by `LZ4_initStream` and is ours alone, as `&mut self` says.
        // Both ranges are as long as we say, and do not overlap.
        let n = unsafe {
            LZ4_compress_fast_extState_fastReset(
                self.state.as_mut_ptr().cast(),
                data.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                len,
                room,
                1,
            )
        };
        (n > 0).then_some(n as usize)
    }

    /// [`Lz4::compress`] where `data` may refer to the dictionary.
    pub fn compress_with(
        &mut self,
        dictionary: &Lz4Dictionary,
        data: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        let (len, room) = lengths(data, out)?;
        let state = self.state.as_mut_ptr().cast();
        // SAFETY: the state was initialised and is ours alone. The dictionary's state is only read, lives
        // longer than this block, and is detached before it ends. Both ranges are as long as we say, and
        // do not overlap.
        let n = unsafe {
            LZ4_resetStream_fast(state);
            LZ4_attach_dictionary(state, dictionary.state.as_ptr().cast());
            let n = LZ4_compress_fast_continue(
                state,
                data.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                len,
                room,
                1,
            );
            LZ4_resetStream_fast(state);
            n
        };
        (n > 0).then_some(n as usize)
    }
}

impl Default for Lz4 {
    fn default() -> Self {
        Self::new()
    }
}

/// The lengths as LZ4 takes them; none where one is too large for it.
fn lengths(data: &[u8], out: &[u8]) -> Option<(c_int, c_int)> {
    Some((data.len().try_into().ok()?, out.len().try_into().ok()?))
}

/// Decompresses a block whose end is not known: `data` may go on after it. Exactly
/// `out.len()` bytes must come out, else false.
pub fn lz4_decompress(data: &[u8], out: &mut [u8]) -> bool {
    decompress(data, out, &[])
}

/// Decompresses a block that may refer to a dictionary, which may be empty.
fn decompress(data: &[u8], out: &mut [u8], dictionary: &[u8]) -> bool {
    let Some((len, room)) = lengths(data, out) else {
        return false;
    };
    // SAFETY: all three ranges are as long as we say, and `out` overlaps none. The function reads and
    // writes inside them whatever `data` holds.
    let n = unsafe {
        LZ4_decompress_safe_partial_usingDict(
            data.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            len,
            room,
            room,
            dictionary.as_ptr().cast(),
            dictionary.len() as c_int,
        )
    };
    n == room
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;

    fn page(seed: u64, random: usize) -> Vec<u8> {
        let mut numbers = Random::new(seed);
        let mut page = vec![0u8; 4096];
        for (i, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let number = if i < random {
                numbers.next()
            } else {
                seed + i as u64 % 8
            };
            *word = number.to_le_bytes();
        }
        page
    }

    #[test]
    fn tables_carry_nothing_over() {
        let (mut lz4, mut fresh) = (Lz4::new(), vec![0; 5000]);
        for seed in 0..400 {
            let data = page(seed, (seed as usize * 37) % 500);
            let mut out = vec![0; 5000];
            let n = lz4.compress(&data, &mut out).unwrap();
            out[n..n + 31].fill(0);
            let mut back = vec![0xff; 4096];
            assert!(
                lz4_decompress(&out[..n + 31], &mut back),
                "padding confuses the decoder"
            );
            assert_eq!(back, data);
            fresh.fill(0);
            let m = Lz4::new().compress(&data, &mut fresh).unwrap();
            assert_eq!((n, &out[..n]), (m, &fresh[..m]));
        }
    }

    #[test]
    fn data_that_does_not_fit_is_refused() {
        let mut out = vec![0; 3840];
        assert_eq!(Lz4::new().compress(&page(7, 512), &mut out), None);
    }

    #[test]
    fn damage_is_contained() {
        let data = page(3, 128);
        let mut out = vec![0; 5000];
        let n = Lz4::new().compress(&data, &mut out).unwrap();
        for at in 0..n {
            let mut bad = out[..n].to_vec();
            bad[at] ^= 0x41;
            let mut back = vec![0; 4096];
            lz4_decompress(&bad, &mut back);
            lz4_decompress(&bad[..at], &mut back);
        }
    }
}
