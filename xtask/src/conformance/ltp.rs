//! The system-call tests of an installed LTP: the commands that its `runtest/syscalls` names, found in its
//! `testcases/bin`.

use super::{Test, read};
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::Path;

/// All of them.
///
/// # Errors
/// That is no installed LTP.
pub fn tests(dir: &Path) -> Result<Vec<Test>> {
    let dir = dir
        .canonicalize()
        .with_context(|| format!("no LTP at {}", dir.display()))?;
    let bin = dir.join("testcases/bin");
    ensure!(
        bin.is_dir(),
        "{} is no installed LTP: {} is missing (`make install` makes it)",
        dir.display(),
        bin.display()
    );
    let mut path = OsString::from(&bin);
    path.push(":");
    path.push(ebb_harness::tools::path());
    let env = [
        ("PATH", path),
        ("LTPROOT", dir.clone().into()),
        ("LTP_COLORIZE_OUTPUT", "0".into()),
    ];
    let env = env.map(|(name, value)| (OsString::from(name), value));
    let plan = read(&dir.join("runtest/syscalls"))?;
    let test = |(name, command): (&str, &str)| Test {
        name: format!("ltp/{name}"),
        argv: ["sh", "-c", command].map(Into::into).to_vec(),
        home: None,
        env: env.to_vec(),
    };
    Ok(plan.lines().filter_map(named).map(test).collect())
}

/// Name and command of a line, if it is a test.
fn named(line: &str) -> Option<(&str, &str)> {
    let (name, command) = line.trim().split_once(char::is_whitespace)?;
    (!name.starts_with('#')).then(|| (name, command.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_tests() {
        assert_eq!(named("brk01 brk01 -v 1"), Some(("brk01", "brk01 -v 1")));
        assert_eq!(named("#DESCRIPTION:Kernel system calls"), None);
        assert_eq!(named("# a comment"), None);
        assert_eq!(named(""), None);
    }

    #[test]
    fn what_is_no_ltp_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = tests(dir.path()).err().unwrap();
        assert!(format!("{error:#}").contains("testcases/bin"), "{error:#}");
    }
}
