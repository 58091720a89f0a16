//! Windows on their way between classes: which one a class fills next, and where an emptied one goes.

use super::arena::{Arena, ArenaState};
use super::class::Class;
use super::layout::WINDOWS;
use super::{Full, LEAF, LOOKED_AT, Pool, Shard, TOP};
use crate::PAGE_SIZE;
use crate::locks::lock;
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// The current window cannot have another page: a partial one with a hole takes its place,
    /// if there is one. The caller holds the filling lock.
    #[cold]
    pub(super) fn exchange(&self, class: Class, window: u32) -> Option<u32> {
        let mut partial = lock(&self.partial[class.index()]);
        let hole = |&w: &u32| self.with(w, |arena, at| arena.has_hole(at));
        let position = partial.iter().rev().take(LOOKED_AT).position(hole)?;
        let position = partial.len() - 1 - position;
        let found = partial[position];
        self.with(found, |arena, at| arena.set_state(at, ArenaState::Current));
        let pages = self.with(window, |arena, at| {
            if arena.used(at) > 0 {
                arena.set_state(at, ArenaState::Partial(position as u32));
                return None;
            }
            self.holes_of(class, window)
                .fetch_sub(arena.holes(at), Relaxed);
            arena.unassign(at);
            Some(arena.touched(at))
        });
        if let Some(pages) = pages {
            self.leave_partial(&mut partial, position);
            drop(partial);
            let mut free = lock(&self.shard_of(window).free);
            // It may be fresh: then it has nothing to give back.
            let list = if pages > 0 {
                &mut free.warm
            } else {
                &mut free.cold
            };
            list.push(window);
        } else {
            partial[position] = window;
        }
        Some(found)
    }

    /// Takes a member out of a list of partial windows; the last one moves to its position.
    pub(super) fn leave_partial(&self, partial: &mut Vec<u32>, position: usize) {
        partial.swap_remove(position);
        if let Some(&other) = partial.get(position) {
            self.with(other, |arena, at| {
                arena.set_state(at, ArenaState::Partial(position as u32))
            });
        }
    }

    /// A window of this class with room, made current: a partial one, else a free one. Once in a
    /// window's objects, and with a large stack.
    #[inline(never)]
    pub(super) fn next_window(&self, shard: usize, class: Class) -> Result<u32, Full> {
        let mut partial = lock(&self.partial[class.index()]);
        if let Some(window) = partial.pop() {
            // Still under the list's lock: its position there must not outlive it.
            self.with(window, |arena, at| arena.set_state(at, ArenaState::Current));
            return Ok(window);
        }
        drop(partial);
        let window = self.free_window(shard)?;
        let shape = self.classes.get(class);
        let bytes = self.with(window, |arena, at| {
            arena.assign(at, class);
            // It may hold more pages, of another class, than this one ever fills.
            arena.keep_pages(at, shape.pages(shape.objects as usize), &*self.memory)
        });
        self.bytes.fetch_sub(bytes, Relaxed);
        Ok(window)
    }

    /// A window of no class: a warm one of this shard, else of another; else one that holds nothing. An
    /// arena of this shard comes before another's, so that processors share no arena while they fill
    /// theirs.
    pub(super) fn free_window(&self, shard: usize) -> Result<u32, Full> {
        let n = self.shards.len();
        let shards = || (0..n).map(|i| (shard + i) % n);
        shards()
            .find_map(|shard| lock(&self.shards[shard].free).warm.pop())
            .or_else(|| shards().find_map(|shard| self.cold_window(shard)))
            .ok_or(Full)
    }

    /// A window that holds nothing, of one of a shard's arenas or of a new one.
    pub(super) fn cold_window(&self, shard: usize) -> Option<u32> {
        let mut free = lock(&self.shards[shard].free);
        if let Some(window) = free.cold.pop() {
            return Some(window);
        }
        let number = match free.gone.pop() {
            Some(number) => number,
            None if free.arenas < self.most_arenas() => {
                free.arenas += 1;
                (free.arenas - 1) * self.shards.len() as u32 + shard as u32
            }
            None => return None,
        };
        drop(free);
        // Its windows are listed once the arena is there, for others may take them at once.
        let first = number * WINDOWS as u32;
        let Some(arena) = Arena::new(&*self.memory) else {
            // As if the pool were full: a page goes to a device, or stays.
            lock(&self.shards[shard].free).gone.push(number);
            return None;
        };
        *lock(self.arena(first)) = Some(arena);
        let others = (first + 1..first + WINDOWS as u32).rev();
        lock(&self.shards[shard].free).cold.extend(others);
        Some(first)
    }

    /// Arenas that a shard can have.
    pub(super) fn most_arenas(&self) -> u32 {
        (TOP * LEAF / self.shards.len()) as u32
    }

    /// Whether a page finds room, of whatever class it is.
    pub fn has_room(&self) -> bool {
        let has_window = |shard: &Shard| {
            let free = lock(&shard.free);
            let listed = free.warm.len() + free.cold.len() + free.gone.len();
            listed > 0 || free.arenas < self.most_arenas()
        };
        self.bytes() + PAGE_SIZE as u64 <= self.max() && self.shards.iter().any(has_window)
    }

    /// Puts a window where its fill says, after a free.
    pub(super) fn settle(&self, class: Class, window: u32) {
        let mut partial = lock(&self.partial[class.index()]);
        let mut moved = None;
        // Whether its memory is kept, if it is free now.
        let mut freed = None;
        // Another free may have come first: the window may be of no class or of another, and its arena
        // may be gone.
        if let Some(arena) = &mut *lock(self.arena(window)) {
            let at = window as usize % WINDOWS;
            let shape = self.classes.get(class);
            match (arena.state(at), arena.used(at)) {
                _ if arena.class_if_any(at) != Some(class) => {}
                (ArenaState::Current, _) => {}
                (state, 0) => {
                    if let ArenaState::Partial(position) = state {
                        moved = Some(position as usize);
                    }
                    self.holes_of(class, window)
                        .fetch_sub(arena.fillable(at), Relaxed);
                    // Squeezing may have left it no page, as freezing does.
                    freed = Some(arena.touched(at) > 0);
                    arena.unassign(at);
                }
                (ArenaState::Full, used) if used < shape.objects as usize => {
                    arena.set_state(at, ArenaState::Partial(partial.len() as u32));
                    partial.push(window);
                }
                _ => {}
            }
        }
        if let Some(position) = moved {
            self.leave_partial(&mut partial, position);
        }
        drop(partial);
        if freed.is_some() && self.live_of(class) == 0 {
            self.sizes.forget(class);
        }
        match freed {
            Some(true) => lock(&self.shard_of(window).free).warm.push(window),
            Some(false) => {
                self.give_back_window(window);
            }
            None => {}
        }
    }
}
