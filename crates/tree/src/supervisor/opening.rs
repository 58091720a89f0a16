//! Opening a device that is added while the tree runs.
//!
//! Nobody may answer for a file: its server is gone or hangs (NFS, FUSE), or its disk is suspended. A look at it, an open
//! or a read then never returns. So a thread of its own does all of that, and each tick looks whether it is done:
//! ```text
//! asked ──▶ thread: is it ours? open it; make leases ──▶ mark it as swap ──▶ a row; the command is told
//!              │ it is refused                              the command is told
//!              └ it takes longer than PATIENCE, or the command goes away: what is opened later is closed
//! ```
//! For each thread a row is kept, so nothing refuses a device once it is marked. A thread that hangs cannot be ended: it
//! is left, and keeps its row.

use super::clients::{answer, is_gone, progress};
use super::devices::TreeDevice;
use super::{SetupDevice, Supervisor};
use crate::protocol::Reply;
use crate::{MAX_DEVICES, SetupError};
use ebb_stores::{FileIdentity, PendingHeader, SwapSpec};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How long a device may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the command hears that it is waited for.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a thread that is given up has to end, before the process is split.
const ENDS: Duration = Duration::from_millis(500);

/// Opens what is named while the tree runs. It changes nothing: the header is to be written before data is.
pub type Opener = fn(&SwapSpec) -> Result<(SetupDevice, Option<PendingHeader>), String>;

/// A device that is being opened.
pub(super) struct Opening {
    /// The text that names it.
    spec: String,
    /// The command that asked; none: it was told that the device is given up.
    client: Option<OwnedFd>,
    since: Instant,
    reported: Instant,
    work: Work,
}

/// The thread that opens it.
struct Work {
    thread: JoinHandle<Result<TreeDevice, String>>,
    /// Flag: nobody waits for it.
    is_given_up: Arc<AtomicBool>,
}

impl Opening {
    /// The command is told, and what the thread opens is closed by it.
    fn give_up(&mut self, why: &str) {
        self.work.is_given_up.store(true, SeqCst);
        if let Some(client) = self.client.take() {
            let text = format!("swap {}: {why}", self.spec);
            answer(&client, Reply::Failed(text));
        }
    }
}

impl Work {
    fn begin(
        open: Opener,
        spec: SwapSpec,
        own: Vec<(Option<FileIdentity>, String)>,
    ) -> Result<Self, String> {
        let is_given_up = Arc::new(AtomicBool::new(false));
        let seen = is_given_up.clone();
        let thread = Builder::new()
            .name("opening".into())
            .spawn(move || open_marked(open, &spec, &own, &seen))
            .map_err(|e| format!("no thread can be started to open it: {e}; raise `ulimit -u`"))?;
        Ok(Self {
            thread,
            is_given_up,
        })
    }
}

/// Opens a device that is none of our `own`, and marks it as swap: all that may hang.
fn open_marked(
    open: Opener,
    spec: &SwapSpec,
    own: &[(Option<FileIdentity>, String)],
    is_given_up: &AtomicBool,
) -> Result<TreeDevice, String> {
    let own = own
        .iter()
        .map(|(identity, path)| (*identity, path.as_str()));
    FileIdentity::refuse(spec, own).map_err(|e| e.to_string())?;
    let (device, pending_header) = open(spec)?;
    let device = TreeDevice::new(device).map_err(|e| e.to_string())?;
    let check_wanted = || match is_given_up.load(SeqCst) {
        true => Err("nobody waits for it any more".to_owned()),
        false => Ok(()),
    };
    check_wanted()?;
    // Nothing refuses the device after this, unless this hangs: what it held is gone.
    if let Some(header) = pending_header {
        header.write().map_err(|e| e.to_string())?;
    }
    check_wanted()?;
    Ok(device)
}

impl Supervisor {
    /// Begins to open a device, for a command that waits for it.
    pub(super) fn switch_on(&mut self, spec: String, client: OwnedFd) {
        let now = Instant::now();
        match self.begin_opening(&spec) {
            Ok(work) => {
                self.openings.push(Opening {
                    spec,
                    client: Some(client),
                    since: now,
                    reported: now,
                    work,
                });
                self.due = now;
            }
            Err(why) => answer(&client, Reply::Failed(why)),
        }
    }

    fn begin_opening(&self, spec: &str) -> Result<Work, String> {
        let free = self.rows.iter().filter(|row| row.is_none()).count();
        if free <= self.openings.len() {
            return Err(SetupError::TooManyDevices(MAX_DEVICES + 1).to_string());
        }
        let open = self.open.ok_or("this tree takes no devices")?;
        let parsed = spec.parse().map_err(|e| format!("swap {spec}: {e}"))?;
        let rows = self.rows.iter().flatten();
        let own = rows.map(|row| (row.identity, row.name.clone()));
        Work::begin(open, parsed, own.collect())
    }

    pub(super) fn is_opening(&self) -> bool {
        self.openings.iter().any(|opening| opening.client.is_some())
    }

    /// Takes devices that have been opened, and gives up those that take too long.
    pub(super) fn check_openings(&mut self) {
        for mut opening in std::mem::take(&mut self.openings) {
            if opening.client.as_ref().is_some_and(is_gone) {
                opening.give_up("it was taken back");
            }
            if opening.work.thread.is_finished() {
                self.end_opening(opening);
                continue;
            }
            let waited = opening.since.elapsed();
            if waited > PATIENCE {
                opening.give_up(
                    "nobody answers for it, and it is given up: look after its server or its disk, or give another",
                );
            } else if let Some(client) = &opening.client
                && opening.reported.elapsed() > REPORT_INTERVAL
            {
                opening.reported = Instant::now();
                let seconds = waited.as_secs();
                progress(client, format!("it is opened: {seconds} s so far"));
            }
            self.openings.push(opening);
        }
    }

    fn end_opening(&mut self, opening: Opening) {
        let failed = |_| Err("its thread has failed".to_owned());
        let opened = opening.work.thread.join().unwrap_or_else(failed);
        let Some(client) = opening.client else {
            return;
        };
        let reply = match opened.and_then(|device| self.begin_use(device)) {
            Ok(text) => Reply::Done(text),
            Err(why) => Reply::Failed(why),
        };
        answer(&client, reply);
    }

    fn begin_use(&mut self, device: TreeDevice) -> Result<String, String> {
        let free = self.free_row().map_err(|e| e.to_string())?;
        let (name, size) = (device.name.clone(), device.facts.slots / 256);
        let serial = self.fill_row(free, device);
        Ok(format!("device {serial}: {name}, {size} MiB, is in use"))
    }

    /// Gives up all devices that are being opened, before this process is split: only one of one thread can be.
    pub fn stop_opening(&mut self) {
        for opening in &mut self.openings {
            opening.give_up("the program has ended: ask again");
        }
        let until = Instant::now() + ENDS;
        let hangs = |opening: &Opening| !opening.work.thread.is_finished();
        while self.openings.iter().any(hangs) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.check_openings();
    }
}
