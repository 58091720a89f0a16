//! Memory of the engine's bookkeeping: this process's anonymous memory by the kernel's account, with so
//! many pages stored, less that before the first store and less the pool's windows. So nothing else may
//! have used memory in this process before, nor at the same time. How much of the windows is no page's
//! is the experiment `corpus`'s to say.
//!
//! The kernel's page tables are not counted, as in the kernel's published figures for its own.

use super::{COLUMNS, swap};
use ebb_engine::codec::{Codec, Codecs, Coder, Damaged};
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_engine::swap::{CodecKind, LoadError, Swap};
use ebb_engine::{Cpu, EntryId, GroupId, PAGE_SIZE, PageBytes};
use procfs::process::Process;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard};

/// Shares of its pages at which a backend is measured.
pub(super) const PERCENTS: [u64; 5] = [0, 25, 50, 75, 100];

/// Where pages go, and what they compress to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// Into the pool, to the sizes that real pages have.
    Pool,
    /// Into the pool, to next to nothing.
    Tiny,
    /// Into the pool as they are.
    Raw,
    /// Into the pool, in blocks of pages that Zstandard compresses together.
    Blocks,
    /// Into the pool, to next to nothing, from many processors.
    Spread,
    /// To a device.
    Device,
    /// To a device, from many processors.
    DeviceSpread,
}

/// Processors of those backends that have many. Enough groups that each has a range of entries and a
/// cluster of slots, half filled in the end.
pub const MANY: usize = 60;

impl Backend {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Pool,
        Self::Tiny,
        Self::Raw,
        Self::Blocks,
        Self::Spread,
        Self::Device,
        Self::DeviceSpread,
    ];

    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Tiny => "pool, tiny pages",
            Self::Raw => "pool, raw pages",
            Self::Blocks => "pool, zstd in blocks",
            Self::Spread => "pool, tiny pages, 60 processors",
            Self::Device => "device",
            Self::DeviceSpread => "device, 60 processors",
        }
    }

    /// Pages stored where the experiment is of so many GiB: fewer where the pool holds much of them.
    #[must_use]
    pub fn pages(self, gib: u64) -> u64 {
        let all = gib << 18;
        match self {
            Self::Tiny | Self::Spread | Self::Device | Self::DeviceSpread => all,
            Self::Pool | Self::Raw | Self::Blocks => all / 16,
        }
    }

    /// Processors that store.
    #[must_use]
    pub fn cpus(self) -> usize {
        match self {
            Self::Spread | Self::DeviceSpread => MANY,
            _ => 1,
        }
    }

    fn is_device(self) -> bool {
        matches!(self, Self::Device | Self::DeviceSpread)
    }

    /// Compressed sizes of pages; none: they are kept as they are.
    pub(super) fn sizes(self) -> &'static [u16] {
        match self {
            Self::Tiny | Self::Spread => &[16],
            Self::Pool | Self::Blocks => &REAL,
            Self::Raw | Self::Device | Self::DeviceSpread => &[],
        }
    }
}

/// LZ4 sizes of pages of python-heap, sqlite, redis and GNU sort, as many of each (`ebb lab corpus`):
/// each size stands for one page of 64.
const REAL: [u16; 64] = [
    441, 852, 868, 887, 903, 917, 933, 959, 977, 985, 990, 995, 999, 1003, 1007, 1010, 1013, 1016,
    1019, 1022, 1026, 1033, 1048, 1062, 1073, 1083, 1093, 1104, 1130, 1181, 1198, 1214, 1227, 1236,
    1241, 1246, 1254, 1272, 1328, 1382, 1403, 1411, 1416, 1419, 1423, 1427, 1431, 1436, 1441, 1449,
    1463, 1532, 1643, 1714, 1885, 2064, 2114, 2391, 2937, 2950, 2959, 2968, 2985, 3090,
];

/// Writes so many bytes as it is told, and keeps 16 of them: what the engine costs, without a codec.
pub(super) struct Sized(pub &'static [u16]);

impl Codecs for Sized {
    fn coder(&self) -> Box<dyn Coder> {
        Box::new(Self(self.0))
    }
    fn coder_bytes(&self) -> usize {
        0
    }
}

impl Sized {
    /// The compressed size of a page; neighbours are not alike.
    fn size(&self, page: &PageBytes) -> usize {
        let mixed = number(page).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.0[mixed as usize % self.0.len()].into()
    }
}

impl Coder for Sized {
    fn compress(&mut self, _: Codec, page: &PageBytes, out: &mut [u8]) -> Option<usize> {
        if self.0.is_empty() {
            return None;
        }
        out[..16].copy_from_slice(&page[..16]);
        Some(self.size(page))
    }
    /// A tenth denser than the pages alone.
    fn compress_block(&mut self, pages: &[PageBytes], out: &mut [u8]) -> Option<usize> {
        let alone: usize = pages.iter().map(|page| self.size(page)).sum();
        let len = (alone * 9 / 10).max(16 * pages.len());
        let words = out.get_mut(..len)?.as_chunks_mut::<16>().0;
        for (word, page) in words.iter_mut().zip(pages) {
            word.copy_from_slice(&page[..16]);
        }
        Some(len)
    }
    fn decompress_block(&mut self, data: &[u8], pages: &mut [PageBytes]) -> Result<(), Damaged> {
        for (word, page) in data.as_chunks::<16>().0.iter().zip(pages) {
            page.fill(0);
            page[..16].copy_from_slice(word);
        }
        Ok(())
    }
    fn decompress(&mut self, _: Codec, data: &[u8], page: &mut PageBytes) -> Result<(), Damaged> {
        page[..16].copy_from_slice(&data[..16]);
        Ok(())
    }
}

fn number(page: &[u8; PAGE_SIZE]) -> u64 {
    page.first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

/// A page that is like no other.
pub(super) fn page(i: u64) -> PageBytes {
    let mut page = [0; PAGE_SIZE];
    page[..8].copy_from_slice(&(i + 1).to_le_bytes());
    page
}

/// A device that keeps the first word of each page: all that they have. Its own memory is there from
/// the beginning.
pub(super) struct Words(Mutex<Vec<u64>>);

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
                words[op.slot as usize + i] = number(page);
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

/// Bytes of anonymous memory that this process holds, by its page tables; `statm` may be some
/// hundred KiB behind.
fn anonymous() -> u64 {
    let rollup = Process::myself().and_then(|process| process.smaps_rollup());
    let maps = rollup.expect("the kernel's figures").memory_map_rollup;
    maps.iter()
        .filter_map(|map| map.extension.map.get("Anonymous"))
        .sum()
}

/// Bytes that the engine holds beside the pool's windows. It has no page map, so the pager's memory for
/// a swapped page is not counted.
struct Held<'a> {
    swap: &'a Swap,
    /// Anonymous memory before there was anything.
    before: u64,
    /// Pages at 100%.
    total: u64,
}

impl Held<'_> {
    /// A row with `pages` of them stored. Where there are none, what is held is shared among all that
    /// there were.
    fn row(&self, percent: u64, backend: &str, pages: u64) -> Vec<Value> {
        let said = self.swap.memory();
        let bytes = anonymous().saturating_sub(self.before + said.pool_bytes) as f64;
        let per_page = bytes / if pages == 0 { self.total } else { pages } as f64;
        let rounded = |value: f64, places: f64| json!((value * places).round() / places);
        let of_32_gib = (8 << 20) as f64 / self.total as f64 / f64::from(1 << 20);
        let mut row = vec![
            json!(percent),
            json!(backend),
            rounded(per_page, 100.0),
            rounded(bytes * of_32_gib, 10.0),
            rounded(said.bookkeeping_bytes as f64 * of_32_gib, 10.0),
        ];
        row.resize(COLUMNS.len(), Value::Null);
        row
    }
}

/// Pages that go through the engine at a time.
const BATCH: usize = 64;

/// Brings pages back, keeps their entries as clean copies, and evicts them again.
fn keep_and_evict(swap: &Swap, entries: &[EntryId], rooms: &mut [PageBytes]) {
    for entries in entries.chunks(BATCH) {
        let mut out: Vec<&mut PageBytes> = rooms.iter_mut().take(entries.len()).collect();
        let mut results = [Err(LoadError::Empty); BATCH];
        swap.load_each(
            Cpu(0),
            entries,
            &mut out,
            true,
            &mut results[..entries.len()],
        );
        for (&entry, result) in entries.iter().zip(results) {
            assert!(result.is_ok() && swap.uncache(entry), "{entry}: {result:?}");
        }
    }
}

/// Stores more and more pages, brings all back and evicts them again, and frees them: the rows.
/// `give_back` has the allocator under all this give the system what is free, as a process's keeper has.
///
/// # Panics
/// If a page is refused or lost.
#[must_use]
pub fn measure(backend: Backend, gib: u64, give_back: fn()) -> Vec<Vec<Value>> {
    let total = backend.pages(gib);
    let codec = match backend {
        _ if backend.is_device() => CodecKind::None,
        Backend::Blocks => CodecKind::Zstd { level: 1 },
        _ => CodecKind::Lz4,
    };
    let cpus = backend.cpus();
    // Each processor may leave a cluster unfilled.
    let device = || Arc::new(Words::new(total + 512 * cpus as u64));
    let device = backend.is_device().then(device);
    let mut entries: Vec<EntryId> = (0..total).map(|_| EntryId(u32::MAX)).collect();
    // The experiment's own memory is allocated first.
    let mut rooms: Vec<PageBytes> = (0..BATCH as u64).map(page).collect();
    let before = anonymous();
    let swap = swap(cpus, codec, backend.sizes(), device);
    let held = Held {
        swap: &swap,
        before,
        total,
    };
    let (name, mut stored, mut rows) = (backend.name(), 0, Vec::new());
    for percent in PERCENTS {
        while stored < total * percent / 100 {
            for (i, room) in rooms.iter_mut().enumerate() {
                *room = page(stored + i as u64);
            }
            let refs: [&PageBytes; BATCH] = std::array::from_fn(|i| &rooms[i]);
            let mut out = [None; BATCH];
            let cpu = Cpu((stored / BATCH as u64 % cpus as u64) as u16);
            if backend == Backend::Blocks {
                let first = swap.store(cpu, GroupId(0), &refs).expect("there is room");
                out = std::array::from_fn(|i| Some(first.plus(i as u32)));
            } else {
                match swap.store_each(cpu, GroupId(0), &refs, &mut out) {
                    Ok(BATCH) => {}
                    other => panic!("page {stored} of {total}: {other:?}"),
                }
            }
            for (known, entry) in entries[stored as usize..].iter_mut().zip(out) {
                *known = entry.expect("all were stored");
            }
            stored += BATCH as u64;
        }
        rows.push(held.row(percent, name, stored));
    }
    keep_and_evict(&swap, &entries, &mut rooms);
    rows.push(held.row(100, &format!("{name}, kept and evicted"), stored));
    for entry in entries.drain(..) {
        swap.free(Cpu(0), entry, 1);
    }
    while swap.work(Cpu(0)) {}
    give_back();
    rows.push(held.row(0, &format!("{name}, freed again"), 0));
    rows
}
