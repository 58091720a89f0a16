//! The cost of a wait for a page to the program that waits, on this machine as it is now.
//!
//! Service measures a wait from the read of a fault to the end of its service. The program loses more: the kernel's
//! work at both ends, the turns of service on its processor, and those of other programs. So a small program of our own
//! touches pages under `ebb run` and measures its time itself. The quotient holds for all waits in about as much load.

use crate::ask::stats_of;
use anyhow::{Context, Result, ensure};
use ebb_engine::PAGE_SIZE;
use ebb_engine::random::Random;
use std::io::{Read, Write, stdout};
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
    let mut run = Command::new(&ebb)
        .args(["run", "--summary=off", "--memory", BUDGET, "--swap", "none"])
        .args(["--pool", "lz4", "--"])
        .arg(&ebb)
        .arg(WORD)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut said = [0; 64];
    let len = run.stdout.take().context("no output")?.read(&mut said)?;
    run.wait()?;
    let said = String::from_utf8_lossy(&said[..len]);
    let (took, waited) = said.trim().split_once(' ').context("the trial failed")?;
    let (took, waited): (u64, u64) = (took.parse()?, waited.parse()?);
    ensure!(waited > 0, "the trial was not paged");
    Ok((took as f64 / waited as f64).max(1.0))
}

/// On the trial's side: touches pages at random in more memory than there is. Says the nanoseconds, and those that
/// service has measured as waits.
///
/// # Errors
/// It is in no tree.
pub fn touch_pages() -> Result<ExitCode> {
    let mut random = Random::new(1);
    let start = Instant::now();
    let mut memory = vec![0u8; PAGES * PAGE_SIZE];
    for page in memory.chunks_exact_mut(PAGE_SIZE) {
        // A third of it does not compress, which is usual.
        for word in page[..PAGE_SIZE / 3].as_chunks_mut::<8>().0 {
            *word = random.next().to_le_bytes();
        }
    }
    let mut sum = 0u64;
    for _ in 0..TOUCHES {
        let page = random.below(PAGES);
        sum = sum.wrapping_add(u64::from(memory[page * PAGE_SIZE]));
        memory[page * PAGE_SIZE + PAGE_SIZE / 2] = sum as u8;
    }
    let took = start.elapsed();
    std::hint::black_box(&memory);
    let waited = stats_of(&mut std::process::id())?.waited_ns();
    writeln!(stdout(), "{} {waited}", took.as_nanos())?;
    Ok(ExitCode::SUCCESS)
}
