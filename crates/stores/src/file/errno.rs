//! The meaning of the system's error numbers for a store, in one place.

use ebb_engine::env::IoError;
use rustix::io::Errno;

/// The kind of failure that a transfer's error number tells of.
pub fn classify(errno: Errno) -> IoError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => IoError::NoSpace,
        Errno::FBIG => IoError::FileLimit,
        // EFAULT: the buffer is ours and mapped, so there was no memory for a page of it that was never touched.
        Errno::NOMEM | Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::FAULT => IoError::Again,
        Errno::NXIO
        | Errno::NODEV
        | Errno::BADF
        | Errno::ROFS
        | Errno::PERM
        | Errno::ACCESS
        | Errno::SHUTDOWN
        | Errno::NOTCONN
        | Errno::STALE
        | Errno::TXTBSY
        | Errno::NOMEDIUM => IoError::Device,
        Errno::INVAL | Errno::OVERFLOW => IoError::Request,
        _ => IoError::Slot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds() {
        for (errno, kind) in [
            (Errno::IO, IoError::Slot),
            (Errno::NOMEM, IoError::Again),
            (Errno::FAULT, IoError::Again),
            (Errno::NOSPC, IoError::NoSpace),
            (Errno::DQUOT, IoError::NoSpace),
            (Errno::FBIG, IoError::FileLimit),
            (Errno::NXIO, IoError::Device),
            (Errno::NODEV, IoError::Device),
            (Errno::INVAL, IoError::Request),
        ] {
            assert_eq!(classify(errno), kind, "{errno}");
        }
    }
}
