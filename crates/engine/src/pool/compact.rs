//! Choosing what to compact, and giving memory back.
//!
//! Two ways: where the holes of a class take a window's objects, a window is *emptied* into the
//! others. Where they do not, each window is *squeezed*: its last objects move into its first
//! holes, and the pages behind go back. So a class wastes less than a page a window, however many
//! classes there are and however few objects are left in them.

use super::arena::{Arena, ArenaState};
use super::class::{Class, Shape};
use super::layout::WINDOWS;
use super::{Grow, LOOKED_AT, MAX_OBJECT, OWNER_STRIDE, Object, Pool, first_of_block};
use crate::EntryId;
use crate::codec::Codec;
use crate::entries::Handle;
use crate::locks::lock;
use std::sync::atomic::Ordering::Relaxed;

/// The gain for which compaction is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Worth {
    /// More than one part in 64 of the pool's data, beyond 64 KiB: holes that are left will be filled again.
    Much,
    /// A quarter of that, however small the pool: nothing comes that would fill them.
    Some,
    /// Anything: memory is short.
    Any,
}

impl Worth {
    /// Whether holes of so many bytes are more than is left alone, in a pool with so much data.
    const fn is_met(self, holes: u64, data: u64) -> bool {
        let left_alone = match self {
            Self::Much => data / 64 + (64 << 10),
            Self::Some => data / 256,
            Self::Any => 0,
        };
        holes > left_alone
    }
}

/// Classes looked at for a window to squeeze, those with the most holes, where holes will be filled again.
const SQUEEZE_CLASSES: usize = 16;

/// A window that is to be emptied or squeezed; it takes no new objects.
pub struct Victim {
    /// The window.
    pub window: u32,
    pub(super) class: Class,
    objects: Vec<(u8, u32)>,
}

impl Victim {
    /// Its objects, each with the low bits of its owner.
    pub fn objects(&self) -> &[(u8, u32)] {
        &self.objects
    }
}

const _: () = assert!(OWNER_STRIDE.is_power_of_two());

impl Pool {
    /// Picks the emptiest window of the class with the most room in holes, such that the
    /// holes of others take its objects.
    pub fn victim(&self, worth: Worth) -> Option<Victim> {
        let free = |class: usize| {
            let shape = self.classes.get(Class(class as u16));
            let holes = self.holes(class).max(0) as u64;
            let enough = holes >= u64::from(shape.objects);
            if enough {
                holes * u64::from(shape.size)
            } else {
                0
            }
        };
        let total: u64 = (0..self.partial.len()).map(free).sum();
        if !worth.is_met(total, self.data()) {
            return None;
        }
        let mut classes: Vec<(u64, usize)> =
            (0..self.partial.len()).map(|c| (free(c), c)).collect();
        classes.retain(|&(free, _)| free > 0);
        classes.sort_unstable_by(|a, b| b.cmp(a));
        // The holes may be in windows being filled or squeezed: then it is the next class's turn.
        classes
            .iter()
            .find_map(|&(_, class)| self.victim_of(Class(class as u16)))
    }

    /// The emptiest of a class's partial windows, as far as it looks.
    fn victim_of(&self, class: Class) -> Option<Victim> {
        let mut partial = lock(&self.partial[class.index()]);
        let used = |&(_, &window): &(usize, &u32)| self.with(window, |arena, at| arena.used(at));
        let (position, &window) = partial
            .iter()
            .enumerate()
            .take(LOOKED_AT)
            .min_by_key(used)?;
        self.leave_partial(&mut partial, position);
        // A free that comes between may leave it empty with nobody to notice but `spare`.
        Some(self.drain(class, window))
    }

    /// Takes a window that is on no list, and what is in it.
    fn drain(&self, class: Class, window: u32) -> Victim {
        let is_block = self.classes.get(class).codec == Codec::Block;
        let owner = |mark: u32| if is_block { first_of_block(mark) } else { mark };
        let objects = self.with(window, |arena, at| {
            arena.set_state(at, ArenaState::Draining);
            let live = |object: u8| arena.owner(at, object).map(|mark| (object, owner(mark)));
            (0..arena.fresh(at))
                .filter_map(|object| live(object as u8))
                .collect()
        });
        Victim {
            window,
            class,
            objects,
        }
    }

    /// Picks a window that squeezing would make smaller, of the classes with the most room in
    /// holes.
    pub fn squeezable(&self, worth: Worth) -> Option<Victim> {
        let room = |class: usize| {
            let size = self.classes.get(Class(class as u16)).size;
            self.holes(class).max(0) as u64 * u64::from(size)
        };
        let mut classes: Vec<(u64, usize)> =
            (0..self.partial.len()).map(|c| (room(c), c)).collect();
        let total: u64 = classes.iter().map(|&(room, _)| room).sum();
        if !worth.is_met(total, self.data()) {
            return None;
        }
        classes.sort_unstable_by(|a, b| b.cmp(a));
        let looked_at = match worth {
            Worth::Much => SQUEEZE_CLASSES,
            Worth::Some | Worth::Any => classes.len(),
        };
        let classes = classes.iter().take(looked_at);
        classes
            .filter(|&&(room, _)| room > 0)
            .find_map(|&(_, class)| self.squeezable_of(Class(class as u16)))
    }

    fn squeezable_of(&self, class: Class) -> Option<Victim> {
        let shape = self.classes.get(class);
        let gain = |window: u32| self.with(window, |arena, at| arena.spare_pages(at, shape));
        for shard in &self.shards {
            let mut filling = lock(&shard.filling);
            if let Some(window) = filling[class.index()].take_if(|window| gain(*window) > 0) {
                return Some(self.drain(class, window));
            }
        }
        let mut partial = lock(&self.partial[class.index()]);
        let looked_at = partial.iter().enumerate().take(LOOKED_AT);
        let (gain, position) = looked_at.map(|(at, &window)| (gain(window), at)).max()?;
        if gain == 0 {
            return None;
        }
        let window = partial[position];
        self.leave_partial(&mut partial, position);
        Some(self.drain(class, window))
    }

    /// Runs `f` on a window while it is being drained. A free of its last object ends that: the window
    /// may be in use again, with the same class and objects at the same places, or its arena may be
    /// gone. It does not come back to being drained, as one thread at a time does that.
    fn while_drained<R>(
        &self,
        victim: &Victim,
        f: impl FnOnce(&mut Arena, usize, &Shape) -> R,
    ) -> Option<R> {
        let mut arena = lock(self.arena(victim.window));
        let arena = arena.as_mut()?;
        let at = victim.window as usize % WINDOWS;
        let is = (arena.state(at), arena.class_if_any(at));
        let drained = is == (ArenaState::Draining, Some(victim.class));
        drained.then(|| f(arena, at, self.classes.get(victim.class)))
    }

    /// The first hole of a window below one of its objects, from `low` on.
    pub fn hole_below(&self, victim: &Victim, low: u8, object: u8) -> Option<u8> {
        self.while_drained(victim, |arena, at, _| arena.hole_below(at, low, object))
            .flatten()
    }

    /// Moves an object of the window, which the caller keeps from being freed, into a hole; none if the
    /// window is not drained any more, as object and hole are then others.
    pub fn shift(&self, victim: &Victim, object: u8, hole: u8) -> Option<Handle> {
        self.while_drained(victim, |arena, at, shape| {
            arena.shift(at, shape, object, hole);
            Handle::new(victim.window, hole)
        })
    }

    /// Returns the memory behind a window's last object; how many bytes. Before
    /// [`Pool::spare`].
    pub fn trim(&self, victim: &Victim) -> u64 {
        let trimmed = self.while_drained(victim, |arena, at, shape| {
            arena.trim(at, shape, &*self.memory)
        });
        let (fewer, bytes) = trimmed.unwrap_or_default();
        self.holes_of(victim.class, victim.window)
            .fetch_sub(i64::from(fewer), Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
        bytes
    }

    /// Ends the draining of a window: what is left in it stays.
    pub fn spare(&self, victim: &Victim) {
        let mut partial = lock(&self.partial[victim.class.index()]);
        let emptied = self.while_drained(victim, |arena, at, shape| {
            if arena.is_full(at, shape) {
                arena.set_state(at, ArenaState::Full);
            } else {
                arena.set_state(at, ArenaState::Partial(partial.len() as u32));
                partial.push(victim.window);
            }
            arena.used(at) == 0
        });
        drop(partial);
        if emptied == Some(true) {
            self.settle(victim.class, victim.window);
        }
    }

    /// Copies an object by way of `room`, which any has, into another window of its class; none if that
    /// would take memory.
    pub fn copy_object(
        &self,
        handle: Handle,
        owner: EntryId,
        room: &mut [u8; MAX_OBJECT],
    ) -> Option<Handle> {
        let (len, codec) = self.read(handle, room);
        let shard = handle.window() as usize / WINDOWS % self.shards.len();
        let object = Object {
            codec,
            data: &room[..len],
            owner,
            pages: self.pages(handle) as u8,
        };
        self.insert_in(shard, &object, Grow::No).ok()
    }

    /// Returns the memory of one emptied window beyond `keep` of a shard; how many bytes.
    /// An arena none of whose windows is in use goes back whole.
    pub fn give_back(&self, keep: usize) -> u64 {
        // The one that emptied first: the last is the warmest.
        let take = |shard: &super::Shard| {
            let mut free = lock(&shard.free);
            (free.warm.len() > keep).then(|| free.warm.swap_remove(0))
        };
        let window = self.shards.iter().find_map(take);
        window.map_or(0, |window| self.give_back_window(window))
    }

    /// Returns the memory that windows hold which are being filled, behind what is in them: of those that
    /// had emptied and went to another class; how many bytes.
    pub fn give_back_unfilled(&self) -> u64 {
        let mut all = 0;
        for shard in &self.shards {
            let filling = lock(&shard.filling);
            for (class, window) in filling.iter().enumerate() {
                let Some(window) = *window else { continue };
                let shape = self.classes.get(Class(class as u16));
                all += self.with(window, |arena, at| {
                    arena.keep_pages(at, shape.pages(arena.fresh(at)), &*self.memory)
                });
            }
        }
        self.bytes.fetch_sub(all, Relaxed);
        all
    }

    /// Returns the memory of an emptied window that is on no list; how many bytes.
    pub(super) fn give_back_window(&self, window: u32) -> u64 {
        let (bytes, idle) = self.with(window, |arena, at| {
            (arena.give_back(at, &*self.memory), arena.is_idle())
        });
        self.bytes.fetch_sub(bytes, Relaxed);
        let mut free = lock(&self.shard_of(window).free);
        free.cold.push(window);
        if idle {
            let number = window / WINDOWS as u32;
            let ours = |w: &u32| w / WINDOWS as u32 == number;
            // All of them must be listed: one may have been handed out a moment ago.
            if free.cold.iter().filter(|w| ours(w)).count() == WINDOWS {
                free.cold.retain(|w| !ours(w));
                drop(free);
                // On no list, so nobody comes to it until its number is given out again.
                let arena = lock(self.arena(window)).take();
                let tables = arena.as_ref().map_or(0, Arena::table_bytes);
                self.tables.fetch_sub(tables, Relaxed);
                drop(arena);
                lock(&self.shard_of(window).free).gone.push(number);
            }
        }
        bytes
    }
}
