//! The preload library in the user's cache, for an `ebb` that has it inside, or beside it under a name that the
//! loader cannot take.
//!
//! It is written once, under a name that is its content's hash. The file is renamed when it is whole: no program of
//! another `ebb run` meets a part of it. Every program of the tree loads it with the
//! rights of its user, so a place is taken only if nobody else but root can write there. The same goes for each
//! directory above it.
//!
//! The directory is private (mode 0700), but for root's: programs of root's tree may become another user and start
//! others, which load it too. So root's is one that others read and root alone writes, in /var/cache.

use crate::cgroups;
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::fs::{Mode, StatVfsMountFlags};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Content of the library, made when it is wanted.
type Content<'a> = &'a dyn Fn() -> Result<Vec<u8>>;

/// The path of the library whose content has this hash, written if it is not there yet.
///
/// # Errors
/// No place can be used; names each place and its reason.
pub fn place(file: &str, hash: &str, content: Content<'_>) -> Result<PathBuf> {
    let mut refused = Vec::new();
    for base in bases() {
        match in_base(&base, file, hash, content) {
            Ok(path) => return Ok(path),
            Err(error) => refused.push(format!("{}: {error:#}", base.display())),
        }
    }
    bail!(
        "no place for the library that programs load:\n     {}\n     name a directory of your own with \
         XDG_CACHE_HOME, or install {file} beside ebb or in ../lib/ebb",
        refused.join("\n     ")
    )
}

/// Access of others to a directory and to the library: what they may do with any program of root's, none to a user's.
fn mode() -> u32 {
    match rustix::process::geteuid().is_root() {
        true => 0o755,
        false => 0o700,
    }
}

/// The user's cache, then a directory of the user's where temporary files lie.
fn bases() -> Vec<PathBuf> {
    let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    let cache = given("XDG_CACHE_HOME").and_then(absolute);
    let user = rustix::process::geteuid();
    let home = || Some(given("HOME").and_then(absolute)?.join(".cache"));
    // Others cannot reach what is in root's home.
    let shared = user.is_root().then(|| "/var/cache".into());
    let temporary = [given("TMPDIR").and_then(absolute), Some("/tmp".into())];
    let caches = match cache {
        Some(given) => vec![given],
        None => shared.into_iter().chain(home()).collect(),
    };
    let mut bases: Vec<PathBuf> = caches.iter().map(|dir| dir.join("ebb")).collect();
    for dir in temporary.into_iter().flatten() {
        let ours = dir.join(format!("ebb-{}", user.as_raw()));
        if !bases.contains(&ours) {
            bases.push(ours);
        }
    }
    bases
}

fn in_base(base: &Path, file: &str, hash: &str, content: Content<'_>) -> Result<PathBuf> {
    ensure!(
        !super::has_signs(base),
        "the loader takes \":\" and \"$\" in a path as signs of its own"
    );
    let above = base.parent().unwrap_or(Path::new("/"));
    // The user's cache itself may not be there yet; a directory for temporary files is.
    DirBuilder::new()
        .recursive(true)
        .mode(mode())
        .create(above)?;
    for dir in above.canonicalize()?.ancestors() {
        trusted(dir)?;
    }
    let dir = base.join(hash);
    own_directory(base)?;
    own_directory(&dir)?;
    let mount = rustix::fs::statvfs(&dir)?;
    ensure!(
        !mount.f_flag.contains(StatVfsMountFlags::NOEXEC),
        "its file system is mounted noexec, and no program can load a library from there"
    );
    let path = dir.join(file);
    if !is_whole(&path, hash)? {
        write(&dir, &path, &content()?).context("cannot write there")?;
    }
    Ok(path)
}

/// Nobody but this user and root can put another directory in the place of one in `dir`.
fn trusted(dir: &Path) -> Result<()> {
    let meta = fs::metadata(dir)?;
    let sticky = meta.mode() & 0o1000 != 0;
    ensure!(
        sticky || !others_write(&meta),
        "others may write to {}: `chmod go-w` it",
        dir.display()
    );
    let user = rustix::process::geteuid().as_raw();
    ensure!(
        meta.uid() == user || meta.uid() == 0 || is_nobodys(meta.uid()),
        "{} belongs to another user ({}), who could put another library there",
        dir.display(),
        meta.uid()
    );
    Ok(())
}

/// Whether a user number stands for all that this user namespace has none for: root's of the machine is one, and nobody
/// in here can be it.
fn is_nobodys(user: u32) -> bool {
    let overflow = cgroups::read("/proc/sys/kernel/overflowuid").trim().parse() == Ok(user);
    let is_mapped = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first + count).contains(&u64::from(user))
    };
    overflow && !cgroups::read("/proc/self/uid_map").lines().any(is_mapped)
}

fn others_write(meta: &Metadata) -> bool {
    meta.mode() & 0o022 != 0
}

/// Makes a directory that this user alone writes, or sees that it is one.
fn own_directory(dir: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        // Whatever the umask says.
        made => made
            .and_then(|()| fs::set_permissions(dir, fs::Permissions::from_mode(mode())))
            .context("cannot be made")?,
    }
    // Not through a link, which another may have put there.
    let meta = fs::symlink_metadata(dir)?;
    ensure!(meta.is_dir(), "{} is no directory", dir.display());
    ensure!(
        meta.uid() == rustix::process::geteuid().as_raw(),
        "{} belongs to another user ({})",
        dir.display(),
        meta.uid()
    );
    ensure!(
        !others_write(&meta),
        "others may write to {}: `chmod 700` it, or remove it",
        dir.display()
    );
    Ok(())
}

/// Whether the file is there, this user's, and has that content.
fn is_whole(path: &Path, hash: &str) -> Result<bool> {
    use rustix::fs::OFlags;
    let opened = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let file = match opened {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        Err(error) => return Err(anyhow!(error).context(format!("{}", path.display()))),
    };
    let meta = file.metadata()?;
    let ours =
        meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() && !others_write(&meta);
    // Damaged, or somebody's: it is replaced.
    Ok(ours && super::hash(&super::read(file)?) == hash)
}

fn write(dir: &Path, path: &Path, content: &[u8]) -> Result<()> {
    // Containers may share the directory, and processes of two have the same number.
    let mut random = [0; 8];
    ebb_sys::random::fill(&mut random)?;
    let own = dir.join(format!(".{:016x}", u64::from_ne_bytes(random)));
    let put = || -> std::io::Result<()> {
        let mut file = File::options().write(true).create_new(true).open(&own)?;
        file.set_permissions(fs::Permissions::from_mode(mode()))?;
        file.write_all(content)?;
        // A name that stands for a whole file must not survive a crash that the content does not.
        file.sync_all()?;
        fs::rename(&own, path)
    };
    put().inspect_err(|_| {
        let _ = fs::remove_file(&own);
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const FILE: &str = "library.so";

    fn content() -> Result<Vec<u8>> {
        Ok(b"a library".to_vec())
    }

    fn hash() -> String {
        super::super::hash(b"a library")
    }

    /// A base in a directory of its own.
    fn base() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("with blank/ebb");
        (dir, base)
    }

    fn refused(base: &Path) -> String {
        format!("{:#}", in_base(base, FILE, &hash(), &content).unwrap_err())
    }

    #[test]
    fn it_is_written_once_whole_and_for_its_user_alone_to_write() {
        let (_dir, base) = base();
        let path = in_base(&base, FILE, &hash(), &content).unwrap();
        assert_eq!(path, base.join(hash()).join(FILE));
        assert_eq!(fs::read(&path).unwrap(), content().unwrap());
        // Others read root's; nobody reads another user's.
        let expected = match ebb_harness::is_root() {
            true => 0o755,
            false => 0o700,
        };
        for ours in [&path, path.parent().unwrap(), &base] {
            assert_eq!(fs::metadata(ours).unwrap().mode() & 0o777, expected);
        }
        let unwanted: Content<'_> = &|| bail!("it is there");
        in_base(&base, FILE, &hash(), unwanted).unwrap();
        let names = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1, "nothing else is left there");
    }

    /// A process of the same number in another container writes at the same time. Our file is not its file.
    #[test]
    fn nobody_takes_the_file_that_another_writes() {
        let (_dir, base) = base();
        let path = in_base(&base, FILE, &hash(), &content).unwrap();
        fs::remove_file(&path).unwrap();
        let theirs = path.with_file_name(format!(".{}", std::process::id()));
        fs::write(&theirs, "a part of").unwrap();
        in_base(&base, FILE, &hash(), &content).unwrap();
        assert_eq!(fs::read(&path).unwrap(), content().unwrap());
        assert_eq!(fs::read(&theirs).unwrap(), b"a part of");
    }

    #[test]
    fn a_damaged_file_and_a_link_are_replaced_or_refused() {
        let (_dir, base) = base();
        let path = in_base(&base, FILE, &hash(), &content).unwrap();
        for damage in [&b"a librar!"[..], b""] {
            fs::write(&path, damage).unwrap();
            in_base(&base, FILE, &hash(), &content).unwrap();
            assert_eq!(fs::read(&path).unwrap(), content().unwrap());
        }
        fs::remove_file(&path).unwrap();
        symlink("/etc/passwd", &path).unwrap();
        assert!(refused(&base).contains(FILE));
    }

    #[test]
    fn places_that_others_can_write_to_are_refused() {
        let (dir, base) = base();
        in_base(&base, FILE, &hash(), &content).unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for open in [base.clone(), base.join(hash())] {
            mode(&open, 0o770);
            assert!(refused(&base).contains("others may write"));
            mode(&open, 0o700);
        }
        let above = base.parent().unwrap();
        mode(above, 0o777);
        assert!(refused(&base).contains("others may write"));
        mode(above, 0o1777);
        in_base(&base, FILE, &hash(), &content).unwrap();
        // A link may lead to a directory of this user's that others know.
        let link = dir.path().join("link");
        symlink(&base, &link).unwrap();
        assert!(refused(&link).contains("no directory"));
        if ebb_harness::is_root() {
            // Its owner could rename what lies in it.
            std::os::unix::fs::chown(dir.path(), Some(1234), None).unwrap();
            assert!(refused(&base).contains("who could put another library there"));
            std::os::unix::fs::chown(dir.path(), Some(0), None).unwrap();
            std::os::unix::fs::chown(&base, Some(65534), None).unwrap();
            assert!(refused(&base).contains("another user"));
        }
        assert!(refused(Path::new("/proc/ebb")).contains("cannot be made"));
        assert!(refused(Path::new("/tmp/a:b/ebb")).contains("signs"));
    }
}
