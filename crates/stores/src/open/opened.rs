//! An opened device, whatever it was opened from.

use super::error::OpenError;
use super::overlay::upper_layer;
use super::spec::SwapTarget;
use super::swap_header::PendingHeader;
use super::sysfs::Disk;
use crate::Facts;
use crate::size::{Size, human};
use crate::transfer::bounce::Bounce;
use ebb_engine::{MAX_DEVICE_SLOTS, PAGE_SIZE};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;

/// Bytes of a device that are used at most.
pub const MAX_DEVICE: u64 = MAX_DEVICE_SLOTS * PAGE_SIZE as u64;

/// An opened device.
#[derive(Debug)]
pub struct OpenedDevice {
    /// The descriptor, close-on-exec.
    pub fd: OwnedFd,
    /// The facts.
    pub facts: Facts,
    /// The priority asked for.
    pub priority: Option<i16>,
    /// The name for messages.
    pub name: String,
    /// Notes for the user, a sentence each.
    pub notes: Vec<String>,
    /// The header to be written before data is.
    pub pending_header: Option<PendingHeader>,
}

/// The bytes of a device that can be used. A size asked for in bytes is refused where it is more than that; of a
/// share, or of a device that is there already, the rest is noted: nobody asked for it.
pub fn usable(
    name: &str,
    size: u64,
    asked: Option<Size>,
    notes: &mut Vec<String>,
) -> Result<u64, OpenError> {
    if size > MAX_DEVICE && matches!(asked, Some(Size::Bytes(_))) {
        return Err(OpenError::TooLarge {
            path: name.into(),
            asked: human(size),
            most: human(MAX_DEVICE),
        });
    }
    if size > MAX_DEVICE {
        notes.push(format!(
            "swap {name}: {} of its {} are used, as many as a device can have: give the rest as others",
            human(MAX_DEVICE),
            human(size)
        ));
    }
    Ok(size.min(MAX_DEVICE))
}

/// Whether a file lies in a file system that is memory itself, or in an overlay over one, as far as that can be seen.
fn is_in_page_cache_alone(fd: &OwnedFd) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    const OVERLAY: u32 = 0x794c_7630;
    let mut kind = file_system(fd);
    if kind == Ok(OVERLAY)
        && let Some(upper) = upper_layer(fd)
    {
        kind = rustix::fs::statfs(upper).map(|found| found.f_type as u32);
    }
    matches!(kind, Ok(TMPFS | RAMFS))
}

/// The kind of a file's file system, by its number.
fn file_system(fd: &OwnedFd) -> Result<u32, Errno> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as u32)
}

/// The facts of a device of `size` bytes on that disk.
pub fn facts(size: u64, disk: &Disk, place: &SwapTarget) -> Facts {
    let mut facts = Facts::new(size / PAGE_SIZE as u64);
    facts.in_memory = disk.in_memory;
    facts.rotational = place.rotational.unwrap_or(disk.rotational);
    facts.with_node(place.node.or(disk.node))
}

/// Turns the page cache off if the file system can do without, else asks it not to read
/// ahead.
pub fn finish(
    fd: OwnedFd,
    mut facts: Facts,
    name: String,
    place: &SwapTarget,
    mut notes: Vec<String>,
) -> OpenedDevice {
    // The node of a block device says nothing of the device.
    let in_page_cache = !facts.block && is_in_page_cache_alone(&fd);
    facts.in_memory |= in_page_cache;
    if facts.in_memory {
        notes.push(format!(
            "swap {name} lies in memory, where what is written still takes RAM: give a directory, file or device on a disk"
        ));
    }
    facts.direct = !in_page_cache && go_direct(&fd, facts.base);
    if !facts.direct && !in_page_cache {
        let _ = rustix::fs::fadvise(&fd, 0, None, rustix::fs::Advice::Random);
        notes.push(format!(
            "swap {name}: transfers past the page cache (O_DIRECT) are not safe or not possible on its file system, so they are slower"
        ));
    }
    OpenedDevice {
        fd,
        facts,
        priority: place.priority,
        name,
        notes,
        pending_header: None,
    }
}

/// Whether the file system takes O_DIRECT and uses the page cache all the same, as it does for encrypted files or those
/// whose data goes to a journal. Where it does not say, it is believed.
fn falls_back(fd: &OwnedFd) -> bool {
    let found = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    found.is_ok_and(|found| {
        let says = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN);
        let align = found.stx_dio_offset_align as usize;
        says && !(1..=PAGE_SIZE).contains(&align)
    })
}

/// Whether a server has the file. There a thread that is killed leaves a write past the page cache before the server has
/// it. Its slots would be given to others, and be overwritten after that. In the page cache the later write stays.
fn is_remote(fd: &OwnedFd) -> bool {
    const NFS: u32 = 0x6969;
    const CEPH: u32 = 0x00c3_6400;
    const CIFS: u32 = 0xff53_4d42;
    const SMB2: u32 = 0xfe53_4d42;
    matches!(file_system(fd), Ok(NFS | CEPH | CIFS | SMB2))
}

/// Whether page-sized transfers work past the page cache; the descriptor is left that way.
fn go_direct(fd: &OwnedFd, base: u64) -> bool {
    let Ok(flags) = rustix::fs::fcntl_getfl(fd) else {
        return false;
    };
    let flags = flags - OFlags::NONBLOCK;
    if rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT).is_err() {
        return false;
    }
    let mut page = Bounce::new(1);
    let mut works = || rustix::io::pread(fd, page.get(), base) == Ok(PAGE_SIZE);
    if !is_remote(fd) && works() && !falls_back(fd) {
        return true;
    }
    let _ = rustix::fs::fcntl_setfl(fd, flags);
    false
}
