//! The trace of a run: an event for each call and each change of the thread that runs.

use crate::world::World;
use std::fmt::Write as _;

/// Events that are kept.
pub const RING: usize = 512;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum What {
    None,
    Call,
    Answer,
    Switch,
    Struck,
    Do,
    Wakes,
    Time,
    Device,
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Nanoseconds.
    pub at: u64,
    /// The thread.
    pub thread: u32,
    /// What happened.
    pub what: What,
    /// The call, or whatever the kind of event has.
    pub code: &'static str,
    /// What it is about.
    pub about: [u64; 2],
}

impl Event {
    /// None.
    pub const NONE: Self = Self {
        at: 0,
        thread: 0,
        what: What::None,
        code: "",
        about: [0; 2],
    };

    fn line(&self) -> String {
        let mut line = format!(
            "{:>12} {:>4} {:<7} {:<14}",
            self.at,
            self.thread,
            format!("{:?}", self.what),
            self.code
        );
        let [a, b] = self.about;
        let _ = write!(line, " {a:#x} {b:#x}");
        line
    }
}

fn mixed(hash: u64, word: u64) -> u64 {
    (hash ^ word)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

/// The beginning of a name, as a number.
fn name(code: &str) -> u64 {
    let bytes = code.as_bytes().iter().take(3);
    bytes.fold(0, |all, byte| all << 8 | u64::from(*byte))
}

impl World {
    /// Notes an event of the thread that runs.
    pub fn note(&self, what: What, code: &'static str, about: [u64; 2]) {
        let thread = self.tasks.0[self.current.get()].id.get();
        let event = Event {
            at: self.now.get(),
            thread,
            what,
            code,
            about,
        };
        let number = self.events.get();
        self.ring.0[number as usize % RING].set(event);
        self.events.set(number + 1);
        let words = [
            event.at,
            u64::from(thread) << 8 | what as u64 | (name(code)) << 40,
            about[0],
            about[1],
        ];
        self.hash.set(
            words
                .iter()
                .fold(self.hash.get(), |hash, word| mixed(hash, *word)),
        );
        let to = self.trace_to.get();
        if to > 0 {
            let mut line = event.line();
            line.push('\n');
            // SAFETY: the line is read. A trace that cannot be written is missing.
            unsafe { libc::write(to - 1, line.as_ptr().cast(), line.len()) };
        }
    }

    /// The last events, one a line.
    pub fn last_events(&self, most: usize) -> String {
        let end = self.events.get();
        let first = end.saturating_sub(most.min(RING) as u64);
        let lines = (first..end).map(|n| self.ring.0[n as usize % RING].get().line() + "\n");
        lines.collect()
    }
}
