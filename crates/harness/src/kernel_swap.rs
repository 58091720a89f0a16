//! The kernel's zram as swap, for comparison; turned on for a run and left as it was found.
//! Needs root.

use anyhow::{Context, Result, bail};
use std::fs;
use std::process::Command;

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
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
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
