//! How `ebb top` draws a tree. Nothing is told by colour alone.

use super::sample::WAYS;
use super::state::State;
use crate::figures::{paging, time};
use crate::words_of_top::{KEYS, WORDS};
use ebb_engine::CLUSTER_SLOTS;
use ebb_stores::human;
use ebb_tree::{CellShown, PoolShown};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table};

/// The least terminal that everything fits on.
const LEAST: (u16, u16) = (78, 22);

const SLOTS: u64 = CLUSTER_SLOTS as u64;

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    let Some(now) = state.now() else {
        let text = match state.silent {
            true => "the tree does not answer: is it stopped? q quits",
            false => "waiting for the first figures",
        };
        return frame.render_widget(Paragraph::new(text), area);
    };
    if too_small(frame, &format!("`ebb stats {}` tells the same", now.pid)) {
        return;
    }
    let devices = now.stats.devices.len().min(shown_devices(area.height));
    let parts = [
        Constraint::Length(1),
        Constraint::Length(4),
        Constraint::Length((2 * devices).max(1) as u16),
        Constraint::Length(3),
        Constraint::Length(6),
        Constraint::Min(3),
        Constraint::Length(u16::from(!state.printed)),
    ];
    let [title, budget, swap, waiting, latency, processes, keys] =
        Layout::vertical(parts).areas(area);
    let paused = match (state.silent, state.paused) {
        (true, _) => "  NO ANSWER: stopped?",
        (_, true) => "  PAUSED",
        _ => "",
    };
    let mode = paging(now.stats.paged);
    let members = now.stats.members.len();
    let text = format!(
        "ebb top: tree {}, {members} {}, {mode}{paused}",
        now.pid,
        if members == 1 { "process" } else { "processes" }
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
    let order = state.order.name();
    let text = format!("q quit  s sort: {order}  j k choose  t trees  p pause  ? help");
    if !state.printed {
        frame.render_widget(Line::raw(text), keys);
    }
    if state.help {
        draw_help(frame);
    }
}

/// Says that the terminal is too small, and what helps there, if it is.
pub fn too_small(frame: &mut Frame<'_>, otherwise: &str) -> bool {
    let area = frame.area();
    let (wide, high) = LEAST;
    if area.width >= wide && area.height >= high {
        return false;
    }
    let text = format!("make the terminal larger: {wide}x{high}\nq quits; {otherwise}");
    frame.render_widget(Paragraph::new(text), area);
    true
}

/// Devices that are shown on a terminal of so many lines.
fn shown_devices(height: u16) -> usize {
    if height < 30 { 2 } else { 4 }
}

/// Keys and words, over the rest.
pub fn draw_help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let lines: Vec<Line<'_>> = KEYS
        .lines()
        .chain([""])
        .chain(WORDS.lines())
        .map(Line::raw)
        .collect();
    let over = Rect {
        x: 2.min(area.width),
        y: 2.min(area.height),
        width: 74.min(area.width.saturating_sub(2)),
        height: (lines.len() as u16 + 2).min(area.height.saturating_sub(2)),
    };
    frame.render_widget(Clear, over);
    let block = Block::bordered().title("keys and words");
    frame.render_widget(Paragraph::new(lines).block(block), over);
}

/// A style of one colour, where there is colour.
pub fn coloured(colour: bool, of: Color) -> Style {
    match colour {
        true => Style::new().fg(of),
        false => Style::new(),
    }
}

/// A bar of so many cells, with a character for each part of the whole; `.` for the rest.
fn bar(width: usize, whole: u64, parts: &[(&str, u64)]) -> String {
    let (mut bar, mut sum) = (String::new(), 0);
    for (character, bytes) in parts {
        sum += u128::from(*bytes);
        let end = (sum * width as u128).checked_div(whole.into()).unwrap_or(0);
        let cells = end.min(width as u128) as usize - bar.len();
        bar.push_str(&character.repeat(cells));
    }
    format!("{bar:.<width$}")
}

/// The pool's content, and how many times smaller it is there: data by the memory that it takes.
fn pool(pool: &PoolShown) -> String {
    let (data, compressed) = (human(pool.data_bytes), human(pool.compressed_bytes));
    let total = human(pool.total_bytes);
    let ratio = match pool.total_bytes {
        0 => String::new(),
        total => format!("  {:.1} times", pool.data_bytes as f64 / total as f64),
    };
    format!("pool    DATA {data}  COMPR {compressed}  TOTAL {total}{ratio}")
}

fn draw_budget(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(now) = state.now() else { return };
    let stats = &now.stats;
    let parts = [
        ("#", "resident", stats.resident_bytes()),
        ("+", "staging", stats.staging_bytes),
        ("=", "pool", stats.pool_bytes),
        ("-", "unmanaged", stats.unmanaged_bytes),
    ];
    let cells = parts.map(|(character, _, bytes)| (character, bytes));
    let bar = bar(area.width as usize - 10, stats.budget_bytes, &cells);
    let legend =
        parts.map(|(character, name, bytes)| format!("{character} {name} {}", human(bytes)));
    let lines = vec![
        Line::raw(format!(
            "memory  {} of {}, {} at most so far",
            human(stats.used_bytes),
            human(stats.budget_bytes),
            human(stats.peak_bytes)
        )),
        Line::styled(
            format!("        [{bar}]"),
            coloured(state.colour, Color::Green),
        ),
        Line::raw(format!("        {}", legend.join("  "))),
        Line::raw(pool(&stats.pool)),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_devices(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(now) = state.now() else { return };
    let (stats, rates) = (&now.stats, state.rates());
    let chosen = state.chosen_pid();
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (at, device) in stats.devices.iter().enumerate() {
        let (used, held) = (device.used_bytes, device.held_bytes);
        let parts = [("#", used), ("=", held.saturating_sub(used))];
        let bar = bar(20, device.size_bytes, &parts);
        let (used, size) = (human(used), human(device.size_bytes));
        lines.push(Line::raw(format!(
            "device  [{bar}] {used} of {size}  {}{}",
            device.path,
            if device.state == "on" {
                String::new()
            } else {
                format!("  {}", device.state)
            }
        )));
        let cells = stats.maps.get(at).map_or(&[][..], Vec::as_slice);
        lines.push(Line::raw(format!("map     [{}]", map(cells, chosen))));
    }
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

/// Clusters as characters: see [`WORDS`].
fn map(cells: &[CellShown], chosen: Option<u32>) -> String {
    let cell = |cell: &CellShown| {
        let room = u64::from(cell.clusters) * SLOTS;
        let ours = chosen.is_some_and(|pid| cell.pids.contains(&pid));
        // A cluster in use always has a few slots to spare.
        match (ours, cell.slots) {
            (false, 0) => '.',
            (true, 0) => '-',
            (false, slots) if slots >= room / 16 * 15 => '|',
            (true, slots) if slots >= room / 16 * 15 => '#',
            (false, _) => ':',
            (true, _) => '+',
        }
    };
    cells.iter().map(cell).collect()
}

fn draw_waiting(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let rates = state.rates();
    let (some, full) = state.pressure();
    let percent = |share: f64| (share * 100.0).round();
    let title = format!(
        "waiting some {}%, full {}% of the time; {:.2} threads on average",
        percent(rates.some),
        percent(rates.full),
        rates.waiting
    );
    frame.render_widget(Line::raw(title), Rect { height: 1, ..area });
    for (line, (name, shares)) in [("some", &some), ("full", &full)].into_iter().enumerate() {
        let row = Rect {
            y: area.y + 1 + line as u16,
            height: 1,
            ..area
        };
        frame.render_widget(Line::raw(name), row);
        let graph = Rect {
            x: row.x + 8,
            width: row.width - 8,
            ..row
        };
        let newest = shares.len().saturating_sub(graph.width as usize);
        let heights = shares[newest..].iter().map(|share| *share as f64 / 100.0);
        let style = coloured(state.colour, Color::Yellow);
        frame.render_widget(Line::styled(bars(heights), style), graph);
    }
}

/// A column for each height, of 1 at most; a height that is not 0 shows.
fn bars(heights: impl Iterator<Item = f64>) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    heights
        .map(|height| BARS[(8.0 * height.clamp(0.0, 1.0)).ceil() as usize])
        .collect()
}

fn draw_latency(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(now) = state.now() else { return };
    let rates = state.rates();
    let rows = WAYS.iter().zip(rates.faults).map(|(way, rate)| {
        let f = now.stats.faults(way);
        Row::new([
            (*way).to_owned(),
            format!("{rate:.0}"),
            time(f.sum_ns),
            time(f.p50_ns),
            time(f.p99_ns),
            time(f.max_ns),
            histogram(&f.counts),
        ])
    });
    let scale: String = ["1us", "32us", "1ms", "32ms", "1s"]
        .map(|mark| format!("{mark:<5}"))
        .concat();
    let head = ["FAULTS", "/s", "WAITED", "MEDIAN", "P99", "LONGEST", &scale];
    let head = Row::new(head.map(str::to_owned));
    let widths = [7, 7, 8, 8, 8, 8, 25].map(Constraint::Length);
    let table =
        Table::new(rows, widths).header(head.style(Style::new().add_modifier(Modifier::BOLD)));
    frame.render_widget(table, area);
}

/// A column for each power of two of a microsecond. Heights are logarithms: one slow fault in a million shows.
fn histogram(counts: &[u64]) -> String {
    let height = |count: u64| (count as f64 + 1.0).log2();
    let most = counts.iter().copied().max().map_or(1.0, height).max(1.0);
    bars(counts.iter().map(|count| height(*count) / most))
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
                format!("{:.0}%", rates.some * 100.0),
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
        "SOME",
        "NAME",
    ]);
    let widths = [9, 8, 8, 7, 7, 7, 7, 5].map(Constraint::Length);
    let widths: Vec<Constraint> = widths.into_iter().chain([Constraint::Min(8)]).collect();
    let table =
        Table::new(rows, widths).header(head.style(Style::new().add_modifier(Modifier::BOLD)));
    frame.render_widget(table, area);
}
