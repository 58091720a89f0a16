//! The speed of a swap device. It prints MB/s, transfers per second and latency of batches of 1, 8 and 64
//! pages at random slots, in batches and one after the other, encrypted and not.
//!
//! `cargo run -p ebb-stores --release --example speed [SPEC] [SECONDS]`; SPEC is a swap spec
//! (default: a private file of 1G), SECONDS the time each row takes (default 1).

use ebb_engine::PAGE_SIZE;
use ebb_engine::env::{ReadOp, Store, WriteOp};
use ebb_engine::random::Random;
use ebb_stores::{Encrypted, FileStore, Keyring, RamStore, SearchTime, SwapSpec, open};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Slots written before the reads, and read from.
const WORKING_SET: u64 = 64 << 8;

#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// One page each, anywhere.
    Scattered,
    /// The pages of a batch follow each other, in one operation.
    Together,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let spec: SwapSpec = match arguments.next() {
        Some(text) => text.parse()?,
        None => SwapSpec::At(ebb_stores::SwapTarget {
            size: Some("1G".parse()?),
            ..Default::default()
        }),
    };
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    let device =
        open(&spec, &SearchTime::Unlimited(&|_, _| {}))?.ok_or("the spec names no device")?;
    println!("device {} {:?}", device.name, device.facts);
    for note in &device.notes {
        println!("note: {note}");
    }
    let file = Arc::new(FileStore::from_fd(device.fd, device.facts));
    let keys = Arc::<Keyring>::default();
    let encrypted = Encrypted::new(file.clone(), keys.clone(), 0);
    let span = file.slots().min(WORKING_SET);
    fill(&*file, span);
    let limit = Duration::from_secs_f64(seconds);
    println!(
        "{:<10} {:<10} {:<6} {:>5} {:>9} {:>10} {:>9} {:>9}",
        "by", "encrypted", "what", "pages", "MB/s", "pages/s", "p50 us", "p99 us"
    );
    for (work, write) in [
        (Work::Scattered, false),
        (Work::Scattered, true),
        (Work::Together, false),
        (Work::Together, true),
    ] {
        for pages in [1, 8, 64] {
            for (store, kind) in [(&*file as &dyn Store, "no"), (&encrypted, "yes")] {
                for at_once in [true, false] {
                    file.set_batches(at_once);
                    let label = if at_once { "batch" } else { "pread" };
                    measure(store, label, kind, work, write, pages, span, limit);
                }
            }
        }
    }
    if let Some(errno) = file.refusal() {
        println!("note: asynchronous reads are refused here ({errno}): both rows are pread");
    }
    cipher(keys, limit);
    Ok(())
}

fn fill(store: &dyn Store, slots: u64) {
    let page = vec![0x5a; 64 * PAGE_SIZE];
    for slot in (0..slots).step_by(64) {
        let mut results = [Ok(())];
        store.write(&[WriteOp { slot, data: &page }], &mut results);
        results[0].expect("the device takes its working set");
    }
}

#[allow(clippy::too_many_arguments)]
fn measure(
    store: &dyn Store,
    label: &str,
    encrypted: &str,
    work: Work,
    write: bool,
    pages: usize,
    span: u64,
    limit: Duration,
) {
    let mut random = Random::new(1);
    let mut data = vec![[0x5au8; PAGE_SIZE]; pages];
    let stretch = span as usize / pages;
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < limit {
        let before = Instant::now();
        if work == Work::Together {
            let slot = (random.below(stretch) * pages) as u64;
            let mut results = [Ok(())];
            if write {
                let data = data.as_flattened();
                store.write(&[WriteOp { slot, data }], &mut results);
            } else {
                let data = data.as_flattened_mut();
                store.read(&mut [ReadOp { slot, data }], &mut results);
            }
            results[0].expect("the transfer works");
        } else {
            let mut results = vec![Ok(()); pages];
            // Slots of one batch differ: each comes from a stretch of its own.
            let mut slot = |i: usize| (i * stretch + random.below(stretch)) as u64;
            if write {
                let ops: Vec<_> = data
                    .iter()
                    .enumerate()
                    .map(|(i, data)| WriteOp {
                        slot: slot(i),
                        data,
                    })
                    .collect();
                store.write(&ops, &mut results);
            } else {
                let mut ops: Vec<_> = data
                    .iter_mut()
                    .enumerate()
                    .map(|(i, data)| ReadOp {
                        slot: slot(i),
                        data,
                    })
                    .collect();
                store.read(&mut ops, &mut results);
            }
            assert!(results.iter().all(Result::is_ok), "the transfers work");
        }
        times.push(before.elapsed());
    }
    let what = match (work, write) {
        (Work::Scattered, false) => "read",
        (Work::Scattered, true) => "write",
        (Work::Together, false) => "readN",
        (Work::Together, true) => "writeN",
    };
    let elapsed = start.elapsed().as_secs_f64();
    print_row([label, encrypted, what], pages, times, elapsed);
}

fn print_row(
    [label, encrypted, what]: [&str; 3],
    pages: usize,
    mut times: Vec<Duration>,
    elapsed: f64,
) {
    let moved = (times.len() * pages) as f64;
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "{label:<10} {encrypted:<10} {what:<6} {pages:>5} {:>9.1} {:>10.0} {:>9.1} {:>9.1}",
        moved * PAGE_SIZE as f64 / elapsed / 1e6,
        moved / elapsed,
        at(0.5),
        at(0.99),
    );
}

/// Encryption alone, over a store in memory: what it adds to a page.
fn cipher(keys: Arc<Keyring>, limit: Duration) {
    let plain = Arc::new(RamStore::new(64));
    let encrypted = Encrypted::new(plain.clone(), keys, 0);
    let data = vec![0x5a; 64 * PAGE_SIZE];
    let page_ns = |store: &dyn Store, write: bool| {
        let mut room = data.clone();
        let mut results = [Ok(())];
        store.write(
            &[WriteOp {
                slot: 0,
                data: &data,
            }],
            &mut results,
        );
        // The fastest of many short stretches: what it costs when nothing else interferes.
        let (start, mut best) = (Instant::now(), Duration::MAX);
        while start.elapsed() < limit {
            let before = Instant::now();
            for _ in 0..8 {
                if write {
                    store.write(
                        &[WriteOp {
                            slot: 0,
                            data: &data,
                        }],
                        &mut results,
                    );
                } else {
                    let data = &mut room;
                    store.read(&mut [ReadOp { slot: 0, data }], &mut results);
                }
            }
            best = best.min(before.elapsed());
        }
        best.as_nanos() as f64 / (8 * 64) as f64
    };
    for (what, write) in [("encrypt", true), ("decrypt", false)] {
        let ns = page_ns(&encrypted, write) - page_ns(&*plain, write);
        println!(
            "{what}: {ns:.0} ns a page, {:.2} GB/s",
            PAGE_SIZE as f64 / ns
        );
    }
}
