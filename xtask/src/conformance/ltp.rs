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
        // Those that look for races for minutes are here for a look only.
        ("LTP_RUNTIME_MUL", "0.1".into()),
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
    use crate::conformance::trial::{Mode, Trial};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lines_name_tests() {
        assert_eq!(named("brk01 brk01 -v 1"), Some(("brk01", "brk01 -v 1")));
        assert_eq!(named("#DESCRIPTION:Kernel system calls"), None);
        assert_eq!(named("# a comment"), None);
        assert_eq!(named(""), None);
    }

    /// A directory laid out as `make install` leaves it, with two tests.
    fn miniature() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("testcases/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir(dir.path().join("runtest")).unwrap();
        let plan = "#DESCRIPTION:System calls\ngood01 good01 -x 1\nbad01 bad01 | cat\n";
        fs::write(dir.path().join("runtest/syscalls"), plan).unwrap();
        for (name, text) in [
            ("good01", "#!/bin/sh\necho \"good01.c:1: TPASS: $*\"\n"),
            (
                "bad01",
                "#!/bin/sh\necho \"bad01.c:7: TFAIL: as it should\"\nexit 1\n",
            ),
        ] {
            fs::write(bin.join(name), text).unwrap();
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir
    }

    #[test]
    fn an_installed_ltp_is_read_and_its_commands_run() {
        let dir = miniature();
        let tests = tests(dir.path()).unwrap();
        let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names, ["ltp/good01", "ltp/bad01"]);
        let logs = dir.path().join("logs");
        // In place of `ebb run OPTIONS -- COMMAND`: one that spoils the second test.
        let stand_in = dir.path().join("ebb");
        let text = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done; shift\n\
                    case $3 in bad01*) exit 3;; esac\nexec \"$@\"\n";
        fs::write(&stand_in, text).unwrap();
        fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
        let trial = Trial::new(&stand_in, &logs).unwrap();
        let good = trial.compare(&tests[0]).unwrap();
        assert!(good[&Mode::Eager].is_none());
        let bad = trial.compare(&tests[1]).unwrap();
        let bad = bad[&Mode::Eager].as_ref().unwrap();
        let wanted = ["-bad01.c:7: TFAIL", "-finished", "+exit 3"];
        assert_eq!(bad.wrong, vec![wanted.map(String::from).to_vec(); 3]);
        assert!(logs.join("ltp_bad01.eager.txt").exists());
    }

    #[test]
    fn a_folder_without_an_ltp_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = tests(dir.path()).err().unwrap();
        assert!(format!("{error:#}").contains("testcases/bin"), "{error:#}");
    }
}
