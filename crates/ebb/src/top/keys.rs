//! Keys of the terminal.

use anyhow::Result;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::time::Duration;

/// Whether a key was pressed, or the size of the terminal has changed.
///
/// # Errors
/// Those of the terminal.
pub fn come() -> Result<bool> {
    Ok(event::poll(Duration::ZERO)?)
}

/// An event of the terminal.
pub enum Input {
    /// A key that was pressed. Ctrl-C is `q`, as whoever presses it wants to leave.
    Key(KeyCode),
    /// A signal that a terminal in its usual mode sends for such a key.
    Signal(i32),
    /// Nothing that is of interest.
    Other,
}

/// Reads what has come.
///
/// # Errors
/// Those of the terminal.
pub fn read() -> Result<Input> {
    let Event::Key(key) = event::read()? else {
        return Ok(Input::Other);
    };
    if key.kind != KeyEventKind::Press {
        return Ok(Input::Other);
    }
    if !key
        .modifiers
        .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
    {
        return Ok(Input::Key(key.code));
    }
    Ok(match key.code {
        KeyCode::Char('c') => Input::Key(KeyCode::Char('q')),
        KeyCode::Char('z') => Input::Signal(libc::SIGTSTP),
        KeyCode::Char('\\' | '4') => Input::Signal(libc::SIGQUIT),
        _ => Input::Other,
    })
}
