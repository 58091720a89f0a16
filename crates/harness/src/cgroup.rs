//! A memory cgroup with a hard limit, v1 or v2, removed when dropped. Needs root.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

/// Whether what does not fit may go to the kernel's swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelSwap {
    /// It may.
    Allowed,
    /// It is killed instead.
    Forbidden,
}

/// The group.
pub struct Cgroup {
    path: PathBuf,
    v1: bool,
}

/// Whether memory cgroups are those of version 1 here: zswap's pool is charged to none of them.
pub fn is_v1() -> bool {
    Path::new(V1).join("memory.limit_in_bytes").exists()
}

/// Why no memory cgroup can be made here; `None` if one can.
pub fn unavailable() -> Option<String> {
    match Cgroup::new(64 << 20, KernelSwap::Forbidden) {
        Ok(_) => None,
        Err(error) => Some(format!("{error:#}")),
    }
}

impl Cgroup {
    /// A new group of at most `limit` bytes.
    ///
    /// # Errors
    /// No root, no memory controller.
    pub fn new(limit: u64, swap: KernelSwap) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            bail!("memory cgroups need root");
        }
        let v1 = is_v1();
        let top = if v1 { V1 } else { V2 };
        let number = NUMBER.fetch_add(1, Relaxed);
        let path = Path::new(top).join(format!("ebbtide-{}-{number}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let group = Self { path, v1 };
        if v1 {
            group.set("memory.limit_in_bytes", limit)?;
            group.set(
                "memory.swappiness",
                if swap == KernelSwap::Allowed { 100 } else { 0 },
            )?;
        } else {
            group.set("memory.max", limit)?;
            if swap == KernelSwap::Forbidden {
                // Absent where the kernel has no swap at all, which is just as well.
                let _ = group.set("memory.swap.max", 0);
            }
        }
        Ok(group)
    }

    /// A new group that only measures.
    ///
    /// # Errors
    /// As above.
    pub fn unlimited() -> Result<Self> {
        Self::new(1 << 46, KernelSwap::Allowed)
    }

    /// Has the kernel refuse memory above the limit instead of ending somebody, as groups of version 1 can.
    ///
    /// # Errors
    /// They are of version 2.
    pub fn refuse(&self) -> Result<()> {
        self.set("memory.oom_control", 1)
    }

    /// Whether somebody waits in it now for memory that it refuses; version 1 alone.
    pub fn is_refusing(&self) -> bool {
        let text = fs::read_to_string(self.path.join("memory.oom_control")).unwrap_or_default();
        text.lines().any(|line| line == "under_oom 1")
    }

    fn set(&self, file: &str, value: u64) -> Result<()> {
        fs::write(self.path.join(file), value.to_string()).with_context(|| {
            format!(
                "cannot set {file} of {}: is the memory controller on?",
                self.path.display()
            )
        })
    }

    fn number(&self, file: &str) -> u64 {
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Changes the limit.
    ///
    /// # Errors
    /// More is in use and cannot be reclaimed.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        self.set(
            if self.v1 {
                "memory.limit_in_bytes"
            } else {
                "memory.max"
            },
            bytes,
        )
    }

    /// The most bytes it ever held, page cache included.
    pub fn peak(&self) -> u64 {
        self.number(if self.v1 {
            "memory.max_usage_in_bytes"
        } else {
            "memory.peak"
        })
    }

    /// Bytes of anonymous memory in it now.
    pub fn anonymous(&self) -> u64 {
        let name = if self.v1 { "rss " } else { "anon " };
        let text = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        let bytes = text.lines().find_map(|line| line.strip_prefix(name));
        bytes.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    }

    /// Times the kernel killed something in it.
    pub fn kills(&self) -> u64 {
        let file = if self.v1 {
            "memory.oom_control"
        } else {
            "memory.events"
        };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    }

    /// Where to write a process number to move it in.
    pub fn procs_file(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// The processes in it.
    pub fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.procs_file()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Kills everything in it.
    pub fn kill_all(&self) {
        let processes = self.processes().into_iter();
        for pid in processes.filter_map(|pid| rustix::process::Pid::from_raw(pid as i32)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let patience = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.path).is_err() && Instant::now() < patience {
            self.kill_all();
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
