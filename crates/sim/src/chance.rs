//! Chance: every decision of a run is drawn from its seed, and each has a number.
//!
//! Outside a window of numbers nothing is out of the ordinary. So a failure can be narrowed down to the decisions
//! that it takes (`campaign`).

use crate::world::World;

/// Spreads a number over 64 bits: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

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
pub struct Stream(u64);

impl Stream {
    /// The stream of this number.
    pub fn new(seed: u64, number: u64) -> Self {
        Self(mix(seed ^ mix(number)))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// One below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() >> 8) as usize % limit.max(1)
    }

    /// Whether this is one of so many times in a hundred.
    pub fn percent(&mut self, times: usize) -> bool {
        self.below(100) < times
    }
}
