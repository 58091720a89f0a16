//! One line of `ebb doctor`'s report.

use serde::Serialize;

/// The outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but slower or with less.
    Limited,
    /// `ebb run` cannot work.
    Missing,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Stable name of the thing that was looked at, for machines.
    pub name: &'static str,
    /// Outcome.
    pub verdict: Verdict,
    /// Finding, for people.
    pub detail: String,
    /// Next step, as a command where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    /// All is well.
    pub fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            detail: detail.into(),
            fix: None,
        }
    }

    /// Something is not as it should be, and how to mend it.
    pub fn not(
        name: &'static str,
        verdict: Verdict,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name,
            verdict,
            detail: detail.into(),
            fix: Some(fix.into()),
        }
    }
}
