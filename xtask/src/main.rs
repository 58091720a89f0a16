//! The project's own chores: `cargo xtask demo`, `test`, `dist`, `bench`, `conformance`, `fuzz`, `kernels`, `miri`,
//! `mutants`, `simulate`, `soak`, `survivors`, `tsan`.
#![forbid(unsafe_code)]

mod bench;
mod checkers;
mod conformance;
mod demo;
mod dist;
mod fuzz;
mod kernels;
mod mutants;
mod program;
mod setup;
mod simulate;
mod skips;
mod soak;
mod survivors;
mod table;
mod test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The project's own chores
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build ebb and show the main job: a program in half the memory it needs
    Demo(demo::Options),
    /// Install what the tests need
    Setup,
    /// Install what the tests need and run all of them
    Test(test::Options),
    /// Make the packages: tarball, .deb, wheel, SBOM and sums, in target/dist
    Dist(dist::Options),
    /// Compare with the kernel's swap on the same total memory and put the table in docs/BENCHMARKS.md
    Bench(bench::Options),
    /// Run the kernel's self-tests and LTP by themselves and under ebb, and compare
    Conformance(conformance::Options),
    /// Feed what comes from outside to the code that reads it, steered by coverage
    Fuzz(fuzz::Options),
    /// Boot real kernels in QEMU and run a set of checks on each
    Kernels(kernels::Options),
    /// Simulate pager and engine: programs, devices and the system, as seeds decide
    Simulate(simulate::Options),
    /// Interpret unit tests, and watch for undefined behaviour
    Miri(checkers::MiriOptions),
    /// Plant defects, and see that each is found
    Mutants(mutants::Options),
    /// Run what programs do to memory under ebb in all settings, for as long as you like
    Soak(soak::Options),
    /// Change functions of engine and pager, and see which changes no test finds
    Survivors(survivors::Options),
    /// Run tests in which threads meet with ThreadSanitizer
    Tsan,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().chore {
        Chore::Demo(options) => demo::demo(&options),
        Chore::Dist(options) => dist::dist(&options),
        Chore::Setup => {
            setup::install(setup::Extent::Full);
            Ok(true)
        }
        Chore::Test(options) => test::test(&options),
        Chore::Bench(options) => bench::bench(&options),
        Chore::Conformance(options) => conformance::conformance(&options),
        Chore::Fuzz(options) => fuzz::fuzz(&options),
        Chore::Kernels(options) => kernels::kernels(&options),
        Chore::Simulate(options) => simulate::simulate(&options),
        Chore::Miri(options) => checkers::miri(&options),
        Chore::Mutants(options) => mutants::mutants(&options),
        Chore::Soak(options) => soak::soak(&options),
        Chore::Survivors(options) => survivors::survivors(&options),
        Chore::Tsan => checkers::tsan(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
