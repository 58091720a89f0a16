//! The picture of `ebb top` in the README: the test's figures, drawn as on a terminal of 80 by 24.

use super::sample::Sample;
use super::state::State;
use super::tests::at;
use super::view;
use ebb_tree::{CellShown, DeviceShown};
use ratatui::Terminal;
use ratatui::backend::{IntoCrossterm, TestBackend};
use ratatui::crossterm::style::{Attribute, SetAttribute, SetForegroundColor, force_color_output};
use ratatui::style::{Color, Modifier};
use std::path::Path;

/// The tree of the tests, with a device, and with waits that rise and fall.
fn pictured(seconds: u64) -> Sample {
    let mut sample = at(seconds);
    let stats = &mut sample.stats;
    let device = serde_json::json!({
        "device": 1, "path": "/var/tmp", "size_bytes": 1 << 30, "used_bytes": (5 * seconds) << 20,
        "held_bytes": (6 * seconds) << 20, "priority": null, "node": null, "rotational": false,
        "discard": false, "state": "on", "write_errors": 0, "processes": 2, "given_up_by": 0,
    });
    stats.devices = vec![serde_json::from_value::<DeviceShown>(device).unwrap()];
    // A cell is 16 MiB; some clusters have slots that are free again.
    let clusters = |cell: u64| {
        let slots = (5 * seconds * 256).saturating_sub(cell * 4096).min(4096);
        let leased = slots.div_ceil(512) as u32;
        CellShown {
            clusters: 8,
            leased,
            slots: slots / (1 + cell % 7 / 5),
            pids: (leased > 0)
                .then_some(11 + (cell % 3).min(1) as u32)
                .into_iter()
                .collect(),
        }
    };
    stats.maps = vec![(0..64).map(clusters).collect()];
    let waited: u64 = (0..seconds).map(|second| 50 + second * 37 % 60 * 14).sum();
    stats.some_ns = waited * 1_000_000;
    stats.full_ns = waited / 5 * 1_000_000;
    sample
}

/// What a terminal gets for these cells, as SVG.
fn svg(backend: &TestBackend) -> String {
    let buffer = backend.buffer();
    let mut text = String::new();
    for row in buffer.area.rows() {
        for cell in row.positions().map(|at| &buffer[at]) {
            text += &SetAttribute(Attribute::Reset).to_string();
            for (modifier, attribute) in [
                (Modifier::BOLD, Attribute::Bold),
                (Modifier::REVERSED, Attribute::Reverse),
            ] {
                if cell.modifier.contains(modifier) {
                    text += &SetAttribute(attribute).to_string();
                }
            }
            if cell.fg != Color::Reset {
                text += &SetForegroundColor(cell.fg.into_crossterm()).to_string();
            }
            text += cell.symbol();
        }
        text.push('\n');
    }
    anstyle_svg::Term::new().render_svg(&text)
}

#[test]
fn the_picture_in_the_readme_is_what_is_drawn() {
    // Whatever NO_COLOR says here.
    force_color_output(true);
    let mut state = State::new(true);
    (0..60).for_each(|seconds| state.take(pictured(seconds)));
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| view::draw(frame, &state)).unwrap();
    let drawn = svg(terminal.backend());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/top.svg");
    if !path.exists() {
        std::fs::write(&path, &drawn).unwrap();
        panic!("docs/top.svg was missing and is made anew: look at it, and run the test again");
    }
    assert!(
        std::fs::read_to_string(path).unwrap() == drawn,
        "docs/top.svg shows something else: remove it, and this test makes it anew"
    );
}
