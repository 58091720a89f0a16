//! Meanwhile another process has the lender's clusters, or another thread retires a device or discards a
//! cluster.

use super::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Counts who is asked for a copy, and gives none.
#[derive(Default)]
struct Asked(AtomicUsize);

impl CacheReclaim for Asked {
    fn reclaim(&self, _: EntryId) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }
}

/// Full is what nothing can be had of, whoever has the rest.
#[test]
fn a_file_shared_with_another_process_is_full_when_nothing_can_be_borrowed() {
    let (devices, lender) = lent(16);
    let asked = Arc::new(Asked::default());
    devices.set_cache_reclaim(asked.clone());
    let mut out = ExtentList::new();
    for i in 0..4 * 512 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    let id = out[0].device;
    for e in out.iter() {
        devices.set_cache_only(id, e.start, true).unwrap();
    }
    devices.work(A, 8);
    assert_eq!(asked.0.load(Ordering::Relaxed), 0, "there is plenty");
    // The other process takes all that is left.
    lender.free.lock().unwrap().clear();
    devices.work(A, 8);
    assert!(asked.0.load(Ordering::Relaxed) > 0);
    devices.check();
}

/// The other process has forked, and ended: nobody holds its clusters, and its child reads them.
#[test]
fn a_file_of_which_others_read_what_is_free_is_full() {
    let (devices, lender) = lent(16);
    let asked = Arc::new(Asked::default());
    devices.set_cache_reclaim(asked.clone());
    let mut out = ExtentList::new();
    for i in 0..4 * 512 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    for e in out.iter() {
        devices.set_cache_only(e.device, e.start, true).unwrap();
    }
    let free = lender.free.lock().unwrap().clone();
    lender.read.lock().unwrap().extend(free);
    let full = devices.allocate(A, 1, EntryId(10_000), &mut out);
    assert_eq!(full, Err(AllocError::Full));
    assert!(asked.0.load(Ordering::Relaxed) > 0, "copies take up room");
    devices.check();
}

/// Of a device that leaves, as many pages lack room as find none.
#[test]
fn clusters_that_others_read_are_no_room_for_a_drain() {
    struct Elsewhere;
    impl Mover for Elsewhere {
        fn relocate(&self, _: Cpu, _: EntryId, _: Extent, to: Option<Extent>) -> Moved {
            to.map_or(Moved::NoPlace, |_| Moved::Yes)
        }
    }
    let (devices, first) = one(1024, Options::default());
    devices.set_mover(Arc::new(Elsewhere));
    let mut out = ExtentList::new();
    for i in 0..100 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    let lender = Arc::new(Lent::default());
    lender.free.lock().unwrap().extend(0..4);
    lender.read.lock().unwrap().extend(0..4);
    let other = Some(lender as Arc<dyn Lender>);
    devices
        .add(blank(4 * 512), DeviceSpec::default(), other)
        .unwrap();
    let step = devices.drain_step(A, first, 64);
    assert_eq!(step, Err(DrainError::NoRoom { missing: 100 }));
    devices.check();
}

/// The process has become another user, which may not write there; nor may a child, where no lender tells
/// its slots from its parent's.
#[test]
fn a_device_that_is_only_read_stays_so_after_a_drain() {
    struct Nowhere;
    impl Mover for Nowhere {
        fn relocate(&self, _: Cpu, _: EntryId, _: Extent, _: Option<Extent>) -> Moved {
            Moved::NoPlace
        }
    }
    let by_fork = |devices: &Devices, _| devices.fork_child();
    for only_read in [by_fork, Devices::only_read] {
        let (devices, id) = one(1024, Options::default());
        devices.set_mover(Arc::new(Nowhere));
        let mut out = ExtentList::new();
        for i in 0..100 {
            devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
        }
        only_read(&devices, id);
        // There is no room at first; then there seems to be some, of which nothing is to be had.
        let step = devices.drain_step(A, id, 64);
        assert_eq!(step, Err(DrainError::NoRoom { missing: 100 }));
        let lender = Arc::new(Lent::default());
        lender.free.lock().unwrap().extend(0..4);
        lender.read.lock().unwrap().extend(0..4);
        let other = Some(lender as Arc<dyn Lender>);
        devices
            .add(blank(4 * 512), DeviceSpec::default(), other)
            .unwrap();
        let step = devices.drain_step(A, id, 64);
        assert_eq!(step, Err(DrainError::NoRoom { missing: 100 }));
        devices.readmit(id);
        let usage = devices.usage()[0];
        assert!(!usage.accepting && !usage.out && usage.errors == 0);
        let full = devices.allocate(A, 1, EntryId(1000), &mut out);
        assert_eq!(full, Err(AllocError::Full));
        devices.check();
    }
}

/// A process's spare clusters, and those that it holds empty, are for any other that finds nothing.
#[test]
fn empty_clusters_go_to_another_process_that_finds_none() {
    let lender = Arc::new(Lent::default());
    lender.free.lock().unwrap().extend((0..16).rev());
    let process = || {
        let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
        let lender = Some(lender.clone() as Arc<dyn Lender>);
        devices
            .add(blank(16 * 512), DeviceSpec::default(), lender)
            .unwrap();
        devices
    };
    let (mine, other) = (process(), process());
    let mut out = ExtentList::new();
    for i in 0..4 * 512 {
        other.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    // One page stays, and keeps its cluster.
    let stays = out[0].start.0;
    for slot in (0..4 * 512).filter(|slot| *slot != stays) {
        other.give(A, single(DeviceId(0), slot)).unwrap();
    }
    while other.work(A, 8) > 0 {}
    let kept = other.held(DeviceId(0));
    assert!(kept > 1, "some are kept ready as long as nobody wants them");
    let (mut got, mut fulls) = (0, 0);
    while fulls < 16 {
        out.clear();
        match mine.allocate(B, 1, EntryId(got), &mut out) {
            Ok(()) => got += 1,
            Err(_) => {
                fulls += 1;
                while other.work(A, 8) > 0 {}
                while mine.work(A, 8) > 0 {}
            }
        }
    }
    assert_eq!((got, other.held(DeviceId(0))), (15 * 512, 1));
    // When it has what it wants, some are kept again.
    for slot in (0..16 * 512).filter(|slot| slot / 512 != stays / 512) {
        mine.give(A, single(DeviceId(0), slot)).unwrap();
    }
    while mine.work(A, 8) > 0 {}
    assert!(mine.held(DeviceId(0)) >= 2);
    mine.check();
    other.check();
}

/// A lender whose words another process has overwritten.
struct Lying {
    answers: std::sync::Mutex<VecDeque<u32>>,
}

impl Lender for Lying {
    fn acquire(&self) -> Option<ClusterIndex> {
        self.answers.lock().unwrap().pop_front().map(ClusterIndex)
    }
    fn release(&self, cluster: ClusterIndex) {
        panic!("cluster {cluster} goes to others");
    }
    fn has_readers(&self, _: ClusterIndex) -> bool {
        false
    }
    fn returned(&self) -> u64 {
        0
    }
    fn stop_reading(&self, _: ClusterIndex) {}
    fn adopt(&self, _: ClusterIndex) -> bool {
        false
    }
    fn free_clusters(&self) -> u64 {
        u64::MAX
    }
    fn is_wanted(&self) -> bool {
        false
    }
}

/// A cluster lent twice, or one that there is not, is a refusal; what is held stays as it is.
#[test]
fn wrong_words_of_a_lender_are_refused() {
    for child in [false, true] {
        let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
        let answers = VecDeque::from([0]);
        let lender = Arc::new(Lying {
            answers: answers.into(),
        });
        let spec = DeviceSpec::default();
        let id = devices
            .add(blank(4 * 512), spec, Some(lender.clone()))
            .unwrap();
        let mut out = ExtentList::new();
        devices.allocate(A, 300, EntryId(0), &mut out).unwrap();
        if child {
            devices.fork_child();
        }
        let wrong = [0, 4, 0, u32::MAX, 0, 1 << 23];
        lender.answers.lock().unwrap().extend(wrong);
        let free = devices.free_slots(&devices.device(id).unwrap());
        assert!(free <= 5 * 512, "{free} slots of 4 clusters");
        while !lender.answers.lock().unwrap().is_empty() {
            let got = devices.allocate(A, 512, EntryId(1000), &mut out);
            assert_eq!(got, Err(AllocError::Full));
            devices.work(A, 8);
            devices.check();
        }
        assert_eq!(devices.owner(id, SlotIndex(299)), Some(EntryId(299)));
        // A right one after them is taken.
        lender.answers.lock().unwrap().push_back(3);
        out.clear();
        devices.allocate(A, 512, EntryId(1000), &mut out).unwrap();
        assert_eq!(out[0].start, SlotIndex(3 * 512));
        devices.check();
    }
}

/// A process has freed all of a large device, which is removed then. Each discard is a call of the system, and a fork
/// waits for all that one attempt does.
#[test]
fn a_removal_discards_a_few_clusters_at_a_time() {
    for accepts in [false, true] {
        let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
        let lender = Arc::new(Lent::default());
        lender.free.lock().unwrap().extend(0..64);
        let store = Arc::new(Blank {
            slots: 64 * 512,
            discard: true,
            ..Blank::default()
        });
        let spec = DeviceSpec::default();
        let id = devices
            .add(store.clone(), spec, Some(lender.clone()))
            .unwrap();
        let mut out = ExtentList::new();
        for i in 0..64 {
            let owner = EntryId(i * 512);
            devices.allocate(A, 512, owner, &mut out).unwrap();
        }
        out.iter().for_each(|&e| devices.give_now(A, e).unwrap());
        if !accepts {
            devices.only_read(id);
        }
        let discarded = || store.discarded.lock().unwrap().len();
        let mut attempts = 0;
        loop {
            let before = discarded();
            let removed = devices.remove(A, id);
            attempts += 1;
            assert!(
                discarded() <= before + 8,
                "{} at once",
                discarded() - before
            );
            if removed.is_ok() {
                break;
            }
            assert_eq!(removed, Err(DrainError::Unfinished(id)));
            assert_eq!(devices.usage()[0].accepting, accepts, "as before");
            devices.check();
        }
        assert_eq!((attempts, discarded()), (9, 64));
        assert_eq!(lender.free.lock().unwrap().len(), 64);
    }
}

/// Retires another device when it is asked for its free clusters.
struct Retiring {
    devices: OnceLock<std::sync::Weak<Devices>>,
    other: DeviceId,
}

impl Lender for Retiring {
    fn acquire(&self) -> Option<ClusterIndex> {
        None
    }
    fn release(&self, _: ClusterIndex) {}
    fn has_readers(&self, _: ClusterIndex) -> bool {
        false
    }
    fn returned(&self) -> u64 {
        0
    }
    fn stop_reading(&self, _: ClusterIndex) {}
    fn adopt(&self, _: ClusterIndex) -> bool {
        false
    }
    fn free_clusters(&self) -> u64 {
        let devices = self.devices.get().unwrap().upgrade().unwrap();
        devices.retire(self.other);
        0
    }
    fn is_wanted(&self) -> bool {
        false
    }
}

#[test]
fn a_device_retired_while_its_drain_is_reckoned_stays_out() {
    let (devices, first) = one(1024, Options::default());
    let devices = Arc::new(devices);
    let lender = Arc::new(Retiring {
        devices: OnceLock::new(),
        other: first,
    });
    lender.devices.set(Arc::downgrade(&devices)).unwrap();
    let mut out = ExtentList::new();
    devices.allocate(A, 1, EntryId(0), &mut out).unwrap();
    devices
        .add(blank(1024), DeviceSpec::default(), Some(lender))
        .unwrap();
    assert_eq!(devices.drain_estimate(first).unwrap().lacks(), 1);
    let usage = devices.usage();
    assert_eq!((usage[0].accepting, usage[0].out), (false, true));
    // Nor does a processor go on at its cursor there.
    assert_eq!(
        devices.allocate(A, 1, EntryId(1), &mut out),
        Err(AllocError::Full)
    );
    devices.check();
}

/// A store whose first discard has another thread begin a second one, which ends when it is told.
struct Slow {
    devices: OnceLock<std::sync::Weak<Devices>>,
    calls: AtomicUsize,
    begun: (Sender<()>, std::sync::Mutex<Receiver<()>>),
    end: (Sender<()>, std::sync::Mutex<Receiver<()>>),
    other: std::sync::Mutex<Option<std::thread::JoinHandle<()>>>,
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

impl Store for Slow {
    fn slots(&self) -> u64 {
        1024
    }
    fn write(&self, _: &[WriteOp<'_>], _: &mut [Result<(), IoError>]) {}
    fn read(&self, _: &mut [ReadOp<'_>], _: &mut [Result<(), IoError>]) {}
    fn discard(&self, _: u64, _: u64) -> Result<(), IoError> {
        let wait = |on: &std::sync::Mutex<Receiver<()>>| {
            on.lock().unwrap().recv_timeout(PATIENCE).expect("in time");
        };
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => {
                let devices = self.devices.get().unwrap().upgrade().unwrap();
                let other = std::thread::spawn(move || {
                    devices.work(B, 1);
                });
                *self.other.lock().unwrap() = Some(other);
                wait(&self.begun.1);
            }
            1 => {
                self.begun.0.send(()).unwrap();
                wait(&self.end.1);
            }
            _ => {}
        }
        Ok(())
    }
    fn wants_discard(&self) -> bool {
        true
    }
}

fn pair() -> (Sender<()>, std::sync::Mutex<Receiver<()>>) {
    let (sender, receiver) = channel();
    (sender, std::sync::Mutex::new(receiver))
}

/// A cluster that goes back to the lender may be another process's at once: its place in the file
/// must not be punched out after that.
#[test]
fn a_cluster_goes_back_when_its_discard_is_done() {
    let devices = Arc::new(Devices::new(Arc::new(Cpus(2)), Options::default()));
    let lender = Arc::new(Lent::default());
    lender.free.lock().unwrap().extend([1, 0]);
    let store = Arc::new(Slow {
        devices: OnceLock::new(),
        calls: AtomicUsize::new(0),
        begun: pair(),
        end: pair(),
        other: std::sync::Mutex::default(),
    });
    store.devices.set(Arc::downgrade(&devices)).unwrap();
    let spec = DeviceSpec::default();
    let id = devices
        .add(store.clone(), spec, Some(lender.clone()))
        .unwrap();
    let mut out = ExtentList::new();
    for i in 0..2 {
        let owner = EntryId(i * 512);
        devices.allocate(A, 512, owner, &mut out).unwrap();
    }
    for &e in out.iter() {
        devices.give_now(A, e).unwrap();
    }
    let removed = devices.remove(A, id);
    let back = lender.free.lock().unwrap().len();
    store.end.0.send(()).unwrap();
    let other = store.other.lock().unwrap().take();
    other.expect("a discard").join().unwrap();
    assert_eq!(
        removed,
        Err(DrainError::InUse {
            device: id,
            used: 1
        })
    );
    assert_eq!(back, 1, "the one that was discarded");
    devices.check();
    assert_eq!(devices.remove(A, id), Ok(()));
    assert_eq!(lender.free.lock().unwrap().len(), 2);
}

/// A device that hangs keeps nobody from what others free elsewhere.
#[test]
fn a_wait_for_a_discard_ends_when_others_free_enough() {
    for pages in [1u16, 16] {
        let devices = Arc::new(Devices::new(Arc::new(Cpus(2)), Options::default()));
        let store = Arc::new(Hanging {
            begun: pair(),
            end: pair(),
        });
        let hanging = devices
            .add(store.clone(), DeviceSpec::default(), None)
            .unwrap();
        let mut out = ExtentList::new();
        devices.allocate(A, 512, EntryId(0), &mut out).unwrap();
        let other = devices
            .add(blank(512), DeviceSpec::default(), None)
            .unwrap();
        out.clear();
        devices.allocate(A, 512, EntryId(512), &mut out).unwrap();
        assert_eq!(out[0].device, other);
        let whole = Extent {
            len: 512,
            ..single(hanging, 0)
        };
        devices.give_now(A, whole).unwrap();
        let worker = std::thread::spawn({
            let devices = devices.clone();
            move || devices.work(A, 1)
        });
        store
            .begun
            .1
            .lock()
            .unwrap()
            .recv_timeout(PATIENCE)
            .unwrap();
        let waiter = std::thread::spawn({
            let devices = devices.clone();
            move || {
                let mut out = ExtentList::new();
                let got = devices.allocate(B, pages, EntryId(2000), &mut out);
                got.map(|()| out.iter().map(|e| (e.device, e.len)).collect::<Vec<_>>())
            }
        });
        // Single pages that lie apart.
        for i in 0..u32::from(pages) {
            while devices.in_flight.waiting() == 0 {
                assert!(!waiter.is_finished(), "nobody waits after {i} frees");
                std::thread::yield_now();
            }
            devices.give(A, single(other, 7 + 3 * i)).unwrap();
        }
        let got = waiter.join().unwrap().expect("there is room");
        assert!(got.iter().all(|&found| found == (other, 1)), "{got:?}");
        assert_eq!(got.len(), usize::from(pages));
        store.end.0.send(()).unwrap();
        worker.join().unwrap();
        devices.check();
    }
}

/// A store whose discard says that it has begun, and ends when it is told.
struct Hanging {
    begun: (Sender<()>, std::sync::Mutex<Receiver<()>>),
    end: (Sender<()>, std::sync::Mutex<Receiver<()>>),
}

impl Store for Hanging {
    fn slots(&self) -> u64 {
        512
    }
    fn write(&self, _: &[WriteOp<'_>], _: &mut [Result<(), IoError>]) {}
    fn read(&self, _: &mut [ReadOp<'_>], _: &mut [Result<(), IoError>]) {}
    fn discard(&self, _: u64, _: u64) -> Result<(), IoError> {
        self.begun.0.send(()).unwrap();
        let end = self.end.1.lock().unwrap();
        end.recv_timeout(PATIENCE).expect("in time");
        Ok(())
    }
    fn wants_discard(&self) -> bool {
        true
    }
}

/// A cluster may run empty in the hands of a processor, or at a rotating device's cursor.
#[test]
fn a_cluster_that_ran_empty_at_a_cursor_is_discarded_soon() {
    for rotational in [false, true] {
        let devices = Devices::new(Arc::new(Cpus(2)), Options::default());
        let store = Arc::new(Blank {
            slots: 1024,
            discard: true,
            rotational,
            ..Blank::default()
        });
        devices
            .add(store.clone(), DeviceSpec::default(), None)
            .unwrap();
        let mut out = ExtentList::new();
        devices.allocate(A, 1, EntryId(0), &mut out).unwrap();
        devices.give_now(A, out[0]).unwrap();
        assert!(!devices.wants_work(), "it stays in the processor's hands");
        devices.let_cursors_go(|_| true);
        assert!(devices.wants_work());
        assert!(devices.work(A, 8) > 0);
        assert_eq!(store.discarded.lock().unwrap().len(), 1);
        devices.check();
    }
}

/// Tells another thread to fill the devices while it moves a page, and goes on when that one waits.
struct Filled {
    devices: OnceLock<std::sync::Weak<Devices>>,
    filler: std::sync::Mutex<Option<std::thread::JoinHandle<usize>>>,
}

impl Mover for Filled {
    fn relocate(&self, _: Cpu, _: EntryId, _: Extent, _: Option<Extent>) -> Moved {
        let devices = self.devices.get().unwrap().upgrade().unwrap();
        let mut filler = self.filler.lock().unwrap();
        if filler.is_none() {
            let fills = devices.clone();
            *filler = Some(std::thread::spawn(move || {
                let mut out = ExtentList::new();
                let room = |_: &usize| fills.allocate(B, 1, EntryId(9000), &mut out).is_ok();
                (0..).take_while(room).count()
            }));
            while devices.in_flight.waiting() == 0 && !filler.as_ref().unwrap().is_finished() {
                std::thread::yield_now();
            }
        }
        Moved::Gone
    }
}

/// A compaction holds two slots for one page; the second is nobody's to miss.
#[test]
fn slots_held_by_a_compaction_make_no_allocation_fail() {
    let (devices, id) = one(1024, Options::default());
    let devices = Arc::new(devices);
    let mover = Arc::new(Filled {
        devices: OnceLock::new(),
        filler: std::sync::Mutex::default(),
    });
    mover.devices.set(Arc::downgrade(&devices)).unwrap();
    devices.set_mover(mover.clone());
    leave_a_page_in_two_clusters(&devices, id);
    devices.work(A, 8);
    let filler = mover.filler.lock().unwrap().take();
    assert_eq!(filler.expect("a compaction").join().unwrap(), 1022);
    devices.check();
}

/// A folio that cannot fit takes nothing meanwhile: copies count as room, what is in use does not.
#[test]
fn a_folio_that_cannot_fit_touches_nothing() {
    let (devices, id) = one(1024, Options::default());
    let asked = Arc::new(Asked::default());
    devices.set_cache_reclaim(asked.clone());
    let mut out = ExtentList::new();
    for i in 0..1024 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    for slot in [100, 200, 300] {
        devices.give_now(A, single(id, slot)).unwrap();
    }
    assert!(devices.may_hold(3) && !devices.may_hold(4));
    let before = devices.in_flight.seen();
    assert_eq!(devices.scatter(A, want(4), &mut out), Err(0));
    assert_eq!(devices.in_flight.seen(), before, "it gave nothing back");
    for slot in [5, 700] {
        devices.set_cache_only(id, SlotIndex(slot), true).unwrap();
    }
    assert!(devices.may_hold(5) && !devices.may_hold(6));
    // It asks for the copies then; nobody gives one up here.
    assert_eq!(devices.scatter(A, want(5), &mut out), Err(1));
    assert!(asked.0.load(Ordering::Relaxed) > 0);
    devices.check();
}

/// Clusters that a fork froze hold used slots that are in no sum over our own clusters: there is room
/// all the same where these have some.
#[test]
fn a_folio_finds_scattered_room_beside_frozen_clusters() {
    let (devices, lender) = lent(5);
    let id = DeviceId(0);
    let mut out = ExtentList::new();
    for i in 0..3 * 512 {
        devices.allocate(A, 1, EntryId(i), &mut out).unwrap();
    }
    lender.read.lock().unwrap().extend([0, 1, 2]);
    devices.fork_parent();
    let before = out.0.len();
    for i in 0..512 {
        let owner = EntryId(3 * 512 + i);
        devices.allocate(A, 1, owner, &mut out).unwrap();
    }
    lender.free.lock().unwrap().clear();
    for run in &out.0[before..] {
        if run.start.0 % 4 == 0 {
            devices.give_now(A, single(id, run.start.0)).unwrap();
        }
    }
    assert!(devices.may_hold(100), "a quarter of a cluster is free");
    let mut folio = ExtentList::new();
    devices.allocate(A, 16, EntryId(9000), &mut folio).unwrap();
    assert_eq!(folio.0.iter().map(|run| run.len).sum::<u16>(), 16);
    devices.check();
}

pub(in crate::slots) fn want(pages: u16) -> super::super::search::Request {
    super::super::request::Request {
        pages: usize::from(pages),
        order: order_of(pages),
        owner: EntryId(5000),
    }
}

/// Copies in full clusters: the one of many that holds some is found before "full" is said.
#[test]
fn copies_in_any_full_cluster_are_found_before_full_is_said() {
    let mut run = super::model::Run::new(Options::default());
    for _ in 0..2048 {
        run.allocate(A, 1);
    }
    for last in [3, 1, 2, 0] {
        run.step(super::model::Op::Cache {
            nth: last * 512 + 7,
            count: 1,
        });
        let cached = || run.entries.naive.lock().unwrap().cached.len();
        assert_eq!(cached(), 1);
        run.out.clear();
        let got = run.devices.allocate(B, 1, EntryId(run.next), &mut run.out);
        assert_eq!(got, Ok(()), "cluster {last} holds a copy");
        let owner = (run.out[0].device.0, run.out[0].start.0);
        run.entries
            .naive
            .lock()
            .unwrap()
            .owner
            .insert(owner, run.next);
        run.next += 1;
        run.check();
    }
}
