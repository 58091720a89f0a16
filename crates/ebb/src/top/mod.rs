//! `ebb top`: a live view of the trees of this user, and of one of them.
//!
//! It asks the supervisor for the tree's figures once a second, as `ebb stats` does: the members take no part.
//! Everything that is shown follows from these samples. So a recording shows the same, and tests draw one.
//!
//! Not here: the figures (`ebb_tree`), the drawing (`view`), the terminal and signals (`screen`), keys and
//! order (`state`).

mod keys;
#[cfg(test)]
mod picture;
mod sample;
mod screen;
mod state;
#[cfg(test)]
mod tests;
mod trees;
mod view;

use crate::ask::{self, Figures};
use crate::cli::TopArgs;
use crate::late_file::LateFile;
use crate::say;
use anyhow::{Context, Result, bail};
use ratatui::{Terminal, backend::TestBackend};
use sample::Sample;
use screen::Screen;
use state::{State, Step};
use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two samples.
const PACE: Duration = Duration::from_secs(1);
/// Time for an answer that is late.
const AGAIN: Duration = Duration::from_millis(10);

/// Shows it until the user quits or the tree ends.
///
/// # Errors
/// There is no such tree, no terminal, or the recording is damaged.
pub fn top(args: TopArgs) -> Result<ExitCode> {
    let start = Instant::now();
    if args.once || args.json {
        return once(&args, &mut Source::new(&args, start)?);
    }
    let first = match (&args.replay, args.pid) {
        (None, None) => only_tree(start)?,
        _ => Some(Source::new(&args, start)?),
    };
    if !stdout().is_terminal() {
        bail!("standard output is no terminal: `ebb top --once` or `ebb stats` print the figures");
    }
    let mut recording = recording(&args)?;
    let mut screen = Screen::open()?;
    let outcome = session(&mut screen, first, start, recording.as_mut());
    screen.close();
    if let Some(line) = outcome? {
        say::now(&format!("ebb: {line}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn recording(args: &TopArgs) -> Result<Option<LateFile>> {
    let path = args.record.as_deref();
    path.map(|path| LateFile::open("--record", path))
        .transpose()
}

/// Shows a tree, or the list to choose one from, in turn; the last line for the user. A recording of several trees has one
/// time, from its `start`.
fn session(
    screen: &mut Screen,
    mut source: Option<Source>,
    start: Instant,
    mut recording: Option<&mut LateFile>,
) -> Result<Option<String>> {
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    loop {
        let mut shown = match source.take() {
            Some(source) => source,
            None => match trees::choose(screen, colour)? {
                Some(pid) => Source::tree(pid, start),
                None => return Ok(None),
            },
        };
        match watch(screen, &mut shown, recording.as_deref_mut(), colour)? {
            Over::Trees => {}
            Over::Quit => return Ok(None),
            Over::Ended(line) => return Ok(Some(line)),
        }
    }
}

/// Why a tree is shown no longer.
enum Over {
    Quit,
    /// The list of trees is wanted.
    Trees,
    /// The tree has ended; what to say.
    Ended(String),
}

/// Where samples come from.
enum Source {
    /// A tree that runs: the number of a process of it, and then of its supervisor; the start of the recording; and a
    /// request without an answer.
    Tree(u32, Instant, Option<Figures>),
    /// A recording, and how many of its samples were shown.
    Recording(Vec<Sample>, usize),
}

impl Source {
    fn new(args: &TopArgs, start: Instant) -> Result<Self> {
        if let Some(path) = &args.replay {
            return Ok(Self::Recording(sample::read(path)?, 0));
        }
        match args.pid {
            Some(pid) => Ok(Self::tree(pid, start)),
            None => only_tree(start)?.with_context(|| trees::choices(&trees::list())),
        }
    }

    fn tree(pid: u32, start: Instant) -> Self {
        Self::Tree(pid, start, None)
    }

    /// The next sample; none at the end of a recording. A tree that does not answer is waited for once, and not asked
    /// again: its queue would fill with questions.
    fn next(&mut self) -> Result<Option<Sample>> {
        match self {
            Self::Tree(pid, start, asked) => {
                let (mut figures, limit) = match asked.take() {
                    Some(asked) => (asked, AGAIN),
                    None => (Figures::follow(pid)?, ask::PATIENCE),
                };
                let stats = figures.within(limit);
                if stats.as_ref().is_err_and(ask::is_silent) {
                    *asked = Some(figures);
                }
                Ok(Some(Sample {
                    seconds: start.elapsed().as_secs_f64(),
                    pid: *pid,
                    stats: stats?,
                }))
            }
            Self::Recording(samples, shown) => {
                let next = samples.get(*shown).cloned();
                *shown += 1;
                Ok(next)
            }
        }
    }
}

/// The tree to show where none is named: the only one; none where the user must choose.
fn only_tree(start: Instant) -> Result<Option<Source>> {
    match ebb_tree::trees()[..] {
        [one] => Ok(Some(Source::tree(one, start))),
        [] => bail!("no `ebb run` of yours runs: start one, or give a PID"),
        _ => Ok(None),
    }
}

/// Prints what there is now; rates need two samples.
fn once(args: &TopArgs, source: &mut Source) -> Result<ExitCode> {
    let recording = recording(args)?;
    let mut state = State::new(false);
    state.printed = true;
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
    if let Some(mut file) = recording {
        sample::record(&mut file, &last)?;
    }
    let mut out = stdout().lock();
    if args.json {
        sample::record(&mut out, &last)?;
    } else {
        let rows = 28 + last.stats.members.len().min(200) as u16;
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
    Ok(text_of(terminal.backend()))
}

/// The picture.
fn text_of(backend: &TestBackend) -> String {
    let buffer = backend.buffer();
    let mut text = String::new();
    for y in buffer.area.rows().map(|row| row.y) {
        let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

/// Draws until the user is done with the tree, or it ends. The last picture of a recording stays.
fn watch(
    screen: &mut Screen,
    source: &mut Source,
    mut recording: Option<&mut LateFile>,
    colour: bool,
) -> Result<Over> {
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
                    state.silent = false;
                    state.take(sample);
                }
                Ok(None) => state.paused = true,
                Err(error) if ask::is_silent(&error) => state.silent = true,
                Err(error) if state.now().is_some() => {
                    return Ok(Over::Ended(format!("the tree has ended: {error:#}")));
                }
                Err(error) => return Err(error),
            }
        }
        screen.draw(|frame| view::draw(frame, &state))?;
        if let Some(key) = screen.pressed(due.saturating_duration_since(Instant::now()))? {
            match state.key(key) {
                Step::Quit => return Ok(Over::Quit),
                Step::Trees => return Ok(Over::Trees),
                Step::On => {}
            }
        }
    }
}
