//! The simulator for a moment, as `cargo test` runs it; `cargo xtask simulate` runs it for longer.
#![cfg(debug_assertions)]

use std::process::Command;

/// Seconds of a processor.
const SECONDS: &str = "4";

#[test]
fn the_first_seeds_are_good() {
    let mut simulator = Command::new(env!("CARGO_BIN_EXE_ebb-sim"));
    let output = simulator
        .args(["--quick", "--swarm", "--seconds", SECONDS])
        .output()
        .expect("the simulator starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("runs are good"), "{said}");
}
