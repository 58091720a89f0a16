//! The swap space of a process: the engine, its surroundings and its devices.

pub mod device_set;
pub mod processors;
pub mod swap_space;
