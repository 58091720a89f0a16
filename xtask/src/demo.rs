//! `cargo xtask demo`: a real program in half the memory it needs, without `ebb` and with it.

use crate::{setup, table};
use anyhow::{Context, Result, bail};
use ebb_harness::cgroup::{self, Cgroup, KernelSwap};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::{MIB, SLACK, tools};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// With a third of the data
    #[arg(long)]
    small: bool,
}

/// MiB of text.
const ALL: &str = "60";
const SMALL: &str = "20";

/// Shows it; true if the program finished in half its memory with the same output.
///
/// # Errors
/// Something that should just work did not.
pub fn demo(options: &Options) -> Result<bool> {
    setup::install(setup::Extent::Small);
    let ebb = setup::build_release()?;
    let job = Job::new([
        tools::python().context("python3 is not installed")?,
        tools::project().join("bench/telling_words.py"),
        texts().context("no text to read was found")?,
        if options.small { SMALL } else { ALL }.into(),
    ])
    .time_limit(Duration::from_secs(600));

    println!(
        "\nThe program finds the words that tell files of source code and documentation on this machine"
    );
    println!("from each other (bench/telling_words.py). First without any limit:\n");
    let free = job.run(None)?;
    if !free.ok() {
        bail!(
            "the program fails by itself: {}\n{}",
            free.ending(),
            free.stderr
        );
    }
    let half = free.peak / 2;
    println!(
        "  it needs {} MiB and takes {:.1} s. Now with {} MiB:\n",
        free.peak / MIB,
        free.wall,
        half / MIB
    );

    let mut rows = vec![row("no limit", &free, &free)];
    let no_group = cgroup::unavailable();
    let group = |limit: u64| match no_group {
        None => Cgroup::new(limit, KernelSwap::Forbidden).map(Some),
        Some(_) => Ok(None),
    };
    let with_ebb = job.clone().behind([
        ebb.as_os_str(),
        "run".as_ref(),
        "--memory".as_ref(),
        format!("{half}").as_ref(),
        "--".as_ref(),
    ]);
    if let Some(limited) = group(half + SLACK)? {
        rows.push(row("memory limit", &job.run(Some(&limited))?, &free));
    }
    let managed = with_ebb.run(group(half + SLACK)?.as_ref())?;
    let name = if no_group.is_none() {
        "memory limit, ebb run"
    } else {
        "ebb run"
    };
    rows.push(row(name, &managed, &free));
    print!(
        "{}",
        table::markdown(&["", "outcome", "output", "seconds", "peak MiB"], &rows)
    );
    if let Some(why) = no_group {
        println!("\nNot shown: how the same limit ends the program without ebb ({why}).");
        println!("Run the demo as root to see it; what ebb used is measured above.");
    }
    Ok(verdict(&managed, &free, half))
}

/// Prints whether the managed run came to the same result; whether it did.
fn verdict(managed: &Outcome, free: &Outcome, half: u64) -> bool {
    let same = managed.ok() && managed.stdout == free.stdout;
    if same {
        println!(
            "\nHalf the memory, the same result: ebb run --memory {}M -- python3 ...",
            half / MIB
        );
    } else {
        println!(
            "\nThat should not have happened. What the program said:\n{}",
            managed.stderr
        );
    }
    same
}

fn row(name: &str, run: &Outcome, reference: &Outcome) -> Vec<String> {
    let output = match run.ok() {
        false => "none",
        true if run.stdout == reference.stdout => "the same",
        true => "DIFFERENT",
    };
    vec![
        name.into(),
        run.ending(),
        output.into(),
        format!("{:.1}", run.wall),
        (run.peak / MIB).to_string(),
    ]
}

/// Where there is text on a machine that can build this project.
fn texts() -> Option<PathBuf> {
    let cargo = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(home()?.join(".cargo")))?;
    let sources = cargo.join("registry/src");
    if sources.is_dir() {
        Some(sources)
    } else {
        Some(Path::new("/usr/share").into())
    }
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from)
}
