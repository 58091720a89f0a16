//! Lists of tests, kept in `xtask/conformance/*.toml`. They say which are left out, which differences are
//! documented limits, and which are defects to be mended. Every entry has a reason.
//!
//! An accepted difference names the lines that differ: `-` for a line of the test by itself, `+` for a line
//! under `ebb`. A line may end in `*`. It holds only if each line that differs is named and each that is
//! named differs. A defect may change from run to run: it names only the test.

use super::trial::{Difference, Mode};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// A test that does not run. Its name may end in `*`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeftOut {
    tests: Vec<String>,
    reason: String,
}

/// A difference that is a documented limit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    test: String,
    /// Every mode without one.
    mode: Option<Mode>,
    lines: Vec<String>,
    reason: String,
    /// Flag: it does not come in every run.
    #[serde(default)]
    sometimes: bool,
}

/// A difference that is a defect.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Defect {
    tests: Vec<String>,
    mode: Option<Mode>,
    reason: String,
    /// Flag: it does not come in every run.
    #[serde(default)]
    sometimes: bool,
}

/// All of them.
pub struct Lists {
    left_out: Vec<LeftOut>,
    accepted: Vec<Accepted>,
    defects: Vec<Defect>,
}

/// A test's outcome by the lists.
#[derive(Debug, PartialEq, Eq)]
pub enum Judged<'a> {
    /// It does not differ.
    Same,
    /// It differs as a documented limit says.
    Accepted,
    /// It differs, as is known, for this reason.
    Defect(&'a str),
    /// It does not differ though this list says so.
    Outdated(&'static str),
    /// It differs and nobody knew.
    New,
}

impl Lists {
    /// Reads the files of a directory.
    ///
    /// # Errors
    /// One is missing, or not as it should be.
    pub fn read(dir: &Path) -> Result<Self> {
        let lists = Self {
            left_out: entries(dir, "left-out.toml")?,
            accepted: entries(dir, "accepted.toml")?,
            defects: entries(dir, "defects.toml")?,
        };
        let reasons = lists.left_out.iter().map(|entry| &entry.reason);
        let reasons = reasons.chain(lists.accepted.iter().map(|entry| &entry.reason));
        let mut reasons = reasons.chain(lists.defects.iter().map(|entry| &entry.reason));
        ensure!(
            reasons.all(|reason| !reason.trim().is_empty()),
            "an entry in {} has no reason",
            dir.display()
        );
        Ok(lists)
    }

    /// Why a test does not run, if it does not.
    pub fn left_out(&self, test: &str) -> Option<&str> {
        let of = |entry: &&LeftOut| entry.tests.iter().any(|name| matches(name, test));
        self.left_out
            .iter()
            .find(of)
            .map(|entry| entry.reason.as_str())
    }

    /// The kind of an outcome. A known defect goes before an accepted difference.
    pub fn judge(&self, test: &str, mode: Mode, difference: Option<&Difference>) -> Judged<'_> {
        let here = |wanted: Option<Mode>| wanted.is_none_or(|wanted| wanted == mode);
        let defect = self.defects.iter().find(|defect| {
            here(defect.mode) && defect.tests.iter().any(|name| matches(name, test))
        });
        let mut accepted = self
            .accepted
            .iter()
            .filter(|accepted| here(accepted.mode) && accepted.test == test);
        let Some(difference) = difference else {
            return match defect {
                Some(defect) if !defect.sometimes => Judged::Outdated("defects.toml"),
                _ if accepted.any(|accepted| !accepted.sometimes) => {
                    Judged::Outdated("accepted.toml")
                }
                _ => Judged::Same,
            };
        };
        if let Some(defect) = defect {
            return Judged::Defect(&defect.reason);
        }
        match accepted.any(|accepted| covers(&accepted.lines, difference)) {
            true => Judged::Accepted,
            false => Judged::New,
        }
    }
}

/// Whether the patterns name the lines that differ in each run, all of them and no other.
fn covers(patterns: &[String], difference: &Difference) -> bool {
    let named = |line: &String| patterns.iter().any(|pattern| matches(pattern, line));
    difference.wrong.iter().all(|lines| {
        let occurs = |pattern: &String| lines.iter().any(|line| matches(pattern, line));
        lines.iter().all(named) && patterns.iter().all(occurs)
    })
}

fn matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => text == pattern,
    }
}

/// The entries of one file, each a table `[[entry]]`.
fn entries<T: DeserializeOwned>(dir: &Path, file: &str) -> Result<Vec<T>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File<T> {
        #[serde(default = "Vec::new")]
        entry: Vec<T>,
    }
    let path = dir.join(file);
    let file: File<T> =
        toml::from_str(&super::read(&path)?).with_context(|| path.display().to_string())?;
    Ok(file.entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists() -> Lists {
        let accepted = |test: &str, sometimes| Accepted {
            test: test.into(),
            mode: Some(Mode::Eager),
            lines: vec!["-ok 2*".into(), "+not ok 2*".into()],
            reason: "documented".into(),
            sometimes,
        };
        Lists {
            left_out: vec![LeftOut {
                tests: vec!["ltp/swapon*".into()],
                reason: "swap".into(),
            }],
            accepted: vec![accepted("a", false), accepted("b", true)],
            defects: vec![Defect {
                tests: vec!["c*".into()],
                mode: None,
                reason: "a hang".into(),
                sometimes: false,
            }],
        }
    }

    fn differs(lines: &[&str]) -> Difference {
        Difference {
            wrong: vec![lines.iter().map(ToString::to_string).collect()],
            runs: 1,
        }
    }

    #[test]
    fn an_accepted_difference_covers_its_lines_and_no_others() {
        let lists = lists();
        let known = differs(&["-ok 2 moves", "+not ok 2 moves"]);
        assert_eq!(
            lists.judge("a", Mode::Eager, Some(&known)),
            Judged::Accepted
        );
        assert_eq!(lists.judge("a", Mode::Paging, Some(&known)), Judged::New);
        let more = differs(&["-ok 2 moves", "-ok 3 drops", "+not ok 2 moves"]);
        assert_eq!(lists.judge("a", Mode::Eager, Some(&more)), Judged::New);
        let mut another = differs(&["-ok 2 moves", "+not ok 2 moves"]);
        another.wrong.push(vec!["+out of time".into()]);
        assert_eq!(lists.judge("a", Mode::Eager, Some(&another)), Judged::New);
        let less = differs(&["-ok 2 moves"]);
        assert_eq!(lists.judge("a", Mode::Eager, Some(&less)), Judged::New);
    }

    #[test]
    fn an_entry_that_differs_no_more_is_out_of_date() {
        let lists = lists();
        let outdated = |test| lists.judge(test, Mode::Eager, None);
        assert_eq!(outdated("a"), Judged::Outdated("accepted.toml"));
        assert_eq!(outdated("b"), Judged::Same);
        assert_eq!(outdated("c1"), Judged::Outdated("defects.toml"));
        assert_eq!(outdated("d"), Judged::Same);
    }

    #[test]
    fn a_defect_is_known_in_whatever_way_it_shows() {
        let lists = lists();
        let any = differs(&["+out of time"]);
        assert_eq!(
            lists.judge("c1", Mode::Paging, Some(&any)),
            Judged::Defect("a hang")
        );
        assert_eq!(lists.left_out("ltp/swapon02"), Some("swap"));
        assert_eq!(lists.left_out("ltp/swab"), None);
    }

    #[test]
    fn the_lists_of_the_project_can_be_read() {
        let dir = ebb_harness::tools::project().join("xtask/conformance");
        Lists::read(&dir).unwrap();
    }
}
