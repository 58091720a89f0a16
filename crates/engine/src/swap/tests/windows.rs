//! The pool has no window left, though it holds less than it may.

use super::*;

/// The oldest pages make room, as where it is full: no young page goes to a device before them, and
/// none is refused.
#[test]
fn the_oldest_pages_make_room_where_windows_are_short() {
    let config = Config {
        pool_max_bytes: 64 << 20,
        ..small(CodecKind::Lz4)
    };
    let rig = rig(config, Some(20));
    let (swap, counters) = (&rig.swap, &rig.counters);
    let store = |n: u32| {
        let pages: Vec<PageBytes> = (16 * n..16 * n + 16).map(|n| page(n, 200)).collect();
        let refs: Vec<&PageBytes> = pages.iter().collect();
        swap.store(Cpu(0), GroupId(0), &refs).unwrap()
    };
    let first = store(0);
    swap.pool.leave_arenas(0, 0);
    let mut n = 1;
    while counters.zswpwb.get() < 4096 {
        store(n);
        n += 1;
    }
    let last = store(n);
    assert!(swap.pool_bytes() < 40 << 20, "an arena at most");
    assert_eq!(counters.reject_pool.get(), 0);
    assert_eq!(counters.pswpout.get(), counters.zswpwb.get());
    let place = |entry| swap.space.lock(entry).word().location();
    assert!(matches!(place(first), Location::Slot(_)));
    assert!(matches!(place(last), Location::Pool(_)));
}
