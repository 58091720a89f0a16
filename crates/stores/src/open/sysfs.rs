//! Facts from sysfs and procfs about a block device or the disk under a file.

use ebb_engine::Node;
use rustix::fs::{Dev, major, minor};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The system's facts about a disk; the defaults where it does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Disk {
    /// Flag: a head moves.
    pub rotational: bool,
    /// Flag: it takes discards.
    pub discards: bool,
    /// Flag: it is memory itself.
    pub in_memory: bool,
    /// Node it hangs on.
    pub node: Option<Node>,
}

/// Facts of block device `dev`, a partition taking them from its disk. Nothing is known of
/// file systems over several devices (btrfs) or none (NFS, overlay): then the defaults.
pub fn disk(dev: Dev) -> Disk {
    disk_in(Path::new("/sys"), dev)
}

/// As `disk`, of a system whose sysfs is mounted there.
fn disk_in(sys: &Path, dev: Dev) -> Disk {
    let number_of = format!("dev/block/{}:{}", major(dev), minor(dev));
    let Ok(found) = fs::canonicalize(sys.join(number_of)) else {
        return Disk::default();
    };
    let disk = if found.join("partition").exists() {
        found.parent().unwrap_or(&found)
    } else {
        &found
    };
    let name = disk.file_name().unwrap_or_default().as_encoded_bytes();
    Disk {
        in_memory: name.starts_with(b"zram") || name.starts_with(b"ram"),
        rotational: number(&disk.join("queue/rotational")) == Some(1),
        discards: number(&disk.join("queue/discard_max_bytes")).is_some_and(|bytes| bytes > 0),
        node: node(sys, disk),
    }
}

/// The node named by the device itself or the nearest thing it hangs on.
fn node(sys: &Path, disk: &Path) -> Option<Node> {
    disk.ancestors()
        .take_while(|path| path.starts_with(sys.join("devices")))
        .flat_map(|path| [path.join("numa_node"), path.join("device/numa_node")])
        .find_map(|path| number(&path))
        .and_then(|node| u16::try_from(node).ok())
        .map(Node)
}

fn number(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether the kernel swaps to the file or device with these numbers.
pub fn is_active_swap(metadata: &fs::Metadata) -> bool {
    is_listed(active_swaps(), metadata)
}

/// The files and devices to which the kernel swaps.
pub fn active_swaps() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swap_paths(&table).collect()
}

fn is_listed(swaps: Vec<PathBuf>, metadata: &fs::Metadata) -> bool {
    swaps.into_iter().any(|path| {
        fs::metadata(path).is_ok_and(|swap| {
            let block = |m: &fs::Metadata| m.mode() & 0o170000 == 0o060000;
            if block(metadata) {
                block(&swap) && swap.rdev() == metadata.rdev()
            } else {
                swap.dev() == metadata.dev() && swap.ino() == metadata.ino()
            }
        })
    })
}

/// Reads a table of /proc/swaps, for the fuzz target.
#[cfg(fuzzing)]
pub fn fuzz_swaps(table: &str) {
    swap_paths(table).for_each(drop);
}

/// The paths of /proc/swaps: the first field of each line but the first, with spaces and the
/// like as octal escapes.
fn swap_paths(table: &str) -> impl Iterator<Item = PathBuf> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_ascii_whitespace().next())
        .map(|field| PathBuf::from(unescape(field)))
}

/// A word of a table of the kernel's without its octal escapes.
pub fn unescape(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut text = parts.next().unwrap_or("").to_owned();
    for part in parts {
        match part
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok())
        {
            Some(code) => {
                text.push(code as char);
                text.push_str(&part[3..]);
            }
            None => {
                text.push('\\');
                text.push_str(part);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_swap_table() {
        let table =
            "Filename\t\tType\t\tSize\n/dev/vdb  partition\t1 0 -2\n/a\\040b\\134c file 1 0 -3\n";
        let paths: Vec<_> = swap_paths(table).collect();
        assert_eq!(paths, [PathBuf::from("/dev/vdb"), PathBuf::from("/a b\\c")]);
    }

    #[test]
    fn a_swap_file_is_known_by_any_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let (swap, other) = (dir.path().join("a swap"), dir.path().join("other"));
        fs::write(&swap, "").unwrap();
        fs::write(&other, "").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&swap, &link).unwrap();
        let listed = swap.display().to_string().replace(' ', "\\040");
        let table = format!("Filename Type Size Used Priority\n{listed} file 8188 0 -2\n");
        assert!(is_listed(
            swap_paths(&table).collect(),
            &fs::metadata(&link).unwrap()
        ));
        assert!(!is_listed(
            swap_paths(&table).collect(),
            &fs::metadata(&other).unwrap()
        ));
    }

    #[test]
    fn a_disk_says_what_it_is_and_its_partitions_take_that() {
        let dir = tempfile::tempdir().unwrap();
        let sys = fs::canonicalize(dir.path()).unwrap();
        let write = |path: &str, text: &str| {
            let path = sys.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let link = |number: &str, path: &str| {
            fs::create_dir_all(sys.join("dev/block")).unwrap();
            let link = sys.join("dev/block").join(number);
            std::os::unix::fs::symlink(sys.join(path), link).unwrap();
        };
        // A disk with a head on node 1, and one of flash that takes discards, of no known node.
        write("devices/pci0/numa_node", "1\n");
        write("devices/pci0/block/sda/queue/rotational", "1\n");
        write("devices/pci0/block/sda/queue/discard_max_bytes", "0\n");
        write("devices/pci0/block/sda/sda1/partition", "1\n");
        write("devices/virtual/vda/queue/rotational", "0\n");
        write(
            "devices/virtual/vda/queue/discard_max_bytes",
            "2147450880\n",
        );
        write("devices/virtual/vda/device/numa_node", "-1\n");
        link("8:0", "devices/pci0/block/sda");
        link("8:1", "devices/pci0/block/sda/sda1");
        link("254:0", "devices/virtual/vda");
        write("devices/virtual/block/zram0/queue/rotational", "0\n");
        link("253:0", "devices/virtual/block/zram0");
        let spinning = Disk {
            rotational: true,
            node: Some(Node(1)),
            ..Disk::default()
        };
        let of = |major, minor| disk_in(&sys, rustix::fs::makedev(major, minor));
        assert_eq!(of(8, 0), spinning);
        assert_eq!(of(8, 1), spinning);
        let flash = Disk {
            discards: true,
            ..Disk::default()
        };
        assert_eq!(of(254, 0), flash);
        assert!(of(253, 0).in_memory);
    }

    #[test]
    fn an_unknown_device_has_the_defaults() {
        assert_eq!(disk(rustix::fs::makedev(4095, 999)), Disk::default());
    }
}
