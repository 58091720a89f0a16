//! `ebb run` under `ebb run`: the tree that this process is in already.
//!
//! A process obeys the nearest `ebb run` alone. In the outer tree the memory of the inner one is unmanaged: it counts
//! there, and only the inner tree pages it. So the inner budget is bounded by what the outer one has left, and the user
//! is told.

use crate::ask::{Figures, PATIENCE};
use crate::available::{Available, Source};
use anyhow::{Context, Result};
use ebb_tree::ControlName;

/// Variable that names the supervisor to the processes of a tree.
pub const CONTROL: &str = "EBB_CONTROL";

/// The outer tree.
pub struct Outer {
    /// The number of its `ebb run` in this PID namespace.
    supervisor: u32,
    /// The budget in bytes.
    budget: u64,
    /// Bytes of it in use.
    used: u64,
}

impl Outer {
    /// The tree that this process is in, if its supervisor answers.
    pub fn here() -> Option<Self> {
        Self::look().ok().flatten()
    }

    /// The same; or a sentence for the user, where the environment names a supervisor that lives and does not answer.
    /// Nobody knows then what it has left.
    pub fn look() -> Result<Option<Self>, String> {
        let Some(control) = std::env::var_os(CONTROL) else {
            return Ok(None);
        };
        let named = control.to_str().and_then(ControlName::parse);
        Self::ask().map(Some).or_else(|error| match named {
            // The name may be left over: of a run that has ended nothing is to be said.
            Some(name) if !name.maker_is_gone() => Err(unreachable(name.pid, &error)),
            _ => Ok(None),
        })
    }

    fn ask() -> Result<Self> {
        let mut figures = Figures::ask(std::process::id())?;
        let supervisor = figures.supervisor().context("it is out of sight")?;
        let stats = figures.within(PATIENCE)?;
        Ok(Self {
            supervisor,
            budget: stats.budget_bytes,
            used: stats.used_bytes,
        })
    }

    /// A sentence for the user of a run inside it.
    pub fn told(&self) -> String {
        format!(
            "this runs under `ebb run` {} already: its memory counts there, and is not paged by that",
            self.supervisor
        )
    }

    /// Its bound of a run inside it.
    pub fn available(&self) -> Available {
        let from = Source::Tree(self.supervisor);
        Available {
            free: self.budget.saturating_sub(self.used),
            from: from.clone(),
            total: self.budget,
            total_from: from,
        }
    }
}

fn unreachable(supervisor: u32, error: &anyhow::Error) -> String {
    format!(
        "this seems to run under `ebb run` {supervisor}, which cannot be asked ({error:#}): what that has left does not \
         bound this run, so give it a --memory that fits"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_inside_gets_what_the_outer_one_has_left() {
        let mut outer = Outer {
            supervisor: 4711,
            budget: 1 << 30,
            used: 1 << 20,
        };
        assert!(outer.told().contains("`ebb run` 4711 already"));
        let available = outer.available();
        assert_eq!(available.free, (1 << 30) - (1 << 20));
        assert_eq!(
            (available.total, &available.from),
            (1 << 30, &Source::Tree(4711))
        );
        assert_eq!(available.from.to_string(), "the budget of `ebb run` 4711");
        // For a moment a tree may use more than its budget.
        outer.used = 2 << 30;
        assert_eq!(outer.available().free, 0);
    }
}
