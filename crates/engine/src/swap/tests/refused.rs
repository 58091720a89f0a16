//! Devices that refuse what is written to them: others, of lower priority, have the pages.

use super::*;

/// A swap without a pool, with two devices of which the first is preferred.
fn preferring_the_first() -> Rig {
    let mut rig = rig_of(small(CodecKind::None), &[]);
    let devices = Arc::new(Devices::new(rig.world.clone(), Options::default()));
    for priority in [10, 5] {
        let device = faulty(4, &rig.world);
        let spec = DeviceSpec {
            priority: Some(priority),
            ..DeviceSpec::default()
        };
        devices.add(device.clone(), spec, None).unwrap();
        rig.devices.push(device);
    }
    let env = Env {
        clock: rig.world.clone(),
        topology: rig.world.clone(),
        memory: rig.world.clone(),
        counters: CountersRef::Shared(rig.counters.clone()),
        codecs: Arc::new(rig.codec.clone()),
        checksums: crate::Checksums::default(),
    };
    rig.swap = Swap::new(small(CodecKind::None), env, Some(devices)).unwrap();
    rig
}

/// From now on every write to a device fails so.
fn refuse(device: &Faulty, why: IoError) {
    *device.why.lock().unwrap() = why;
    device.refuses.store(true, Relaxed);
}

/// Stores a page of this seed.
fn store(swap: &Swap, seed: u32) -> Result<EntryId, StoreError> {
    let entry = swap.store(Cpu(0), GroupId(0), &[&page(seed, 300)])?;
    swap.check();
    Ok(entry)
}

fn is_intact(swap: &Swap, entry: EntryId, seed: u32) {
    let mut out = [0; PAGE_SIZE];
    let loaded = swap.load(Cpu(0), entry, &mut out, true);
    assert_eq!(loaded, Ok(Source::Device));
    assert!(out == page(seed, 300), "{seed}");
}

/// A limit of file sizes is met on a file. A block device has none, and takes what comes.
#[test]
fn a_file_that_may_not_grow_leaves_the_pages_to_other_devices() {
    let rig = preferring_the_first();
    let swap = &rig.swap;
    let early = store(swap, 0).unwrap();
    assert_eq!(rig.devices[0].writes.load(Relaxed), 1);
    refuse(&rig.devices[0], IoError::FileLimit);
    let later: Vec<EntryId> = (1..100).map(|seed| store(swap, seed).unwrap()).collect();
    assert_eq!(rig.devices[0].writes.load(Relaxed), 2, "tried again");
    assert_eq!(rig.counters.write_error.get(), 1);
    assert!(!swap.file_limited(), "another takes the pages");
    assert!(swap.is_newly_file_limited() && !swap.is_newly_file_limited());
    is_intact(swap, early, 0);
    for (entry, seed) in later.into_iter().zip(1..) {
        is_intact(swap, entry, seed);
    }
    // A drain that is taken back makes it no larger.
    let devices = swap.devices.clone().unwrap();
    devices.readmit(DeviceId(0));
    let usage = devices.usage();
    assert!(!usage[0].accepting && !usage[0].out && usage[0].errors == 0);
    assert!(usage[1].accepting);
    // Where no other device takes pages, that is why.
    devices.retire(DeviceId(1));
    assert!(swap.file_limited());
    assert_eq!(store(swap, 100), Err(StoreError::Full));
    let third = devices.add(faulty(1, &rig.world), DeviceSpec::default(), None);
    store(swap, 100).unwrap();
    assert!(third.is_ok() && !swap.file_limited());
}

/// A drain meets the limit where it moves pages to a file.
#[test]
fn a_limit_of_file_sizes_is_noted_whoever_meets_it() {
    let rig = preferring_the_first();
    let (swap, devices) = (&rig.swap, rig.swap.devices.clone().unwrap());
    let entry = store(swap, 0).unwrap();
    refuse(&rig.devices[1], IoError::FileLimit);
    let step = devices.drain_step(Cpu(0), DeviceId(0), 64);
    assert!(matches!(step, Err(DrainError::Stuck { .. })), "{step:?}");
    assert!(!devices.usage()[1].accepting);
    assert!(swap.file_limited(), "the other one is to go");
    devices.readmit(DeviceId(0));
    assert!(!swap.file_limited());
    is_intact(swap, entry, 0);
}

/// The disk under a device has changed, and takes no single pages any more.
#[test]
fn a_device_that_refuses_requests_leaves_service() {
    let rig = preferring_the_first();
    let swap = &rig.swap;
    let early = store(swap, 0).unwrap();
    refuse(&rig.devices[0], IoError::Request);
    let stored = |seed| store(swap, seed).ok().map(|entry| (entry, seed));
    let stored: Vec<_> = (1..100).filter_map(stored).collect();
    let usage = swap.devices.as_ref().unwrap().usage();
    assert_eq!((usage[0].errors, usage[0].out), (16, true));
    assert_eq!((usage[0].bad, usage[0].used), (0, 1), "slots are no worse");
    assert!(!usage[1].out);
    // Each page that found no place before was tried three times.
    assert!(stored.len() >= 99 - 16 / 3, "{}", stored.len());
    assert!(!swap.file_limited());
    is_intact(swap, early, 0);
    for (entry, seed) in stored {
        is_intact(swap, entry, seed);
    }
}
