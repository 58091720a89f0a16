//! Threads of the program that fault all the time, from a slow device, beside calls that need a moment without a
//! transit.

use super::machine::PLAIN;
use crate::simulation::{Entries, Simulated};
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_engine::random::Random;
use ebb_engine::slots::{DeviceSpec, Devices};
use ebb_memory_kernel::crowd::Crowd;
use ebb_memory_kernel::threads::{Event, Threads};
use ebb_memory_kernel::{MemoryKernel, PAGE, Stop};
use ebb_stores::RamStore;
use ebb_tree::{Codec, Config, Member};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Threads that fault, more than there are service threads.
const THREADS: usize = 4;
/// Pages that they fault in, of which the budget holds half.
const PAGES: usize = 2048;
const BUDGET: u64 = 1024;
/// The time of a read. Two service threads have a moment without any, both at once, perhaps once in a minute.
const READ: Duration = Duration::from_millis(30);
/// How long a call may take: many reads.
const PATIENCE: Duration = Duration::from_secs(6);

/// Flag: reads take their time.
static IS_SLOW: AtomicBool = AtomicBool::new(false);
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// A device whose reads take long.
struct SlowReads(RamStore);

impl Store for SlowReads {
    fn slots(&self) -> u64 {
        self.0.slots()
    }
    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        self.0.write(ops, results);
    }
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        if IS_SLOW.load(SeqCst) {
            std::thread::sleep(READ);
        }
        self.0.read(ops, results);
    }
}

fn pager() -> &'static Simulated<MemoryKernel<Crowd>> {
    static PAGER: OnceLock<&'static Simulated<MemoryKernel<Crowd>>> = OnceLock::new();
    PAGER.get_or_init(|| {
        let kernel = MemoryKernel::new(Crowd::default());
        Box::leak(Box::new(Simulated::new(kernel)))
    })
}

extern "C" fn keeper(_: usize) -> ! {
    let join = || -> &'static Member {
        let config = Config {
            codec: Codec::None,
            ..Config::default()
        };
        let member = Member::alone(BUDGET, config).expect("a table");
        Box::leak(Box::new(member))
    };
    let add = |devices: &Devices| {
        let store = Arc::new(SlowReads(RamStore::new(8192)));
        let added = devices.add(store, DeviceSpec::default(), None);
        added.expect("a device");
    };
    pager().run_keeper(join, add)
}

extern "C" fn service(index: usize) -> ! {
    pager().run_service(index)
}

fn touch(address: usize, write: Option<u8>) {
    let kernel = pager().kernel();
    let me = kernel.threads.thread();
    loop {
        match kernel.touch(me, address, write) {
            Ok(_) => return,
            Err(Stop::Waits) => {
                let woken = kernel
                    .threads
                    .wait_event(Event::Page(me), Some(10 * PATIENCE));
                assert!(woken, "nobody serves {address:#x}");
            }
            Err(stop) => panic!("{stop:?} at {address:#x}"),
        }
    }
}

fn touch_at_random(start: usize, seed: u64) {
    let mut random = Random::new(seed);
    while !IS_OVER.load(SeqCst) {
        touch(start + random.below(PAGES) * PAGE, None);
    }
}

/// Makes a call, which does not take long.
fn soon(what: &str, call: impl FnOnce()) {
    let begin = Instant::now();
    call();
    let took = begin.elapsed();
    assert!(took < PATIENCE, "{what} took {took:?}");
}

#[test]
fn forks_and_calls_have_their_moment_while_many_threads_fault() {
    let control = "ebb-tree-1-1-0000000000000002".to_owned();
    pager().begin(control, Entries { keeper, service });
    pager().start_first_keeper();
    while !pager().pages() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: memory of the kernel in memory, here and below.
    let start = unsafe { pager().mmap(0, PAGES * PAGE, PLAIN, flags, -1, 0) }.expect("mapped");
    for page in 0..PAGES {
        touch(start + page * PAGE, Some(1 + page as u8 % 100));
    }
    IS_SLOW.store(true, SeqCst);
    let threads: Vec<_> = (0..THREADS as u64)
        .map(|seed| std::thread::spawn(move || touch_at_random(start, seed)))
        .collect();
    std::thread::sleep(10 * READ);
    soon("mprotect", || {
        // SAFETY: as above.
        unsafe { pager().mprotect(start, PAGES * PAGE, libc::PROT_READ) }.expect("protected");
    });
    soon("a fork", || {
        // SAFETY: as above; both are of this thread.
        unsafe {
            assert!(pager().before_fork());
            // It failed: nobody shares anything.
            pager().after_fork_parent(Some(-1));
        }
    });
    IS_OVER.store(true, SeqCst);
    for thread in threads {
        thread.join().expect("it was served");
    }
    assert_eq!(pager().disagreements(), 0);
}
