//! Requests to the supervisor of a running tree.

use anyhow::{Context, Result};
use ebb_tree::{Ask, Reply, Request, StatsShown};
use std::io::{IsTerminal, stderr};

/// Asks, shows progress on standard error, and returns the answer.
///
/// # Errors
/// The process belongs to no tree, or the supervisor refused, with the reason.
pub fn ask(pid: u32, request: &Request) -> Result<String> {
    let mut ask = Ask::send(pid, request)?;
    let live = stderr().is_terminal();
    let mut shown = false;
    let done = loop {
        match ask.reply()? {
            Reply::Progress(text) if live => {
                eprint!("\r\x1b[K{text}");
                shown = true;
            }
            Reply::Progress(text) => eprintln!("{text}"),
            Reply::Done(text) => break Ok(text),
            Reply::Failed(why) => break Err(why),
        }
    };
    if shown {
        eprint!("\r\x1b[K");
    }
    done.map_err(anyhow::Error::msg)
}

/// The figures of the tree that a process is in.
///
/// # Errors
/// It is in none, or the supervisor is of another version.
pub fn stats_of(pid: u32) -> Result<StatsShown> {
    serde_json::from_str(&ask(pid, &Request::Stats)?)
        .context("ask with the ebb that runs the program: the answer is of another version")
}
