//! Fork and the pool: parent and child have the same memory, copy-on-write.
//!
//! Writing to a page of it takes a page more, wherever there is room in it. So every window is *frozen*,
//! on both sides: its objects can be read and freed. New objects go to fresh windows, which are counted
//! as they are touched. Nor do its holes count as room that compaction could fill: a page in which the
//! last object is freed goes back at once. When no relative is left, windows are thawed: what has holes
//! can be filled again.

use super::arena::ArenaState;
use super::class::Class;
use super::layout::WINDOWS;
use super::{GROUP, LEAF, Pool};
use crate::locks::lock;
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// Freezes every window that holds objects. Requires: no other thread uses the pool.
    pub fn freeze(&self) {
        for shard in &self.shards {
            lock(&shard.filling).fill(None);
        }
        for partial in &self.partial {
            lock(partial).clear();
        }
        self.sizes.forget_all();
        let mut empty = Vec::new();
        self.each_window(|window, class| {
            let (given, emptied) = self.with(window, |arena, at| {
                if arena.state(at) == ArenaState::Frozen {
                    return (0, false);
                }
                self.holes_of(class, window)
                    .fetch_sub(arena.fillable(at), Relaxed);
                let given = arena.freeze(at, self.classes.get(class), &*self.memory);
                (given, arena.used(at) == 0)
            });
            self.bytes.fetch_sub(given, Relaxed);
            if emptied {
                empty.push((class, window));
            }
        });
        for (class, window) in empty {
            self.settle(class, window);
        }
        while self.give_back(0) > 0 {}
    }

    /// Ends what [`Pool::freeze`] began. Other threads may use the pool.
    pub fn thaw(&self) {
        self.each_window(|window, class| {
            let mut partial = lock(&self.partial[class.index()]);
            // It may have run empty since, and belong to nobody or to another class.
            let Some(arena) = &mut *lock(self.arena(window)) else {
                return;
            };
            let at = window as usize % WINDOWS;
            if arena.state(at) != ArenaState::Frozen || arena.class(at) != class {
                return;
            }
            let shape = self.classes.get(class);
            let more = arena.thaw(at, shape, &*self.memory);
            self.bytes.fetch_add(more, Relaxed);
            self.holes_of(class, window)
                .fetch_add(arena.holes(at), Relaxed);
            if arena.is_full(at, shape) {
                arena.set_state(at, ArenaState::Full);
            } else {
                arena.set_state(at, ArenaState::Partial(partial.len() as u32));
                partial.push(window);
            }
        });
    }

    /// Calls `f` for every window that belongs to a class, with no lock held.
    fn each_window(&self, mut f: impl FnMut(u32, Class)) {
        let leaves = self.top.iter().enumerate();
        let leaves = leaves.filter_map(|(i, leaf)| Some((i, leaf.get()?)));
        let arenas = leaves.flat_map(|(i, leaf)| {
            let groups = leaf.iter().enumerate();
            let groups = groups.filter_map(|(k, group)| Some((k, group.get()?)));
            groups.flat_map(move |(k, group)| {
                let first = i * LEAF + k * GROUP;
                group
                    .iter()
                    .enumerate()
                    .map(move |(n, arena)| (first + n, arena))
            })
        });
        for (number, arena) in arenas {
            for at in 0..WINDOWS {
                let class = lock(arena).as_ref().and_then(|a| a.class_if_any(at));
                if let Some(class) = class {
                    f((number * WINDOWS + at) as u32, class);
                }
            }
        }
    }
}
