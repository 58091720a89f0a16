//! Anonymous pages of real programs, taken from outside: `/proc/PID/pagemap` says which pages
//! are anonymous and resident, `/proc/PID/mem` has their content. Nothing is attached; a
//! command we start ourselves is stopped while it is read, so that a page is of one moment.
//!
//! The sample has whole units of 16 pages, evenly spread, as the pager evicts them.

use super::Error;
use ebb_engine::{PAGE_SIZE, PageBytes};
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Pages of a unit of addresses.
pub const UNIT: usize = 16;

/// The pages of units, in the order of their addresses. A unit may have fewer than
/// [`UNIT`] pages: those that were not resident are missing.
#[derive(Default)]
pub struct Sample {
    pub units: Vec<Vec<Box<PageBytes>>>,
    /// Anonymous pages the program had.
    pub resident: u64,
}

impl Sample {
    pub fn pages(&self) -> usize {
        self.units.iter().map(Vec::len).sum()
    }
}

/// Pages one after the other in a file; the end that fills no page is left out.
pub fn dump(path: &Path, most: usize) -> Result<Sample, Error> {
    let mut file = File::open(path).map_err(|e| Error::file(path, &e))?;
    let mut sample = Sample::default();
    let mut page = Box::new([0; PAGE_SIZE]);
    while sample.pages() < most && file.read_exact(&mut page[..]).is_ok() {
        match sample.units.last_mut().filter(|unit| unit.len() < UNIT) {
            Some(unit) => unit.push(page.clone()),
            None => sample.units.push(vec![page.clone()]),
        }
        sample.resident += 1;
    }
    Ok(sample)
}

const PRESENT: u64 = 1 << 63;
const FILE_OR_SHARED: u64 = 1 << 61;

/// About `most` pages of a running process.
pub fn process(pid: u32, most: usize) -> Result<Sample, Error> {
    let open = |name: &str| {
        let path = format!("/proc/{pid}/{name}");
        File::open(&path).map_err(|e| Error::file(Path::new(&path), &e))
    };
    let maps = Process::new(pid as i32).and_then(|process| process.maps());
    let maps = maps.map_err(|e| Error::file(Path::new("/proc/PID/maps"), &io::Error::other(e)))?;
    let (pagemap, mem) = (open("pagemap")?, open("mem")?);
    let mut units: Vec<(u64, u16)> = Vec::new();
    let mut resident = 0;
    for (start, end) in maps
        .iter()
        .filter(|map| is_private(map))
        .map(|map| map.address)
    {
        let mut at = start;
        while at < end {
            let next =
                ((at / PAGE_SIZE as u64 / UNIT as u64 + 1) * (UNIT * PAGE_SIZE) as u64).min(end);
            let mut words = [0u8; 8 * UNIT];
            let pages = ((next - at) / PAGE_SIZE as u64) as usize;
            let n = pagemap
                .read_at(&mut words[..8 * pages], at / PAGE_SIZE as u64 * 8)
                .unwrap_or(0);
            let mut mask = 0u16;
            for (i, word) in words[..n].as_chunks::<8>().0.iter().enumerate() {
                let word = u64::from_le_bytes(*word);
                if word & PRESENT != 0 && word & FILE_OR_SHARED == 0 {
                    mask |= 1 << i;
                }
            }
            if mask != 0 {
                units.push((at, mask));
                resident += u64::from(mask.count_ones());
            }
            at = next;
        }
    }
    let step = (resident as usize).div_ceil(most.max(1)).max(1);
    let mut sample = Sample {
        resident,
        ..Sample::default()
    };
    for &(start, mask) in units.iter().step_by(step) {
        let mut unit = Vec::with_capacity(UNIT);
        for i in (0..UNIT as u64).filter(|i| mask >> i & 1 != 0) {
            let mut page = Box::new([0; PAGE_SIZE]);
            if mem
                .read_exact_at(&mut page[..], start + i * PAGE_SIZE as u64)
                .is_ok()
            {
                unit.push(page);
            }
        }
        if !unit.is_empty() {
            sample.units.push(unit);
        }
    }
    Ok(sample)
}

/// Whether a mapping is private, writable, and not a stack or the kernel's own.
fn is_private(map: &MemoryMap) -> bool {
    use MMapPath::{Anonymous, Heap, Other, Path};
    let private = MMPermissions::READ | MMPermissions::WRITE | MMPermissions::PRIVATE;
    let named = match &map.pathname {
        Path(_) | Heap | Anonymous => true,
        Other(name) => !name.starts_with('v'),
        _ => false,
    };
    named && map.perms.contains(private)
}

/// How much larger a process must be than when it was last sampled to be sampled again.
const GROWTH: f64 = 1.15;

/// Runs a command, and samples the largest process of its tree near its peak: each time it has grown by
/// some percent, and once more at `after`, when the command is ended.
pub fn command(words: &[String], most: usize, after: Duration) -> Result<Sample, Error> {
    let [program, arguments @ ..] = words else {
        return Err(Error::NoPages);
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| Error::file(Path::new(program), &e))?;
    let start = Instant::now();
    let (mut best, mut sampled_at) = (Sample::default(), 0);
    let mut failed = None;
    while !matches!(child.try_wait(), Ok(Some(_))) {
        let over = start.elapsed() >= after;
        if let Some((size, pid)) = largest(child.id())
            && (size as f64 > sampled_at as f64 * GROWTH || over && size >= sampled_at)
        {
            sampled_at = size;
            match stopped(pid, || process(pid, most)) {
                Ok(sample) if sample.pages() >= best.pages() => best = sample,
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        if over {
            for pid in tree(child.id()) {
                signal(pid, Signal::KILL);
            }
            let _ = child.wait();
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    match failed {
        Some(error) if best.pages() == 0 => Err(error),
        _ => Ok(best),
    }
}

/// Runs `f` while the process does not run.
fn stopped<R>(pid: u32, f: impl FnOnce() -> R) -> R {
    signal(pid, Signal::STOP);
    let result = f();
    signal(pid, Signal::CONT);
    result
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // One that has just ended needs none.
        let _ = kill_process(pid, signal);
    }
}

/// A process and all it started, parents first.
fn tree(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let mut at = 0;
    while at < all.len() {
        let _ = ebb_sys::proc::children(all[at], |child| all.push(child));
        at += 1;
    }
    all
}

/// The process of the tree with the most anonymous pages, and how many.
fn largest(root: u32) -> Option<(u64, u32)> {
    let anonymous = |&pid: &u32| {
        let statm = ebb_sys::proc::Process::open(pid).ok()?.statm().ok()?;
        Some((statm.anonymous(), pid))
    };
    tree(root).iter().filter_map(anonymous).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromRead;
    use procfs::process::MemoryMaps;

    #[test]
    fn our_own_pages_are_found() {
        let mine: Vec<u8> = (0..64 * PAGE_SIZE)
            .map(|i| (i / PAGE_SIZE) as u8 ^ 0xa5)
            .collect();
        // Read by way of the kernel alone: of that the compiler knows nothing.
        std::hint::black_box(&mine);
        let sample = process(std::process::id(), usize::MAX).expect("we may read ourselves");
        assert!(sample.resident >= 64);
        // The vector's inner pages are wholly ours, whatever its alignment.
        for i in 1..63u8 {
            let like = |page: &PageBytes| page.iter().all(|&b| b == i ^ 0xa5);
            let halves =
                |page: &PageBytes| page[0] == (i - 1) ^ 0xa5 && page[PAGE_SIZE - 1] == i ^ 0xa5;
            assert!(
                sample
                    .units
                    .iter()
                    .flatten()
                    .any(|page| like(page) || halves(page)),
                "page {i} is missing"
            );
        }
        drop(mine);
    }

    #[test]
    fn private_mappings() {
        let maps = "7f00-8f00 rw-p 00000000 00:00 0                  [heap]\n\
                    7f00-8f00 rw-p 00000000 00:00 0 \n\
                    7f00-8f00 r--p 00000000 08:01 77   /bin/x\n\
                    7f00-8f00 rw-s 00000000 00:01 77   /memfd:x\n\
                    7f00-8f00 rw-p 00000000 00:00 0    [stack]\n\
                    7f00-8f00 rw-p 00000000 00:00 0    [vvar_vclock]\n";
        let maps = MemoryMaps::from_read(maps.as_bytes()).unwrap();
        let private: Vec<bool> = maps.iter().map(is_private).collect();
        assert_eq!(private, [true, true, false, false, false, false]);
    }
}
