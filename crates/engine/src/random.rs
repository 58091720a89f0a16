//! Random numbers for samples, tests, models and simulations: the same in every run of one seed. Not for secrets.

/// Spreads a number over 64 bits: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). For numbers
/// drawn in any order, each by its place.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Random numbers that are the same in every run: xorshift64* (Vigna, "An experimental
/// exploration of Marsaglia's xorshift generators, scrambled", 2016).
pub struct Random(u64);

impl Random {
    /// Of a seed; any will do.
    pub fn new(seed: u64) -> Self {
        // A multiplication by an odd constant keeps small seeds from giving small states.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// Below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}
