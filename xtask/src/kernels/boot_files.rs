//! The files that a guest boots from: the kernel's image, and an initramfs with busybox, the modules that a guest
//! needs, and the scripts of `xtask/kernels`.

use anyhow::{Context, Result, ensure};
use ebb_harness::tools;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A kernel to boot.
pub struct BootFiles {
    /// The release, as `uname -r` says it, or the image's name.
    pub release: String,
    /// The image.
    pub image: PathBuf,
    /// The modules.
    modules: Option<PathBuf>,
}

/// Modules that guests and tests load, by name; the kernel may have them built in.
const MODULES: [&str; 22] = [
    "virtio_pci",
    "virtio_blk",
    "virtiofs",
    "overlay",
    "ext4",
    "fuse",
    "loop",
    "zram",
    "lz4",
    "lz4_compress",
    "lzo_rle",
    "zstd",
    "zstd_compress",
    "dm_mod",
    "dm_flakey",
    "xfs",
    "btrfs",
    "nfsd",
    "nfs",
    "nfsv4",
    "tun",
    "brd",
];

impl BootFiles {
    /// Of an unpacked package.
    ///
    /// # Errors
    /// A file is not where packages have it.
    pub fn of_package(top: &Path, release: &str) -> Result<Self> {
        // Newer packages have the image beside the modules.
        let images = [
            top.join("boot").join(format!("vmlinuz-{release}")),
            top.join("usr/lib/modules").join(release).join("vmlinuz"),
        ];
        let image = images.into_iter().find(|image| image.is_file());
        let image = image.with_context(|| format!("no image in {}", top.display()))?;
        let place = |lib: &str| top.join(lib).join("modules").join(release);
        let modules = [place("lib"), place("usr/lib")]
            .into_iter()
            .find(|dir| dir.join("kernel").is_dir());
        Ok(Self {
            release: release.into(),
            image,
            modules,
        })
    }

    /// Of files that the user names.
    ///
    /// # Errors
    /// There are none.
    pub fn of_image(image: &Path, modules: Option<&Path>) -> Result<Self> {
        ensure!(image.is_file(), "there is no file {}", image.display());
        let name = |path: &Path| {
            path.file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };
        Ok(Self {
            release: name(modules.unwrap_or(image)),
            image: image.into(),
            modules: modules.map(Into::into),
        })
    }

    /// A kernel that is nothing but a name.
    #[cfg(test)]
    pub fn named(release: &str) -> Self {
        Self {
            release: release.into(),
            image: PathBuf::new(),
            modules: None,
        }
    }

    /// Writes the initramfs, with a list of checks in it.
    ///
    /// # Errors
    /// A tool is missing or fails.
    pub fn write_initramfs(&self, file: &Path, checks: &str) -> Result<()> {
        let top = tempfile::tempdir()?;
        let top = top.path();
        for dir in ["bin", "proc", "sys", "dev", "lower", "disk", "root"] {
            fs::create_dir(top.join(dir))?;
        }
        let busybox = tools::in_path("busybox").context("busybox is not installed")?;
        fs::copy(&busybox, top.join("bin/busybox"))?;
        symlink("busybox", top.join("bin/sh"))?;
        let scripts = tools::project().join("xtask/kernels");
        for script in ["init", "guest.sh"] {
            fs::copy(scripts.join(script), top.join(script))?;
        }
        fs::set_permissions(top.join("init"), fs::Permissions::from_mode(0o755))?;
        fs::write(top.join("project"), tools::project().display().to_string())?;
        fs::write(top.join("checks"), checks)?;
        if let Some(modules) = &self.modules {
            self.copy_modules(modules, &top.join("lib/modules").join(&self.release))?;
            run(Command::new(&busybox)
                .args(["depmod", "-b"])
                .arg(top)
                .arg(&self.release))?;
        }
        pack(&busybox, top, file)
    }

    /// Copies the modules of [`MODULES`] and all that they depend on.
    fn copy_modules(&self, from: &Path, to: &Path) -> Result<()> {
        let list = from.join("modules.dep");
        if fs::metadata(&list).is_ok_and(|meta| meta.len() == 0) || !list.exists() {
            // Packages carry none: it is made when they are installed.
            let base = from
                .ancestors()
                .nth(3)
                .context("modules lie in lib/modules")?;
            run(Command::new("busybox")
                .args(["depmod", "-b"])
                .arg(base)
                .arg(&self.release))?;
        }
        let text = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
        for line in text.lines() {
            let (module, others) = line.split_once(':').unwrap_or((line, ""));
            if !MODULES.contains(&module_name(module).as_str()) {
                continue;
            }
            for file in [module].into_iter().chain(others.split_whitespace()) {
                copy_module(&from.join(file), &to.join(file))?;
            }
        }
        Ok(())
    }
}

/// "kernel/drivers/md/dm-mod.ko.xz" is "dm_mod".
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = file.split(".ko").next().unwrap_or(file);
    name.replace('-', "_")
}

/// Copies a module, unpacked: busybox loads no other.
fn copy_module(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a directory")?)?;
    match from.extension().and_then(|kind| kind.to_str()) {
        Some("xz") => {
            let file = fs::File::create(to.with_extension(""))?;
            run(Command::new("xz").arg("-dc").arg(from).stdout(file))
        }
        _ => fs::copy(from, to)
            .map(drop)
            .with_context(|| from.display().to_string()),
    }
}

/// Packs a directory as the kernel reads it.
fn pack(busybox: &Path, top: &Path, file: &Path) -> Result<()> {
    let names = Command::new("find").arg(".").current_dir(top).output()?;
    let mut cpio = Command::new(busybox)
        .args(["cpio", "-o", "-H", "newc"])
        .current_dir(top)
        .stdin(Stdio::piped())
        .stdout(fs::File::create(file)?)
        .stderr(Stdio::null())
        .spawn()?;
    cpio.stdin
        .take()
        .context("no input")?
        .write_all(&names.stdout)?;
    ensure!(cpio.wait()?.success(), "busybox cpio failed");
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    ensure!(status.success(), "{:?} failed", command.get_program());
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn modules_are_known_by_name() {
        let name = super::module_name;
        assert_eq!(name("kernel/drivers/md/dm-mod.ko.xz"), "dm_mod");
        assert_eq!(name("kernel/fs/overlayfs/overlay.ko"), "overlay");
    }
}
