//! One run of one command: inside a cgroup or not, with a time limit, its output kept, its
//! time and memory measured.

use crate::cgroup::Cgroup;
use crate::standstill;
use anyhow::{Context, Result};
use procfs::process::Process;
use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The program to run.
#[derive(Clone, Debug)]
pub struct Job {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<std::path::PathBuf>,
    time_limit: Duration,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit status, or the signal that killed it; none if it ran out of time.
    pub status: Option<ExitStatus>,
    /// The whole standard output.
    pub stdout: Vec<u8>,
    /// The whole standard error. Of a run that ran out of time, where its processes stood then.
    pub stderr: String,
    /// Wall-clock seconds.
    pub wall: f64,
    /// Seconds of processor time in user mode, of the tree; resolution 10 ms.
    pub user: f64,
    /// The same in the kernel.
    pub system: f64,
    /// Peak of its anonymous memory in bytes, sampled: the cgroup's; without one the sum of the tree's
    /// processes, in which what relatives share counts for each of them.
    pub peak: u64,
    /// The most of the cgroup's that there was for [`LASTING`] on end, in bytes; 0 without one.
    pub lasting: u64,
    /// Peak of the cgroup, page cache included; 0 without one.
    pub group_peak: u64,
    /// Processes the kernel killed for memory; 0 without a cgroup.
    pub kills: u64,
}

/// How long memory is in use that more than passes.
pub const LASTING: Duration = Duration::from_millis(500);

/// Anonymous memory of a run, by samples.
#[derive(Default)]
struct Memory {
    peak: u64,
    lasting: u64,
    /// Samples of the last [`LASTING`].
    recent: VecDeque<(Instant, u64)>,
}

impl Memory {
    fn sample(&mut self, bytes: u64) {
        let now = Instant::now();
        self.peak = self.peak.max(bytes);
        self.recent.push_back((now, bytes));
        while self
            .recent
            .get(1)
            .is_some_and(|second| now - second.0 >= LASTING)
        {
            self.recent.pop_front();
        }
        // Few of them may be peaks, all.
        if now - self.recent[0].0 >= LASTING && self.recent.len() >= 10 {
            let least = self.recent.iter().map(|sample| sample.1).min();
            self.lasting = self.lasting.max(least.unwrap_or(0));
        }
    }
}

impl Job {
    /// A command, its program first.
    pub fn new<S: AsRef<OsStr>>(argv: impl IntoIterator<Item = S>) -> Self {
        let argv = argv
            .into_iter()
            .map(|s| s.as_ref().to_os_string())
            .collect();
        Self {
            argv,
            env: Vec::new(),
            dir: None,
            time_limit: Duration::from_secs(120),
        }
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// Sets a variable, unless it was set before.
    pub fn default_env(self, name: &str, value: &str) -> Self {
        match self.env.iter().any(|(has, _)| has == name) {
            true => self,
            false => self.env(name, value),
        }
    }

    /// Where it runs.
    pub fn dir(mut self, dir: impl Into<std::path::PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// After this it is killed, with all it started in its process group and cgroup.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// The same command behind others: `ebb run ... --`.
    pub fn behind<S: AsRef<OsStr>>(mut self, wrapper: impl IntoIterator<Item = S>) -> Self {
        let front: Vec<OsString> = wrapper
            .into_iter()
            .map(|s| s.as_ref().to_os_string())
            .collect();
        self.argv.splice(0..0, front);
        self
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run(&self, group: Option<&Cgroup>) -> Result<Outcome> {
        let (mut out, mut err) = (scratch()?, scratch()?);
        let mut command = match group {
            // The shell moves itself in before it becomes the command, so that no page of it
            // is ever charged elsewhere.
            Some(group) => {
                let mut shell = Command::new("/bin/sh");
                shell
                    .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
                    .arg(group.procs_file())
                    .args(&self.argv);
                shell
            }
            None => {
                let mut plain = Command::new(&self.argv[0]);
                plain.args(&self.argv[1..]);
                plain
            }
        };
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(err.try_clone()?)
            .process_group(0);
        let (user, system) = children_seconds();
        let start = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {:?}", self.argv[0]))?;
        let mut stood = String::new();
        let (status, memory) = self.watch(&mut child, start, group, &mut stood)?;
        let wall = start.elapsed().as_secs_f64();
        let (user_after, system_after) = children_seconds();
        let mut text = Vec::new();
        err.rewind()?;
        err.read_to_end(&mut text)?;
        let mut stdout = Vec::new();
        out.rewind()?;
        out.read_to_end(&mut stdout)?;
        Ok(Outcome {
            status,
            stdout,
            stderr: String::from_utf8_lossy(&text).into_owned() + &stood,
            wall,
            user: user_after - user,
            system: system_after - system,
            peak: memory.peak,
            lasting: group.map_or(0, |_| memory.lasting),
            group_peak: group.map_or(0, Cgroup::peak),
            kills: group.map_or(0, Cgroup::kills),
        })
    }

    fn watch(
        &self,
        child: &mut Child,
        start: Instant,
        group: Option<&Cgroup>,
        stood: &mut String,
    ) -> Result<(Option<ExitStatus>, Memory)> {
        let mut memory = Memory::default();
        // Often at first, for programs that live milliseconds; then so that it costs nothing.
        let mut pause = Duration::from_micros(500);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((Some(status), memory));
            }
            memory.sample(match group {
                Some(group) => group.anonymous(),
                None => tree_memory(child.id()),
            });
            if start.elapsed() > self.time_limit {
                *stood = standstill::describe(&match group {
                    Some(group) => group.processes(),
                    None => descendants(child.id()),
                });
                if let Some(group) = group {
                    group.kill_all();
                }
                let pid = rustix::process::Pid::from_child(child);
                let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
                child.wait()?;
                return Ok((None, memory));
            }
            std::thread::sleep(pause);
            pause = (pause * 5 / 4).min(Duration::from_millis(10));
        }
    }
}

impl Outcome {
    /// Exited with 0.
    pub fn ok(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// In a word or two, for tables and messages.
    pub fn ending(&self) -> String {
        match self.status {
            None => "out of time".into(),
            _ if self.kills > 0 => "killed for memory".into(),
            Some(status) => match (status.code(), status.signal()) {
                (Some(0), _) => "finished".into(),
                (Some(code), _) => format!("exit {code}"),
                (_, Some(signal)) => format!("signal {signal}"),
                _ => "?".into(),
            },
        }
    }

    /// The "phase NAME us_per_page N" lines of its standard error.
    pub fn phases(&self) -> HashMap<String, f64> {
        let line = |line: &str| {
            let mut words = line.strip_prefix("phase ")?.split_whitespace();
            let name = words.next()?.to_string();
            Some((name, words.nth(1)?.parse().ok()?))
        };
        self.stderr.lines().filter_map(line).collect()
    }
}

/// An unnamed file for a program's output.
fn scratch() -> Result<File> {
    let path = std::env::temp_dir().join(format!(
        "ebb-output-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// User and system seconds of all children waited for.
fn children_seconds() -> (f64, f64) {
    let stat = Process::myself().and_then(|process| process.stat());
    let (user, system) = stat.map_or((0, 0), |stat| (stat.cutime, stat.cstime));
    let seconds = |ticks: i64| ticks as f64 / procfs::ticks_per_second() as f64;
    (seconds(user), seconds(system))
}

/// Anonymous resident bytes of a process and all under it.
fn tree_memory(pid: u32) -> u64 {
    let status = Process::new(pid as i32).and_then(|process| process.status());
    let own = status.ok().and_then(|status| status.rssanon).unwrap_or(0);
    (own << 10) + children(pid).into_iter().map(tree_memory).sum::<u64>()
}

/// A process and all under it.
fn descendants(pid: u32) -> Vec<u32> {
    let under = children(pid).into_iter().flat_map(descendants);
    [pid].into_iter().chain(under).collect()
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = Process::new(pid as i32).and_then(|process| process.tasks());
    let tasks = tasks.into_iter().flatten().flatten();
    tasks
        .flat_map(|task| task.children().unwrap_or_default())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_status_and_phases() {
        let script = "echo out; echo phase one us_per_page 1.5 >&2; exit 3";
        let outcome = Job::new(["sh", "-c", script]).run(None).unwrap();
        assert_eq!(outcome.stdout, b"out\n");
        assert_eq!(outcome.ending(), "exit 3");
        assert_eq!(outcome.phases()["one"], 1.5);
    }

    #[test]
    fn the_time_limit_ends_what_hangs_and_what_it_started() {
        let job =
            Job::new(["sh", "-c", "sleep 600 & sleep 600"]).time_limit(Duration::from_millis(200));
        let start = Instant::now();
        assert!(job.run(None).unwrap().status.is_none());
        // gdb reads the stacks of three processes, and has twenty seconds for each.
        assert!(start.elapsed() < Duration::from_secs(120));
    }

    #[test]
    fn a_hard_limit_kills() {
        if let Some(why) = crate::cgroup::unavailable() {
            println!("skipped: no memory cgroup: {why}");
            return;
        }
        let group = Cgroup::new(32 << 20, crate::cgroup::KernelSwap::Forbidden).unwrap();
        let outcome = Job::new(["sh", "-c", "head -c 100000000 /dev/zero | tail -c 90000000"])
            .run(Some(&group))
            .unwrap();
        assert!(outcome.kills > 0, "{}", outcome.ending());
    }
}
