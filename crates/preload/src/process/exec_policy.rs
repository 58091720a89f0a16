//! `ebb run --require-managed`, that holds down the tree. An exec of a program whose memory could not be managed is
//! refused with EACCES, as on a file system without execution. Shells and the like know what to do about that; after
//! ENOEXEC a shell would read the file as a script.
//!
//! Told on standard error of whoever starts it. As much as the rest of `exec` it is fit for the child of a
//! vfork: no lock, no heap. Of an exec that [`crate::process::exec_target`] does not see, the supervisor tells what it
//! started.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use std::io::{Cursor, Write};

use ebb_sys::elf::{ProgramPath, UnmanagedReason};
use ebb_sys::file;

use crate::process::exec_target::Target;

/// The variable by which `ebb run` asks for it.
const VARIABLE: &CStr = c"EBB_REQUIRE_MANAGED";

static ASKED: AtomicBool = AtomicBool::new(false);

/// Looks whether it is asked for; in the constructor.
pub fn remember() {
    // SAFETY: no other thread runs yet.
    let asked = unsafe { !libc::getenv(VARIABLE.as_ptr()).is_null() };
    ASKED.store(asked, Ordering::Relaxed);
}

/// EACCES, and told, if that program may not be started.
pub fn check(target: &Target) -> Result<(), c_int> {
    match target {
        Target::Unmanaged(path, reason) if ASKED.load(Ordering::Relaxed) => {
            tell(path, reason);
            Err(libc::EACCES)
        }
        _ => Ok(()),
    }
}

fn tell(path: &ProgramPath, reason: &UnmanagedReason) {
    let mut line = [0u8; 1024];
    let mut to = Cursor::new(&mut line[..]);
    let _ = to.write_all(b"ebb: ");
    let _ = to.write_all(path.bytes());
    let _ = writeln!(
        to,
        " is not started, as its memory cannot be managed: {reason}; without --require-managed it runs unmanaged"
    );
    let len = to.position() as usize;
    file::write_standard_error(&line[..len]);
}
