//! One batch of writes to a device, and which of its slots are bad.

use crate::env::{IoError, Store, WriteOp};
use crate::slots::Devices;
use crate::{DeviceId, PAGE_SIZE};

/// Pages of a batch: 256 KiB in flight.
pub const BATCH: usize = 64;

/// The pages of a failed run that are written again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Every page: each that can be written is.
    Every,
    /// One by one up to the first that fails: without that page the others are of no use.
    UntilBad,
}

/// Writes runs of pages, at most [`BATCH`] runs, to slots of a device, all in flight at once. A bad slot
/// fails the write of its whole run; that run is written again page by page, which shows the bad slots.
/// `results` has one place a page, in order. Returns the number of pages written.
pub fn write_runs(
    devices: &Devices,
    device: DeviceId,
    runs: &[WriteOp<'_>],
    results: &mut [Result<(), IoError>],
    retry: Retry,
) -> u32 {
    results.fill(Err(IoError::Device));
    let Some(store) = devices.store(device) else {
        return 0;
    };
    let mut of_runs = [Err(IoError::Device); BATCH];
    let of_runs = &mut of_runs[..runs.len()];
    store.write(runs, of_runs);
    let mut rest = &mut *results;
    for (run, &result) in runs.iter().zip(&*of_runs) {
        let (pages, after) = rest.split_at_mut(run.data.len() / PAGE_SIZE);
        pages.fill(result);
        if pages.len() > 1 && result.is_err_and(IoError::is_of_one) {
            write_singly(&*store, *run, pages, retry);
        }
        rest = after;
    }
    results.iter().filter(|result| result.is_ok()).count() as u32
}

/// Writes the pages of a run one by one.
fn write_singly(
    store: &dyn Store,
    run: WriteOp<'_>,
    results: &mut [Result<(), IoError>],
    retry: Retry,
) {
    let pages = match retry {
        Retry::Every => BATCH,
        Retry::UntilBad => 1,
    };
    let batches = run.data.chunks(pages * PAGE_SIZE);
    let slots = (run.slot..).step_by(pages);
    for ((data, first), results) in batches.zip(slots).zip(results.chunks_mut(pages)) {
        let mut ops = [WriteOp { slot: 0, data: &[] }; BATCH];
        for ((op, data), slot) in ops.iter_mut().zip(data.chunks(PAGE_SIZE)).zip(first..) {
            *op = WriteOp { slot, data };
        }
        store.write(&ops[..results.len()], results);
        if retry == Retry::UntilBad && results[0].is_err() {
            return;
        }
    }
}
