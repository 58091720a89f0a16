//! `cargo xtask bench`: every workload in half and in a quarter of its peak memory. It runs under the
//! kernel's own swap and under `ebb run`, with the same total memory.
//!
//! Kernel side: a cgroup of LIMIT holds the program. The rest goes to zram, or with `--kernel` to a swap
//! file, behind zswap or not; then Ebb's side has a swap file too. The memory of zram, and zswap's pool,
//! are not charged to the cgroup (the pool is, on cgroup version 2). So their measured peak is added: TOTAL
//! = LIMIT + peak. Ebb's side gets `--memory TOTAL` in a cgroup of TOTAL + slack without any kernel swap:
//! using more gets it killed. The sides alternate; times are medians; every run must print the same. Half
//! of a peak is half of what the kernel counts for a cgroup: pages that forked processes share count once.
//!
//! Each kind of kernel swap has a table of its own in docs/BENCHMARKS.md (`page`). Every figure has its bound
//! (`bound`); what misses it is listed at the end.

mod bound;
mod comparison;
mod page;
mod side;

use crate::setup;
use anyhow::{Context, Result, bail};
use comparison::Comparison;
use ebb_harness::cgroup::{Cgroup, KernelSwap};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::workloads::{Scale, Workload};
use ebb_harness::{MIB, SLACK, tools};
use page::Page;
use side::{Kernel, Side};
use std::fs;
use std::path::Path;
use std::time::Duration;

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
    /// The sizes of the programs: those that the promises are for, half of them, or those of the tests,
    /// to try the benchmark itself
    #[arg(long, value_name = "full|half|small", default_value_t = Scale::Full)]
    scale: Scale,
    /// Seconds after which a run is ended
    #[arg(long, default_value_t = 900, value_name = "SECONDS")]
    patience: u64,
    /// Only print, leave the document alone
    #[arg(long)]
    dry: bool,
}

impl Options {
    fn ebb_args(&self) -> &str {
        self.ebb_args.as_deref().unwrap_or(self.kernel.ebb_args())
    }
}

/// The document with the tables, from the top of the project.
const DOCUMENT: &str = "docs/BENCHMARKS.md";

/// Runs it; true if nothing missed what is promised of it, no run of ebb's was killed, and none
/// printed something else.
///
/// # Errors
/// No root, no zram, no cgroup; a program is missing.
pub fn bench(options: &Options) -> Result<bool> {
    setup::install(setup::Extent::Full);
    let ebb = setup::build_release()?;
    let chosen = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only));
    let mut rows = Vec::new();
    for workload in Workload::ALL {
        let parts = parts(workload, options.kernel);
        let chosen: Vec<_> = parts.filter(|(_, name)| chosen(name)).collect();
        if !chosen.is_empty() {
            let job = workload.job(options.scale)?;
            let patience = Duration::from_secs(options.patience);
            rows.push((workload, job.time_limit(patience), chosen));
        }
    }
    if rows.is_empty() {
        bail!("no row of the table has such a name: see the tables in {DOCUMENT}");
    }
    let mut page = begin(options)?;
    let mut misses = Vec::new();
    for (workload, job, parts) in rows {
        // In a group that limits nothing, for what it counts.
        let group = Cgroup::new(UNLIMITED, KernelSwap::Forbidden)?;
        let free = job.run(Some(&group))?;
        drop(group);
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
            let compared = Comparison::new(name, workload, part.side(options.kernel), &free);
            let compared = match part {
                Part::All => roomy(compared, &job, &ebb, &free, options)?,
                Part::Of(divisor) => limited(compared, &job, &ebb, &free, divisor, options)?,
            };
            eprintln!("  {}", compared.row().join("  "));
            misses.extend(compared.misses());
            page.put(compared.row(), compared.phase_rows());
        }
        // Each time: who interrupts it keeps what was measured.
        if !options.dry {
            write_page(options.kernel, &page.show())?;
        }
    }
    println!("{}", page.show());
    if !misses.is_empty() {
        println!("Not as promised:");
    }
    for miss in &misses {
        println!("  {miss}");
    }
    Ok(misses.is_empty())
}

/// Bytes of a group that limits nothing.
const UNLIMITED: u64 = 1 << 60;

/// How much of its peak memory a program gets.
#[derive(Clone, Copy)]
enum Part {
    All,
    Of(u64),
}

impl Part {
    fn side(self, kernel: Kernel) -> Side {
        match self {
            Self::All => Side::Plain,
            Self::Of(_) => Side::Kernel(kernel),
        }
    }
}

/// The rows of a workload and their names. The cost of `ebb` where it has nothing to do does not depend on
/// the kernel's swap: it stands in one table. The JVM's collector goes through all of its heap each time:
/// in a quarter of it the kernel is not done after many minutes. Small processes have no memory to be limited.
fn parts(workload: Workload, kernel: Kernel) -> impl Iterator<Item = (Part, String)> {
    let all = (kernel == Kernel::Zram).then_some(Part::All);
    let limited = workload != Workload::Processes;
    let half = limited.then_some(Part::Of(2));
    let quarter = (limited && workload != Workload::Java).then_some(Part::Of(4));
    let parts = all.into_iter().chain(half).chain(quarter);
    parts.map(move |part| {
        let name = match part {
            Part::All => format!("{}, all fits", workload.name()),
            Part::Of(divisor) => format!("{}, 1/{divisor}", workload.name()),
        };
        (part, name)
    })
}

/// The page that this run adds to: an empty one where all workloads run, else what stands in the
/// document.
fn begin(options: &Options) -> Result<Page> {
    let settings = settings(options);
    if options.only.is_none() || options.dry {
        return Ok(Page::new(settings));
    }
    let document = fs::read_to_string(tools::project().join(DOCUMENT))?;
    resume(&document, options.kernel, &settings)
}

/// The page that stands in `document`, or an empty one if nothing does.
///
/// # Errors
/// The page there was measured with other settings, or is no page: to begin one would lose it.
fn resume(document: &str, kernel: Kernel, settings: &str) -> Result<Page> {
    let text = inside(document, kernel.marks()).with_context(no_place)?;
    if text.trim().is_empty() {
        return Ok(Page::new(settings.to_string()));
    }
    let page = Page::parse(text).with_context(|| {
        format!(
            "the {} table in {DOCUMENT} cannot be read: run it without --only, or with --dry",
            kernel.name()
        )
    })?;
    if page.settings() != settings {
        bail!(
            "the table in {DOCUMENT} was measured with other settings ({} then, {settings} now): \
             run it without --only, or with --dry",
            page.settings()
        );
    }
    Ok(page)
}

/// The settings of all rows.
fn settings(options: &Options) -> String {
    format!(
        "{}; kernel {}; {} sizes; {}; `ebb run {}`.",
        machine(),
        fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim(),
        options.scale,
        match options.kernel {
            Kernel::Zram => format!("zram {}", options.zram),
            other => other.name().to_string(),
        },
        options.ebb_args(),
    )
}

/// Everything fits: what `ebb` costs where it has nothing to do. Both sides run in such a group, which
/// costs something itself. They run more often, as the difference is small beside the spread of first
/// touches.
fn roomy(
    mut compared: Comparison,
    job: &Job,
    ebb: &Path,
    free: &Outcome,
    options: &Options,
) -> Result<Comparison> {
    compared.total = free.peak * 2 + 256 * MIB;
    for _ in 0..2 * options.runs + 1 {
        let group = Cgroup::new(compared.total + SLACK, KernelSwap::Forbidden)?;
        compared.other.push(job.run(Some(&group))?);
        drop(group);
        let run = under_ebb(job, ebb, compared.total, options)?;
        compared.ebb.push(run);
    }
    Ok(compared)
}

/// A part of its peak memory: the kernel's swap against `ebb`.
fn limited(
    mut compared: Comparison,
    job: &Job,
    ebb: &Path,
    free: &Outcome,
    divisor: u64,
    options: &Options,
) -> Result<Comparison> {
    let limit = free.peak / divisor;
    compared.total = limit;
    for _ in 0..options.runs {
        let swap = options.kernel.on(&options.zram)?;
        let group = Cgroup::new(limit, KernelSwap::Allowed)?;
        compared.other.push(job.run(Some(&group))?);
        // The group's swap must be gone before it can be turned off.
        drop(group);
        compared.total = compared.total.max(limit + swap.peak());
        drop(swap);
        let run = under_ebb(job, ebb, compared.total, options)?;
        compared.ebb.push(run);
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

/// To hundredths, as figures are shown.
fn rounded(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
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

fn write_page(kernel: Kernel, text: &str) -> Result<()> {
    let path = tools::project().join(DOCUMENT);
    let document = fs::read_to_string(&path)?;
    fs::write(
        &path,
        between(&document, kernel.marks(), text).with_context(no_place)?,
    )?;
    Ok(())
}

fn no_place() -> String {
    format!("{DOCUMENT} has no place for the table")
}

/// The text between the marks of `page`.
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
        let document = |text: &str| format!("a\n{begin}\n{text}{end}\nb\n");
        let resumed = |text: &str| resume(&document(text), Kernel::Zram, "here");
        assert_eq!(resumed("").ok(), Some(Page::new("here".into())));
        let mut page = Page::new("here".into());
        page.put(vec!["touch, 1/2".into(); 9], Vec::new());
        let shown = page.show();
        assert_eq!(resumed(&shown).ok(), Some(page));
        assert!(resumed(&shown.replace("here", "there")).is_err());
        assert!(resumed(&shown.replace("Medians", "Means")).is_err());
        assert!(resumed(&shown.replace("at most", "bound")).is_err());
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
