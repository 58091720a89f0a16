//! `ebb doctor`: tries what `ebb run` needs on this machine, and names the exact fix for what the machine does
//! not allow. `ebb run` asks the same checks before it starts anything.

mod advisory;
mod check;
mod container;
mod kernel_swap;
mod required;

use crate::cli::DoctorArgs;
use crate::table::{self, Alignment};
use advisory::advisory;
use anyhow::{Result, bail};
use check::{Check, Verdict};
use required::required;
use serde::Serialize;
use std::io;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report {
    works: bool,
    kernel: String,
    checks: Vec<Check>,
}

/// Prints the report; exit 0 if `ebb run` can work here, 1 if not.
///
/// # Errors
/// stdout cannot be written.
pub fn doctor(args: DoctorArgs) -> Result<ExitCode> {
    use std::io::Write;
    let (mut checks, access) = required();
    // Where the first one is missing, nothing else can be told.
    if checks.len() > 1 {
        checks.extend(advisory(access));
    }
    let works = checks.iter().all(|c| c.verdict != Verdict::Missing);
    let mut out = io::stdout().lock();
    if args.json {
        let report = Report {
            works,
            kernel: kernel(),
            checks,
        };
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        let row = |mark: &str, name: &str, text: String| vec![mark.into(), name.into(), text];
        let rows = checks.iter().flat_map(|check| {
            let mark = match check.verdict {
                Verdict::Ok => "ok",
                Verdict::Limited => "limited",
                Verdict::Missing => "MISSING",
            };
            let fix = check.fix.as_ref();
            let mut lines = check.detail.lines().map(|line| line.trim().to_owned());
            let first = row(mark, check.name, lines.next().unwrap_or_default());
            let rest = lines.chain(fix.map(|fix| format!("fix: {fix}")));
            let rest: Vec<_> = rest.map(|line| row("", "", line)).collect();
            [first].into_iter().chain(rest)
        });
        table::write(
            &mut out,
            Alignment::Left,
            &["RESULT", "CHECK", "DETAIL"],
            rows,
        )?;
        let verdict = if works {
            "ebb run works here"
        } else {
            "ebb run cannot work here until what is MISSING is fixed"
        };
        writeln!(out, "\n{verdict}")?;
    }
    Ok(if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Fails with the first fix if `ebb run` cannot work here.
///
/// # Errors
/// The first thing that is missing, and the fix.
pub fn must_work() -> Result<()> {
    required().0.into_iter().try_for_each(must_be_there)
}

/// Fails if there is no `/proc`, from which the budget follows.
///
/// # Errors
/// It is missing, and the fix.
pub fn needs_proc() -> Result<()> {
    must_be_there(required::proc())
}

fn must_be_there(check: Check) -> Result<()> {
    if check.verdict == Verdict::Missing {
        bail!(
            "{}: {}\n     fix: {}\n     `ebb doctor` tells more",
            check.name,
            check.detail,
            check.fix.unwrap_or_default()
        )
    }
    Ok(())
}

fn kernel() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_that_is_not_ok_has_a_fix() {
        let (mut checks, access) = required();
        checks.extend(advisory(access));
        for check in checks {
            assert_eq!(
                check.fix.is_none(),
                check.verdict == Verdict::Ok,
                "{check:?}"
            );
        }
    }
}
