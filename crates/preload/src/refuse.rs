//! `ebb run --require-managed`, heeded down the tree: an exec of a program whose memory could not be managed
//! is refused, with EACCES, as that of one on a file system without execution is. Who starts programs knows
//! what to do about that; ENOEXEC would have a shell read the file as a script.
//!
//! Told on standard error of whoever starts it. As much as the rest of `exec` it is fit for the child of a
//! vfork: no lock, no heap. What cannot be looked at (not there, not readable) the kernel answers.
//!
//! What it does not do: see an exec that libc makes within itself (`system` and `popen` start the shell so)
//! or that is made without libc; the supervisor tells of what such a one starts.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::File;
use std::io::{Cursor, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use ebb_sys::executable::{Image, MAX_SCRIPTS, Reason, image};
use ebb_sys::raw;

/// The variable by which `ebb run` asks for it.
const VARIABLE: &CStr = c"EBB_REQUIRE_MANAGED";

static ASKED: AtomicBool = AtomicBool::new(false);

/// Looks whether it is asked for; in the constructor.
pub fn remember() {
    // SAFETY: no other thread runs yet.
    let asked = unsafe { !libc::getenv(VARIABLE.as_ptr()).is_null() };
    ASKED.store(asked, Ordering::Relaxed);
}

/// Where a program is looked for.
#[derive(Clone, Copy)]
pub enum Search {
    /// At its path, beginning at the directory of this descriptor.
    At(c_int),
    /// In the directories of PATH, if its name has no slash.
    Path,
}

/// EACCES, and told, if that program may not be started.
///
/// # Safety
/// `file` is a string, as for any exec.
pub unsafe fn refused(file: *const c_char, search: Search) -> Result<(), c_int> {
    if !ASKED.load(Ordering::Relaxed) || file.is_null() {
        return Ok(());
    }
    // SAFETY: by the caller's contract.
    let file = unsafe { CStr::from_ptr(file) };
    let (from, searched) = match search {
        Search::At(from) => (from, false),
        Search::Path => (libc::AT_FDCWD, !file.to_bytes().contains(&b'/')),
    };
    if !searched {
        return look(from, file);
    }
    // SAFETY: libc reads it in the same way, from the same thread.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let path = match path.is_null() {
        true => c"/bin:/usr/bin",
        // SAFETY: a string of the environment.
        false => unsafe { CStr::from_ptr(path) },
    };
    for directory in path.to_bytes().split(|b| *b == b':') {
        let mut candidate = [0u8; libc::PATH_MAX as usize];
        let blank = directory.is_empty();
        let mut to = Cursor::new(&mut candidate[..]);
        let parts = [
            directory,
            if blank { b"" } else { b"/" },
            file.to_bytes_with_nul(),
        ];
        if parts.iter().all(|part| to.write_all(part).is_ok())
            && let Ok(candidate) = CStr::from_bytes_until_nul(&candidate)
            // SAFETY: a string.
            && unsafe { libc::access(candidate.as_ptr(), libc::X_OK) } == 0
        {
            return look(libc::AT_FDCWD, candidate);
        }
    }
    Ok(())
}

/// The same of an open file.
pub fn refused_open(file: c_int) -> Result<(), c_int> {
    if !ASKED.load(Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: the caller's descriptor, which stays its own.
    let file = unsafe { ManuallyDrop::new(File::from_raw_fd(file)) };
    judge(&file, c"a program", MAX_SCRIPTS)
}

fn look(from: c_int, path: &CStr) -> Result<(), c_int> {
    follow(from, path, MAX_SCRIPTS)
}

fn follow(from: c_int, path: &CStr, scripts_left: usize) -> Result<(), c_int> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let args = [from.into(), path.as_ptr() as i64, flags.into(), 0, 0, 0];
    // SAFETY: a string; by the system call itself, as libc's function is a point of cancellation.
    let Ok(opened) = (unsafe { raw::checked(libc::SYS_openat, args) }) else {
        return Ok(());
    };
    // SAFETY: a fresh descriptor that nobody else owns.
    let file = unsafe { File::from_raw_fd(opened as c_int) };
    judge(&file, path, scripts_left)
}

fn judge(file: &File, path: &CStr, scripts_left: usize) -> Result<(), c_int> {
    match image(file) {
        Ok(Image::Unmanaged(reason)) => {
            tell(path, &reason);
            Err(libc::EACCES)
        }
        Ok(Image::Script(interpreter)) if scripts_left > 0 => {
            match CStr::from_bytes_until_nul(interpreter.with_null()) {
                Ok(interpreter) => follow(libc::AT_FDCWD, interpreter, scripts_left - 1),
                Err(_) => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

fn tell(path: &CStr, reason: &Reason) {
    let mut line = [0u8; 1024];
    let mut to = Cursor::new(&mut line[..]);
    // Cut where the path is longer than that.
    let path = path.to_bytes();
    let path = &path[..path.len().min(600)];
    let _ = to.write_all(b"ebb: ");
    let _ = to.write_all(path);
    let _ = writeln!(
        to,
        " is not started, as its memory cannot be managed: {reason}; without --require-managed it runs unmanaged"
    );
    let len = to.position() as usize;
    // SAFETY: so many bytes of the buffer.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), len) };
}
