//! Opening what a [`SwapSpec`] names, and refusing what would do harm.
//!
//! - A directory, or no path: a private file in it, without a name (O_TMPFILE, or made with
//!   mode 0600 and unlinked at once). Nothing is left behind, whatever ends the process.
//! - A path that does not exist: refused. It may be a directory that is misspelt or not mounted, and a file beside it
//!   would lie on another disk.
//! - A swap file or block device: used in place, from [`HEADER`] on, so that its swap header
//!   stays and the kernel can use it again. It must carry a swap header or be empty
//!   ([`crate::open::content`]); anything else is somebody's data, unless the user says that it may go. It is
//!   locked, so that two runs cannot share it.
//!
//! No link is followed where something is created.

mod content;
mod error;
mod existing;
mod identity;
mod loop_device;
mod opened;
mod overlay;
mod private_file;
mod spec;
mod swap_header;
mod sysfs;

pub use content::SearchTime;
pub use error::OpenError;
pub use identity::FileIdentity;
pub use opened::OpenedDevice;
pub use spec::{MAX_NODE, MAX_PRIORITY, SpecError, SwapSpec, SwapTarget};
pub use swap_header::PendingHeader;
pub use sysfs::active_swaps;

#[cfg(fuzzing)]
pub use sysfs::fuzz_swaps;

use crate::size::human;
use error::{errno, system};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

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

/// Free bytes with which a directory is taken for the default file, whatever the next ones have.
const ENOUGH: u64 = 1 << 30;

/// A private file in the first directory on a disk that has room enough, else in that with the most; in memory only if
/// there is no other.
fn open_default(place: &SwapTarget) -> Result<OpenedDevice, OpenError> {
    let directories: Vec<PathBuf> = std::env::var_os("TMPDIR")
        .filter(|dir| !dir.is_empty())
        .into_iter()
        .chain(["/var/tmp", "/tmp"].map(OsString::from))
        .map(PathBuf::from)
        .collect();
    let mut tried = Vec::new();
    let mut best: Option<(u64, OpenedDevice)> = None;
    for directory in &directories {
        match private_file::in_directory(directory, place) {
            Ok(device) => {
                let room = match device.facts.in_memory {
                    true => 0,
                    false => private_file::free_bytes(&device.fd).unwrap_or(0),
                };
                if room >= ENOUGH {
                    return Ok(device);
                }
                if best.as_ref().is_none_or(|(most, _)| room > *most) {
                    best = Some((room, device));
                }
            }
            // Another directory does not help.
            Err(error @ OpenError::FilesLimited { .. }) => return Err(error),
            Err(error) => tried.push(error.to_string()),
        }
    }
    let Some((room, mut device)) = best else {
        let tried = tried.join("; ");
        return Err(OpenError::NoDirectory { tried });
    };
    // One in memory has its own note.
    if room > 0 {
        device.notes.push(format!(
            "swap {}: only {} is free there, and no other directory for temporary files has more: name one with --swap PATH",
            device.name,
            human(room)
        ));
    }
    Ok(device)
}

/// The refusal of a path where there is nothing.
fn missing(path: &Path) -> OpenError {
    let name = path.display().to_string();
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    if !parent.is_dir() {
        return OpenError::NoParent {
            path: name,
            parent: parent.display().to_string(),
        };
    }
    match is_of_devices(parent) {
        _ if private_file::is_removed(parent) => OpenError::Removed { path: name },
        true => OpenError::NoDevice { path: name },
        false => OpenError::Missing { path: name },
    }
}

/// Whether a directory holds devices.
fn is_of_devices(directory: &Path) -> bool {
    let directory = directory.canonicalize();
    directory.is_ok_and(|d| d.starts_with("/dev") && !d.starts_with("/dev/shm"))
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
                Errno::NOENT => Err(missing(path)),
                errno => Err(system(&name, "look at it", errno)),
            };
        }
    };
    let kind = metadata.file_type();
    if kind.is_dir() {
        private_file::in_directory(path, place)
    } else if kind.is_file() || kind.is_block_device() {
        existing::existing(path, &metadata, place, look)
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
