//! Threads that allocate, free, and move slots, hold copies and meet write errors while devices come
//! and go.

use super::*;
use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const THREADS: usize = 4;
const ENTRIES: usize = 6000;
const SLOTS: usize = 4096;
const DEVICES: usize = 4;

/// The owner of a slot that is out of service.
const BAD: u32 = u32::MAX;

/// Entries with one slot each, and who owns each slot: 0 for nobody.
struct World {
    places: Vec<StdMutex<Option<Extent>>>,
    /// Flag: the slot of an entry is a copy. Changed with its place locked.
    copies: Vec<AtomicBool>,
    owners: Vec<AtomicU32>,
    devices: OnceLock<std::sync::Weak<Devices>>,
    moved: AtomicUsize,
    reclaimed: AtomicUsize,
}

impl World {
    fn owner(&self, device: DeviceId, slot: u32) -> &AtomicU32 {
        &self.owners[device.index() * SLOTS + slot as usize]
    }

    fn own(&self, e: Extent, entry: EntryId) {
        let was = self
            .owner(e.device, e.start.0)
            .swap(entry.0 + 1, Ordering::AcqRel);
        assert_eq!(
            was, 0,
            "slot {} was given to {entry} and to another",
            e.start
        );
    }

    /// The place of an entry, which has none from now on.
    fn take(&self, entry: usize, place: &mut Option<Extent>) -> Option<Extent> {
        let extent = place.take()?;
        self.copies[entry].store(false, Relaxed);
        self.disown(extent, EntryId(entry as u32));
        Some(extent)
    }

    fn disown(&self, e: Extent, entry: EntryId) {
        let was = self.owner(e.device, e.start.0).swap(0, Ordering::AcqRel);
        assert_eq!(was, entry.0 + 1, "slot {} is not of entry {entry}", e.start);
    }
}

impl Mover for World {
    fn relocate(&self, _: Cpu, owner: EntryId, from: Extent, to: Option<Extent>) -> Moved {
        let Some(to) = to else { return Moved::NoPlace };
        // One fate for all: every entry is locked, in order, before any is changed.
        let mut places: Vec<_> = (0..u32::from(from.len))
            .map(|i| self.places[owner.index() + i as usize].lock().unwrap())
            .collect();
        let at = |e: Extent, i: usize| Extent {
            start: SlotIndex(e.start.0 + i as u32),
            len: 1,
            ..e
        };
        if places
            .iter()
            .enumerate()
            .any(|(i, place)| **place != Some(at(from, i)))
        {
            return Moved::Gone;
        }
        for (i, place) in places.iter_mut().enumerate() {
            let entry = owner.plus(i as u32);
            self.disown(at(from, i), entry);
            self.own(at(to, i), entry);
            self.copies[entry.index()].store(false, Relaxed);
            **place = Some(at(to, i));
        }
        self.moved.fetch_add(places.len(), Ordering::Relaxed);
        Moved::Yes
    }
}

impl CacheReclaim for World {
    fn reclaim(&self, owner: EntryId) -> bool {
        let Ok(mut place) = self.places[owner.index()].try_lock() else {
            return false;
        };
        if !self.copies[owner.index()].load(Relaxed) {
            return false;
        }
        let devices = self.devices.get().unwrap().upgrade().unwrap();
        let extent = self.take(owner.index(), &mut place).unwrap();
        devices.free_now(Cpu(0), owner, extent).unwrap();
        self.reclaimed.fetch_add(1, Relaxed);
        true
    }
}

/// Takes and gives back runs of its own entries, in all sizes.
fn churn(world: &World, devices: &Devices, cpu: u16, until: Instant) {
    let mut state = u64::from(cpu) + 1;
    let mut random = |limit: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % limit
    };
    let mine = ENTRIES / THREADS;
    let first = usize::from(cpu) * mine;
    let mut out = ExtentList::new();
    while Instant::now() < until {
        let pages = 1usize << random(6);
        let run = first + random(mine - pages);
        // All devices go away.
        for entry in run..run + pages {
            let mut place = world.places[entry].lock().unwrap();
            match world.take(entry, &mut place) {
                // It could not be written to. Others could, so that few devices are given up.
                Some(bad) if random(400) == 0 => {
                    world.owner(bad.device, bad.start.0).store(BAD, Relaxed);
                    devices.bad_slot(Cpu(cpu), bad.device, bad.start).unwrap();
                    devices.wrote(bad.device, FORGIVING_PAGES / 2);
                }
                Some(extent) => devices.give(Cpu(cpu), extent).unwrap(),
                None => {}
            }
        }
        if random(3) == 0 {
            continue;
        }
        out.clear();
        if devices
            .allocate(Cpu(cpu), pages as u16, EntryId(run as u32), &mut out)
            .is_ok()
        {
            // Not before: an allocation may wait for a mover that wants one of these. One that meets
            // a slot before its entry knows it lets it be; so both are set as one.
            let mut places: Vec<_> = world.places[run..run + pages]
                .iter()
                .map(|p| p.lock().unwrap())
                .collect();
            let slots = out.iter().flat_map(|e| {
                (0..u32::from(e.len)).map(|i| Extent {
                    start: SlotIndex(e.start.0 + i),
                    len: 1,
                    ..*e
                })
            });
            for (i, (slot, place)) in slots.zip(&mut places).enumerate() {
                world.own(slot, EntryId((run + i) as u32));
                **place = Some(slot);
                if random(8) == 0 {
                    world.copies[run + i].store(true, Relaxed);
                    devices
                        .set_cache_only(slot.device, slot.start, true)
                        .unwrap();
                }
            }
        }
    }
}

/// Takes devices out and puts others in.
fn replace(world: &World, devices: &Devices, until: Instant) -> usize {
    let mut replaced = 0;
    while Instant::now() < until {
        let usage = devices.usage();
        if usage.len() < DEVICES {
            let store = Arc::new(Blank {
                slots: SLOTS as u64,
                discard: replaced % 2 == 0,
                rotational: replaced % 3 == 0,
                ..Blank::default()
            });
            devices.add(store, DeviceSpec::default(), None).unwrap();
            continue;
        }
        let id = usage[replaced % usage.len()].device;
        loop {
            match devices.drain_step(Cpu(0), id, 64) {
                Ok(Drain::Moved(_)) => {}
                Ok(Drain::Done) => match devices.remove(Cpu(0), id) {
                    Ok(()) => {
                        // Its bad slots went with it.
                        let slots = (0..SLOTS as u32).map(|slot| world.owner(id, slot));
                        slots.for_each(|owner| {
                            let was = owner.swap(0, Ordering::AcqRel);
                            assert!([0, BAD].contains(&was), "a slot of entry {was} went");
                        });
                        break;
                    }
                    // An allocation that was under way came in last.
                    Err(DrainError::InUse { .. } | DrainError::Unfinished(_)) => {}
                    Err(e) => panic!("{e}"),
                },
                // Every slot seen was given back meanwhile, or the others are full.
                Err(DrainError::NoRoom { .. } | DrainError::Stuck { .. }) => break,
                Err(e) => panic!("{e}"),
            }
            if Instant::now() > until {
                break;
            }
        }
        replaced += 1;
    }
    replaced
}

/// Ends the test program if the test has not ended in time.
struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    fn new(limit: Duration) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        std::thread::spawn(move || {
            let until = Instant::now() + limit;
            while !seen.load(Ordering::Relaxed) {
                if Instant::now() > until {
                    eprintln!("a stress test hangs: ended after {limit:?}");
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self(done)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn threads_share_devices_that_come_and_go() {
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let options = Options {
        compact_used: 400,
        ..Options::default()
    };
    let devices = Arc::new(Devices::new(Arc::new(Cpus(THREADS)), options));
    let world = Arc::new(World {
        places: (0..ENTRIES).map(|_| StdMutex::new(None)).collect(),
        owners: (0..MAX_DEVICES * SLOTS)
            .map(|_| AtomicU32::new(0))
            .collect(),
        copies: (0..ENTRIES).map(|_| AtomicBool::new(false)).collect(),
        devices: OnceLock::new(),
        moved: AtomicUsize::new(0),
        reclaimed: AtomicUsize::new(0),
    });
    let _ = world.devices.set(Arc::downgrade(&devices));
    devices.set_mover(world.clone());
    devices.set_cache_reclaim(world.clone());
    for _ in 0..2 {
        devices
            .add(blank(SLOTS as u64), DeviceSpec::default(), None)
            .unwrap();
    }
    let until = Instant::now() + Duration::from_millis(1500);
    std::thread::scope(|scope| {
        let (devices, world) = (&*devices, &*world);
        for cpu in 0..THREADS as u16 {
            scope.spawn(move || churn(world, devices, cpu, until));
        }
        scope.spawn(move || {
            while Instant::now() < until {
                devices.work(Cpu(1), 8);
                std::thread::yield_now();
            }
        });
        let replacer = scope.spawn(move || replace(world, devices, until));
        assert!(replacer.join().unwrap() > 0, "no device was replaced");
    });
    assert!(world.moved.load(Ordering::Relaxed) > 0, "nothing was moved");
    assert!(world.reclaimed.load(Relaxed) > 0, "no copy made way");
    devices.check();
    // The rest, if any: copies make way for the device that is removed.
    for (entry, place) in world.places.iter().enumerate() {
        let mut place = place.lock().unwrap();
        if let Some(e) = *place {
            assert_eq!(
                devices.owner(e.device, e.start),
                Some(EntryId(entry as u32))
            );
            world.take(entry, &mut place);
            devices.give(Cpu(2), e).unwrap();
        }
    }
    while devices.work(Cpu(0), 64) > 0 {}
    devices.check();
    assert!(
        devices.usage().iter().all(|d| d.used == d.bad),
        "{:?}",
        devices.usage()
    );
}
