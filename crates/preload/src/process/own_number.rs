//! Variables of systemd that hold the number of the process for which they are meant: LISTEN_PID for the sockets that it
//! gives a service, WATCHDOG_PID for the signs of life that it wants. A program obeys those that hold its own number.
//!
//! systemd has started `ebb`, so they hold that one's. In the program that `ebb` has started the constructor puts the
//! program's own number there. That is the program whose parent is `ebb`, as EBB_CONTROL names it. LISTEN_PIDFDID, which
//! tells of the same process in another way, goes: without it the number decides.
//!
//! Not here: programs that do not load the library.

use core::ffi::{CStr, c_char};
use core::ptr;
use std::os::unix::process::parent_id;

use ebb_tree::ControlName;

use crate::process::environment::{Environment, name};

const CONTROL: &[u8] = b"EBB_CONTROL=";
/// Variables that hold a number, with their `=`.
const NUMBERS: [&[u8]; 2] = [b"LISTEN_PID=", b"WATCHDOG_PID="];
const IN_ANOTHER_WAY: &[u8] = b"LISTEN_PIDFDID=";

/// # Safety
/// `envp` is the process's environment, which may be written; no other thread runs.
// Beside the library's constructor, which calls it in every process.
#[unsafe(link_section = ".text.startup")]
pub unsafe fn put(envp: *mut *const c_char) {
    // SAFETY: by the caller's contract.
    let all = unsafe { Environment::of(envp) };
    // Few processes have one; all others make no call.
    if !all.iter().any(|entry| held(entry).is_some()) {
        return;
    }
    let parent = parent_id();
    let is_for_parent = |entry: &CStr| held(entry) == Some(parent);
    if !all.iter().any(is_for_parent) || all.iter().find_map(supervisor) != Some(parent) {
        return;
    }
    let mut to = envp;
    for entry in all.iter() {
        if entry.to_bytes().starts_with(IN_ANOTHER_WAY) {
            continue;
        }
        let kept = match is_for_parent(entry) {
            true => own(entry),
            false => entry.as_ptr(),
        };
        // SAFETY: by the caller's contract; it is no place that is still to be read.
        unsafe {
            *to = kept;
            to = to.add(1);
        }
    }
    // SAFETY: as above; the environment ends there or further on.
    unsafe { *to = ptr::null() };
}

/// The number that a variable of these holds.
#[unsafe(link_section = ".text.startup")]
fn held(entry: &CStr) -> Option<u32> {
    let entry = entry.to_bytes();
    let number = NUMBERS.iter().find_map(|name| entry.strip_prefix(*name))?;
    str::from_utf8(number).ok()?.parse().ok()
}

/// The process that the variable of ours names.
fn supervisor(entry: &CStr) -> Option<u32> {
    let control = str::from_utf8(entry.to_bytes().strip_prefix(CONTROL)?).ok()?;
    Some(ControlName::parse(control)?.pid)
}

/// The variable with the number of this process, for ever.
fn own(entry: &CStr) -> *const c_char {
    let number = std::process::id().to_string();
    let own = [name(entry.to_bytes()), number.as_bytes(), b"\0"].concat();
    own.leak().as_ptr().cast()
}
