//! Loom models: windows that run empty while others look for them, or squeeze them.

use super::*;

struct Zeros;

impl Memory for Zeros {
    fn give_back(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // More take long, and find what three find.
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// Both objects of a full window are freed at the same time, while its memory is given back and the
/// arena with it: who comes last finds none.
#[test]
fn loom_frees_of_a_full_window_against_give_back() {
    model(|| {
        let pool = crate::sync::Arc::new(Pool::new(1 << 20, Arc::new(Zeros), 1, false));
        let raw = || {
            let object = Object {
                codec: Codec::Raw,
                data: &[1; PAGE_SIZE],
                owner: EntryId(0),
                pages: 1,
            };
            pool.insert(Cpu(0), object).expect("room")
        };
        let handles = [raw(), raw()];
        assert_eq!(handles[0].window(), handles[1].window());
        let frees = handles.map(|handle| {
            let pool = pool.clone();
            loom::thread::spawn(move || pool.remove(handle))
        });
        pool.give_back(0);
        for free in frees {
            free.join().expect("it ends");
        }
        while pool.give_back(0) > 0 {}
        pool.check();
        assert_eq!(pool.bytes(), 0);
    });
}

/// A window is squeezed while its last object is freed and it is filled anew, with objects of the same
/// class, places and entries: no object overwrites another.
#[test]
fn loom_squeezing_against_a_window_that_is_used_again() {
    use crate::sync::{Arc, Mutex, lock};
    const LEN: usize = 3008;
    model(|| {
        let pool = Arc::new(Pool::new(1 << 20, std::sync::Arc::new(Zeros), 1, false));
        // The objects that entries name, under their lock.
        let entries = Arc::new(Mutex::new([None; 2]));
        let store = |pool: &Pool, owner: u32, byte: u8| {
            let object = Object {
                codec: Codec::Lz4,
                data: &[byte; LEN],
                owner: EntryId(owner),
                pages: 1,
            };
            Some(pool.insert(Cpu(0), object).expect("room"))
        };
        let hole = store(&pool, 0, 1);
        lock(&entries)[1] = store(&pool, 1, 2);
        hole.map(|hole| pool.remove(hole));
        let other = (pool.clone(), entries.clone());
        let user = loom::thread::spawn(move || {
            let (pool, entries) = other;
            let freed = lock(&entries)[1].take();
            freed.map(|freed| pool.remove(freed));
            for owner in 0..2 {
                let stored = store(&pool, owner, 3 + owner as u8);
                lock(&entries)[owner as usize] = stored;
            }
        });
        if let Some(victim) = pool.squeezable(Worth::Any) {
            for &(object, owner) in victim.objects().iter().rev() {
                let Some(hole) = pool.hole_below(&victim, 0, object) else {
                    break;
                };
                let mut entries = lock(&entries);
                let named = &mut entries[owner as usize];
                if *named == Some(Handle::new(victim.window, object)) {
                    *named = pool.shift(&victim, object, hole).or(*named);
                }
            }
            pool.trim(&victim);
            pool.spare(&victim);
        }
        user.join().expect("it ends");
        pool.check();
        let mut room = [0; LEN];
        for (handle, byte) in lock(&entries).iter().zip(3..) {
            let handle = handle.expect("it was stored");
            pool.read(handle, &mut room);
            assert_eq!((room[0], room[LEN - 1]), (byte, byte));
            pool.remove(handle);
        }
    });
}
