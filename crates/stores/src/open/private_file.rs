//! Private swap files: made without a name, or unlinked at once.

use super::error::{OpenError, system};
use super::opened::{MAX_DEVICE, OpenedDevice, facts, finish, usable};
use super::spec::SwapTarget;
use super::swap_header::CLUSTER;
use super::sysfs;
use crate::size::{Size, human};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Resource;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a file system's free space that a private file of no given size leaves alone,
/// unless a tenth of it is less.
const MARGIN: u64 = 1 << 30;

/// A private file without a name in `directory`.
pub fn in_directory(directory: &Path, place: &SwapTarget) -> Result<OpenedDevice, OpenError> {
    let name = directory.display().to_string();
    let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => fd,
        // The file system (or an old kernel) does not know nameless files.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let unique = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_nanos());
            let file = format!(".ebb-swap-{}-{unique:x}", std::process::id());
            create_unlinked(&directory.join(file), &name)?
        }
        Err(_) if is_removed(directory) => return Err(OpenError::Removed { path: name }),
        Err(errno) => return Err(system(&name, "create a file there", errno)),
    };
    private(fd, name, place)
}

/// Bytes that are free in the file system of an open file.
pub fn free_bytes(fd: &OwnedFd) -> Result<u64, Errno> {
    let space = rustix::fs::fstatvfs(fd)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Whether a directory that can be reached has no name any more: it is somebody's current one.
pub fn is_removed(directory: &Path) -> bool {
    std::fs::metadata(directory).is_ok_and(|meta| meta.nlink() == 0)
}

/// Creates a file and takes its name away. EXCL follows no link.
fn create_unlinked(path: &Path, name: &str) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| system(name, "create a file there", errno))?;
    rustix::fs::unlink(path).map_err(|errno| system(name, "unlink the new file", errno))?;
    Ok(fd)
}

fn private(fd: OwnedFd, name: String, place: &SwapTarget) -> Result<OpenedDevice, OpenError> {
    let failed = |doing| {
        let name = name.clone();
        move |errno| system(&name, doing, errno)
    };
    let free = free_bytes(&fd).map_err(failed("see how much is free"))?;
    let limit = rustix::process::getrlimit(Resource::Fsize)
        .current
        .unwrap_or(u64::MAX);
    if limit < CLUSTER {
        return Err(OpenError::FilesLimited {
            path: name,
            limit: human(limit),
            least: human(CLUSTER),
        });
    }
    let mut notes = Vec::new();
    let asked = match place.size {
        Some(size) => size.of(free),
        None => (free - MARGIN.min(free / 10)).min(limit).min(MAX_DEVICE),
    };
    let size = usable(&name, asked, place.size, &mut notes)? / CLUSTER * CLUSTER;
    if size == 0 {
        return Err(OpenError::TooSmall {
            path: name,
            size: match place.size {
                Some(Size::Bytes(bytes)) => human(bytes),
                Some(share) => format!("{share} of the {} free", human(free)),
                None => format!("{} free", human(free)),
            },
            least: human(CLUSTER),
        });
    }
    if size > limit {
        return Err(OpenError::FileLimit {
            path: name,
            asked: human(size),
        });
    }
    if size > free {
        notes.push(format!(
            "swap {name}: only {} of the {} asked for is free now",
            human(free),
            human(size)
        ));
    }
    rustix::fs::ftruncate(&fd, size).map_err(|errno| match errno {
        Errno::FBIG | Errno::INVAL => OpenError::FileLimit {
            path: name.clone(),
            asked: human(size),
        },
        errno => system(&name, "set its size", errno),
    })?;
    let dev = rustix::fs::fstat(&fd).map_err(failed("look at it"))?.st_dev;
    let disk = sysfs::disk(dev);
    let mut facts = facts(size, &disk, place);
    // Punching holes and filling them again costs several times what writing over does, and
    // the whole file goes at the end anyway.
    facts.wants_discard = place.discard.unwrap_or(false);
    Ok(finish(fd, facts, name, place, notes))
}
