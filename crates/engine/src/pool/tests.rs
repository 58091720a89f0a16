//! What the tests of the whole swap seldom reach: frozen windows beside others, and the pool at its
//! limit.

use super::*;

struct Zeros;

impl Memory for Zeros {
    fn give_back(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

const A: Cpu = Cpu(0);

fn pool(max: u64) -> Pool {
    Pool::new(max, Arc::new(Zeros), 1)
}

/// Stores `count` objects of `len` bytes.
fn fill(pool: &Pool, len: usize, count: u32) -> Vec<Handle> {
    let one = |owner| pool.insert(A, Codec::Lz4, &vec![1; len], EntryId(owner));
    (0..count).map(|owner| one(owner).unwrap()).collect()
}

/// Frees all but one of each `keep`.
fn thin(pool: &Pool, handles: &[Handle], keep: usize) {
    for (i, &handle) in handles.iter().enumerate() {
        if i % keep != 0 {
            pool.remove(handle);
        }
    }
}

/// The holes of frozen windows take no objects, made before the freeze or after: those of another
/// class are compacted.
#[test]
fn frozen_holes_are_no_room() {
    let pool = pool(64 << 20);
    let frozen = fill(&pool, 800, 1000);
    thin(&pool, &frozen[..500], 10);
    pool.freeze();
    // A relative forks in its turn.
    pool.freeze();
    thin(&pool, &frozen[500..], 10);
    pool.check();
    assert_eq!(pool.holes(pool.classes.fitting(Codec::Lz4, 800).index()), 0);
    assert!(pool.victim(true).is_none() && pool.squeezable(true).is_none());

    let others = fill(&pool, 1600, 120);
    thin(&pool, &others, 4);
    pool.check();
    let victim = pool.victim(true).expect("a window that is not frozen");
    assert_eq!(victim.class, pool.classes.fitting(Codec::Lz4, 1600));
    pool.spare(&victim);
    pool.check();

    pool.thaw();
    pool.check();
    let held = pool.bytes();
    fill(&pool, 800, 800);
    let more = pool.bytes() - held;
    assert!(
        more < arena::WINDOW as u64,
        "the holes are filled again, and the window that was being filled"
    );
    pool.check();
}

/// The class with the most room has it all in the windows that two processors fill.
#[test]
fn a_class_without_a_window_to_empty_holds_up_no_other() {
    let pool = Pool::new(64 << 20, Arc::new(Zeros), 2);
    let class = pool.classes.fitting(Codec::Lz4, 800);
    let objects = u32::from(pool.classes.get(class).objects);
    for cpu in [A, Cpu(1)] {
        let one = |owner| pool.insert(cpu, Codec::Lz4, &[1; 800], EntryId(owner));
        let current: Vec<Handle> = (1..objects).map(|owner| one(owner).unwrap()).collect();
        thin(&pool, &current, current.len());
    }
    assert!(pool.holes(class.index()) >= i64::from(objects));
    assert!(pool.victim(true).is_none());
    let others = fill(&pool, 1600, 64);
    thin(&pool, &others, 4);
    let victim = pool.victim(true).expect("a window of the other class");
    assert_eq!(victim.class, pool.classes.fitting(Codec::Lz4, 1600));
    pool.spare(&victim);
    pool.check();
}

/// At the limit a fresh window becomes current and cannot have a page. What takes its place must
/// not leave it among those with memory to give back: they would wait behind it.
#[test]
fn a_window_that_was_never_touched_is_cold() {
    let pool = pool(64 << 20);
    let shape = *pool.classes.get(pool.classes.fitting(Codec::Lz4, 1600));
    let full = fill(&pool, 1600, u32::from(shape.objects));
    let emptied = fill(&pool, 800, 200);
    pool.set_max(pool.bytes());
    let one = || pool.insert(A, Codec::Lz4, &[2; 1600], EntryId(9));
    assert_eq!(one(), Err(Full));
    pool.remove(full[3]);
    assert!(one().is_ok(), "there is a hole now");
    pool.check();
    for handle in emptied {
        pool.remove(handle);
    }
    let held = pool.bytes();
    while pool.give_back(0) > 0 {}
    assert!(pool.bytes() < held);
    assert_eq!(lock(&pool.shards[0].free).warm, []);
    pool.check();
}
