//! How `ebb top` draws a tree. Nothing is told by colour alone.

use super::sample::WAYS;
use super::state::State;
use crate::figures::{paging, time};
use ebb_stores::human;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Sparkline, Table};

/// The least terminal that everything fits on.
const LEAST: (u16, u16) = (72, 20);

const HELP: [&str; 10] = [
    "s        order: faults, memory, waiting, pid",
    "j k      choose a process (or the arrows)",
    "p        pause",
    "q Esc    quit",
    "?        these words, or not",
    "",
    "waiting  threads that waited for a page, on average",
    "zero     faults on memory never touched before",
    "cache    on pages still in memory",
    "pool, device  on pages that were there",
];

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    let Some(now) = state.now() else {
        return frame.render_widget(Paragraph::new("waiting for the first figures"), area);
    };
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let (wide, high) = LEAST;
        let text = format!(
            "make the terminal larger: {wide}x{high}\nq quits; `ebb stats {}` tells the same",
            now.pid
        );
        return frame.render_widget(Paragraph::new(text), area);
    }
    let devices = now.stats.devices.len().clamp(1, 3) as u16;
    let parts = [
        Constraint::Length(1),
        Constraint::Length(3),
        Constraint::Length(devices),
        Constraint::Length(3),
        Constraint::Length(6),
        Constraint::Min(3),
        Constraint::Length(1),
    ];
    let [title, budget, swap, waiting, latency, processes, keys] =
        Layout::vertical(parts).areas(area);
    let paused = if state.paused { "  PAUSED" } else { "" };
    let mode = paging(now.stats.paged);
    let text = format!(
        "ebb top: tree {}, {} processes, {mode}{paused}",
        now.pid,
        now.stats.members.len()
    );
    frame.render_widget(
        Line::styled(text, Style::new().add_modifier(Modifier::BOLD)),
        title,
    );
    draw_budget(frame, budget, state);
    draw_devices(frame, swap, state);
    draw_waiting(frame, waiting, state);
    draw_latency(frame, latency, state);
    draw_processes(frame, processes, state);
    let text = format!("q quit  s sort: {}  p pause  ? help", state.order.name());
    frame.render_widget(Line::raw(text), keys);
    if state.help {
        let height = HELP.len() as u16 + 2;
        let over = Rect {
            x: 4,
            y: 4,
            width: 60.min(area.width - 4),
            height: height.min(area.height - 4),
        };
        frame.render_widget(Clear, over);
        let help = HELP.map(Line::raw).to_vec();
        frame.render_widget(
            Paragraph::new(help).block(Block::bordered().title("keys and words")),
            over,
        );
    }
}

fn coloured(state: &State, colour: Color) -> Style {
    if state.colour {
        Style::new().fg(colour)
    } else {
        Style::new()
    }
}

/// A bar of so many cells: `#` resident, `=` pool, `.` free.
fn bar(width: usize, budget: u64, resident: u64, pool: u64) -> String {
    let cells = |bytes: u64| {
        (bytes as u128 * width as u128)
            .checked_div(budget as u128)
            .unwrap_or(0) as usize
    };
    let filled = cells(resident).min(width);
    let pool = cells(resident.saturating_add(pool)).min(width) - filled;
    let free = width - filled - pool;
    format!(
        "{}{}{}",
        "#".repeat(filled),
        "=".repeat(pool),
        ".".repeat(free)
    )
}

fn draw_budget(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(now) = state.now() else { return };
    let stats = &now.stats;
    let resident = stats.used_bytes.saturating_sub(stats.pool_bytes);
    let bar = bar(
        area.width as usize - 10,
        stats.budget_bytes,
        resident,
        stats.pool_bytes,
    );
    let lines = vec![
        Line::raw(format!(
            "memory  {} of {}, {} at most so far",
            human(stats.used_bytes),
            human(stats.budget_bytes),
            human(stats.peak_bytes)
        )),
        Line::styled(format!("        [{bar}]"), coloured(state, Color::Green)),
        Line::raw(format!(
            "        # resident {}   = pool {}",
            human(resident),
            human(stats.pool_bytes)
        )),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_devices(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(now) = state.now() else { return };
    let rates = state.rates();
    let mut lines: Vec<Line<'_>> = now
        .stats
        .devices
        .iter()
        .take(3)
        .map(|device| {
            let bar = bar(
                20,
                device.size_bytes,
                device.used_bytes,
                device.held_bytes.saturating_sub(device.used_bytes),
            );
            Line::raw(format!(
                "device  [{bar}] {} of {}  {}",
                human(device.used_bytes),
                human(device.size_bytes),
                device.path
            ))
        })
        .collect();
    match lines.first_mut() {
        Some(first) if rates.read + rates.written > 0.0 => {
            first.push_span(format!(
                "  in {}/s out {}/s",
                human(rates.read as u64),
                human(rates.written as u64)
            ));
        }
        Some(_) => {}
        None => lines.push(Line::raw(
            "device  none: cold pages stay in RAM, compressed",
        )),
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_waiting(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let all = state.waiting();
    let newest = all.len().saturating_sub(area.width as usize);
    let title = format!(
        "waiting {:.2} threads on average, {:.2} at most",
        state.rates().waiting,
        all[newest..].iter().max().copied().unwrap_or(0) as f64 / 100.0
    );
    frame.render_widget(Line::raw(title), Rect { height: 1, ..area });
    let graph = Sparkline::default()
        .data(&all[newest..])
        .style(coloured(state, Color::Yellow));
    frame.render_widget(
        graph,
        Rect {
            y: area.y + 1,
            height: area.height - 1,
            ..area
        },
    );
}

fn draw_latency(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(now) = state.now() else { return };
    let rates = state.rates();
    let rows = WAYS.iter().zip(rates.faults).map(|(way, rate)| {
        let f = now
            .stats
            .fault_latency
            .get(*way)
            .copied()
            .unwrap_or_default();
        Row::new([
            (*way).to_owned(),
            format!("{rate:.0}"),
            f.count.to_string(),
            time(f.sum_ns),
            time(f.p50_ns),
            time(f.p99_ns),
            time(f.p999_ns),
            time(f.max_ns),
        ])
    });
    let head = Row::new([
        "FAULTS", "/s", "ALL", "WAITED", "MEDIAN", "P99", "P99.9", "LONGEST",
    ]);
    let widths = [7, 8, 10, 9, 9, 9, 9, 9].map(Constraint::Length);
    let table =
        Table::new(rows, widths).header(head.style(Style::new().add_modifier(Modifier::BOLD)));
    frame.render_widget(table, area);
}

fn draw_processes(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(now) = state.now() else { return };
    let fitting = area.height.saturating_sub(1) as usize;
    let first = (state.chosen + 1).saturating_sub(fitting);
    let rows = state.rows();
    let rows = rows
        .iter()
        .enumerate()
        .skip(first)
        .map(|(at, (index, rates))| {
            let m = &now.stats.members[*index];
            let mark = if at == state.chosen { ">" } else { " " };
            let [zero, cache, pool, device] = rates.faults.map(|rate| format!("{rate:.0}"));
            let cells = [
                format!("{mark}{:>8}", m.pid),
                human(m.used_bytes),
                human(m.pool_bytes),
                zero,
                cache,
                pool,
                device,
                format!("{:.2}", rates.waiting),
                m.name.clone(),
            ];
            let style = if at == state.chosen {
                Style::new().add_modifier(Modifier::REVERSED)
            } else {
                Style::new()
            };
            Row::new(cells).style(style)
        });
    let head = Row::new([
        "      PID",
        "MEMORY",
        "POOL",
        "ZERO/s",
        "CACHE/s",
        "POOL/s",
        "DEV/s",
        "WAIT",
        "NAME",
    ]);
    let widths = [9, 8, 8, 7, 7, 7, 7, 5].map(Constraint::Length);
    let widths: Vec<Constraint> = widths.into_iter().chain([Constraint::Min(8)]).collect();
    let table =
        Table::new(rows, widths).header(head.style(Style::new().add_modifier(Modifier::BOLD)));
    frame.render_widget(table, area);
}
