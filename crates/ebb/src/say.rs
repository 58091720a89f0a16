//! Lines for the user: on standard error.
//!
//! | line | when | where there is no room |
//! |---|---|---|
//! | [`now`] | nobody is supervised | waits |
//! | [`line`] | programs run, by the thread that supervises them | is kept, and written later, the oldest first |
//!
//! Nobody may read there for a while: the pipe to a pager is full, a terminal is held (Ctrl-S). A supervisor that waits for
//! that supervises nobody. And nothing may ever be written: a full disk, a reader that has gone. Neither is a reason
//! not to run a program, so errors are passed over; `eprintln!` would panic.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{ErrorKind, Write, stderr};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::{Mutex, PoisonError};

/// Lines that are kept. Of more the newest are lost.
const MOST: usize = 100;
/// Bytes that go into a pipe or to a terminal that says it has room.
const AT_ONCE: usize = 512;

const OURS: &str = "/proc/self/fd/2";

/// A way to write what there is room for.
enum Way {
    /// Nothing was written yet.
    Unknown,
    /// See [`impatient`].
    Impatient(File),
    /// Standard error itself, where there is room.
    Stderr,
}

static WAY: Mutex<Way> = Mutex::new(Way::Unknown);
static KEPT: Mutex<VecDeque<Vec<u8>>> = Mutex::new(VecDeque::new());

/// Writes a line at once.
pub fn now(text: &str) {
    write_now(format!("{text}\n").as_bytes());
}

/// Writes a line, or keeps it.
pub fn line(text: &str) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() < MOST {
        kept.push_back(format!("{text}\n").into_bytes());
    }
    write_out(&mut kept, write_if_room);
}

/// Writes what was kept, as far as there is room.
pub fn kept() {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    write_out(&mut kept, write_if_room);
}

/// Writes all that was kept: nobody is supervised any more.
pub fn rest() {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    write_out(&mut kept, write_now);
}

/// Standard error is another file from now on: the one until now has no writer here any more.
pub fn leave() {
    *WAY.lock().unwrap_or_else(PoisonError::into_inner) = Way::Unknown;
}

/// Until `write` takes nothing more; it says how many bytes it took.
fn write_out(kept: &mut VecDeque<Vec<u8>>, write: impl Fn(&[u8]) -> usize) {
    while let Some(line) = kept.front_mut() {
        let part = AT_ONCE.min(line.len());
        let written = write(&line[..part]);
        if written == 0 {
            return;
        }
        line.drain(..written);
        if line.is_empty() {
            kept.pop_front();
        }
    }
}

/// Writes, waiting for room. Perhaps nobody reads this any more.
fn write_now(part: &[u8]) -> usize {
    let _ = stderr().write_all(part);
    part.len()
}

/// Writes what there is room for.
fn write_if_room(part: &[u8]) -> usize {
    let mut way = WAY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Way::Unknown = *way {
        *way = impatient().map_or(Way::Stderr, Way::Impatient);
    }
    match &mut *way {
        Way::Impatient(file) => match file.write(part) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            written => written.unwrap_or(part.len()),
        },
        _ if has_room() => write_now(part),
        _ => 0,
    }
}

/// Standard error as a pipe or terminal that never has its writer wait. The same file opened anew: the program has the
/// other, and others may write to both, so that room seen is not room had.
fn impatient() -> Option<File> {
    let kind = fs::metadata(OURS).ok()?.file_type();
    if !kind.is_fifo() && !kind.is_char_device() {
        return None;
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = File::options();
    options.write(true).custom_flags(flags.bits() as i32);
    options.open(OURS).ok()
}

/// Also where that is an error: the write finds it out.
fn has_room() -> bool {
    let stderr = stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    !matches!(poll(&mut fds, Some(&now)), Ok(0))
}
