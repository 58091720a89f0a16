//! Opening swap devices on real file systems, and every refusal.

use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_engine::{Node, PAGE_SIZE};
use ebb_stores::{FileIdentity, FileStore, OpenError, OpenedDevice, SearchTime, SwapSpec, open};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const LOOK: SearchTime<'_> = SearchTime::AtMost(Duration::from_secs(60));

fn dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn try_open(spec: &str) -> Result<OpenedDevice, OpenError> {
    open(&spec.parse::<SwapSpec>().unwrap(), &LOOK).map(|device| device.expect("a device"))
}

fn refusal(spec: &str, says: &str) {
    let error = try_open(spec).expect_err(spec).to_string();
    assert!(error.contains(says), "{spec}: {error}");
}

fn sized(path: &Path, bytes: u64) -> String {
    File::create(path).unwrap().set_len(bytes).unwrap();
    path.display().to_string()
}

fn names(dir: &TempDir) -> usize {
    fs::read_dir(dir.path()).unwrap().count()
}

/// Writes and reads back the first and the last slot.
fn exercise(device: OpenedDevice) {
    let slots = device.facts.slots;
    let store = FileStore::from_fd(device.fd, device.facts);
    let pages = [[5u8; PAGE_SIZE], [6u8; PAGE_SIZE]];
    let ops = [
        WriteOp {
            slot: 0,
            data: &pages[0],
        },
        WriteOp {
            slot: slots - 1,
            data: &pages[1],
        },
    ];
    let mut results = [Err(IoError::Slot); 2];
    store.write(&ops, &mut results);
    assert_eq!(results, [Ok(()); 2]);
    let mut back = [[0u8; PAGE_SIZE]; 2];
    let [first, last] = &mut back;
    let mut ops = [
        ReadOp {
            slot: 0,
            data: first,
        },
        ReadOp {
            slot: slots - 1,
            data: last,
        },
    ];
    store.read(&mut ops, &mut results);
    assert_eq!(results, [Ok(()); 2]);
    assert!(back == pages);
}

#[test]
fn the_users_word_on_rotation_overrules_the_system() {
    for (spec, rotational) in [("on", true), ("off", false)] {
        let dir = dir();
        let spec = format!("{}:8M,rotational={spec}", dir.path().display());
        assert_eq!(try_open(&spec).unwrap().facts.rotational, rotational);
    }
}

#[test]
fn none_is_no_device() {
    assert!(open(&SwapSpec::None, &LOOK).unwrap().is_none());
}

#[test]
fn a_private_file_has_no_name_and_no_other_reader() {
    let dir = dir();
    let device = try_open(&format!("{}:9M,prio=3,node=0", dir.path().display())).unwrap();
    assert_eq!(names(&dir), 0);
    let stat = rustix::fs::fstat(&device.fd).unwrap();
    assert_eq!((stat.st_nlink, stat.st_mode & 0o777), (0, 0o600));
    let flags = rustix::io::fcntl_getfd(&device.fd).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    assert_eq!(device.facts.slots * PAGE_SIZE as u64, 8 * MIB);
    assert_eq!(
        (device.priority, device.facts.node()),
        (Some(3), Some(Node(0)))
    );
    assert!(!device.facts.wants_discard);
    assert!(stat.st_blocks < 64, "sparse until used");
    exercise(device);
}

#[test]
fn the_default_is_a_private_file() {
    let device = open(&SwapSpec::default(), &LOOK)
        .unwrap()
        .expect("a device");
    let stat = rustix::fs::fstat(&device.fd).unwrap();
    let space = rustix::fs::fstatvfs(&device.fd).unwrap();
    assert_eq!(stat.st_nlink, 0);
    assert!(device.facts.slots.is_multiple_of(512) && device.facts.slots > 0);
    assert!((stat.st_size as u64) <= space.f_bavail * space.f_frsize + 64 * MIB);
    exercise(device);
}

#[test]
fn a_share_is_of_what_is_free() {
    let dir = dir();
    let device = try_open(&format!("{}:10%", dir.path().display())).unwrap();
    let space = rustix::fs::fstatvfs(&device.fd).unwrap();
    let tenth = space.f_bavail * space.f_frsize / 10;
    let size = device.facts.slots * PAGE_SIZE as u64;
    assert!(
        size.abs_diff(tenth) < tenth / 4 + 4 * MIB,
        "{size} of {tenth}"
    );
}

/// A file beside a directory that is misspelt might lie on another disk.
#[test]
fn a_path_that_does_not_exist_is_refused_with_both_ways_to_make_it() {
    let dir = dir();
    let path = dir.path().join("swap");
    let path = path.display();
    for says in [
        "no such file",
        &format!("mkdir {path}"),
        &format!("fallocate -l SIZE {path}"),
    ] {
        refusal(&format!("{path}:4M"), says);
    }
    assert_eq!(names(&dir), 0, "nothing is made");
    // As the message says.
    sized(&dir.path().join("swap"), 8 * MIB);
    exercise(try_open(&path.to_string()).unwrap());
}

#[test]
fn no_link_decides_where_a_file_is_made() {
    let dir = dir();
    let link = dir.path().join("link");
    let victim = dir.path().join("victim");
    symlink(&victim, &link).unwrap();
    refusal(&format!("{}:4M", link.display()), "link that leads nowhere");
    assert!(!victim.exists());
}

#[test]
fn an_existing_swap_file_keeps_its_header() {
    let dir = dir();
    let path = dir.path().join("swap");
    let spec = sized(&path, 8 * MIB);
    let mut header = vec![0; PAGE_SIZE];
    header[1024] = 1;
    header[1028..1032].copy_from_slice(&2047u32.to_ne_bytes());
    header[PAGE_SIZE - 10..].copy_from_slice(b"SWAPSPACE2");
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .write_at(&header, 0)
        .unwrap();
    for _ in 0..2 {
        let device = try_open(&spec).unwrap();
        assert_eq!(device.facts.slots, 3 * 512);
        assert!(
            !device.facts.wants_discard,
            "no holes in the kernel's swap file"
        );
        exercise(device);
    }
    let mut after = vec![0; PAGE_SIZE];
    File::open(&path)
        .unwrap()
        .read_exact_at(&mut after, 0)
        .unwrap();
    assert!(after == header);
}

#[test]
fn a_smaller_part_can_be_asked_for_and_no_larger_one() {
    let dir = dir();
    let path = sized(&dir.path().join("swap"), 16 * MIB);
    assert_eq!(
        try_open(&format!("{path}:8M")).unwrap().facts.slots,
        3 * 512
    );
    assert_eq!(
        try_open(&format!("{path}:50%")).unwrap().facts.slots,
        3 * 512
    );
    refusal(
        &format!("{path}:17M"),
        "has 16M, less than the 17M asked for",
    );
}

/// An entry names 128 GiB of a device. More is refused where it was asked for, and noted where it was not.
#[test]
fn a_size_that_no_entry_can_name_is_refused_and_a_larger_device_is_used_in_part() {
    let dir = dir();
    let path = dir.path().join("swap");
    refusal(
        &format!("{}:200G", dir.path().display()),
        "200G were asked for, and one device has at most 128G",
    );
    assert_eq!(names(&dir), 0, "nothing is left behind");
    let large = sized(&path, 200 << 30);
    refusal(&format!("{large}:150G,overwrite=yes"), "at most 128G");
    let device = try_open(&format!("{large}:,overwrite=yes")).unwrap();
    assert_eq!(device.facts.slots, 128 << 18);
    assert!(
        device
            .notes
            .iter()
            .any(|note| note.contains("128G of its 199.9G")),
        "{:?}",
        device.notes
    );
}

#[test]
fn two_runs_do_not_share_a_file() {
    let dir = dir();
    let path = sized(&dir.path().join("swap"), 8 * MIB);
    let first = try_open(&path).unwrap();
    refusal(&path, "in use by another run of ebb");
    drop(first);
    try_open(&path).unwrap();
}

/// A virtual machine locks bytes of its disk so.
#[test]
fn a_file_that_a_program_has_locked_is_refused() {
    let dir = dir();
    let path = sized(&dir.path().join("swap"), 8 * MIB);
    let machine = File::open(&path).unwrap();
    let lock = libc::flock {
        l_type: libc::F_RDLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 100,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the lock is read.
    let locked = unsafe { libc::fcntl(machine.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
    refusal(&path, "is in use: a program has locked it");
    drop(machine);
    try_open(&path).unwrap();
}

#[test]
fn a_device_is_known_by_each_of_its_names() {
    let dir = dir();
    let path = sized(&dir.path().join("swap"), 8 * MIB);
    let link = dir.path().join("link");
    symlink(&path, &link).unwrap();
    let other = sized(&dir.path().join("other"), 8 * MIB);
    let device = try_open(&path).unwrap();
    let is_it = |spec: &str| {
        let named = FileIdentity::named(&spec.parse().unwrap());
        named.is_some() && named == FileIdentity::of(&device.fd)
    };
    assert!(is_it(&path) && is_it(&format!("{},prio=3", link.display())));
    assert!(!is_it(&other) && !is_it("none") && !is_it(dir.path().to_str().unwrap()));
}

#[test]
fn a_directory_that_was_removed_is_told_of() {
    let dir = dir();
    let open = File::open(dir.path()).unwrap();
    drop(dir);
    let path = format!("/proc/self/fd/{}", open.as_raw_fd());
    for path in [format!("{path}/swap"), path] {
        refusal(&path, "its directory has been removed: give");
    }
}

#[test]
fn refusals_name_the_next_step() {
    refusal("/dev/no-such-device-of-ours", "there is no such device");
    let dir = dir();
    let at = |name: &str| dir.path().join(name).display().to_string();
    refusal(&at("no/such/dir/swap"), "create it or give another path");
    refusal(
        &format!("{}:1M", dir.path().display()),
        "too little: give it, or another, at least 2M",
    );
    refusal(
        &sized(&dir.path().join("small"), MIB),
        "too little: give it, or another, at least 4M",
    );
    let node = format!("{}:4M,node=1023", dir.path().display());
    refusal(&node, "there is no memory node 1023 here, only 0");
    // An area with data must not be enlarged.
    fs::write(at("text"), "short").unwrap();
    refusal(&at("text"), "holds data (at byte 0) and has no swap header");
    refusal("/dev/null", "character device");
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), 0o600.into()).unwrap();
    refusal(&at("pipe"), "is a pipe");
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    refusal(&at("socket"), "is a socket");
    refusal("/proc:4M", "swap /proc");
    refusal(
        &format!("{}/x:4M", sized(&dir.path().join("file"), 0)),
        "cannot look at it",
    );
}

#[test]
fn no_permission_is_said() {
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: root may write everywhere");
        return;
    }
    let dir = dir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o500)).unwrap();
    refusal(&format!("{}:4M", dir.path().display()), "no permission");
}

#[test]
fn a_swap_file_in_memory_is_told_of() {
    let dir = match tempfile::tempdir_in("/dev/shm") {
        Ok(dir) => dir,
        Err(error) => return eprintln!("skipped: no /dev/shm to write to: {error}"),
    };
    let device = try_open(&sized(&dir.path().join("file"), 8 << 20)).unwrap();
    assert!(device.facts.in_memory && !device.facts.direct);
    let told = device.notes.iter().any(|n| n.contains("takes RAM"));
    assert!(told, "{:?}", device.notes);
    exercise(device);
}

#[test]
fn memory_backed_directories_are_told_of() {
    let dir = match tempfile::tempdir_in("/dev/shm") {
        Ok(dir) => dir,
        Err(error) => {
            eprintln!("skipped: no /dev/shm to write to: {error}");
            return;
        }
    };
    let device = try_open(&format!("{}:4M", dir.path().display())).unwrap();
    assert!(device.facts.in_memory && !device.facts.direct);
    assert!(
        device.notes.iter().any(|note| note.contains("takes RAM")),
        "{:?}",
        device.notes
    );
    exercise(device);
}
