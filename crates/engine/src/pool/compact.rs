//! Giving memory back.

use super::Pool;
use super::arena::{State, WINDOWS};
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// Returns the memory of one emptied window beyond `keep` of them; how many bytes.
    /// An arena none of whose windows is in use goes back whole.
    pub fn give_back(&self, keep: usize) -> u64 {
        let window = {
            let mut free = lock(&self.free);
            if free.warm.len() <= keep {
                return 0;
            }
            // The one that emptied first: the last is the warmest.
            free.warm.swap_remove(0)
        };
        let (bytes, idle) = self.with(window, |arena, at| {
            (arena.give_back(at, &*self.memory), arena.is_idle())
        });
        self.bytes.fetch_sub(bytes, Relaxed);
        let mut free = lock(&self.free);
        free.cold.push(window);
        if idle {
            let number = window / WINDOWS as u32;
            let ours = |w: &u32| w / WINDOWS as u32 == number;
            // All of them must be listed: one may have been handed out a moment ago.
            if free.cold.iter().filter(|w| ours(w)).count() == WINDOWS {
                free.cold.retain(|w| !ours(w));
                free.gone.push(number);
                *lock(self.arena(window)) = None;
                self.live_arenas.fetch_sub(1, Relaxed);
            }
        }
        bytes
    }

    /// All invariants of the pool; for a pool at rest. `owner_of` says whether the entry
    /// whose number ends in the given bits names the object.
    pub fn check(&self) {
        let (mut bytes, mut data, mut objects) = (0u64, 0u64, 0u64);
        let mut holes = vec![0i64; self.states.len()];
        let free = lock(&self.free);
        let mut listed = free.warm.len() + free.cold.len();
        for number in (0..free.arenas).filter(|n| !free.gone.contains(n)) {
            for window in number * WINDOWS as u32..(number + 1) * WINDOWS as u32 {
                self.with(window, |arena, at| {
                    bytes += (arena.touched(at) * crate::PAGE_SIZE) as u64;
                    let Some(class) = arena.class_if_any(at) else {
                        assert!(free.warm.contains(&window) || free.cold.contains(&window));
                        listed -= 1;
                        return arena.check(at, None);
                    };
                    let shape = self.classes.get(class);
                    arena.check(at, Some(shape));
                    data += arena.used(at) as u64 * u64::from(shape.size);
                    objects += arena.used(at) as u64;
                    holes[class.index()] += arena.holes(at);
                });
            }
        }
        assert_eq!(listed, 0, "a window is listed free and belongs to a class");
        drop(free);
        assert_eq!(bytes, self.bytes.load(Relaxed));
        assert_eq!(data, self.data.load(Relaxed));
        assert_eq!(objects, self.objects.load(Relaxed));
        for (class, state) in self.states.iter().enumerate() {
            assert_eq!(
                holes[class],
                self.holes[class].load(Relaxed),
                "holes of class {class}"
            );
            let state = lock(state);
            if let Some(window) = state.current {
                self.with(window, |arena, at| {
                    assert_eq!(
                        (arena.state(at), arena.class(at).index()),
                        (State::Current, class)
                    );
                });
            }
            for (position, &window) in state.partial.iter().enumerate() {
                self.with(window, |arena, at| {
                    assert_eq!(arena.state(at), State::Partial(position as u32));
                    assert_eq!(arena.class(at).index(), class);
                });
            }
        }
    }
}
