//! Real block devices and full file systems, on loop devices. Needs root; says so otherwise.

use ebb_engine::PAGE_SIZE;
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_harness::tools;
use ebb_stores::{FileIdentity, FileStore, OpenedDevice, SearchTime, SwapSpec, open};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const LOOK: SearchTime<'_> = SearchTime::AtMost(Duration::from_secs(60));

/// Runs a command; its output, or what was wrong.
fn sh(program: &str, arguments: &[&str]) -> Result<String, String> {
    let out = Command::new("timeout")
        .args(["60", program])
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if !out.status.success() {
        return Err(format!(
            "{program}: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// A loop device over a sparse file.
struct Loop {
    dir: TempDir,
    device: String,
}

impl Loop {
    fn new(bytes: u64) -> Option<Self> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let backing = dir.path().join("backing");
        File::create(&backing).unwrap().set_len(bytes).unwrap();
        match sh(
            "losetup",
            &["--find", "--show", &backing.display().to_string()],
        ) {
            Ok(device) => Some(Self { dir, device }),
            Err(error) => {
                eprintln!("skipped: no loop device: {error}");
                None
            }
        }
    }

    fn backing_path(&self) -> PathBuf {
        self.dir.path().join("backing")
    }

    fn backing(&self) -> File {
        let path = self.backing_path();
        File::options().read(true).write(true).open(path).unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = sh("losetup", &["--detach", &self.device]);
    }
}

/// A mounted file system.
struct Mount {
    at: PathBuf,
}

impl Mount {
    fn new(arguments: &[&str], at: &Path) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let path = at.display().to_string();
        match sh("mount", &[arguments, &[&path]].concat()) {
            Ok(_) => Some(Self { at: at.into() }),
            Err(error) => {
                eprintln!("skipped: cannot mount: {error}");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = sh("umount", &[&self.at.display().to_string()]);
    }
}

fn try_open(spec: &str) -> Result<OpenedDevice, String> {
    open(&spec.parse::<SwapSpec>().unwrap(), &LOOK)
        .map(|device| device.expect("a device"))
        .map_err(|error| error.to_string())
}

fn write(store: &FileStore, slot: u64, data: &[u8]) -> Result<(), IoError> {
    let mut results = [Ok(())];
    store.write(&[WriteOp { slot, data }], &mut results);
    results[0]
}

fn read(store: &FileStore, slot: u64, pages: usize) -> Result<Vec<u8>, IoError> {
    let mut data = vec![0; pages * PAGE_SIZE];
    let mut results = [Ok(())];
    store.read(
        &mut [ReadOp {
            slot,
            data: &mut data,
        }],
        &mut results,
    );
    results[0].map(|()| data)
}

#[test]
fn a_block_device_holds_and_discards() {
    let Some(device) = Loop::new(32 * MIB) else {
        return;
    };
    let opened = try_open(&format!("{},discard=on", device.device)).unwrap();
    assert!(opened.facts.block && opened.facts.wants_discard && opened.facts.direct);
    assert_eq!(opened.facts.slots, 15 * 512);
    let facts = opened.facts;
    let store = FileStore::from_fd(opened.fd, facts);
    let data = vec![7; 512 * PAGE_SIZE];
    for cluster in 0..15 {
        write(&store, cluster * 512, &data).unwrap();
    }
    assert!(read(&store, 14 * 512, 512).unwrap() == data);
    let held = || device.backing().metadata().unwrap().blocks() * 512;
    device.backing().sync_all().unwrap();
    let before = held();
    store.discard(0, 512 * 8).unwrap();
    assert!(held() + 15 * MIB <= before, "{before} then {}", held());
    let mut start = vec![1; 2 * MIB as usize];
    device.backing().read_exact_at(&mut start, 0).unwrap();
    assert!(
        start.iter().all(|&byte| byte == 0),
        "the header was written to"
    );
}

#[test]
fn a_device_of_one_run_or_with_a_file_system_is_refused() {
    let Some(device) = Loop::new(32 * MIB) else {
        return;
    };
    let first = try_open(&device.device).unwrap();
    let second = try_open(&device.device).unwrap_err();
    assert!(second.contains("in use"), "{second}");
    drop(first);
    if let Err(error) = sh("mkfs.ext4", &["-q", &device.device]) {
        eprintln!("skipped: no ext4: {error}");
        return;
    }
    let unmounted = try_open(&device.device).unwrap_err();
    assert!(
        unmounted.contains("holds a file system (ext4)"),
        "{unmounted}"
    );
    let at = device.dir.path().join("mounted");
    let Some(_mount) = Mount::new(&[&device.device], &at) else {
        return;
    };
    let mounted = try_open(&device.device).unwrap_err();
    assert!(mounted.contains("is mounted or in use"), "{mounted}");
}

/// A block device has no holes: all of it is read, and its end too.
#[test]
fn a_block_device_with_data_at_its_end_alone_is_refused() {
    let Some(device) = Loop::new(32 * MIB) else {
        return;
    };
    let spec = &device.device;
    let last = 32 * MIB - 1;
    let put = |at: u64, byte: u8| {
        let device = File::options().write(true).open(spec).unwrap();
        device.write_all_at(&[byte], at).unwrap();
        device.sync_all().unwrap();
    };
    for at in [last, 17 * MIB] {
        put(at, 1);
        let refused = try_open(spec).unwrap_err();
        let says = format!("holds data (at byte {at}) and has no swap header");
        assert!(refused.contains(&says), "{refused}");
        put(at, 0);
    }
    let pending_header = try_open(spec).unwrap().pending_header.expect("it is empty");
    pending_header.write().unwrap();
    put(last, 1);
    assert!(
        try_open(spec).unwrap().pending_header.is_none(),
        "it is swap now"
    );
}

#[test]
fn a_kernel_swap_area_is_taken_and_stays_one() {
    let Some(device) = Loop::new(32 * MIB) else {
        return;
    };
    if let Err(error) = sh("mkswap", &[&device.device]) {
        eprintln!("skipped: no mkswap: {error}");
        return;
    }
    for _ in 0..2 {
        let opened = try_open(&device.device).unwrap();
        let facts = opened.facts;
        let store = FileStore::from_fd(opened.fd, facts);
        write(&store, 0, &[9; PAGE_SIZE]).unwrap();
    }
    let kind = sh(
        "blkid",
        &["-p", "-s", "TYPE", "-o", "value", &device.device],
    );
    assert!(kind.is_err() || kind == Ok("swap".into()), "{kind:?}");
}

/// The kernel may swap to the device, and knows nothing of locks on the file.
#[test]
fn a_file_under_a_loop_device_is_refused_and_is_the_same_device() {
    let Some(device) = Loop::new(32 * MIB) else {
        return;
    };
    let file = device.backing_path().display().to_string();
    let refused = try_open(&file).unwrap_err();
    let says = format!("is in use by loop device {0}: give {0}, or", device.device);
    assert!(refused.contains(&says), "{refused}");
    let opened = try_open(&device.device).unwrap();
    let own = [(FileIdentity::of(&opened.fd), "it")];
    for spec in [&file, &device.device] {
        let spec = spec.parse().unwrap();
        let refused = FileIdentity::refuse(&spec, own.into_iter()).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("a device of this run"), "{refused}");
    }
    // Another one over another file.
    let Some(other) = Loop::new(32 * MIB) else {
        return;
    };
    FileIdentity::refuse(&other.device.parse().unwrap(), own.into_iter()).unwrap();
}

#[test]
fn a_claim_that_passes_is_waited_for() {
    let Some(device) = Loop::new(32 * MIB) else {
        return;
    };
    let claim = File::options()
        .read(true)
        .custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed())
        .open(&device.device)
        .unwrap();
    let ends = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(claim);
    });
    try_open(&device.device).unwrap();
    ends.join().unwrap();
}

#[test]
fn a_read_error_of_the_device_is_of_its_slots_alone() {
    let Some(device) = Loop::new(32 * MIB) else {
        return;
    };
    let opened = try_open(&device.device).unwrap();
    let facts = opened.facts;
    let store = FileStore::from_fd(opened.fd, facts);
    for slot in [0, 7000] {
        write(&store, slot, &[3; PAGE_SIZE]).unwrap();
    }
    // Behind the device's back its medium ends early: the kernel answers EIO from there on.
    device.backing().set_len(16 * MIB).unwrap();
    assert_eq!(read(&store, 7000, 1), Err(IoError::Slot));
    assert_eq!(store.last_errno(), Some(rustix::io::Errno::IO));
    assert!(read(&store, 0, 1).unwrap() == [3; PAGE_SIZE]);
}

/// The kernel says that there is no space behind the end of a device. None will come.
#[test]
fn a_device_that_shrinks_is_gone() {
    let Some(device) = Loop::new(32 * MIB) else {
        return;
    };
    let opened = try_open(&device.device).unwrap();
    let facts = opened.facts;
    let store = FileStore::from_fd(opened.fd, facts);
    write(&store, 7000, &[3; PAGE_SIZE]).unwrap();
    device.backing().set_len(16 * MIB).unwrap();
    sh("losetup", &["--set-capacity", &device.device]).unwrap();
    let gone = write(&store, 7000, &[3; PAGE_SIZE]);
    assert_eq!(store.last_errno(), Some(Errno::NOSPC));
    assert_eq!(gone, Err(IoError::Device));
    write(&store, 0, &[3; PAGE_SIZE]).unwrap();
}

/// Writes slots until space ends; how many went well.
fn fill(store: &FileStore) -> u64 {
    let data = vec![5; 64 * PAGE_SIZE];
    for slot in (0..store.slots()).step_by(64) {
        match write(store, slot, &data) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, IoError::NoSpace, "{:?}", store.last_errno());
                return slot;
            }
        }
    }
    panic!("space never ended");
}

fn full(directory: &Path) {
    let spec = format!("{}:64M", directory.display());
    let opened = try_open(&spec).unwrap();
    assert!(
        opened.notes.iter().any(|note| note.contains("is free now")),
        "{:?}",
        opened.notes
    );
    let facts = opened.facts;
    let store = FileStore::from_fd(opened.fd, facts);
    let held = fill(&store);
    assert!(held >= 512, "only {held} slots fitted");
    assert!(read(&store, 0, 64).unwrap().iter().all(|&byte| byte == 5));
    store.discard(0, 256).unwrap();
    write(&store, held, &[6; PAGE_SIZE]).expect("room again after a discard");
}

#[test]
fn a_full_file_system_is_no_space_and_passes() {
    let Some(device) = Loop::new(24 * MIB) else {
        return;
    };
    if let Err(error) = sh("mkfs.ext4", &["-q", &device.device]) {
        eprintln!("skipped: no ext4: {error}");
        return;
    }
    let at = device.dir.path().join("mounted");
    let Some(mount) = Mount::new(&[&device.device], &at) else {
        return;
    };
    full(&mount.at);
}

/// On a file system that has no files without a name (FUSE) the name goes at once.
#[test]
fn a_private_file_where_none_can_be_made_without_a_name() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = dir.path().join("image");
    File::create(&image).unwrap().set_len(64 * MIB).unwrap();
    let image = image.display().to_string();
    if sh("which", &["fuse2fs"]).is_err() {
        return eprintln!("skipped: fuse2fs is not installed");
    }
    if let Err(error) = sh("mkfs.ext4", &["-q", "-F", &image]) {
        return eprintln!("skipped: no ext4: {error}");
    }
    let at = dir.path().join("mounted");
    std::fs::create_dir(&at).unwrap();
    let path = at.display().to_string();
    if let Err(error) = sh("fuse2fs", &["-o", "fakeroot,rw", &image, &path]) {
        return eprintln!("skipped: no FUSE: {error}");
    }
    let mount = Mount { at: at.clone() };
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let nameless = rustix::fs::open(&at, flags, 0o600.into()).map(drop);
    assert_eq!(nameless, Err(Errno::OPNOTSUPP), "nothing to be seen here");
    // What FUSE itself calls a file that is open and has no name.
    let names = || {
        let names = std::fs::read_dir(&at)
            .unwrap()
            .map(|e| e.unwrap().file_name());
        let others = |name: &String| name != "lost+found" && !name.starts_with(".fuse_hidden");
        names
            .map(|n| n.into_string().unwrap())
            .filter(others)
            .collect::<Vec<_>>()
    };
    let spec = format!("{path}:16M");
    let opened = try_open(&spec).unwrap();
    assert_eq!(names(), Vec::<String>::new(), "{spec}");
    let stat = rustix::fs::fstat(&opened.fd).unwrap();
    assert_eq!((stat.st_nlink, stat.st_mode & 0o777), (0, 0o600), "{spec}");
    let facts = opened.facts;
    let store = FileStore::from_fd(opened.fd, facts);
    write(&store, 7, &[3; PAGE_SIZE]).unwrap();
    assert!(read(&store, 7, 1).unwrap() == [3; PAGE_SIZE]);
    drop(store);
    // FUSE tells its file system of a file's end a moment later.
    let left = || std::fs::read_dir(&at).unwrap().count();
    let limit = Instant::now() + Duration::from_secs(5);
    while left() > 1 && Instant::now() < limit {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(left(), 1, "lost+found alone");
    drop(mount);
}

#[test]
fn a_full_tmpfs_is_no_space_and_passes() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = dir.path().join("mounted");
    let Some(mount) = Mount::new(&["-t", "tmpfs", "-o", "size=8m", "tmpfs"], &at) else {
        return;
    };
    full(&mount.at);
}

/// An overlay over `layers`, at `at`.
fn overlay(layers: &Path, at: &Path) -> Option<Mount> {
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| {
        let layer = layers.join(name);
        std::fs::create_dir(&layer).unwrap();
        layer.display().to_string()
    });
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    Mount::new(&["-t", "overlay", "-o", &layers, "overlay"], at)
}

/// As in a container whose layers lie on a tmpfs.
#[test]
fn an_overlay_is_in_memory_if_what_is_written_goes_there() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(memory) = Mount::new(&["-t", "tmpfs", "tmpfs"], &dir.path().join("memory")) else {
        return;
    };
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    for (layers, in_memory) in [(&memory.at, true), (&disk, false)] {
        let Some(mount) = overlay(layers, &dir.path().join(format!("at {in_memory}"))) else {
            return;
        };
        let file = mount.at.join("file");
        File::create(&file).unwrap().set_len(8 * MIB).unwrap();
        for spec in [mount.at.join(":8M"), file] {
            let spec = spec.display().to_string().replace("/:", ":");
            let opened = try_open(&spec).unwrap();
            assert_eq!(opened.facts.in_memory, in_memory, "{spec}");
            assert!(!in_memory || !opened.facts.direct, "{spec}");
            let told = opened.notes.iter().any(|note| note.contains("takes RAM"));
            assert_eq!(told, in_memory, "{spec}: {:?}", opened.notes);
        }
    }
}

/// TMPDIR is of the whole process: the test is run again, in another one.
#[test]
fn the_default_file_lies_where_there_is_room() {
    const NAME: &str = "the_default_file_lies_where_there_is_room";
    const CHILD: &str = "EBB_TEST_OF_DEFAULT";
    if std::env::var_os(CHILD).is_some() {
        let opened = open(&SwapSpec::default(), &LOOK).unwrap().unwrap();
        return println!("in {}: {:?}", opened.name, opened.notes);
    }
    if tools::free_bytes(Path::new("/var/tmp")) < 2 << 30 {
        return eprintln!("skipped: /var/tmp has no room");
    }
    let Some(device) = Loop::new(64 * MIB) else {
        return;
    };
    if let Err(error) = sh("mkfs.ext4", &["-q", &device.device]) {
        return eprintln!("skipped: no ext4: {error}");
    }
    let Some(mount) = Mount::new(&[&device.device], &device.dir.path().join("mounted")) else {
        return;
    };
    let small = mount.at.to_str().unwrap();
    let said = |script: &str| {
        let test = std::env::current_exe().unwrap();
        // The program may lie in what is mounted over.
        let script = format!(
            "export TMPDIR='{small}' {CHILD}=1; exec 9< '{}'; {script} exec /proc/self/fd/9 \"$@\"",
            test.display()
        );
        let test = ["sh", "--exact", "--nocapture", NAME];
        let shell = ["--mount", "sh", "-e", "-c", &script];
        sh("unshare", &[&shell[..], &test].concat()).unwrap()
    };
    let chosen = said("");
    assert!(
        chosen.contains("in /var/tmp: [") && !chosen.contains("is free there"),
        "{chosen}"
    );
    // All of them are small.
    let chosen = said("mount --bind \"$TMPDIR\" /var/tmp; mount --bind /var/tmp /tmp;");
    assert!(chosen.contains("is free there"), "{chosen}");
}
