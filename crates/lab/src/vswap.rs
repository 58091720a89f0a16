//! The virtual swap space: what it costs in memory, and how fast pages and ranges go through
//! it.
//!
//! Memory is measured, not computed: what the kernel says this process holds, before and
//! after, less the pool's data; at last once more when every page was brought back, kept as a clean
//! copy, and evicted again without being stored. Speed is that of the engine without a codec's work (the
//! pages are almost empty), for some numbers of threads: with each thread on a processor of
//! its own (the per-processor ranges), with all on the same (one range, one lock), and for
//! page maps that would hold slots directly: the slot allocator alone, in the same run.

use crate::report::{Plot, Report, Series};
use crate::rounds::{self, together};
use crate::sim::{Blank, Machine};
use ebb_engine::codec::{Codec, Codecs, Coder, Damaged};
use ebb_engine::counters::Counters;
use ebb_engine::env::{Clock, IoError, Memory, ReadOp, Store, WriteOp};
use ebb_engine::slots::{DeviceSpec, Devices, Extent, ExtentList, Options as Policies};
use ebb_engine::swap::{CodecKind, Config, CountersRef, Env, LoadError, Swap};
use ebb_engine::{Cpu, EntryId, GroupId, PAGE_SIZE, PageBytes};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard};

/// One line for the list of experiments.
pub const ABOUT: &str = "virtual swap space: memory for each swapped page, and throughput";

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// GiB of swapped pages at 100%.
    pub gib: u64,
    /// The largest number of threads. 0: one for each processor.
    pub threads: usize,
    /// Pages of each thread in a round of the throughput part.
    pub pages: usize,
    /// Rounds, in turn with partitions, without, and with slots in the page map.
    pub rounds: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            gib: 32,
            threads: 0,
            pages: 1 << 14,
            rounds: 200,
        }
    }
}

/// Keeps 16 bytes of a page: what the engine costs, without a codec.
struct Little;

impl Codecs for Little {
    fn coder(&self) -> Box<dyn Coder> {
        Box::new(Little)
    }
    fn coder_bytes(&self) -> usize {
        0
    }
}

impl Coder for Little {
    fn compress(&mut self, _: Codec, page: &PageBytes, out: &mut [u8]) -> Option<usize> {
        out[..16].copy_from_slice(&page[..16]);
        Some(16)
    }
    fn decompress(&mut self, _: Codec, data: &[u8], page: &mut PageBytes) -> Result<(), Damaged> {
        page[..16].copy_from_slice(&data[..16]);
        Ok(())
    }
}

/// A device that keeps the first word of each page: all that they have. Its own memory is there from
/// the beginning.
struct Words(Mutex<Vec<u64>>);

impl Words {
    fn new(slots: u64) -> Self {
        Self(Mutex::new((0..slots).map(|_| u64::MAX).collect()))
    }
    fn words(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().expect("no panic")
    }
}

impl Store for Words {
    fn slots(&self) -> u64 {
        self.words().len() as u64
    }
    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        let mut words = self.words();
        for op in ops {
            for (i, page) in op.data.as_chunks::<PAGE_SIZE>().0.iter().enumerate() {
                let word = page
                    .first_chunk()
                    .map_or(0, |word| u64::from_le_bytes(*word));
                words[op.slot as usize + i] = word;
            }
        }
        results.fill(Ok(()));
    }
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        let words = self.words();
        for op in ops {
            for (i, page) in op
                .data
                .as_chunks_mut::<PAGE_SIZE>()
                .0
                .iter_mut()
                .enumerate()
            {
                page.fill(0);
                page[..8].copy_from_slice(&words[op.slot as usize + i].to_le_bytes());
            }
        }
        results.fill(Ok(()));
    }
}

struct Stopped;
impl Clock for Stopped {
    fn now_ns(&self) -> u64 {
        0
    }
}
/// Nothing is given back: freed windows are used again.
struct Kept;
impl Memory for Kept {
    fn give_back(&self, _: &mut [u8]) {}
}

fn swap(cpus: usize, codec: CodecKind, device: Option<Arc<Words>>) -> Swap {
    let machine = Arc::new(Machine { cpus, nodes: 1 });
    let devices = device.map(|device| {
        let devices = Devices::new(machine.clone(), Policies::default());
        devices
            .add(device, DeviceSpec::default(), None)
            .expect("a device of this size");
        Arc::new(devices)
    });
    let env = Env {
        clock: Arc::new(Stopped),
        topology: machine,
        memory: Arc::new(Kept),
        counters: CountersRef::Shared(Arc::new(Counters::default())),
        codecs: Arc::new(Little),
    };
    let config = Config {
        codec,
        pool_max_bytes: 32 << 30,
        ..Config::default()
    };
    Swap::new(config, env, devices).expect("the settings are in range")
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|field| field.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

fn page(i: u64) -> PageBytes {
    let mut page = [0; PAGE_SIZE];
    page[..8].copy_from_slice(&(i + 1).to_le_bytes());
    page
}

/// What the engine holds beside the pool's objects; it has no page map, so what the pager keeps for a
/// swapped page is not counted.
struct Held<'a> {
    swap: &'a Swap,
    /// Resident memory before there was anything.
    before: u64,
}

impl Held<'_> {
    fn bytes(&self) -> u64 {
        let data = self.swap.memory().pool_data_bytes;
        resident().saturating_sub(self.before + data)
    }

    fn row(&self, percent: u64, backend: &str, pages: u64, gib: u64) -> Vec<Value> {
        let bytes = self.bytes() as f64;
        let per_page = if pages == 0 {
            0.0
        } else {
            bytes / pages as f64
        };
        let said = self.swap.memory();
        let said = said.bookkeeping_bytes + said.pool_bytes - said.pool_data_bytes;
        let rounded = |value: f64, places: f64| json!((value * places).round() / places);
        let mib = f64::from(1 << 20);
        vec![
            json!(percent),
            json!(backend),
            rounded(per_page, 100.0),
            rounded(bytes / mib * 32.0 / gib as f64, 10.0),
            rounded(said as f64 / mib, 10.0),
            Value::Null,
            Value::Null,
            Value::Null,
        ]
    }
}

/// Brings pages back, keeps their entries as clean copies, and evicts them again.
fn keep_and_evict(swap: &Swap, entries: &[EntryId]) {
    for entries in entries.chunks(64) {
        let mut rooms = [[0; PAGE_SIZE]; 64];
        let mut out: Vec<&mut PageBytes> = rooms.iter_mut().take(entries.len()).collect();
        let mut results = [Err(LoadError::Empty); 64];
        swap.load_each(
            Cpu(0),
            entries,
            &mut out,
            true,
            &mut results[..entries.len()],
        );
        for ((&entry, page), result) in entries.iter().zip(&rooms).zip(results) {
            assert!(
                result.is_ok() && swap.unchanged(entry, page),
                "{entry}: {result:?}"
            );
            swap.uncache(entry);
        }
    }
}

fn memory(report: &mut Report, options: &Options) -> Vec<Series> {
    let mut lines = Vec::new();
    for (backend, codec) in [("pool", CodecKind::Lz4), ("device", CodecKind::None)] {
        let total = options.gib << 18;
        let device = (codec == CodecKind::None).then(|| Arc::new(Words::new(total + 512)));
        let mut entries: Vec<EntryId> = (0..total).map(|_| EntryId(u32::MAX)).collect();
        let before = resident();
        let swap = swap(1, codec, device);
        let held = Held {
            swap: &swap,
            before,
        };
        let mut stored = 0;
        let mut line = Series {
            name: backend.into(),
            points: Vec::new(),
        };
        for percent in [0, 25, 50, 75, 100] {
            while stored < total * percent / 100 {
                let pages: [PageBytes; 64] = std::array::from_fn(|i| page(stored + i as u64));
                let refs: [&PageBytes; 64] = std::array::from_fn(|i| &pages[i]);
                let mut out = [None; 64];
                match swap.store_each(Cpu(0), GroupId(0), &refs, &mut out) {
                    Ok(64) => {}
                    other => panic!("page {stored} of {total}: {other:?}"),
                }
                for (known, entry) in entries[stored as usize..].iter_mut().zip(out) {
                    *known = entry.expect("all were stored");
                }
                stored += 64;
            }
            report.row(held.row(percent, backend, stored, options.gib));
            let mib = held.bytes() as f64 / f64::from(1 << 20);
            line.points.push((percent as f64, mib));
        }
        lines.push(line);
        keep_and_evict(&swap, &entries);
        let kept = format!("{backend}, kept and evicted");
        report.row(held.row(100, &kept, stored, options.gib));
        // Else its memory would be the next one's to use, and not seen.
        std::mem::forget((swap, entries));
    }
    lines
}

/// What threads do with their pages.
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
        let swap = swap(threads, CodecKind::Lz4, None);
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

fn speed(report: &mut Report, options: &Options) {
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
            let millions = |rounds| (rounds::speed(rounds) / 1e4).round() / 100.0;
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

fn report() -> Report {
    Report::new(&[
        "use_percent",
        "backend",
        "bytes_per_page",
        "mib_for_32gib",
        "mib_by_own_account",
        "threads",
        "out_mpages_s",
        "free_mpages_s",
    ])
}

/// Runs both parts.
pub fn run(options: &Options) -> Report {
    let mut report = report();
    let series = memory(&mut report, options);
    speed(&mut report, options);
    report.note("bytes_per_page: resident memory of the process that came with the pages, less the objects in the pool; checksums, reverse map and slot allocator included");
    report.note("out_mpages_s, free_mpages_s: medians of the rounds in which nothing else ran on the processors");
    report.note("goal at 100%: at most 12 in the pool and 14 on a device");
    report.set_plot(Plot {
        title: format!("Bookkeeping of {} GiB of swapped pages", options.gib),
        x: "use (%)".into(),
        y: "MiB".into(),
        series,
    });
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_and_memory_are_reported() {
        let report = run(&Options {
            gib: 1,
            threads: 2,
            pages: 1 << 12,
            rounds: 2,
        });
        let rows: Vec<_> = report.rows().collect();
        assert_eq!(rows.len(), 12 + 6);
        // The promises, 12 bytes a page in the pool and 14 on a device, for 2^18 pages.
        for (row, bytes) in [(4, 12.0), (5, 12.0), (10, 14.0), (11, 14.0)] {
            let own = rows[row]["mib_by_own_account"].as_f64().expect("a number");
            assert!(own > 1.0 && own <= bytes / 4.0, "{own} MiB in row {row}");
        }
        assert!(rows[12]["out_mpages_s"].as_f64().expect("a number") > 0.0);
    }

    #[test]
    fn threads_get_more_done_in_partitions_than_in_one_range() {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return println!("skipped: one processor");
        }
        let options = Options {
            gib: 1,
            threads: 2,
            pages: 1 << 14,
            rounds: 10,
        };
        // Other programs may have one of the processors for a whole run, not for each of several.
        let mut seen = Vec::new();
        for _ in 0..8 {
            let mut report = report();
            speed(&mut report, &options);
            let of = |how: &str| {
                let rows = &mut report.rows();
                let row = rows.find(|r| r["backend"] == how && r["threads"] == 2);
                let row = row.expect("a row");
                ["out_mpages_s", "free_mpages_s"].map(|name| row[name].as_f64().expect("a number"))
            };
            let (with, without) = (of("partitions"), of("one range"));
            if with[0] > without[0] && with[1] > without[1] {
                return;
            }
            seen.push((with, without));
        }
        panic!("million pages a second out and freed, with partitions and without: {seen:?}");
    }
}
