//! Headers of executables that programs start.
#![no_main]

use ebb_sys::elf::{ProgramKind, program_kind};
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

thread_local! {
    static FILE: RefCell<File> = RefCell::new(
        rustix::fs::memfd_create("program", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into(),
    );
}

libfuzzer_sys::fuzz_target!(|content: &[u8]| {
    FILE.with_borrow(|file| {
        file.set_len(0).unwrap();
        file.write_all_at(content, 0).unwrap();
        match program_kind(file).unwrap() {
            ProgramKind::Script(path) => assert!(!path.bytes().contains(&b'\n')),
            ProgramKind::Unmanaged(reason) => assert!(!reason.to_string().is_empty()),
            ProgramKind::Managed | ProgramKind::Damaged => {}
        }
    });
});
