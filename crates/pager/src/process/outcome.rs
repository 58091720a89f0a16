//! How memory calls answer: with a value, or with an error number as the kernel does.

use ebb_sys::Errno;

/// A value, or an error number.
pub type Outcome<T> = Result<T, i32>;

/// No error of the kernel's: pages that the call needs are in transit. Nothing was done, and the call is
/// to be made again.
pub const RETRY: i32 = -1;

/// The number of a kernel's error.
pub fn errno(error: Errno) -> i32 {
    error.0
}
