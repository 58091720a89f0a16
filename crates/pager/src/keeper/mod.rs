//! The keeper: adoption, registration, measuring, memory for peers, work of the engine.

pub mod adopt;
pub mod cpu_contention;
pub mod drain_capacity;
pub mod give_to_peers;
pub mod join;
pub mod keeper_loop;
pub mod measure;
pub mod thread;
