//! The real programs everything is measured with: see `bench/`.

use crate::job::Job;
use crate::tools;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// How large to run it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// A gibibyte for `touch`, about 300 MiB for the others: the benchmark.
    Full,
    /// About 100 to 200 MiB, for tests.
    Small,
}

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Page touching in C, one thread.
    Touch,
    /// The same with two threads.
    TouchThreads,
    /// NumPy.
    Numpy,
    /// A Python heap.
    Heap,
    /// SQLite in memory.
    Sqlite,
    /// redis-server with a client.
    Redis,
    /// GNU sort.
    Sort,
    /// GNU sort with two threads.
    SortThreads,
}

impl Workload {
    /// All.
    pub const ALL: [Workload; 8] = [
        Workload::Touch,
        Workload::TouchThreads,
        Workload::Numpy,
        Workload::Heap,
        Workload::Sqlite,
        Workload::Redis,
        Workload::Sort,
        Workload::SortThreads,
    ];

    /// Short name for tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Touch => "touch",
            Workload::TouchThreads => "touch-2-threads",
            Workload::Numpy => "numpy-sort",
            Workload::Heap => "python-heap",
            Workload::Sqlite => "sqlite",
            Workload::Redis => "redis",
            Workload::Sort => "gnu-sort",
            Workload::SortThreads => "gnu-sort-2-threads",
        }
    }

    /// The command of this size.
    ///
    /// # Errors
    /// Names the program that is missing.
    pub fn job(self, scale: Scale) -> Result<Job> {
        let size = |full: u64, small: u64| match scale {
            Scale::Full => full.to_string(),
            Scale::Small => small.to_string(),
        };
        let python = || tools::python().context("python3 is not installed");
        let script = |name: &str| tools::project().join("bench").join(name);
        let text = |s: &str| OsString::from(s);
        let argv: Vec<OsString> = match self {
            Workload::Touch => vec![touch()?.into(), size(1024, 160).into()],
            Workload::TouchThreads => {
                vec![
                    touch()?.into(),
                    size(1024, 160).into(),
                    text("128"),
                    text("1"),
                    text("2"),
                ]
            }
            Workload::Numpy => {
                let python = tools::python_with("numpy").context("NumPy is not installed")?;
                vec![
                    python.into(),
                    script("numpy_sort.py").into(),
                    size(10_000_000, 2_000_000).into(),
                ]
            }
            Workload::Heap => {
                vec![
                    python()?.into(),
                    script("python_heap.py").into(),
                    size(500_000, 120_000).into(),
                ]
            }
            Workload::Sqlite => {
                vec![
                    python()?.into(),
                    script("sqlite_memory.py").into(),
                    size(1_000_000, 400_000).into(),
                ]
            }
            Workload::Redis => {
                tools::redis().context("redis-server is not installed")?;
                vec![
                    python()?.into(),
                    script("redis_kv.py").into(),
                    size(500_000, 250_000).into(),
                ]
            }
            Workload::Sort => vec![
                script("sort_text.sh").into(),
                size(3_000_000, 1_000_000).into(),
                text("1"),
            ],
            Workload::SortThreads => {
                vec![
                    script("sort_text.sh").into(),
                    size(3_000_000, 1_000_000).into(),
                    text("2"),
                ]
            }
        };
        let time_limit = match scale {
            Scale::Full => Duration::from_secs(900),
            Scale::Small => Duration::from_secs(300),
        };
        let job = Job::new(argv).time_limit(time_limit);
        Ok(match tools::redis() {
            Some(redis) => job.env("EBB_REDIS", redis),
            None => job,
        })
    }
}

/// Compiles `bench/touch.c` once per version of it.
fn touch() -> Result<PathBuf> {
    compile("bench/touch.c")
}

/// Compiles a C program of the project into target/tools, if it is newer than what lies there.
///
/// # Errors
/// No compiler, or its message.
pub fn compile(source: &str) -> Result<PathBuf> {
    let source = tools::project().join(source);
    let tools_dir = tools::project().join("target/tools");
    std::fs::create_dir_all(&tools_dir)?;
    let program = tools_dir.join(source.file_stem().context("no file name")?);
    let time = |file: &PathBuf| {
        std::fs::metadata(file)
            .and_then(|meta| meta.modified())
            .ok()
    };
    if time(&program).is_some_and(|built| Some(built) > time(&source)) {
        return Ok(program);
    }
    // Under a name of its own, then renamed: several tests may want it at once.
    let fresh = tools_dir.join(format!(
        "{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let output = Command::new("cc")
        .args(["-O2", "-pthread", "-Wall", "-o"])
        .args([&fresh, &source])
        .output()
        .context("no C compiler: install gcc")?;
    if !output.status.success() {
        bail!(
            "cc {}: {}",
            source.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    std::fs::rename(&fresh, &program)?;
    Ok(program)
}
