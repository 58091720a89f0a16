//! The verdict of a test: how it ended, and the results that it printed. Everything that changes from run
//! to run is left out (times, addresses, process numbers, the order of parallel lines).

use ebb_harness::job::Outcome;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

/// The lines by which two runs of a test are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict(BTreeSet<String>);

/// Results of LTP's tests.
const LTP: [&str; 5] = ["TPASS", "TFAIL", "TBROK", "TCONF", "TWARN"];

/// Results of self-tests that do not speak TAP.
const WORDS: [&str; 8] = [
    "[PASS]", "[FAIL]", "[OK]", "[SKIP]", "[XFAIL]", "[DONE]", "[ERROR]", "[NOT]",
];

impl Verdict {
    /// Of a run that ended.
    pub fn of(run: &Outcome) -> Self {
        let stdout = String::from_utf8_lossy(&run.stdout);
        let printed = stdout.lines().chain(run.stderr.lines());
        let mut lines: BTreeSet<String> = printed.filter_map(result).collect();
        lines.insert(ending(run));
        Self(lines)
    }

    /// The same, and this beside.
    pub fn and(mut self, line: &str) -> Self {
        self.0.insert(line.into());
        self
    }

    /// Lines of the other verdict alone, marked with `+`, after lines of this one alone, with `-`.
    pub fn lines_to(&self, other: &Self) -> Vec<String> {
        let gone = self.0.difference(&other.0).map(|line| format!("-{line}"));
        let come = other.0.difference(&self.0).map(|line| format!("+{line}"));
        gone.chain(come).collect()
    }
}

/// How it ended. `ebb run` says of SIGKILL by its exit status that it ended the program, as shells do.
fn ending(run: &Outcome) -> String {
    let signal = run.status.and_then(|status| status.signal());
    match signal {
        Some(signal) if run.kills == 0 => format!("exit {}", 128 + signal),
        _ => run.ending(),
    }
}

/// The result in a line of output, if it is one.
fn result(line: &str) -> Option<String> {
    let line = line.trim();
    tap(line).or_else(|| ltp(line)).or_else(|| words(line))
}

/// "ok 3 text # SKIP why": the number stays, the text without figures, the directive without its reason.
fn tap(line: &str) -> Option<String> {
    if line.starts_with("1..") {
        return Some(line.into());
    }
    let (result, rest) = ["ok ", "not ok "]
        .into_iter()
        .find_map(|result| Some((result, line.strip_prefix(result)?)))?;
    let (number, text) = rest.split_once(' ').unwrap_or((rest, ""));
    number.parse::<u32>().ok()?;
    let (text, directive) = text.split_once('#').unwrap_or((text, ""));
    let directive = directive.split_whitespace().next().unwrap_or("");
    let mut line = format!("{result}{number} {}", masked(text.trim()));
    if ["SKIP", "XFAIL", "TODO"].contains(&directive) {
        line = format!("{line} # {directive}");
    }
    Some(line.trim().into())
}

/// "file.c:12: TPASS: text" and, of older tests, "name 1 TPASS : text": up to the result.
fn ltp(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words
        .iter()
        .position(|word| LTP.contains(&word.trim_end_matches(':')))?;
    Some(words[..=at].join(" ").trim_end_matches(':').into())
}

/// "[PASS] text", anywhere in the line.
fn words(line: &str) -> Option<String> {
    let upper = line.to_uppercase();
    let result = WORDS.iter().any(|word| upper.contains(word));
    result.then(|| masked(line))
}

/// A text in which every number is `N`.
fn masked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c.is_ascii_digit() {
            let hex = rest.strip_prefix("0x");
            let digits = hex.unwrap_or(rest);
            let of_number = |c: char| match hex {
                Some(_) => c.is_ascii_hexdigit(),
                None => c.is_ascii_digit() || c == '.',
            };
            rest = digits.trim_start_matches(of_number);
            out.push('N');
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(line: &str, wanted: &str) {
        assert_eq!(result(line).as_deref(), Some(wanted));
    }

    #[test]
    fn results_are_kept_without_what_changes() {
        is(
            "ok 12 moved 0x7f12ab to 0x55 in 1.25 ms",
            "ok 12 moved N to N in N ms",
        );
        is(
            "not ok 3 mlock # SKIP needs 64 MiB",
            "not ok 3 mlock # SKIP",
        );
        is("ok 3", "ok 3");
        is("1..9", "1..9");
        is(
            "abort01.c:58: TPASS: abort() raised SIGIOT",
            "abort01.c:58: TPASS",
        );
        is(
            "clone01     1  TFAIL  :  clone01.c:9: no",
            "clone01 1 TFAIL",
        );
        is("time taken: 31 [PASS]", "time taken: N [PASS]");
    }

    #[test]
    fn lines_without_a_result_are_left_out() {
        for line in [
            "ok",
            "okay 12",
            "# Totals: pass:3",
            "x.c:1: TINFO: loop 3",
            "12 ms",
        ] {
            assert_eq!(result(line), None, "{line}");
        }
    }
}
