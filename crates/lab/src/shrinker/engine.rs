//! The engine itself, on the simulated clock and device.

use super::world::World;
use super::{COMPRESS_NS, COMPRESSED, Counts, DECOMPRESS_NS, PAGE, POOR, Swapping};
use crate::support::sim::Machine;
use ebb_engine::codec::{Codec, Codecs, Coder, Damaged};
use ebb_engine::counters::Counters;
use ebb_engine::env::{Clock, IoError, Memory, ReadOp, Store, WriteOp};
use ebb_engine::slots::{DeviceSpec, Devices, Options as Policies};
use ebb_engine::swap::{Config, CountersRef, Env, Place, Swap};
use ebb_engine::{Cpu, EntryId, GroupId, PageBytes};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A step of the background that neither compresses nor writes.
const STEP_NS: u64 = 10_000;

/// See the module.
pub struct Ebb {
    world: Arc<World>,
    swap: Swap,
    entries: HashMap<u64, EntryId>,
    counters: Arc<Counters>,
}

impl Ebb {
    pub fn new(world: &Arc<World>, max: u64, slots: u64) -> Self {
        let machine = Arc::new(Machine { cpus: 1, nodes: 1 });
        let devices = Devices::new(machine.clone(), Policies::default());
        let store = SimStore {
            world: world.clone(),
            pages: Mutex::default(),
            slots,
        };
        devices
            .add(Arc::new(store), DeviceSpec::default(), None)
            .expect("a device of this size");
        let counters = Arc::new(Counters::default());
        let env = Env {
            clock: Arc::new(SimClock(world.clone())),
            topology: machine,
            memory: Arc::new(Clean),
            counters: CountersRef::Shared(counters.clone()),
            codecs: Arc::new(SimCodec(world.clone())),
            checksums: ebb_engine::Checksums::default(),
        };
        let config = Config {
            pool_max_bytes: max,
            accept_threshold_percent: 50,
            ..Config::default()
        };
        let swap =
            Swap::new(config, env, Some(Arc::new(devices))).expect("the settings are in range");
        Self {
            world: world.clone(),
            swap,
            entries: HashMap::new(),
            counters,
        }
    }
}

impl Swapping for Ebb {
    fn store(&mut self, group: u16, pages: &[u64]) {
        let bytes: Vec<PageBytes> = pages.iter().map(|page| content(*page)).collect();
        let bytes: Vec<&PageBytes> = bytes.iter().collect();
        let mut entries = vec![None; pages.len()];
        let stored = self
            .swap
            .store_each(Cpu(0), GroupId(group), &bytes, &mut entries);
        assert_eq!(stored, Ok(pages.len()), "the device has room for all");
        let entries = entries.into_iter().flatten();
        self.entries.extend(pages.iter().copied().zip(entries));
    }
    fn load(&mut self, page: u64) {
        let mut bytes = [0; PAGE];
        let entry = self.entries.remove(&page).expect("stored before");
        self.swap
            .load(Cpu(0), entry, &mut bytes, false)
            .expect("no fault is injected");
        assert!(bytes == content(page), "another page came back");
    }
    fn free(&mut self, page: u64) {
        let entry = self.entries.remove(&page).expect("stored before");
        self.swap.free(Cpu(0), entry, 1);
    }
    fn begin(&mut self, _: u16) {}
    fn end(&mut self, group: u16) {
        self.swap.remove_group(GroupId(group));
    }
    fn work(&mut self) -> bool {
        let before = self.world.now();
        let did = self.swap.work(Cpu(0));
        if did && self.world.now() == before {
            self.world.spend(STEP_NS);
        }
        did
    }
    fn pool_bytes(&self) -> u64 {
        self.swap.pool_bytes()
    }
    fn group_bytes(&self, group: u16) -> u64 {
        self.swap.group_pool_bytes(GroupId(group))
    }
    fn on_device(&self, page: u64) -> bool {
        let entry = self.entries.get(&page);
        entry.is_some_and(|&entry| self.swap.place(entry) == Place::Slot)
    }
    fn counts(&self) -> Counts {
        let counters = &self.counters;
        Counts {
            zswpin: counters.zswpin.get(),
            zswpout: counters.zswpout.get(),
            zswpwb: counters.zswpwb.get(),
            pool_limit_hit: counters.pool_limit_hit.get(),
            ..Counts::default()
        }
    }
}

/// A page says which it is, and so how it compresses.
fn content(page: u64) -> PageBytes {
    let mut bytes = [0; PAGE];
    bytes[..8].copy_from_slice(&page.to_le_bytes());
    bytes
}

struct SimClock(Arc<World>);

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.0.now() + 1
    }
}

struct Clean;

impl Memory for Clean {
    fn give_back(&self, _: &mut [u8]) {}
}

struct SimCodec(Arc<World>);

impl Codecs for SimCodec {
    fn coder(&self) -> Box<dyn Coder> {
        Box::new(Self(self.0.clone()))
    }
    fn coder_bytes(&self) -> usize {
        0
    }
}

impl Coder for SimCodec {
    fn compress(&mut self, _: Codec, page: &PageBytes, out: &mut [u8]) -> Option<usize> {
        self.0.spend(COMPRESS_NS);
        out[..COMPRESSED].copy_from_slice(&page[..COMPRESSED]);
        let poor = page[7] & (POOR >> 56) as u8 != 0;
        (!poor).then_some(COMPRESSED)
    }
    fn decompress(&mut self, _: Codec, data: &[u8], page: &mut PageBytes) -> Result<(), Damaged> {
        self.0.spend(DECOMPRESS_NS);
        page.fill(0);
        page[..data.len()].copy_from_slice(data);
        Ok(())
    }
}

/// Keeps of each page the lines that are not zero: all of them would be a gigabyte.
struct SimStore {
    world: Arc<World>,
    pages: Mutex<HashMap<u64, Vec<(usize, Line)>>>,
    slots: u64,
}

type Line = [u8; 64];

impl Store for SimStore {
    fn slots(&self) -> u64 {
        self.slots
    }
    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        let mut pages = self.pages.lock().expect("no panic");
        for op in ops {
            self.world.write((op.data.len() / PAGE) as u64);
            for (slot, page) in (op.slot..).zip(op.data.chunks(PAGE)) {
                let lines = page.as_chunks().0.iter().copied().enumerate();
                let lines =
                    lines.filter(|(_, line): &(usize, Line)| line.iter().any(|&byte| byte != 0));
                pages.insert(slot, lines.collect());
            }
        }
        results.fill(Ok(()));
    }
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        let pages = self.pages.lock().expect("no panic");
        for op in ops {
            self.world.read();
            op.data.fill(0);
            for (at, line) in &pages[&op.slot] {
                op.data.as_chunks_mut().0[*at] = *line;
            }
        }
        results.fill(Ok(()));
    }
}
