//! `cargo xtask dist`: the packages in target/dist.
//!
//! | file | made by | holds |
//! |---|---|---|
//! | `ebb-VERSION-x86_64-linux-gnu.tar.gz` | tar | `bin`, `lib/ebb`, `share`, to be laid over a prefix |
//! | `ebbtide_VERSION_amd64.deb` | cargo-deb | the same below `/usr`, and a sysctl file that is not active |
//! | `ebbtide-VERSION-py3-none-TAG.whl` | hatchling | `ebb`, `lib/ebb` and the Python package |
//! | `ebb-VERSION.cdx.json` | cargo-cyclonedx | the SBOM: every crate that `ebb` and its library are built from |
//! | `SHA256SUMS` | sha256sum | sums of these |
//!
//! All hold one build of `ebb`, stripped, with its library inside and beside it.

use crate::setup;
use anyhow::{Context, Result, bail};
use ebb_harness::tools;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
    lay_out(&root)?;
    let size = fs::metadata(root.join("bin/ebb"))?.len();
    if wanted(Package::Tar) {
        tarball(&all)?;
    }
    if wanted(Package::Deb) {
        deb(&all)?;
    }
    if wanted(Package::Wheel) {
        wheel(&all, &root)?;
    }
    if wanted(Package::Sbom) {
        sbom(&all)?;
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
fn lay_out(root: &Path) -> Result<()> {
    let ebb = setup::build_release()?;
    let (bin, lib) = (root.join("bin/ebb"), root.join("lib/ebb").join(LIBRARY));
    for (from, to) in [(&ebb, &bin), (&ebb.with_file_name(LIBRARY), &lib)] {
        fs::create_dir_all(to.parent().context("a directory")?)?;
        run(Command::new("strip").arg("-o").arg(to).arg(from))?;
    }
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
    let doc = share.join("doc/ebbtide");
    fs::create_dir_all(&doc)?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(tools::project().join(file), doc.join(file))?;
    }
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

fn deb(all: &Path) -> Result<()> {
    setup::packages(&[("dpkg-shlibdeps", "dpkg-dev")])?;
    let cargo_deb = cargo_tool("cargo-deb")?;
    let mut command = Command::new(cargo_deb);
    command.args(["--package", "ebb", "--no-build", "--no-strip", "--output"]);
    run(command.arg(all).current_dir(tools::project())).map(drop)
}

fn wheel(all: &Path, root: &Path) -> Result<()> {
    let python = setup::python_for_wheels()?;
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
        .current_dir(tools::project().join("python"))
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

/// One document for `ebb` and its library, which no dependency connects.
fn sbom(all: &Path) -> Result<()> {
    let tool = cargo_tool("cargo-cyclonedx")?;
    let mut command = Command::new(tool);
    command.args(["cyclonedx", "--format", "json", "--spec-version", "1.5"]);
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    command.args(["--target", &target, "--override-filename", "ebb-sbom"]);
    // Dated by the last commit, so that the same sources give the same document.
    let date = run(Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(tools::project()))
    .unwrap_or_else(|_| "0".into());
    command.env("SOURCE_DATE_EPOCH", date.trim());
    run(command.current_dir(tools::project()))?;
    let mut documents = Vec::new();
    for folder in
        fs::read_dir(tools::project().join("crates"))?.chain(fs::read_dir(tools::project())?)
    {
        let file = folder?.path().join("ebb-sbom.json");
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        fs::remove_file(&file)?;
        let package = file.parent().and_then(Path::file_name).unwrap_or_default();
        if package == "ebb" || package == "preload" {
            documents.push(serde_json::from_str::<Value>(&text)?);
        }
    }
    let merged = merge(documents)?;
    let file = all.join(format!("ebb-{VERSION}.cdx.json"));
    Ok(fs::write(file, format!("{merged:#}\n"))?)
}

/// Components and dependencies of all, each once; the rest is the first one's.
fn merge(mut documents: Vec<Value>) -> Result<Value> {
    // `ebb` is the component that the document is about.
    documents.sort_by_key(|d| d["metadata"]["component"]["name"] != "ebb");
    let mut documents = documents.into_iter();
    let mut merged = documents.next().context("cargo-cyclonedx wrote nothing")?;
    for mut other in documents {
        let about = other["metadata"]["component"].take();
        for (list, key, more) in [
            ("components", "bom-ref", Some(about)),
            ("dependencies", "ref", None),
        ] {
            let others = other[list].take();
            let all = merged[list].as_array_mut().context("no list in an SBOM")?;
            for item in others.as_array().into_iter().flatten().chain(&more) {
                if !all.iter().any(|known| known[key] == item[key]) {
                    all.push(item.clone());
                }
            }
        }
    }
    Ok(merged)
}

/// A program of cargo's, installed below target/tools if it is nowhere.
fn cargo_tool(name: &str) -> Result<PathBuf> {
    let own = tools::project().join("target/tools");
    let path = own.join("bin").join(name);
    if let Some(found) = tools::in_path(name).or_else(|| path.is_file().then(|| path.clone())) {
        return Ok(found);
    }
    eprintln!("xtask: {name} into {}", own.display());
    let status = Command::new("cargo")
        .args(["install", "--locked", "--quiet", name, "--root"])
        .arg(&own)
        // It runs for a second: built soon is better than fast.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env(
            "CARGO_TARGET_DIR",
            tools::project().join("target/tools-build"),
        )
        .stdin(Stdio::null())
        .status()?;
    if !status.success() || !path.is_file() {
        bail!("cargo install {name} failed");
    }
    Ok(path)
}

fn run(command: &mut Command) -> Result<String> {
    setup::run(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_sbom_of_two_has_each_component_once() {
        let one = json!({
            "metadata": {"component": {"name": "preload", "bom-ref": "preload"}},
            "components": [{"bom-ref": "a"}, {"bom-ref": "b"}],
            "dependencies": [{"ref": "a"}],
        });
        let mut two = one.clone();
        two["metadata"]["component"] = json!({"name": "ebb", "bom-ref": "ebb"});
        two["components"] = json!([{"bom-ref": "b"}, {"bom-ref": "c"}]);
        two["dependencies"] = json!([{"ref": "c"}]);
        let merged = merge(vec![one, two]).unwrap();
        assert_eq!(merged["metadata"]["component"]["name"], "ebb");
        let names = |list: &str, key: &str| -> Vec<String> {
            let all = merged[list].as_array().unwrap().iter();
            all.map(|item| item[key].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(names("components", "bom-ref"), ["b", "c", "a", "preload"]);
        assert_eq!(names("dependencies", "ref"), ["c", "a"]);
    }
}
