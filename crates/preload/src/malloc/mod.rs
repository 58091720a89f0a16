//! The malloc family and the places where its blocks lie.

pub mod blocks;
pub mod family;
pub mod foreign_malloc;
pub mod mapped_block;
