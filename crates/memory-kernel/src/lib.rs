//! A kernel in memory: what the pager asks of the system (`ebb_sys::paging::Kernel`), answered by page tables
//! that are maps, with faults at will.
//!
//! The pager's unit tests run on it with one thread ([`alone::Alone`]), the simulator with many. Threads, time and
//! chance are theirs ([`threads::Threads`]); page tables, userfaultfd and memory calls are here.
//!
//! | file | what it has |
//! |---|---|
//! | [`by_page`] | a table of something for each page |
//! | [`frames`] | pages of memory, and how many processes map each |
//! | [`page_tables`] | mappings and pages of one process, and the threads that wait for a page |
//! | [`threads`] | the interface to who runs threads |
//! | [`kernel`] | [`MemoryKernel`], the calls |
//! | [`alone`] | one thread that plays all parts |
//! | [`crowd`] | threads of the host, side by side |
//!
//! Pages of the program lie in the page tables alone, at addresses that the host does not use. Memory of the
//! pager's own ([`Kernel::reserve`](ebb_sys::paging::Kernel::reserve)) has host memory behind it as well, since
//! the pager reads staged frames by their addresses.
//!
//! What it does not have: huge pages, files, the swap of the kernel itself, memory nodes.

pub mod alone;
pub mod by_page;
pub mod crowd;
pub mod frames;
pub mod kernel;
pub mod page_tables;
pub mod threads;

pub use kernel::{MemoryKernel, Stop};

pub use ebb_sys::memory::PAGE;
