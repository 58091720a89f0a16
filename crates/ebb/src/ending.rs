//! The program was told to end, and has not yet.
//!
//! A signal that ends programs is passed on like any other, and the program may handle it or take its time. But a
//! tree can be ended in any state:
//! ```text
//! at once      a stopped program is continued: it takes no signal while it is stopped
//! after 5 s    a line says what `ebb` waits for
//! then         another signal kills the whole tree, if the program has not taken the first; and a program
//!              that waits for one page all the time, which nobody brings, is killed without another
//! ```
//! It does not kill a program that has taken the signal and goes on. The next signal begins anew there, and each of
//! the three has its own time: a shell that handles SIGINT for ever may still block SIGTERM.

use crate::say;
use ebb_sys::proc::{self, Disposition, Process};
use ebb_tree::Supervisor;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// Time before anything is said.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time until another look: a program may be about to stop as the signal comes.
const SOON: Duration = Duration::from_millis(100);

/// Whether a signal is one that ends programs.
pub fn ends(signal: i32) -> bool {
    [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT].contains(&signal)
}

fn name_of(signal: i32) -> &'static str {
    match signal {
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        _ => "SIGTERM",
    }
}

/// A reason why a program has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// Waits for a page, in this thread, after so many faults.
    Fault(u32, u64),
    Stopped,
    Blocked,
    Ignored,
    Handled,
    /// It has taken the signal, and dies of it.
    Dying,
}

impl Why {
    fn of(pid: u32, signal: i32) -> Option<Self> {
        let process = Process::open(pid).ok()?;
        let stat = process.stat().ok()?;
        let Disposition {
            pending,
            ignored,
            caught,
            ..
        } = process.disposition(signal)?;
        Some(match () {
            () if stat.state == b'T' => Self::Stopped,
            () if pending => match proc::waits_for_page(pid) {
                Some(thread) => Self::Fault(thread, stat.minor_faults),
                None => Self::Blocked,
            },
            () if ignored => Self::Ignored,
            () if caught => Self::Handled,
            () => Self::Dying,
        })
    }

    fn text(self) -> &'static str {
        match self {
            Self::Fault(..) => "it waits for a page of its memory and cannot take the signal",
            Self::Stopped => "it is stopped",
            Self::Blocked => "it has the signal blocked",
            Self::Ignored => "it ignores the signal",
            Self::Handled => "it handles the signal itself",
            Self::Dying => "it is ending: its memory is given back, or its core is written",
        }
    }

    /// Whether another signal ends the tree: the first has not reached the program, or was not enough.
    fn can_be_forced(self) -> bool {
        !matches!(self, Self::Ignored | Self::Handled)
    }
}

/// What a program was told to end by: the last of each signal.
#[derive(Default)]
pub struct Told(Vec<Ending>);

impl Told {
    /// `pid` has just been sent `signal`. Signals of one kind are one, until the user was told of it.
    pub fn sent(&mut self, pid: Pid, signal: i32) {
        let waits = |ending: &Ending| ending.signal == signal && ending.warned.is_none();
        match self.0.iter().find(|ending| waits(ending)) {
            Some(ending) => ending.continue_stopped(),
            None => {
                self.0.retain(|ending| ending.signal != signal);
                self.0.push(Ending::new(pid, signal));
            }
        }
    }

    /// Time until the next look, if there is one.
    pub fn due_in(&self) -> Option<Duration> {
        self.0.iter().filter_map(Ending::due_in).min()
    }

    /// Looks at the program when it is time.
    pub fn look(&mut self, supervisor: &Supervisor) {
        self.0.iter_mut().for_each(|ending| ending.look(supervisor));
    }

    /// Another signal that ends programs has come. True if that killed the tree. One that the program takes for something
    /// else forces no other.
    pub fn is_forced(&self, signal: i32, supervisor: &Supervisor) -> bool {
        let forced = self.can_be_forced(signal);
        if forced {
            kill_tree(supervisor);
        }
        forced
    }

    fn can_be_forced(&self, signal: i32) -> bool {
        let is_taken = |ending: &Ending| matches!(ending.warned, Some(Why::Handled | Why::Ignored));
        let taken = self.0.iter().any(|e| e.signal == signal && is_taken(e));
        let mut endings = self.0.iter();
        endings.any(|e| e.can_be_forced() && (e.signal == signal || !taken))
    }
}

/// A program that was told to end by a signal.
struct Ending {
    pid: Pid,
    signal: i32,
    since: Instant,
    /// Flag: it was seen once more whether the program is stopped.
    looked_again: bool,
    /// Reason that the user was told.
    warned: Option<Why>,
}

impl Ending {
    fn new(pid: Pid, signal: i32) -> Self {
        let ending = Self {
            pid,
            signal,
            since: Instant::now(),
            looked_again: false,
            warned: None,
        };
        ending.continue_stopped();
        ending
    }

    fn continue_stopped(&self) {
        if Why::of(self.id(), self.signal) == Some(Why::Stopped) {
            let _ = kill_process(self.pid, Signal::CONT);
        }
    }

    fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    fn due_in(&self) -> Option<Duration> {
        let due = self.due()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    fn due(&self) -> Option<Instant> {
        let patience = match self.warned {
            None if !self.looked_again => SOON,
            None => PATIENCE,
            Some(Why::Fault(..)) => PATIENCE,
            Some(_) => return None,
        };
        Some(self.since + patience)
    }

    fn look(&mut self, supervisor: &Supervisor) {
        let late = self
            .due()
            .and_then(|due| Instant::now().checked_duration_since(due));
        let Some(late) = late else {
            return;
        };
        // This process did not run either, as when all are frozen: nothing can have been expected of the program.
        if late > PATIENCE {
            self.since = Instant::now();
            return;
        }
        if !self.looked_again {
            self.looked_again = true;
            return self.continue_stopped();
        }
        let Some(why) = Why::of(self.id(), self.signal) else {
            // It has ended, or nothing tells of it: it is looked at again as late.
            self.since = Instant::now();
            return;
        };
        let (pid, signal) = (self.id(), name_of(self.signal));
        let name = proc::name(pid);
        let before = self.warned.replace(why);
        self.since = Instant::now();
        if before.is_some() {
            // Another reason means that the program has moved on.
            if before == Some(why) {
                say(&format!(
                    "{name} [{pid}] has waited for one page for {} s, and nobody brings it: the tree is ended \
                     by SIGKILL; please report what it ran",
                    PATIENCE.as_secs()
                ));
                kill_tree(supervisor);
            }
            return;
        }
        // A program may handle such keys for ever, as shells do.
        if why == Why::Handled && self.signal != libc::SIGTERM {
            return;
        }
        let next = if why.can_be_forced() {
            format!("another {signal} kills all of the tree")
        } else {
            format!("`kill -KILL {pid}` ends it")
        };
        let seconds = PATIENCE.as_secs();
        let why = why.text();
        say(&format!(
            "waiting for {name} [{pid}], which was sent {signal} {seconds} s ago: {why}; {next}"
        ));
    }

    /// Whether the user was told that another signal kills the tree, and nothing has changed since.
    fn can_be_forced(&self) -> bool {
        self.warned.is_some_and(Why::can_be_forced)
            && Why::of(self.id(), self.signal).is_some_and(Why::can_be_forced)
    }
}

fn say(line: &str) {
    say::line(&format!("ebb: {line}"));
}

/// Kills every process of the tree.
fn kill_tree(supervisor: &Supervisor) {
    send_all(supervisor, Signal::KILL);
}

/// Sends a signal to every process of the tree.
pub fn send_all(supervisor: &Supervisor, signal: Signal) {
    for pid in supervisor.processes() {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Of these signals, with what the user was told of them.
    fn told(pid: Pid, of: &[(i32, Option<Why>)]) -> Told {
        let ending = |&(signal, warned)| Ending {
            looked_again: true,
            warned,
            ..Ending::new(pid, signal)
        };
        Told(of.iter().map(ending).collect())
    }

    #[test]
    fn a_signal_after_one_that_was_handled_begins_anew() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        for settled in [Why::Handled, Why::Ignored, Why::Blocked] {
            for signal in [libc::SIGINT, libc::SIGTERM] {
                let mut told = told(pid, &[(libc::SIGINT, Some(settled))]);
                assert_eq!(told.due_in(), None);
                told.sent(pid, signal);
                let due = told.due_in();
                assert!(due.is_some_and(|due| due <= SOON), "{settled:?} {due:?}");
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_signal_that_the_program_handles_forces_no_other() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        for settled in [Why::Handled, Why::Ignored] {
            let of = [
                (libc::SIGINT, Some(settled)),
                (libc::SIGTERM, Some(Why::Blocked)),
            ];
            let told = told(pid, &of);
            assert!(!told.can_be_forced(libc::SIGINT), "{settled:?}");
            assert!(told.can_be_forced(libc::SIGTERM));
            assert!(told.can_be_forced(libc::SIGQUIT));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_signal_that_nothing_was_said_of_keeps_its_time() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let mut told = told(pid, &[(libc::SIGTERM, None)]);
        told.sent(pid, libc::SIGTERM);
        assert!(told.due_in().is_some_and(|due| due > SOON));
        // Another kind has its own time, and takes none from the first.
        told.sent(pid, libc::SIGINT);
        assert!(told.due_in().is_some_and(|due| due <= SOON));
        assert_eq!(told.0.len(), 2);
        assert!(told.0[0].looked_again);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
