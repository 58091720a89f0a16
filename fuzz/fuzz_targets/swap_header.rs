//! Content of a file that a user names as a swap device: a page from its front and one from its end, as the input
//! has them. It is taken only with a header of swap, or empty, and looking never changes it.
#![no_main]

use ebb_stores::{OpenError, SearchTime, SwapSpec, open};
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

const PAGE: usize = 4096;
const SIZE: u64 = 4 << 20;

struct Scratch {
    path: PathBuf,
    file: File,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new({
        let path = PathBuf::from(format!("/dev/shm/ebb-fuzz-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        Scratch { path, file }
    });
}

libfuzzer_sys::fuzz_target!(|content: &[u8]| {
    SCRATCH.with_borrow(|scratch| {
        let (front, end) = content.split_at(content.len().min(PAGE));
        let end = &end[..end.len().min(PAGE)];
        scratch.file.set_len(0).unwrap();
        scratch.file.set_len(SIZE).unwrap();
        scratch.file.write_all_at(front, 0).unwrap();
        scratch.file.write_all_at(end, SIZE - PAGE as u64).unwrap();
        let before = fs::read(&scratch.path).unwrap();
        let spec: SwapSpec = scratch.path.to_str().unwrap().parse().unwrap();
        let opened = open(&spec, &SearchTime::AtMost(Duration::from_secs(1)));
        let marked =
            before[..PAGE].ends_with(b"SWAPSPACE2") || before[..PAGE].ends_with(b"SWAP-SPACE");
        let empty = before.iter().all(|&byte| byte == 0);
        match opened {
            Ok(Some(_)) => assert!(marked || empty, "somebody's data was taken"),
            Ok(None) => unreachable!("a path was given"),
            Err(error @ OpenError::System { .. }) => panic!("{error}"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(
            before == fs::read(&scratch.path).unwrap(),
            "looking changed it"
        );
    });
});
