//! Keys of the terminal.

use anyhow::Result;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::time::Duration;

/// Waits so long for a key to be pressed; none: none was. Ctrl-C is `q`, as whoever presses it wants to leave.
///
/// # Errors
/// Those of the terminal.
pub fn pressed(wait: Duration) -> Result<Option<KeyCode>> {
    if !event::poll(wait)? {
        return Ok(None);
    }
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
