//! `cargo xtask dist`: the packages in target/dist.
//!
//! | file | made by | holds |
//! |---|---|---|
//! | `ebb-VERSION-x86_64-linux-gnu.tar.gz` | tar | `bin`, `lib/ebb`, `share`, to be laid over a prefix |
//! | `ebbtide_VERSION_amd64.deb` | dpkg-deb | the same below `/usr`, and a sysctl file that is not active |
//! | `ebbtide-VERSION-py3-none-TAG.whl` | hatchling | `ebb`, `lib/ebb` and the Python package |
//! | `ebb-VERSION.cdx.json` | `sbom.rs` | the SBOM: every crate that is linked into `ebb` or its library |
//! | `SHA256SUMS` | sha256sum | sums of these |
//!
//! All hold one build of `ebb`, stripped, with its library inside and beside it. Each package of the first three
//! holds Ebbtide's licences, and those of what is linked in.

mod deb;
mod licenses;
mod linked;
mod sbom;

use crate::setup;
use anyhow::{Context, Result};
use ebb_harness::tools;
use licenses::THIRD_PARTY;
use linked::Linked;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// Only these: tar, deb, wheel, sbom
    #[arg(value_name = "PACKAGE")]
    packages: Vec<Package>,
}

/// A package.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Package {
    Tar,
    Deb,
    Wheel,
    Sbom,
}

const LIBRARY: &str = "libebb_preload.so";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The licences, in the order of what is read first.
const LICENSES: [&str; 3] = ["LICENSE-MIT", "LICENSE-APACHE", THIRD_PARTY];
/// The place of the licences below a prefix.
const DOC: &str = "share/doc/ebbtide";

/// The most that `ebb` may take, stripped.
const MOST: u64 = 4_000_000;

/// Makes them; true unless `ebb` is too large.
///
/// # Errors
/// A tool is missing or failed.
pub fn dist(options: &Options) -> Result<bool> {
    let all = tools::project().join("target/dist");
    let root = all.join("root");
    let wanted = |package| options.packages.is_empty() || options.packages.contains(&package);
    if all.exists() {
        fs::remove_dir_all(&all).context("cannot empty target/dist")?;
    }
    let linked = Linked::here()?;
    lay_out(&root, &linked)?;
    let size = fs::metadata(root.join("bin/ebb"))?.len();
    if wanted(Package::Tar) {
        tarball(&all)?;
    }
    if wanted(Package::Deb) {
        deb::deb(&all, &root)?;
    }
    if wanted(Package::Wheel) {
        wheel(&all, &root)?;
    }
    if wanted(Package::Sbom) {
        sbom::sbom(&all, &linked)?;
    }
    let mut names: Vec<String> = fs::read_dir(&all)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name != "root")
        .collect();
    names.sort();
    let sums = run(Command::new("sha256sum").args(&names).current_dir(&all))?;
    fs::write(all.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    println!("ebb: {size} bytes, {} at most", MOST);
    Ok(size < MOST)
}

/// Builds all that is installed, and lays it out as below a prefix.
fn lay_out(root: &Path, linked: &Linked) -> Result<()> {
    let ebb = setup::build_release()?;
    let (bin, lib) = (root.join("bin/ebb"), root.join("lib/ebb").join(LIBRARY));
    for (from, to) in [(&ebb, &bin), (&ebb.with_file_name(LIBRARY), &lib)] {
        fs::create_dir_all(to.parent().context("a directory")?)?;
        run(Command::new("strip").arg("-o").arg(to).arg(from))?;
    }
    // It is loaded, and no program.
    fs::set_permissions(&lib, Permissions::from_mode(0o644))?;
    let share = root.join("share");
    let completions = [
        ("bash", "bash-completion/completions/ebb"),
        ("zsh", "zsh/site-functions/_ebb"),
        ("fish", "fish/vendor_completions.d/ebb.fish"),
    ];
    for (shell, name) in completions {
        let script = run(Command::new(&bin).args(["generate", shell]))?;
        let path = share.join(name);
        fs::create_dir_all(path.parent().context("a directory")?)?;
        fs::write(path, script)?;
    }
    let pages = share.join("man/man1");
    run(Command::new(&bin).args(["generate", "man"]).arg(&pages))?;
    let doc = root.join(DOC);
    fs::create_dir_all(&doc)?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(tools::project().join(file), doc.join(file))?;
    }
    fs::write(doc.join(THIRD_PARTY), licenses::third_party(linked)?)?;
    Ok(())
}

fn tarball(all: &Path) -> Result<()> {
    let name = format!("ebb-{VERSION}");
    let rename = format!("--transform=s,^root,{name},");
    let file = all.join(format!(
        "{name}-{}-linux-gnu.tar.gz",
        std::env::consts::ARCH
    ));
    // The same content gives the same bytes.
    let fixed = [
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ];
    let mut tar = Command::new("tar");
    tar.args(fixed).arg(rename).args(["-I", "gzip -n9", "-cf"]);
    run(tar.arg(file).arg("-C").arg(all).arg("root")).map(drop)
}

fn wheel(all: &Path, root: &Path) -> Result<()> {
    let python = setup::python_for_wheels()?;
    // hatchling takes licences from the package's own folder alone, and the version from the one above.
    let sources = tempfile::tempdir()?;
    let package = sources.path().join("python");
    fs::copy(
        tools::project().join("Cargo.toml"),
        sources.path().join("Cargo.toml"),
    )?;
    run(Command::new("cp")
        .arg("-r")
        .arg(tools::project().join("python"))
        .arg(&package))?;
    for file in LICENSES {
        fs::copy(root.join(DOC).join(file), package.join(file))?;
    }
    let mut command = Command::new(python);
    command.args([
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
    ]);
    command
        .arg(all)
        .current_dir(package)
        .env("EBB_DIST_ROOT", root)
        .env("EBB_WHEEL_TAG", format!("py3-none-{}", wheel_tag(root)?));
    run(&mut command).map(drop)
}

/// The platform that the wheel is for: the oldest glibc that has all that `ebb` and its library use.
fn wheel_tag(root: &Path) -> Result<String> {
    let mut objdump = Command::new("objdump");
    objdump.arg("-T").arg(root.join("bin/ebb"));
    let symbols = run(objdump.arg(root.join("lib/ebb").join(LIBRARY)))?;
    let versions = symbols.split("GLIBC_2.").skip(1);
    let minor = |text: &str| -> Option<u32> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        text[..digits].parse().ok()
    };
    let newest = versions.filter_map(minor).max();
    let newest = newest.context("ebb uses no glibc")?;
    Ok(format!("manylinux_2_{newest}_{}", std::env::consts::ARCH))
}

/// The last commit in a format of git's, with dates in UTC as ISO 8601 has them. Dated by it, the same sources give the
/// same packages.
fn last_commit(format: &str) -> Result<String> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--date=format-local:%FT%TZ"]);
    git.arg(format!("--format={format}"));
    git.env("TZ", "UTC").current_dir(tools::project());
    Ok(run(&mut git)?.trim().to_owned())
}

fn run(command: &mut Command) -> Result<String> {
    setup::run(command)
}
