//! At which use of its budget a tree starts to page.

use ebb_engine::PAGE_SIZE;

/// Paging starts when the room left falls under the larger of these, or under half of the
/// budget if that is less.
const START_ROOM_PAGES: i64 = (32 << 20) / PAGE_SIZE as i64;
const START_ROOM_PERCENT: i64 = 12;

/// Pages of room at which a tree of this budget starts to page.
pub fn start_room(budget: i64) -> i64 {
    START_ROOM_PAGES
        .max(budget.saturating_mul(START_ROOM_PERCENT) / 100)
        .min(budget / 2)
}

/// At which use a tree of this budget starts to page. In pages.
pub fn start_threshold(budget: i64) -> i64 {
    budget.saturating_sub(start_room(budget))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_threshold_leaves_room() {
        let mib = |n: i64| n << 8;
        // 12% of a large budget, 32 MiB of a middling one, half of a tiny one.
        assert_eq!(start_threshold(mib(10_000)), mib(8_800));
        assert_eq!(start_threshold(mib(100)), mib(68));
        assert_eq!(start_threshold(mib(20)), mib(10));
        assert_eq!(start_threshold(0), 0);
    }
}
