//! Entry point of the fuzz target of `/proc` texts (`fuzz/`). Built with `--cfg fuzzing` alone.

/// The table of /proc/swaps.
pub fn swaps(text: &[u8]) {
    crate::open::fuzz_swaps(&String::from_utf8_lossy(text));
}
