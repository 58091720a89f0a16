//! The program that an exec would start, by the headers of the file that it names: the one that the kernel runs in
//! the end, behind `#!` lines.
//!
//! It is asked before each exec, in children of vfork too: no lock, no heap. For files that cannot be looked at (not
//! there, not readable) the kernel has the answer.
//!
//! Not seen: an exec that libc makes within itself (`system` and `popen` start the shell so), or one made without
//! libc. A directory that a spawn changes to first is not followed.

use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use std::io::{Cursor, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use ebb_sys::elf::{MAX_SCRIPTS, ProgramKind, ProgramPath, UnmanagedReason, program_kind};
use ebb_sys::file::Descriptor;
use ebb_sys::{Errno, raw};

/// A program to be started.
#[allow(clippy::large_enum_variant)] // A box would take the heap.
pub enum Target {
    /// One that loads this library, as far as can be told.
    Managed,
    /// There is none: the kernel has the answer.
    Absent,
    /// The one at this path does not, for this reason.
    Unmanaged(ProgramPath, UnmanagedReason),
}

/// Where a program is looked for.
#[derive(Clone, Copy)]
pub enum Search {
    /// At its path, beginning at the directory of this descriptor.
    At(c_int),
    /// In the directories of PATH, if its name has no slash.
    Path,
}

/// The program that `file` names.
///
/// # Safety
/// `file` is a string, or nothing is there.
#[inline(never)] // Its buffers are gone from the stack when the exec is made.
pub unsafe fn named(file: *const c_char, search: Search) -> Target {
    // A name that is looked for in PATH is not looked up in the present directory, which may hang: there is no descriptor.
    let (from, first) = match search {
        Search::At(from) => (from, from),
        Search::Path => (libc::AT_FDCWD, -1),
    };
    // By a call that every dynamic program makes: a filter may end this one for others. It changes nothing.
    let looked = opened(first, file, libc::O_PATH);
    if looked.is_err_and(|error| error.0 == libc::EFAULT) {
        return Target::Absent;
    }
    // SAFETY: by the caller's contract; something is there.
    let file = unsafe { CStr::from_ptr(file) };
    match search {
        Search::Path if !file.to_bytes().contains(&b'/') => searched(file),
        _ => follow(from, file),
    }
}

/// The same of an open file.
#[inline(never)] // As above.
pub fn open(file: c_int) -> Target {
    if file < 0 {
        return Target::Absent;
    }
    // SAFETY: the caller's descriptor, which stays its own.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    judge(file, c"a program")
}

/// The first in PATH that may be executed, as libc would find it.
#[inline(never)] // Its buffer is on the stack where something is looked for, and not else.
fn searched(file: &CStr) -> Target {
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
            // The kernel refuses a directory, and libc goes on.
            && is_file(candidate)
            // SAFETY: a string.
            && unsafe { libc::access(candidate.as_ptr(), libc::X_OK) } == 0
        {
            return follow(libc::AT_FDCWD, candidate);
        }
    }
    Target::Absent
}

fn is_file(path: &CStr) -> bool {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a string; on success the structure is filled.
    unsafe {
        libc::stat(path.as_ptr(), stat.as_mut_ptr()) == 0
            && stat.assume_init().st_mode & libc::S_IFMT == libc::S_IFREG
    }
}

fn follow(from: c_int, path: &CStr) -> Target {
    match opened(from, path.as_ptr(), READ) {
        Ok(file) => judge(file.as_fd(), path),
        Err(Errno(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)) => Target::Absent,
        Err(_) => Target::Managed,
    }
}

const READ: c_int = libc::O_RDONLY | libc::O_NONBLOCK;

/// EFAULT: there is no string.
fn opened(from: c_int, path: *const c_char, flags: c_int) -> Result<Descriptor, Errno> {
    let flags = flags | libc::O_CLOEXEC;
    let args = [from.into(), path as i64, flags.into(), 0, 0, 0];
    // SAFETY: the kernel reads the string; by the system call itself, as libc's function is a point of cancellation.
    let opened = unsafe { raw::checked(libc::SYS_openat, args)? };
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(Descriptor::from(unsafe {
        OwnedFd::from_raw_fd(opened as c_int)
    }))
}

/// Whether that file is there, and may be read. Yes where only the system is short of something.
pub fn can_be_read(file: &CStr) -> bool {
    !matches!(
        opened(libc::AT_FDCWD, file.as_ptr(), READ),
        Err(Errno(
            libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ELOOP
        ))
    )
}

/// The target of an open file. In a loop, as stacks may be small: each script names the next file.
fn judge(file: BorrowedFd<'_>, path: &CStr) -> Target {
    let (mut behind, mut interpreter): (Option<Descriptor>, _) = (None, None);
    for _ in 0..=MAX_SCRIPTS {
        match program_kind(behind.as_ref().map_or(file, AsFd::as_fd)) {
            Ok(ProgramKind::Unmanaged(reason)) => {
                let path = interpreter.unwrap_or_else(|| ProgramPath::of(path.to_bytes()));
                return Target::Unmanaged(path, reason);
            }
            Ok(ProgramKind::Script(next)) => {
                let next = interpreter.insert(next);
                let Ok(path) = CStr::from_bytes_until_nul(next.with_null()) else {
                    break;
                };
                match opened(libc::AT_FDCWD, path.as_ptr(), READ) {
                    Ok(file) => behind = Some(file),
                    Err(_) => break,
                }
            }
            _ => break,
        }
    }
    Target::Managed
}
