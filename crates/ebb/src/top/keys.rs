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

/// What has come; none: no key that was pressed. Ctrl-C is `q`, as whoever presses it wants to leave.
///
/// # Errors
/// Those of the terminal.
pub fn read() -> Result<Option<KeyCode>> {
    let Event::Key(key) = event::read()? else {
        return Ok(None);
    };
    let interrupts =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    let code = if interrupts {
        KeyCode::Char('q')
    } else {
        key.code
    };
    Ok((key.kind == KeyEventKind::Press).then_some(code))
}
