//! malloc, memory calls and threads answer over paged memory as libc's and the kernel's do: the programs of
//! `crates/preload/tests/smoke.rs`, with what they are about pushed out before each call.

mod common;

use common::{Under, cannot_page, free, same_in_parts};
use ebb_harness::job::{Job, Outcome};
use ebb_harness::{MIB, tools, workloads};
use std::time::Duration;

const PROGRAMS: &str = "crates/preload/tests/programs";
/// What pushes all else out; alone it is more than the budget.
const BALLAST: &str = "32";
const BUDGET: u64 = 24 * MIB;
const POOL: &[&str] = &["--swap", "none"];
const DEVICE: &[&str] = &["--pool", "none"];

/// The sum of what was out before calls, in pages (`ballast.h`).
fn pages_out(run: &Outcome) -> u64 {
    let said = run.stderr.lines().find_map(|l| l.strip_prefix("out "));
    let said = said.and_then(|n| n.parse().ok());
    said.unwrap_or_else(|| panic!("it does not say what was out: {}", run.stderr))
}

/// It prints what it prints by itself, though at least so many pages were out when it asked for something.
fn same_while_out(compiler: &str, name: &str, least: u64, swap: &[&str]) {
    if cannot_page() {
        return;
    }
    if tools::in_path(compiler).is_none() {
        return println!("skipped: {compiler} is not installed");
    }
    let options = ["-O1", "-w", "-fno-builtin", "-pthread"];
    let program = workloads::compile_with(compiler, &options, &format!("{PROGRAMS}/{name}"));
    let job = Job::new([program.expect("it compiles")]).env("BALLAST_MIB", BALLAST);
    let job = job.time_limit(Duration::from_secs(60));
    let alone = free(&job, name);
    let managed = Under::budget(BUDGET).options(swap).run(&job);
    managed.assert_same(&alone, name);
    managed.assert_paged_within_budget(name);
    let came = managed.counter("fault_pool") + managed.counter("fault_device");
    assert!(came > 8192, "{name}: little came in: {}", managed.stats);
    let out = pages_out(&managed.run).saturating_sub(pages_out(&alone));
    assert!(out >= least, "{name}: {out} pages were out, not {least}");
}

/// Of 4 MiB nearly all is out before each of 30 calls.
#[test]
fn memory_calls_answer_as_the_kernel_does() {
    same_while_out("gcc", "memory_calls.c", 20 * 1024, POOL);
}

#[test]
fn malloc_answers_as_glibc_does() {
    same_while_out("gcc", "malloc_answers.c", 20 * 1024, POOL);
}

/// Blocks of threads come and go while one of them pushes all out.
#[test]
fn threads_start_and_end_in_every_way() {
    same_while_out("g++", "threads.cpp", 1, DEVICE);
}

#[test]
fn python_threads_processes_and_sqlite() {
    if cannot_page() {
        return;
    }
    let script = tools::project().join(PROGRAMS).join("mix.py");
    let python = tools::python().expect("python3");
    let job = Job::new([python.as_os_str(), script.as_os_str()]);
    same_in_parts(&job, "mix.py", &[2], &[]);
}
