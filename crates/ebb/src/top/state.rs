//! The state of `ebb top`: the samples seen, the process chosen, the order, and how keys change them.

use super::sample::{Rates, Sample};
use ratatui::crossterm::event::KeyCode;
use std::collections::VecDeque;

/// Samples that are kept: a minute on the widest terminal.
const KEPT: usize = 240;

/// Order of the processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Most faults a second first.
    Faults,
    /// Most memory first.
    Memory,
    /// Longest waits first.
    Waiting,
    /// Smallest number first.
    Pid,
}

impl Order {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Order::Faults => "faults",
            Order::Memory => "memory",
            Order::Waiting => "waiting",
            Order::Pid => "pid",
        }
    }

    fn next(self) -> Self {
        match self {
            Order::Faults => Order::Memory,
            Order::Memory => Order::Waiting,
            Order::Waiting => Order::Pid,
            Order::Pid => Order::Faults,
        }
    }
}

/// Effect of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It goes on.
    On,
    /// The list of trees.
    Trees,
    /// The end.
    Quit,
}

/// See the module's text.
pub struct State {
    samples: VecDeque<Sample>,
    /// The order of the processes.
    pub order: Order,
    /// The chosen row.
    pub chosen: usize,
    /// Flag: new samples are passed over.
    pub paused: bool,
    /// Flag: the tree does not answer.
    pub silent: bool,
    /// Flag: the keys are shown.
    pub help: bool,
    /// Flag: it is drawn in colours, as NO_COLOR is not set.
    pub colour: bool,
    /// Flag: it is printed, and takes no keys.
    pub printed: bool,
}

impl State {
    /// Nothing seen yet.
    pub fn new(colour: bool) -> Self {
        Self {
            samples: VecDeque::new(),
            order: Order::Faults,
            chosen: 0,
            paused: false,
            silent: false,
            help: false,
            colour,
            printed: false,
        }
    }

    /// Takes a sample.
    pub fn take(&mut self, sample: Sample) {
        if self.paused {
            return;
        }
        // A recording may go on with another tree: the two have no rates.
        if self.now().is_some_and(|last| last.pid != sample.pid) {
            self.samples.clear();
        }
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        let rows = self.now().map_or(0, |sample| sample.stats.members.len());
        self.chosen = self.chosen.min(rows.saturating_sub(1));
    }

    /// The newest sample.
    pub fn now(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// The two newest.
    fn last_two(&self) -> Option<(&Sample, &Sample)> {
        let before = self.samples.len().checked_sub(2)?;
        Some((&self.samples[before], self.samples.back()?))
    }

    /// Rates of the tree.
    pub fn rates(&self) -> Rates {
        let two = self.last_two();
        two.map_or_else(Rates::default, |(before, now)| Rates::of_tree(before, now))
    }

    /// Shares of time in which threads waited, some and all, in percent, for each sample: oldest first.
    pub fn pressure(&self) -> (Vec<u64>, Vec<u64>) {
        let samples: Vec<&Sample> = self.samples.iter().collect();
        let each = samples.windows(2).map(|two| Rates::of_tree(two[0], two[1]));
        let percent = |share: f64| (share * 100.0).round() as u64;
        each.map(|rates| (percent(rates.some), percent(rates.full)))
            .unzip()
    }

    /// The chosen process.
    pub fn chosen_pid(&self) -> Option<u32> {
        let (index, _) = *self.rows().get(self.chosen)?;
        Some(self.now()?.stats.members[index].pid)
    }

    /// The processes in order: (index in the sample, rates).
    pub fn rows(&self) -> Vec<(usize, Rates)> {
        let Some(now) = self.now() else {
            return Vec::new();
        };
        let rates = |pid| {
            let two = self.last_two();
            two.map_or_else(Rates::default, |(before, now)| {
                Rates::of_member(before, now, pid)
            })
        };
        let members = &now.stats.members;
        let mut rows: Vec<(usize, Rates)> = members
            .iter()
            .enumerate()
            .map(|(n, m)| (n, rates(m.pid)))
            .collect();
        let faults = |rates: &Rates| rates.faults.iter().sum::<f64>();
        rows.sort_by(|(a, of_a), (b, of_b)| {
            let by = match self.order {
                Order::Faults => faults(of_b).total_cmp(&faults(of_a)),
                Order::Memory => members[*b].used_bytes.cmp(&members[*a].used_bytes),
                Order::Waiting => of_b.waiting.total_cmp(&of_a.waiting),
                Order::Pid => std::cmp::Ordering::Equal,
            };
            by.then(members[*a].pid.cmp(&members[*b].pid))
        });
        rows
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyCode) -> Step {
        let rows = self.now().map_or(0, |sample| sample.stats.members.len());
        match key {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc => return Step::Quit,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('t') => return Step::Trees,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Down | KeyCode::Char('j') => {
                self.chosen = (self.chosen + 1).min(rows.saturating_sub(1));
            }
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            _ => {}
        }
        Step::On
    }
}
