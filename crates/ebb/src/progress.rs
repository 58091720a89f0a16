//! How far something is that takes a while, on standard error.
//!
//! On a terminal one line is written again and again, and goes at the end. Elsewhere there is a line now and then, of
//! what takes longer than [`PATIENCE`].

use crate::say;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Time before the first line, and between two, where standard error is no terminal.
const PATIENCE: Duration = Duration::from_secs(2);

/// A line of progress.
pub struct Progress {
    is_terminal: bool,
    /// Flag: the terminal has a line that is to go.
    is_shown: bool,
    /// The time when it began, or when a line was written.
    since: Instant,
}

impl Progress {
    /// Nothing is shown yet.
    pub fn new() -> Self {
        Self {
            is_terminal: stderr().is_terminal(),
            is_shown: false,
            since: Instant::now(),
        }
    }

    /// How far it is now.
    pub fn show(&mut self, text: &str) {
        if self.is_terminal || self.since.elapsed() >= PATIENCE {
            self.show_now(text);
        }
    }

    /// The same, wherever it goes and whenever the last line was written. Nobody may read it any more.
    pub fn show_now(&mut self, text: &str) {
        if self.is_terminal {
            self.is_shown = true;
            // Not wrapped, whatever the width: of a line that is wrapped the first part would stay.
            let _ = write!(stderr(), "\r\x1b[K\x1b[?7lebb: {text}\x1b[?7h");
        } else {
            self.since = Instant::now();
            say::now(&format!("ebb: {text}"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
