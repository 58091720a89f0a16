//! Limits of a running tree: showing and changing them.
//!
//! # A lower budget
//! A budget below what is in use would make every fault wait, and end processes that wait too long. So a
//! lower budget is approached. At each tick the budget becomes the memory in use, if that is less than
//! before, and members are asked to give up the pages above the aim. In between the budget loses half of what
//! members give back (`Table::uncharge`). Nobody ever meets a budget below what is in use.
//! ```text
//! steady ──lower──▶ approaching ──in use ≤ aim──▶ steady at the aim
//!    ▲◀──no progress, or who asked is gone: as it was──┘
//! ```

use super::clients::{answer, progress, watch_client};
use super::{Supervisor, Token};
use crate::protocol::{LimitChange, Reply};
use crate::table::Limits;
use crate::table::SlotState;
use ebb_engine::PAGE_SIZE;
use ebb_stores::{Size, human};
use ebb_sys::proc;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// Without progress for so long a lower budget is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often whoever asked hears how far it is.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// The least that a pool can be limited to, in bytes.
const LEAST_POOL: u64 = *ebb_engine::swap::POOL_MAX.start();

/// A lower budget that is being approached.
pub(super) struct BudgetReduction {
    client: OwnedFd,
    /// The limit in pages.
    aim: i64,
    /// The other limits before the change, and with it.
    before: Limits,
    with: Limits,
    /// The least that was in use so far, and since when.
    low: i64,
    since: Instant,
    reported: Instant,
}

/// The limits of a tree, for people and scripts.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct LimitsShown {
    /// The budget.
    pub memory_bytes: u64,
    /// Memory in use.
    pub used_bytes: u64,
    /// Flag: the tree has begun to page.
    pub paging: bool,
    /// The limit of all pools together, as it was given.
    pub pool_max: Option<String>,
    /// The same in bytes.
    pub pool_max_bytes: Option<u64>,
    /// Bytes of all pools.
    pub pool_bytes: u64,
    /// A pool is emptied down to this percentage of its limit.
    pub accept_percent: u8,
    /// Flag: pages may go to devices.
    pub writeback: bool,
    /// The processes that are managed.
    pub processes: Vec<ProcessLimits>,
}

/// The limits of a process, for people and scripts.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ProcessLimits {
    /// The number.
    pub pid: u32,
    /// The name.
    pub name: String,
    /// Memory in use: charged by itself, or measured as long as it does not page.
    pub used_bytes: u64,
    /// Bytes of its pool.
    pub pool_bytes: u64,
    /// The limit of its pool, if it has one of its own, as it was given.
    pub pool_max: Option<String>,
    /// Flag: it has leave of its own to write to devices; the tree must have it too.
    pub writeback: bool,
}

fn bytes(pages: i64) -> u64 {
    (pages.max(0) as u64).saturating_mul(PAGE_SIZE as u64)
}

impl Supervisor {
    /// Handles a request to show or change limits.
    pub(super) fn limit(&mut self, client: OwnedFd, change: &LimitChange) {
        let (limits, aim) = match self.understand(change) {
            Ok(understood) => understood,
            Err(why) => return answer(&client, Reply::Failed(why)),
        };
        let lower = aim.filter(|&aim| aim < self.table.budget.load(SeqCst));
        if lower.is_some() && !watch_client(&self.epoll, &client, Token::Limiter.pack()) {
            return;
        }
        let before = self.table.limits.get();
        match change.process {
            Some(pid) => {
                let slot = self.member_of(pid);
                if let Some(slot) = slot
                    && let Some(member) = &self.members[slot.index()]
                {
                    self.own_limits.give(&member.process, limits);
                    self.table.slot(slot).limits.set(limits);
                }
            }
            None => self.table.limits.set(limits),
        }
        match lower {
            Some(aim) => {
                self.reduction = Some(BudgetReduction {
                    client,
                    aim,
                    before,
                    with: limits,
                    low: i64::MAX,
                    since: Instant::now(),
                    reported: Instant::now(),
                });
            }
            None => {
                if let Some(aim) = aim {
                    self.budget_is(aim);
                    self.set_budget(aim);
                }
                answer(&client, Reply::Done(self.show_limits()));
            }
        }
        self.wake_all();
        self.due = Instant::now();
    }

    /// The outcome of a change: the new limits, and the new budget if it changes. Nothing is changed yet.
    fn understand(&self, change: &LimitChange) -> Result<(Limits, Option<i64>), String> {
        let mut limits = match change.process {
            None => self.table.limits.get(),
            Some(pid) => {
                if change.memory.is_some() || change.accept_percent.is_some() {
                    return Err(
                        "memory and threshold are the whole tree's: leave --only out".into(),
                    );
                }
                let slot = self.member_of(pid).ok_or_else(|| {
                    format!("process {pid} is not managed itself: without --only the limits are the whole tree's")
                })?;
                self.table.slot(slot).limits.get()
            }
        };
        let aim = change
            .memory
            .as_deref()
            .map(|text| self.budget_of(text))
            .transpose()?;
        let aimed = aim.or(self.reduction.as_ref().map(|reduction| reduction.aim));
        let budget = bytes(aimed.unwrap_or_else(|| self.table.budget.load(SeqCst)));
        if let Some(text) = &change.pool_max {
            limits.pool_max = match text.as_str() {
                "none" => None,
                text => Some(text.parse().map_err(|e| format!("--pool-max: {e}"))?),
            };
        }
        if let Some(percent) = change.accept_percent {
            limits.accept_percent = percent;
        }
        if let Some(writeback) = change.writeback {
            limits.writeback = writeback;
        }
        check_limits(&limits, budget)?;
        if let (Some(_), Some(max), None) = (change.process, limits.pool_max, aim)
            && let Some(tree) = self.table.limits.get().pool_max
            && max.of(budget) > tree.of(budget)
        {
            return Err(format!(
                "--pool-max {max} is more than the tree's: give {} to {}",
                human(LEAST_POOL),
                human(tree.of(budget))
            ));
        }
        // Limits that were fine under another budget must be so under this one.
        if aim.is_some() {
            let others = self
                .table
                .taken()
                .map(|(n, _)| self.table.slot(n).limits.get());
            for other in others {
                check_limits(&other, budget)?;
            }
        }
        if !limits.writeback && self.settings.config.codec == crate::Codec::None {
            return Err("without a pool pages can go to devices alone: there is no --writeback off with `ebb run --pool none`".into());
        }
        if self.reduction.is_some() && change.memory.is_some() {
            return Err(
                "the budget is being lowered already: wait for that, or interrupt it".into(),
            );
        }
        Ok((limits, aim))
    }

    /// A budget in pages, from what a user writes.
    fn budget_of(&self, text: &str) -> Result<i64, String> {
        let size: Size = text.parse().map_err(|e| format!("--memory: {e}"))?;
        let budgets = (self.budgets)();
        let (least, most) = (*budgets.start(), *budgets.end());
        let pages = size.of(most * PAGE_SIZE as u64) / PAGE_SIZE as u64;
        if !budgets.contains(&pages) {
            return Err(format!(
                "--memory {text} is out of range: give {} to {}",
                human(least * PAGE_SIZE as u64),
                human(most * PAGE_SIZE as u64)
            ));
        }
        Ok(pages as i64)
    }

    /// Lets the budget follow what is in use down to the aim. Pages that are still above it.
    pub(super) fn reduce_budget(&mut self) -> i64 {
        let Some(reduction) = &mut self.reduction else {
            // A member may have taken its part off late, or died between two words.
            self.set_budget(self.budget);
            return 0;
        };
        let used = self.table.in_use();
        let now = Instant::now();
        if used < reduction.low {
            (reduction.low, reduction.since) = (used, now);
        }
        let (aim, low) = (reduction.aim, reduction.low);
        let since = reduction.since;
        let above = used.saturating_sub(aim);
        if above > 0 && now - reduction.reported > REPORT_INTERVAL {
            reduction.reported = now;
            let text = format!("{} in use", human(bytes(used)));
            progress(&reduction.client, text);
        }
        self.set_budget(used.min(self.table.budget.load(SeqCst)).max(aim));
        self.table.reduction.store(above.max(0), SeqCst);
        if above <= 0 {
            self.budget_is(aim);
            if let Some(reduction) = self.end_reduction() {
                answer(&reduction.client, Reply::Done(self.show_limits()));
            }
            return 0;
        }
        if now - since > PATIENCE {
            if let Some(reduction) = self.take_reduction_back() {
                let why = format!(
                    "the budget stays {}: {} are in use and no more can be swapped out; give more, or add a swap device first",
                    human(bytes(self.budget)),
                    human(bytes(low))
                );
                answer(&reduction.client, Reply::Failed(why));
            }
            return 0;
        }
        above
    }

    /// This budget holds from now on.
    fn budget_is(&mut self, pages: i64) {
        if pages != self.budget {
            self.past_budget = self.past_budget.max(Some(self.budget));
            self.budget = pages;
        }
    }

    /// Writes the budget, and the limit that goes with it until all is measured again.
    fn set_budget(&self, pages: i64) {
        if pages == self.table.budget.load(SeqCst) {
            return;
        }
        let more = pages.saturating_sub(self.table.budget.swap(pages, SeqCst));
        self.table.limit.0.fetch_add(more, SeqCst);
        if more > 0 {
            self.table.wake_waiters();
        }
    }

    /// Ends the reduction, with the budget that is to hold from now on.
    fn end_reduction(&mut self) -> Option<BudgetReduction> {
        let reduction = self.reduction.take()?;
        let _ = epoll::delete(&self.epoll, &reduction.client);
        self.table.reduction.store(0, SeqCst);
        self.set_budget(self.budget);
        self.due = Instant::now();
        Some(reduction)
    }

    /// Ends it with all limits as they were, but those that somebody else has changed since.
    fn take_reduction_back(&mut self) -> Option<BudgetReduction> {
        let reduction = self.end_reduction()?;
        let (mut now, with, before) = (self.table.limits.get(), &reduction.with, &reduction.before);
        if now.pool_max == with.pool_max {
            now.pool_max = before.pool_max;
        }
        if now.accept_percent == with.accept_percent {
            now.accept_percent = before.accept_percent;
        }
        if now.writeback == with.writeback {
            now.writeback = before.writeback;
        }
        self.table.limits.set(now);
        self.wake_all();
        Some(reduction)
    }

    /// The command that asked for a lower budget has spoken, or is gone: then the change is taken back.
    pub(super) fn on_limit_client(&mut self) {
        let Some(reduction) = &self.reduction else {
            return;
        };
        match net::recv(&reduction.client, &mut [0; 64], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 0)) | Err(_) => {
                self.take_reduction_back();
            }
            Ok(_) => {}
        }
    }

    fn wake_all(&self) {
        for (n, _) in self.table.taken() {
            self.table.wake(n);
        }
    }

    fn show_limits(&self) -> String {
        serde_json::to_string(&self.limits()).unwrap_or_else(|_| "{}".into())
    }

    /// The limits as they are.
    pub fn limits(&self) -> LimitsShown {
        let limits = self.table.limits.get();
        let budget = self.table.budget_bytes();
        let mut processes: Vec<ProcessLimits> = self
            .table
            .taken()
            .filter_map(|(n, word)| {
                let pid = self.members[n.index()].as_ref()?.process.pid();
                let slot = self.table.slot(n);
                let used = match word.state {
                    SlotState::Joined => slot.measured.load(SeqCst),
                    _ => slot.charged.load(SeqCst),
                };
                let own = slot.limits.get();
                Some(ProcessLimits {
                    pid,
                    name: proc::name(pid),
                    used_bytes: bytes(used),
                    // A process says now and then how large its pool is: while it shrinks, that is more than it has.
                    pool_bytes: slot.pool.load(Relaxed).min(bytes(used)),
                    pool_max: own.pool_max.map(|max| max.to_string()),
                    writeback: own.writeback,
                })
            })
            .collect();
        processes.sort_by_key(|process| process.pid);
        LimitsShown {
            memory_bytes: budget,
            used_bytes: bytes(self.table.in_use()),
            paging: self.table.mode() == crate::Mode::Paging,
            pool_max: limits.pool_max.map(|max| max.to_string()),
            pool_max_bytes: limits.pool_max.map(|max| max.of(budget)),
            pool_bytes: processes
                .iter()
                .fold(0, |sum, p| sum.saturating_add(p.pool_bytes)),
            accept_percent: limits.accept_percent,
            writeback: limits.writeback,
            processes,
        }
    }
}

/// Whether limits can stand under a budget of so many bytes.
///
/// # Errors
/// The value out of range, and the allowed range.
pub fn check_limits(limits: &Limits, budget: u64) -> Result<(), String> {
    if let Some(max) = limits.pool_max
        && !(LEAST_POOL..=budget).contains(&max.of(budget))
    {
        return Err(format!(
            "--pool-max {max} is out of range: give {} to {}, the budget, or a percentage of it, or none",
            human(LEAST_POOL),
            human(budget)
        ));
    }
    if !(1..=99).contains(&limits.accept_percent) {
        return Err(format!(
            "--accept {} is out of range: the threshold must lie below the pool's limit: give 1 to 99",
            limits.accept_percent
        ));
    }
    Ok(())
}
