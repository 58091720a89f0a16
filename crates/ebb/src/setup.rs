//! From the options of `ebb run` to the supervisor's setup: budget, pool, swap devices. A refusal
//! comes before anything has started.

use crate::available::Available;
use crate::cgroups;
use crate::cli::{PoolLimits, RunArgs};
use crate::guard;
use crate::outer::Outer;
use crate::say;
use anyhow::{Context, Result, bail};
use ebb_engine::PAGE_SIZE;
use ebb_engine::swap::ZSTD_LEVELS;
use ebb_stores::{
    FAULTS_VARIABLE, Faults, FileIdentity, OpenError, PendingHeader, SearchTime, Size, SwapSpec,
    human,
};
use ebb_tree::{Codec, Config, Limits, Setup, SetupDevice, Zstd, check_limits};
use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

/// The smallest budget of a process tree: the unmanaged memory, staging frames and page map of a small
/// program, with some room to work.
pub const SMALLEST: u64 = 16 << 20;

const ZSTD_DEFAULT: i32 = 1;

/// Reads the options and opens the devices. The devices beside the setup are to be marked as swap before
/// anything is written to them: nothing has been changed yet.
///
/// # Errors
/// An option is wrong; the message says what is allowed.
pub fn setup(args: &RunArgs) -> Result<(Setup, Vec<PendingHeader>)> {
    let (codec, specs) = places(args)?;
    let outer = outer();
    let available = Available::here(outer.clone());
    let budget = budget(args.memory.as_deref(), &available)?;
    let limits = limits(&args.limits, budget)?;
    if codec == Codec::None && !limits.writeback {
        bail!("--pool none with --writeback off leaves no place for cold pages: drop one of them");
    }
    if codec == Codec::None && limits.pool_max.is_some() {
        bail!("--pool none with --pool-max leaves no pool to limit: drop one of them");
    }
    check_faults()?;
    let (devices, pending_header) = devices(specs)?;
    let setup = Setup {
        budget_pages: budget / PAGE_SIZE as u64,
        // The outer run's figure is that of the start: it may be waiting for this one.
        budgets: Box::new(move || budgets(&Available::here(outer.clone()))),
        limits,
        devices,
        config: Config {
            codec,
            encrypt: true,
            eager: args.eager,
            watches: !cgroups::has_processor_quota(),
            choice: args.device_choice.into(),
        },
        notices: None,
        open: Some(open_later),
        guard: Some(Box::new(guard::launch)),
    };
    Ok((setup, pending_header))
}

/// The memory that the run has left that this one is in. The user is told of that run, also where it does not answer.
fn outer() -> Option<Available> {
    let outer = Outer::look();
    let told = match &outer {
        Ok(outer) => outer.as_ref().map(Outer::told),
        Err(unreachable) => Some(unreachable.clone()),
    };
    if let Some(told) = told {
        say::now(&format!("ebb: {told}"));
    }
    outer.ok()?.as_ref().map(Outer::available)
}

/// The pages that a tree can be given where this much is available.
fn budgets(available: &Available) -> RangeInclusive<u64> {
    SMALLEST / PAGE_SIZE as u64..=available.total / PAGE_SIZE as u64
}

/// The codec and the swap devices that the options name; without any, the default.
///
/// # Errors
/// An option is wrong; the message says what is allowed.
pub fn places(args: &RunArgs) -> Result<(Codec, Vec<SwapSpec>)> {
    let codec = codec(args.pool.as_deref().unwrap_or("lz4"))?;
    let mut specs = args
        .swap
        .iter()
        .map(|text| {
            text.parse::<SwapSpec>()
                .with_context(|| format!("--swap {text}"))
        })
        .collect::<Result<Vec<_>>>()?;
    if specs.len() > 1 && specs.contains(&SwapSpec::None) {
        bail!("--swap none cannot stand beside another --swap: leave one of them out");
    }
    if specs.contains(&SwapSpec::None) && codec == Codec::None {
        bail!("--pool none with --swap none leaves no place for cold pages: drop one of them");
    }
    if specs.is_empty() {
        specs.push(SwapSpec::default());
    }
    Ok((codec, specs))
}

/// The budget that this text means, or the default.
///
/// # Errors
/// It is no size, too small, or more than there is; the message says what is allowed.
pub fn budget(text: Option<&str>, available: &Available) -> Result<u64> {
    let budget = match text {
        None => available.default_budget(),
        Some(text) => {
            let size: Size = text.parse().context("--memory")?;
            size.of(available.total)
        }
    };
    if budget < SMALLEST {
        match text {
            Some(text) => bail!(
                "--memory {text} is too small: give at least {}",
                human(SMALLEST)
            ),
            None => bail!(
                "only {} of {} are free: free memory or raise the limit to leave at least {}",
                human(available.free),
                available.from,
                human(SMALLEST)
            ),
        }
    }
    if let Some(text) = text
        && budget > available.total
    {
        bail!(
            "--memory {text} is more than the {} that {} has in all: give less, or leave --memory out",
            human(available.total),
            available.total_from
        );
    }
    Ok(budget)
}

fn limits(args: &PoolLimits, budget: u64) -> Result<Limits> {
    let mut limits = Limits::default();
    if let Some(text) = &args.max {
        limits.pool_max = pool_max(text)?;
    }
    if let Some(percent) = args.accept {
        limits.accept_percent = percent;
    }
    if let Some(writeback) = args.writeback {
        limits.writeback = writeback.into();
    }
    check_limits(&limits, budget).map_err(anyhow::Error::msg)?;
    Ok(limits)
}

/// What `--pool-max` says; none: there is no limit.
///
/// # Errors
/// It is no size.
pub fn pool_max(text: &str) -> Result<Option<Size>> {
    match text {
        "none" => Ok(None),
        text => match text.parse() {
            Ok(size) => Ok(Some(size)),
            Err(error) => bail!("--pool-max: {error}, or \"none\" for no limit"),
        },
    }
}

fn codec(text: &str) -> Result<Codec> {
    let (name, level) = match text.split_once(':') {
        Some((name, level)) => (name, Some(level)),
        None => (text, None),
    };
    let (plain, dictionary) = match name.strip_suffix("+dict") {
        Some(plain) => (plain, true),
        None => (name, false),
    };
    let zstd = || -> Result<Zstd> {
        let level = match level.map(|level| (level, level.parse::<i32>())) {
            None => ZSTD_DEFAULT,
            Some((_, Ok(level))) if ZSTD_LEVELS.contains(&level) => level,
            Some((level, _)) => bail!(
                "--pool {text}: \"{level}\" is no level of zstd here: allowed are {} (fastest) to {} (densest)",
                ZSTD_LEVELS.start(),
                ZSTD_LEVELS.end()
            ),
        };
        Ok(Zstd { level, dictionary })
    };
    match (plain, level) {
        ("zstd", _) => Ok(Codec::Zstd(zstd()?)),
        ("lz4+zstd", _) => Ok(Codec::Lz4ThenZstd(zstd()?)),
        ("lz4", None) if !dictionary => Ok(Codec::Lz4),
        ("none", None) if !dictionary => Ok(Codec::None),
        ("lz4" | "none", Some(_)) => {
            bail!("--pool {text}: {plain} has no levels: write --pool {plain}")
        }
        ("lz4" | "none", None) => {
            bail!("--pool {text}: only zstd takes a dictionary: write --pool zstd+dict")
        }
        _ => bail!(
            "--pool {text}: no such codec: allowed are lz4, zstd, lz4+zstd, zstd+dict, lz4+zstd+dict and none; those with zstd may end in :LEVEL"
        ),
    }
}

/// Faults are injected by the members, which cannot refuse a text they do not understand.
fn check_faults() -> Result<()> {
    if let Ok(text) = std::env::var(FAULTS_VARIABLE) {
        text.parse::<Faults>().context(FAULTS_VARIABLE)?;
    }
    Ok(())
}

fn devices(specs: Vec<SwapSpec>) -> Result<(Vec<SetupDevice>, Vec<PendingHeader>)> {
    const PATIENCE: Duration = Duration::from_millis(500);
    let look = SearchTime::Unlimited(&report_search);
    let (mut devices, mut pending_header) = (Vec::new(), Vec::new());
    for spec in &specs {
        let own = devices.iter();
        let own = own.map(|d: &SetupDevice| (FileIdentity::of(&d.fd), d.name.as_str()));
        FileIdentity::refuse(spec, own)?;
        if let Some((device, mark)) = handed_over(spec, &look, PATIENCE)? {
            devices.push(device);
            pending_header.extend(mark);
        }
    }
    Ok((devices, pending_header))
}

/// Opens a device, and waits a moment for another run to release it. After `ebb run` was killed, its lock stays
/// for 10 to 60 ms longer than any process has the file open.
fn handed_over(
    spec: &SwapSpec,
    look: &SearchTime<'_>,
    patience: Duration,
) -> Result<Option<Opened>, OpenError> {
    let start = Instant::now();
    loop {
        match device(spec, look) {
            Err(OpenError::Taken { .. }) if start.elapsed() < patience => {
                thread::sleep(Duration::from_millis(5));
            }
            answer => return answer,
        }
    }
}

/// A device, and its mark that is to be written before it is used.
type Opened = (SetupDevice, Option<PendingHeader>);

fn device(spec: &SwapSpec, look: &SearchTime<'_>) -> Result<Option<Opened>, OpenError> {
    let opened = ebb_stores::open(spec, look)?;
    for note in opened.iter().flat_map(|device| &device.notes) {
        // Programs may run already.
        say::line(&format!("ebb: {note}"));
    }
    Ok(opened.map(|device| {
        let setup = SetupDevice {
            name: device.name,
            fd: device.fd,
            facts: device.facts,
            priority: device.priority,
        };
        (setup, device.pending_header)
    }))
}

/// Tells the user the reason of the wait.
fn report_search(seen: u64, all: u64) {
    say::now(&format!(
        "ebb: looking whether a swap device without a swap header is empty: {} of {} seen; \"mkswap\" spares that",
        human(seen),
        human(all)
    ));
}

/// Opens a device that is added while the tree runs. A device that takes long to look through is refused, as a command
/// waits; and the wait for another run is short.
fn open_later(spec: &SwapSpec) -> Result<Opened, String> {
    const SEARCH: Duration = Duration::from_millis(500);
    const PATIENCE: Duration = Duration::from_millis(100);
    let opened = handed_over(spec, &SearchTime::AtMost(SEARCH), PATIENCE);
    let opened = opened.map_err(|e| e.to_string())?;
    opened.ok_or_else(|| format!("swap {spec}: that is no device"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::available::Source;

    fn available(free: u64, total: u64) -> Available {
        Available {
            free: free << 20,
            from: Source::Machine,
            total: total << 20,
            total_from: Source::Machine,
        }
    }

    #[test]
    fn budgets() {
        let available = available(1024, 2048);
        assert_eq!(budget(Some("50%"), &available).unwrap(), 1 << 30);
        assert_eq!(budget(Some("100M"), &available).unwrap(), 100 << 20);
        assert_eq!(budget(None, &available).unwrap(), 960 << 20);
        let refused = |text: Option<&str>, available: &Available| {
            format!("{:#}", budget(text, available).unwrap_err())
        };
        assert!(refused(Some("2M"), &available).contains("at least 16M"));
        assert!(refused(Some("3G"), &available).contains("2G"));
        assert!(refused(None, &self::available(4, 2048)).contains("at least 16M"));
    }

    /// A run that was killed holds its lock a little longer.
    #[test]
    fn a_device_that_another_run_gives_up_is_waited_for() {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let spec = &file.path().to_str().unwrap().parse().unwrap();
        let held = open_later(spec).unwrap();
        let released = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            drop(held);
        });
        let opened = open_later(spec);
        assert!(opened.is_ok(), "{:?}", opened.err());
        released.join().unwrap();
        let refused = open_later(spec).err().unwrap();
        assert!(refused.contains("in use by another run"), "{refused}");
    }

    #[test]
    fn codecs() {
        let zstd = |level, dictionary| Zstd { level, dictionary };
        for (text, is) in [
            ("lz4", Codec::Lz4),
            ("none", Codec::None),
            ("zstd", Codec::Zstd(zstd(1, false))),
            ("zstd:19", Codec::Zstd(zstd(19, false))),
            ("zstd:-7", Codec::Zstd(zstd(-7, false))),
            ("zstd+dict:3", Codec::Zstd(zstd(3, true))),
            ("lz4+zstd", Codec::Lz4ThenZstd(zstd(1, false))),
            ("lz4+zstd+dict:-1", Codec::Lz4ThenZstd(zstd(-1, true))),
        ] {
            assert_eq!(codec(text).unwrap(), is, "{text}");
        }
        for (text, says) in [
            ("zstd:20", "-7 (fastest) to 19"),
            ("zstd:-8", "-7 (fastest) to 19"),
            ("lz4+zstd:x", "-7 (fastest) to 19"),
            ("lz4:1", "no levels"),
            ("lz4+dict", "only zstd"),
            ("lzo", "lz4, zstd"),
        ] {
            assert!(
                codec(text).unwrap_err().to_string().contains(says),
                "{text}"
            );
        }
    }
}
