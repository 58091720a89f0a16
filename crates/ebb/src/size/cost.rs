//! What a wait for a page costs the program that waits, on this machine as it is now.
//!
//! Service measures a wait from the read of a fault to the end of its service. The program loses more: the kernel's
//! work at both ends, the turns of service on its processor, and those of other programs. So a small program of our own
//! touches pages under `ebb run` and measures its time itself. The quotient holds for all waits in about as much load.

use anyhow::{Context, Result, ensure};
use ebb_engine::PAGE_SIZE;
use serde_json::Value;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// The word that starts it.
pub const WORD: &str = "touch-pages";

const PAGES: usize = 16 << 10;
const BUDGET: &str = "40M";
const TOUCHES: usize = 2 * PAGES;

/// How many times the measured waits a program loses; at least once.
///
/// # Errors
/// The program cannot run.
pub fn factor() -> Result<f64> {
    let ebb = std::env::current_exe()?;
    let stats = tempfile()?;
    let run = Command::new(&ebb)
        .args([
            "run",
            "--summary=off",
            "--memory",
            BUDGET,
            "--swap",
            "none",
            "--pool",
            "lz4",
        ])
        .arg("--stats")
        .arg(&stats.0)
        .arg("--")
        .arg(&ebb)
        .arg(WORD)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&run.stdout);
    let took: u64 = said.trim().parse().context("the trial failed")?;
    let stats: Value = serde_json::from_slice(&std::fs::read(&stats.0)?)?;
    let ways = stats["fault_latency"].as_object().context("no figures")?;
    let waited: u64 = ways.values().filter_map(|way| way["sum_ns"].as_u64()).sum();
    ensure!(waited > 0, "the trial was not paged");
    Ok((took as f64 / waited as f64).max(1.0))
}

/// A path that goes with the value.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn tempfile() -> Result<Scratch> {
    let path = std::env::temp_dir().join(format!("ebb-size-{}.json", std::process::id()));
    std::fs::File::create_new(&path)?;
    Ok(Scratch(path))
}

/// On the trial's side: touches pages at random in more memory than there is, and says the nanoseconds.
///
/// # Errors
/// Standard output cannot be written.
pub fn touch_pages() -> Result<ExitCode> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let start = Instant::now();
    let mut memory = vec![0u8; PAGES * PAGE_SIZE];
    for page in memory.chunks_exact_mut(PAGE_SIZE) {
        // A third of it does not compress, which is usual.
        for word in page[..PAGE_SIZE / 3].as_chunks_mut::<8>().0 {
            *word = random().to_le_bytes();
        }
    }
    let mut sum = 0u64;
    for _ in 0..TOUCHES {
        let page = random() as usize % PAGES;
        sum = sum.wrapping_add(u64::from(memory[page * PAGE_SIZE]));
        memory[page * PAGE_SIZE + PAGE_SIZE / 2] = sum as u8;
    }
    let took = start.elapsed();
    std::hint::black_box(&memory);
    println!("{}", took.as_nanos());
    Ok(ExitCode::SUCCESS)
}
