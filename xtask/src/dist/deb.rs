//! The Debian package: what is installed, below `/usr`, and a sysctl file that is not active.

use super::{DOC, LIBRARY, LICENSES, VERSION, last_commit, run};
use crate::setup;
use anyhow::{Context, Result};
use ebb_harness::tools;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Of the administrator: dpkg keeps what was changed there.
const SYSCTL: &str = "etc/sysctl.d/60-ebbtide.conf";

/// Makes it in `all`, of what is laid out in `root`.
pub fn deb(all: &Path, root: &Path) -> Result<()> {
    setup::packages(&[("dpkg-shlibdeps", "dpkg-dev")])?;
    let tree = tempfile::tempdir()?;
    let (tree, usr) = (tree.path(), tree.path().join("usr"));
    run(Command::new("cp").arg("-r").arg(root).arg(&usr))?;
    let zsh = usr.join("share/zsh");
    // Debian's zsh looks there alone.
    fs::rename(zsh.join("site-functions"), zsh.join("vendor-completions"))?;
    copyright(&usr.join(DOC))?;
    let mut gzip = Command::new("gzip");
    run(gzip.args(["-rn9"]).arg(usr.join("share/man")))?;
    let sysctl = tree.join(SYSCTL);
    fs::create_dir_all(sysctl.parent().context("a directory")?)?;
    fs::copy(tools::project().join("packaging/60-ebbtide.conf"), sysctl)?;
    let architecture = run(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    // A tilde sorts before the end of a version: a prerelease before its release.
    let version = format!("{}-1", VERSION.replace('-', "~"));
    let control = control(tree, &version, architecture)?;
    let own = tree.join("DEBIAN");
    fs::create_dir(&own)?;
    fs::write(own.join("control"), control)?;
    fs::write(own.join("conffiles"), format!("/{SYSCTL}\n"))?;
    let mut modes = Command::new("chmod");
    run(modes.args(["-R", "u=rwX,go=rX"]).arg(tree))?;
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]).arg(tree);
    let date = last_commit("%ct").unwrap_or_else(|_| "0".into());
    build.env("SOURCE_DATE_EPOCH", date);
    let file = format!("ebbtide_{version}_{architecture}.deb");
    run(build.arg(all.join(file))).map(drop)
}

/// All licences in one file, by the name that Debian gives it: small images keep no other of that folder.
fn copyright(doc: &Path) -> Result<()> {
    let mut all = Vec::new();
    for file in LICENSES {
        all.push(fs::read_to_string(doc.join(file))?);
        fs::remove_file(doc.join(file))?;
    }
    Ok(fs::write(doc.join("copyright"), all.join("\n"))?)
}

/// The package as dpkg is told of it. `tree` has nothing yet but files to be installed.
fn control(tree: &Path, version: &str, architecture: &str) -> Result<String> {
    let fields = [
        ("Package", "ebbtide"),
        ("Version", version),
        ("Architecture", architecture),
        (
            "Maintainer",
            "Ebbtide maintainers <maintainers@ebbtide.example>",
        ),
        ("Installed-Size", &kibibytes(tree)?.to_string()),
        ("Depends", &depends(&tree.join("usr"))?),
        ("Section", "utils"),
        ("Priority", "optional"),
        ("Description", DESCRIPTION),
    ];
    let lines = fields.map(|(name, value)| format!("{name}: {value}\n"));
    Ok(lines.concat())
}

const DESCRIPTION: &str = "Runs programs in less memory than they need
 Cold pages ebb out of RAM into a compressed pool and from there to a swap file,
 and come back when they are touched: a swap subsystem in user space, for
 unmodified programs.";

/// The packages whose libraries `ebb` and its own library use.
fn depends(usr: &Path) -> Result<String> {
    let source = tempfile::tempdir()?;
    let debian = source.path().join("debian");
    fs::create_dir(&debian)?;
    fs::write(
        debian.join("control"),
        "Source: ebbtide\n\nPackage: ebbtide\nArchitecture: any\n",
    )?;
    let mut look = Command::new("dpkg-shlibdeps");
    look.arg("-O").arg(usr.join("bin/ebb"));
    look.arg(usr.join("lib/ebb").join(LIBRARY));
    let said = run(look.current_dir(source.path()))?;
    let depends = said.trim().strip_prefix("shlibs:Depends=");
    Ok(depends.context("dpkg-shlibdeps found none")?.to_owned())
}

/// As `dpkg-gencontrol` counts: each file by its length, 1 KiB for everything else. A file system counts as it likes.
fn kibibytes(folder: &Path) -> Result<u64> {
    let mut all = 1;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        all += match metadata.is_dir() {
            true => kibibytes(&entry.path())?,
            false => metadata.len().div_ceil(1024),
        };
    }
    Ok(all)
}
