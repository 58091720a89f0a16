//! This process's memory as a file (`/proc/self/mem`): read without a fault of the reader's own.
//!
//! The kernel looks the pages up by itself. A missing page of memory registered with a userfaultfd is an
//! error, not a wait. So a thread that serves faults may read memory that others may drop meanwhile. Memory
//! without read permission (PROT_NONE) is read all the same.

use crate::kernel::file::{Descriptor, read_up_to};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// This process's memory, to be read.
pub struct MemoryFile(Descriptor);

impl MemoryFile {
    /// Opens `/proc/self/mem`: the memory of the process as it is now, not of a child of it.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open() -> Result<Self, Errno> {
        crate::proc::open(b"/proc/self/mem", rustix::fs::OFlags::RDONLY).map(Self)
    }

    /// The file of this process's memory that somebody else has opened.
    pub fn given(file: OwnedFd) -> Self {
        Self(file.into())
    }

    /// Reads what is at `start`.
    ///
    /// # Errors
    /// Not all of it is there, or can be read.
    pub fn read(&self, start: usize, out: &mut [u8]) -> Result<(), Errno> {
        let len = out.len();
        match read_up_to(&self.0, out, start as u64)? {
            read if read == len => Ok(()),
            _ => Err(Errno::FAULT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::userfaultfd::Userfaultfd;
    use crate::memory::{self, PAGE};

    #[test]
    fn protected_memory_is_read_and_missing_memory_is_an_error() {
        let area = memory::reserve(2 * PAGE).unwrap();
        // SAFETY: memory of this test's own.
        unsafe {
            (area as *mut u8).write_bytes(7, PAGE);
            memory::mprotect(area, 2 * PAGE, libc::PROT_NONE).unwrap();
        }
        let file = MemoryFile::open().unwrap();
        let mut page = [0; PAGE];
        file.read(area, &mut page).unwrap();
        assert_eq!(page, [7; PAGE]);
        let fault = match Userfaultfd::open() {
            Ok(fault) => fault,
            Err(e) => return println!("skipped: no userfaultfd: {e}"),
        };
        fault.register(area, 2 * PAGE).unwrap();
        assert!(file.read(area + PAGE, &mut page).is_err());
        assert!(!fault.wait(0), "nobody waits for it");
        // Such memory can be filled.
        assert_eq!(
            fault.copy(area + PAGE, &[9; PAGE], false, false),
            (PAGE, Ok(()))
        );
        file.read(area + PAGE, &mut page).unwrap();
        assert_eq!(page, [9; PAGE]);
    }
}
