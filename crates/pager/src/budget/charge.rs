//! The charge of this process against the tree's budget.
//!
//! Invariant: used + unmanaged + kernel + unshared ≤ charged, and Σ charged over the tree ≤ the tree's limit. The
//! slack is one batch a process. Charges are taken in batches, so that a fault seldom touches the counter that the
//! processes share.
//!
//! *Unshared*: pages that were shared with forked relatives and are so no more. While shared they
//! were charged to each and credited to the family; a copy is charged here first, then (in
//! batches too) credit and charge go back together.

use ebb_tree::Member;

/// Pages asked for at once, at most.
const BATCH: i64 = 256;
/// Pages charged that may lie unused, at most.
const STOCK: i64 = 1024;

/// The charge of this process, in pages.
#[derive(Default)]
pub struct Charge {
    charged: i64,
    /// Anonymous memory of the process that the pager does not manage, as last measured.
    unmanaged: i64,
    /// Pages that the kernel keeps for it (`kernel_memory`), as last measured.
    kernel: i64,
    /// Pages shared no more whose credit has not been given back.
    unshared: i64,
    /// [`Member::rollups`] when the first of them was shared no more.
    since: u32,
    /// Pages dropped that may have been shared: nobody has looked.
    unmeasured_drops: i64,
}

impl Charge {
    /// Nothing charged.
    pub const fn new() -> Self {
        Self {
            charged: 0,
            unmanaged: 0,
            kernel: 0,
            unshared: 0,
            since: 0,
            unmeasured_drops: 0,
        }
    }

    /// Pages charged.
    pub fn charged(&self) -> i64 {
        self.charged
    }

    /// Pages of it that cannot be paged, as last measured: anonymous memory that is not managed, and the kernel's.
    pub fn unmanaged(&self) -> u64 {
        (self.unmanaged + self.kernel).max(0) as u64
    }

    /// Pages to ask for at once: what many small processes each have too many would be much.
    fn batch(&self) -> i64 {
        (self.charged / 32).clamp(16, BATCH)
    }

    /// Pages beyond need that may stay charged for what comes next.
    pub fn stock(&self) -> i64 {
        (self.charged / 16).clamp(32, STOCK)
    }

    /// How many pages more than charged are in use; negative: how many are left.
    pub fn over(&self, used: i64) -> i64 {
        used + self.unmanaged + self.kernel + self.unshared - self.charged
    }

    /// Makes sure that `extra` pages more than `used` are charged; false if the limit forbids it.
    pub fn reserve(&mut self, member: &Member, used: i64, extra: i64) -> bool {
        let need = self.over(used) + extra;
        if need <= 0 {
            return true;
        }
        for want in [need.max(self.batch()), need] {
            if member.try_charge(want as u64) {
                self.charged += want;
                return true;
            }
        }
        false
    }

    /// Makes sure that copies of `pages` shared pages are charged, which are made next; false if
    /// the limit forbids it.
    pub fn reserve_copies(&mut self, member: &Member, used: i64, pages: i64) -> bool {
        if !self.reserve(member, used, pages) {
            return false;
        }
        self.unshare(pages, member.rollups());
        if self.unshared >= BATCH {
            self.give_credit_back(member);
        }
        true
    }

    /// `pages` are shared no more, since `rollups`: dropped here, or copied whether there was room or not.
    pub fn unshare(&mut self, pages: i64, rollups: u32) {
        let older = (rollups.wrapping_sub(self.since) as i32) < 0;
        if self.unshared == 0 || older {
            self.since = rollups;
        }
        self.unshared += pages;
    }

    /// Pages are dropped, of which some may be shared: shared pages are to be measured then.
    pub fn doubt(&mut self, pages: i64) {
        self.unmeasured_drops += pages;
    }

    /// Gives back the credit for unshared pages, and their charge.
    fn give_credit_back(&mut self, member: &Member) {
        let pages = self.unshared.min(self.charged);
        if pages > 0 {
            member.unshare(pages as u64, self.since);
            self.charged -= pages;
            self.unshared -= pages;
        }
    }

    /// Charges what is already in use, limit or not: it was measured, not asked for. `kernel` is beside what
    /// was `measured` of the process. Whether it is another measure than the last.
    pub fn record_measured(
        &mut self,
        member: &Member,
        used: i64,
        measured: i64,
        kernel: i64,
    ) -> bool {
        let before = (self.unmanaged, self.kernel);
        self.unmanaged = (measured - used).max(0);
        self.kernel = kernel;
        let over = self.over(used);
        if over > 0 && !self.reserve(member, used, 0) {
            member.charge_forced(over as u64);
            self.charged += over;
        }
        (self.unmanaged, self.kernel) != before
    }

    /// Gives back what is charged beyond need, but for `keep` pages. Nothing is kept of what the tree has too much.
    /// Else a buffer that comes and goes would give the program room beyond the budget each time.
    pub fn settle(&mut self, member: &Member, used: i64, keep: i64) {
        self.give_credit_back(member);
        let excess = member.charged() as i64 - member.limit() as i64;
        let unused = -self.over(used);
        let surplus = (unused - keep).max(unused.min(excess));
        if surplus > 0 {
            member.uncharge(surplus as u64);
            self.charged -= surplus;
        }
        if self.unmeasured_drops > 0 {
            member.doubt(std::mem::take(&mut self.unmeasured_drops) as u64);
        }
    }

    /// No part is negative. The sum of the head comment is the caller's to check, by what is in use.
    pub fn check(&self) {
        let parts = [self.charged, self.unmanaged, self.kernel, self.unshared];
        assert!(parts.iter().all(|part| *part >= 0), "{parts:?}");
        assert!(self.unmeasured_drops >= 0);
    }

    /// Charged already: what a process has when it begins to page, or a forked child's copy of its
    /// parent's charge.
    pub fn begins_with(&mut self, charged: i64) {
        (self.charged, self.unshared, self.unmeasured_drops) = (charged, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;
    use ebb_tree::Config;

    /// Uses memory at random, asking first or being measured: the charge is the table's, and covers the use.
    #[test]
    fn memory_in_use_is_charged_and_the_table_says_the_same() {
        const LIMIT: u64 = 10_000;
        let member = Member::alone(LIMIT, Config::default()).expect("a table");
        member.start_paging(0);
        let (mut charge, mut random, mut used) = (Charge::new(), Random::new(3), 0i64);
        let mut refused = 0;
        for _ in 0..20_000 {
            let pages = random.below(400) as i64;
            match random.below(6) {
                0 | 1 => match charge.reserve(&member, used, pages) {
                    true => used += pages,
                    false => refused += 1,
                },
                2 => used = (used - 2 * pages).max(0),
                3 => {
                    if charge.reserve_copies(&member, used, pages / 8) {
                        used -= (pages / 8).min(used);
                    }
                }
                4 => {
                    charge.record_measured(&member, used, used + pages, pages / 50);
                }
                _ => charge.settle(&member, used, pages),
            }
            charge.check();
            assert_eq!(charge.charged(), member.own_charge() as i64);
            assert_eq!(member.charged(), member.own_charge());
        }
        assert!(refused > 20, "{refused}");
        charge.settle(&member, used, 0);
        assert!(charge.over(used) <= 0);
        charge.begins_with(0);
        charge.check();
    }

    /// Writes that fail for want of blocks take a buffer each time, which goes when it was idle for a while. What was
    /// charged for it, limit or not, is no room for the program after that.
    #[test]
    fn a_buffer_that_comes_and_goes_is_no_room_over_the_budget() {
        const BUFFER: i64 = 64;
        let member = Member::alone(1000, Config::default()).expect("a table");
        member.start_paging(0);
        let (mut charge, mut used) = (Charge::new(), 0);
        for _ in 0..10 {
            for buffer in [BUFFER, 0] {
                charge.record_measured(&member, used, used + buffer, 0);
                let stock = charge.stock();
                charge.settle(&member, used, stock);
                // The program takes all that it gets.
                while charge.reserve(&member, used, 1) {
                    used += 1;
                }
            }
        }
        assert!((1000 - BUFFER..=1000).contains(&used), "{used}");
        assert!(member.charged() as i64 <= 1000 + BUFFER);
    }

    /// A credit is as old as the oldest measurement of what it is for: later ones may have counted a part of it.
    #[test]
    fn credit_is_since_the_oldest_measurement() {
        let mut charge = Charge::new();
        for (rollups, since) in [
            (7, 7),
            (9, 7),
            (u32::MAX - 3, u32::MAX - 3),
            (5, u32::MAX - 3),
        ] {
            charge.unshare(1, rollups);
            assert_eq!(charge.since, since);
        }
        assert_eq!(charge.unshared, 4);
    }
}
