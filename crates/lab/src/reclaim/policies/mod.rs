//! Policies of page replacement as plain models. Each counts the faults that it would have on a trace of
//! touches; [`best`] counts those that no policy can avoid.
//!
//! A model is told of each touch of a page, in order. The page is then in memory, whatever had to go for it.
//! Pages have numbers from 0, and a touch takes constant time on average.
//!
//! Models know neither times nor writes, threads nor processes. They read pages one by one, and free memory is
//! used to its last page: the kernel does neither.

mod best;
mod fifo;
mod generations;
mod lirs;
mod list;
mod lru;
mod s3_fifo;
mod second_chance;
mod two_lists;

#[cfg(test)]
mod tests;

pub use best::best;

use fifo::Fifo;
use generations::Generations;
use lirs::Lirs;
use lru::Lru;
use s3_fifo::S3Fifo;
use second_chance::SecondChance;
use two_lists::TwoLists;

/// A policy in a memory of a given number of pages.
pub trait Policy {
    /// A touch of a page: whether it is a fault.
    fn touch(&mut self, page: u32) -> bool;
    /// The pages in memory are no more than fit, and the lists agree.
    fn check(&self);
}

/// A policy by name, and how it is made.
pub struct Known {
    /// Name in the table.
    pub name: &'static str,
    /// Flag: the policy has to know of touches that are no faults.
    pub sees_touches: bool,
    /// Maker of the policy for pages numbered below `pages`, in a memory of `capacity` pages, one or more.
    pub new: fn(pages: usize, capacity: usize) -> Box<dyn Policy>,
}

/// All of them, in the order of the table.
pub const KNOWN: &[Known] = &[
    Known {
        name: "fifo",
        sees_touches: false,
        new: |pages, capacity| Box::new(Fifo::new(pages, capacity)),
    },
    Known {
        name: "lru",
        sees_touches: true,
        new: |pages, capacity| Box::new(Lru::new(pages, capacity)),
    },
    Known {
        name: "second chance",
        sees_touches: true,
        new: |pages, capacity| Box::new(SecondChance::new(pages, capacity)),
    },
    Known {
        name: "two lists",
        sees_touches: true,
        new: |pages, capacity| Box::new(TwoLists::new(pages, capacity)),
    },
    Known {
        name: "generations",
        sees_touches: true,
        new: |pages, capacity| Box::new(Generations::new(pages, capacity)),
    },
    Known {
        name: "S3-FIFO",
        sees_touches: true,
        new: |pages, capacity| Box::new(S3Fifo::new(pages, capacity)),
    },
    Known {
        name: "LIRS",
        sees_touches: true,
        new: |pages, capacity| Box::new(Lirs::new(pages, capacity, 100)),
    },
    Known {
        name: "LIRS, 1/10",
        sees_touches: true,
        new: |pages, capacity| Box::new(Lirs::new(pages, capacity, 10)),
    },
];
