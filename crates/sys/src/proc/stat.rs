//! `/proc/PID/stat`, `statm`, `smaps_rollup` and the users and signals of `status`, parsed from bytes.

use super::file::number;
use crate::kernel::tasks::HELPER;

/// The fields of `/proc/PID/stat` that we use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// Flag: it is called [`HELPER`], as anybody may call himself.
    pub named_helper: bool,
    /// R, S, D, T, Z, X …
    pub state: u8,
    /// The parent's pid.
    pub parent: u32,
    /// Flag: it is ending. Its memory may be gone any moment.
    pub exiting: bool,
    /// Minor faults of all threads so far.
    pub minor_faults: u64,
    /// The time when the process started, in clock ticks since boot.
    pub start_time: u64,
    /// Bytes of addresses that it has mapped; 0 once its memory is gone.
    pub size: u64,
    /// The program image that the process runs.
    pub image: Image,
}

/// Identifies a program image: two addresses that exec draws anew (with address randomisation) and fork
/// copies. Zero once the memory of the process is gone. For a moment in the midst of exec, which names the
/// process first, the code is zero and the stack a third one: an image of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Image {
    pub(super) code: u64,
    stack: u64,
}

impl Image {
    /// Whether the process still had memory.
    pub fn is_some(&self) -> bool {
        self.stack != 0
    }
}

/// Among a task's flags, which proc(5) shows since 2.6.
const PF_EXITING: u64 = 4;

impl Stat {
    /// Parses `/proc/PID/stat`; fields are counted from the last parenthesis because the
    /// name before it may contain anything.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let close = text.iter().rposition(|&b| b == b')')?;
        let open = text.iter().position(|&b| b == b'(')?;
        let mut stat = Stat {
            named_helper: text.get(open + 1..close)? == HELPER.to_bytes(),
            ..Stat::default()
        };
        let mut seen = 0;
        for (i, field) in text.get(close + 2..)?.split(|&b| b == b' ').enumerate() {
            match i + 3 {
                3 => stat.state = *field.first()?,
                4 => stat.parent = number(field)? as u32,
                9 => stat.exiting = number(field)? & PF_EXITING != 0,
                10 => stat.minor_faults = number(field)?,
                22 => stat.start_time = number(field)?,
                23 => stat.size = number(field)?,
                26 => stat.image.code = number(field)?,
                28 => stat.image.stack = number(field)?,
                _ => continue,
            }
            seen += 1;
        }
        (seen == 8).then_some(stat)
    }

    /// Whether the process has ended and only waits to be reaped.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Pages from `/proc/PID/statm`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statm {
    /// Resident pages of every kind.
    pub resident: u64,
    /// Resident pages of files and shared memory.
    pub shared: u64,
}

impl Statm {
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let mut fields = text.split(|&b| b == b' ').skip(1);
        Some(Self {
            resident: number(fields.next()?)?,
            shared: number(fields.next()?)?,
        })
    }

    /// Resident anonymous pages. Exact on new kernels (checked on 6.18). Older ones, from 6.2 on,
    /// add up counters of the processors only roughly: off by up to max(32, 2 · processors)
    /// pages a processor. Before that, by up to 64 pages a thread.
    pub fn anonymous(&self) -> u64 {
        self.resident.saturating_sub(self.shared)
    }
}

/// Anonymous memory of a process as `/proc/PID/smaps_rollup` has it, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rollup {
    /// Resident anonymous pages.
    pub anonymous: u64,
    /// The same, each page divided by the number of processes that map it.
    pub proportional: u64,
}

impl Rollup {
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let field = |name: &[u8]| {
            let line = text
                .split(|&b| b == b'\n')
                .find(|line| line.starts_with(name))?;
            let digits = line[name.len()..]
                .split(|&b| b == b' ')
                .find(|f| !f.is_empty())?;
            number(digits).map(|kib| kib / 4)
        };
        Some(Self {
            anonymous: field(b"Anonymous:")?,
            proportional: field(b"Pss_Anon:")?,
        })
    }

    /// Pages that are counted for this process but paid for by another that shares them.
    pub fn shared_away(&self) -> u64 {
        self.anonymous.saturating_sub(self.proportional)
    }
}

/// Real, effective and saved user, of the text of a `status`.
pub(super) fn users(text: &[u8]) -> Option<[u64; 3]> {
    let mut lines = text.split(|&byte| byte == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    let mut fields = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|f| !f.is_empty());
    let mut next = || number(fields.next()?);
    Some([next()?, next()?, next()?])
}

/// AT_SECURE, of an `auxv`: pairs of words. One of a 32-bit program does not tell.
pub(super) fn secure_execution(auxv: &[u8]) -> Option<bool> {
    let (words, _) = auxv.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    let mut pairs = pairs.iter().map(|pair| pair.map(u64::from_ne_bytes));
    let [_, secure] = pairs.find(|[kind, _]| *kind == libc::AT_SECURE)?;
    Some(secure != 0)
}

/// The disposition of a signal in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disposition {
    /// Flag: the signal has been sent, and not been taken.
    pub pending: bool,
    /// Flag: it is blocked.
    pub blocked: bool,
    /// Flag: it has no effect.
    pub ignored: bool,
    /// Flag: the program has a handler for it.
    pub caught: bool,
}

impl Disposition {
    /// The lines of `status` that tell of it.
    pub(super) const LINES: [&[u8]; 5] =
        [b"SigPnd:", b"ShdPnd:", b"SigBlk:", b"SigIgn:", b"SigCgt:"];

    pub(super) fn parse(text: &[u8], signal: i32) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        let bit = 1u64.checked_shl(u32::try_from(signal).ok()?.checked_sub(1)?)?;
        let has = |name| {
            let mask = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(u64::from_str_radix(mask.trim(), 16).ok()? & bit != 0)
        };
        Some(Self {
            pending: has("SigPnd:")? || has("ShdPnd:")?,
            blocked: has("SigBlk:")?,
            ignored: has("SigIgn:")?,
            caught: has("SigCgt:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_stat_with_a_hostile_name() {
        let text = b"42 (a) R 1 (b) S 7 42 42 0 -1 4194560 123 0 0 0 1 2 0 0 20 0 1 0 \
            99 1000 200 18446744073709551615 111 222 333 444 0 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(
            stat,
            Stat {
                state: b'S',
                parent: 7,
                exiting: false,
                named_helper: false,
                minor_faults: 123,
                start_time: 99,
                size: 1000,
                image: Image {
                    code: 111,
                    stack: 333
                },
            }
        );
        let named = |name: &str| {
            let text = String::from_utf8_lossy(text).replacen("a) R 1 (b", name, 1);
            Stat::parse(text.as_bytes()).unwrap().named_helper
        };
        assert!(named("ebb-helper") && !named("ebb-helper)") && !named("(ebb-helper"));
        assert_eq!(Stat::parse(b"42 (a) S 7"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn a_disposition_is_read_signal_by_signal() {
        let text = b"Name:\tx\nSigQ:\t0/1\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\n\
            SigBlk:\t0000000000004000\nSigIgn:\t0000000000000004\nSigCgt:\t0000000000000002\n";
        let masks = |signal| {
            let d = Disposition::parse(text, signal).unwrap();
            [d.pending, d.blocked, d.ignored, d.caught]
        };
        assert_eq!(masks(libc::SIGTERM), [true, true, false, false]);
        assert_eq!(masks(libc::SIGQUIT), [false, false, true, false]);
        assert_eq!(masks(libc::SIGINT), [false, false, false, true]);
        assert_eq!(Disposition::parse(b"Name:\tx\n", 15), None);
        assert_eq!(Disposition::parse(text, 0), None);
    }
}
