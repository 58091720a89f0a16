//! Program, service and keeper as threads that run side by side, for ThreadSanitizer and for what no order of steps
//! shows.

use super::machine::PLAIN;
use crate::simulation::{Entries, Simulated};
use ebb_engine::random::Random;
use ebb_engine::slots::{DeviceSpec, Devices};
use ebb_memory_kernel::crowd::Crowd;
use ebb_memory_kernel::threads::{Event, Threads};
use ebb_memory_kernel::{MemoryKernel, PAGE, Stop};
use ebb_stores::RamStore;
use ebb_tree::{Config, Member};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Threads of the program.
const THREADS: usize = 3;
/// Pages of each, of which the budget holds half.
const PAGES: usize = 700;
const BUDGET: u64 = 1024;
/// Operations of each; each takes a thousand times as long where it is interpreted.
const OPERATIONS: usize = if cfg!(miri) { 60 } else { 20_000 };
/// Pages of an area that a thread maps and unmaps.
const AREA: usize = 24;
/// How long a fault may wait.
const PATIENCE: Duration = Duration::from_secs(60);

type Crowded = Simulated<MemoryKernel<Crowd>>;

fn pager() -> &'static Crowded {
    static PAGER: OnceLock<&'static Crowded> = OnceLock::new();
    PAGER.get_or_init(|| {
        let kernel = MemoryKernel::new(Crowd::default());
        Box::leak(Box::new(Simulated::new(kernel)))
    })
}

extern "C" fn keeper(_: usize) -> ! {
    let join = || -> &'static Member {
        let member = Member::alone(BUDGET, Config::default()).expect("a table");
        Box::leak(Box::new(member))
    };
    let add = |devices: &Devices| {
        let store = Arc::new(RamStore::new(8192));
        devices
            .add(store, DeviceSpec::default(), None)
            .expect("a device");
    };
    pager().run_keeper(join, add)
}

extern "C" fn service(index: usize) -> ! {
    pager().run_service(index)
}

/// A thread of the program, whose pages lie between those of others.
struct Program {
    start: usize,
    thread: usize,
    random: Random,
    /// The last byte written at each address.
    written: BTreeMap<usize, u8>,
}

impl Program {
    fn touch(&self, address: usize, write: Option<u8>) -> u8 {
        let kernel = pager().kernel();
        let me = kernel.threads.thread();
        loop {
            match kernel.touch(me, address, write) {
                Ok(byte) => return byte,
                Err(Stop::Waits) => {
                    let served = kernel.threads.wait_event(Event::Page(me), Some(PATIENCE));
                    assert!(served, "nobody serves {address:#x}");
                }
                Err(stop) => panic!("{stop:?} at {address:#x}"),
            }
        }
    }

    fn read(&self, address: usize) {
        let wanted = self.written.get(&address).copied().unwrap_or(0);
        assert_eq!(self.touch(address, None), wanted, "at {address:#x}");
    }

    /// Memory that is mapped, written, read and unmapped.
    fn use_an_area(&mut self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: memory of the kernel in memory, here and below.
        let area = unsafe { pager().mmap(0, AREA * PAGE, PLAIN, flags, -1, 0) };
        let area = area.expect("mapped");
        for round in [Some(7), None] {
            for at in (area..area + AREA * PAGE).step_by(PAGE) {
                assert_eq!(self.touch(at, round), 7, "at {at:#x}");
            }
        }
        // SAFETY: as above.
        unsafe { pager().munmap(area, AREA * PAGE) }.expect("unmapped");
    }

    fn step(&mut self) {
        let page = self.random.below(PAGES) * THREADS + self.thread;
        let start = self.start + page * PAGE;
        let address = start + page % PAGE;
        match self.random.below(100) {
            0 => self.use_an_area(),
            1 => {
                // SAFETY: as above.
                unsafe { pager().madvise(start, PAGE, libc::MADV_DONTNEED) }.expect("dropped");
                self.written.remove(&address);
            }
            2..50 => self.read(address),
            _ => {
                let byte = self.random.below(256) as u8;
                self.touch(address, Some(byte));
                self.written.insert(address, byte);
            }
        }
    }

    fn run(mut self) {
        for _ in 0..OPERATIONS {
            self.step();
        }
        self.written.keys().for_each(|address| self.read(*address));
    }
}

#[test]
fn threads_side_by_side_find_what_they_wrote() {
    let control = "ebb-tree-1-1-0000000000000001".to_owned();
    pager().begin(control, Entries { keeper, service });
    pager().start_first_keeper();
    while !pager().pages() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: memory of the kernel in memory.
    let start = unsafe { pager().mmap(0, THREADS * PAGES * PAGE, PLAIN, flags, -1, 0) };
    let start = start.expect("mapped");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let program = Program {
                start,
                thread,
                random: Random::new(thread as u64),
                written: BTreeMap::new(),
            };
            scope.spawn(|| program.run());
        }
    });
    assert!(pager().served() > 100, "{}", pager().served());
    assert_eq!(pager().disagreements(), 0);
    pager().check();
}
