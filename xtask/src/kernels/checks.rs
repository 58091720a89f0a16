//! The set of checks (`xtask/kernels/checks.toml`), and the programs that they run, built here.

use super::boot_files::BootFiles;
use crate::{program, setup};
use anyhow::{Context, Result, ensure};
use ebb_harness::{tools, workloads};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    check: Vec<Check>,
}

/// One check of the set: a command, or a C program whose output must be the same under `ebb`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The name.
    pub name: String,
    /// The time limit, on an emulated processor.
    pub seconds: u64,
    /// A command of bash, run in the project's directory.
    #[serde(default)]
    command: String,
    /// The source of a program, in the project.
    #[serde(default)]
    program: String,
    /// The program's arguments.
    #[serde(default)]
    arguments: String,
    /// The budget under `ebb`, in MiB, less than the program fills.
    #[serde(default)]
    budget: u32,
    /// More options of `ebb run`.
    #[serde(default)]
    options: String,
    /// Flag: it is for kernels that must be refused, and for those alone.
    #[serde(default)]
    refused: bool,
}

/// The built programs by name: sources of C programs, and test programs.
pub type Programs = BTreeMap<String, PathBuf>;

/// Kernels before this have no UFFDIO_MOVE.
const MOVE_SINCE: (u32, u32) = (6, 8);

impl Check {
    /// Whether this kernel should pass it.
    pub fn is_for(&self, kernel: &BootFiles) -> bool {
        let mut numbers = kernel.release.split(['.', '-', '+']).map(str::parse::<u32>);
        let old = match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < MOVE_SINCE,
            _ => false,
        };
        self.refused == old
    }

    /// The line of the guest's list.
    ///
    /// # Errors
    /// Its program was not built.
    pub fn line(&self, programs: &Programs) -> Result<String> {
        let mut command = self.command.trim().replace('\n', "; ");
        for (name, program) in programs {
            command = command.replace(&format!("{{{name}}}"), &program.display().to_string());
        }
        if !self.program.is_empty() {
            let program = programs.get(&self.program).context("it was built")?;
            command = format!(
                "bash xtask/kernels/same.sh {}M '{}' {} {}",
                self.budget,
                self.options,
                program.display(),
                self.arguments
            );
        }
        ensure!(!command.contains('\t'), "{}: a tab in a command", self.name);
        Ok(format!("{}\t{}\t{command}\n", self.name, self.seconds))
    }
}

/// The checks whose names contain one of the filters.
///
/// # Errors
/// The file is wrong, or no check is left.
pub fn read(filters: &[String]) -> Result<Vec<Check>> {
    let path = tools::project().join("xtask/kernels/checks.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let list: List = toml::from_str(&text).with_context(|| path.display().to_string())?;
    let wanted = |check: &Check| {
        filters.is_empty() || filters.iter().any(|filter| check.name.contains(filter))
    };
    let checks: Vec<Check> = list.check.into_iter().filter(wanted).collect();
    ensure!(
        !checks.is_empty(),
        "there is no such check in {}",
        path.display()
    );
    Ok(checks)
}

/// Builds the command, the programs of these checks, and the test of the system's calls beside swap.
///
/// # Errors
/// Something does not build.
pub fn build(checks: &[Check]) -> Result<Programs> {
    setup::build_release()?;
    let words = ["--release", "-p", "ebb-sys", "--test", "move_and_swap"];
    let built = program::build(&words, &[])?.into_iter();
    let mut programs: Programs = built.map(|program| (program.name, program.path)).collect();
    programs.insert("xtask".into(), std::env::current_exe()?);
    let sources = checks.iter().map(|check| check.program.as_str());
    for source in sources.filter(|source| !source.is_empty()) {
        programs.insert(source.into(), workloads::compile(source)?);
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_well_formed_and_old_kernels_get_their_own() {
        let checks = read(&[]).unwrap();
        for check in &checks {
            assert!(
                check.command.is_empty() != check.program.is_empty(),
                "{}",
                check.name
            );
        }
        let kernel = |release: &str| BootFiles::named(release);
        let of = |release: &str| {
            checks
                .iter()
                .filter(|check| check.is_for(&kernel(release)))
                .count()
        };
        assert!(
            of("6.1.0-56-cloud-amd64") > 0
                && of("6.12.117+deb12-cloud-amd64") > of("6.1.0-56-cloud-amd64")
        );
        assert_eq!(of("bzImage"), of("7.3.4+deb13-cloud-amd64"));
    }
}
