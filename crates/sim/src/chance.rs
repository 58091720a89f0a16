//! Chance: every decision of a run is drawn from its seed, and each has a number.
//!
//! Outside a window of numbers nothing is out of the ordinary. So a failure can be narrowed down to the decisions
//! that it takes (`campaign`).

use crate::world::World;
use ebb_engine::random::{Random, mix};

/// So many times in 65,536.
pub type Rate = u32;

impl World {
    fn draw(&self) -> (u64, u64) {
        let number = self.drawn.get();
        self.drawn.set(number + 1);
        let seed = self.seed.get();
        (
            number,
            mix(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95)),
        )
    }

    /// A number below `limit`, whatever the window.
    pub fn below(&self, limit: usize) -> usize {
        (self.draw().1 % limit as u64) as usize
    }

    /// Whether something goes wrong, which it does until the run is quiet.
    pub fn goes_wrong(&self, rate: Rate) -> bool {
        self.strikes(rate) && self.quiet_since.get() == 0
    }

    /// Whether something out of the ordinary happens.
    pub fn strikes(&self, rate: Rate) -> bool {
        let (number, drawn) = self.draw();
        let (from, to) = self.window.get();
        rate > 0
            && !self.calm.get()
            && (from..to).contains(&number)
            && ((drawn >> 16) & 0xffff) < u64::from(rate)
    }
}

/// Numbers of one thread of a program: those of others do not change them.
pub struct Stream(Random);

impl Stream {
    /// The stream of this number.
    pub fn new(seed: u64, number: u64) -> Self {
        Self(Random::new(mix(seed ^ mix(number))))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0.next()
    }

    /// One below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0.below(limit.max(1))
    }

    /// Whether this is one of so many times in a hundred.
    pub fn percent(&mut self, times: usize) -> bool {
        self.below(100) < times
    }
}
