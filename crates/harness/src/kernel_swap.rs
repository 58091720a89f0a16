//! The kernel's own swap, for comparison: zram, or a swap file with or without zswap before it;
//! turned on for a run and left as it was found. Needs root.

use crate::cgroup::is_v1;
use anyhow::{Context, Result, bail};
use procfs::{Current, Meminfo};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const ZRAM: &str = "/sys/block/zram0";
const DEVICE: &str = "/dev/zram0";
const SIZE: u64 = 8 << 30;

/// zram is swap while this lives.
pub struct Zram {
    algorithm_before: String,
}

/// Whether anything on this machine is swap already: it would spoil a comparison, and it is
/// not ours to turn off.
pub fn in_use() -> bool {
    Meminfo::current().is_ok_and(|memory| memory.swap_total > 0)
}

impl Zram {
    /// Turns zram on with this compression algorithm.
    ///
    /// # Errors
    /// No root, no zram, or it is in use by somebody else.
    pub fn on(algorithm: &str) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("zram needs root");
        }
        if in_use() {
            bail!("this machine uses swap already (see /proc/swaps); turn it off to compare");
        }
        if fs::metadata(ZRAM).is_err() {
            // Absent or built in: what follows says so better.
            let _ = Command::new("modprobe").arg("zram").status();
        }
        let size =
            fs::read_to_string(format!("{ZRAM}/disksize")).context("this kernel has no zram")?;
        if size.trim() != "0" {
            bail!("{DEVICE} is in use by somebody else");
        }
        let algorithms = fs::read_to_string(format!("{ZRAM}/comp_algorithm"))?;
        let algorithm_before = algorithms
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map_or("lzo-rle", |(name, _)| name)
            .to_string();
        let zram = Self { algorithm_before };
        fs::write(format!("{ZRAM}/comp_algorithm"), algorithm)
            .with_context(|| format!("zram here has no {algorithm}"))?;
        fs::write(format!("{ZRAM}/disksize"), SIZE.to_string())?;
        command("mkswap", &[DEVICE])?;
        command("swapon", &["-p", "10", DEVICE])?;
        Ok(zram)
    }

    /// The most RAM it ever held: it is not charged to any cgroup.
    pub fn peak(&self) -> u64 {
        let text = fs::read_to_string(format!("{ZRAM}/mm_stat")).unwrap_or_default();
        text.split_whitespace()
            .nth(4)
            .and_then(|n| n.parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = command("swapoff", &[DEVICE]);
        let _ = fs::write(format!("{ZRAM}/reset"), "1");
        let _ = fs::write(format!("{ZRAM}/comp_algorithm"), &self.algorithm_before);
    }
}

const ZSWAP: &str = "/sys/module/zswap/parameters/enabled";
/// zswap's own figures, where debugfs is mounted.
const ZSWAP_FACTS: &str = "/sys/kernel/debug/zswap";

/// A swap file is swap while this lives.
pub struct SwapFile {
    path: PathBuf,
    /// The former setting of zswap, if it was changed.
    zswap_before: Option<String>,
    peak: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
}

impl SwapFile {
    /// Makes a swap file of `size` bytes in the directory for temporary files that is not in
    /// memory, and turns it on, behind zswap if `zswap`.
    ///
    /// # Errors
    /// No root, swap in use already, no room, or no zswap here whose pool can be measured.
    pub fn on(size: u64, zswap: bool) -> Result<Self> {
        if !crate::is_root() {
            bail!("a swap file needs root");
        }
        if in_use() {
            bail!("this machine uses swap already (see /proc/swaps); turn it off to compare");
        }
        let path = PathBuf::from(format!("/var/tmp/ebb-compare-{}.swap", std::process::id()));
        let mut swap = Self {
            path,
            zswap_before: None,
            peak: Arc::default(),
            done: Arc::default(),
        };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&swap.path)
            .with_context(|| format!("cannot make {}", swap.path.display()))?;
        // The kernel takes no file with holes.
        let zeros = vec![0; 1 << 20];
        for _ in 0..size >> 20 {
            file.write_all(&zeros).context("no room for a swap file")?;
        }
        file.sync_all()?;
        drop(file);
        if zswap {
            if is_v1() && zswap_pool().is_none() {
                bail!(
                    "the size of zswap's pool cannot be seen: mount -t debugfs none /sys/kernel/debug"
                );
            }
            let before = fs::read_to_string(ZSWAP).context("this kernel has no zswap")?;
            fs::write(ZSWAP, "Y").context("zswap cannot be turned on")?;
            swap.zswap_before = Some(before);
            swap.watch();
        }
        let name = swap.path.display().to_string();
        command("mkswap", &[&name])?;
        command("swapon", &["-p", "10", &name])?;
        Ok(swap)
    }

    /// Keeps the largest size of zswap's pool that was seen.
    fn watch(&self) {
        let (peak, done) = (self.peak.clone(), self.done.clone());
        std::thread::spawn(move || {
            while !done.load(Relaxed) {
                if let Some(bytes) = zswap_pool() {
                    peak.fetch_max(bytes, Relaxed);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }

    /// The most bytes it held in RAM that no cgroup was charged for: those of zswap's pool, on
    /// cgroup version 1.
    pub fn peak(&self) -> u64 {
        if is_v1() { self.peak.load(Relaxed) } else { 0 }
    }
}

/// Bytes of zswap's pool: as `/proc/meminfo` has it, or debugfs where that is older than Linux 5.19.
fn zswap_pool() -> Option<u64> {
    let pool = Meminfo::current().ok().and_then(|memory| memory.z_swap);
    pool.or_else(|| zswap_fact("pool_total_size"))
}

/// A figure of zswap's, such as `pool_limit_hit`; none where debugfs is not mounted.
pub fn zswap_fact(name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("{ZSWAP_FACTS}/{name}")).ok()?;
    text.trim().parse().ok()
}

/// A counter of the whole machine from `/proc/vmstat`, such as `pswpin`.
pub fn vmstat(name: &str) -> Option<u64> {
    let counters = procfs::vmstat().ok()?;
    counters.get(name).map(|count| *count as u64)
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        self.done.store(true, Relaxed);
        let _ = command("swapoff", &[&self.path.display().to_string()]);
        if let Some(before) = &self.zswap_before {
            let _ = fs::write(ZSWAP, before.trim());
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn command(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
