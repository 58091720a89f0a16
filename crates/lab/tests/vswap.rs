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
const GIB: u64 = 16;
/// Bytes of bookkeeping that there are however few pages are stored.
const ALWAYS: f64 = 160.0 * 1024.0;
/// Bytes that stay, whatever the peak: pages of the heap in which something is left, and what is free but less than
/// the heap gives back (`WORTH` in `sys/src/memory/heap.rs`).
const STAYS: f64 = 1024.0 * 1024.0;
/// The same as [`ALWAYS`] for each processor more.
const EACH_PROCESSOR: f64 = 4.0 * 1024.0;

fn give_back() {
    InternalHeap::give_back();
}

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
        return println!(
            "\n{}",
            Value::from(measure(Backend::ALL[which], GIB, give_back))
        );
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
            Backend::Device | Backend::DeviceSpread => 14.0,
            _ => 12.0,
        };
        let pages = backend.pages(GIB) as f64;
        let stored = |row: &[Value]| number(&row[0]) / 100.0 * pages;
        // Where none is stored, what is held is shared among all that there were.
        let shared_among = |row: &[Value]| match stored(row) {
            0.0 => pages,
            stored => stored,
        };
        let bytes = |row: &[Value]| number(&row[2]) * shared_among(row);
        let (before, freed) = (&rows[0], &rows[6]);
        assert_eq!((number(&before[0]), number(&freed[0])), (0.0, 0.0));
        for row in &rows[..6] {
            let always = ALWAYS + EACH_PROCESSOR * (backend.cpus() - 1) as f64;
            assert!(bytes(row) <= most * stored(row) + always, "{row:?}");
        }
        let (quarter, all) = (&rows[1], &rows[4]);
        let each = (bytes(all) - bytes(quarter)) / (stored(all) - stored(quarter));
        // Of figures in hundredths of a byte, of a quarter of the pages and of all.
        let rounding = (0.005 * 4.0 + 0.005) / 3.0;
        assert!(
            each > 8.0 && each <= most + rounding,
            "{each} bytes for each page more"
        );
        // By the kernel, and by own account.
        assert!(bytes(freed) < bytes(all) / 10.0 + STAYS, "{freed:?}");
        let own = |row: &[Value]| number(&row[4]);
        assert!(own(freed) < own(all) / 10.0, "{freed:?}");
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}
