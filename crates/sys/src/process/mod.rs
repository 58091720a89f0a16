//! Programs, their threads, and tasks of our own beside them.

mod control_block;
pub mod cpu;
pub mod credentials;
pub mod daemon;
pub mod descriptors;
pub mod elf;
pub mod end_watch;
pub mod inherited;
pub mod loader;
pub mod program;
pub mod robust;
pub mod schedule;
pub mod stack;
pub mod syscall_trap;
pub mod task;
pub mod thread;
