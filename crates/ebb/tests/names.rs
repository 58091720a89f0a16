//! The names of libc's functions: whoever asks a handle of libc for one gets ours, and other preloaded libraries keep
//! theirs.

mod common;

use common::{Under, c_program, cannot_page, free};
use ebb_harness::MIB;
use ebb_harness::job::Job;
use ebb_harness::workloads;
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A library of `tests/programs`, compiled.
fn c_library(name: &str) -> PathBuf {
    let source = format!("crates/ebb/tests/programs/{name}.c");
    workloads::compile_with(
        "cc",
        &["-O2", "-Wall", "-shared", "-fPIC", "-fno-builtin"],
        &source,
    )
    .expect("the test library compiles")
}

/// A program with a preloaded library, which the command itself does not load.
fn under_library(library: &str, words: &[&str]) -> Job {
    let preload = format!("LD_PRELOAD={library}");
    let command = ["env", &preload].into_iter().chain(words.iter().copied());
    Job::new(command).time_limit(LIMIT)
}

/// Blocks of one malloc are freed by the other, and memory calls so made are seen.
#[test]
fn functions_asked_of_a_handle_are_ours() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("handles").as_os_str(), "96".as_ref()]).time_limit(LIMIT);
    let alone = free(&job, "handles");
    let managed = Under::budget(48 * MIB).run(&job);
    managed.assert_same(&alone, "handles");
    managed.assert_paged_within_budget("handles");
    managed.assert_quiet("handles");
}

/// Ours go on to theirs, which go on to libc's: by a handle, as uid_wrapper does.
#[test]
fn functions_of_a_preloaded_library_are_passed_through_once() {
    if cannot_page() {
        return;
    }
    let job = under_library(
        c_library("wrapping").to_str().unwrap(),
        &[c_program("wrapped").to_str().unwrap()],
    );
    let alone = free(&job, "wrapped");
    let managed = Under::budget(64 * MIB).run(&job);
    managed.assert_same(&alone, "wrapped");
    managed.assert_quiet("wrapped");
}

/// An allocator that stands upon `__libc_malloc` gives and frees all blocks.
#[test]
fn a_preloaded_allocator_may_stand_upon_libcs() {
    if cannot_page() {
        return;
    }
    let ours = c_library("wrapping_malloc");
    let glibcs = "libc_malloc_debug.so.0";
    let log = tempfile::NamedTempFile::new().unwrap();
    let cases = [
        (ours.to_str().unwrap(), "none"),
        (glibcs, "none"),
        (glibcs, "trace"),
        (glibcs, "check"),
    ];
    for (library, how) in cases {
        let what = format!("{library} {how}");
        let program = c_program("debugged");
        let job = under_library(library, &[program.to_str().unwrap(), how])
            .env("MALLOC_TRACE", log.path().to_str().unwrap());
        let alone = free(&job, &what);
        let managed = Under::budget(256 * MIB).run(&job);
        managed.assert_same(&alone, &what);
        managed.assert_quiet(&what);
    }
}

/// The library begins before the program does, which may have functions of libc's names.
#[test]
fn no_function_of_the_programs_is_called_before_it_begins() {
    if cannot_page() {
        return;
    }
    let job = Job::new([c_program("early").as_os_str()]).time_limit(LIMIT);
    let alone = free(&job, "early");
    let managed = Under::budget(64 * MIB).run(&job);
    managed.assert_same(&alone, "early");
}
