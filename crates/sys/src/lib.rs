//! The unsafe floor: what the kernel offers, behind safe or narrowly unsafe interfaces.

pub mod heap;
