//! The real programs everything is measured with: see `bench/`.

use crate::job::Job;
use crate::tools;
use anyhow::{Context, Error, Result, bail};
use std::ffi::OsString;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

/// How large to run it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// The benchmark: the sizes at which the promises are made. At their peaks 1024 MiB (`touch`), 1540
    /// (`numpy-sort`), 950 (`python-heap`), 340 (`sqlite`), 690 (`redis`), 750 and 870 (`gnu-sort` in one
    /// thread and two), 600 (`c++-compiler`), 620 (`make-j2`), 360 (`java`), 620 (`node`), 480
    /// (`redis-bgsave`), 950 (`python-fork`); what forked processes share counts once.
    Full,
    /// Half of that.
    Half,
    /// About 100 to 200 MiB, for tests.
    Small,
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Half => "half",
            Self::Small => "small",
        })
    }
}

impl FromStr for Scale {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::Full, Self::Half, Self::Small];
        let found = all.into_iter().find(|scale| scale.to_string() == name);
        found.context("full, half or small")
    }
}

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Page touching in C, one thread.
    Touch,
    /// The same with two threads.
    TouchThreads,
    /// The same with four, twice as many as most machines that measure have processors.
    TouchFourThreads,
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
    /// A C++ compiler, one run.
    Compiler,
    /// `make -j2`: several runs of it, two at a time.
    Make,
    /// The JVM.
    Java,
    /// Node.js.
    Node,
    /// redis-server that saves its data from a forked child (BGSAVE).
    RedisSave,
    /// Python's multiprocessing with fork.
    PythonFork,
    /// A shell that starts one small process after the other.
    Processes,
}

impl Workload {
    /// All.
    pub const ALL: [Workload; 16] = [
        Workload::Touch,
        Workload::TouchThreads,
        Workload::TouchFourThreads,
        Workload::Numpy,
        Workload::Heap,
        Workload::Sqlite,
        Workload::Redis,
        Workload::Sort,
        Workload::SortThreads,
        Workload::Compiler,
        Workload::Make,
        Workload::Java,
        Workload::Node,
        Workload::RedisSave,
        Workload::PythonFork,
        Workload::Processes,
    ];

    /// Short name for tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Touch => "touch",
            Workload::TouchThreads => "touch-2-threads",
            Workload::TouchFourThreads => "touch-4-threads",
            Workload::Numpy => "numpy-sort",
            Workload::Heap => "python-heap",
            Workload::Sqlite => "sqlite",
            Workload::Redis => "redis",
            Workload::Sort => "gnu-sort",
            Workload::SortThreads => "gnu-sort-2-threads",
            Workload::Compiler => "c++-compiler",
            Workload::Make => "make-j2",
            Workload::Java => "java",
            Workload::Node => "node",
            Workload::RedisSave => "redis-bgsave",
            Workload::PythonFork => "python-fork",
            Workload::Processes => "processes",
        }
    }

    /// Mebibytes, rows, records, keys, lines, functions: what its first argument counts.
    fn size(self, scale: Scale) -> u64 {
        let (full, small) = match self {
            Workload::Touch | Workload::TouchThreads | Workload::TouchFourThreads => (1024, 160),
            Workload::Numpy => (40_000_000, 2_600_000),
            Workload::Heap => (2_000_000, 130_000),
            Workload::Sqlite => (2_500_000, 150_000),
            Workload::Redis => (1_500_000, 250_000),
            Workload::Sort | Workload::SortThreads => (8_000_000, 100_000),
            Workload::Compiler => (100, 12),
            Workload::Make => (30, 8),
            Workload::Java => (2_000_000, 350_000),
            Workload::Node => (3_000_000, 250_000),
            Workload::RedisSave => (500_000, 110_000),
            Workload::PythonFork => (2_000_000, 700_000),
            Workload::Processes => (400, 100),
        };
        match scale {
            Scale::Full => full,
            Scale::Half => full / 2,
            Scale::Small => small,
        }
    }

    /// The command of this size.
    ///
    /// # Errors
    /// Names the program that is missing.
    pub fn job(self, scale: Scale) -> Result<Job> {
        let size = self.size(scale).to_string();
        let (command, more) = self.command(scale)?;
        let argv = command.into_iter().chain([size.into()]);
        let argv = argv.chain(more.iter().map(OsString::from));
        let time_limit = match scale {
            Scale::Full | Scale::Half => Duration::from_secs(900),
            Scale::Small => Duration::from_secs(300),
        };
        let job = Job::new(argv).time_limit(time_limit);
        Ok(match tools::redis() {
            Some(redis) => job.env("EBB_REDIS", redis),
            None => job,
        })
    }

    /// The command without its size, and the words after that.
    fn command(self, scale: Scale) -> Result<(Vec<OsString>, &'static [&'static str])> {
        let script = |name: &str| tools::project().join("bench").join(name).into_os_string();
        let program = |name: &str| {
            let missing = || format!("{name} is not installed");
            tools::in_path(name).with_context(missing)
        };
        let python = |name: &str| -> Result<Vec<OsString>> {
            let python = tools::python().context("python3 is not installed")?;
            Ok(vec![python.into(), script(name)])
        };
        let sort = vec![script("sort_text.sh")];
        Ok(match self {
            Workload::Touch => (vec![touch()?.into()], &[]),
            Workload::TouchThreads => (vec![touch()?.into()], &["128", "1", "2"]),
            Workload::TouchFourThreads => (vec![touch()?.into()], &["128", "1", "4"]),
            Workload::Numpy => {
                tools::python_with("numpy").context("NumPy is not installed")?;
                (python("numpy_sort.py")?, &[])
            }
            // In tests fewer and larger things, and few lookups: a quarter of the memory makes each cost many faults.
            Workload::Heap if scale == Scale::Small => (python("python_heap.py")?, &["500"]),
            Workload::Heap => (python("python_heap.py")?, &[]),
            Workload::Sqlite if scale == Scale::Small => {
                (python("sqlite_memory.py")?, &["1000", "700"])
            }
            Workload::Sqlite => (python("sqlite_memory.py")?, &[]),
            Workload::Redis => {
                tools::redis().context("redis-server is not installed")?;
                (python("redis_kv.py")?, &[])
            }
            Workload::Sort if scale == Scale::Small => (sort, &["1", "1100"]),
            Workload::Sort => (sort, &["1"]),
            Workload::SortThreads if scale == Scale::Small => (sort, &["2", "1100"]),
            Workload::SortThreads => (sort, &["2"]),
            Workload::Compiler => {
                program("g++")?;
                (vec![script("compile_cpp.sh")], &[])
            }
            Workload::Make => {
                program("g++")?;
                program("make")?;
                let files: &[&str] = if scale == Scale::Small {
                    &["2"]
                } else {
                    &["4"]
                };
                (vec![script("compile_cpp.sh")], files)
            }
            // Collectors size their heaps by the memory of the cgroup, which is what differs here.
            Workload::Java => {
                program("javac")?;
                let options = ["-Xms64m", "-Xmx1g", "-XX:+UseSerialGC"].map(OsString::from);
                let mut command = vec![program("java")?.into()];
                command.extend(options);
                command.push(script("Maps.java"));
                (command, &[])
            }
            Workload::Node => {
                let heap = "--max-old-space-size=2048".into();
                (vec![program("node")?.into(), heap, script("maps.js")], &[])
            }
            Workload::RedisSave => {
                tools::redis().context("redis-server is not installed")?;
                program("redis-check-rdb")?;
                (python("redis_bgsave.py")?, &[])
            }
            Workload::PythonFork => (python("python_fork.py")?, &[]),
            Workload::Processes => (vec![script("processes.sh")], &[]),
        })
    }
}

/// Compiles `bench/touch.c` once per version of it.
fn touch() -> Result<PathBuf> {
    compile("bench/touch.c")
}

/// Compiles a C program of the project into target/tools, with the headers beside it, unless what lies there was
/// made of the same.
///
/// # Errors
/// No compiler, or its message.
pub fn compile(source: &str) -> Result<PathBuf> {
    compile_with("cc", &["-O2", "-pthread", "-Wall"], source)
}

/// The same by this compiler, with these options.
///
/// # Errors
/// As above.
pub fn compile_with(compiler: &str, options: &[&str], source: &str) -> Result<PathBuf> {
    let source = tools::project().join(source);
    // By content: a time of change says little where trees are copied.
    let mut hasher = DefaultHasher::new();
    (compiler, options).hash(&mut hasher);
    for file in std::iter::once(source.clone()).chain(headers_beside(&source)) {
        let text = std::fs::read(&file).with_context(|| file.display().to_string())?;
        text.hash(&mut hasher);
    }
    let name = format!("target/tools/{:016x}", hasher.finish());
    let tools_dir = tools::project().join(name);
    std::fs::create_dir_all(&tools_dir)?;
    let program = tools_dir.join(source.file_stem().context("no file name")?);
    if program.exists() {
        return Ok(program);
    }
    // Under a name of its own, then renamed: several tests may want it at once.
    let fresh = tools_dir.join(format!(
        "{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let output = Command::new(compiler)
        .args(options)
        .arg("-o")
        .args([&fresh, &source])
        .output()
        .with_context(|| format!("no compiler: install {compiler}"))?;
    if !output.status.success() {
        bail!(
            "{compiler} {}: {}",
            source.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    std::fs::rename(&fresh, &program)?;
    Ok(program)
}

/// The headers in a source's directory, in the order of their names.
fn headers_beside(source: &Path) -> Vec<PathBuf> {
    let entries = source.parent().and_then(|dir| std::fs::read_dir(dir).ok());
    let files = entries.into_iter().flatten().flatten();
    let paths = files.map(|entry| entry.path());
    let mut headers: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|kind| kind == "h"))
        .collect();
    headers.sort();
    headers
}
