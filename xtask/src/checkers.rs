//! `cargo xtask miri`: unit tests of what needs no system call, interpreted, so that undefined behaviour is seen.
//! `cargo xtask tsan`: tests in which threads meet, with every access to memory watched for data races.
//!
//! Both need a nightly toolchain of rustup, which they install.

use crate::table;
use anyhow::{Result, ensure};
use ebb_harness::tools;
use std::process::Command;
use std::time::Instant;

/// Interpret unit tests, and watch for undefined behaviour
#[derive(clap::Args)]
pub struct MiriOptions {
    /// Only tests whose names hold this
    #[arg(value_name = "TEXT")]
    only: Option<String>,
}

/// Tests of a package: those whose names begin with one of these, or all.
struct Part {
    package: &'static str,
    tests: &'static [&'static str],
}

/// Tests that make no system call, and end within minutes where each instruction takes a thousand.
const INTERPRETED: [Part; 3] = [
    Part {
        package: "ebb-engine",
        tests: &[
            "entries",
            "pool",
            "shrinker",
            "slots::cluster",
            "slots::device",
            "swap::same_filled",
        ],
    },
    Part {
        package: "ebb-tree",
        tests: &[
            "histogram",
            "lease",
            "protocol",
            "table::slot",
            "table::limits",
            "table::config",
        ],
    },
    Part {
        package: "ebb-pager",
        tests: &["map", "reclaim", "budget"],
    },
];

/// Tests in which threads meet.
const WATCHED: [Part; 3] = [
    Part {
        package: "ebb-engine",
        tests: &["slots::tests", "entries", "swap"],
    },
    Part {
        package: "ebb-pager",
        tests: &["tests"],
    },
    Part {
        package: "ebb-stores",
        tests: &["encryption"],
    },
];

const MACHINE: &str = "x86_64-unknown-linux-gnu";

/// Interprets tests; true if none failed.
///
/// # Errors
/// There is no nightly toolchain.
pub fn miri(options: &MiriOptions) -> Result<bool> {
    nightly(&["miri", "rust-src"])?;
    run(&INTERPRETED, |part| {
        let mut cargo = Command::new("cargo");
        cargo
            .args([
                "+nightly",
                "miri",
                "test",
                "--quiet",
                "--lib",
                "--package",
                part.package,
                "--",
            ])
            .args(
                options
                    .only
                    .as_deref()
                    .map_or(part.tests.to_vec(), |only| vec![only]),
            )
            .env("CARGO_TARGET_DIR", tools::project().join("target/miri"))
            // The number of cases that property tests try: each instruction takes a thousand.
            .env("PROPTEST_CASES", "2")
            .env("MIRIFLAGS", "-Zmiri-disable-isolation");
        cargo
    })
}

/// Runs tests with ThreadSanitizer; true if none failed.
///
/// # Errors
/// As above.
pub fn tsan() -> Result<bool> {
    nightly(&["rust-src"])?;
    run(&WATCHED, |part| {
        let mut cargo = Command::new("cargo");
        cargo
            .args([
                "+nightly",
                "test",
                "--quiet",
                "-Zbuild-std",
                "--target",
                MACHINE,
            ])
            .args(["--lib", "--package", part.package, "--"])
            .args(part.tests)
            .env("CARGO_TARGET_DIR", tools::project().join("target/tsan"))
            .env("RUSTFLAGS", "-Zsanitizer=thread")
            .env("TSAN_OPTIONS", "halt_on_error=1");
        cargo
    })
}

fn nightly(components: &[&str]) -> Result<()> {
    let mut rustup = Command::new("rustup");
    rustup.args([
        "toolchain",
        "install",
        "nightly",
        "--profile",
        "minimal",
        "--no-self-update",
    ]);
    for component in components {
        rustup.args(["--component", component]);
    }
    ensure!(
        rustup.status()?.success(),
        "no nightly toolchain with {}: rustup says why",
        components.join(", ")
    );
    Ok(())
}

fn run(parts: &[Part], command: impl Fn(&Part) -> Command) -> Result<bool> {
    let (mut rows, mut good) = (Vec::new(), true);
    for part in parts {
        let begin = Instant::now();
        let status = command(part).current_dir(tools::project()).status()?;
        good &= status.success();
        let result = if status.success() { "passed" } else { "failed" };
        let time = format!("{:.0} s", begin.elapsed().as_secs_f64());
        rows.push(vec![part.package.into(), result.into(), time]);
    }
    print!("{}", table::markdown(&["package", "tests", "after"], &rows));
    Ok(good)
}
