//! `cargo xtask miri`: unit tests of what needs no system call, interpreted, so that undefined behaviour is seen.
//! `cargo xtask tsan`: tests in which threads meet, with every access to memory watched for data races.
//!
//! Both need a nightly toolchain of rustup, which they install.
//!
//! Miri makes few system calls, so those on memory are made for it in `sys/src/kernel/interpreted.rs`.
//!
//! The pager is watched on the kernel in memory, where its threads are the host's (`memory-kernel`, crowd). In a program they
//! are tasks that ThreadSanitizer's runtime knows nothing of.

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

/// Tests of a package.
struct Part {
    package: &'static str,
    /// Parts of names.
    tests: &'static [&'static str],
    /// Parts of names of those that are left out.
    without: &'static [&'static str],
    /// Cargo's options for the test programs.
    targets: &'static [&'static str],
    /// Miri's options for what it looks at in pointers.
    pointers: &'static [&'static str],
}

impl Part {
    /// Words for the test program: its tests, or those whose names hold `only`.
    fn filters<'a>(&'a self, only: Option<&'a str>) -> Vec<&'a str> {
        let mut filters = only.map_or(self.tests.to_vec(), |only| vec![only]);
        filters.extend(self.without.iter().flat_map(|name| ["--skip", *name]));
        filters
    }
}

/// Unit tests of no package: what parts have in common.
const UNIT_TESTS: Part = Part {
    package: "",
    tests: &[],
    without: &[],
    targets: &["--lib"],
    pointers: &[],
};

/// The rules of what two pointers to the same memory may do. Those of Tree Borrows, as under the others each reference
/// to the tree's table, which has megabytes, costs as much as the table is large.
const TREE_BORROWS: &[&str] = &[
    "-Zmiri-tree-borrows",
    "-Zmiri-tree-borrows-no-precise-interior-mut",
];

/// No such rules: dlmalloc has lists that begin inside itself, which break all of them.
const ANY_BORROWS: &[&str] = &["-Zmiri-disable-stacked-borrows"];

/// Tests that make no system call but for memory, and end within minutes where each instruction takes a thousand.
/// Others are left out: they make other calls, count on a clock's time, or take longer, as property tests of many steps do.
/// The engine has no unsafe code, so there it is about what it uses.
const INTERPRETED: [Part; 4] = [
    Part {
        package: "ebb-sys",
        tests: &["memory::heap", "memory::own", "memory::region"],
        without: &["memory_of_ours_is_left_out", "the_list_is_a_set_of_pages"],
        pointers: ANY_BORROWS,
        ..UNIT_TESTS
    },
    Part {
        package: "ebb-engine",
        tests: &[
            "checksum",
            "entries::entry_word",
            "entries::fifo",
            "pool::arena",
        ],
        pointers: TREE_BORROWS,
        ..UNIT_TESTS
    },
    Part {
        package: "ebb-tree",
        tests: &["histogram", "protocol", "table"],
        without: &[
            "percentiles",
            "longer_than_a_packet",
            "a_name_is_believed",
            "a_table_of_another_version",
            "a_tree_is_supervised",
            "a_member_with_old_pages",
            "growth_that_is_allowed",
            "unsharing",
        ],
        pointers: TREE_BORROWS,
        ..UNIT_TESTS
    },
    Part {
        package: "ebb-pager",
        tests: &["tests::fork::a_forked", "side_by_side"],
        pointers: TREE_BORROWS,
        ..UNIT_TESTS
    },
];

/// Tests in which threads meet.
const WATCHED: [Part; 4] = [
    Part {
        package: "ebb-sys",
        tests: &[
            "memory::heap",
            "process::robust",
            "process::stack",
            "io::interruption",
        ],
        ..UNIT_TESTS
    },
    Part {
        package: "ebb-engine",
        tests: &[
            "entries::space",
            "slots::tests::elsewhere",
            "slots::tests::rules",
            "slots::tests::stress",
            "swap::slow_device",
            "swap::tests::groups",
            "swap::tests::a_",
        ],
        ..UNIT_TESTS
    },
    Part {
        package: "ebb-stores",
        tests: &["encryption", "many_threads"],
        targets: &["--lib", "--test", "file"],
        ..UNIT_TESTS
    },
    Part {
        package: "ebb-pager",
        tests: &["side_by_side"],
        ..UNIT_TESTS
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
        // A pager lives as long as its process, and in tests nobody ends it.
        let mut flags = vec!["-Zmiri-disable-isolation", "-Zmiri-ignore-leaks"];
        // Addresses are kept as numbers, in the page map and by the system.
        flags.push("-Zmiri-permissive-provenance");
        flags.extend(part.pointers);
        let mut cargo = Command::new("cargo");
        cargo
            .args(["+nightly", "miri", "test", "--quiet"])
            .args(part.targets)
            .args(["--package", part.package, "--"])
            .args(part.filters(options.only.as_deref()))
            .env("CARGO_TARGET_DIR", tools::project().join("target/miri"))
            // The number of cases that property tests try: each instruction takes a thousand.
            .env("PROPTEST_CASES", "2")
            .env("MIRIFLAGS", flags.join(" "));
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
            .args(part.targets)
            .args(["--package", part.package, "--"])
            .args(part.filters(None))
            .env("CARGO_TARGET_DIR", tools::project().join("target/tsan"))
            .env("RUSTFLAGS", "-Zsanitizer=thread")
            .env("TSAN_OPTIONS", "halt_on_error=1");
        cargo
    })
}

/// Whether they are there. A toolchain that does is not replaced by a newer one, so a machine without network will do.
fn has(components: &[&str]) -> bool {
    let mut rustup = Command::new("rustup");
    rustup.args(["component", "list", "--installed", "--toolchain", "nightly"]);
    rustup.output().is_ok_and(|output| {
        let installed = String::from_utf8_lossy(&output.stdout);
        let is_there = |component| installed.lines().any(|line| line.starts_with(component));
        output.status.success() && components.iter().copied().all(is_there)
    })
}

fn nightly(components: &[&str]) -> Result<()> {
    if has(components) {
        return Ok(());
    }
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
