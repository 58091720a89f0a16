//! Real processes that share one table: members are this very program, started again in a role. Each
//! scenario is a process of its own that supervises them, with a time limit after which SIGALRM ends it.
//!
//! `cargo test -p ebb-tree --test processes [-- NAME]` runs all or those whose name contains
//! NAME. No harness: scenarios fork, which a threaded process must not.

mod admission;
mod helped;
mod life;
mod opening;
mod rights;
mod roles;
mod scenarios;
mod support;

use std::time::{Duration, Instant};

/// A scenario's name, its time limit in seconds, and what it does in a process of its own.
type Scenario = (&'static str, u64, fn());

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "--role") {
        return roles::play(&args[1..]);
    }
    if args.iter().any(|arg| arg == "--list") {
        for (name, ..) in scenarios::ALL {
            println!("{name}: test");
        }
        return;
    }
    let filter: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |name: &str| filter.is_empty() || filter.iter().any(|f| name.contains(*f));
    let (mut passed, mut failed) = (0, 0);
    for &(name, limit, scenario) in scenarios::ALL.iter().filter(|s| wanted(s.0)) {
        let start = Instant::now();
        let outcome = support::in_a_process(Duration::from_secs(limit), scenario);
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => passed += 1,
            Err(_) => failed += 1,
        }
        let verdict = outcome
            .err()
            .map_or("ok".to_owned(), |why| format!("FAILED: {why}"));
        println!("test {name} ... {verdict} ({seconds:.2} s)");
    }
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed;",
        if failed == 0 { "ok" } else { "FAILED" }
    );
    std::process::exit((failed != 0) as i32);
}
