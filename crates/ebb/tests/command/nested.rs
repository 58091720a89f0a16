//! `ebb run` under `ebb run`.

use super::common::{cannot_page, ebb, lacks};
use super::{run, stderr};
use std::process::Command;

/// The budget in bytes of a run with these options inside one of 200 MiB, and what was said.
fn inside(options: &str) -> (Option<u64>, String) {
    let ebb = ebb().to_str().unwrap();
    let script = format!(
        "echo \"outer $PPID.\" >&2; {ebb} run --swap none {options} sh -c '{ebb} limit $PPID --json'"
    );
    let output = run(&["-m", "200M", "--swap", "none", "sh", "-c", &script]);
    let shown: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
    let budget = shown.map(|shown| shown["memory_bytes"].as_u64().unwrap());
    (budget, stderr(&output))
}

/// It says so, and takes its budget out of what the outer tree has left.
#[test]
fn a_run_inside_a_run_is_told_and_bounded() {
    if cannot_page() {
        return;
    }
    let (budget, said) = inside("");
    let outer = said
        .split_once("outer ")
        .and_then(|(_, rest)| rest.split_once('.'));
    let outer = outer.unwrap_or_else(|| panic!("{said}")).0;
    let line = format!("ebb: this runs under `ebb run` {outer} already: its memory counts there");
    assert_eq!(said.matches(&line).count(), 1, "{said}");
    // Less an eighth, and what two shells and `ebb` itself take.
    let budget = budget.unwrap_or_else(|| panic!("{said}"));
    assert!((120 << 20..=175 << 20).contains(&budget), "{budget}");
    let (half, said) = inside("-m 50%");
    assert_eq!(half, Some(100 << 20), "{said}");
    let (none, said) = inside("-m 300M");
    assert_eq!(none, None, "{said}");
    let refused = "more than the 200M that the budget of `ebb run` ";
    assert!(said.contains(refused), "{said}");
}

/// A run that lives, and that cannot be reached, is told of: nobody knows what it has left.
#[test]
fn a_run_whose_outer_run_cannot_be_asked_says_so() {
    if cannot_page() || lacks("unshare") {
        return;
    }
    if !ebb_harness::is_root() {
        return println!("skipped: needs root");
    }
    let ebb = ebb().to_str().unwrap();
    let script =
        format!("echo \"outer $PPID.\" >&2; unshare -n {ebb} run -m 64M --swap none true; echo $?");
    let output = run(&["-m", "200M", "--swap", "none", "sh", "-c", &script]);
    let said = stderr(&output);
    assert_eq!(output.stdout, b"0\n", "{said}");
    let outer = said
        .split_once("outer ")
        .and_then(|(_, rest)| rest.split_once('.'));
    let outer = outer.unwrap_or_else(|| panic!("{said}")).0;
    let line = format!("ebb: this seems to run under `ebb run` {outer}, which cannot be asked");
    assert_eq!(said.matches(&line).count(), 1, "{said}");
}

/// A name that is left over in the environment is of no tree.
#[test]
fn a_run_whose_outer_run_has_ended_says_nothing() {
    if cannot_page() {
        return;
    }
    let left_over = Command::new("timeout")
        .args(["-k1", "60"])
        .arg(ebb())
        .args(["run", "-m", "64M", "--swap", "none", "true"])
        .env("EBB_CONTROL", "ebb-tree-1-1-0000000000000001")
        .output()
        .unwrap();
    assert!(left_over.status.success(), "{}", stderr(&left_over));
    assert_eq!(stderr(&left_over), "");
}
