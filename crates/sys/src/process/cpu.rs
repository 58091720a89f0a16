//! Processors and memory nodes: which there are, which this process may use, where a thread runs.

use crate::Errno;
use crate::kernel::file::{Descriptor, read_up_to};
use crate::kernel::raw;
use crate::proc::thread_cpu;
use crate::process::program;
use rustix::fs::{Mode, OFlags};
use std::ffi::c_long;

/// The processor this thread runs on now.
pub fn cpu() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::sched_getcpu().max(0) as usize }
}

/// Processors that [`allowed_cpus`] tells of at most.
pub const TOLD: usize = 64;

/// The processors this process may use, in order; at most [`TOLD`]. Where a filter of the program's refuses to tell,
/// that of this thread: somebody has to serve.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: a zeroed set is valid, and the size is its own.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let args = [
            0,
            size_of_val(&set) as c_long,
            &raw mut set as c_long,
            0,
            0,
            0,
        ];
        raw::call(libc::SYS_sched_getaffinity, args);
        set
    };
    // SAFETY: indices stay below CPU_SETSIZE.
    let allowed = (0..1024).filter(|c| unsafe { libc::CPU_ISSET(*c, &set) });
    let allowed: Vec<usize> = allowed.take(TOLD).collect();
    match allowed.is_empty() {
        true => vec![cpu()],
        false => allowed,
    }
}

/// Binds this thread to one processor.
pub fn bind(cpu: usize) -> Result<(), Errno> {
    // SAFETY: a zeroed set is valid; the index is checked by CPU_SET.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        let args = [
            0,
            size_of_val(&set) as c_long,
            &raw const set as c_long,
            0,
            0,
            0,
        ];
        raw::checked(libc::SYS_sched_setaffinity, args).map(|_| ())
    }
}

/// The processor on which thread `id` of the program last ran.
pub fn cpu_of(id: u32) -> Option<usize> {
    thread_cpu(program::pid(), id)
}

/// Processors of the system that are online.
pub fn processors() -> usize {
    // SAFETY: no pointers.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize
}

/// The memory node of each processor, by its number.
pub fn nodes() -> Vec<u16> {
    // SAFETY: no pointers.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.clamp(1, 1024) as usize;
    nodes_in("/sys/devices/system/node".as_ref(), cpus)
}

/// The memory node of each of so many processors, by what the kernel says in a directory. The directory is not read:
/// libc takes 32 KiB for that, which a process that pages would keep.
fn nodes_in(dir: &std::path::Path, cpus: usize) -> Vec<u16> {
    let mut nodes = vec![0; cpus];
    let online = online_nodes_in(dir);
    if online.len() < 2 {
        nodes.fill(online.first().copied().unwrap_or(0));
        return nodes;
    }
    for node in online {
        let list = read_list(&dir.join(format!("node{node}/cpulist")));
        numbers(&list.unwrap_or_default())
            .filter(|c| *c < cpus)
            .for_each(|c| nodes[c] = node);
    }
    nodes
}

/// The memory nodes there are, from the smallest on; one where the kernel knows of none.
pub fn online_nodes() -> Vec<u16> {
    online_nodes_in("/sys/devices/system/node".as_ref())
}

fn online_nodes_in(dir: &std::path::Path) -> Vec<u16> {
    let list = read_list(&dir.join("online"));
    let known = numbers(list.as_deref().unwrap_or("0"));
    known.filter_map(|n| u16::try_from(n).ok()).collect()
}

/// The text of a file of sysfs, without libc's functions, which the program may have others of; none if it cannot be read.
fn read_list(path: &std::path::Path) -> Option<String> {
    // As much as sysfs has.
    let mut text = vec![0; crate::kernel::PAGE];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = Descriptor::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let len = read_up_to(&file, &mut text, 0).ok()?;
    text.truncate(len);
    String::from_utf8(text).ok()
}

/// The numbers of a list as sysfs writes it: `0-3,8`; none in an empty one, of a node without
/// processors.
fn numbers(list: &str) -> impl Iterator<Item = usize> {
    list.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let ends = first.parse::<usize>().ok().zip(last.parse().ok());
        ends.into_iter().flat_map(|(first, last)| first..=last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_sysfs() {
        let all = |list| numbers(list).collect::<Vec<_>>();
        assert_eq!(all("0\n"), [0]);
        assert_eq!(all("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(all("\n"), []);
    }

    #[test]
    fn processors_of_two_nodes() {
        let dir = tempfile::tempdir().unwrap();
        // One of them has no processor, one has more than are asked for.
        for (name, cpus) in [
            ("node0", "0-1,4\n"),
            ("node2", "2-3,5-9\n"),
            ("node5", "\n"),
        ] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("cpulist"), cpus).unwrap();
        }
        // Other files of that directory.
        std::fs::write(dir.path().join("online"), "0,2,5\n").unwrap();
        std::fs::create_dir(dir.path().join("power")).unwrap();
        assert_eq!(nodes_in(dir.path(), 6), [0, 0, 2, 2, 0, 2]);
        assert_eq!(nodes_in(&dir.path().join("none"), 2), [0, 0]);
    }
}
