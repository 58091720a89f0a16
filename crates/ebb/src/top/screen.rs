//! The terminal that is drawn on, its keys, and the signals that end or stop `ebb top`.
//!
//! The default action of a signal would leave the terminal raw, on its other screen, and a recording with half a line.
//! So these signals are blocked, and read where keys are waited for:
//! ```text
//! SIGTERM, SIGINT, SIGQUIT, SIGHUP   the terminal is as it was, then the signal ends `ebb`
//! SIGTSTP                            the terminal is as it was, then the signal stops `ebb`; continued, it draws anew
//! the terminal is gone               as SIGHUP: reads of keys would never end
//! ```
//! A signal that the caller ignores stays ignored.

use super::keys::{self, Input};
use anyhow::{Context, Result};
use ebb_sys::proc::Process;
use ebb_sys::signalfd::{self, Signals};
use ratatui::crossterm::event::KeyCode;
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, IsTerminal, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Those that are read.
const SIGNALS: [i32; 5] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGTSTP,
];

/// The terminal, while it is drawn on.
pub struct Screen {
    terminal: DefaultTerminal,
    /// The terminal as keys come from it.
    keyboard: OwnedFd,
    signals: Signals,
}

impl Screen {
    /// Begins to draw. Before any thread is started: they inherit the blocked signals.
    ///
    /// # Errors
    /// There is no such terminal.
    pub fn open() -> Result<Self> {
        let keyboard = keyboard().context("no terminal to read keys from: use `ebb top --once`")?;
        let signals = Signals::block(&heeded())?;
        let terminal =
            ratatui::try_init().context("the terminal cannot be drawn on: use `ebb top --once`")?;
        Ok(Self {
            terminal,
            keyboard,
            signals,
        })
    }

    /// Draws a picture.
    ///
    /// # Errors
    /// Those of the terminal.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        self.terminal.draw(picture)?;
        Ok(())
    }

    /// Waits so long for a key to be pressed; none: draw again.
    ///
    /// # Errors
    /// Those of the terminal.
    pub fn pressed(&mut self, wait: Duration) -> Result<Option<KeyCode>> {
        // Keys that came together with the last one are not seen by poll(2).
        for wait in [Duration::ZERO, wait] {
            if self.listen(wait)? {
                return Ok(None);
            }
            if !keys::come()? {
                continue;
            }
            return match keys::read()? {
                Input::Key(key) => Ok(Some(key)),
                Input::Signal(libc::SIGTSTP) => self.stop().map(|()| None),
                Input::Signal(signal) => self.end(signal),
                Input::Other => Ok(None),
            };
        }
        Ok(None)
    }

    /// The terminal is as it was before. A signal that came meanwhile still ends `ebb`.
    pub fn close(mut self) {
        self.restore();
        while let Some(received) = self.signals.take() {
            if received.signal != libc::SIGTSTP {
                self.end(received.signal);
            }
        }
    }

    /// Waits so long for a key or a signal. True: the picture is gone.
    fn listen(&mut self, wait: Duration) -> Result<bool> {
        let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
        let mut ready = [self.signals.as_fd(), self.keyboard.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut ready, Some(&wait)) {
            // The size of the terminal has changed: `keys` knows.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let gone = PollFlags::HUP | PollFlags::ERR;
        let is_gone = ready[1].revents().intersects(gone);
        match self.signals.take().map(|received| received.signal) {
            Some(libc::SIGTSTP) => {
                self.stop()?;
                Ok(true)
            }
            Some(signal) => self.end(signal),
            None if is_gone => self.end(libc::SIGHUP),
            None => Ok(false),
        }
    }

    /// Ends this process by a signal.
    fn end(&mut self, signal: i32) -> ! {
        self.restore();
        signalfd::die_of(signal);
        std::process::exit(128 + signal)
    }

    fn stop(&mut self) -> Result<()> {
        self.restore();
        signalfd::stop_by(libc::SIGTSTP);
        self.terminal = ratatui::try_init()?;
        Ok(())
    }

    /// Errors are passed over: the terminal may be gone, and `ratatui::restore` panics where they cannot be written.
    fn restore(&mut self) {
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// Signals that the caller does not ignore: one that is blocked would come all the same.
fn heeded() -> Vec<i32> {
    let process = Process::open(std::process::id()).ok();
    let ignored = |signal| process.as_ref()?.disposition(signal).map(|is| is.ignored);
    let all = SIGNALS.into_iter();
    all.filter(|signal| ignored(*signal) != Some(true))
        .collect()
}

/// The same file that crossterm reads.
fn keyboard() -> io::Result<OwnedFd> {
    match stdin() {
        stdin if stdin.is_terminal() => stdin.as_fd().try_clone_to_owned(),
        _ => File::open("/dev/tty").map(OwnedFd::from),
    }
}
