//! Starting, killing and watching processes.

use ebb_stores::{Facts, PendingHeader, SearchTime, SwapSpec, SwapTarget};
use ebb_sys::proc::Process;
use ebb_sys::shm::Area;
use ebb_tree::{Ask, Config, Limits, Reply, Request, Setup, SetupDevice, Supervisor};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long the device "hangs" takes to be opened.
pub const HANGS: Duration = Duration::from_secs(7);
/// The same of the device "slow", which is waited for.
pub const SLOW: Duration = Duration::from_secs(1);

/// Forks. The caller is single-threaded, so the child may do anything.
pub fn fork() -> Option<u32> {
    // SAFETY: no other thread exists in these programs, so no lock is held by one.
    match unsafe { libc::fork() } {
        0 => None,
        pid if pid > 0 => Some(pid as u32),
        _ => panic!("fork: {}", std::io::Error::last_os_error()),
    }
}

/// Closes what a forked member would not have inherited: its parent's service threads keep
/// their descriptors in a table of their own.
pub fn close_inherited() {
    // SAFETY: nothing in this process uses a descriptor from 3 on any more.
    unsafe { libc::close_range(3, u32::MAX, 0) };
}

pub fn kill(pid: u32, signal: i32) {
    // SAFETY: kill touches no memory. The pid is a child of ours that was not reaped.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Ends this process without running anything of it.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit does not return and touches no memory.
    unsafe { libc::_exit(status) }
}

pub fn descendants(of: u32) -> Vec<u32> {
    let mut all = vec![of];
    let mut i = 0;
    while i < all.len() {
        let _ = ebb_sys::proc::children(all[i], |pid| all.push(pid));
        i += 1;
    }
    all.remove(0);
    all
}

/// Runs `f` in a forked process that SIGALRM ends after `limit`; kills what it leaves behind.
pub fn in_a_process(limit: Duration, f: fn()) -> Result<(), String> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let Some(pid) = fork() else {
        // SAFETY: alarm touches no memory.
        unsafe { libc::alarm(limit.as_secs() as u32) };
        f();
        exit_now(0);
    };
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    unsafe { libc::waitpid(pid as i32, &mut status, 0) };
    // Processes that are left have become our children.
    loop {
        let left = descendants(std::process::id());
        if left.is_empty() {
            break;
        }
        left.iter().for_each(|&pid| kill(pid, libc::SIGKILL));
        // SAFETY: a null status is allowed.
        unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    }
    if libc::WIFSIGNALED(status) {
        return Err(match libc::WTERMSIG(status) {
            libc::SIGALRM => format!("not done after {} s", limit.as_secs()),
            signal => format!("killed by signal {signal}"),
        });
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        status => Err(format!("exit status {status}")),
    }
}

/// Pages of so many MiB.
pub const fn mib(n: u64) -> u64 {
    n << 8
}

/// A supervisor with one device, whose "file" is shared memory in which each cluster has a
/// stamp: what its owner wrote there.
pub struct Tree {
    pub sup: Supervisor,
    pub notices: Arc<Mutex<Vec<String>>>,
    pub stamps: &'static [AtomicU64],
}

impl Tree {
    pub fn new(budget_pages: u64, clusters: usize) -> Self {
        Self::with(budget_pages, clusters, Config::default())
    }

    pub fn with(budget_pages: u64, clusters: usize, config: Config) -> Self {
        let (area, fd) = Area::create("stamps", clusters * 8).unwrap();
        let notices = Arc::new(Mutex::new(Vec::new()));
        let sink = notices.clone();
        let facts = Facts::new(clusters as u64 * 512);
        // A SPEC is a number of clusters, one that hangs, or a real one.
        let open = |spec: &SwapSpec| {
            let SwapSpec::At(SwapTarget {
                path: Some(path), ..
            }) = spec
            else {
                return Err("no path".into());
            };
            let clusters: usize = match path.to_str() {
                Some(name @ ("hangs" | "slow")) => {
                    std::thread::sleep(if name == "slow" { SLOW } else { HANGS });
                    3
                }
                Some(text) if text.starts_with('/') => return open_file(spec),
                text => text.unwrap_or("").parse().map_err(|e| format!("{e}"))?,
            };
            let (_, fd) = Area::create("beside", clusters * 8).map_err(|e| format!("{e}"))?;
            let facts = Facts::new(clusters as u64 * 512);
            let device = SetupDevice {
                name: "beside".into(),
                fd,
                facts,
                priority: None,
            };
            Ok((device, None))
        };
        let sup = Supervisor::new(Setup {
            budget_pages,
            budgets: Box::new(|| 1..=1 << 40),
            limits: Limits::default(),
            devices: vec![SetupDevice {
                name: "stamps".into(),
                fd,
                facts,
                priority: Some(3),
            }],
            config,
            open: Some(open),
            guard: None,
            notices: Some(Box::new(move |line| {
                sink.lock().unwrap().push(line.to_owned());
                None
            })),
        })
        .unwrap();
        Self {
            sup,
            notices,
            stamps: area.many(0, clusters).unwrap(),
        }
    }

    /// Starts this program in a role.
    pub fn start(&self, role: &[&str]) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .arg("--role")
            .args(role)
            .env("EBB_CONTROL", self.sup.control_value())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Supervises until `done`, for at most `limit`; whether it was done.
    pub fn until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if done(self) {
                return true;
            }
            self.sup.step(Duration::from_millis(5)).unwrap();
        }
        done(self)
    }

    /// Supervises until a member has said `text`.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        let heard = self.until(Duration::from_secs(10), |tree| {
            tree.notices
                .lock()
                .unwrap()
                .iter()
                .any(|line| line.ends_with(text))
        });
        assert!(
            heard,
            "nobody said {text:?}: {:?}",
            self.notices.lock().unwrap()
        );
    }

    /// Supervises until the tree uses so many MiB, and a little longer: it must stay so.
    #[track_caller]
    pub fn settles_at(&mut self, range: std::ops::Range<u64>) {
        let inside = |tree: &mut Self| {
            let used = tree.sup.totals().used_pages;
            (mib(range.start)..mib(range.end)).contains(&used)
        };
        for _ in 0..5 {
            let settled = self.until(Duration::from_secs(5), |tree| inside(tree));
            assert!(settled, "{} pages used", self.sup.totals().used_pages);
            self.run_for(Duration::from_millis(200));
            if inside(self) {
                return;
            }
        }
        panic!(
            "{} pages used, and it does not settle",
            self.sup.totals().used_pages
        );
    }

    /// Asks the supervisor as a command does; the last reply.
    #[track_caller]
    pub fn ask(&mut self, request: Request) -> Reply {
        self.ask_of(std::process::id(), request)
    }

    /// The same, with any process of the tree.
    #[track_caller]
    pub fn ask_of(&mut self, pid: u32, request: Request) -> Reply {
        let mut ask = Ask::send(pid, &request).unwrap();
        let asking = std::thread::spawn(move || {
            loop {
                match ask.reply().unwrap() {
                    Reply::Progress(_) => {}
                    last => return last,
                }
            }
        });
        let answered = self.until(Duration::from_secs(10), |_| asking.is_finished());
        assert!(answered, "no answer to {request:?}");
        asking.join().unwrap()
    }

    pub fn run_for(&mut self, time: Duration) {
        self.until(time, |_| false);
    }

    /// Kills what this process and its children started. A process that dies meanwhile may hand on its children
    /// to a parent that was looked at before. So it is looked until only dead ones are left.
    #[track_caller]
    pub fn kill_all(&mut self) {
        let lives = |&pid: &u32| Process::open(pid).is_ok_and(|process| !process.has_ended());
        let dead = self.until(Duration::from_secs(10), |_| {
            let mut left = descendants(std::process::id());
            left.retain(lives);
            left.iter().for_each(|&pid| kill(pid, libc::SIGKILL));
            left.is_empty()
        });
        assert!(dead, "a killed process does not end");
    }

    /// Supervises until nobody is left, then checks that nothing is either.
    #[track_caller]
    pub fn expect_empty(&mut self) {
        let empty = self.until(Duration::from_secs(10), |tree| {
            // Our own memory is left.
            tree.sup.members() == 0
                && tree.sup.check().is_ok()
                && tree.sup.totals().used_pages < mib(16)
        });
        let (members, check) = (self.sup.members(), self.sup.check());
        let used = self.sup.totals().used_pages;
        assert!(
            empty,
            "{members} members left, {used} pages used, {check:?}"
        );
    }
}

/// Opens a SPEC as `ebb` does.
fn open_file(spec: &SwapSpec) -> Result<(SetupDevice, Option<PendingHeader>), String> {
    let look = SearchTime::AtMost(Duration::ZERO);
    let opened = ebb_stores::open(spec, &look).map_err(|e| e.to_string())?;
    let opened = opened.ok_or("none")?;
    let device = SetupDevice {
        name: opened.name,
        fd: opened.fd,
        facts: opened.facts,
        priority: opened.priority,
    };
    Ok((device, opened.pending_header))
}

/// The stamps of the device, from the descriptor that a member received.
pub fn stamps_of(fd: &OwnedFd) -> &'static [AtomicU64] {
    use std::os::fd::AsFd;
    let area = Area::map(fd.as_fd()).unwrap();
    area.many(0, area.len() / 8).unwrap()
}
