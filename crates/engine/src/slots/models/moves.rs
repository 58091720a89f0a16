//! Pages that move and copies that go, while their owners free them and others allocate. The entries are
//! a table behind one lock. Slots are read and written without it, as the virtual swap space does, and
//! looked at again before a slot is named.
//!
//! Each of these was broken by hand and seen to fail. A move frees the old slot of an entry that is gone
//! (`loom_a_drain_moves_pages_that_are_freed`, `..._while_others_come`). A drain leaves cursors standing
//! (`..._while_others_come`). A window is taken as it was before its owner was asked
//! (`loom_a_window_with_a_copy_is_looked_at_again`). Of a removal that does not look what is in use only
//! `loom_a_device_comes_in_the_place_of_one_that_goes` knows.

use super::*;

/// Where each entry's page is.
struct World {
    places: Mutex<[Option<Extent>; 16]>,
    devices: OnceLock<std::sync::Weak<Devices>>,
}

impl World {
    /// Entries of these devices.
    fn of(devices: &Arc<Devices>) -> Arc<Self> {
        let world = Arc::new(Self {
            places: Mutex::new([None; 16]),
            devices: OnceLock::new(),
        });
        let _ = world.devices.set(Arc::downgrade(devices));
        devices.set_mover(world.clone());
        devices.set_cache_reclaim(world.clone());
        world
    }

    /// Stores the pages of entries side by side; says whether there was room.
    fn store(&self, devices: &Devices, cpu: Cpu, pages: u16, owner: u32) -> bool {
        let Some(runs) = allocate_runs(devices, cpu, pages, owner) else {
            return false;
        };
        let mut places = lock_plain(&self.places);
        let slots = runs.iter().flat_map(|run| singles(*run));
        for (entry, slot) in (owner..).zip(slots) {
            places[entry as usize] = Some(slot);
        }
        true
    }

    /// Frees the page of an entry, wherever it is now.
    fn free(&self, devices: &Devices, cpu: Cpu, entry: u32) -> bool {
        let place = lock_plain(&self.places)[entry as usize].take();
        place.is_some_and(|place| {
            devices.free_now(cpu, EntryId(entry), place).unwrap();
            true
        })
    }

    fn place(&self, entry: u32) -> Option<Extent> {
        lock_plain(&self.places)[entry as usize]
    }

    /// The entries that have pages, each in a slot that says so, and no slot is used beside.
    fn check(&self, devices: &Devices, entries: &[u32]) {
        devices.check();
        let places = *lock_plain(&self.places);
        for (entry, place) in places.iter().enumerate() {
            assert_eq!(place.is_some(), entries.contains(&(entry as u32)));
            if let Some(place) = place {
                let owner = devices.owner(place.device, place.start);
                assert_eq!(owner, Some(EntryId(entry as u32)));
            }
        }
        assert_eq!(in_use(devices) as usize, entries.len());
    }
}

fn singles(run: Extent) -> impl Iterator<Item = Extent> {
    (0..u32::from(run.len)).map(move |i| Extent {
        start: SlotIndex(run.start.0 + i),
        len: 1,
        ..run
    })
}

impl Mover for World {
    fn relocate(&self, _: Cpu, owner: EntryId, from: Extent, to: Option<Extent>) -> Moved {
        let Some(to) = to else { return Moved::NoPlace };
        let named = |places: &[Option<Extent>; 16]| {
            singles(from)
                .enumerate()
                .all(|(i, slot)| places[owner.index() + i] == Some(slot))
        };
        if !named(&lock_plain(&self.places)) {
            return Moved::Gone;
        }
        // The transfer.
        thread::yield_now();
        let mut places = lock_plain(&self.places);
        if !named(&places) {
            return Moved::Gone;
        }
        for (i, slot) in singles(to).enumerate() {
            places[owner.index() + i] = Some(slot);
        }
        Moved::Yes
    }
}

impl CacheReclaim for World {
    fn reclaim(&self, owner: EntryId) -> bool {
        let devices = self.devices.get().unwrap().upgrade().unwrap();
        self.free(&devices, B, owner.0)
    }
}

/// Two devices, the first with room for a few pages, and pages of entries 0, 1, ... on it.
fn pages_on_the_first(pages: u16, room: usize) -> (Arc<Devices>, Arc<World>, DeviceId) {
    let devices = no_devices();
    let world = World::of(&devices);
    let first = add_small(&devices, room, 0);
    for entry in 0..u32::from(pages) {
        assert!(world.store(&devices, A, 1, entry));
    }
    add(&devices, 512, false).unwrap();
    (devices, world, first)
}

/// Drains and removes a device, in as many steps as it takes when nobody else is there.
fn finish(devices: &Devices, device: DeviceId) {
    while devices.drain_step(A, device, 4).unwrap() != Drain::Done {}
    devices.remove(A, device).unwrap();
}

#[test]
fn loom_a_drain_moves_pages_that_are_freed() {
    model(|| {
        let (devices, world, first) = pages_on_the_first(3, 3);
        let (other, entries) = (devices.clone(), world.clone());
        let thread = thread::spawn(move || assert!(entries.free(&other, B, 1)));
        // Everything that it saw may be gone meanwhile; nothing is lost in any case.
        let step = devices.drain_step(A, first, 4);
        assert!(
            matches!(step, Ok(_) | Err(DrainError::Stuck { .. })),
            "{step:?}"
        );
        thread.join().unwrap();
        finish(&devices, first);
        world.check(&devices, &[0, 2]);
    });
}

#[test]
fn loom_a_drain_moves_pages_while_others_come() {
    model(|| {
        let (devices, world, first) = pages_on_the_first(2, 4);
        let (other, entries) = (devices.clone(), world.clone());
        let thread = thread::spawn(move || {
            assert!(entries.store(&other, B, 1, 5));
            assert!(entries.free(&other, B, 0));
        });
        let step = devices.drain_step(A, first, 4);
        assert!(
            matches!(step, Ok(_) | Err(DrainError::Stuck { .. })),
            "{step:?}"
        );
        thread.join().unwrap();
        finish(&devices, first);
        world.check(&devices, &[1, 5]);
    });
}

/// Room for two pages in two places, and a third elsewhere.
fn holes() -> (Arc<Devices>, Arc<World>) {
    let devices = no_devices();
    let world = World::of(&devices);
    add_small(&devices, 4, 0);
    for entry in 0..4 {
        assert!(world.store(&devices, A, 1, entry));
    }
    for entry in [1, 3] {
        assert!(world.free(&devices, A, entry));
    }
    (devices, world)
}

#[test]
fn loom_the_runs_of_a_scattered_folio_are_freed_one_by_one() {
    model(|| {
        let (devices, world) = holes();
        let (other, entries) = (devices.clone(), world.clone());
        let thread = thread::spawn(move || {
            let stored = entries.store(&other, B, 2, 10);
            stored && entries.free(&other, B, 10) && entries.free(&other, B, 11)
        });
        // It finds a hole that the folio does not have, or has given back, or none.
        let mine = world.store(&devices, A, 1, 5);
        let theirs = thread.join().unwrap();
        assert!(mine || theirs, "one of them had what it wanted");
        world.check(&devices, if mine { &[0, 2, 5] } else { &[0, 2] });
    });
}

#[test]
fn loom_a_scattered_folio_is_drained_while_it_comes_and_goes() {
    model(|| {
        let (devices, world) = holes();
        add(&devices, 512, false).unwrap();
        let (other, entries) = (devices.clone(), world.clone());
        let thread = thread::spawn(move || {
            // Scattered over the first device, or whole on the second.
            assert!(entries.store(&other, B, 2, 10));
            assert!(entries.free(&other, B, 10));
        });
        let step = devices.drain_step(A, DeviceId(0), 4);
        assert!(
            matches!(step, Ok(_) | Err(DrainError::Stuck { .. })),
            "{step:?}"
        );
        thread.join().unwrap();
        finish(&devices, DeviceId(0));
        world.check(&devices, &[0, 2, 11]);
    });
}

#[test]
fn loom_a_compaction_meets_a_free() {
    model(|| {
        let devices = no_devices();
        let world = World::of(&devices);
        add(&devices, 1024, false).unwrap();
        // One cluster for pages, one for folios, both on their lists.
        assert!(world.store(&devices, A, 1, 0) && world.store(&devices, A, 1, 1));
        assert!(world.store(&devices, A, 4, 4));
        devices.let_cursors_go(|_| true);
        let (other, entries) = (devices.clone(), world.clone());
        let thread = thread::spawn(move || assert!(entries.free(&other, B, 1)));
        devices.work(A, 1);
        thread.join().unwrap();
        world.check(&devices, &[0, 4, 5, 6, 7]);
        while devices.work(A, 1) > 0 {}
        let whole = allocate(&devices, A, 512, 1000);
        assert!(whole.is_some(), "one of the clusters is empty");
    });
}

/// A full device, on which the pages of these entries are copies.
fn copies(entries: &[u32]) -> (Arc<Devices>, Arc<World>) {
    let devices = no_devices();
    let world = World::of(&devices);
    let id = add_small(&devices, 4, 0);
    for entry in 0..4 {
        assert!(world.store(&devices, A, 1, entry));
    }
    for &entry in entries {
        let place = world.place(entry).unwrap();
        devices.set_cache_only(id, place.start, true).unwrap();
    }
    (devices, world)
}

#[test]
fn loom_copies_are_reclaimed_while_their_owner_frees_one() {
    model(|| {
        let (devices, world) = copies(&[1, 2]);
        let (other, entries) = (devices.clone(), world.clone());
        let thread = thread::spawn(move || entries.free(&other, B, 1));
        assert!(
            world.store(&devices, A, 1, 8),
            "a copy makes way in any case"
        );
        thread.join().unwrap();
        assert!(world.place(1).is_none());
        let mut left = vec![0, 3, 8];
        left.extend(world.place(2).map(|_| 2));
        world.check(&devices, &left);
    });
}

#[test]
fn loom_copies_make_way_for_two_allocations() {
    model(|| {
        let (devices, world) = copies(&[1, 2]);
        let (other, entries) = (devices.clone(), world.clone());
        let thread = thread::spawn(move || entries.store(&other, B, 1, 9));
        let mine = world.store(&devices, A, 1, 8);
        let theirs = thread.join().unwrap();
        assert!(mine && theirs, "there were two copies");
        world.check(&devices, &[0, 3, 8, 9]);
    });
}

/// The window of a folio holds a copy and a free slot; another allocation wants one of the two.
#[test]
fn loom_a_window_with_a_copy_is_looked_at_again() {
    model(|| {
        let devices = no_devices();
        let world = World::of(&devices);
        let id = add_small(&devices, 4, 1);
        // Of the folio's order, so that its cluster is looked into for that.
        for entry in [0, 2] {
            assert!(world.store(&devices, A, 2, entry));
        }
        devices
            .set_cache_only(id, world.place(2).unwrap().start, true)
            .unwrap();
        assert!(world.free(&devices, A, 3));
        let (other, entries) = (devices.clone(), world.clone());
        let thread = thread::spawn(move || entries.store(&other, B, 1, 9));
        let mine = world.store(&devices, A, 2, 12);
        let theirs = thread.join().unwrap();
        assert!(mine || theirs, "there was room for either");
        let mut left = vec![0, 1];
        left.extend(world.place(2).map(|_| 2));
        if mine {
            left.extend([12, 13]);
        }
        if theirs {
            left.push(9);
        }
        world.check(&devices, &left);
    });
}
