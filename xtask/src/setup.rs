//! Needs of tests, demo and benchmark from outside: Debian packages, Python packages in a virtual
//! environment of the project, and the permission to page, for an ordinary user who may use sudo. Installed
//! packages are left alone. Packages that cannot be installed are reported, and the tests that need them
//! say "skipped".

use anyhow::{Context, Result, bail};
use ebb_harness::{tested, tools};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// (what proves it is there, Debian package)
const PACKAGES: [(&str, &str); 29] = [
    ("cc", "gcc"),
    ("g++", "g++"),
    ("make", "make"),
    ("python3", "python3"),
    ("sqlite3", "sqlite3"),
    ("redis-cli", "redis-tools"),
    ("javac", "default-jdk-headless"),
    ("node", "nodejs"),
    ("perl", "perl"),
    ("ruby", "ruby"),
    ("php", "php-cli"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("fuse2fs", "fuse2fs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("musl-gcc", "musl-tools"),
    ("ld.lld", "lld"),
    ("stress-ng", "stress-ng"),
    ("strace", "strace"),
    ("gdb", "gdb"),
    ("bwrap", "bubblewrap"),
    ("podman", "podman"),
    ("runc", "runc"),
    ("mmdebstrap", "mmdebstrap"),
    ("tmux", "tmux"),
    ("zsh", "zsh"),
    ("fish", "fish"),
    ("pgbench", "postgresql"),
    ("chromium", "chromium"),
];

/// How much to set up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// For the demo and `test --quick`: only what builds and runs Python programs.
    Small,
    /// Everything.
    Full,
}

/// Installs what is missing, as far as possible.
pub fn install(extent: Extent) {
    if !may_page()
        && let Err(error) = allow_paging()
    {
        eprintln!("xtask: userfaultfd is not permitted, and so nothing can be paged: {error:#}");
    }
    let missing: Vec<&str> = PACKAGES
        .into_iter()
        .filter(|(program, _)| extent == Extent::Full || ["cc", "python3"].contains(program))
        .filter(|(program, _)| tools::in_path(program).is_none())
        .map(|(_, package)| package)
        .collect();
    if !missing.is_empty()
        && let Err(error) = apt(&missing)
    {
        eprintln!(
            "xtask: {error:#}; what needs {} will be skipped",
            missing.join(", ")
        );
    }
    if extent == Extent::Full
        && let Err(error) = link_redis()
    {
        eprintln!("xtask: {error:#}; what needs redis-server will be skipped");
    }
    if tools::python_with(
        "numpy, pytest, hypothesis, hatchling, ipykernel, prometheus_client, yaml",
    )
    .is_none()
        && let Err(error) = python_packages()
    {
        eprintln!("xtask: {error:#}; what needs NumPy will be skipped");
    }
    if extent == Extent::Full
        && tools::python_with(tools::CPYTHONS_TESTS).is_none()
        && let Err(error) = python_tests()
    {
        eprintln!("xtask: {error:#}; CPython's own checks will be skipped");
    }
}

const DEVICE: &str = "/dev/userfaultfd";

/// Whether this user may have faults served that the kernel raises: `ebb doctor` tries it, but is not
/// built yet.
fn may_page() -> bool {
    let sysctl = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let device = || std::fs::File::options().read(true).write(true).open(DEVICE);
    ebb_harness::is_root() || sysctl.is_ok_and(|text| text.trim() == "1") || device().is_ok()
}

/// Asks for it, until the next boot and for this user alone.
fn allow_paging() -> Result<()> {
    if tools::in_path("setfacl").is_none() {
        apt(&["acl"])?;
    }
    let user = run(Command::new("id").arg("-u"))?;
    let args = ["-m", &format!("u:{}:rw", user.trim()), DEVICE];
    as_root("setfacl", &args)
        .map(drop)
        .context("`ebb doctor` names the fix")
}

/// Runs a program of root's, or has sudo do so where that asks for no password.
fn as_root(program: &str, args: &[&str]) -> Result<String> {
    eprintln!("xtask: {program} {}", args.join(" "));
    let mut command = Command::new(if ebb_harness::is_root() {
        program
    } else {
        "sudo"
    });
    if !ebb_harness::is_root() {
        command.args(["-n", program]);
    }
    run(command.args(args).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Installs the Debian packages that are missing, of (what proves it is there, package): a program's name, or
/// a file's path.
///
/// # Errors
/// One cannot be installed.
pub fn packages(wanted: &[(&str, &str)]) -> Result<()> {
    let there = |proof: &str| match proof.starts_with('/') {
        true => Path::new(proof).exists(),
        false => tools::in_path(proof).is_some(),
    };
    let missing = wanted.iter().filter(|(proof, _)| !there(proof));
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    apt(&missing)
}

fn apt(packages: &[&str]) -> Result<()> {
    if tools::in_path("apt-get").is_none() {
        bail!("this is no Debian: install {} yourself", packages.join(" "));
    }
    let apt = |args: &[&str]| as_root("apt-get", args);
    // Another apt may be at work: it is waited for.
    let wait = ["-o", "DPkg::Lock::Timeout=120"];
    let install = [
        &["install", "-y", "--no-install-recommends"],
        &wait[..],
        packages,
    ]
    .concat();
    // The lists may be absent or old; they are refreshed only if it fails without.
    if apt(&install).is_err() {
        apt(&["update"])?;
        apt(&install).with_context(|| format!("cannot install {}", packages.join(" ")))?;
    }
    Ok(())
}

/// Debian's redis-tools holds the server's program, which looks at its own name; so no service
/// is installed on the machine.
fn link_redis() -> Result<()> {
    if tools::redis().is_some() {
        return Ok(());
    }
    let program = tools::in_path("redis-check-rdb").context("redis-tools is not installed")?;
    let link = tools::project().join("target/tools/redis-server");
    std::fs::create_dir_all(link.parent().unwrap_or(Path::new(".")))?;
    std::os::unix::fs::symlink(program, link)?;
    Ok(())
}

/// Python with the builder of wheels.
///
/// # Errors
/// It cannot be installed.
pub fn python_for_wheels() -> Result<PathBuf> {
    let with = || tools::python_with("hatchling");
    if let Some(python) = with() {
        return Ok(python);
    }
    python_packages()?;
    with().context("hatchling is not installed")
}

fn python_packages() -> Result<()> {
    let venv = tools::project().join(".venv");
    let python = tools::in_path("python3").context("python3 is not installed")?;
    let make = || run(Command::new(&python).args(["-m", "venv"]).arg(&venv));
    eprintln!(
        "xtask: NumPy, what its tests need, py-spy, a Jupyter kernel, parsers of OpenMetrics and YAML, and hatchling into {}",
        venv.display()
    );
    if make().is_err() {
        // Debian keeps venv in a package of its own.
        apt(&["python3-venv"])?;
        make()?;
    }
    let install = ["-m", "pip", "install", "--quiet"];
    let packages = [
        "numpy",
        "pytest",
        "hypothesis",
        "py-spy",
        "hatchling",
        "ipykernel",
        "jupyter_client",
        "prometheus_client",
        "pyyaml",
    ];
    run(Command::new(venv.join("bin/python3"))
        .args(install)
        .args(packages))?;
    Ok(())
}

/// CPython's regression tests, which Debian keeps apart, in a package for each of its versions.
fn python_tests() -> Result<()> {
    let python = tools::python().context("python3 is not installed")?;
    let name = "import sys; print('libpython%d.%d-testsuite' % sys.version_info[:2])";
    apt(&[run(Command::new(python).args(["-c", name]))?.trim()])
}

/// Names the library whose copy goes into `ebb` (crates/ebb/build.rs).
pub const EMBED: &str = "EBB_EMBED";

/// The library as released, without what debuggers read.
pub fn library() -> PathBuf {
    tools::project().join("target/release/stripped/libebb_preload.so")
}

/// Strips the library. A file that stays as it was is left alone: `ebb` is built anew for another one.
fn strip_library() -> Result<()> {
    let to = library();
    let fresh = to.with_extension("fresh");
    std::fs::create_dir_all(to.parent().context("a directory")?)?;
    let from = tools::project().join("target/release/libebb_preload.so");
    run(Command::new("strip").arg("-o").arg(&fresh).arg(from))?;
    let changed = std::fs::read(&to).ok() != Some(std::fs::read(&fresh)?);
    if changed {
        std::fs::rename(fresh, to)?;
    } else {
        std::fs::remove_file(fresh)?;
    }
    Ok(())
}

const RELEASE: [&str; 2] = ["build", "--release"];

/// Builds `ebb` and its library for release, with a copy of the library inside; returns the command's path.
///
/// # Errors
/// The build failed.
pub fn build_release() -> Result<PathBuf> {
    release_library()?;
    release_commands()
}

/// Builds the library for release, of which builds of the command hold a copy.
///
/// # Errors
/// The build failed.
pub fn release_library() -> Result<()> {
    cargo(&[&RELEASE[..], &tested::PACKAGES, &["--lib"]].concat())?;
    strip_library()
}

/// Builds the commands for release, once there is the library; returns the path of `ebb`.
///
/// # Errors
/// The build failed.
pub fn release_commands() -> Result<PathBuf> {
    let status = Command::new("cargo")
        .args([&RELEASE[..], &tested::PACKAGES, &["--bins"]].concat())
        .env(EMBED, library())
        .current_dir(tools::project())
        .stdin(Stdio::null())
        .status()?;
    if !status.success() {
        bail!("cargo build -p ebb failed");
    }
    Ok(tools::project().join("target/release/ebb"))
}

/// Runs cargo in the project.
///
/// # Errors
/// It failed; it has said why.
pub fn cargo(args: &[&str]) -> Result<()> {
    let status = Command::new("cargo")
        .args(args)
        .current_dir(tools::project())
        .stdin(Stdio::null())
        .status()?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}

/// Runs a command and returns its output.
///
/// # Errors
/// It cannot be started, or failed; with the last line that it said.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{:?} failed: {}",
            command.get_program(),
            text.trim().lines().last().unwrap_or_default()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
