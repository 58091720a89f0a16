//! Limits that can be changed while the tree runs: of the pool, and of writeback. The budget is
//! a word of the table's own.
//!
//! There is one set for the tree and one for each process; the tighter of the two holds. They lie
//! in the shared table, the supervisor writes them, and every keeper reads them each turn.

use ebb_stores::Size;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Down to which part of its limit, in percent, the pool is emptied, if nobody says otherwise.
const ACCEPT_PERCENT: u8 = 90;

/// Limits of a tree, or of one process of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most that the pool may hold, in bytes or as a share of the budget. None: as much as
    /// proves best, up to the whole budget.
    pub pool_max: Option<Size>,
    /// The pool's coldest pages go to devices when it holds a percent more than this percentage of
    /// its limit, until it holds this. For the whole tree only.
    pub accept_percent: u8,
    /// Flag: pages may go to devices.
    pub writeback: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pool_max: None,
            accept_percent: ACCEPT_PERCENT,
            writeback: true,
        }
    }
}

/// [`Limits`] in the table. All zeros: the default.
#[repr(C)]
pub(crate) struct LimitWords {
    /// 0: none. Else twice the bytes, or twice the hundredths of a percent and one.
    pool_max: AtomicU64,
    /// Low byte: the distance of the threshold from its default, modulo 256. Bit 8: no writeback.
    rest: AtomicU32,
}

impl LimitWords {
    pub fn get(&self) -> Limits {
        let pool_max = match self.pool_max.load(SeqCst) {
            0 => None,
            word if word & 1 == 0 => Some(Size::Bytes(word >> 1)),
            word => Some(Size::Share((word >> 1) as u16)),
        };
        let rest = self.rest.load(SeqCst);
        Limits {
            pool_max,
            // Another member may have written what is no percentage of a threshold.
            accept_percent: ACCEPT_PERCENT.wrapping_add(rest as u8).clamp(1, 99),
            writeback: rest >> 8 & 1 == 0,
        }
    }

    pub fn set(&self, limits: Limits) {
        let word = match limits.pool_max {
            None => 0,
            Some(Size::Bytes(bytes)) => bytes << 1,
            Some(Size::Share(hundredths)) => u64::from(hundredths) << 1 | 1,
        };
        self.pool_max.store(word, SeqCst);
        let accept = limits.accept_percent.wrapping_sub(ACCEPT_PERCENT);
        let rest = u32::from(accept) | u32::from(!limits.writeback) << 8;
        self.rest.store(rest, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_word_is_a_percentage() {
        for rest in 0..=u8::MAX {
            let words = LimitWords {
                pool_max: AtomicU64::new(u64::MAX),
                rest: AtomicU32::new(rest.into()),
            };
            assert!((1..=99).contains(&words.get().accept_percent));
        }
    }

    #[test]
    fn words_carry_everything_and_zeros_are_the_default() {
        let words = LimitWords {
            pool_max: AtomicU64::new(0),
            rest: AtomicU32::new(0),
        };
        assert_eq!(words.get(), Limits::default());
        for pool_max in [
            None,
            Some(Size::Bytes(1)),
            Some(Size::Bytes(ebb_stores::MAX_SIZE)),
            Some(Size::Share(1)),
            Some(Size::Share(10_000)),
        ] {
            for (accept_percent, writeback) in [(1, true), (99, false), (90, true)] {
                let limits = Limits {
                    pool_max,
                    accept_percent,
                    writeback,
                };
                words.set(limits);
                assert_eq!(words.get(), limits);
            }
        }
    }
}
