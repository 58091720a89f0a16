//! The same two benchmarks on real memory: the program that somebody pages, and the table of what
//! became of it. A sixteenth of the published sizes or less, so that a run takes seconds.
//!
//! - `active`: [`SERVICES`] processes fill [`IDLE`] bytes each and wait. Then one process of the
//!   same tree works at random in [`ACTIVE`] bytes: it is that time which counts.
//! - `allocate`: one process fills [`ALLOCATED`] bytes, three quarters of which compress.
//! - `watched`: the first again, in which the process looks now and then which of its pages are in memory.
//!   That costs time, and tells in which order they left. In the end all of the processes look where their
//!   pages are, which one clock of touches tells the age of.
//!
//! Every page says which it is, and what is read is checked. The caller decides about the pager and its
//! memory; counters are those of the whole run. In the end it is looked where the pages are (`ages`),
//! which costs no part of the time.

use super::ages::{self, Sample, Watch};
use super::{COUNTERS, PAGE};
use crate::support::report::Report;
use ebb_engine::random::Random;
use ebb_sys::clock::monotonic_ns;
use serde_json::{Value, json};
use std::io;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The benchmarks, by name.
pub const BENCHES: [&str; 3] = ["active", "allocate", "watched"];
/// Idle processes.
pub const SERVICES: usize = 4;
/// Bytes of each.
pub const IDLE: usize = 24 << 20;
/// Bytes of the process that works.
pub const ACTIVE: usize = 36 << 20;
/// Its accesses.
const ACCESSES: usize = 40_000;
/// Bytes that are filled at once.
pub const ALLOCATED: usize = 128 << 20;
/// The beginning of the line in which a program says how long it took, in seconds.
pub const ELAPSED: &str = "elapsed_s ";
/// Beginnings of the lines with the share of wrong pages on the device, if that can be known: by last
/// touches, and by when pages left memory.
pub const INVERTED: &str = "inverted_percent ";
/// The second of them.
pub const LEFT_INVERTED: &str = "left_inverted_percent ";
/// And in which it says the second of them of pairs of different processes.
pub const ACROSS_INVERTED: &str = "across_inverted_percent ";
/// The beginning of the line in which an idle process tells of a page that was out.
const SAMPLE: &str = "sample ";
/// Accesses between two looks at which pages are in memory.
const LOOK_EVERY: usize = 100;

/// The mode in which this program is one of the idle ones.
const SERVICE: &str = "service";
/// Requests to a process: to look now and then which of its pages are in memory, and, in the end, to
/// choose some of those that are not. Then it is to tell where these are.
const WATCH: &str = "watch";
const CHOOSE: &str = "choose";
/// Between two of its looks.
const IDLE_LOOKS: Duration = Duration::from_millis(20);
/// Its answer when a request is done.
const READY: &str = "ready";

/// Pages that know which they are: a quarter of each is random, of every twentieth all.
struct Pages {
    bytes: Vec<u8>,
    /// The place where the first page begins.
    start: usize,
    seed: u64,
    /// The time when each was touched last, in us.
    touched: Vec<u32>,
    /// The moment from which on times are counted.
    since: u64,
}

impl Pages {
    /// A region of this many bytes; times count from `since`, in CLOCK_MONOTONIC nanoseconds.
    fn filled(bytes: usize, seed: u64, since: u64) -> Self {
        let bytes = vec![0; bytes + PAGE];
        let mut pages = Self {
            start: bytes.as_ptr().align_offset(PAGE),
            touched: vec![0; bytes.len() / PAGE - 1],
            bytes,
            seed,
            since,
        };
        for page in 0..pages.count() {
            pages.fill(page);
        }
        pages
    }

    fn now(&self) -> u32 {
        ((monotonic_ns() - self.since) / 1000) as u32
    }

    fn count(&self) -> usize {
        self.touched.len()
    }

    fn page(&self, page: usize) -> &[u8] {
        &self.bytes[self.start + page * PAGE..][..PAGE]
    }

    fn page_mut(&mut self, page: usize) -> &mut [u8] {
        self.touched[page] = self.now();
        &mut self.bytes[self.start + page * PAGE..][..PAGE]
    }

    fn random(&self, page: usize) -> Random {
        Random::new(self.seed << 32 | page as u64)
    }

    fn fill(&mut self, page: usize) {
        let mut random = self.random(page);
        let whole = page.is_multiple_of(20);
        let words = self.page_mut(page).as_chunks_mut::<8>().0;
        for (i, word) in words.iter_mut().enumerate() {
            *word = if whole || i < PAGE / 8 / 4 {
                random.next().to_le_bytes()
            } else {
                (page as u64).to_le_bytes()
            };
        }
    }

    /// Looks at a page's first and last words.
    fn check(&self, page: usize) -> Result<(), String> {
        let words = self.page(page).as_chunks::<8>().0;
        let first = self.random(page).next().to_le_bytes();
        let last = (page as u64).to_le_bytes();
        let good = words[0] == first && (page.is_multiple_of(20) || words[PAGE / 8 - 1] == last);
        good.then_some(())
            .ok_or_else(|| format!("page {page} of {} holds something else", self.seed))
    }

    fn address(&self, page: usize) -> usize {
        self.page(page).as_ptr() as usize
    }

    /// Some that are out of memory.
    fn some_out(&self) -> Result<Vec<usize>, String> {
        ages::some_out(self.count(), |page| self.address(page)).map_err(unknown)
    }

    /// Looks where these pages are, and whether they hold what they should.
    fn look(&self, pages: &[usize], watch: Option<&Watch>) -> Result<ages::Inverted, String> {
        let mut checked = Ok(());
        let touch = |page| checked = std::mem::replace(&mut checked, Ok(())).and(self.check(page));
        let address = |page| self.address(page);
        let found = ages::inverted(pages, &self.touched, watch, address, touch).map_err(unknown)?;
        checked.map(|()| found)
    }

    /// Looks which are in memory.
    fn watched_by(&self, watch: &mut Watch) -> Result<(), String> {
        watch.look(self.address(0), self.now()).map_err(unknown)
    }

    /// Says how often the wrong page went to the device.
    fn tell_inverted(&self, pages: &[usize], watch: Option<&Watch>) -> Result<Vec<Sample>, String> {
        let found = self.look(pages, watch)?;
        tell(INVERTED, found.by_touch);
        tell(LEFT_INVERTED, found.by_leaving);
        Ok(found.leavings)
    }
}

fn tell(what: &str, percent: Option<f64>) {
    if let Some(percent) = percent {
        println!("{what}{percent:.1}");
    }
}

/// The program: `bench` is one of [`BENCHES`]. Prints how long it took.
///
/// # Errors
/// No such benchmark; a page holds something else; a service cannot be started, or found that its
/// pages hold something else.
pub fn work(bench: &str) -> Result<(), String> {
    match bench {
        "active" => active(false),
        "watched" => active(true),
        "allocate" => {
            let start = Instant::now();
            let pages = Pages::filled(ALLOCATED, 1, monotonic_ns());
            println!("{ELAPSED}{}", start.elapsed().as_secs_f64());
            pages.tell_inverted(&pages.some_out()?, None)?;
            (0..pages.count())
                .step_by(61)
                .try_for_each(|page| pages.check(page))
        }
        SERVICE => {
            let (said, lines) = mpsc::channel();
            std::thread::spawn(move || {
                let mut lines = io::stdin().lines().map_while(Result::ok);
                lines.try_for_each(|line| said.send(line))
            });
            let since = lines.recv().ok().and_then(|line| line.parse().ok());
            let since = since.unwrap_or_else(monotonic_ns);
            let pages = Pages::filled(IDLE, u64::from(std::process::id()), since);
            println!("{READY}");
            let (mut watch, mut out) = (None, Vec::new());
            // Until the one that works is done.
            loop {
                let line = match lines.recv_timeout(IDLE_LOOKS) {
                    Ok(line) => line,
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        if let Some(watch) = &mut watch {
                            pages.watched_by(watch)?;
                        }
                        continue;
                    }
                };
                match line.as_str() {
                    WATCH => watch = Some(Watch::new(pages.count()).map_err(unknown)?),
                    CHOOSE => out = pages.some_out()?,
                    _ => {
                        for Sample { at, on_device } in pages.look(&out, watch.as_ref())?.leavings {
                            println!("{SAMPLE}{at} {on_device}");
                        }
                    }
                }
                println!("{READY}");
            }
            (0..pages.count())
                .step_by(61)
                .try_for_each(|page| pages.check(page))
        }
        other => Err(format!(
            "there is no benchmark \"{other}\": there are {}",
            BENCHES.join(", ")
        )),
    }
}

fn unknown(why: std::io::Error) -> String {
    format!("cannot tell where pages are: {why}")
}

/// One of the idle processes.
struct Service {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Service {
    /// Starts it, and waits until it is idle; times count from `since`.
    fn start(own: &Path, since: u64) -> io::Result<Self> {
        let mut child = Command::new(own)
            .args(["shrinker", "--work", SERVICE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let lines = BufReader::new(out).lines();
        let mut service = Self { child, lines };
        service.ask(&since.to_string())?;
        Ok(service)
    }

    /// Its answer to a request, up to where it is idle again.
    fn ask(&mut self, what: &str) -> io::Result<Vec<String>> {
        let input = self.child.stdin.as_mut();
        writeln!(input.ok_or(io::ErrorKind::BrokenPipe)?, "{what}")?;
        let mut said = Vec::new();
        for line in &mut self.lines {
            match line? {
                line if line == READY => return Ok(said),
                line => said.push(line),
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Where some of its pages are.
    fn samples(&mut self) -> io::Result<Vec<Sample>> {
        let sample = |line: String| {
            let (at, on_device) = line.strip_prefix(SAMPLE)?.split_once(' ')?;
            Some(Sample {
                at: at.parse().ok()?,
                on_device: on_device.parse().ok()?,
            })
        };
        Ok(self.ask("tell")?.into_iter().filter_map(sample).collect())
    }

    fn end(mut self) -> Result<(), String> {
        drop(self.child.stdin.take());
        let status = self.child.wait().map_err(|e| format!("a service: {e}"))?;
        let good = status.success();
        good.then_some(())
            .ok_or_else(|| format!("a service ended with {status}"))
    }
}

fn active(watched: bool) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|e| format!("where am I: {e}"))?;
    let since = monotonic_ns();
    let start = |_| {
        let mut service = Service::start(&own, since)?;
        if watched {
            service.ask(WATCH)?;
        }
        Ok(service)
    };
    let services: io::Result<Vec<Service>> = (0..SERVICES).map(start).collect();
    let mut services = services.map_err(|e| format!("cannot start a service: {e}"))?;
    let start = Instant::now();
    let mut pages = Pages::filled(ACTIVE, 1, since);
    let mut watch = match watched {
        true => Some(Watch::new(pages.count()).map_err(unknown)?),
        false => None,
    };
    let mut random = Random::new(7);
    for access in 0..ACCESSES {
        if let Some(watch) = watch.as_mut().filter(|_| access % LOOK_EVERY == 0) {
            pages.watched_by(watch)?;
        }
        let page = random.below(pages.count());
        pages.check(page)?;
        // Written, but for what is checked.
        let byte = &mut pages.page_mut(page)[8];
        *byte = byte.wrapping_add(1);
    }
    println!("{ELAPSED}{}", start.elapsed().as_secs_f64());
    let out = pages.some_out()?;
    let of_service = |e| format!("a service: {e}");
    if watched {
        for service in &mut services {
            service.ask(CHOOSE).map_err(of_service)?;
        }
    }
    let mut samples = vec![pages.tell_inverted(&out, watch.as_ref())?];
    if watched {
        for service in &mut services {
            samples.push(service.samples().map_err(of_service)?);
        }
        tell(ACROSS_INVERTED, ages::across(&samples));
    }
    services.into_iter().try_for_each(Service::end)
}

/// One run.
#[derive(Clone, Debug)]
pub struct Row {
    /// The benchmark.
    pub bench: &'static str,
    /// The pager, and its policy.
    pub policy: String,
    /// Bytes of memory it had in all.
    pub total: u64,
    /// Seconds, or how it ended if it did not finish.
    pub elapsed: Result<f64, String>,
    /// The values of `COUNTERS`, in that order; none: not to be known.
    pub counts: [Option<u64>; COUNTERS.len()],
    /// The share of wrong pages on the device, of the process that worked, by their last touches; none
    /// if there were too few in the pool or on the device.
    pub inverted_percent: Option<f64>,
    /// The same by when they left memory; none, too: nobody watched.
    pub left_inverted_percent: Option<f64>,
    /// The second of them of pairs of pages of different processes; none, too: nobody watched.
    pub across_inverted_percent: Option<f64>,
}

/// The table of real runs.
#[must_use]
pub fn report(rows: &[Row]) -> Report {
    let first = ["benchmark", "policy", "total_mib", "elapsed_s"];
    let last = [
        "inverted_percent",
        "left_inverted_percent",
        "across_inverted_percent",
    ];
    let mut report = Report::new(&[&first[..], &COUNTERS, &last].concat());
    for row in rows {
        let mut values = vec![
            json!(row.bench),
            json!(row.policy),
            json!(row.total >> 20),
            match &row.elapsed {
                Ok(seconds) => json!((seconds * 1000.0).round() / 1000.0),
                Err(ending) => json!(ending),
            },
        ];
        values.extend(
            row.counts
                .iter()
                .map(|n| n.map_or(Value::Null, Value::from)),
        );
        values.push(json!(row.inverted_percent));
        values.push(json!(row.left_inverted_percent));
        values.push(json!(row.across_inverted_percent));
        report.row(values);
    }
    report.note(format!(
        "real memory and disk: active: {SERVICES} idle processes of {} MiB, then one that works in {} MiB; allocate: {} MiB filled",
        IDLE >> 20,
        ACTIVE >> 20,
        ALLOCATED >> 20
    ));
    report.note("inverted_percent: of pairs of a page on the device and one in the pool, those in which the first was touched later; left_: in which it left memory later, which is the order that writeback can keep; across_: the second, of pages of different processes");
    report.note("elapsed_s is that of the work alone, the counters are those of the whole run");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_holds_something_else_is_seen() {
        let mut pages = Pages::filled(64 * PAGE, 3, 0);
        assert!((0..64).all(|page| pages.check(page).is_ok()));
        pages.page_mut(7)[PAGE - 1] ^= 1;
        pages.page_mut(20)[0] ^= 1;
        let wrong: Vec<usize> = (0..64).filter(|&p| pages.check(p).is_err()).collect();
        assert_eq!(wrong, [7, 20]);
    }

    #[test]
    fn a_run_that_ended_says_how() {
        let text = report(&[Row {
            bench: "active",
            policy: "swap-file".into(),
            total: 64 << 20,
            elapsed: Err("killed for memory".into()),
            counts: [Some(1), None, None, None, None, None, None],
            inverted_percent: None,
            left_inverted_percent: None,
            across_inverted_percent: None,
        }])
        .json();
        assert!(
            text.contains("\"elapsed_s\":\"killed for memory\""),
            "{text}"
        );
    }
}
