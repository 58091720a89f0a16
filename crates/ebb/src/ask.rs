//! Requests to the supervisor of a running tree.

use crate::progress::Progress;
use crate::table::printable;
use anyhow::{Context, Result, bail};
use ebb_tree::{Ask, AskError, Reply, Request, StatsShown};
use serde_json::Value;
use std::time::Duration;

/// How long a tree may say nothing before the user is told, or no longer waits.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Asks, shows progress on standard error, and returns the answer. Of a tree that does not answer it says so, once, and
/// waits on: what was asked for is done when the tree goes on.
///
/// # Errors
/// The process belongs to no tree, or the supervisor refused, with the reason.
pub fn ask(pid: u32, request: &Request) -> Result<String> {
    answer(Ask::send(pid, request)?)
}

fn answer(mut ask: Ask) -> Result<String> {
    let mut progress = Progress::new();
    let mut told = false;
    loop {
        let reply = match ask.reply_within(PATIENCE) {
            Err(AskError::Silent) if told => continue,
            Err(silent @ AskError::Silent) => {
                told = true;
                progress.show_now(&silent.to_string());
                continue;
            }
            reply => harmless(reply?, ask.is_ours()),
        };
        if let Some(text) = last(reply, &mut progress)? {
            return Ok(text);
        }
    }
}

/// A reply without what another user's supervisor may mean for the terminal: control characters.
fn harmless(reply: Reply, is_ours: bool) -> Reply {
    match reply {
        reply if is_ours => reply,
        Reply::Progress(text) => Reply::Progress(printable(&text)),
        Reply::Failed(text) => Reply::Failed(printable(&text)),
        Reply::Done(text) => Reply::Done(match serde_json::from_str(&text) {
            Ok(answer) => plain(answer).to_string(),
            Err(_) => printable(&text),
        }),
    }
}

/// The same of the texts in an answer, in which control characters are escaped.
fn plain(answer: Value) -> Value {
    match answer {
        Value::String(text) => printable(&text).into(),
        Value::Array(all) => all.into_iter().map(plain).collect(),
        Value::Object(all) => {
            let all = all.into_iter();
            all.map(|(name, value)| (printable(&name), plain(value)))
                .collect()
        }
        other => other,
    }
}

/// The text of the last reply.
fn last(reply: Reply, progress: &mut Progress) -> Result<Option<String>> {
    match reply {
        Reply::Progress(text) => progress.show(&text),
        Reply::Done(text) => return Ok(Some(text)),
        Reply::Failed(why) => bail!("{why}"),
    }
    Ok(None)
}

/// The figures of the tree that process `pid` is in, and from then on of that tree: the number becomes its supervisor's.
///
/// # Errors
/// It is in none, or the supervisor is of another version.
pub fn stats_of(pid: &mut u32) -> Result<StatsShown> {
    let Figures(ask) = Figures::follow(pid)?;
    parsed(&answer(ask)?)
}

/// The figures of the tree that this process supervises, by its `control_value`.
///
/// # Errors
/// As for [`stats_of`].
pub fn own_stats(control: &str) -> Result<StatsShown> {
    figures_of(Ask::send_to(control, &Request::Stats)?.reply()?)
}

/// A request for the figures of a tree, of whom nobody can say that it answers.
pub struct Figures(Ask);

impl Figures {
    /// Asks the tree that a process is in.
    ///
    /// # Errors
    /// It is in none.
    pub fn ask(pid: u32) -> Result<Self> {
        Ok(Self(Ask::send(pid, &Request::Stats)?))
    }

    /// The same of a tree that is asked again and again. The process may end before it does, so its number becomes the
    /// supervisor's, where that has one here.
    ///
    /// # Errors
    /// It is in none.
    pub fn follow(pid: &mut u32) -> Result<Self> {
        let figures = Self::ask(*pid)?;
        *pid = figures.supervisor().unwrap_or(*pid);
        Ok(figures)
    }

    /// The supervisor that is asked; none if it has no number here.
    pub fn supervisor(&self) -> Option<u32> {
        self.0.supervisor()
    }

    /// Waits so long for them.
    ///
    /// # Errors
    /// They did not come ([`is_silent`]), or as for [`stats_of`].
    pub fn within(&mut self, limit: Duration) -> Result<StatsShown> {
        let reply = self.0.reply_within(limit)?;
        figures_of(harmless(reply, self.0.is_ours()))
    }
}

/// The figures that a tree answered.
fn figures_of(reply: Reply) -> Result<StatsShown> {
    match reply {
        Reply::Done(text) => parsed(&text),
        Reply::Failed(why) => bail!("{why}"),
        Reply::Progress(_) => bail!("the answer is not to this question"),
    }
}

/// Whether a tree did not answer in time. It may later.
pub fn is_silent(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(AskError::Silent))
}

fn parsed(stats: &str) -> Result<StatsShown> {
    serde_json::from_str(stats)
        .context("ask with the ebb that runs the program: the answer is of another version")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_users_supervisor_writes_nothing_but_text() {
        let bad = "a\u{1b}[31m";
        let answer = r#"{"name":["a\u001b[31m\u009B"],"path":"a\"\\n\nb\u00e4"}"#.to_owned();
        for reply in [Reply::Progress, Reply::Failed, Reply::Done] {
            assert_eq!(harmless(reply(bad.into()), false), reply("a?[31m".into()));
            assert_eq!(harmless(reply(bad.into()), true), reply(bad.into()));
        }
        let Reply::Done(text) = harmless(Reply::Done(answer), false) else {
            panic!("another kind of reply");
        };
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["name"][0], "a?[31m?");
        assert_eq!(read["path"], "a\"\\n?b\u{e4}");
    }
}
