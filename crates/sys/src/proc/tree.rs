//! Processes and threads: lists of them, and how they are related.

use super::file::{Path, number, read};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::ops::ControlFlow::{self, Break, Continue};

/// A thread of process `pid` that waits for a page of memory that a userfaultfd serves. None also where
/// the kernel does not say what threads wait for.
pub fn waits_for_page(pid: u32) -> Option<u32> {
    let waits = |tid| {
        let mut buf = [0; 64];
        let path = Path::new(format_args!("/proc/{pid}/task/{tid}/wchan"));
        let file = path.open(OFlags::RDONLY);
        match file.is_ok_and(|file| read(&file, &mut buf) == Ok(b"handle_userfault")) {
            true => Break(tid),
            false => Continue(()),
        }
    };
    each_thread(pid, waits).ok()?
}

/// Calls `f` with the number of each thread of `pid`, until it breaks; with what it did.
///
/// # Errors
/// ESRCH or ENOENT if it is gone.
pub fn each_thread<B>(
    pid: u32,
    mut f: impl FnMut(u32) -> ControlFlow<B>,
) -> Result<Option<B>, Errno> {
    let dir =
        Path::new(format_args!("/proc/{pid}/task")).open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = [std::mem::MaybeUninit::uninit(); 2048];
    let mut tasks = rustix::fs::RawDir::new(&dir, &mut names);
    while let Some(task) = tasks.next() {
        if let Some(tid) = number(task?.file_name().to_bytes())
            && let Break(result) = f(tid as u32)
        {
            return Ok(Some(result));
        }
    }
    Ok(None)
}

/// Calls `f` with the pid of each child of any thread of `pid`. A child that comes or goes
/// meanwhile may be missed.
///
/// # Errors
/// ESRCH or ENOENT if it is gone; ENOENT also where the kernel has no such file.
pub fn children(pid: u32, mut f: impl FnMut(u32)) -> Result<(), Errno> {
    let failed = each_thread(pid, |tid| match children_of_thread(pid, tid, &mut f) {
        Ok(()) => Continue(()),
        Err(e) => Break(e),
    })?;
    failed.map_or(Ok(()), Err)
}

fn children_of_thread(pid: u32, tid: u32, f: &mut impl FnMut(u32)) -> Result<(), Errno> {
    let file = match Path::new(format_args!("/proc/{pid}/task/{tid}/children")).open(OFlags::RDONLY)
    {
        Ok(file) => file,
        // The thread is gone, or (for the first) the kernel has no such file.
        Err(Errno::NOENT | Errno::SRCH) if tid != pid => return Ok(()),
        Err(e) => return Err(e),
    };
    // A number may be cut by the end of the buffer: carry its digits over.
    let mut pending: Option<u64> = None;
    let mut buf = [0; 1024];
    loop {
        let n = match rustix::io::read(&file, &mut buf[..]) {
            Ok(n) => n,
            Err(Errno::INTR) => continue,
            Err(Errno::SRCH) => 0,
            Err(e) => return Err(e),
        };
        if n == 0 {
            break;
        }
        for &b in &buf[..n] {
            if b.is_ascii_digit() {
                pending = Some(pending.unwrap_or(0) * 10 + (b - b'0') as u64);
            } else if let Some(child) = pending.take() {
                f(child as u32);
            }
        }
    }
    if let Some(child) = pending {
        f(child as u32);
    }
    Ok(())
}

/// Calls `f` with every pid. The kernel goes by number, so a process that lives throughout
/// is never skipped.
///
/// # Errors
/// Those of reading `/proc`.
pub fn all(f: impl FnMut(u32)) -> Result<(), Errno> {
    numbers_in(format_args!("/proc"), f)
}

/// The entries of a directory that are numbers.
pub(super) fn numbers_in(
    directory: std::fmt::Arguments<'_>,
    mut f: impl FnMut(u32),
) -> Result<(), Errno> {
    let dir = Path::new(directory).open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = [std::mem::MaybeUninit::uninit(); 4096];
    let mut entries = rustix::fs::RawDir::new(&dir, &mut names);
    while let Some(entry) = entries.next() {
        if let Some(pid) = number(entry?.file_name().to_bytes()) {
            f(pid as u32);
        }
    }
    Ok(())
}

/// The processor on which a thread of process `pid` last ran. About 5 µs.
pub fn thread_cpu(pid: u32, tid: u32) -> Option<usize> {
    let mut buffer = [0u8; 512];
    let path = Path::new(format_args!("/proc/{pid}/task/{tid}/stat"));
    let stat = read(path.open(OFlags::RDONLY).ok()?, &mut buffer).ok()?;
    // The name, in parentheses, may hold anything; fields are counted after it.
    let after = stat.iter().rposition(|b| *b == b')')? + 2;
    let field = stat.get(after..)?.split(|b| *b == b' ').nth(36)?;
    number(field).map(|cpu| cpu as usize)
}

/// The path of the file that this process has open as `fd`, links resolved.
pub fn path_of_fd(fd: i32, into: &mut [MaybeUninit<u8>]) -> Option<&[u8]> {
    Path::new(format_args!("/proc/self/fd/{fd}"))
        .read_link(into)
        .ok()
}
