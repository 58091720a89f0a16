//! `cargo xtask bench`: every workload in half and in a quarter of its peak memory, under the
//! kernel's own swap and under `ebb run`, with the same total memory.
//!
//! Kernel side: a cgroup of LIMIT holds the program, the rest goes to zram, or with `--kernel` to a
//! swap file, behind zswap or not; then Ebb's side has a swap file too. What zram holds, and
//! zswap's pool, are not charged to the cgroup (the pool is, on cgroup version 2), so their
//! measured peak is added: TOTAL = LIMIT + peak. Ebb's side gets `--memory TOTAL` in a cgroup of
//! TOTAL + slack without any kernel swap: using more gets it killed. The sides alternate; times are
//! medians; every run must print the same.
//!
//! Each kind of kernel swap has a table of its own in the README (`page`).

mod page;

use crate::setup;
use anyhow::{Context, Result, bail};
use ebb_harness::cgroup::{Cgroup, KernelSwap};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::kernel_swap::{SwapFile, Zram};
use ebb_harness::workloads::{Scale, Workload};
use ebb_harness::{MIB, SLACK, tools};
use page::{Page, Row};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// What `--kernel` turns on.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Kernel {
    /// Compressed memory
    Zram,
    /// A swap file behind zswap
    Zswap,
    /// A swap file
    File,
}

impl Kernel {
    const fn name(self) -> &'static str {
        match self {
            Self::Zram => "zram",
            Self::Zswap => "zswap",
            Self::File => "swap file",
        }
    }

    /// The marks between which its table stands in the README.
    const fn marks(self) -> [&'static str; 2] {
        match self {
            Self::Zram => ["<!-- bench:begin -->", "<!-- bench:end -->"],
            Self::Zswap => ["<!-- bench-zswap:begin -->", "<!-- bench-zswap:end -->"],
            Self::File => ["<!-- bench-file:begin -->", "<!-- bench-file:end -->"],
        }
    }

    /// What `ebb run` has in its place.
    const fn ebb_args(self) -> &'static str {
        match self {
            Self::Zram => "--swap none",
            Self::Zswap | Self::File => "--swap /var/tmp",
        }
    }
}

/// The kernel's swap while a run lasts.
enum Swap {
    Zram(Zram),
    File(SwapFile),
}

impl Swap {
    fn on(options: &Options) -> Result<Self> {
        /// Bytes of a swap file.
        const SIZE: u64 = 2 << 30;
        let zswap = options.kernel == Kernel::Zswap;
        Ok(match options.kernel {
            Kernel::Zram => Self::Zram(Zram::on(&options.zram)?),
            Kernel::Zswap | Kernel::File => Self::File(SwapFile::on(SIZE, zswap)?),
        })
    }

    /// The most bytes it held that no cgroup was charged for.
    fn peak(&self) -> u64 {
        match self {
            Self::Zram(zram) => zram.peak(),
            Self::File(file) => file.peak(),
        }
    }
}

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// Runs of each side; the table shows their median
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only rows whose name contains this ("redis", "touch, 1/2", "all fits"); the others stay as
    /// they are
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// The kernel's swap to compare with
    #[arg(long, value_enum, default_value = "zram")]
    kernel: Kernel,
    /// The compression algorithm of zram
    #[arg(long, default_value = "lz4")]
    zram: String,
    /// Options for ebb run, in one word [default: --swap none, or /var/tmp against a swap file]
    #[arg(long, allow_hyphen_values = true)]
    ebb_args: Option<String>,
    /// The small sizes that the tests use: to try the benchmark itself
    #[arg(long)]
    small: bool,
    /// Seconds after which a run is ended
    #[arg(long, default_value_t = 900, value_name = "SECONDS")]
    patience: u64,
    /// Only print, leave the README alone
    #[arg(long)]
    dry: bool,
}

impl Options {
    fn ebb_args(&self) -> &str {
        self.ebb_args.as_deref().unwrap_or(self.kernel.ebb_args())
    }
}

/// The runs of one side.
type Runs = Vec<Outcome>;

/// The other side where everything fits.
const PLAIN: &str = "plain";

/// The same program on both sides.
struct Comparison {
    name: String,
    /// What the other side is.
    other_name: &'static str,
    /// Bytes that each side had.
    total: u64,
    other: Runs,
    ebb: Runs,
    expected: Vec<u8>,
}

/// Runs it; true if no run of ebb's was killed or printed something else.
///
/// # Errors
/// No root, no zram, no cgroup.
pub fn bench(options: &Options) -> Result<bool> {
    setup::install(setup::Extent::Full);
    let ebb = setup::build_release()?;
    let scale = if options.small {
        Scale::Small
    } else {
        Scale::Full
    };
    let chosen = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only));
    let rows: Vec<_> = Workload::ALL
        .into_iter()
        .map(|workload| {
            let parts = parts(workload, options.kernel);
            let chosen: Vec<_> = parts.filter(|(_, name)| chosen(name)).collect();
            (workload, chosen)
        })
        .filter(|(_, chosen)| !chosen.is_empty())
        .collect();
    if rows.is_empty() {
        bail!("no row of the table has such a name: see the table in README.md");
    }
    let mut page = begin(options)?;
    let mut sound = true;
    for (workload, parts) in rows {
        let patience = Duration::from_secs(options.patience);
        let job = workload.job(scale)?.time_limit(patience);
        let free = job.run(None)?;
        if !free.ok() {
            bail!(
                "{} fails without any limit: {}\n{}",
                workload.name(),
                free.ending(),
                free.stderr
            );
        }
        eprintln!(
            "{}: {} MiB, {:.1} s without limit",
            workload.name(),
            free.peak / MIB,
            free.wall
        );
        for (part, name) in parts {
            let compared = match part {
                Part::All => roomy(name, &job, &ebb, &free, options)?,
                Part::Of(divisor) => limited(name, &job, &ebb, &free, divisor, options)?,
            };
            eprintln!("  {}", compared.row().join("  "));
            sound &= compared.sound();
            let phases = match workload {
                Workload::Touch if compared.other_name != PLAIN => compared.phase_rows(),
                _ => Vec::new(),
            };
            page.put(compared.row(), phases);
        }
        // Each time: who interrupts it keeps what was measured.
        if !options.dry {
            into_readme(options.kernel, &page.show())?;
        }
    }
    println!("{}", page.show());
    Ok(sound)
}

/// How much of its peak memory a program gets.
#[derive(Clone, Copy)]
enum Part {
    All,
    Of(u64),
}

/// The rows of a workload and their names. What `ebb` costs where it has nothing to do does not
/// depend on the kernel's swap: it stands in one table.
fn parts(workload: Workload, kernel: Kernel) -> impl Iterator<Item = (Part, String)> {
    let all = (kernel == Kernel::Zram).then_some(Part::All);
    let parts = all.into_iter().chain([Part::Of(2), Part::Of(4)]);
    parts.map(move |part| {
        let name = match part {
            Part::All => format!("{}, all fits", workload.name()),
            Part::Of(divisor) => format!("{}, 1/{divisor}", workload.name()),
        };
        (part, name)
    })
}

/// The page that this run adds to: an empty one where all workloads run, else what stands in the
/// README.
fn begin(options: &Options) -> Result<Page> {
    let settings = settings(options);
    if options.only.is_none() || options.dry {
        return Ok(Page::new(settings));
    }
    let readme = fs::read_to_string(tools::project().join("README.md"))?;
    resume(&readme, options.kernel, &settings)
}

/// The page that stands in `readme`, or an empty one if nothing does.
///
/// # Errors
/// What stands there was measured with other settings, or is no page: to begin one would lose it.
fn resume(readme: &str, kernel: Kernel, settings: &str) -> Result<Page> {
    let text = inside(readme, kernel.marks()).context("README.md has no place for the table")?;
    if text.trim().is_empty() {
        return Ok(Page::new(settings.to_string()));
    }
    let page = Page::parse(text).with_context(|| {
        format!(
            "the {} table in README.md cannot be read: run it without --only, or with --dry",
            kernel.name()
        )
    })?;
    if page.settings() != settings {
        bail!(
            "the table in README.md was measured with other settings ({} then, {settings} now): \
             run it without --only, or with --dry",
            page.settings()
        );
    }
    Ok(page)
}

/// What all rows are measured with.
fn settings(options: &Options) -> String {
    format!(
        "{}; kernel {}; {}; `ebb run {}`.",
        machine(),
        fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim(),
        match options.kernel {
            Kernel::Zram => format!("zram {}", options.zram),
            other => other.name().to_string(),
        },
        options.ebb_args(),
    )
}

/// Everything fits: what `ebb` costs where it has nothing to do. Both sides in such a group, which
/// costs something itself; in more runs, as what is looked for is small beside what first touches
/// cost from one time to the next.
fn roomy(
    name: String,
    job: &Job,
    ebb: &Path,
    free: &Outcome,
    options: &Options,
) -> Result<Comparison> {
    let mut compared = Comparison {
        name,
        other_name: PLAIN,
        total: free.peak * 2 + 256 * MIB,
        other: Runs::new(),
        ebb: Runs::new(),
        expected: free.stdout.clone(),
    };
    for _ in 0..2 * options.runs + 1 {
        let group = Cgroup::new(compared.total + SLACK, KernelSwap::Forbidden)?;
        compared.other.push(job.run(Some(&group))?);
        drop(group);
        compared
            .ebb
            .push(under_ebb(job, ebb, compared.total, options)?);
    }
    Ok(compared)
}

/// A part of its peak memory: the kernel's swap against `ebb`.
fn limited(
    name: String,
    job: &Job,
    ebb: &Path,
    free: &Outcome,
    divisor: u64,
    options: &Options,
) -> Result<Comparison> {
    let limit = free.peak / divisor;
    let mut compared = Comparison {
        name,
        other_name: options.kernel.name(),
        total: limit,
        other: Runs::new(),
        ebb: Runs::new(),
        expected: free.stdout.clone(),
    };
    for _ in 0..options.runs {
        let swap = Swap::on(options)?;
        let group = Cgroup::new(limit, KernelSwap::Allowed)?;
        compared.other.push(job.run(Some(&group))?);
        // The group's swap must be gone before it can be turned off.
        drop(group);
        compared.total = compared.total.max(limit + swap.peak());
        drop(swap);
        compared
            .ebb
            .push(under_ebb(job, ebb, compared.total, options)?);
    }
    Ok(compared)
}

fn under_ebb(job: &Job, ebb: &Path, total: u64, options: &Options) -> Result<Outcome> {
    let group = Cgroup::new(total + SLACK, KernelSwap::Forbidden)?;
    let mut front = vec![
        ebb.as_os_str().to_os_string(),
        "run".into(),
        "--memory".into(),
        total.to_string().into(),
    ];
    front.extend(options.ebb_args().split_whitespace().map(Into::into));
    front.push("--".into());
    job.clone().behind(front).run(Some(&group))
}

impl Comparison {
    /// Every run of ebb's finished and printed what the program prints by itself.
    fn sound(&self) -> bool {
        self.ebb
            .iter()
            .all(|run| run.ok() && run.stdout == self.expected)
    }

    /// What ebb's runs printed, beside what the program prints by itself.
    fn output(&self) -> &'static str {
        match self.ebb.iter().all(Outcome::ok) {
            true if self.sound() => "same",
            true => "WRONG",
            false => "none",
        }
    }

    fn row(&self) -> Row {
        let ratio = match (seconds(&self.other), seconds(&self.ebb)) {
            (Some(other), Some(ebb)) => format!("{:.2}", ebb / other),
            _ => "-".into(),
        };
        vec![
            self.name.clone(),
            (self.total / MIB).to_string(),
            self.other_name.into(),
            shown(&self.other),
            shown(&self.ebb),
            ratio,
            self.output().into(),
            self.ebb.len().to_string(),
        ]
    }

    fn phase_rows(&self) -> Vec<Row> {
        let of = |runs: &Runs, phase: &str| {
            median(
                runs.iter()
                    .filter_map(|run| run.phases().get(phase).copied()),
            )
        };
        let row = |phase: &str| {
            let (kernel, ebb) = (of(&self.other, phase)?, of(&self.ebb, phase)?);
            let cells = [
                format!("{kernel:.2}"),
                format!("{ebb:.2}"),
                format!("{:.2}", ebb / kernel),
            ];
            Some(
                [self.name.clone(), phase.into()]
                    .into_iter()
                    .chain(cells)
                    .collect(),
            )
        };
        ["fill", "seq1", "seq2", "rand"]
            .into_iter()
            .filter_map(row)
            .collect()
    }
}

/// Median seconds; none if a run did not finish.
fn seconds(runs: &Runs) -> Option<f64> {
    if runs.iter().all(Outcome::ok) {
        median(runs.iter().map(|run| run.wall))
    } else {
        None
    }
}

fn shown(runs: &Runs) -> String {
    match seconds(runs) {
        Some(seconds) => format!("{seconds:.2}"),
        None => runs
            .iter()
            .find(|run| !run.ok())
            .map_or_else(String::new, Outcome::ending),
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{cores} cores, {}",
        model.map_or("unknown processor", |(_, name)| name.trim())
    )
}

fn into_readme(kernel: Kernel, text: &str) -> Result<()> {
    let path = tools::project().join("README.md");
    let readme = fs::read_to_string(&path)?;
    fs::write(
        &path,
        between(&readme, kernel.marks(), text).context("README.md has no place for the table")?,
    )?;
    Ok(())
}

/// What stands between the marks of `page`.
fn inside<'a>(page: &'a str, [begin, end]: [&str; 2]) -> Option<&'a str> {
    let (_, rest) = page.split_once(begin)?;
    Some(rest.split_once(end)?.0)
}

/// `page` with what stands between the marks replaced.
fn between(page: &str, [begin, end]: [&str; 2], text: &str) -> Option<String> {
    let (before, rest) = page.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n{text}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([1.0, 2.0].into_iter()), Some(1.5));
        assert_eq!(median([].into_iter()), None);
    }

    #[test]
    fn a_table_that_cannot_be_read_is_not_begun_anew() {
        let [begin, end] = Kernel::Zram.marks();
        let readme = |text: &str| format!("a\n{begin}\n{text}{end}\nb\n");
        let resumed = |text: &str| resume(&readme(text), Kernel::Zram, "here");
        assert_eq!(resumed("").ok(), Some(Page::new("here".into())));
        let mut page = Page::new("here".into());
        page.put(vec!["touch, 1/2".into(); 8], Vec::new());
        let shown = page.show();
        assert_eq!(resumed(&shown).ok(), Some(page));
        assert!(resumed(&shown.replace("here", "there")).is_err());
        assert!(resumed(&shown.replace("Medians", "Means")).is_err());
        assert!(resumed(&shown.replace("output", "printed")).is_err());
        assert!(resume("a\nb\n", Kernel::Zram, "here").is_err());
    }

    #[test]
    fn the_table_replaces_the_one_before() {
        let marks = Kernel::Zswap.marks();
        let [begin, end] = marks;
        let page = format!("a\n{begin}\nold\n{end}\nb\n");
        assert_eq!(
            between(&page, marks, "new\n"),
            Some(format!("a\n{begin}\nnew\n{end}\nb\n"))
        );
        assert_eq!(inside(&page, marks), Some("\nold\n"));
        assert_eq!(between(&page, Kernel::File.marks(), "new"), None);
        assert_eq!(inside(&page, Kernel::File.marks()), None);
    }
}
