//! The start of a small process: `ebb run` adds little to it.

mod common;

use common::{Under, c_program, cannot_page, free, not_built_for_speed};
use ebb_harness::MIB;
use ebb_harness::job::{Job, Outcome};
use std::time::Duration;

/// The page faults that `ebb run` may add to a program that does nothing. A count, so that other load changes nothing.
const MORE_FAULTS: u64 = 25;

/// Page faults of `/bin/true`, the fewest of many runs.
fn faults(run: &Outcome) -> u64 {
    let said = String::from_utf8_lossy(&run.stdout);
    let faults = said.split_whitespace().next().and_then(|n| n.parse().ok());
    faults.unwrap_or_else(|| panic!("no number of faults: {said}"))
}

#[test]
fn a_program_that_does_nothing_takes_few_page_faults_more() {
    // Without optimisation the library is several times as large.
    if not_built_for_speed() || cannot_page() {
        return;
    }
    let start = c_program("start");
    let job =
        Job::new([start.as_os_str(), "/bin/true".as_ref()]).time_limit(Duration::from_secs(30));
    let alone = faults(&free(&job, "start"));
    let managed = Under::budget(256 * MIB).run(&job);
    managed.assert_quiet("start");
    let under = faults(&managed.run);
    assert!(
        under <= alone + MORE_FAULTS,
        "{under} page faults, {alone} without ebb"
    );
}

/// The allocator begins with the first block, whatever a program calls first.
#[test]
fn any_call_of_the_allocator_may_be_the_first() {
    if cannot_page() {
        return;
    }
    let program = c_program("first_call");
    for number in 0..13 {
        let job = Job::new([program.as_os_str(), number.to_string().as_ref()]);
        let managed = Under::budget(64 * MIB).run(&job);
        assert_eq!(
            managed.run.stdout, b"right\n",
            "{number}: {}",
            managed.run.stderr
        );
    }
}
