//! The list of this user's trees, to choose one from.

use super::screen::Screen;
use super::view::{coloured, draw_help, too_small};
use crate::ask::{Figures, PATIENCE};
use crate::figures::paging;
use crate::table::printable;
use anyhow::Result;
use ebb_stores::human;
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};
use std::time::Duration;

/// The most characters of a command line in a message.
const LONGEST: usize = 60;

/// A tree in the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// The supervisor's number.
    pub pid: u32,
    /// The command line.
    pub command: String,
    /// Memory in use, the budget, and managed processes; none: it does not answer.
    pub figures: Option<(u64, u64, usize)>,
    /// Flag: it pages.
    pub paged: bool,
}

/// The trees of this user; as root, of every user.
pub fn list() -> Vec<Tree> {
    let trees = ebb_tree::trees().into_iter();
    trees.map(tree).collect()
}

fn tree(pid: u32) -> Tree {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // To wait for each tree that is stopped would hold the terminal.
    let figures = || Figures::ask(pid)?.within(PATIENCE);
    let stats = match ebb_tree::is_stopped(pid) {
        true => None,
        false => figures().ok(),
    };
    Tree {
        pid,
        command: command_line(&command),
        figures: stats
            .as_ref()
            .map(|s| (s.used_bytes, s.budget_bytes, s.members.len())),
        paged: stats.is_some_and(|s| s.paged),
    }
}

/// A command line as `/proc` has it, for terminals. Another user chose it: control characters are replaced.
pub fn command_line(words: &[u8]) -> String {
    let words = String::from_utf8_lossy(words).replace('\0', " ");
    printable(words.trim_end())
}

/// What to write on the command line, where several trees run.
pub fn choices(trees: &[Tree]) -> String {
    let line = |tree: &Tree| {
        let of = tree
            .figures
            .map(|(used, budget, _)| format!("{} of {}", human(used), human(budget)));
        let of = of.unwrap_or_else(|| "it does not answer".into());
        let (pid, command) = (tree.pid, cut(&tree.command));
        format!("\n     ebb top {pid:<8} {of:<20} {command}")
    };
    let lines: String = trees.iter().map(line).collect();
    format!("several trees run, choose one:{lines}")
}

/// The beginning of a command line.
fn cut(command: &str) -> String {
    match command.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &command[..end]),
        None => command.to_owned(),
    }
}

/// The list, the row chosen, and whether the help is shown.
pub struct List {
    /// The trees, by their numbers.
    pub trees: Vec<Tree>,
    /// The chosen one.
    chosen: usize,
    help: bool,
    colour: bool,
}

/// Effect of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// None yet.
    Open,
    /// This tree.
    Tree(u32),
    /// The end.
    Quit,
}

impl List {
    pub fn new(trees: Vec<Tree>, colour: bool) -> Self {
        Self {
            trees,
            chosen: 0,
            help: false,
            colour,
        }
    }

    /// The trees as they are now; the chosen one stays chosen.
    pub fn update(&mut self, trees: Vec<Tree>) {
        let pid = self.trees.get(self.chosen).map(|tree| tree.pid);
        self.trees = trees;
        let again = self.trees.iter().position(|tree| Some(tree.pid) == pid);
        let last = self.trees.len().saturating_sub(1);
        self.chosen = again.unwrap_or(self.chosen.min(last));
    }

    pub fn key(&mut self, key: KeyCode) -> Choice {
        match key {
            KeyCode::Char('q') => return Choice::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc => return Choice::Quit,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Down | KeyCode::Char('j') => {
                let last = self.trees.len().saturating_sub(1);
                self.chosen = (self.chosen + 1).min(last);
            }
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Enter => {
                if let Some(tree) = self.trees.get(self.chosen) {
                    return Choice::Tree(tree.pid);
                }
            }
            _ => {}
        }
        Choice::Open
    }

    pub fn draw(&self, frame: &mut Frame<'_>) {
        if too_small(frame, "`ebb top --once` lists the same") {
            return;
        }
        let parts = [
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ];
        let [title, rows, keys] = Layout::vertical(parts).areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let text = match self.trees.len() {
            0 => "ebb top: no `ebb run` of yours runs any more".to_owned(),
            trees => format!("ebb top: {trees} trees"),
        };
        frame.render_widget(Line::styled(text, bold), title);
        let fitting = (rows.height as usize).saturating_sub(1).max(1);
        let first = (self.chosen + 1).saturating_sub(fitting);
        let trees = self.trees.iter().enumerate().skip(first).map(|(at, tree)| {
            let chosen = at == self.chosen;
            let mark = if chosen { ">" } else { " " };
            let figures = match tree.figures {
                Some((used, budget, members)) => [
                    format!("{} of {}", human(used), human(budget)),
                    members.to_string(),
                    paging(tree.paged).to_owned(),
                ],
                None => ["it does not answer".into(), String::new(), String::new()],
            };
            let [memory, members, paging] = figures;
            let command = tree.command.clone();
            let row = Row::new([
                format!("{mark}{:>8}", tree.pid),
                memory,
                members,
                paging,
                command,
            ]);
            match chosen {
                true => {
                    row.style(coloured(self.colour, Color::Green).add_modifier(Modifier::REVERSED))
                }
                false => row,
            }
        });
        let head = Row::new(["     TREE", "MEMORY", "PROCESSES", "STATE", "COMMAND"]);
        let widths = [9, 18, 9, 21].map(Constraint::Length);
        let widths = widths.into_iter().chain([Constraint::Min(8)]);
        frame.render_widget(Table::new(trees, widths).header(head.style(bold)), rows);
        frame.render_widget(Line::raw("Enter show  j k choose  q quit  ? help"), keys);
        if self.help {
            draw_help(frame);
        }
    }
}

/// Shows the list until a tree is chosen; none: the user quits.
///
/// # Errors
/// Those of the terminal.
pub fn choose(screen: &mut Screen, colour: bool) -> Result<Option<u32>> {
    let mut shown = List::new(list(), colour);
    loop {
        screen.draw(|frame| shown.draw(frame))?;
        let Some(key) = screen.pressed(Duration::from_secs(1))? else {
            shown.update(list());
            continue;
        };
        match shown.key(key) {
            Choice::Tree(pid) => return Ok(Some(pid)),
            Choice::Open => {}
            Choice::Quit => return Ok(None),
        }
    }
}
