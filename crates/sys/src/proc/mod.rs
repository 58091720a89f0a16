//! Processes as `/proc` shows them: this one, others, and how they are related.
//!
//! Files that are read often are kept open and read into a buffer on the stack; nothing is allocated. Not
//! the procfs crate: it allocates for each file that it reads. This code also runs on service threads, in
//! forked children and in children of `vfork`, where the allocator may be locked for ever. All but `touched`,
//! which `ebb` alone uses.

mod file;
#[cfg(fuzzing)]
pub mod fuzzing;
mod ids;
mod own;
mod pidfd;
mod process;
mod stat;
mod status;
mod touched;
mod tree;

pub use file::find_directory;
pub(crate) use file::{forget_directory, open};
pub use ids::{Ids, ids_of};
pub use own::{
    children_stay_in_namespace, pid_namespace, pinned_pages, resident_anonymous_pages,
    running_threads, table_pages, user_namespace,
};
pub use pidfd::{PidfdTarget, has_ended, pidfd_target};
pub(crate) use process::open_again;
#[cfg(debug_assertions)]
pub use process::simulate_images;
pub use process::{Process, minor_faults, name, name_if_there, reopen, share_memory, stat_of};
pub use stat::{Disposition, Image, Rollup, Stat, Statm};
pub use touched::Touched;
pub use tree::{all, children, each_thread, path_of_fd, thread_cpu, waits_for_page};

#[cfg(test)]
mod tests;
