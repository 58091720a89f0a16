//! The way out of a page: room is made, pages are captured, swapped out, and their frames released.

pub mod capture;
pub mod clean;
pub mod make_room;
pub mod pinned;
pub mod reclaimer;
pub mod release;
pub mod sharing;
pub mod swap_out;
