//! `ebb top`: a live view of the trees of this user, and of one of them.
//!
//! It asks the supervisor for the tree's figures once a second, as `ebb stats` does: the members take no part.
//! Everything that is shown follows from these samples. So a recording shows the same, and tests draw one.
//!
//! Not here: the figures (`ebb_tree`), the drawing (`view`), keys and order (`state`).

mod sample;
mod state;
#[cfg(test)]
mod tests;
mod view;

use crate::ask;
use crate::cli::TopArgs;
use anyhow::{Context, Result, bail};
use ebb_stores::human;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal, backend::TestBackend};
use sample::Sample;
use state::{State, Step};
use std::fs::File;
use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two samples.
const PACE: Duration = Duration::from_secs(1);

/// Shows it until the user quits or the tree ends.
///
/// # Errors
/// There is no such tree, no terminal, or the recording is damaged.
pub fn top(args: TopArgs) -> Result<ExitCode> {
    let mut source = Source::new(&args)?;
    if args.once || args.json {
        return once(&args, &mut source);
    }
    if !stdout().is_terminal() {
        bail!("standard output is no terminal: `ebb top --once` or `ebb stats` print the figures");
    }
    let mut recording = args.record.as_deref().map(File::create).transpose();
    let recording = match &mut recording {
        Ok(file) => file.as_mut(),
        Err(error) => bail!("--record: {error}: give a file that can be written"),
    };
    let mut terminal =
        ratatui::try_init().context("the terminal cannot be drawn on: use `ebb top --once`")?;
    let outcome = watch(&mut terminal, &mut source, recording);
    ratatui::restore();
    if let Some(line) = outcome? {
        eprintln!("ebb: {line}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Where samples come from.
enum Source {
    /// A tree that runs: the number of a process of it, and the time of the first sample.
    Tree(u32, Instant),
    /// A recording, and how many of its samples were shown.
    Recording(Vec<Sample>, usize),
}

impl Source {
    fn new(args: &TopArgs) -> Result<Self> {
        if let Some(path) = &args.replay {
            return Ok(Self::Recording(sample::read(path)?, 0));
        }
        let pid = match args.pid {
            Some(pid) => pid,
            None => only_tree()?,
        };
        Ok(Self::Tree(pid, Instant::now()))
    }

    /// The next sample; none at the end of a recording.
    fn next(&mut self) -> Result<Option<Sample>> {
        match self {
            Self::Tree(pid, start) => Ok(Some(Sample {
                seconds: start.elapsed().as_secs_f64(),
                pid: *pid,
                stats: ask::stats_of(*pid)?,
            })),
            Self::Recording(samples, shown) => {
                let next = samples.get(*shown).cloned();
                *shown += 1;
                Ok(next)
            }
        }
    }
}

/// The tree to show where none is named: the only one, or the user must choose.
fn only_tree() -> Result<u32> {
    match ebb_tree::trees()[..] {
        [one] => Ok(one),
        [] => bail!("no `ebb run` of yours runs: start one, or give a PID"),
        ref several => {
            let shown = several.iter().map(|&pid| {
                let use_of = ask::stats_of(pid)
                    .map(|s| format!("{} of {}", human(s.used_bytes), human(s.budget_bytes)));
                let name = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let name = String::from_utf8_lossy(&name).replace('\0', " ");
                let use_of = use_of.unwrap_or_else(|_| "it does not answer".into());
                format!("\n     ebb top {pid:<8} {use_of:<20} {name}")
            });
            bail!(
                "several trees run, choose one:{}",
                shown.collect::<String>()
            )
        }
    }
}

/// Prints what there is now; rates need two samples.
fn once(args: &TopArgs, source: &mut Source) -> Result<ExitCode> {
    let mut state = State::new(false);
    let mut last = None;
    if let Source::Recording(..) = source {
        while let Some(sample) = source.next()? {
            state.take(sample.clone());
            last = Some(sample);
        }
    } else {
        for _ in 0..2 {
            if last.is_some() {
                std::thread::sleep(PACE / 2);
            }
            last = source.next()?;
            last.iter().for_each(|sample| state.take(sample.clone()));
        }
    }
    let last = last.context("no figures")?;
    if let Some(path) = &args.record {
        let mut file = File::create(path).context("--record: give a file that can be written")?;
        sample::record(&mut file, &last)?;
    }
    let mut out = stdout().lock();
    if args.json {
        sample::record(&mut out, &last)?;
    } else {
        let rows = 20 + last.stats.members.len().min(200) as u16;
        out.write_all(picture(&state, 100, rows)?.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The screen as text.
fn picture(state: &State, width: u16, height: u16) -> Result<String> {
    let mut terminal =
        Terminal::new(TestBackend::new(width, height)).map_err(anyhow::Error::msg)?;
    terminal
        .draw(|frame| view::draw(frame, state))
        .map_err(anyhow::Error::msg)?;
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text.trim_end().to_owned() + "\n")
}

/// Draws until the user quits, or the tree or the recording ends; then says so.
fn watch(
    terminal: &mut DefaultTerminal,
    source: &mut Source,
    mut recording: Option<&mut File>,
) -> Result<Option<String>> {
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut state = State::new(colour);
    let mut due = Instant::now();
    loop {
        if Instant::now() >= due {
            due = Instant::now() + PACE;
            match source.next() {
                Ok(Some(sample)) => {
                    if let Some(file) = &mut recording {
                        sample::record(file, &sample).context("--record")?;
                    }
                    state.take(sample);
                }
                // The last picture of a recording stays.
                Ok(None) => state.paused = true,
                Err(error) if state.now().is_some() => {
                    return Ok(Some(format!("the tree has ended: {error:#}")));
                }
                Err(error) => return Err(error),
            }
        }
        terminal.draw(|frame| view::draw(frame, &state))?;
        if event::poll(due.saturating_duration_since(Instant::now()))?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let interrupt =
                key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if interrupt || state.key(key.code) != Step::On {
                return Ok(None);
            }
        }
    }
}
