//! Requests to the supervisor of a running tree.

use crate::progress::Progress;
use anyhow::{Context, Result, bail};
use ebb_tree::{Ask, Reply, Request, StatsShown};

/// Asks, shows progress on standard error, and returns the answer.
///
/// # Errors
/// The process belongs to no tree, or the supervisor refused, with the reason.
pub fn ask(pid: u32, request: &Request) -> Result<String> {
    answer(Ask::send(pid, request)?)
}

fn answer(mut ask: Ask) -> Result<String> {
    let mut progress = Progress::new();
    loop {
        match ask.reply()? {
            Reply::Progress(text) => progress.show(&text),
            Reply::Done(text) => return Ok(text),
            Reply::Failed(why) => bail!("{why}"),
        }
    }
}

/// The figures of the tree that a process is in.
///
/// # Errors
/// It is in none, or the supervisor is of another version.
pub fn stats_of(pid: u32) -> Result<StatsShown> {
    parsed(&ask(pid, &Request::Stats)?)
}

/// The figures of the tree that this process supervises, by its `control_value`.
///
/// # Errors
/// As for [`stats_of`].
pub fn own_stats(control: &str) -> Result<StatsShown> {
    parsed(&answer(Ask::send_to(control, &Request::Stats)?)?)
}

fn parsed(stats: &str) -> Result<StatsShown> {
    serde_json::from_str(stats)
        .context("ask with the ebb that runs the program: the answer is of another version")
}
