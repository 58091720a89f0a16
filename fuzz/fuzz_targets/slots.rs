//! Slots of a device that somebody else writes to, below the encryption or above: a page comes back as it was
//! stored, or as an error. And compressed bytes of any content.
#![no_main]

use ebb_engine::codec::{Codec, Codecs};
use ebb_engine::counters::Counters;
use ebb_engine::env::{Clock, IoError, Memory, ReadOp, Store, Topology, WriteOp};
use ebb_engine::slots::{DeviceSpec, Devices, Options};
use ebb_engine::swap::{CodecKind, Config, CountersRef, Env, LoadError, Swap};
use ebb_engine::{Checksums, Cpu, GroupId, Node, PAGE_SIZE, PageBytes};
use ebb_stores::RamStore;
use ebb_stores::codec::PageCodecs;
use std::cell::RefCell;
use std::sync::{Arc, Mutex};

struct Machine;

impl Clock for Machine {
    fn now_ns(&self) -> u64 {
        0
    }
}
impl Topology for Machine {
    fn cpu(&self) -> Cpu {
        Cpu(0)
    }
    fn cpus(&self) -> usize {
        1
    }
    fn node(&self, _: Cpu) -> Node {
        Node(0)
    }
}
impl Memory for Machine {
    fn give_back(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

/// A device on which somebody changes bytes after they were written.
struct Hostile {
    inner: RamStore,
    /// (position, byte) laid over each page that is read.
    changes: Mutex<Vec<(u16, u8)>>,
}

impl Store for Hostile {
    fn slots(&self) -> u64 {
        self.inner.slots()
    }
    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        self.inner.write(ops, results);
    }
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        self.inner.read(ops, results);
        for page in ops.iter_mut().flat_map(|op| op.data.chunks_mut(PAGE_SIZE)) {
            for &(at, byte) in self.changes.lock().unwrap().iter() {
                page[usize::from(at) % PAGE_SIZE] = byte;
            }
        }
    }
}

struct World {
    swap: Swap,
    device: Arc<Hostile>,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(world());
}

fn world() -> World {
    let device = Arc::new(Hostile {
        inner: RamStore::new(512),
        changes: Mutex::default(),
    });
    let devices = Devices::new(Arc::new(Machine), Options::default());
    devices
        .add(device.clone(), DeviceSpec::default(), None)
        .unwrap();
    let env = Env {
        clock: Arc::new(Machine),
        topology: Arc::new(Machine),
        memory: Arc::new(Machine),
        counters: CountersRef::Shared(Arc::new(Counters::default())),
        codecs: Arc::new(PageCodecs::default()),
        checksums: Checksums::default(),
    };
    // Without a pool each page goes to the device at once.
    let config = Config {
        codec: CodecKind::None,
        ..Config::default()
    };
    World {
        swap: Swap::new(config, env, Some(Arc::new(devices))).unwrap(),
        device,
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut page: Box<PageBytes> = Box::new([0; PAGE_SIZE]);
    let mut coder = PageCodecs::default().coder();
    for codec in [Codec::Lz4, Codec::Zstd] {
        let _ = coder.decompress(codec, input, &mut page);
    }
    let mut block = [[0; PAGE_SIZE]; 2];
    let _ = coder.decompress_block(input, &mut block);

    let (changes, content) = input.split_at(input.len().min(12));
    page.fill(0x5A);
    for (to, from) in page.iter_mut().zip(content) {
        *to = *from;
    }
    WORLD.with_borrow(|world| {
        let stored = world.swap.store(Cpu(0), GroupId(0), &[&*page]).unwrap();
        *world.device.changes.lock().unwrap() = changes
            .as_chunks::<3>()
            .0
            .iter()
            .map(|&[a, b, byte]| (u16::from_le_bytes([a, b]), byte))
            .collect();
        let mut found: Box<PageBytes> = Box::new([0; PAGE_SIZE]);
        match world.swap.load(Cpu(0), stored, &mut found, true) {
            Ok(_) => assert!(found == page, "wrong data"),
            Err(LoadError::Corrupt { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        world.swap.free(Cpu(0), stored, 1);
    });
});
