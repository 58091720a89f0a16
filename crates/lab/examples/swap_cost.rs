//! What a page costs on its way out and back, in nanoseconds: each step alone, and the whole.
//!
//!     cargo run --release -p ebb-lab --example swap_cost -- [PAGES] [RANDOM_WORDS]
//!
//! Pages are those of `touch`: some random words, then a repeating pattern.

use ebb_engine::codec::{Codec, Codecs};
use ebb_engine::counters::Counters;
use ebb_engine::env::{Clock, Memory, Topology};
use ebb_engine::swap::{Config, CountersRef, Env, Swap};
use ebb_engine::{Cpu, EntryId, GroupId, Node, PageBytes};
use ebb_stores::codec::PageCodecs;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

struct Real(Instant);
impl Clock for Real {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
impl Topology for Real {
    fn cpu(&self) -> Cpu {
        Cpu(0)
    }
    fn cpus(&self) -> usize {
        2
    }
    fn node(&self, _: Cpu) -> Node {
        Node(0)
    }
}
/// Keeps the memory, so that giving back is not part of the figures.
struct Kept;
impl Memory for Kept {
    fn give_back(&self, _: &mut [u8]) {}
}

fn pages(n: usize, random: usize) -> Vec<Box<PageBytes>> {
    let mut s = 88172645463325252u64;
    (0..n)
        .map(|p| {
            let mut page = Box::new([0u8; 4096]);
            for (k, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                s ^= s << 13;
                s ^= s >> 7;
                s ^= s << 17;
                *word = if k < random { s } else { (p + k % 8) as u64 }.to_le_bytes();
            }
            page
        })
        .collect()
}

fn time(name: &str, pages: usize, mut f: impl FnMut()) {
    let cpu = || {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
    };
    let (start, cpu_start) = (Instant::now(), cpu());
    f();
    let wall = start.elapsed().as_nanos() as f64 / pages as f64;
    let cpu = (cpu() - cpu_start) / pages as f64;
    println!("{name:<30} {cpu:>9.1} ns/page of processor {wall:>9.1} of time");
}

fn main() {
    let mut args = std::env::args()
        .skip(1)
        .map(|a| a.parse().expect("a number"));
    let n: usize = args.next().unwrap_or(65536);
    let random = args.next().unwrap_or(128);
    let pages = pages(n, random);
    let codecs = Arc::new(PageCodecs::default());

    time("xxh3 64", n, || {
        for page in &pages {
            black_box(xxhash_rust::xxh3::xxh3_64(&page[..]));
        }
    });
    for codec in [Codec::Lz4, Codec::Zstd] {
        let mut coder = codecs.coder();
        let mut out = vec![[0u8; 8192]; n];
        let mut lens = vec![0; n];
        out.iter_mut().for_each(|o| o[0] = 1);
        time(&format!("{codec:?} compress"), n, || {
            for i in 0..n {
                lens[i] = coder.compress(codec, &pages[i], &mut out[i]).unwrap_or(0);
            }
        });
        let mut back = [0u8; 4096];
        time(&format!("{codec:?} decompress"), n, || {
            for i in 0..n {
                if lens[i] > 0 {
                    coder
                        .decompress(codec, &out[i][..lens[i]], &mut back)
                        .expect("own data");
                }
                black_box(&back);
            }
        });
        println!(
            "{codec:?} ratio {:.2}",
            (n * 4096) as f64 / lens.iter().sum::<usize>() as f64
        );
    }

    let real = Arc::new(Real(Instant::now()));
    let counters = Arc::new(Counters::default());
    let env = Env {
        clock: real.clone(),
        topology: real,
        memory: Arc::new(Kept),
        counters: CountersRef::Shared(counters),
        codecs,
    };
    let swap = Swap::new(
        Config {
            pool_max_bytes: 4 << 30,
            ..Config::default()
        },
        env,
        None,
    )
    .expect("fine");
    swap.warm_up();
    let refs: Vec<&PageBytes> = pages.iter().map(|p| &**p).collect();
    let mut entries = vec![EntryId(0); n];
    let mut stored = vec![None; n];
    let (cpu, group) = (Cpu(0), GroupId(0));
    let mut out = [0u8; 4096];
    for round in ["first", "again"] {
        time(&format!("store_each by 64 ({round})"), n, || {
            for (pages, out) in refs.chunks(64).zip(stored.chunks_mut(64)) {
                assert_eq!(swap.store_each(cpu, group, pages, out), Ok(pages.len()));
            }
        });
        entries = stored.iter().map(|entry| entry.expect("room")).collect();
        let m = swap.memory();
        println!(
            "  pool {:.2} MiB, slack {:.2}%, bookkeeping {:.2} bytes/page",
            m.pool_bytes as f64 / 1048576.0,
            100.0 - 100.0 * m.pool_data_bytes as f64 / m.pool_bytes as f64,
            m.bookkeeping_bytes as f64 / n as f64
        );
        time("load, exclusive", n, || {
            for &entry in &entries {
                swap.load(cpu, entry, &mut out, false).expect("stored");
            }
        });
    }
    time("store, one at a time", n, || {
        for (page, out) in refs.iter().zip(&mut entries) {
            *out = swap.store(cpu, group, &[page]).expect("room");
        }
    });
    time("load, kept", n, || {
        for &entry in &entries {
            swap.load(cpu, entry, &mut out, true).expect("stored");
        }
    });
    time("unchanged", n, || {
        for (&entry, page) in entries.iter().zip(&pages) {
            assert!(swap.unchanged(entry, page));
        }
    });
    time("uncache", n, || {
        entries.iter().for_each(|&entry| swap.uncache(entry))
    });
    let mut s = 1u64;
    time("random load + store", n, || {
        for _ in 0..n {
            s = s
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let i = (s >> 33) as usize % n;
            swap.load(cpu, entries[i], &mut out, false).expect("stored");
            entries[i] = swap.store(cpu, group, &[refs[i]]).expect("room");
        }
    });
    swap.check();
    time("free, each", n, || {
        entries.iter().for_each(|&entry| swap.free(cpu, entry, 1))
    });
    time("store, runs of 16", n, || {
        for (pages, out) in refs.chunks(16).zip(entries.chunks_mut(16)) {
            out[0] = swap.store(cpu, group, pages).expect("room");
        }
    });
    time("free, runs of 16", n, || {
        for first in entries.iter().step_by(16) {
            swap.free(cpu, *first, 16);
        }
    });
    while swap.work(cpu) {}
    swap.check();
    println!("left: {:?}", swap.memory());
}
