//! `cargo xtask kernels`: real kernels of the Debian archive in QEMU, each with a set of checks.
//!
//! A guest sees the machine's own root, read-only by virtiofs and with an overlay on a disk of its own. So every
//! program and every test that was built here runs there as it is, on another kernel. The guest has four
//! processors, two memory nodes, NUMA balancing, huge pages for all memory, control groups of version 2, and a
//! disk with ext4.
//!
//! The processor is emulated: no machine needs to allow KVM, and times say nothing. Does not change the machine:
//! kernels, their disk and their logs lie in `target/kernels`.

mod archive;
mod boot_files;
mod checks;
mod guest;

use crate::{setup, table};
use anyhow::{Result, ensure};
use archive::Archive;
use boot_files::BootFiles;
use checks::Check;
use ebb_harness::tools;
use guest::{Guest, Outcome};
use std::path::PathBuf;
use std::time::Instant;

/// Boot real kernels in QEMU and run a set of checks on each
#[derive(clap::Args)]
pub struct Options {
    /// A kernel image of your own instead of those of the archive
    #[arg(long, value_name = "FILE", conflicts_with = "series")]
    image: Option<PathBuf>,
    /// The directory of its modules, if it has any: /lib/modules/RELEASE
    #[arg(long, value_name = "DIR", requires = "image")]
    modules: Option<PathBuf>,
    /// Only checks whose name contains this; may repeat
    #[arg(long, value_name = "TEXT")]
    check: Vec<String>,
    /// List the series that the archive has, and end
    #[arg(long)]
    list: bool,
    /// Series such as 6.12, of which the newest kernel boots; all that the archive has without
    #[arg(value_name = "SERIES")]
    series: Vec<String>,
}

/// Programs and packages that a guest needs.
const NEEDED: [(&str, &str); 7] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("/usr/lib/qemu/virtiofsd", "qemu-system-common"),
    ("/bin/busybox", "busybox-static"),
    ("mke2fs", "e2fsprogs"),
    ("xz", "xz-utils"),
    ("dpkg-deb", "dpkg"),
    ("/usr/sbin/exportfs", "nfs-kernel-server"),
];

/// Runs the set on each kernel; true if all checks passed.
///
/// # Errors
/// Something cannot be installed, built or booted.
pub fn kernels(options: &Options) -> Result<bool> {
    let start = Instant::now();
    let dir = tools::project().join("target/kernels");
    std::fs::create_dir_all(&dir)?;
    let archive = Archive::new(&dir)?;
    if options.list {
        for kernel in archive.series()? {
            println!("{:<6} {}", kernel.series, kernel.release);
        }
        return Ok(true);
    }
    ensure!(
        ebb_harness::is_root(),
        "run it as root: guests read the machine's whole root directory"
    );
    ensure!(
        !tools::project().starts_with("/tmp"),
        "guests have a /tmp of their own: check out the project elsewhere"
    );
    setup::packages(&NEEDED)?;
    let all = checks::read(&options.check)?;
    let programs = checks::build(&all)?;
    let kernels = match &options.image {
        Some(image) => vec![BootFiles::of_image(image, options.modules.as_deref())?],
        None => archive.boot_files(&options.series)?,
    };
    let mut rows = Vec::new();
    let mut good = true;
    for kernel in &kernels {
        let set: Vec<&Check> = all.iter().filter(|check| check.is_for(kernel)).collect();
        eprintln!("xtask: {}: {} checks", kernel.release, set.len());
        let outcomes = Guest::boot(&dir, kernel)?.run(&set, &programs)?;
        good &= outcomes.iter().all(Outcome::good);
        rows.extend(outcomes.iter().map(|outcome| row(kernel, outcome)));
    }
    let heading = ["kernel", "check", "result", "seconds"];
    print!("\n{}", table::markdown(&heading, &rows));
    println!(
        "{} kernels; took {:.0} s; what they printed is in {}",
        kernels.len(),
        start.elapsed().as_secs_f64(),
        dir.display()
    );
    Ok(good)
}

fn row(kernel: &BootFiles, outcome: &Outcome) -> Vec<String> {
    vec![
        kernel.release.clone(),
        outcome.check.clone(),
        outcome.verdict(),
        outcome.seconds.to_string(),
    ]
}
