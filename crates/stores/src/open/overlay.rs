//! The directory that takes what is written to an overlay file system.
//!
//! The mount names it as whoever mounted it saw it. In a container that path leads nowhere as a rule: then nothing is
//! known.

use super::sysfs::unescape;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, StatxFlags};
use std::fs;
use std::path::PathBuf;

/// The upper layer of the overlay in which an open file lies, as its mount names it.
pub fn upper_layer(fd: &OwnedFd) -> Option<PathBuf> {
    // The number of its device is that of a layer, which no mount has.
    let found = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    let table = fs::read("/proc/self/mountinfo").ok()?;
    upper_layer_in(&String::from_utf8_lossy(&table), found.stx_mnt_id)
}

/// As `upper_layer`, of a mount by its number in a table of mounts.
fn upper_layer_in(table: &str, mount: u64) -> Option<PathBuf> {
    let mut mounts = table.lines().filter_map(|line| line.split_once(' '));
    let (_, facts) = mounts.find(|(number, _)| number.parse() == Ok(mount))?;
    let (_, file_system) = facts.split_once(" - ")?;
    let mut options = file_system.split(' ').nth(2)?.split(',');
    let upper = options.find_map(|option| option.strip_prefix("upperdir="))?;
    let upper = PathBuf::from(unescape(upper));
    upper.is_absolute().then_some(upper)
}

#[cfg(test)]
#[test]
fn the_upper_layer_of_a_mount() {
    let table = "27 1 254:0 / / rw - ext4 /dev/vda rw,discard\n\
        31 27 0:41 / /a rw shared:1 - overlay none rw,lowerdir=/l,upperdir=/u\\0401\\054,workdir=/w\n\
        32 27 0:42 / /b ro - overlay overlay ro,lowerdir=/l:/m\n\
        33 27 0:43 / /c rw - overlay overlay rw,upperdir=u,workdir=w\n";
    assert_eq!(upper_layer_in(table, 31), Some(PathBuf::from("/u 1,")));
    for none in [27, 32, 33, 34] {
        assert_eq!(upper_layer_in(table, none), None, "{none}");
    }
}
