//! Files that hold somebody's data are not swapped to, unless the user gives them up.

use super::common::{cannot_page, ebb};
use super::{end_of, stderr};
use ebb_harness::MIB;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Holds 48 MiB that do not compress; prints how many pieces that is.
const PROGRAM: &str = "import os\nd = [os.urandom(4000) for _ in range(12000)]\nprint(len(d))";

/// A member of a VMFS volume: a mebibyte of zeros, a magic number, zeros, then its file system.
fn vmfs(path: &Path) -> Vec<u8> {
    let image = File::create(path).unwrap();
    image.set_len(64 * MIB).unwrap();
    image.write_all_at(&[0x0d, 0xd0, 0x01, 0xc0], MIB).unwrap();
    let data: Vec<u8> = (0..20 * MIB as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8)
        .collect();
    image.write_all_at(&data, 2 * MIB).unwrap();
    fs::read(path).unwrap()
}

fn run_with(spec: &str, libraries: &Path) -> Output {
    let mut child = Command::new(ebb())
        .args(["run", "--memory", "24M", "--pool", "none", "--swap", spec])
        .args(["--", "python3", "-c", PROGRAM])
        .env("LD_LIBRARY_PATH", libraries)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    end_of(&mut child, Duration::from_secs(60));
    child.wait_with_output().unwrap()
}

#[test]
fn an_image_that_begins_with_zeros_is_refused_and_stays() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("image");
    let spec = path.to_str().unwrap();
    let before = vmfs(&path);
    // With libblkid, and where there is none: what the loader finds first is no library.
    let (with, without) = (dir.path().join("with"), dir.path().join("without"));
    for libraries in [&with, &without] {
        fs::create_dir(libraries).unwrap();
    }
    fs::write(without.join("libblkid.so.1"), "").unwrap();
    for (libraries, found) in [
        (&with, Some("(VMFS_volume_member)")),
        (&without, Some("data (at byte 1048576)")),
    ] {
        let output = run_with(spec, libraries);
        let said = stderr(&output);
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(125), 0),
            "{said}"
        );
        let named = found.filter(|_| libraries == &without || ebb_sys::blkid::is_there());
        assert!(named.is_none_or(|found| said.contains(found)), "{said}");
        assert!(said.contains("overwrite=yes"), "{said}");
        assert!(fs::read(&path).unwrap() == before, "it was written to");
    }
}

#[test]
fn a_device_given_up_is_swap_from_then_on() {
    if cannot_page() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("image");
    let spec = path.to_str().unwrap();
    vmfs(&path);
    // A program that cannot be started changes nothing.
    let before = fs::read(&path).unwrap();
    let yes = format!("{spec},overwrite=yes");
    let none = Command::new(ebb())
        .args(["run", "--swap", &yes, "/no/such/program"])
        .output()
        .unwrap();
    assert_eq!(none.status.code(), Some(127));
    assert!(fs::read(&path).unwrap() == before, "nothing was started");
    // The second run finds a header.
    for spec in [&yes, spec] {
        let output = run_with(spec, dir.path());
        let (said, printed) = (stderr(&output), &output.stdout[..]);
        assert_eq!(
            (output.status.code(), printed),
            (Some(0), &b"12000\n"[..]),
            "{said}"
        );
        assert_eq!(said, "");
    }
    let after = fs::read(&path).unwrap();
    assert!(
        after[2 * MIB as usize..] != before[2 * MIB as usize..],
        "it was used"
    );
    assert_eq!(&after[4086..4096], b"SWAPSPACE2");
}
