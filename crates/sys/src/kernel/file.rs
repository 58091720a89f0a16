//! Reading files by position.

use rustix::fd::AsFd;
use rustix::io::Errno;

/// Reads from `offset` on until `into` is full or the file ends; the bytes read.
///
/// # Errors
/// Those of pread(2), but for EINTR.
pub fn read_up_to(fd: impl AsFd, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(&fd, &mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
