//! The command under test, and what is built beside it.

use crate::tools;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the command that tests run, rather than the one built with them.
pub const VARIABLE: &str = "TESTED_EBB";

/// The command under test: that of [`VARIABLE`], or this one, which is built with the tests.
pub fn command(built: &Path) -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| built.into(), PathBuf::from)
}

/// The folder of its build.
pub fn build_of(command: &Path) -> &Path {
    command.parent().expect("a directory")
}

/// Packages that cargo builds for release: the command, its library and the lab. Together they have the same features of what
/// they use, and so that is built once.
pub const PACKAGES: [&str; 6] = ["-p", "ebb", "-p", "ebb-preload", "-p", "ebb-lab"];

/// Builds the library beside it.
///
/// # Panics
/// It does not build.
pub fn build_library(command: &Path) {
    build_beside(command, &[&PACKAGES[..], &["--lib"]].concat());
}

/// Builds beside it what these words of cargo's name.
///
/// # Panics
/// It does not build.
pub fn build_beside(command: &Path, what: &[&str]) {
    let build = build_of(command);
    let profile = match build.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let status = Command::new("cargo")
        .args(["build", "--quiet", "--profile", profile])
        .args(what)
        .arg("--target-dir")
        .arg(build.parent().expect("the target directory"))
        .current_dir(tools::project())
        .status()
        .expect("cargo runs");
    assert!(status.success(), "{what:?} must build");
}
