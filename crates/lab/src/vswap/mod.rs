//! The virtual swap space: what it costs in memory ([`memory`]), and how fast pages and ranges go
//! through it ([`speed`]).

mod memory;
mod speed;

pub use memory::{Backend, measure};

use crate::support::report::{Plot, Report, Series};
use crate::support::sim::Machine;
use ebb_engine::counters::Counters;
use ebb_engine::env::{Clock, Memory};
use ebb_engine::slots::{DeviceSpec, Devices, Options as Policies};
use ebb_engine::swap::{CodecKind, Config, CountersRef, Env, Swap};
use memory::{Sized, Words};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// One line for the list of experiments.
pub const ABOUT: &str = "virtual swap space: memory for each swapped page, and throughput";

/// Parameters of the experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// GiB of swapped pages at 100%. 0: bookkeeping is not measured.
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

struct Stopped;
impl Clock for Stopped {
    fn now_ns(&self) -> u64 {
        0
    }
}

struct Real;
impl Memory for Real {
    fn give_back(&self, bytes: &mut [u8]) {
        ebb_sys::memory::give_back(bytes);
    }
}

fn swap(cpus: usize, codec: CodecKind, sizes: &'static [u16], device: Option<Arc<Words>>) -> Swap {
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
        memory: Arc::new(Real),
        counters: CountersRef::Shared(Arc::new(Counters::default())),
        codecs: Arc::new(Sized(sizes)),
        checksums: ebb_engine::Checksums::default(),
    };
    let config = Config {
        codec,
        pool_max_bytes: 32 << 30,
        ..Config::default()
    };
    Swap::new(config, env, devices).expect("the settings are in range")
}

const COLUMNS: [&str; 8] = [
    "use_percent",
    "backend",
    "bytes_per_page",
    "mib_for_32gib",
    "mib_by_own_account",
    "threads",
    "out_mpages_s",
    "free_mpages_s",
];

fn report() -> Report {
    Report::new(&COLUMNS)
}

/// Runs both parts. `measured` gives the rows of a backend, as [`measure`] makes them in a process of
/// its own.
///
/// # Errors
/// The rows that `measured` returns.
pub fn run<E>(
    options: &Options,
    measured: impl Fn(Backend, u64) -> Result<Vec<Vec<Value>>, E>,
) -> Result<Report, E> {
    let mut report = report();
    let mut series = Vec::new();
    for backend in Backend::ALL.into_iter().filter(|_| options.gib > 0) {
        let rows = measured(backend, options.gib)?;
        let number = |value: &Value| value.as_f64().unwrap_or(0.0);
        let points = rows
            .iter()
            .take(memory::PERCENTS.len())
            .map(|row| (number(&row[0]), number(&row[3])));
        series.push(Series {
            name: backend.name().into(),
            points: points.collect(),
        });
        rows.into_iter().for_each(|row| report.row(row));
    }
    speed::speed(&mut report, options);
    report.note("bytes_per_page: anonymous memory of a process of its own that came with the pages, by the kernel, less what the pool's windows hold; checksums, reverse map and slot allocator included, page tables not. Where no page is stored: shared among all that there were");
    report.note("pool, raw pages and blocks: of a sixteenth of the pages, as the pool holds their bytes, and multiplied; tiny pages and device: of all");
    report.note("out_mpages_s, free_mpages_s: medians of the rounds in which nothing else ran on the processors");
    report.note("goal at 100%: at most 12 in the pool and 14 on a device");
    report.set_plot(Plot {
        title: "Bookkeeping of 32 GiB of swapped pages".into(),
        x: "use (%)".into(),
        y: "MiB".into(),
        series,
    });
    Ok(report)
}
