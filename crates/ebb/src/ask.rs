//! Requests to the supervisor of a running tree.

use anyhow::Result;
use ebb_tree::{Ask, Reply, Request};
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
