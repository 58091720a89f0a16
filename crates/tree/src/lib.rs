//! Process trees under one budget.
//!
//! `ebb run` stays as the [`Supervisor`]; every managed process is a [`Member`]. Each member pages with an
//! engine of its own in its own memory. This crate is about the memory they share. That is a memfd of
//! atomics with one [slot](SlotNumber) a process (charges against the budget, requests, counters,
//! latencies), and the leases of the swap devices' clusters.
//!
//! # Rules that everything here follows
//! - **A process may die at any instruction.** Nothing shared is a lock. The supervisor can undo or finish
//!   any change of several shared words that a process left half-done, from the words themselves (see
//!   `charge`, [`lease`](self) and `reap`).
//! - **The supervisor may die too**; members then go on with the last limit.
//! - **Every shared word is an allegation.** A wrong one leads to a wrong figure or a refused
//!   request, never to a panic or an access out of bounds.
//! - Member functions on the shared table allocate nothing, take no lock, and make no system
//!   call but futex wakes, so they may be called on the fault path.
//!
//! # Budget
//! ```text
//! use   = charged + outside - credit          what the tree really uses
//! limit = budget - outside + credit           so: charged <= limit  ⇔  use <= budget
//! ```
//! *charged*: what paging members say they use, batch by batch. *outside*: the anonymous
//! memory of every other process of the tree, measured by the supervisor. *credit*: pages
//! charged twice because fork made two processes share them.
//!
//! Not here: paging, deciding which pages a member evicts, opening devices.
//!
//! # State of the process
//! There is none but the shared memory. Builds for tests alone have statics:
//!
//! | static | why it is one for the process |
//! |---|---|
//! | `waits::WAITS` | a simulation takes the place of the system calls that wait |
//! | `fuzzing::TABLE`, `fuzzing::LEASES` | libFuzzer calls a function again and again, without a value of ours |
#![deny(unsafe_code)]

/// Processes that can be managed at the same time.
#[cfg(not(loom))]
pub const MAX_MEMBERS: usize = 512;
#[cfg(loom)]
#[allow(missing_docs)]
pub const MAX_MEMBERS: usize = 4;

/// A member's last message holds these words where it is ended for memory.
pub const OUT_OF_MEMORY: &str = "out of memory: ";

/// Devices of a tree.
pub const MAX_DEVICES: usize = 8;
#[cfg(not(loom))]
const _: () = assert!(MAX_DEVICES == ebb_engine::MAX_DEVICES);

mod lease;

#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(not(loom))]
mod guard;
#[cfg(not(loom))]
mod histogram;
#[cfg(not(loom))]
mod member;
#[cfg(not(loom))]
mod protocol;
#[cfg(all(debug_assertions, not(loom)))]
pub mod simulated;
#[cfg(not(loom))]
mod supervisor;
#[cfg(not(loom))]
mod table;
mod waiters;
#[cfg(all(debug_assertions, not(loom)))]
mod waits;

#[cfg(not(loom))]
pub use {
    ebb_stores::Facts,
    guard::{Launcher, guard},
    histogram::{BOUNDS_NS, Histogram, Summary},
    member::{Device, DeviceQuestion, JoinError, Member, PagesOfMember},
    protocol::{
        Ask, AskError, ControlName, HelperExit, LimitChange, Reply, Request, is_stopped, trees,
    },
    supervisor::{
        ANY_CHILD, Budgets, CellShown, DeviceShown, FaultsShown, HIDDEN, LimitsShown, MemberShown,
        MoreShown, Notices, Opener, PoolShown, ProcessLimits, Setup, SetupDevice, SetupError,
        StatsShown, Supervisor, Totals, check_limits,
    },
    table::{
        AgeCutoff, Answer, Asked, ChildSlot, Codec, Config, DeviceState, Limits, Mode,
        ReclaimRequest, ShareReport, SlotNumber, SlotState, Way, Zstd, idle_time, start_threshold,
    },
};
