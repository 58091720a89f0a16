//! The lease protocol under every interleaving.

use super::*;
use loom::sync::Arc;
use loom::thread;

/// One device with its words on the heap.
struct Device {
    header: LeaseHeader,
    owner: Vec<AtomicU32>,
    fill: Vec<AtomicU32>,
    rows: Vec<AtomicU64>,
}

impl Device {
    fn new(clusters: usize) -> Arc<Self> {
        let words = crate::MAX_MEMBERS * row_words(clusters);
        let device = Self {
            header: LeaseHeader {
                reading: std::array::from_fn(|_| AtomicU64::new(0)),
                inherited: AtomicU64::new(0),
                returned: AtomicU64::new(0),
                wanted: AtomicU64::new(0),
                first_free: AtomicU32::new(0),
                touched: AtomicU32::new(0),
                free: AtomicU64::new(0),
                closed: AtomicU32::new(0),
            },
            owner: (0..clusters).map(|_| AtomicU32::new(0)).collect(),
            fill: (0..clusters).map(|_| AtomicU32::new(0)).collect(),
            rows: (0..words).map(|_| AtomicU64::new(0)).collect(),
        };
        device.leases().init();
        Arc::new(device)
    }

    fn leases(&self) -> Leases<'_> {
        Leases {
            header: &self.header,
            owner: &self.owner,
            fill: &self.fill,
            rows: &self.rows,
        }
    }
}

fn fresh() -> AtomicU64 {
    AtomicU64::new(u64::MAX)
}

/// A process that finds nothing finds something at the next attempt, or the owners of empty clusters hear
/// of it.
#[test]
fn loom_who_finds_nothing_is_heard() {
    loom::model(|| {
        let device = Device::new(1);
        assert_eq!(device.leases().acquire(0, &fresh()), Some(0));
        assert!(!device.leases().is_wanted());
        let other = {
            let device = device.clone();
            thread::spawn(move || device.leases().is_wanted() && device.leases().release(0, 0))
        };
        let seen = fresh();
        let got = device.leases().acquire(1, &seen);
        let released = other.join().unwrap();
        match (got, released) {
            (Some(_), _) => assert!(released),
            (None, true) => assert_eq!(device.leases().acquire(1, &seen), Some(0)),
            (None, false) => assert!(device.leases().is_wanted()),
        }
    });
}

/// A device is closed while somebody acquires: once it is seen idle, nobody owns it ever after.
#[test]
fn loom_closed_and_idle_stays_so() {
    loom::model(|| {
        let device = Device::new(1);
        let other = {
            let device = device.clone();
            thread::spawn(move || device.leases().acquire(1, &fresh()))
        };
        device.leases().close();
        let idle = device.leases().is_idle();
        let got = other.join().unwrap();
        assert!(!(idle && got.is_some()), "owned after it was seen idle");
        assert_eq!(device.leases().is_idle(), got.is_none());
    });
}

/// Two processes want the only cluster: one gets it, the other not, then the first gives
/// it back, and a scan in vain does not hide that.
#[test]
fn loom_one_owner() {
    loom::model(|| {
        let device = Device::new(1);
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                let seen = fresh();
                if device.leases().acquire(1, &seen).is_some() {
                    assert!(device.leases().release(1, 0));
                }
                seen
            })
        };
        let got = device.leases().acquire(0, &fresh());
        if got.is_some() {
            assert!(
                !device.leases().release(1, 0),
                "released by one who does not own it"
            );
            assert!(device.leases().release(0, 0));
        }
        let seen = other.join().unwrap();
        assert_eq!(
            device.leases().acquire(1, &seen),
            Some(0),
            "lost after everyone gave it back"
        );
    });
}

/// A parent forks and gives its cluster up. While the child reads, nobody else gets it. The grandchild
/// inherits from the child, which then stops: the bit hops from row to row under the look of a third
/// process.
#[test]
fn loom_a_read_cluster_is_never_handed_out() {
    use loom::sync::atomic::AtomicBool;
    loom::model(|| {
        let device = Device::new(1);
        let reading = Arc::new(AtomicBool::new(true));
        // Slot 3 owns it and has forked slot 2, then released it.
        assert_eq!(device.leases().acquire(3, &fresh()), Some(0));
        device.leases().inherit(3, 2);
        assert!(device.leases().release(3, 0));
        let child = {
            let (device, reading) = (device.clone(), reading.clone());
            thread::spawn(move || {
                // The hop goes against the order of the scan.
                device.leases().inherit(2, 1);
                device.leases().stop_reading(2, 0);
                reading.store(false, SeqCst);
                device.leases().stop_reading(1, 0);
            })
        };
        if device.leases().acquire(0, &fresh()).is_some() {
            assert!(!reading.load(SeqCst), "handed out under a reader");
        }
        child.join().unwrap();
        device.leases().reap(0);
        assert_eq!(device.leases().acquire(0, &fresh()), Some(0));
    });
}

/// A bit may hop from a row that a look has yet to see to one that it has seen. While any process reads,
/// the look finds a reader all the same.
#[test]
fn loom_a_look_follows_a_hop() {
    use loom::sync::atomic::AtomicBool;
    loom::model(|| {
        let device = Device::new(1);
        let reading = Arc::new(AtomicBool::new(true));
        assert_eq!(device.leases().acquire(0, &fresh()), Some(0));
        device.leases().inherit(0, 3);
        let child = {
            let (device, reading) = (device.clone(), reading.clone());
            thread::spawn(move || {
                device.leases().inherit(3, 1);
                device.leases().stop_reading(3, 0);
                reading.store(false, SeqCst);
                device.leases().stop_reading(1, 0);
            })
        };
        if !device.leases().has_readers(0, 0) {
            assert!(!reading.load(SeqCst), "a reader was overlooked");
        }
        child.join().unwrap();
        assert!(!device.leases().has_readers(0, 0));
    });
}

/// The owner was reaped. Of two that read its cluster one stops, and the other adopts it, while a third process looks
/// for one. Nobody owns it beside a reader, and it is nobody's at no instant.
#[test]
fn loom_a_reader_adopts_what_nobody_else_reads() {
    loom::model(|| {
        let device = Device::new(1);
        assert_eq!(device.leases().acquire(3, &fresh()), Some(0));
        device.leases().inherit(3, 2);
        device.leases().inherit(3, 1);
        assert_eq!(device.leases().reap(3), 1);
        let sibling = {
            let device = device.clone();
            thread::spawn(move || device.leases().stop_reading(1, 0))
        };
        let other = {
            let device = device.clone();
            thread::spawn(move || device.leases().acquire(0, &fresh()))
        };
        let adopted = device.leases().adopt(2, 0);
        if adopted {
            assert!(!device.leases().has_readers(0, 2), "owned beside a reader");
        }
        assert_eq!(other.join().unwrap(), None, "slot 2 has it");
        sibling.join().unwrap();
        assert!(adopted || device.leases().adopt(2, 0));
        assert!(!device.leases().reads(2, 0));
        assert!(device.leases().release(2, 0));
        assert_eq!(device.leases().acquire(0, &fresh()), Some(0));
    });
}

/// A reader adopts a cluster while the device is closed: once it is seen idle, nobody owns it ever after.
#[test]
fn loom_nothing_is_adopted_on_a_device_that_is_closed_and_idle() {
    loom::model(|| {
        let device = Device::new(1);
        assert_eq!(device.leases().acquire(3, &fresh()), Some(0));
        device.leases().inherit(3, 2);
        device.leases().reap(3);
        let child = {
            let device = device.clone();
            thread::spawn(move || {
                let adopted = device.leases().adopt(2, 0);
                match adopted {
                    true => assert!(device.leases().release(2, 0)),
                    false => device.leases().stop_reading(2, 0),
                }
            })
        };
        device.leases().close();
        if device.leases().is_idle() {
            assert_eq!(
                device.owner[0].load(SeqCst),
                0,
                "owned after it was seen idle"
            );
            assert!(!device.leases().adopt(2, 0));
        }
        child.join().unwrap();
        assert!(device.leases().is_idle());
    });
}

/// A cluster is frozen as long as somebody reads it. Who asked for its readers in vain hears of the last that ceases, however
/// it does: it asks again once the count is another.
#[test]
fn loom_a_reader_that_ceases_is_noticed() {
    for dies in [false, true] {
        loom::model(move || {
            let device = Device::new(1);
            assert_eq!(device.leases().acquire(0, &fresh()), Some(0));
            device.leases().inherit(0, 2);
            let reader = {
                let device = device.clone();
                thread::spawn(move || match dies {
                    true => drop(device.leases().reap(2)),
                    false => device.leases().stop_reading(2, 0),
                })
            };
            let returned = device.leases().returned();
            let in_vain = device.leases().has_readers(0, 0);
            reader.join().unwrap();
            assert!(!device.leases().has_readers(0, 0));
            assert!(
                !in_vain || device.leases().returned() != returned,
                "nobody would ask again"
            );
        });
    }
}

/// A process changes its leases while another's death is counted: slot 3 owns one of the clusters. What the first one
/// does is not lost from the count of those that are free. Where it is counted twice, the next death puts that right.
fn counted_during_a_reap(
    clusters: usize,
    before: fn(Leases<'_>),
    meanwhile: fn(Leases<'_>),
    left: u64,
    twice: u64,
) {
    loom::model(move || {
        let device = Device::new(clusters);
        before(device.leases());
        assert!(device.leases().acquire(3, &fresh()).is_some());
        let other = {
            let device = device.clone();
            thread::spawn(move || meanwhile(device.leases()))
        };
        assert_eq!(device.leases().reap(3), 1);
        other.join().unwrap();
        let free = device.leases().free();
        assert!(free == left || free == twice, "{free} where {left} are");
        device.leases().reap(3);
        assert_eq!(device.leases().free(), left);
    });
}

#[test]
fn loom_what_comes_back_during_a_reap_is_counted() {
    let before = |leases: Leases<'_>| assert_eq!(leases.acquire(1, &fresh()), Some(0));
    counted_during_a_reap(3, before, |leases| assert!(leases.release(1, 0)), 3, 4);
}

#[test]
fn loom_what_is_taken_during_a_reap_is_counted() {
    let taken = |leases: Leases<'_>| assert!(leases.acquire(1, &fresh()).is_some());
    counted_during_a_reap(2, |_| {}, taken, 1, 0);
}

/// The owner dies and is reaped while another process scans and a child of the dead one
/// still reads: handed out only after the child stopped.
#[test]
fn loom_reap_leaves_readers_alone() {
    loom::model(|| {
        let device = Device::new(2);
        assert_eq!(device.leases().acquire(3, &fresh()), Some(0));
        device.leases().inherit(3, 2);
        assert_eq!(device.leases().acquire(3, &fresh()), Some(1));
        let supervisor = {
            let device = device.clone();
            thread::spawn(move || assert_eq!(device.leases().reap(3), 2))
        };
        let seen = fresh();
        let got = device.leases().acquire(0, &seen);
        assert_ne!(got, Some(0), "slot 2 still reads it");
        supervisor.join().unwrap();
        if got.is_none() {
            assert_eq!(
                device.leases().acquire(0, &seen),
                Some(1),
                "the reap was not noticed"
            );
        }
        device.leases().stop_reading(2, 0);
        assert_eq!(device.leases().acquire(0, &fresh()), Some(0));
    });
}
