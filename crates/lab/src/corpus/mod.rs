//! Real pages: how well and how fast each codec takes them, for blocks of 4 to 64 KiB, what
//! the pool makes of them, and what zram does.
//!
//! Pages of one 32-bit value are counted and left out: no codec sees them. A block is made of
//! the pages of one unit of 64 KiB addresses, in order; what compresses to more than 15/16
//! counts as it is. Dictionaries are trained on one unit of eight, and all are compressed.
//!
//! `load_one_us` is what the average page of a block costs alone: LZ4 stops behind it,
//! Zstandard takes the whole block.

mod packers;
mod sample;
mod watched;
mod zram;

use crate::support::report::Report;
use crate::support::sim::Machine;
use ebb_engine::counters::Counters;
use ebb_engine::env::{Clock, Memory};
use ebb_engine::random::Random;
use ebb_engine::swap::{CodecKind, Config, CountersRef, Env, LoadError, Swap};
use ebb_engine::{Cpu, EntryId, GroupId, PAGE_SIZE, PageBytes};
use ebb_stores::codec::PageCodecs;
use ebb_sys::lz4::Lz4Dictionary;
use packers::{DictLz4, Packer, PlainLz4, Zstd, train};
use sample::Sample;
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use watched::Watched;

/// One line for the list of experiments.
pub const ABOUT: &str = "corpus: pages of a real program under every codec and block size";

const COLUMNS: [&str; 9] = [
    "what",
    "codec",
    "block_kib",
    "ratio",
    "waste_percent",
    "waste_half_freed_percent",
    "store_us_page",
    "load_us_page",
    "load_one_us",
];

/// Where pages come from.
#[derive(Clone, Debug)]
pub enum From {
    /// A running process.
    Process(u32),
    /// Pages one after the other in a file.
    Dump(PathBuf),
    /// A command, sampled near its peak.
    Command(Vec<String>),
}

/// Parameters of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source of pages.
    pub from: From,
    /// The most pages taken.
    pub pages: usize,
    /// The time when a command is ended.
    pub after: Duration,
}

impl Options {
    /// The usual amount of pages from there.
    pub fn from(from: From) -> Self {
        Self {
            from,
            pages: 1 << 14,
            after: Duration::from_secs(60),
        }
    }
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or command could not be used.
    #[error("{path}: {why}; give a process you may read, a file, or a command that exists")]
    File {
        /// The path.
        path: String,
        /// The system's message.
        why: String,
    },
    /// There was nothing to measure.
    #[error("no anonymous pages were found: give a program that uses some memory for a while")]
    NoPages,
}

impl Error {
    fn file(path: &Path, why: &std::io::Error) -> Self {
        Self::File {
            path: path.display().to_string(),
            why: why.to_string(),
        }
    }
}

const BLOCKS: [usize; 5] = [1, 2, 4, 8, 16];
const DICTIONARY: usize = 32 << 10;
/// One unit of so many trains the dictionary.
const TRAIN_SHARE: usize = 8;
const LEVELS: [i32; 7] = [-7, -5, -3, -1, 1, 3, 9];

/// Takes the sample and measures it.
///
/// # Errors
/// The pages cannot be had, or there are none.
pub fn run(options: &Options) -> Result<Report, Error> {
    let sample = match &options.from {
        From::Process(pid) => sample::process(*pid, options.pages)?,
        From::Dump(path) => sample::dump(path, options.pages)?,
        From::Command(words) => sample::command(words, options.pages, options.after)?,
    };
    let all = sample.pages();
    let mut report = Report::new(&COLUMNS);
    let units = without_same_filled(&sample);
    let pages: usize = units.iter().map(Vec::len).sum();
    if pages == 0 {
        return Err(Error::NoPages);
    }
    measure_codecs(&mut report, &units);
    for (name, codec) in POOLS {
        pool(&mut report, name, codec, &units);
    }
    measure_zram(&mut report, &units);
    report.note("times are processor time; of zram, elapsed time with the block layer's part; work in the background (recompression, training) is in none");
    report.note(format!(
        "{all} pages of {} resident; {} of them of one value, which no codec sees",
        sample.resident,
        all - pages
    ));
    Ok(report)
}

/// Each codec alone, by blocks of pages, with and without dictionaries.
fn measure_codecs(report: &mut Report, units: &[Vec<&PageBytes>]) {
    for pages in BLOCKS {
        measure(report, "lz4", pages, units, &mut PlainLz4::new());
    }
    for level in LEVELS {
        for pages in BLOCKS {
            let name = format!("zstd:{level}");
            measure(report, &name, pages, units, &mut Zstd::new(level, None));
        }
    }
    let samples: Vec<&[u8]> = units
        .iter()
        .step_by(TRAIN_SHARE)
        .flatten()
        .map(|page| &page[..])
        .collect();
    let start = Instant::now();
    if let Some(dictionary) = train(&samples, DICTIONARY) {
        report.note(format!(
            "a dictionary of {} KiB was trained on {} pages in {} ms",
            dictionary.len() >> 10,
            samples.len(),
            start.elapsed().as_millis()
        ));
        for pages in [1, 4] {
            measure(
                report,
                "lz4+dict",
                pages,
                units,
                &mut DictLz4::new(&dictionary),
            );
            for level in [-7, -1, 1, 3] {
                let name = format!("zstd:{level}+dict");
                let mut zstd = Zstd::new(level, Some(&dictionary));
                measure(report, &name, pages, units, &mut zstd);
            }
        }
    }
    // Pages as they are, instead of what training picks from them: as many as LZ4 can refer to.
    let many = Lz4Dictionary::MAX / PAGE_SIZE;
    let every = samples.len().div_ceil(many);
    let some: Vec<u8> = samples
        .iter()
        .step_by(every)
        .copied()
        .flatten()
        .copied()
        .collect();
    measure(report, "lz4+pages", 1, units, &mut DictLz4::new(&some));
}

/// The kernel's zram, where it can be had.
fn measure_zram(report: &mut Report, units: &[Vec<&PageBytes>]) {
    let flat: Vec<&PageBytes> = units.iter().flatten().copied().collect();
    for algorithm in ["lz4", "lzo-rle", "zstd"] {
        match zram::measure(algorithm, &flat) {
            Some(f) => report.row(vec![
                json!("zram"),
                json!(algorithm),
                json!(4),
                round(f.ratio),
                round(f.waste_percent),
                Value::Null,
                round(f.write_us),
                round(f.read_us),
                round(f.read_us),
            ]),
            None => report.note(format!(
                "no figures of zram {algorithm}: it takes root, and a kernel that adds zram devices"
            )),
        }
    }
}

fn round(x: f64) -> Value {
    json!((x * 100.0).round() / 100.0)
}

fn without_same_filled(sample: &Sample) -> Vec<Vec<&PageBytes>> {
    let same = |page: &PageBytes| page[4..] == page[..PAGE_SIZE - 4];
    let mut units = Vec::with_capacity(sample.units.len());
    for unit in &sample.units {
        let pages = unit.iter().map(|page| &**page);
        let kept: Vec<&PageBytes> = pages.filter(|page| !same(page)).collect();
        if !kept.is_empty() {
            units.push(kept);
        }
    }
    units
}

/// One codec on blocks of `pages` pages.
fn measure(
    report: &mut Report,
    name: &str,
    pages: usize,
    units: &[Vec<&PageBytes>],
    packer: &mut dyn Packer,
) {
    let blocks: Vec<Vec<u8>> = units
        .iter()
        .flat_map(|unit| unit.chunks(pages))
        .map(|block| block.iter().flat_map(|page| page.iter().copied()).collect())
        .collect();
    let total: usize = blocks.iter().map(Vec::len).sum();
    // Where each block's bytes lie; none: it is kept as it is.
    let mut packed = vec![0; total + 2 * 16 * PAGE_SIZE];
    let mut places: Vec<Option<Range<usize>>> = Vec::with_capacity(blocks.len());
    let (mut at, mut held) = (0, 0);
    let start = cpu_time();
    for block in &blocks {
        let len = packer.compress(block, &mut packed[at..at + 2 * block.len()]);
        let place = len
            .filter(|len| len * 16 <= block.len() * 15)
            .map(|len| at..at + len);
        held += place.as_ref().map_or(block.len(), |place| place.len());
        at = place.as_ref().map_or(at, |place| place.end);
        places.push(place);
    }
    let storing = cpu_time() - start;
    let mut room = vec![0; 16 * PAGE_SIZE];
    let mut load = |upto: &dyn Fn(usize, usize) -> usize| {
        let start = cpu_time();
        for (i, (block, place)) in blocks.iter().zip(&places).enumerate() {
            if let Some(place) = place {
                let out = &mut room[..upto(i, block.len())];
                let good = packer.decompress(&packed[place.clone()], block.len(), out);
                assert!(good && out[..64] == block[..64], "{name} lost a block");
            }
        }
        cpu_time() - start
    };
    let loading = load(&|_, len| len);
    // Each position of a page in its turn.
    let loading_one = load(&|i, len| (1 + i % (len / PAGE_SIZE)) * PAGE_SIZE);
    let us = |time: Duration, n: usize| round(time.as_secs_f64() * 1e6 / n as f64);
    report.row(vec![
        json!("codec"),
        json!(name),
        json!((pages * PAGE_SIZE) >> 10),
        round(total as f64 / held as f64),
        Value::Null,
        Value::Null,
        us(storing, total / PAGE_SIZE),
        us(loading, total / PAGE_SIZE),
        us(loading_one, blocks.len()),
    ]);
}

/// Processor time of this thread: other programs on the machine do not count.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

struct Wall(Instant);
impl Clock for Wall {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
/// Keeps the memory: what the pool holds is counted by the pool.
struct Kept;
impl Memory for Kept {
    fn give_back(&self, _: &mut [u8]) {}
}

const POOLS: [(&str, CodecKind); 7] = [
    ("lz4", CodecKind::Lz4),
    ("zstd:-3", CodecKind::Zstd { level: -3 }),
    ("zstd:-1", CodecKind::Zstd { level: -1 }),
    ("zstd:1", CodecKind::Zstd { level: 1 }),
    ("zstd+dict:1", CodecKind::Zstd { level: 1 }),
    ("lz4+zstd:1", CodecKind::Lz4ThenZstd { level: 1 }),
    ("lz4+zstd+dict:1", CodecKind::Lz4ThenZstd { level: 1 }),
];

/// An entry, and the page stored in it.
type Stored<'a> = (EntryId, &'a PageBytes);

/// A swap with such a pool and no device, and its codecs.
fn swap_of(name: &str, codec: CodecKind) -> (Swap, Arc<Watched>) {
    let level = match codec {
        CodecKind::Zstd { level } | CodecKind::Lz4ThenZstd { level } => level,
        CodecKind::Lz4 | CodecKind::None => 1,
    };
    let codecs = Arc::new(Watched::new(if name.contains("+dict") {
        PageCodecs::with_dictionary(level)
    } else {
        PageCodecs::new(level)
    }));
    let env = Env {
        clock: Arc::new(Wall(Instant::now())),
        topology: Arc::new(Machine { cpus: 1, nodes: 1 }),
        memory: Arc::new(Kept),
        counters: CountersRef::Shared(Arc::new(Counters::default())),
        codecs: codecs.clone(),
        checksums: ebb_engine::Checksums::default(),
    };
    let config = Config {
        codec,
        pool_max_bytes: 8 << 30,
        ..Config::default()
    };
    let swap = Swap::new(config, env, None).expect("the settings are in range");
    swap.warm_up();
    (swap, codecs)
}

/// Stores all units; the entries, where each unit's begin, with the end, and the processor time.
fn store_all<'a>(
    swap: &Swap,
    units: &[Vec<&'a PageBytes>],
) -> (Vec<Stored<'a>>, Vec<usize>, Duration) {
    let mut entries: Vec<Stored<'a>> = Vec::new();
    // Where each unit's entries begin.
    let mut starts = Vec::with_capacity(units.len() + 1);
    let mut working = Duration::ZERO;
    let start = cpu_time();
    for unit in units {
        let all = "the pool has room for all";
        starts.push(entries.len());
        let mut out = [None; sample::UNIT];
        if unit.len() == sample::UNIT {
            let first = swap.store(Cpu(0), GroupId(0), unit).expect(all);
            out = std::array::from_fn(|i| Some(first.plus(i as u32)));
        } else {
            swap.store_each(Cpu(0), GroupId(0), unit, &mut out)
                .expect(all);
        }
        entries.extend(out.into_iter().flatten().zip(unit.iter().copied()));
        let stored = cpu_time();
        swap.work(Cpu(0));
        working += cpu_time() - stored;
    }
    starts.push(entries.len());
    (entries, starts, cpu_time() - start - working)
}

/// Loads all entries a unit at a time, and keeps them; the processor time.
fn walk(swap: &Swap, entries: &[Stored<'_>], starts: &[usize]) -> Duration {
    let start = cpu_time();
    for unit in starts.windows(2) {
        let unit = &entries[unit[0]..unit[1]];
        let mut rooms = [[0; PAGE_SIZE]; sample::UNIT];
        let mut out: Vec<&mut PageBytes> = rooms[..unit.len()].iter_mut().collect();
        let which: Vec<EntryId> = unit.iter().map(|(entry, _)| *entry).collect();
        let mut results = vec![Err(LoadError::Empty); unit.len()];
        swap.load_each(Cpu(0), &which, &mut out, true, &mut results);
        assert!(results.iter().all(Result::is_ok), "the pool lost a page");
    }
    cpu_time() - start
}

/// The pages go through the engine itself, a unit at a time as the pager stores them. They come back a
/// unit at a time, kept, as when memory is walked through; then one by one in random order, which frees
/// them.
fn pool(report: &mut Report, name: &str, codec: CodecKind, units: &[Vec<&PageBytes>]) {
    let (swap, codecs) = swap_of(name, codec);
    let (entries, starts, storing) = store_all(&swap, units);
    work(&swap);
    // Bytes that belong to no compressed page.
    let waste = |swap: &Swap, padding: f64| {
        let held = swap.memory();
        round((1.0 - (held.pool_data_bytes as f64 - padding) / held.pool_bytes as f64) * 100.0)
    };
    let held = swap.memory();
    codecs.take_padding();
    let walking = walk(&swap, &entries, &starts);
    // Each object was read once.
    let padding = codecs.take_padding() as f64;
    let wasted = waste(&swap, padding);
    for &(entry, _) in &entries {
        swap.uncache(entry);
    }
    let mut out = [0; PAGE_SIZE];
    let n = entries.len();
    let order = shuffled(n);
    // A loaded page is free then.
    let mut load = |which: Range<usize>| {
        let start = cpu_time();
        for i in which {
            let (entry, page) = entries[order[i]];
            let loaded = swap.load(Cpu(0), entry, &mut out, false);
            assert!(
                loaded.is_ok() && out[..64] == page[..64],
                "the pool lost a page"
            );
        }
        cpu_time() - start
    };
    let mut loading = load(0..n / 2);
    work(&swap);
    let half_freed = waste(&swap, padding / 2.0);
    loading += load(n / 2..n);
    let us = |time: Duration| round(time.as_secs_f64() * 1e6 / n as f64);
    report.row(vec![
        json!("pool"),
        json!(name),
        Value::Null,
        round((n * PAGE_SIZE) as f64 / held.pool_bytes as f64),
        wasted,
        half_freed,
        us(storing),
        us(walking),
        us(loading),
    ]);
}

/// Steps without work after which there is none left.
const IDLE_STEPS: usize = 1024;

/// All work that waits. A step looks at some clusters, and may find nothing in several.
fn work(swap: &Swap) {
    let mut idle = 0;
    while idle < IDLE_STEPS {
        idle = if swap.work(Cpu(0)) { 0 } else { idle + 1 };
    }
}

/// The numbers below `n` in random order, the same each time.
fn shuffled(n: usize) -> Vec<usize> {
    let mut random = Random::new(5);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, random.below(i + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of a store with two codecs, where LZ4 alone takes 1. The allowance covers other programs.
    const LONGER: f64 = 1.25;

    /// No codec wastes much of a pool of 10 to 35 MiB. With two codecs a store takes no longer than with
    /// LZ4 alone, and idle pages become much denser.
    fn wastes_little(what: &str, command: &[String], after: Duration) {
        let sample = match sample::command(command, 24_000, after) {
            Ok(sample) => sample,
            Err(why) => return println!("skipped: no look at another program's memory: {why}"),
        };
        let units = without_same_filled(&sample);
        assert!(sample.pages() > 1 << 13, "{} pages", sample.pages());
        let measure = || {
            let mut report = Report::new(&COLUMNS);
            for (name, codec) in POOLS {
                pool(&mut report, name, codec, &units);
            }
            println!("{what}\n{}", report.text());
            report
        };
        let report = measure();
        for row in report.rows() {
            let waste = row["waste_percent"].as_f64().expect("a number");
            assert!(waste < 5.0, "{what}, {}: {waste}%", row["codec"]);
            let freed = row["waste_half_freed_percent"].as_f64().expect("a number");
            assert!(
                freed < 12.0,
                "{what}, {}: {freed}%, half freed",
                row["codec"]
            );
        }
        let times = |report: &Report, column: &str| {
            let figure = |codec: &str| {
                let row = report.rows().find(|row| row["codec"] == codec);
                row.expect("a row")[column].as_f64().expect("a number")
            };
            figure("lz4+zstd:1") / figure("lz4")
        };
        let denser = times(&report, "ratio");
        let mut longer = times(&report, "store_us_page");
        // Another program may have had the processor, in one of the two.
        for _ in 0..3 {
            if longer > LONGER {
                longer = longer.min(times(&measure(), "store_us_page"));
            }
        }
        println!("{what}: lz4+zstd {denser:.2} times as dense as lz4 in {longer:.2} of the time");
        assert!(denser >= 1.3, "{what}: {denser}");
        assert!(longer <= LONGER, "{what}: {longer}");
    }

    /// GNU sort, with its text and its lines' places in memory.
    #[test]
    fn the_pool_wastes_under_5_percent_of_real_pages() {
        let file = std::env::temp_dir().join(format!("ebb-lines-{}", std::process::id()));
        let mut random = Random::new(11);
        let mut text = String::new();
        for line in 0..1_300_000 {
            let word = ["tide", "ebbs", "flows", "again", "at", "dawn"][random.below(6)];
            text += &format!("{:012x} {word} {line}\n", random.next() >> 16);
        }
        std::fs::write(&file, text).expect("a temporary file");
        let words = ["sort", "-S", "256M", "-o", "/dev/null"].map(String::from);
        let words = [&words[..], &[file.display().to_string()]].concat();
        wastes_little("sort", &words, Duration::from_secs(60));
        let _ = std::fs::remove_file(file);
    }

    /// Small objects of Python, whose pages compress best and to the most different sizes.
    #[test]
    fn the_pool_wastes_under_5_percent_of_a_heap_of_small_objects() {
        let program = "\
users = {f'user:{i}': {'id': i, 'name': f'name-{i * 7919 % 280000}', 'tags': [i % 97, i % 89]} for i in range(280000)}
import time
time.sleep(60)";
        let words = ["python3", "-c", program].map(String::from);
        wastes_little("python", &words, Duration::from_secs(3));
    }

    #[test]
    fn a_dump_is_measured() {
        let path = std::env::temp_dir().join(format!("ebb-corpus-{}", std::process::id()));
        let mut content = vec![0u8; 64 * PAGE_SIZE];
        let mut random = Random::new(7);
        // Records that look alike in every page: larger blocks and dictionaries find them.
        for record in content.chunks_mut(64).skip(64 * 8) {
            record[..8].copy_from_slice(&random.next().to_le_bytes());
            record[20..40].copy_from_slice(b"a record's same part");
        }
        std::fs::write(&path, &content).expect("a temporary file");
        let report = run(&Options::from(From::Dump(path.clone())));
        let _ = std::fs::remove_file(path);
        let report = report.expect("there are pages");
        let ratio = |what: &str, codec: &str, kib: Option<u64>| {
            let row = report.rows().find(|r| {
                r["what"] == what && r["codec"] == codec && r["block_kib"].as_u64() == kib
            });
            row.expect("a row")["ratio"].as_f64().expect("a number")
        };
        assert!(ratio("codec", "lz4", Some(64)) > ratio("codec", "lz4", Some(4)));
        assert!(ratio("codec", "zstd:3", Some(64)) > ratio("codec", "lz4", Some(64)));
        assert!(ratio("pool", "lz4", None) > 1.0);
    }
}
