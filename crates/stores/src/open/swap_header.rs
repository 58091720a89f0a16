//! The swap header of an area: how much of it is swap; and a new one for an area that had none. An area used for swap
//! gets a header before anything is written to it. So the next run, the kernel and every tool that looks know what it
//! is, and that its content is nobody's.
//!
//! The format is mkswap's, version 1, without bad pages.

use super::error::{OpenError, system};
use crate::transfer::bounce::Bounce;
use ebb_engine::{CLUSTER_SLOTS, PAGE_SIZE};
use ebb_sys::file::read_up_to;
use rustix::fd::OwnedFd;

/// Bytes of a cluster: the least a device can have, and the unit of its size.
pub const CLUSTER: u64 = (CLUSTER_SLOTS * PAGE_SIZE) as u64;
/// Bytes at the start of an existing swap file or device that are left as they are.
pub const HEADER: u64 = CLUSTER;

/// The words of a header: version, last page, number of bad pages.
const VERSION: usize = 1024;
const LAST_PAGE: usize = 1028;
const BAD_PAGES: usize = 1032;

/// The bytes that are swap by the header of an area, its first page among them: they may be fewer than there are, or
/// more. A header of the format before the first version, which no kernel takes any more, does not say: none.
///
/// # Errors
/// It cannot be read, is of another version, or lists bad pages, as only the kernel passes over them.
pub fn named_bytes(fd: &OwnedFd, name: &str) -> Result<Option<u64>, OpenError> {
    let mut page = Bounce::new(1);
    read_up_to(fd, page.get(), 0).map_err(|errno| system(name, "read it", errno))?;
    let header = page.get();
    if header.ends_with(b"SWAP-SPACE") {
        return Ok(None);
    }
    let word = |at: usize| {
        let bytes = header[at..].first_chunk().expect("a page has it");
        u32::from_ne_bytes(*bytes)
    };
    let path = name.to_owned();
    match (word(VERSION), word(BAD_PAGES)) {
        (1, 0) => Ok(Some((u64::from(word(LAST_PAGE)) + 1) * PAGE_SIZE as u64)),
        (1, pages) => Err(OpenError::BadPages { path, pages }),
        (version, _) => Err(OpenError::HeaderVersion { path, version }),
    }
}

/// An area in use that has no swap header yet.
#[derive(Debug)]
pub struct PendingHeader {
    pub(crate) fd: OwnedFd,
    pub(crate) name: String,
    /// Bytes in all.
    pub(crate) size: u64,
    /// Flag: there is something else at its start, which goes.
    pub(crate) wipe: bool,
}

impl PendingHeader {
    /// Writes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(self) -> Result<(), OpenError> {
        let bytes = if self.wipe { HEADER } else { PAGE_SIZE as u64 };
        let mut area = Bounce::new((bytes / PAGE_SIZE as u64) as usize);
        header(&mut area.get()[..PAGE_SIZE], self.size);
        let mut done = 0;
        while done < bytes {
            let rest = &area.get()[done as usize..];
            done += rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.fd, rest, done))
                .map_err(|errno| system(&self.name, "write a swap header", errno))?
                as u64;
        }
        Ok(())
    }
}

/// Makes a page of zeros the header of an area of so many bytes.
fn header(page: &mut [u8], size: u64) {
    debug_assert!(size >= HEADER + CLUSTER);
    let last = u32::try_from(size / PAGE_SIZE as u64 - 1).unwrap_or(u32::MAX);
    page[VERSION..VERSION + 4].copy_from_slice(&1u32.to_ne_bytes());
    page[LAST_PAGE..LAST_PAGE + 4].copy_from_slice(&last.to_ne_bytes());
    let uuid = &mut page[1036..1052];
    // Without one it is a header all the same.
    let _ = ebb_sys::random::fill(uuid);
    // Version 4, variant 1.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    page[1052..1059].copy_from_slice(b"ebbtide");
    page[PAGE_SIZE - 10..].copy_from_slice(b"SWAPSPACE2");
}
