//! The keeper: registration, measuring, memory for peers.

use super::machine::Machine;
use crate::devices::device_set::DrainTarget;
use crate::keeper::give_to_peers::Gift;
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_engine::slots::ExtentList;
use ebb_engine::{Cpu, DeviceId, EntryId};
use ebb_memory_kernel::{PAGE, Stop};
use ebb_sys::paging::Kernel;
use ebb_tree::ReclaimRequest;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Half of what most of these tests have, however young.
const ANY: ReclaimRequest = ReclaimRequest {
    pages: 512,
    idle_ms: 0,
};

#[test]
fn memory_is_registered_before_the_program_can_fill_it() {
    let mut machine = Machine::new(2048);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let start = machine.mmap_unregistered(512, flags);
    let range = machine.process.lock().ranges.find(start).unwrap();
    assert!(range.attributes.registered, "more than 1 MiB at once");
    machine.write(start, 1);
    machine.evict(start);
    machine.read_all();
}

/// Pages that were there before registration are learnt from the kernel.
#[test]
fn registration_learns_which_pages_are_there() {
    let mut machine = Machine::new(2048);
    let start = machine.fill_unregistered(16, 8, 5);
    machine.process.register_new();
    assert_eq!(machine.process.lock().pages.map().resident(), 8);
    machine.evict(start);
    machine.read_all();
    machine.check();
}

/// Memory that grew in place is registered to the kernel before the pager says so. A thread that was only woken would
/// fault in vain until then.
#[test]
fn a_first_touch_of_memory_that_has_just_grown_waits_for_its_registration() {
    let mut machine = Machine::new(2048);
    let start = machine.map(16);
    let registered = |machine: &Machine, is| {
        let mut state = machine.process.lock();
        let end = start + 16 * PAGE;
        state.ranges.change(start, end, |a| a.registered = is);
    };
    registered(&machine, false);
    assert_eq!(machine.kernel.touch(7, start, None), Err(Stop::Waits));
    machine.serve();
    assert!(machine.kernel.waits(7), "it would only fault again");
    assert!(machine.process.base.registration.is_awaited());
    machine.process.register_new();
    assert!(!machine.process.base.registration.is_awaited());
    assert!(!machine.kernel.waits(7));
    let held = machine.is_held(start);
    assert!(!held, "nor does it count as one that waits");
    assert_eq!(machine.touch(7, start, None), 0);
    machine.check();
}

/// A thread of the pager's that waited for its own memory would wait for itself.
#[test]
fn memory_of_the_pager_in_a_hole_is_not_registered() {
    let mut machine = Machine::new(2048);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let start = machine.mmap_unregistered(64, flags);
    let (hole, end) = (start + 16 * PAGE, start + 24 * PAGE);
    machine.kernel.replace_by_own(hole, end - hole);
    machine.process.register_new();
    for i in 0..64 {
        let at = start + i * PAGE;
        let own = (hole..end).contains(&at);
        assert_eq!(machine.kernel.is_registered(at), !own, "page {i}");
        assert_eq!(
            machine.process.lock().ranges.find(at).is_some(),
            !own,
            "page {i}"
        );
    }
    machine.write(start, 1);
    machine.write(end, 2);
    machine.evict(start);
    machine.read_all();
    machine.check();
}

/// Memory that the program unmapped without libc is managed no more, and every page beside it is.
#[test]
fn a_hole_that_nobody_told_of_is_found_at_registration() {
    let mut machine = Machine::new(2048);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let start = machine.mmap_unregistered(64, flags);
    let hole = start + 21 * PAGE..start + 24 * PAGE;
    machine
        .kernel
        .tables(|tables| tables.unmap(hole.start, hole.len()));
    machine.process.register_new();
    for at in (start..).step_by(PAGE).take(64) {
        let managed = machine.process.lock().ranges.find(at).is_some();
        assert_eq!(managed, !hole.contains(&at), "{at:#x} from {start:#x}");
    }
    machine.write(start, 1);
    machine.write(hole.end, 2);
    machine.evict(start);
    machine.read_all();
    machine.check();
}

/// Memory that the program wants for a userfaultfd of its own is the pager's no more, to the kernel neither.
#[test]
fn released_memory_is_registered_no_more() {
    let mut machine = Machine::new(2048);
    let start = machine.map(64);
    (0..64).for_each(|i| machine.write(start + i * PAGE, 1));
    let part = start + 16 * PAGE..start + 32 * PAGE;
    let mut state = machine.process.lock();
    state
        .ranges
        .change(part.start, part.end, |a| a.released = true);
    assert!(state.ranges.any_unsettled());
    machine.process.release_to_program(&mut state);
    assert!(!state.ranges.any_unsettled());
    drop(state);
    for at in (start..).step_by(PAGE).take(64) {
        let is_ours = !part.contains(&at);
        assert_eq!(machine.kernel.is_registered(at), is_ours);
        assert_eq!(machine.process.lock().ranges.find(at).is_some(), is_ours);
    }
    machine.check();
}

/// A fault that was under way as memory was let go to a userfaultfd of the program's: that one serves it.
#[test]
fn a_late_fault_fills_no_memory_of_another_userfaultfd() {
    let mut machine = Machine::new(2048);
    for programs in [false, true] {
        let start = machine.map(16);
        assert_eq!(machine.kernel.touch(1, start, Some(1)), Err(Stop::Waits));
        machine
            .process
            .lock()
            .ranges
            .remove(start, start + 16 * PAGE);
        if programs {
            machine.kernel.register_for_program(start, 16 * PAGE);
        }
        machine.serve();
        // Without one, memory was extended without a call of libc's.
        assert_eq!(machine.kernel.is_present(start), !programs);
        assert!(!machine.kernel.waits(1));
    }
}

#[test]
fn a_peer_that_asks_gets_cold_memory() {
    let mut machine = Machine::new(4096);
    let start = machine.map(1024);
    for i in 0..1024 {
        machine.write(start + i * PAGE, 1 + i as u8 % 100);
    }
    machine.process.measure(&mut machine.process.lock());
    let before = machine.process.member.charged();
    machine.keeper.give_up(&mut machine.worker, ANY);
    machine.process.serve_again(&mut machine.worker);
    let after = machine.process.member.charged();
    assert!(before - after >= 400, "{before} {after}");
    machine.read_all();
    machine.check();
}

/// Pages that came just now are not given to a peer that wants idle ones, and nor is the pool instead of them.
#[test]
fn a_peer_that_asks_for_idle_memory_gets_no_other() {
    let mut machine = Machine::new(4096);
    let start = machine.map(1024);
    (0..1024).for_each(|i| machine.write(start + i * PAGE, 1 + i as u8 % 100));
    (0..256).for_each(|i| machine.evict(start + i * PAGE));
    machine.store_staged();
    machine.process.measure(&mut machine.process.lock());
    let resident = || machine.process.lock().pages.map().resident();
    let (before, pool) = (resident(), machine.process.swap.pool_bytes());
    let idle = ReclaimRequest {
        idle_ms: 1_000_000,
        ..ANY
    };
    assert_eq!(
        machine.keeper.give_up(&mut machine.worker, idle),
        Gift::Young
    );
    assert_eq!(machine.process.swap.pool_bytes(), pool);
    assert_eq!(resident(), before);
    machine.kernel.pass(Duration::from_secs(2000));
    assert_eq!(
        machine.keeper.give_up(&mut machine.worker, idle),
        Gift::Some
    );
    assert!(before - resident() >= 400);
    machine.read_all();
    machine.check();
}

/// A fault on a page whose transit the keeper ended, and memory to be registered, do not wait for the rest of what is
/// given up.
#[test]
fn what_waits_for_the_keeper_is_done_between_steps_for_peers() {
    let mut machine = Machine::new(4096);
    let out = machine.page_out();
    let start = machine.map(1024);
    (0..1024).for_each(|i| machine.write(start + i * PAGE, 1));
    machine.process.measure(&mut machine.process.lock());
    machine.parks_on_worker(7, out);
    let unregistered = machine.awaits_registration();
    machine.keeper.give_up(&mut machine.worker, ANY);
    assert!(!machine.kernel.waits(7));
    assert!(machine.kernel.is_registered(unregistered));
    machine.read_all();
}

#[test]
fn memory_that_is_not_managed_is_charged() {
    let machine = Machine::new(4096);
    let before = machine.process.lock().charge.unmanaged();
    let own = machine.kernel.reserve(256 * PAGE).unwrap();
    for i in 0..256 {
        machine.kernel.touch(1, own + i * PAGE, Some(1)).unwrap();
    }
    let mut state = machine.process.lock();
    machine.process.measure(&mut state);
    assert!(state.charge.unmanaged() >= before + 200);
}

/// A thread of the program's that calls while a page of its is in transit waits; one of ours does not.
#[test]
fn threads_of_the_pager_do_not_wait_for_transits() {
    use crate::process::outcome::RETRY;
    let mut machine = Machine::new(2048);
    let start = machine.map(4);
    machine.write(start, 1);
    machine.evict(start);
    machine.store_staged();
    let out = machine.begin_load(start);
    let state = machine.process.lock();
    let settled = machine.pager.settled(state, start, start + PAGE);
    assert_eq!(settled.err(), Some(RETRY));
    machine.set(start, out);
    machine.read_all();
    machine.check();
}

/// Memory that has room for no page of a device.
struct NoRoom;

impl DrainTarget for NoRoom {
    fn holds(&mut self, _: u64) -> u64 {
        0
    }
    fn make_room(&mut self, _: usize) -> bool {
        false
    }
}

/// A device on which a discard takes a millisecond, with that time.
#[derive(Clone, Default)]
struct SlowDiscards(Arc<AtomicU64>);

impl Store for SlowDiscards {
    fn slots(&self) -> u64 {
        100 * 512
    }
    fn write(&self, _: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        results.fill(Ok(()));
    }
    fn read(&self, _: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        results.fill(Ok(()));
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), IoError> {
        self.0.fetch_add(1, SeqCst);
        Ok(())
    }
    fn wants_discard(&self) -> bool {
        true
    }
}

/// Slots that a program freed are discarded before their device goes. Forks wait for the keeper's turn meanwhile.
#[test]
fn a_device_that_goes_is_discarded_bit_by_bit() {
    let store = SlowDiscards::default();
    let machine = Machine::without_pool(1024, store.clone());
    let process = machine.process;
    let set = &process.swap_space.devices;
    let mut all = ExtentList::new();
    for i in 0..100 {
        let owner = EntryId(i * 512);
        set.devices.allocate(Cpu(0), 512, owner, &mut all).unwrap();
    }
    for (extent, i) in all.iter().zip(0..) {
        set.devices.free(Cpu(0), EntryId(i * 512), *extent).unwrap();
    }
    set.leave_unlisted(DeviceId(0), true);
    let now = || Duration::from_secs(1) + Duration::from_millis(store.0.load(SeqCst));
    let mut turns = 0;
    while !set.devices.is_empty() {
        let began = now();
        let more = set.update(process.member, process.swap, Cpu(0), now, &mut NoRoom);
        assert!(more || set.devices.is_empty());
        let took = now() - began;
        assert!(took <= Duration::from_millis(16), "{took:?}");
        turns += 1;
    }
    assert_eq!(store.0.load(SeqCst), 100);
    assert!(turns > 6, "{turns}");
}

/// A forked child may be born into a time namespace whose clock is behind.
#[test]
fn devices_are_looked_after_by_a_clock_that_went_back() {
    let machine = Machine::new(2048);
    let process = machine.process;
    for seconds in [100, 1, 101] {
        let now = || Duration::from_secs(seconds);
        let devices = &process.swap_space.devices;
        devices.update(process.member, process.swap, Cpu(0), now, &mut NoRoom);
    }
}
