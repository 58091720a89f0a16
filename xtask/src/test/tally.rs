//! What test programs say, counted: passed, failed and skipped tests, and the output of those that failed.

use crate::skips::AllowedSkips;

/// All that is counted.
#[derive(Default)]
pub struct Tally {
    passed: usize,
    pub failed: Vec<String>,
    skipped: Vec<Skip>,
    /// Tests that ran, but could not look at everything.
    in_part: Vec<Skip>,
    /// Output of the failed tests, repeated at the end: (test, lines).
    outputs: Vec<(String, Vec<String>)>,
    /// Test programs with the seconds that each took.
    pub programs: Vec<(String, f64)>,
}

/// Lines of a failed test's output that are repeated at the end: the last ones say what failed.
const REPEATED: usize = 40;

/// Lines of what a failed test panicked with that stand beside its name.
const REASON: usize = 6;

/// Test programs that are listed at the end as the slowest.
const SLOWEST: usize = 8;

/// A test that did not run, or not in full, and why.
#[derive(PartialEq, Eq)]
struct Skip {
    test: String,
    why: String,
}

impl Tally {
    /// With what another program said.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.in_part.extend(other.in_part);
        self.outputs.extend(other.outputs);
        self.programs.extend(other.programs);
    }

    /// Lists failures and skips; returns how many of the skips should not have been.
    pub fn report(&mut self, skips: &AllowedSkips) -> usize {
        println!();
        for (name, lines) in &self.outputs {
            println!("---- {name} ----");
            for line in &lines[lines.len().saturating_sub(REPEATED)..] {
                println!("{line}");
            }
        }
        for name in &self.failed {
            println!("failed: {name}");
            self.reason(name).for_each(|line| println!("    {line}"));
        }
        let mut avoidable = 0;
        let whole = self.skipped.iter().map(|skip| ("skipped", skip));
        let in_part = self.in_part.iter().map(|skip| ("skipped in part", skip));
        for (how, Skip { test, why }) in whole.chain(in_part) {
            let allowed = skips.allows(why);
            avoidable += usize::from(!allowed);
            let note = if allowed {
                ""
            } else {
                "  <- must run on this machine"
            };
            println!("{how}: {test}: {why}{note}");
        }
        self.slowest();
        avoidable
    }

    /// The panic of a failed test, in a few lines: the output itself may be cut off where it is shown.
    fn reason(&self, test: &str) -> impl Iterator<Item = &String> {
        let outputs = self.outputs.iter().filter(move |(name, _)| name == test);
        let lines = outputs.flat_map(|(_, lines)| lines);
        let lines = lines.skip_while(|line| !line.contains("panicked at"));
        let lines = lines.take_while(|line| *line != "stack backtrace:");
        lines.take(REASON)
    }

    /// Lists the test programs that took longest.
    fn slowest(&mut self) {
        self.programs.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (program, seconds) in self.programs.iter().take(SLOWEST) {
            println!("{seconds:6.0} s  {program}");
        }
    }

    /// How many tests came out how.
    pub fn counts(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        )
    }
}

/// Follows the output of the test programs.
#[derive(Default)]
pub struct Reader {
    /// The test whose captured output is being shown.
    shown: Option<String>,
    /// Flag: the section that repeats the failures' output has begun.
    failures: bool,
}

impl Reader {
    /// Reads a line, and prints it if it is a result or of a failure.
    pub fn line(&mut self, line: &str, tally: &mut Tally) {
        // A line of a test's output may look like a result: results come before any output.
        if self.shown.is_none()
            && let Some((name, result)) = line
                .strip_prefix("test ")
                .and_then(|rest| rest.rsplit_once(" ... "))
        {
            match result {
                "ok" => tally.passed += 1,
                // With the time it took, as a test program with a main of its own says it.
                timed if timed.starts_with("ok (") => tally.passed += 1,
                // With the status it ended with, from the same.
                failed if failed == "FAILED" || failed.starts_with("FAILED: ") => {
                    tally.failed.push(name.into());
                }
                _ => {
                    let why = result
                        .strip_prefix("ignored")
                        .unwrap_or(result)
                        .trim_start_matches([',', ' ']);
                    tally.skipped.push(Skip {
                        test: name.into(),
                        why: why.into(),
                    });
                }
            }
            println!("{line}");
        } else if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.shown = Some(name.into());
            if self.failures {
                println!("{line}");
                tally.outputs.push((name.into(), Vec::new()));
            }
        } else if line == "successes:" {
            self.failures = false;
        } else if line == "failures:" {
            self.failures = true;
        } else if line.starts_with("test result:") {
            *self = Self::default();
        } else if let Some(why) = line.strip_prefix("skipped in part: ") {
            let test = self.shown.clone().unwrap_or_else(|| "?".into());
            let skip = Skip {
                test,
                why: why.into(),
            };
            // Said for each run of a program.
            if !tally.in_part.contains(&skip) {
                tally.in_part.push(skip);
            }
        } else if let Some(why) = line.strip_prefix("skipped: ") {
            // It returned early, so it was counted as passed.
            tally.passed = tally.passed.saturating_sub(1);
            let test = self.shown.clone().unwrap_or_else(|| "?".into());
            tally.skipped.push(Skip {
                test,
                why: why.into(),
            });
        } else if self.failures {
            println!("{line}");
            if let Some((_, output)) = tally.outputs.last_mut() {
                output.push(line.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_the_test_programs_print() {
        let mut tally = Tally::default();
        let mut reader = Reader::default();
        let text = "test own_main ... ok (0.02 s)\ntest own_other ... FAILED: exit status 101 (0.02 s)\nrunning 3 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ok\n\nsuccesses:\n\n\
                    ---- b stdout ----\nskipped in part: no cgroup\nskipped in part: no cgroup\n---- d stdout ----\nskipped: needs root\ntest e ... FAILED\n\n\nsuccesses:\n    a::b\n\nfailures:\n\n---- c stdout ----\n\
                    before\nthread 'c' (1) panicked at c.rs:1:2:\nboom\nstack backtrace:\n  0: x\n\nfailures:\n    c\n\ntest result: FAILED. 2 passed";
        text.lines().for_each(|line| reader.line(line, &mut tally));
        let failed = vec!["own_other".to_string(), "c".to_string()];
        assert_eq!((tally.passed, &tally.failed), (2, &failed));
        assert_eq!(tally.outputs[0].0, "c");
        assert_eq!(tally.outputs[0].1[0], "before");
        let reason: Vec<_> = tally.reason("c").collect();
        assert_eq!(reason, ["thread 'c' (1) panicked at c.rs:1:2:", "boom"]);
        assert_eq!(
            (
                tally.skipped[0].test.as_str(),
                tally.skipped[0].why.as_str()
            ),
            ("d", "needs root")
        );
        assert_eq!((tally.in_part.len(), tally.skipped.len()), (1, 1));
    }
}
