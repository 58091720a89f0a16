//! The programs that tests, demo and benchmark use, and where to find them.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The top of the project.
pub fn project() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .nth(2)
        .expect("crates/harness lies two levels down")
        .to_path_buf()
}

/// Where programs are looked for: `PATH`, and where the system's administration has its own, which an
/// ordinary user's may not name.
pub fn path() -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// A program in [`path`].
pub fn in_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&path())
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Whether files in a directory can be read and written past the page cache.
pub fn direct_io(dir: &Path) -> bool {
    use rustix::fs::OFlags;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT;
    rustix::fs::open(dir, flags, 0o600.into()).is_ok()
}

/// Bytes that are free in the file system of a directory.
pub fn free_bytes(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).map_or(0, |space| space.f_bavail * space.f_frsize)
}

/// Python; the project's virtual environment first, which has NumPy.
pub fn python() -> Option<PathBuf> {
    let own = project().join(".venv/bin/python3");
    if own.exists() {
        Some(own)
    } else {
        in_path("python3")
    }
}

/// A file that proves that CPython's regression tests are there.
pub const CPYTHONS_TESTS: &str = "test.test_dict, test.test_sqlite3";

/// Python that has these modules, named as in an import.
pub fn python_with(modules: &str) -> Option<PathBuf> {
    let python = python()?;
    let check = std::process::Command::new(&python)
        .args(["-c", &format!("import {modules}")])
        .output()
        .ok()?;
    check.status.success().then_some(python)
}

/// The Redis server. Debian's redis-tools carries it too, under the name of its checker, and
/// starts no service when installed; `cargo xtask` links that one into target/tools.
pub fn redis() -> Option<PathBuf> {
    let linked = project().join("target/tools/redis-server");
    if linked.exists() {
        Some(linked)
    } else {
        in_path("redis-server")
    }
}
