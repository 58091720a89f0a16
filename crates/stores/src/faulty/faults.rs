//! Which faults strike, as a text names them.

use crate::size::{Size, SizeError};
use std::str::FromStr;
use std::time::Duration;

/// The environment variable that names the faults of a run under test.
pub const FAULTS_VARIABLE: &str = "EBB_FAULTS";

/// How often a fault strikes: `times` in `of`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rate {
    times: u64,
    of: u64,
}

/// Which faults strike, and how often. As text, a comma-separated list of:
///
/// | fault | what happens |
/// |---|---|
/// | `read=1/1000` | a read fails; reading again may work |
/// | `write=1/1000` | a write fails, nothing is written |
/// | `short=1/1000` | a write fails after its first half was written |
/// | `corrupt=1/500` | one bit of what is read is flipped on the way |
/// | `rot=1/500` | one bit of what is written is flipped for good |
/// | `again=1/1000` | a transfer finds no memory of the system; asking again may work |
/// | `lost=1/1000` | a write says it worked, and did nothing |
/// | `bad=1/1000` | slots that fail every read and write |
/// | `delay=1/100:5ms` | an operation takes that much longer (us, ms, s) |
/// | `gone-after=10000` | after so many operations the device is gone |
/// | `enospc-after=64M` | after so many bytes written there is no space |
/// | `seed=7` | another selection of victims |
///
/// And some that are none of a store's, for whoever serves a process from it:
///
/// | fault | what happens |
/// |---|---|
/// | `pager-after=9000` | the thread that served so many page faults of its process panics |
/// | `keeper-after=9000` | the thread that works beside it does, when it sees that |
/// | `no-page=1/50` | the system has no page when it asks for some; asking again may work |
/// | `no-page-after=9000:3s` | after so many page faults it has none at all, for so long |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    pub(super) read: Rate,
    pub(super) write: Rate,
    pub(super) short: Rate,
    pub(super) corrupt: Rate,
    pub(super) rot: Rate,
    pub(super) again: Rate,
    pub(super) lost: Rate,
    pub(super) bad: Rate,
    pub(super) delay: Rate,
    pub(super) delay_for: Duration,
    pub(super) gone_after: Option<u64>,
    pub(super) enospc_after: Option<u64>,
    pub(super) seed: u64,
    /// Page faults after which the thread that serves them panics.
    pub pager_after: Option<u64>,
    /// The same of the thread that works beside it.
    pub keeper_after: Option<u64>,
    no_page: Rate,
    /// Page faults after which the system refuses pages, and for how long.
    pub no_page_after: Option<(u64, Duration)>,
}

/// Why a text does not name faults.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultsError {
    /// No such fault.
    #[error(
        "unknown fault \"{0}\": allowed are read, write, short, corrupt, rot, again, lost, bad, no-page =N/M, delay=N/M:TIME, gone-after=N, enospc-after=SIZE, pager-after=N, keeper-after=N, no-page-after=N:TIME, seed=N"
    )]
    Unknown(String),
    /// A value that is not one.
    #[error("\"{value}\" is no value for the fault {fault}: allowed is {allowed}")]
    Value {
        /// The fault.
        fault: String,
        /// The value given.
        value: String,
        /// The values allowed.
        allowed: &'static str,
    },
    /// A size that is not one.
    #[error("fault enospc-after: {0}")]
    Size(#[from] SizeError),
}

impl Faults {
    /// The faults that the environment asks for.
    pub fn from_environment() -> Result<Option<Self>, FaultsError> {
        match std::env::var(FAULTS_VARIABLE) {
            Ok(text) if !text.is_empty() => text.parse().map(Some),
            _ => Ok(None),
        }
    }

    /// Whether any fault has the system refuse pages.
    pub fn refuse_pages(&self) -> bool {
        self.no_page.times > 0 || self.no_page_after.is_some()
    }

    /// Whether the system refuses when it is asked for the `number`th time.
    pub fn no_page(&self, number: u64) -> bool {
        self.strikes(Kind::NoPage, self.no_page, number)
    }

    /// Whether a fault of this kind strikes the operation of that number.
    pub(super) fn strikes(&self, kind: Kind, rate: Rate, number: u64) -> bool {
        rate.times > 0 && mix(self.seed, kind as u64, number) % rate.of < rate.times
    }
}

#[derive(Clone, Copy)]
pub enum Kind {
    Read,
    Write,
    Short,
    Corrupt,
    Rot,
    Lost,
    Bad,
    Delay,
    Position,
    NoPage,
    Again,
}

/// Spreads three numbers over 64 bits.
pub fn mix(seed: u64, kind: u64, number: u64) -> u64 {
    use ebb_engine::random::mix;
    mix(mix(mix(seed) ^ kind) ^ number)
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Faults::default();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let Some((name, value)) = item.split_once('=') else {
                return Err(FaultsError::Unknown(item.into()));
            };
            let wrong = |allowed| FaultsError::Value {
                fault: name.into(),
                value: value.into(),
                allowed,
            };
            let rate = || rate(value).ok_or_else(|| wrong("N/M with N at most M, like 1/1000"));
            let number = || value.parse().map_err(|_| wrong("a whole number"));
            match name {
                "read" => faults.read = rate()?,
                "write" => faults.write = rate()?,
                "short" => faults.short = rate()?,
                "corrupt" => faults.corrupt = rate()?,
                "rot" => faults.rot = rate()?,
                "again" => faults.again = rate()?,
                "lost" => faults.lost = rate()?,
                "bad" => faults.bad = rate()?,
                "delay" => {
                    (faults.delay, faults.delay_for) = delay(value)
                        .ok_or_else(|| wrong("N/M:TIME with us, ms or s, like 1/100:5ms"))?;
                }
                "gone-after" => faults.gone_after = Some(number()?),
                "enospc-after" => {
                    let size: Size = value.parse()?;
                    match size {
                        Size::Bytes(bytes) => faults.enospc_after = Some(bytes),
                        Size::Share(_) => return Err(wrong("a size like 64M")),
                    }
                }
                "seed" => faults.seed = number()?,
                "pager-after" => faults.pager_after = Some(number()?),
                "keeper-after" => faults.keeper_after = Some(number()?),
                "no-page" => faults.no_page = rate()?,
                "no-page-after" => {
                    let parsed = value.split_once(':');
                    let parsed =
                        parsed.and_then(|(n, time)| Some((n.parse().ok()?, duration(time)?)));
                    let allowed = "N:TIME with us, ms or s, like 9000:3s";
                    faults.no_page_after = Some(parsed.ok_or_else(|| wrong(allowed))?);
                }
                _ => return Err(FaultsError::Unknown(item.into())),
            }
        }
        Ok(faults)
    }
}

fn rate(text: &str) -> Option<Rate> {
    let (times, of) = text.split_once('/')?;
    let (times, of) = (times.parse().ok()?, of.parse().ok()?);
    (of > 0 && times <= of).then_some(Rate { times, of })
}

fn delay(text: &str) -> Option<(Rate, Duration)> {
    let (often, time) = text.split_once(':')?;
    Some((rate(often)?, duration(time)?))
}

fn duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let number: u32 = number.parse().ok()?;
    let unit = match unit {
        "us" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        _ => return None,
    };
    unit.checked_mul(number)
}
