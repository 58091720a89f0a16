//! Bookkeeping as the kernel tells it, with the allocator that the engine has under `ebb run`. Each
//! backend is measured in a process of its own: this test again.

use ebb_lab::vswap::{Backend, measure};
use ebb_sys::heap::InternalHeap;
use serde_json::Value;
use std::process::Command;

#[global_allocator]
static HEAP: InternalHeap = InternalHeap;

/// Names the backend to a process that is to measure it.
const WHICH: &str = "EBB_TEST_BACKEND";
/// What 16384 raw pages and so many of real sizes take is told from what the process has in any case.
const GIB: u64 = 4;

fn rows(backend: usize) -> Vec<Vec<Value>> {
    let own = std::env::current_exe().expect("a path");
    let output = Command::new(own)
        .args(["--exact", "a_page_costs_what_is_promised", "--nocapture"])
        .env(WHICH, backend.to_string())
        .output()
        .expect("this program runs");
    let told = String::from_utf8_lossy(&output.stdout);
    let line = told.lines().find(|line| line.starts_with("[["));
    serde_json::from_str(line.unwrap_or_else(|| panic!("{told}"))).expect("rows")
}

#[test]
fn a_page_costs_what_is_promised() {
    if let Ok(which) = std::env::var(WHICH) {
        let which: usize = which.parse().expect("a number");
        return println!("\n{}", Value::from(measure(Backend::ALL[which], GIB)));
    }
    let measured: Vec<_> = (0..Backend::ALL.len()).map(rows).collect();
    for row in measured.iter().flatten() {
        println!(
            "{:>4} {:40} {:>8} {:>8} {:>8}",
            row[0], row[1], row[2], row[3], row[4]
        );
    }
    for (rows, backend) in measured.iter().zip(Backend::ALL) {
        let most = match backend {
            Backend::Device => 14.0,
            _ => 12.0,
        };
        for row in rows {
            let bytes = row[2].as_f64().expect("a number");
            if row[0] == 100 {
                assert!(bytes > 8.0 && bytes <= most, "{row:?}");
            }
        }
    }
}
