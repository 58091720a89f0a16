//! Swap files and block devices that are there already.

use super::content::{Content, SearchTime, content};
use super::error::{OpenError, errno, system};
use super::loop_device;
use super::opened::{OpenedDevice, facts, finish, usable};
use super::spec::SwapTarget;
use super::swap_header::{CLUSTER, HEADER, PendingHeader, named_bytes};
use super::sysfs;
use crate::size::human;
use ebb_engine::PAGE_SIZE;
use ebb_sys::block_device;
use ebb_sys::file::is_locked;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long a claim on a device may be in our way before it is taken for a mount's.
const PASSING: Duration = Duration::from_millis(100);

/// Opens what is there already. A search for a free loop device, or a probe after a change, claims a block
/// device for an instant (losetup, udev). So a device that is claimed is tried again for a while.
fn claim(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let start = Instant::now();
    loop {
        match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::BUSY) if start.elapsed() < PASSING => {
                thread::sleep(Duration::from_millis(5));
            }
            answer => return answer,
        }
    }
}

/// A swap file or block device that is there already.
pub fn existing(
    path: &Path,
    metadata: &fs::Metadata,
    place: &SwapTarget,
    look: &SearchTime<'_>,
) -> Result<OpenedDevice, OpenError> {
    let name = path.display().to_string();
    let block = metadata.file_type().is_block_device();
    if !block {
        check_no_loop(&name, (metadata.dev(), metadata.ino()))?;
    }
    if sysfs::is_active_swap(metadata) {
        return Err(OpenError::ActiveSwap { path: name });
    }
    let (fd, whole) = hold(path, &name, metadata, block)?;
    // Before its size: nobody is to enlarge what is somebody's data.
    let pending_header = may_be_written(&fd, &name, whole, place, look)?;
    let named = match pending_header {
        Some(_) => None,
        None => named_bytes(&fd, &name)?,
    };
    let mut notes = Vec::new();
    let end = end(&name, whole, named, place, &mut notes)?;
    let size =
        usable(&name, end.saturating_sub(HEADER), place.size, &mut notes)? / CLUSTER * CLUSTER;
    if size == 0 {
        return Err(OpenError::TooSmall {
            path: name,
            size: human(end),
            least: human(HEADER + CLUSTER),
        });
    }
    let disk = sysfs::disk(if block {
        metadata.rdev()
    } else {
        metadata.dev()
    });
    let mut facts = facts(size, &disk, place);
    facts.base = HEADER;
    facts.block = block;
    // A swap file with holes is one that the kernel refuses, so none are made in it unless
    // asked for.
    facts.wants_discard = place.discard.unwrap_or(block && disk.discards);
    let mut device = finish(fd, facts, name, place, notes);
    device.pending_header = pending_header;
    Ok(device)
}

/// The end of the part that is used, of an area of `whole` bytes: of those that its header names, if it has one that
/// says so, as what lies behind them may be anybody's. A header may name more than there is.
fn end(
    name: &str,
    whole: u64,
    named: Option<u64>,
    place: &SwapTarget,
    notes: &mut Vec<String>,
) -> Result<u64, OpenError> {
    let area = named.unwrap_or(whole).min(whole);
    if let Some(size) = place.size {
        let (path, asked) = (name.to_owned(), size.to_string());
        return match size.of(area) {
            end if end <= area => Ok(end),
            end if end <= whole => Err(OpenError::HeaderNamesLess {
                path,
                size: human(area),
                asked,
            }),
            _ => Err(OpenError::LessThanAsked {
                path,
                size: human(whole),
                asked,
            }),
        };
    }
    // The last part of a page is nothing that a header could name.
    if area + (PAGE_SIZE as u64) <= whole {
        notes.push(format!(
            "swap {name}: its swap header names {} of its {}, and no more is used: \"mkswap {name}\" makes a new one",
            human(area),
            human(whole)
        ));
    }
    Ok(area)
}

/// That no loop device lies over a file.
fn check_no_loop(name: &str, file: (u64, u64)) -> Result<(), OpenError> {
    match loop_device::all().find(|device| device.file == file) {
        None => Ok(()),
        Some(device) => Err(OpenError::UnderLoop {
            path: name.to_owned(),
            device: device.path.display().to_string(),
        }),
    }
}

/// Opens it for nobody else meanwhile, and says how large it is.
fn hold(
    path: &Path,
    name: &str,
    metadata: &fs::Metadata,
    block: bool,
) -> Result<(OwnedFd, u64), OpenError> {
    let own = || name.to_owned();
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    if block {
        // Fails while the device is mounted or otherwise claimed, and claims it for us.
        flags |= OFlags::EXCL;
    }
    let fd = claim(path, flags).map_err(|errno| match errno {
        Errno::BUSY => OpenError::Mounted { path: own() },
        Errno::TXTBSY => OpenError::ActiveSwap { path: own() },
        errno => system(name, "open it for reading and writing", errno),
    })?;
    let failed = |doing| move |errno| system(name, doing, errno);
    let opened = rustix::fs::fstat(&fd).map_err(failed("look at it"))?;
    if (opened.st_dev, opened.st_ino) != (metadata.dev(), metadata.ino()) {
        return Err(system(
            name,
            "open it: it was exchanged meanwhile",
            Errno::STALE,
        ));
    }
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(Errno::WOULDBLOCK) => return Err(OpenError::Taken { path: own() }),
        Err(errno) => return Err(system(name, "lock it", errno)),
    }
    // Locks of that kind have nothing to do with ours. Not all file systems know them.
    if is_locked(&fd) == Ok(true) {
        return Err(OpenError::Locked { path: own() });
    }
    let whole = if block {
        block_device::size_bytes(&fd).map_err(failed("see its size"))?
    } else {
        u64::try_from(opened.st_size).unwrap_or(0)
    };
    Ok((fd, whole))
}

/// That nobody's data is lost if it is written over; and what is to be marked as swap then.
fn may_be_written(
    fd: &OwnedFd,
    name: &str,
    size: u64,
    place: &SwapTarget,
    look: &SearchTime<'_>,
) -> Result<Option<PendingHeader>, OpenError> {
    let path = || name.to_owned();
    let overwrite = place.overwrite == Some(true);
    // With leave to overwrite, no search is waited for.
    let look = if overwrite {
        &SearchTime::AtMost(Duration::ZERO)
    } else {
        look
    };
    let found = content(fd, size, look).map_err(|errno| system(name, "read it", errno))?;
    let wipe = match found {
        Content::Swap => return Ok(None),
        Content::Zeros => false,
        // Its header stays, by whose number the system may know it.
        Content::Mixed(_) if overwrite => return Ok(None),
        Content::Data(_) | Content::NotSearched if overwrite => true,
        // Not to be overwritten: whoever starts that system would resume from what is left of it.
        Content::Hibernated => return Err(OpenError::Hibernated { path: path() }),
        Content::Data(found) | Content::Mixed(found) => {
            return Err(OpenError::HoldsData {
                path: path(),
                found,
            });
        }
        Content::NotSearched => {
            return Err(OpenError::NotSeen {
                path: path(),
                size: human(size),
            });
        }
    };
    let fd = fd
        .try_clone()
        .map_err(|error| system(name, "open it", errno(&error)))?;
    Ok(Some(PendingHeader {
        fd,
        name: path(),
        size,
        wipe,
    }))
}
