//! Throughput of stores and frees without a codec's work (the pages are almost empty), for some numbers
//! of threads. Three cases run in turn: each thread on a processor of its own (per-processor ranges),
//! all on the same (one range, one lock), and page maps that would hold slots directly (the slot
//! allocator alone).

use super::memory::{Backend, page};
use super::{Options, swap};
use crate::support::report::Report;
use crate::support::sim::{Blank, Machine};
use crate::support::timing::{self, together};
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::swap::{CodecKind, Swap};
use ebb_engine::{Cpu, EntryId, GroupId};
use serde_json::json;
use std::sync::{Arc, Mutex};

/// Operations of threads on their pages.
trait Subject: Send + Sync {
    /// Puts `pages` pages of this thread out; says how many.
    fn out(&self, thread: usize, pages: usize) -> usize;
    /// Frees them, in ranges of at most 64; says how many.
    fn free(&self, thread: usize) -> usize;
}

/// Each thread on a processor of its own, or all on the same.
struct Entries {
    swap: Swap,
    partitions: bool,
    held: Vec<Mutex<Vec<EntryId>>>,
}

impl Entries {
    fn new(threads: usize, partitions: bool) -> Self {
        let swap = swap(threads, CodecKind::Lz4, Backend::Tiny.sizes(), None);
        swap.warm_up();
        Self {
            swap,
            partitions,
            held: (0..threads).map(|_| Mutex::default()).collect(),
        }
    }

    fn cpu(&self, thread: usize) -> Cpu {
        Cpu(if self.partitions { thread as u16 } else { 0 })
    }
}

impl Subject for Entries {
    fn out(&self, thread: usize, pages: usize) -> usize {
        let mut entries = self.held[thread].lock().expect("no panic");
        let one = page(thread as u64 + 1);
        let refs = [&one; 64];
        while entries.len() < pages {
            let mut room = [None; 64];
            self.swap
                .store_each(self.cpu(thread), GroupId(0), &refs, &mut room)
                .expect("room");
            entries.extend(room.into_iter().flatten());
        }
        entries.len()
    }
    fn free(&self, thread: usize) -> usize {
        let mut entries = self.held[thread].lock().expect("no panic");
        let follows = |a: &EntryId, b: &EntryId| a.plus(1) == *b;
        for run in entries.chunk_by(follows).flat_map(|run| run.chunks(64)) {
            self.swap.free(self.cpu(thread), run[0], run.len() as u32);
        }
        let freed = entries.len();
        entries.clear();
        freed
    }
}

/// A page map that holds slots: the slot allocator alone.
struct Slots {
    devices: Devices,
    held: Vec<Mutex<Vec<Extent>>>,
}

impl Slots {
    fn new(threads: usize, pages: usize) -> Self {
        let machine = Arc::new(Machine {
            cpus: threads,
            nodes: 1,
        });
        let devices = Devices::new(machine, Policies::default());
        let slots = (threads * pages * 2 + (1 << 16)) as u64;
        devices
            .add(Arc::new(Blank::new(slots)), DeviceSpec::default(), None)
            .expect("fits");
        Self {
            devices,
            held: (0..threads).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Subject for Slots {
    fn out(&self, thread: usize, pages: usize) -> usize {
        let mut extents = self.held[thread].lock().expect("no panic");
        let mut list = ExtentList::new();
        for i in 0..pages {
            list.clear();
            self.devices
                .allocate(Cpu(thread as u16), 1, EntryId(i as u32), &mut list)
                .expect("room");
            extents.push(list[0]);
        }
        pages
    }
    fn free(&self, thread: usize) -> usize {
        let mut extents = self.held[thread].lock().expect("no panic");
        let freed = extents.len();
        for (i, extent) in extents.drain(..).enumerate() {
            let (cpu, owner) = (Cpu(thread as u16), EntryId(i as u32));
            self.devices.free(cpu, owner, extent).expect("ours");
        }
        freed
    }
}

pub(super) fn speed(report: &mut Report, options: &Options) {
    let all = std::thread::available_parallelism().map_or(1, |n| n.get());
    let most = if options.threads == 0 {
        all
    } else {
        options.threads
    };
    let counts = (0..)
        .map(|i| 1 << i)
        .take_while(|&n| n < most)
        .chain([most]);
    for threads in counts {
        let subjects: [(&str, Box<dyn Subject>); 3] = [
            ("partitions", Box::new(Entries::new(threads, true))),
            ("one range", Box::new(Entries::new(threads, false))),
            (
                "slots in the page map",
                Box::new(Slots::new(threads, options.pages)),
            ),
        ];
        let mut rounds = vec![[Vec::new(), Vec::new()]; subjects.len()];
        // The first is to have the memory, which is the kernel's work.
        for counted in (0..=options.rounds.max(1)).map(|i| i > 0) {
            for ((_, subject), [out, free]) in subjects.iter().zip(&mut rounds) {
                let pages = options.pages;
                let went = together(threads, |thread| subject.out(thread, pages));
                let freed = together(threads, |thread| subject.free(thread));
                if counted {
                    out.push(went);
                    free.push(freed);
                }
            }
        }
        for ((how, _), [out, free]) in subjects.iter().zip(&rounds) {
            let millions = |rounds| (timing::speed(rounds) / 1e4).round() / 100.0;
            report.row(vec![
                json!(null),
                json!(how),
                json!(null),
                json!(null),
                json!(null),
                json!(threads),
                json!(millions(out)),
                json!(millions(free)),
            ]);
        }
    }
}
