//! What this process has charged against the tree's budget.
//!
//! Invariant: used + unmanaged ≤ charged, and Σ charged over the tree ≤ the tree's limit, up to
//! the slack of one batch a process. Charges are taken in batches, so that a fault seldom
//! touches the counter that the processes share.

use ebb_tree::Member;

/// Pages asked for at once.
const BATCH: i64 = 256;

/// The charge of this process, in pages.
#[derive(Default)]
pub struct Account {
    charged: i64,
    /// Anonymous memory of the process that the pager does not manage, as last measured.
    unmanaged: i64,
}

impl Account {
    /// Nothing charged.
    pub const fn new() -> Self {
        Self {
            charged: 0,
            unmanaged: 0,
        }
    }

    /// Pages charged.
    pub fn charged(&self) -> i64 {
        self.charged
    }

    /// How many pages more than charged are in use; negative: how many are left.
    pub fn over(&self, used: i64) -> i64 {
        used + self.unmanaged - self.charged
    }

    /// Makes sure that `extra` pages more than `used` are charged; false if the limit forbids it.
    pub fn room(&mut self, member: &Member, used: i64, extra: i64) -> bool {
        let need = self.over(used) + extra;
        if need <= 0 {
            return true;
        }
        for want in [need.max(BATCH), need] {
            if member.try_charge(want as u64) {
                self.charged += want;
                return true;
            }
        }
        false
    }

    /// Charges what is already in use, limit or not: it was measured, not asked for.
    pub fn acknowledge(&mut self, member: &Member, used: i64, measured: i64) {
        self.unmanaged = (measured - used).max(0);
        let over = self.over(used);
        if over > 0 && !self.room(member, used, 0) {
            member.charge_forced(over as u64);
            self.charged += over;
        }
    }

    /// Gives back what is charged beyond need, but for `keep` pages.
    pub fn settle(&mut self, member: &Member, used: i64, keep: i64) {
        let surplus = -self.over(used) - keep;
        if surplus > 0 {
            member.uncharge(surplus as u64);
            self.charged -= surplus;
        }
    }

    /// Charged already: what a process has when it begins to page, or a forked child's copy of its
    /// parent's charge.
    pub fn begins_with(&mut self, charged: i64) {
        self.charged = charged;
    }
}
