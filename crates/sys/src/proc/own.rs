//! The calling process, its namespaces, and the load of the machine, as `/proc` shows them. Nothing is allocated.

use super::file;
use super::stat::Statm;
use super::status;
use crate::kernel::PAGE;
use rustix::io::Errno;

/// Pages of anonymous memory this process has resident (file and shared pages left out).
pub fn resident_anonymous_pages() -> Option<u64> {
    let mut buffer = [0u8; 128];
    // Of the process it would be zeros once its first thread has ended.
    let text = read_small(c"/proc/thread-self/statm", &mut buffer)?;
    Statm::parse(text).map(|statm| statm.anonymous())
}

/// Pages that the kernel has pinned for long, as buffers of io_uring or of RDMA: devices write into
/// them without asking again.
pub fn pinned_pages() -> Option<u64> {
    status_pages(b"VmPin:")
}

/// Pages of this process's page tables.
pub fn table_pages() -> Option<u64> {
    status_pages(b"VmPTE:")
}

/// A figure of `/proc/self/status`, which is in kB there, in pages.
fn status_pages(name: &[u8]) -> Option<u64> {
    let file = file::open(c"/proc/self/status".to_bytes(), rustix::fs::OFlags::RDONLY).ok()?;
    let mut kept = [0u8; 64];
    let line = status::lines(&file, &[name], &mut kept).ok()?;
    let line = line.strip_prefix(name)?;
    let kib = std::str::from_utf8(line).ok()?.trim().strip_suffix(" kB")?;
    Some(kib.parse::<u64>().ok()? * 1024 / PAGE as u64)
}

/// Reads a small file without allocating.
fn read_small<'a>(path: &std::ffi::CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = file::open(path.to_bytes(), rustix::fs::OFlags::RDONLY).ok()?;
    let n = rustix::io::read(&file, &mut *buffer).ok()?;
    buffer.get(..n)
}

/// Threads of the whole system that run or want to, at this moment.
pub fn running_threads() -> Option<usize> {
    let mut buffer = [0u8; 96];
    let text = read_small(c"/proc/loadavg", &mut buffer)?;
    let field = text.split(|b| *b == b' ').nth(3)?;
    let running = field.split(|b| *b == b'/').next()?;
    std::str::from_utf8(running).ok()?.parse().ok()
}

/// Which PID namespace this process is in: its inode, which no other has while it lives. One system
/// call, and nothing is allocated.
///
/// # Errors
/// Those of stat(2): `/proc` is not mounted, or not one that shows this process.
pub fn pid_namespace() -> Result<u64, Errno> {
    // Miri does not make this call for a path.
    if cfg!(miri) {
        return Err(Errno::NOSYS);
    }
    Ok(rustix::fs::stat(c"/proc/self/ns/pid")?.st_ino)
}

/// The inode of the calling thread's user namespace; none where `/proc` does not say.
pub fn user_namespace() -> Option<u64> {
    let stat = rustix::fs::stat(c"/proc/thread-self/ns/user");
    Some(stat.ok()?.st_ino)
}

/// Whether children of the calling process come to be in its own PID namespace: after `unshare` the first of
/// them is the first of a new one. Yes where `/proc` does not say.
pub fn children_stay_in_namespace() -> bool {
    let inode = |path| rustix::fs::stat(path).map(|stat| stat.st_ino).ok();
    inode(c"/proc/self/ns/pid") == inode(c"/proc/self/ns/pid_for_children")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{release, reserve};
    use rustix::io_uring::{IoringRegisterOp, io_uring_params, io_uring_register, io_uring_setup};

    #[test]
    fn registered_buffers_are_pinned() {
        const PAGES: usize = 3;
        let mut params = io_uring_params::default();
        // SAFETY: the parameters ask for nothing but a plain ring.
        let Ok(ring) = (unsafe { io_uring_setup(1, &mut params) }) else {
            println!("skipped: no io_uring");
            return;
        };
        let start = reserve(PAGES * PAGE).unwrap();
        let buffer = libc::iovec {
            iov_base: start as *mut libc::c_void,
            iov_len: PAGES * PAGE,
        };
        let before = pinned_pages().unwrap();
        let register = |op, buffers: Option<&libc::iovec>| {
            let argument = buffers.map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: the buffer stays until it is registered no more.
            unsafe { io_uring_register(&ring, op, argument.cast(), u32::from(buffers.is_some())) }
        };
        register(IoringRegisterOp::RegisterBuffers, Some(&buffer)).unwrap();
        assert_eq!(pinned_pages(), Some(before + PAGES as u64));
        register(IoringRegisterOp::UnregisterBuffers, None).unwrap();
        assert_eq!(pinned_pages(), Some(before));
        // SAFETY: nobody uses it any more.
        unsafe { release(start, PAGES * PAGE) }.unwrap();
    }
}
