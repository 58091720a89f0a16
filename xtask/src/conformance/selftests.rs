//! The kernel's self-tests, built from the distribution's kernel sources: the directories that
//! `xtask/conformance/selftests.toml` names, each by its own Makefile.
//!
//! Tests that do not build against the machine's headers are named and left out. A program runs without
//! arguments, unless the file gives it some.

use super::{Test, read};
use crate::setup;
use anyhow::{Context, Result, bail, ensure};
use ebb_harness::tools;
use serde::Deserialize;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The plan, as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    /// Under tools/testing/selftests; "mm|vm" is whichever there is, known by the first name.
    directories: Vec<String>,
    /// Tests that a change must pass.
    quick: Vec<String>,
    /// Programs with arguments, and scripts.
    call: Vec<Call>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    /// "mm/userfaultfd"
    program: String,
    /// Each makes a test.
    arguments: Vec<String>,
}

/// The tests of the kernel sources at `kernel`, or of the distribution's.
///
/// # Errors
/// The sources are not to be had, or nothing can be built.
pub fn tests(kernel: Option<&Path>, quick: bool) -> Result<Vec<Test>> {
    let plan = tools::project().join("xtask/conformance/selftests.toml");
    let plan: Plan = toml::from_str(&read(&plan)?).with_context(|| plan.display().to_string())?;
    let sources = match kernel {
        Some(dir) => dir.canonicalize()?,
        None => unpacked()?,
    };
    let suite = sources.join("tools/testing/selftests");
    let mut tests = Vec::new();
    for names in if quick {
        &plan.quick
    } else {
        &plan.directories
    } {
        let dir = |name: &&str| suite.join(name).is_dir();
        let Some(found) = names.split('|').find(dir) else {
            println!("not in these sources: {names}");
            continue;
        };
        build(&suite.join(found))?;
        let name = names.split('|').next().unwrap_or(names);
        tests.extend(of_directory(&plan, name, &suite.join(found))?);
    }
    Ok(tests)
}

/// The tests that are built in a directory.
fn of_directory(plan: &Plan, name: &str, dir: &Path) -> Result<Vec<Test>> {
    let mut programs: Vec<String> = fs::read_dir(dir)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|file| is_program(&dir.join(file)))
        .collect();
    programs.sort();
    let calls = plan.call.iter().filter_map(|call| {
        let program = call.program.strip_prefix(name)?.strip_prefix('/')?;
        Some((program, &call.arguments))
    });
    let calls: Vec<(&str, &Vec<String>)> = calls.collect();
    let scripts = calls.iter().map(|(program, _)| program.to_string());
    let scripts = scripts.filter(|script| script.ends_with(".sh") && dir.join(script).is_file());
    programs.extend(scripts);
    let mut tests = Vec::new();
    for program in programs {
        let test = |arguments: &str| Test {
            name: format!("selftests/{name}/{program} {arguments}")
                .trim()
                .into(),
            argv: std::iter::once(format!("./{program}"))
                .chain(arguments.split_whitespace().map(Into::into))
                .map(Into::into)
                .collect(),
            home: Some(dir.into()),
            env: Vec::new(),
        };
        match calls.iter().find(|(called, _)| *called == program) {
            Some((_, arguments)) => tests.extend(arguments.iter().map(|a| test(a))),
            None => tests.push(test("")),
        }
    }
    Ok(tests)
}

/// Whether it is something built that can be started: no object, library or script.
fn is_program(path: &Path) -> bool {
    let executable = fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o100 != 0);
    let library = path
        .extension()
        .is_some_and(|kind| kind == "so" || kind == "o");
    executable && !library && fs::read(path).is_ok_and(|data| data.starts_with(b"\x7fELF"))
}

fn build(dir: &Path) -> Result<()> {
    let make = tools::in_path("make").context("make is not installed")?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let output = Command::new(make)
        // Its files take their own directory for output only where they are nobody's sub-make.
        .env_remove("MAKELEVEL")
        .env_remove("MAKEFLAGS")
        .args(["--keep-going", &format!("-j{jobs}"), "-C"])
        .arg(dir)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let failed = text.lines().filter_map(|line| {
            let target = line.split_once("*** [")?.1.split_once("] Error")?.0;
            target.rsplit('/').next()
        });
        let failed: Vec<&str> = failed.filter(|target| *target != "all").collect();
        println!("{}: does not build: {}", dir.display(), failed.join(" "));
    }
    Ok(())
}

/// Where Debian puts its archive of kernel sources.
const ARCHIVES: &str = "/usr/src";

/// Parts of it that self-tests are built from.
const PARTS: [&str; 3] = [
    "*/tools/testing/selftests/*",
    "*/tools/include/*",
    "*/mm/gup_test.h",
];

/// The distribution's sources, as far as self-tests need them, in the project's target directory.
fn unpacked() -> Result<PathBuf> {
    setup::packages(&[
        ("make", "make"),
        ("xz", "xz-utils"),
        ("/usr/include/sys/capability.h", "libcap-dev"),
        ("/usr/include/numa.h", "libnuma-dev"),
    ])?;
    let archive = match archive() {
        Some(archive) => archive,
        None => {
            setup::packages(&[("/usr/src/linux-source.tar.xz", "linux-source")])?;
            archive().context("linux-source is installed, but without an archive in /usr/src")?
        }
    };
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let name = name.trim_end_matches(".tar.xz");
    let target = tools::project().join("target/conformance");
    let dir = target.join(name);
    if dir.is_dir() {
        return Ok(dir);
    }
    // Under another name first: half of it is nothing to build from.
    fs::create_dir_all(&target)?;
    let fresh = tempfile::tempdir_in(&target)?;
    let status = Command::new("tar")
        .arg("-xJf")
        .arg(&archive)
        .arg("-C")
        .arg(fresh.path())
        .arg("--wildcards")
        .args(PARTS)
        .status()
        .context("tar is not installed")?;
    ensure!(status.success(), "cannot unpack {}", archive.display());
    let top = fresh.path().join(name);
    if !top.is_dir() {
        bail!("{} holds no directory {name}", archive.display());
    }
    fs::rename(top, &dir)?;
    Ok(dir)
}

/// The newest archive that is installed.
fn archive() -> Option<PathBuf> {
    let version = |path: &PathBuf| -> Option<Vec<u32>> {
        let name = path.file_name()?.to_str()?;
        let version = name
            .strip_prefix("linux-source-")?
            .strip_suffix(".tar.xz")?;
        version.split('.').map(|part| part.parse().ok()).collect()
    };
    let files = fs::read_dir(ARCHIVES).ok()?;
    let paths = files.filter_map(|entry| Some(entry.ok()?.path()));
    let archives = paths.filter_map(|path| Some((version(&path)?, path)));
    archives.max().map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_with_the_arguments_of_the_plan() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, content: &[u8], mode: u32| {
            let path = dir.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        make("plain", b"\x7fELF...", 0o755);
        make("called", b"\x7fELF...", 0o755);
        make("lib.so", b"\x7fELF...", 0o755);
        make("denatured", b"\x7fELF...", 0o644);
        make("script.sh", b"#!/bin/sh\n", 0o755);
        make("other.sh", b"#!/bin/sh\n", 0o755);
        let call = |program: &str, arguments: &[&str]| Call {
            program: program.into(),
            arguments: arguments.iter().map(ToString::to_string).collect(),
        };
        let plan = Plan {
            directories: Vec::new(),
            quick: Vec::new(),
            call: vec![
                call("mm/called", &["anon 1", "shmem 1"]),
                call("mm/script.sh", &[""]),
                call("proc/plain", &["no"]),
            ],
        };
        let tests = of_directory(&plan, "mm", dir.path()).unwrap();
        let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        let wanted = [
            "selftests/mm/called anon 1",
            "selftests/mm/called shmem 1",
            "selftests/mm/plain",
            "selftests/mm/script.sh",
        ];
        assert_eq!(names, wanted);
        assert_eq!(tests[0].argv, ["./called", "anon", "1"]);
    }
}
