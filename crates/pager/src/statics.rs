//! The one static of the pager.
//!
//! The preload library's functions are C symbols that programs call with no context of ours, from the first
//! instruction of the process on, before any constructor. So the pager they act on has a fixed address, and
//! is whole without initialisation. All else that the pager knows is a field of it.

use crate::pager::Pager;
use ebb_sys::system_kernel::SystemKernel;

/// The pager of this process.
pub static PAGER: Pager<SystemKernel> = Pager::new(SystemKernel::new());
