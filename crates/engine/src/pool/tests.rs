//! Cases that the tests of the whole swap seldom reach: frozen windows beside others, and the pool at
//! its limit.

use super::*;
use std::sync::atomic::Ordering::SeqCst;

struct Zeros;

impl Memory for Zeros {
    fn give_back(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

const A: Cpu = Cpu(0);

fn pool(max: u64) -> Pool {
    Pool::new(max, Arc::new(Zeros), 1, false)
}

/// `len` bytes for `owner`.
fn object(data: &[u8], owner: u32) -> Object<'_> {
    Object {
        codec: Codec::Lz4,
        data,
        owner: EntryId(owner),
        pages: 1,
    }
}

/// Stores `count` objects of `len` bytes.
fn fill(pool: &Pool, len: usize, count: u32) -> Vec<Handle> {
    let one = |owner| pool.insert(A, object(&vec![1; len], owner));
    (0..count).map(|owner| one(owner).unwrap()).collect()
}

/// Stores a batch of objects of these lengths; the handles of those that found room.
fn fill_each(pool: &Pool, lens: &[usize], handles: &mut [Option<Handle>]) -> usize {
    let data: Vec<Vec<u8>> = lens.iter().map(|&len| vec![1; len]).collect();
    let objects = data
        .iter()
        .zip(0..)
        .map(|(data, owner)| object(data, owner));
    pool.insert_each(A, objects.zip(handles))
}

/// Frees all but one of each `keep`.
fn thin(pool: &Pool, handles: &[Handle], keep: usize) {
    for (i, &handle) in handles.iter().enumerate() {
        if i % keep != 0 {
            pool.remove(handle);
        }
    }
}

/// Addresses for so many arenas.
struct Scarce(AtomicUsize);

impl Memory for Scarce {
    fn give_back(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }

    fn zeros(&self, bytes: usize) -> Option<Box<[u8]>> {
        let left = self
            .0
            .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        left.ok().map(|_| vec![0; bytes].into_boxed_slice())
    }
}

/// A program may have a limit of addresses (`ulimit -v`).
#[test]
fn without_addresses_for_an_arena_the_pool_is_full() {
    let memory = Arc::new(Scarce(AtomicUsize::new(1)));
    let pool = Pool::new(1 << 30, memory.clone(), 1, false);
    let stores = || pool.insert(A, object(&[1; 800], 7));
    let handles: Vec<Handle> = std::iter::from_fn(|| stores().ok()).collect();
    assert!(handles.len() > 1000);
    pool.check();
    memory.0.store(1, SeqCst);
    assert!(stores().is_ok(), "the arena that was refused comes later");
    for handle in handles {
        pool.remove(handle);
    }
    pool.check();
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
    assert_eq!(pool.holes(Class::fitting(Codec::Lz4, 800).index()), 0);
    assert!(pool.victim(Worth::Any).is_none() && pool.squeezable(Worth::Any).is_none());

    let others = fill(&pool, 1600, 600);
    thin(&pool, &others, 4);
    pool.check();
    let victim = pool
        .victim(Worth::Any)
        .expect("a window that is not frozen");
    assert_eq!(victim.class, Class::fitting(Codec::Lz4, 1600));
    pool.spare(&victim);
    pool.check();

    pool.thaw();
    pool.check();
    let held = pool.bytes();
    fill(&pool, 800, 800);
    let more = pool.bytes() - held;
    assert!(
        more < layout::WINDOW as u64,
        "the holes are filled again, and the window that was being filled"
    );
    pool.check();
}

/// A page of a frozen window goes back with the last object that lies in it, and its holes can be
/// filled when it is thawed.
#[test]
fn frozen_windows_hold_pages_of_live_objects_alone() {
    let pool = pool(64 << 20);
    let handles = fill(&pool, 1600, 1000);
    pool.freeze();
    let held = pool.bytes();
    // Twenty objects are eight pages, wholly or in part.
    for some in handles.chunks(20).step_by(2) {
        pool.remove_each(some.iter().copied());
    }
    assert!(pool.bytes() < held * 9 / 16, "{} of {held}", pool.bytes());
    pool.check();
    let mut room = [0; PAGE_SIZE];
    for &kept in handles.chunks(20).skip(1).step_by(2).flatten() {
        assert_eq!(pool.read(kept, &mut room).0, 1600);
        assert_eq!(room[..1600], [1; 1600]);
    }
    pool.thaw();
    pool.check();
    let held = pool.bytes();
    fill(&pool, 1600, 400);
    let more = pool.bytes() - held;
    assert!(more < 400 * 1600 / 4, "{more} bytes: the holes are used");
    pool.check();
}

/// The class with the most room has it all in the windows that two processors fill.
#[test]
fn a_class_without_a_window_to_empty_holds_up_no_other() {
    let pool = Pool::new(64 << 20, Arc::new(Zeros), 2, false);
    let class = Class::fitting(Codec::Lz4, 800);
    let objects = u32::from(pool.classes.get(class).objects);
    for cpu in [A, Cpu(1)] {
        let one = |owner| pool.insert(cpu, object(&[1; 800], owner));
        let current: Vec<Handle> = (1..objects).map(|owner| one(owner).unwrap()).collect();
        thin(&pool, &current, current.len());
    }
    assert!(pool.holes(class.index()) >= i64::from(objects));
    assert!(pool.victim(Worth::Any).is_none());
    let others = fill(&pool, 1600, 600);
    thin(&pool, &others, 4);
    let victim = pool
        .victim(Worth::Any)
        .expect("a window of the other class");
    assert_eq!(victim.class, Class::fitting(Codec::Lz4, 1600));
    pool.spare(&victim);
    pool.check();
}

/// At the limit a fresh window becomes current and cannot have a page. Its successor must not leave it
/// among the windows with memory to give back, which would wait behind it.
#[test]
fn a_window_that_was_never_touched_is_cold() {
    let pool = pool(64 << 20);
    let shape = *pool.classes.get(Class::fitting(Codec::Lz4, 1600));
    let full = fill(&pool, 1600, u32::from(shape.objects));
    let emptied = fill(&pool, 800, 256);
    pool.set_max(pool.bytes());
    let one = || pool.insert(A, object(&[2; 1600], 9));
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

/// The classes of a batch lie in several arenas, at a limit that some of them reach. Objects that find
/// room are stored, and once there is room again, the others alone.
#[test]
fn a_batch_takes_what_room_there_is() {
    let pool = pool(64 << 20);
    // So that the windows of the second class are in another arena than those of the first.
    let far = fill(&pool, 3840, WINDOWS as u32 * 64);
    let lens = [800, 3840, 1600, 800, 2400, 3840, 800, 1600];
    fill(&pool, 800, 3);
    pool.set_max(pool.bytes());
    let mut handles = [None; 8];
    let refused = fill_each(&pool, &lens, &mut handles);
    let placed = handles;
    assert_eq!(
        refused,
        placed.iter().filter(|handle| handle.is_none()).count()
    );
    let fits = |len: usize| {
        lens.iter()
            .zip(&placed)
            .any(|(l, h)| *l == len && h.is_some())
    };
    assert!(fits(800) && !fits(1600) && !fits(2400), "{placed:?}");
    pool.check();
    thin(&pool, &far, 2);
    pool.set_max(64 << 20);
    assert_eq!(fill_each(&pool, &lens, &mut handles), 0);
    let stays =
        |(before, after): (&Option<Handle>, &Option<Handle>)| before.is_none() || before == after;
    assert!(placed.iter().zip(&handles).all(stays));
    pool.check();
    for (handle, owner) in handles.iter().flatten().zip(0..) {
        assert!(pool.names(*handle, EntryId(owner)));
    }
    // Freed together: they empty windows, and open full ones, as one by one.
    let mut all: Vec<Handle> = handles.into_iter().flatten().collect();
    all.extend(far.iter().step_by(2));
    let held = pool.usage().data;
    let bytes = pool.remove_each(all.into_iter());
    assert_eq!(pool.usage().data, held - bytes);
    assert_eq!(pool.usage().objects, 3);
    pool.check();
}

impl Pool {
    /// Leaves the pool so many arenas that it may yet make, all of them of one shard.
    pub(crate) fn leave_arenas(&self, shard: usize, arenas: u32) {
        for (i, shards) in self.shards.iter().enumerate() {
            let left = if i == shard { arenas } else { 0 };
            lock(&shards.free).arenas = self.most_arenas() - left;
        }
    }
}

/// One processor may use what others do not, down to the last window.
#[test]
fn a_shard_without_windows_takes_those_of_others() {
    let pool = Pool::new(MAX_BYTES, Arc::new(Zeros), 4, false);
    let raw = |owner| Object {
        codec: Codec::Raw,
        data: &[3; PAGE_SIZE],
        owner: EntryId(owner),
        pages: 1,
    };
    pool.insert(Cpu(1), raw(0)).expect("an arena of its own");
    pool.leave_arenas(3, 1);
    // The rest of one arena, and another one.
    let window = u32::from(
        pool.classes
            .get(Class::fitting(Codec::Raw, PAGE_SIZE))
            .objects,
    );
    let left = (2 * WINDOWS as u32 - 1) * window;
    assert!(pool.has_room());
    for owner in 1..=left {
        assert!(pool.insert(A, raw(owner)).is_ok(), "{owner} of {left}");
    }
    assert_eq!(pool.insert(A, raw(0)), Err(Full));
    assert!(!pool.has_room(), "though it holds less than it may");
    assert!(pool.insert(Cpu(1), raw(0)).is_ok(), "its window has room");
}

/// The squeezed window runs empty and is filled anew before an object that was looked at moves: another
/// object lies at its place then, and another in the hole.
#[test]
fn a_window_that_is_used_again_is_not_squeezed() {
    let pool = pool(64 << 20);
    let two = |byte: u8| -> Vec<Handle> {
        let one = |owner| pool.insert(A, object(&[byte; 3008], owner)).unwrap();
        (0..2).map(one).collect()
    };
    let before = two(1);
    pool.remove(before[0]);
    let victim = pool.squeezable(Worth::Any).expect("a page to gain");
    let hole = pool.hole_below(&victim, 0, 1).expect("what was freed");
    pool.remove(before[1]);
    let after = two(2);
    assert_eq!(after, before, "the same places of the same window");
    assert_eq!(pool.shift(&victim, 1, hole), None);
    assert_eq!(pool.trim(&victim), 0);
    pool.spare(&victim);
    pool.check();
    assert_eq!(pool.remove_each(after.into_iter()), 2 * 3008);
    pool.check();
}

/// A window that has emptied goes, with its memory, to a class that fills little of it: the rest goes back.
#[test]
fn memory_that_a_class_does_not_fill_goes_back() {
    let pool = pool(64 << 20);
    for handle in fill(&pool, 800, 300) {
        pool.remove(handle);
    }
    let few = fill(&pool, 1600, 4);
    while pool.give_back(0) > 0 {}
    // The emptied window, of 256, is the few's now; the other 44 are holes of the one that was being filled.
    let pages = |objects: usize, len: usize| (objects * len).div_ceil(PAGE_SIZE) as u64;
    let held = |pages| pages * PAGE_SIZE as u64;
    assert_eq!(pool.bytes(), held(pages(256, 800) + pages(44, 800)));
    let unfilled = pages(256, 800) - pages(4, 1600);
    assert_eq!(pool.give_back_unfilled(), held(unfilled));
    assert_eq!(pool.bytes(), held(pages(4, 1600) + pages(44, 800)));
    pool.check();
    // It is filled on as before, and holds what it was given.
    let more = fill(&pool, 1600, 100);
    let mut out = [0; MAX_OBJECT];
    for &handle in few.iter().chain(&more) {
        let (len, _) = pool.read(handle, &mut out);
        assert!(len >= 1600 && out[..1600] == [1; 1600]);
    }
    assert_eq!(pool.give_back_unfilled(), 0);
    pool.check();
}
