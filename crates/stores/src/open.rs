//! Opening what a [`SwapSpec`] names, and refusing what would do harm.
//!
//! - A directory, or no path: a private file in it, without a name (O_TMPFILE, or made with
//!   mode 0600 and unlinked at once). Nothing is left behind, whatever ends the process.
//! - A path that does not exist: the same, made at that path and unlinked at once.
//! - A swap file or block device: used in place, from [`HEADER`] on, so that its swap header
//!   stays and the kernel can use it again. It must carry a swap header or be empty
//!   ([`crate::content`]); anything else is somebody's data, unless the user says that it may go. It is
//!   locked, so that two runs cannot share it.
//!
//! No link is followed where something is created.

use crate::Facts;
use crate::bounce::Bounce;
use crate::content::{Content, SearchTime, content};
use crate::open_error::{OpenError, errno, system};
use crate::size::{Size, human};
use crate::spec::{SwapSpec, SwapTarget};
use crate::swap_header::{CLUSTER, HEADER, PendingHeader};
use crate::sysfs::{self, Disk};
use ebb_engine::{MAX_SLOTS, PAGE_SIZE};
use ebb_sys::block_device;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Resource;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of a device that are used at most.
pub const MAX_DEVICE: u64 = MAX_SLOTS * PAGE_SIZE as u64;

/// Bytes of a file system's free space that a private file of no given size leaves alone,
/// unless a tenth of it is less.
const MARGIN: u64 = 1 << 30;

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

/// An opened device.
#[derive(Debug)]
pub struct OpenedDevice {
    /// Its descriptor, close-on-exec.
    pub fd: OwnedFd,
    /// What is known of it.
    pub facts: Facts,
    /// The priority asked for.
    pub priority: Option<i16>,
    /// Its name for messages.
    pub name: String,
    /// What the user should know, a sentence each.
    pub notes: Vec<String>,
    /// What is to be marked as swap before it is written to.
    pub pending_header: Option<PendingHeader>,
}

/// Opens what `spec` names; none for [`SwapSpec::None`].
///
/// # Errors
/// It cannot be used, or must not.
pub fn open(spec: &SwapSpec, look: &SearchTime<'_>) -> Result<Option<OpenedDevice>, OpenError> {
    match spec {
        SwapSpec::None => Ok(None),
        SwapSpec::At(place) => match &place.path {
            Some(path) => {
                check_node(path, place, &ebb_sys::thread::online_nodes())?;
                open_at(path, place, look).map(Some)
            }
            None => open_default(place).map(Some),
        },
    }
}

/// That the machine has the node asked for: no processor would have the device for its own, and
/// nobody would be told.
fn check_node(path: &Path, place: &SwapTarget, nodes: &[u16]) -> Result<(), OpenError> {
    match place.node {
        Some(node) if !nodes.contains(&node.0) => Err(OpenError::NoNode {
            path: path.display().to_string(),
            node: node.0,
            nodes: nodes
                .iter()
                .map(u16::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        }),
        _ => Ok(()),
    }
}

/// A private file in the first directory that is not in memory; in memory only if there is
/// no other.
fn open_default(place: &SwapTarget) -> Result<OpenedDevice, OpenError> {
    let directories: Vec<PathBuf> = std::env::var_os("TMPDIR")
        .filter(|dir| !dir.is_empty())
        .into_iter()
        .chain(["/var/tmp", "/tmp"].map(OsString::from))
        .map(PathBuf::from)
        .collect();
    let mut tried = Vec::new();
    let mut in_memory = None;
    for directory in &directories {
        match private_in(directory, place) {
            Ok(device) if !device.facts.in_memory => return Ok(device),
            Ok(device) => in_memory = in_memory.or(Some(device)),
            Err(error) => tried.push(error.to_string()),
        }
    }
    in_memory.ok_or_else(|| OpenError::NoDirectory {
        tried: tried.join("; "),
    })
}

fn open_at(
    path: &Path,
    place: &SwapTarget,
    look: &SearchTime<'_>,
) -> Result<OpenedDevice, OpenError> {
    let name = path.display().to_string();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => {
            return match errno(&error) {
                // A link that leads nowhere must not decide where a file is made.
                Errno::NOENT if fs::symlink_metadata(path).is_ok() => Err(OpenError::Kind {
                    path: name,
                    kind: "link that leads nowhere",
                }),
                Errno::NOENT => private_at(path, place),
                errno => Err(system(&name, "look at it", errno)),
            };
        }
    };
    let kind = metadata.file_type();
    if kind.is_dir() {
        private_in(path, place)
    } else if kind.is_file() || kind.is_block_device() {
        existing(path, &metadata, place, look)
    } else {
        Err(OpenError::Kind {
            path: name,
            kind: if kind.is_char_device() {
                "character device"
            } else if kind.is_fifo() {
                "pipe"
            } else {
                "socket"
            },
        })
    }
}

/// A private file without a name in `directory`.
fn private_in(directory: &Path, place: &SwapTarget) -> Result<OpenedDevice, OpenError> {
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
        Err(errno) => return Err(system(&name, "create a file there", errno)),
    };
    private(fd, name, place)
}

/// A private file made at `path`, which does not exist, and unlinked at once.
fn private_at(path: &Path, place: &SwapTarget) -> Result<OpenedDevice, OpenError> {
    let name = path.display().to_string();
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    if !parent.is_dir() {
        return Err(OpenError::NoParent {
            path: name,
            parent: parent.display().to_string(),
        });
    }
    private(create_unlinked(path, &name)?, name, place)
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
    let space = rustix::fs::fstatvfs(&fd).map_err(failed("see how much is free"))?;
    let kind = rustix::fs::fstatfs(&fd)
        .map_err(failed("see its file system"))?
        .f_type as u64;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let limit = rustix::process::getrlimit(Resource::Fsize)
        .current
        .unwrap_or(u64::MAX);
    let mut notes = Vec::new();
    let asked = match place.size {
        Some(size) => size.of(free),
        None => (free - MARGIN.min(free / 10)).min(limit).min(MAX_DEVICE),
    };
    let size = usable(&name, asked, &mut notes) / CLUSTER * CLUSTER;
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
    let in_memory = matches!(kind, TMPFS | RAMFS);
    if in_memory {
        notes.push(format!(
            "swap {name} is a file system in memory: swapping there frees no RAM; give a directory on a disk"
        ));
    }
    let dev = rustix::fs::fstat(&fd).map_err(failed("look at it"))?.st_dev;
    let disk = sysfs::disk(dev);
    let mut facts = facts(size, &disk, place);
    // Punching holes and filling them again costs several times what writing over does, and
    // the whole file goes at the end anyway.
    facts.wants_discard = place.discard.unwrap_or(false);
    facts.in_memory = in_memory;
    Ok(finish(fd, facts, name, place, notes))
}

/// How long a claim on a device may be in our way before it is taken for a mount's.
const PASSING: Duration = Duration::from_millis(100);

/// Opens what is there already. A block device is claimed for an instant by whoever looks for a
/// free loop device or probes it after a change (losetup, udev), so one that is claimed is tried
/// again for a while.
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
fn existing(
    path: &Path,
    metadata: &fs::Metadata,
    place: &SwapTarget,
    look: &SearchTime<'_>,
) -> Result<OpenedDevice, OpenError> {
    let name = path.display().to_string();
    if sysfs::is_active_swap(metadata) {
        return Err(OpenError::ActiveSwap { path: name });
    }
    let block = metadata.file_type().is_block_device();
    let (fd, whole) = hold(path, &name, metadata, block)?;
    let end = match place.size {
        None => whole,
        Some(size) if size.of(whole) <= whole => size.of(whole),
        Some(size) => {
            return Err(OpenError::LessThanAsked {
                path: name,
                size: human(whole),
                asked: size.to_string(),
            });
        }
    };
    // Before its size: nobody is to enlarge what is somebody's data.
    let pending_header = may_be_written(&fd, &name, whole, place, look)?;
    let mut notes = Vec::new();
    let size = usable(&name, end.saturating_sub(HEADER), &mut notes) / CLUSTER * CLUSTER;
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

/// The bytes of a device that can be used; notes the rest.
fn usable(name: &str, size: u64, notes: &mut Vec<String>) -> u64 {
    if size > MAX_DEVICE {
        notes.push(format!(
            "swap {name}: {} of its {} are used, as many as a device can have: give the rest as others",
            human(MAX_DEVICE),
            human(size)
        ));
    }
    size.min(MAX_DEVICE)
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
    // Who may overwrite waits for no search.
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

fn facts(size: u64, disk: &Disk, place: &SwapTarget) -> Facts {
    let mut facts = Facts::new(size / PAGE_SIZE as u64);
    facts.rotational = place.rotational.unwrap_or(disk.rotational);
    facts.with_node(place.node.or(disk.node))
}

/// Turns the page cache off if the file system can do without, else asks it not to read
/// ahead.
fn finish(
    fd: OwnedFd,
    mut facts: Facts,
    name: String,
    place: &SwapTarget,
    mut notes: Vec<String>,
) -> OpenedDevice {
    facts.direct = !facts.in_memory && go_direct(&fd, facts.base);
    if !facts.direct && !facts.in_memory {
        let _ = rustix::fs::fadvise(&fd, 0, None, rustix::fs::Advice::Random);
        notes.push(format!(
            "swap {name}: its file system has no O_DIRECT, so transfers go through the page cache and are slower"
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
    if rustix::io::pread(fd, page.get(), base) == Ok(PAGE_SIZE) {
        return true;
    }
    let _ = rustix::fs::fcntl_setfl(fd, flags);
    false
}
