//! The trace of a run: an event for each call and each change of the thread that runs.

use std::fmt::Write as _;

/// Events that are kept.
pub const RING: usize = 512;

/// The kind of an event.
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
    /// The event.
    pub what: What,
    /// The call, or whatever the kind of event has.
    pub code: &'static str,
    /// The subject.
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

    /// As text.
    pub fn line(&self) -> String {
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

/// One more word in a sum.
pub fn mixed(hash: u64, word: u64) -> u64 {
    (hash ^ word)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

/// The beginning of a name, as a number.
pub fn name(code: &str) -> u64 {
    let bytes = code.as_bytes().iter().take(3);
    bytes.fold(0, |all, byte| all << 8 | u64::from(*byte))
}
