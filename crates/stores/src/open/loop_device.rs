//! Loop devices, and the files that they lie over.
//!
//! The kernel keeps nobody else from such a file: what is written there is written under the device, by whoever has
//! it mounted or swaps to it. So a file is not used while a loop device lies over it. A device tells its file by
//! number to whoever may open it. To others sysfs tells a path, which may mean another file in a container.

use ebb_sys::block_device;
use rustix::fs::{Dev, Mode, OFlags, makedev};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A loop device that lies over a file.
pub struct LoopDevice {
    /// Path of its node.
    pub path: PathBuf,
    /// Number of the device.
    pub number: Dev,
    /// File system of its file, and the number there.
    pub file: (u64, u64),
}

/// Those that lie over a file now.
pub fn all() -> impl Iterator<Item = LoopDevice> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten();
    devices.filter_map(|entry| loop_device(&entry.ok()?.path()))
}

/// The loop device of a folder in sysfs; none if it is another one, or lies over nothing.
fn loop_device(folder: &Path) -> Option<LoopDevice> {
    let backing_file = fs::read_to_string(folder.join("loop/backing_file")).ok()?;
    let number = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = number.trim().split_once(':')?;
    let path = Path::new("/dev").join(folder.file_name()?);
    let told = || {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open(&path, flags, Mode::empty()).ok()?;
        block_device::loop_file(&device).ok()
    };
    let named = || {
        let file = fs::metadata(backing_file.trim_end_matches('\n')).ok()?;
        Some((file.dev(), file.ino()))
    };
    Some(LoopDevice {
        number: makedev(major.parse().ok()?, minor.parse().ok()?),
        file: told().or_else(named)?,
        path,
    })
}
