//! Lines for the user while programs run: on standard error, by the thread that supervises them.
//!
//! Nobody may read there for a while: the pipe to a pager is full, a terminal is held (Ctrl-S). A supervisor that waits for
//! that supervises nobody. So a line is kept until there is room, and written then, the oldest first.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{Write, stderr};
use std::sync::{Mutex, PoisonError};

/// Lines that are kept. Of more the newest are lost.
const MOST: usize = 100;
/// Bytes that go into a pipe or to a terminal that says it has room.
const AT_ONCE: usize = 512;

static KEPT: Mutex<VecDeque<Vec<u8>>> = Mutex::new(VecDeque::new());

/// Writes a line, or keeps it.
pub fn line(text: &str) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() < MOST {
        kept.push_back(format!("{text}\n").into_bytes());
    }
    write_out(&mut kept, has_room);
}

/// Writes what was kept, as far as there is room.
pub fn kept() {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    write_out(&mut kept, has_room);
}

/// Writes all that was kept: nobody is supervised any more.
pub fn rest() {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    write_out(&mut kept, || true);
}

fn write_out(kept: &mut VecDeque<Vec<u8>>, mut room: impl FnMut() -> bool) {
    while let Some(line) = kept.front_mut() {
        if !room() {
            return;
        }
        let part = AT_ONCE.min(line.len());
        // Perhaps nobody reads this any more.
        let _ = stderr().write_all(&line[..part]);
        line.drain(..part);
        if line.is_empty() {
            kept.pop_front();
        }
    }
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
