//! Kernels of the Debian archive: apt with lists and sources of its own finds and checks them; nothing is
//! installed.

use super::boot_files::BootFiles;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Suites that hold kernels of different ages.
const SOURCES: &str = "\
deb https://deb.debian.org/debian bookworm main
deb https://deb.debian.org/debian-security bookworm-security main
deb https://deb.debian.org/debian trixie main
deb https://deb.debian.org/debian trixie-backports main
deb https://deb.debian.org/debian sid main
";

/// Kernels for virtual machines: small, and with virtio.
const FLAVOUR: &str = "-cloud-amd64";

/// Before this series no kernel is of interest but the one that must be refused.
const FIRST: (u32, u32) = (6, 8);
const REFUSED: &str = "6.1";

/// A kernel that can be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// "6.12"
    pub series: String,
    /// "6.12.117+deb12-cloud-amd64"
    pub release: String,
}

/// apt's state apart from the machine's.
pub struct Archive {
    dir: PathBuf,
    /// Options that make apt use it.
    options: Vec<String>,
}

impl Archive {
    /// With state in a directory of ours; its lists are brought up to date once a day.
    ///
    /// # Errors
    /// The archive does not answer.
    pub fn new(target: &Path) -> Result<Self> {
        let dir = target.join("archive");
        for part in ["lists/partial", "cache/archives/partial", "packages"] {
            fs::create_dir_all(dir.join(part))?;
        }
        let sources = dir.join("sources.list");
        // Where the machine reaches Debian without TLS, so do we: packages are signed.
        let plain = fs::read_to_string("/etc/apt/sources.list.d/debian.sources")
            .or_else(|_| fs::read_to_string("/etc/apt/sources.list"))
            .is_ok_and(|text| text.contains("http://"));
        let text = match plain {
            true => SOURCES.replace("https:", "http:"),
            false => SOURCES.into(),
        };
        fs::write(&sources, text)?;
        fs::write(dir.join("status"), "")?;
        let set = |name: &str, path: PathBuf| format!("-o{name}={}", path.display());
        let options = vec![
            set("Dir::Etc::sourcelist", sources),
            "-oDir::Etc::sourceparts=/dev/null".into(),
            "-oDir::Etc::preferencesparts=/dev/null".into(),
            "-oAPT::Sandbox::User=root".into(),
            "-oAcquire::Languages=none".into(),
            set("Dir::State", dir.clone()),
            set("Dir::State::lists", dir.join("lists")),
            set("Dir::State::status", dir.join("status")),
            set("Dir::Cache", dir.join("cache")),
        ];
        let archive = Self { dir, options };
        let fresh = archive.dir.join("updated");
        let age = fs::metadata(&fresh).and_then(|meta| meta.modified()).ok();
        let day = std::time::Duration::from_secs(24 * 3600);
        if age.is_none_or(|time| time.elapsed().is_ok_and(|age| age > day)) {
            archive.apt("apt-get", &["update"])?;
            fs::write(fresh, "")?;
        }
        Ok(archive)
    }

    fn apt(&self, program: &str, args: &[&str]) -> Result<String> {
        let output = Command::new(program)
            .args(&self.options)
            .args(args)
            .current_dir(self.dir.join("packages"))
            .output()
            .with_context(|| format!("cannot run {program}: this needs Debian's apt"))?;
        ensure!(
            output.status.success(),
            "{program} {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The newest kernel of each series, oldest first.
    ///
    /// # Errors
    /// apt fails.
    pub fn series(&self) -> Result<Vec<Kernel>> {
        Ok(newest(
            &self.apt("apt-cache", &["pkgnames", "linux-image-"])?,
        ))
    }

    /// The boot files of these series, or of all.
    ///
    /// # Errors
    /// A series is not in the archive; a package cannot be had.
    pub fn boot_files(&self, wanted: &[String]) -> Result<Vec<BootFiles>> {
        let all = self.series()?;
        let known = |series: &&String| all.iter().any(|kernel| kernel.series == **series);
        if let Some(unknown) = wanted.iter().find(|series| !known(series)) {
            let names: Vec<&str> = all.iter().map(|kernel| kernel.series.as_str()).collect();
            bail!(
                "no kernel {unknown} in the archive: there are {}",
                names.join(", ")
            );
        }
        all.iter()
            .filter(|kernel| wanted.is_empty() || wanted.contains(&kernel.series))
            .map(|kernel| self.unpacked(kernel))
            .collect()
    }

    /// The packages of a kernel, unpacked once.
    fn unpacked(&self, kernel: &Kernel) -> Result<BootFiles> {
        let release = &kernel.release;
        let top = self.dir.join("unpacked").join(release);
        if !top.is_dir() {
            eprintln!("xtask: Debian's packages of {release}");
            // Newer ones come in three parts, of which the first is empty.
            let parts = ["linux-image-", "linux-binary-", "linux-modules-"];
            let names = self.apt("apt-cache", &["pkgnames", "linux-"])?;
            let parts = parts.map(|part| format!("{part}{release}"));
            let parts: Vec<&str> = parts
                .iter()
                .filter(|part| names.lines().any(|name| name == **part))
                .map(String::as_str)
                .collect();
            self.apt("apt-get", &[&["download"], &parts[..]].concat())?;
            let fresh = tempfile::tempdir_in(&self.dir)?;
            for entry in fs::read_dir(self.dir.join("packages"))? {
                let package = entry?.path();
                let name = package.file_name().unwrap_or_default().to_string_lossy();
                if parts
                    .iter()
                    .any(|part| name.starts_with(&format!("{part}_")))
                {
                    let mut unpack = Command::new("dpkg-deb");
                    let status = unpack.arg("-x").arg(&package).arg(fresh.path()).status()?;
                    ensure!(status.success(), "cannot unpack {}", package.display());
                    fs::remove_file(&package)?;
                }
            }
            fs::create_dir_all(self.dir.join("unpacked"))?;
            fs::rename(fresh.path(), &top)?;
        }
        BootFiles::of_package(&top, release)
    }
}

/// "6.12.117" and "6.1.0-56" as numbers.
fn version(release: &str) -> Option<Vec<u32>> {
    let number = release.strip_suffix(FLAVOUR)?;
    let number = number.split('+').next()?;
    number
        .split(['.', '-'])
        .map(|part| part.parse().ok())
        .collect()
}

/// The newest of each series among names of packages.
fn newest(names: &str) -> Vec<Kernel> {
    let mut found: BTreeMap<(u32, u32), (Vec<u32>, String)> = BTreeMap::new();
    for release in names
        .lines()
        .filter_map(|name| name.strip_prefix("linux-image-"))
    {
        let Some(version) = version(release) else {
            continue;
        };
        let [major, minor, ..] = version[..] else {
            continue;
        };
        let series = (major, minor);
        if series < FIRST && format!("{major}.{minor}") != REFUSED {
            continue;
        }
        let candidate = (version, release.to_string());
        let best = found.entry(series).or_insert_with(|| candidate.clone());
        if *best < candidate {
            *best = candidate;
        }
    }
    found
        .into_iter()
        .map(|((major, minor), (_, release))| Kernel {
            series: format!("{major}.{minor}"),
            release,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_of_each_series_is_chosen() {
        let names = "linux-image-6.1.0-9-cloud-amd64\nlinux-image-6.1.0-56-cloud-amd64\nlinux-image-6.1.0-56-amd64\n\
                     linux-image-5.10.0-1-cloud-amd64\nlinux-image-6.12.43+deb12-cloud-amd64\n\
                     linux-image-6.12.117+deb12-cloud-amd64\nlinux-image-6.12.117+deb12-cloud-amd64-dbg\n\
                     linux-image-cloud-amd64\nlinux-image-7.3.4+deb13-cloud-amd64\n";
        let found: Vec<(String, String)> = newest(names)
            .into_iter()
            .map(|kernel| (kernel.series, kernel.release))
            .collect();
        let expected = [
            ("6.1", "6.1.0-56-cloud-amd64"),
            ("6.12", "6.12.117+deb12-cloud-amd64"),
            ("7.3", "7.3.4+deb13-cloud-amd64"),
        ];
        assert_eq!(found, expected.map(|(a, b)| (a.to_string(), b.to_string())));
    }
}
