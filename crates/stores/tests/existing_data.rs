//! A file with data is refused, by the name of the data, whatever its beginning looks like, and not a byte
//! of it changes. Signatures are as the tools of each kind write them.

use ebb_stores::{OpenError, OpenedDevice, SearchTime, SwapSpec, open};
use ebb_sys::blkid;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
const SECTOR: u64 = 512;

/// An image, its path.
struct Image {
    _dir: TempDir,
    path: String,
}

impl Image {
    /// Holes.
    fn new() -> Self {
        Self::sized(SIZE)
    }

    fn sized(bytes: u64) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        let path = path.display().to_string();
        Self { _dir: dir, path }
    }

    fn put(&self, at: u64, bytes: &[u8]) -> &Self {
        let file = File::options().write(true).open(&self.path).unwrap();
        file.write_all_at(bytes, at).unwrap();
        self
    }

    /// A header as mkswap writes it.
    fn header(&self, version: u32, last_page: u32, bad_pages: u32) -> &Self {
        let words = [version, last_page, bad_pages].map(u32::to_ne_bytes);
        self.put(1024, &words.concat()).put(4086, b"SWAPSPACE2")
    }

    /// A header for all of it, and pages swapped out once.
    fn swap(&self) -> &Self {
        self.header(1, (SIZE / 4096 - 1) as u32, 0);
        let noise: Vec<u8> = (0..MIB as u32)
            .map(|n| (n.wrapping_mul(2654435761) >> 13) as u8)
            .collect();
        self.put(4 * MIB, &noise)
    }

    fn open(&self, options: &str) -> Result<OpenedDevice, OpenError> {
        let spec: SwapSpec = format!("{}{options}", self.path).parse().unwrap();
        let look = SearchTime::AtMost(Duration::from_secs(60));
        open(&spec, &look).map(|device| device.expect("a device"))
    }

    /// It is refused with these words, and nothing of it changes.
    #[track_caller]
    fn refused(&self, says: &str) {
        let before = self.state();
        let error = self.open("").expect_err("it is refused").to_string();
        assert!(error.contains(says), "{error}");
        assert!(
            error.contains("overwrite=yes") && error.contains("give another path"),
            "{error}"
        );
        assert!(self.state() == before, "{says}: it was written to");
    }

    /// When it was written to last, and what is in it, if that is no more than memory has room for.
    fn state(&self) -> (SystemTime, Vec<u8>) {
        let metadata = fs::metadata(&self.path).unwrap();
        let content = match metadata.len() {
            0..=SIZE => fs::read(&self.path).unwrap(),
            _ => Vec::new(),
        };
        (metadata.modified().unwrap(), content)
    }

    fn kinds(&self) -> Vec<String> {
        let found = blkid::signatures(File::open(&self.path).unwrap()).unwrap();
        found.into_iter().map(|signature| signature.kind).collect()
    }
}

fn lacks_libblkid() -> bool {
    let missing = !blkid::is_there();
    if missing {
        println!("skipped: libblkid is not installed");
    }
    missing
}

#[test]
fn data_anywhere_is_seen_behind_zeros() {
    for at in [
        0,
        4096,
        MIB - 1,
        MIB,
        2 * MIB,
        7 * MIB + 17,
        SIZE - MIB,
        SIZE - 1,
    ] {
        let says = format!("data (at byte {at}) and has no swap header");
        Image::new().put(at, &[1]).refused(&says);
        // No holes tell where to look, and the size is no multiple of anything.
        let written = Image::sized(8 * MIB + 777);
        written.put(0, &vec![0; 8 * MIB as usize + 777]);
        let at = at.min(8 * MIB + 776);
        let says = format!("data (at byte {at}) and has no swap header");
        written.put(at, &[1]).refused(&says);
    }
}

/// Data at the start of a device, or behind a mebibyte of zeros.
#[test]
fn a_signature_at_the_beginning_is_named() {
    if lacks_libblkid() {
        return;
    }
    let vmfs = Image::new();
    vmfs.put(MIB, &[0x0d, 0xd0, 0x01, 0xc0]);
    vmfs.put(2 * MIB, &[0x5e, 0xf1, 0xab, 0x2f])
        .put(9 * MIB, b"a virtual machine");
    vmfs.refused("VMFS");
    let lvm = Image::new();
    lvm.put(512, b"LABELONE").put(512 + 8, &1u64.to_le_bytes());
    lvm.put(512 + 20, &32u32.to_le_bytes())
        .put(512 + 24, b"LVM2 001");
    let sum = lvm_checksum(&lvm, 512 + 20, 512 - 20);
    lvm.put(512 + 16, &sum.to_le_bytes());
    lvm.refused("a part of a RAID or volume group (LVM2_member)");
    let luks = Image::new();
    luks.put(0, b"LUKS\xba\xbe\x00\x01")
        .put(168, b"6a4f9c1e-0000-4000-8000-000000000000");
    luks.refused("encrypted data (crypto_LUKS)");
    let table = Image::new();
    let partition = [0, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0];
    table.put(446, &partition).put(510, &[0x55, 0xaa]);
    table.refused("a partition table (dos)");
}

/// LVM's sum over the rest of the label's sector.
fn lvm_checksum(image: &Image, at: u64, len: usize) -> u32 {
    let mut bytes = vec![0; len];
    File::open(&image.path)
        .unwrap()
        .read_exact_at(&mut bytes, at)
        .unwrap();
    crc32(0xf597a6cf, &bytes)
}

/// The reflected CRC-32 of Ethernet, as LVM and GPT have it.
fn crc32(start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| match crc & 1 {
            1 => crc >> 1 ^ 0xedb8_8320,
            _ => crc >> 1,
        })
    })
}

#[test]
fn file_systems_are_named() {
    for (program, options, kind) in [
        ("mkfs.ext4", &["-q", "-F"][..], "ext4"),
        ("mkfs.xfs", &["-q", "-f"], "xfs"),
        ("mkfs.btrfs", &["-q", "-f"], "btrfs"),
    ] {
        let image = Image::sized(320 * MIB);
        let mut make = Command::new("timeout");
        make.args(["60", program]).args(options).arg(&image.path);
        make.env("PATH", ebb_harness::tools::path());
        if !make.status().is_ok_and(|status| status.success()) {
            println!("skipped: {program} is not installed");
            continue;
        }
        match blkid::is_there() {
            true => image.refused(&format!("holds a file system ({kind})")),
            false => image.refused("holds data (at byte"),
        }
    }
}

/// A RAID's record, or the copy of a partition table, at the end of a device whose start is swap. The
/// members of a mirror of swap look like that.
#[test]
fn a_signature_at_the_end_is_seen_beside_a_swap_header() {
    if lacks_libblkid() {
        return;
    }
    let md = 0xa92b_4efcu32.to_le_bytes();
    let mirror = |at: u64, version: u32| {
        let image = Image::new();
        image.put(at, &[md, version.to_le_bytes()].concat());
        image
    };
    // Version 0.90, in the last whole 64 KiB; 1.0, which says in which sector it is.
    let old = mirror(SIZE - 65536, 0);
    old.put(SIZE - 65536 + 8, &90u32.to_le_bytes());
    old.put(SIZE - 65536 + 44, &MIB.to_le_bytes()[..4]);
    let new = mirror(SIZE - 8192, 1);
    new.put(SIZE - 8192 + 144, &((SIZE - 8192) / SECTOR).to_le_bytes());
    let intel = Image::new();
    intel.put(SIZE - 2 * SECTOR, b"Intel Raid ISM Cfg Sig. 1.1.00");
    let ddf = Image::new();
    ddf.put(SIZE - SECTOR, &[0xde, 0x11, 0xde, 0x11]);
    ddf.put(SIZE - SECTOR + 32, b"01.02.00");
    let gpt = Image::new();
    backup_of_gpt(&gpt);
    for (image, kind) in [
        (&old, "linux_raid_member"),
        (&new, "linux_raid_member"),
        (&intel, "isw_raid_member"),
        (&ddf, "ddf_raid_member"),
        (&gpt, "gpt"),
    ] {
        image.refused(&format!("({kind})"));
        image
            .swap()
            .refused(&format!("({kind}) beside a swap header"));
        let device = image.open(",overwrite=yes").unwrap();
        assert!(device.pending_header.is_none(), "its header stays");
    }
}

/// The header and the table at the end of a disk, that at its start being gone.
fn backup_of_gpt(image: &Image) {
    let last = SIZE / SECTOR - 1;
    let mut entries = vec![0; 128 * 128];
    entries[..16].copy_from_slice(&[0xaf; 16]);
    entries[16..32].copy_from_slice(&[7; 16]);
    entries[32..40].copy_from_slice(&2048u64.to_le_bytes());
    entries[40..48].copy_from_slice(&4095u64.to_le_bytes());
    let mut header = vec![0; 92];
    header[..8].copy_from_slice(b"EFI PART");
    header[8..16].copy_from_slice(&[0, 0, 1, 0, 92, 0, 0, 0]);
    for (at, number) in [
        (24, last),
        (32, 1),
        (40, 34),
        (48, last - 33),
        (72, last - 32),
    ] {
        header[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    header[56..72].copy_from_slice(&[9; 16]);
    header[80..88].copy_from_slice(&[128, 0, 0, 0, 128, 0, 0, 0]);
    header[88..92].copy_from_slice(&(!crc32(!0, &entries)).to_le_bytes());
    let sum = !crc32(!0, &header);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
    image.put((last - 32) * SECTOR, &entries);
    image.put(last * SECTOR, &header);
}

#[test]
fn a_suspended_system_is_left_alone_whatever_the_user_says() {
    let image = Image::new();
    image.put(4086, b"S1SUSPEND");
    for options in ["", ",overwrite=yes"] {
        let error = image.open(options).unwrap_err().to_string();
        assert!(error.contains("hibernated"), "{error}");
    }
}

#[test]
fn swap_is_used_whatever_it_holds() {
    let image = Image::new();
    let device = image.swap().open("").unwrap();
    assert!(device.pending_header.is_none());
    assert_eq!(device.facts.base, 2 * MIB);
}

/// Behind what a header names there may be anything: a file was enlarged, or a partition.
#[test]
fn no_more_is_used_than_the_header_names() {
    let image = Image::new();
    // Eight mebibytes, and a bit of a cluster.
    image.swap().header(1, (8 * MIB / 4096) as u32 + 7, 0);
    let device = image.open("").unwrap();
    assert_eq!(device.facts.slots, 3 * 512);
    let told = device.notes.iter().find(|note| note.contains("mkswap"));
    assert!(told.is_some_and(|note| note.contains("of its 16M")));
    drop(device);
    assert_eq!(image.open(":50%").unwrap().facts.slots, 512);
    assert_eq!(image.open(":6M").unwrap().facts.slots, 2 * 512);
    for (asked, says) in [
        (":12M", "less than the 12M asked for: run \"mkswap"),
        (":17M", "has 16M, less than the 17M asked for: enlarge it"),
    ] {
        let error = image.open(asked).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // Less than a cluster is no device, whatever lies behind it.
    image.header(1, 0, 0);
    let error = image.open("").unwrap_err().to_string();
    assert!(error.contains("too little"), "{error}");
    // What was cut off is not there; nor is a part of a page.
    let short = Image::sized(SIZE + 777);
    short.header(1, u32::MAX, 0);
    assert_eq!(short.open("").unwrap().facts.slots, 7 * 512);
    short.header(1, (SIZE / 4096 - 1) as u32, 0);
    let whole = short.open("").unwrap();
    assert_eq!(whole.facts.slots, 7 * 512);
    assert!(!whole.notes.iter().any(|note| note.contains("mkswap")));
}

/// Bad pages are passed over by the kernel alone, and of other headers nobody knows what they say. A header that stays
/// counts also where the user has given the rest up.
#[test]
fn headers_that_cannot_be_heeded_are_refused_with_the_remedy() {
    let last = (SIZE / 4096 - 1) as u32;
    for (version, bad, says) in [
        (1, 3, "3 bad pages"),
        (1, u32::MAX, "without -c"),
        (0, 0, "version 0"),
        (1 << 24, 0, "mkswap"),
    ] {
        let image = Image::new();
        image.swap().header(version, last, bad);
        let before = image.state();
        for options in ["", ",overwrite=yes"] {
            let error = image.open(options).unwrap_err().to_string();
            assert!(
                error.contains(says) && error.contains("give another"),
                "{error}"
            );
        }
        assert!(image.state() == before, "it was written to");
    }
    // The format before the first version says nothing of all that.
    let image = Image::new();
    image.put(4086, b"SWAP-SPACE");
    assert_eq!(image.open("").unwrap().facts.slots, 7 * 512);
}

/// It may hold anything after that: the next run takes it by its header.
#[test]
fn an_empty_device_is_marked_as_swap() {
    let image = Image::new();
    let pending_header = image
        .open("")
        .unwrap()
        .pending_header
        .expect("it has no header");
    assert!(fs::read(&image.path).unwrap().iter().all(|byte| *byte == 0));
    pending_header.write().unwrap();
    image.put(5 * MIB, b"pages");
    assert!(image.open("").unwrap().pending_header.is_none());
    if !lacks_libblkid() {
        assert_eq!(image.kinds(), ["swap"]);
    }
    let mut header = vec![0; 4096];
    File::open(&image.path)
        .unwrap()
        .read_exact_at(&mut header, 0)
        .unwrap();
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    // Version, last page, bad pages.
    assert_eq!(
        [word(1024), word(1028), word(1032)],
        [1, (SIZE / 4096 - 1) as u32, 0]
    );
    assert!(header[..1024].iter().all(|byte| *byte == 0));
}

#[test]
fn a_device_given_up_by_the_user_is_used_and_marked() {
    let image = Image::new();
    image
        .put(1024 + 56, &[0x53, 0xef])
        .put(65536, b"x")
        .put(13 * MIB, b"data");
    assert!(image.open(",overwrite=no").is_err());
    let pending_header = image
        .open(",overwrite=yes")
        .unwrap()
        .pending_header
        .unwrap();
    pending_header.write().unwrap();
    let start = &fs::read(&image.path).unwrap()[4096..2 * MIB as usize];
    assert!(
        start.iter().all(|byte| *byte == 0),
        "no old signature stays"
    );
    assert!(image.open("").unwrap().pending_header.is_none());
}

#[test]
fn an_impatient_user_is_told_the_next_step() {
    let image = Image::new();
    image.put(0, &vec![0; 8 << 20]);
    let spec: SwapSpec = image.path.parse().unwrap();
    let error = open(&spec, &SearchTime::AtMost(Duration::ZERO))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("takes too long now") && error.contains("mkswap"),
        "{error}"
    );
}
