//! Loom models: windows that run empty while others look for them.

use super::*;

struct Zeros;

impl Memory for Zeros {
    fn give_back(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

/// Both objects of a full window are freed at the same time, while its memory is given back and the
/// arena with it: who comes last finds none.
#[test]
fn loom_frees_of_a_full_window_against_give_back() {
    let mut builder = loom::model::Builder::new();
    // More take long, and find what three find.
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let pool = crate::sync::Arc::new(Pool::new(1 << 20, Arc::new(Zeros), 1, false));
        let raw = || {
            let object = Object {
                codec: Codec::Raw,
                data: &[1; PAGE_SIZE],
                owner: EntryId(0),
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
