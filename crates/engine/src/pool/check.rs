//! All invariants of a pool at rest.

use super::arena::ArenaState;
use super::layout::WINDOWS;
use super::{Pool, Shard};
use crate::PAGE_SIZE;
use crate::locks::lock;
use std::sync::atomic::Ordering::Relaxed;

/// Sums over windows.
struct Sums {
    bytes: u64,
    data: u64,
    objects: u64,
    holes: Vec<i64>,
}

impl Pool {
    /// All invariants of the pool; for a pool at rest.
    pub fn check(&self) {
        let mut sums = Sums {
            bytes: 0,
            data: 0,
            objects: 0,
            holes: vec![0; self.partial.len()],
        };
        for (s, shard) in self.shards.iter().enumerate() {
            self.check_windows(s, shard, &mut sums);
            for (class, current) in lock(&shard.filling).iter().enumerate() {
                if let Some(window) = *current {
                    self.with(window, |arena, at| {
                        let is = (arena.state(at), arena.class(at).index());
                        assert_eq!(is, (ArenaState::Current, class));
                    });
                }
            }
        }
        assert_eq!(sums.bytes, self.bytes.load(Relaxed));
        assert_eq!((sums.objects, sums.data), self.live());
        for (class, partial) in self.partial.iter().enumerate() {
            assert_eq!(
                sums.holes[class],
                self.holes(class),
                "holes of class {class}"
            );
            for (position, &window) in lock(partial).iter().enumerate() {
                self.with(window, |arena, at| {
                    assert_eq!(arena.state(at), ArenaState::Partial(position as u32));
                    assert_eq!(arena.class(at).index(), class);
                });
            }
        }
    }

    /// Checks the windows of a shard's arenas, and adds them up.
    fn check_windows(&self, number: usize, shard: &Shard, sums: &mut Sums) {
        let (mut listed, numbers) = {
            let free = lock(&shard.free);
            let warm = free.warm.iter().map(|&window| (window, true));
            let cold = free.cold.iter().map(|&window| (window, false));
            let listed: Vec<(u32, bool)> = warm.chain(cold).collect();
            let numbers = (0..free.arenas).map(|k| k * self.shards.len() as u32 + number as u32);
            let numbers: Vec<u32> = numbers.filter(|n| !free.gone.contains(n)).collect();
            (listed, numbers)
        };
        for window in numbers
            .iter()
            .flat_map(|n| n * WINDOWS as u32..(n + 1) * WINDOWS as u32)
        {
            self.with(window, |arena, at| {
                sums.bytes += (arena.touched(at) * PAGE_SIZE) as u64;
                let Some(class) = arena.class_if_any(at) else {
                    let at_list = listed.iter().position(|&(w, _)| w == window);
                    let at_list = at_list.expect("a window without a class is listed");
                    let (_, warm) = listed.swap_remove(at_list);
                    assert_eq!(warm, arena.touched(at) > 0, "window {window}");
                    return arena.check(at, None);
                };
                let shape = self.classes.get(class);
                arena.check(at, Some(shape));
                sums.data += arena.used(at) as u64 * u64::from(shape.size);
                sums.objects += arena.used(at) as u64;
                sums.holes[class.index()] += arena.fillable(at);
            });
        }
        assert!(
            listed.is_empty(),
            "windows {listed:?} are listed free and belong to a class"
        );
    }
}
