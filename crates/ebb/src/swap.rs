//! `ebb swap`: adds, removes and lists swap devices of a running tree. Supervisor and members do the work; this
//! module asks, and shows the outcome.

use crate::ask::ask;
use crate::cli::{SwapArgs, SwapVerb};
use crate::table::{self, Alignment};
use anyhow::{Context, Result, bail};
use ebb_stores::human;
use ebb_tree::{DeviceShown, Request};
use std::io::{Write, stdout};
use std::path::{Path, absolute};
use std::process::ExitCode;

/// Asks for the change or the list, and shows the answer.
///
/// # Errors
/// The process belongs to no tree, or the supervisor refused, with the next step.
pub fn swap(args: SwapArgs) -> Result<ExitCode> {
    match args.verb {
        SwapVerb::On { spec, pid } => {
            // The supervisor reads it. This would be a path there.
            if spec == "none" {
                bail!("\"none\" is no device: to take one away there is `ebb swap off`");
            }
            done(&ask(pid, &Request::On(from_here(&spec)?))?)?;
        }
        SwapVerb::Off { device, pid } => {
            done(&ask(pid, &Request::Off(from_here(&device)?))?)?;
        }
        SwapVerb::Show { pid, json } => show(&ask(pid, &Request::Show)?, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the answer of a change.
fn done(answer: &str) -> Result<()> {
    writeln!(stdout(), "{answer}")
        .with_context(|| format!("it was done, but standard output does not take \"{answer}\""))
}

/// A path or SPEC for a supervisor that works in another directory. A number of a device is no
/// path; a file of such a name is written `./7`.
fn from_here(text: &str) -> Result<String> {
    if text.is_empty() || text.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(text.into());
    }
    // Options and size follow the path, so it is enough to put the directory in front.
    let whole = absolute(Path::new(text))
        .context("give an absolute path: the current directory cannot be told")?;
    let whole = whole
        .to_str()
        .context("the path is no valid UTF-8: give it another name")?;
    // `absolute` takes a last slash as it is, and so do we.
    Ok(whole.into())
}

fn show(answer: &str, json: bool) -> Result<()> {
    let devices: Vec<DeviceShown> = serde_json::from_str(answer)
        .context("ask with the ebb that runs the program: the answer is of another version")?;
    let mut out = stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &devices)?;
        writeln!(out)?;
        return Ok(());
    }
    if devices.is_empty() {
        writeln!(out, "no swap devices: cold pages stay in RAM, compressed")?;
        return Ok(());
    }
    let or = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let rows = devices.into_iter().map(|d| {
        vec![
            d.device.to_string(),
            human(d.size_bytes),
            human(d.used_bytes),
            or(d.priority.map(|p| p.to_string())),
            or(d.node.map(|n| n.to_string())),
            d.state.to_string(),
            d.write_errors.to_string(),
            d.path,
        ]
    });
    table::write(&mut out, Alignment::Right, &DEVICES, rows)?;
    Ok(())
}

const DEVICES: [&str; 8] = [
    "DEVICE", "SIZE", "USED", "PRIO", "NODE", "STATE", "ERRORS", "PATH",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_whole_and_numbers_left_alone() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(from_here("7").unwrap(), "7");
        assert_eq!(from_here("/a:1G,prio=2").unwrap(), "/a:1G,prio=2");
        assert_eq!(from_here("a:1G").unwrap(), format!("{here}/a:1G"));
        assert_eq!(from_here("./7").unwrap(), format!("{here}/7"));
    }
}
