//! A command's side: asking the supervisor of a tree that runs.
//!
//! The supervisor is found from any process of the tree, or from its own number. The name of its socket
//! begins with its process number; no file stands for the name. So the sockets of this network namespace
//! are searched for the process and for its ancestors. Where that fails (the supervisor forked when its
//! program ended), the process's environment names the socket. Anybody can give a socket such a name. So
//! the listener must be the process in the name ([`ControlName`]) and of our own user. For root it may also
//! be of the user of the process that was named. The supervisor asks the same of us.

use super::{CONTROL_PREFIX, ControlName, MAX_REQUEST, Reply, Request, address};
use ebb_sys::peer;
use ebb_sys::proc::Process;
use rustix::io::Errno;
use rustix::net::{self, SendFlags, SocketFlags};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// The most generations that are looked at.
const GENERATIONS: usize = 256;

/// Why a supervisor could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No such process.
    #[error("there is no process {0}: give the number of an `ebb run`, or of a program under it")]
    NoProcess(u32),
    /// Neither it nor its ancestors supervise anything.
    #[error(
        "process {0} is not run by ebb, or not by yours: give the number of an `ebb run`, or of a program under it"
    )]
    NotManaged(u32),
    /// The request does not fit into a packet.
    #[error(
        "that is too long: at most {} bytes can be sent, so give a shorter path",
        MAX_REQUEST
    )]
    TooLong,
    /// The connection broke.
    #[error(
        "`ebb run` does not answer ({0}): it has ended, or is of another version: look whether it runs, and ask with its own ebb"
    )]
    Broken(Errno),
    /// It ended without an answer.
    #[error("`ebb run` ended before it answered: look whether the program still runs")]
    Ended,
}

/// A request under way. Dropping it before the last reply takes a removal back.
#[derive(Debug)]
pub struct Ask(OwnedFd);

impl Ask {
    /// Sends a request to the supervisor of the tree that process `pid` is in or supervises.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn send(pid: u32, request: &Request) -> Result<Self, AskError> {
        Self::send_on(|| find(pid), request)
    }

    /// The same to the supervisor that this process is or follows, whose `control_value` this is.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn send_to(control: &str, request: &Request) -> Result<Self, AskError> {
        let pid = std::process::id();
        let ours = || connect(control, &users_of(pid)).ok_or(AskError::NotManaged(pid));
        Self::send_on(ours, request)
    }

    fn send_on(
        connection: impl FnOnce() -> Result<OwnedFd, AskError>,
        request: &Request,
    ) -> Result<Self, AskError> {
        let packet = request.encode();
        if packet.len() > MAX_REQUEST {
            return Err(AskError::TooLong);
        }
        let connection = connection()?;
        match net::send(&connection, &packet, SendFlags::NOSIGNAL) {
            // Refused already: the reason waits to be read.
            Ok(_) | Err(Errno::PIPE) => Ok(Self(connection)),
            Err(errno) => Err(AskError::Broken(errno)),
        }
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// The supervisor ended, or said what cannot be understood.
    pub fn reply(&mut self) -> Result<Reply, AskError> {
        Reply::receive(&self.0)
            .map_err(AskError::Broken)?
            .ok_or(AskError::Ended)
    }
}

/// The supervisors of this user's trees, by their numbers; as root, of every user's.
pub fn trees() -> Vec<u32> {
    let us = rustix::process::geteuid().as_raw();
    let mut found: Vec<u32> = names()
        .iter()
        .filter_map(|name| {
            let pid = ControlName::parse(name)?.pid;
            let supervisor = connect(name, &users_of(pid))?;
            let user = peer::of(supervisor.as_fd()).ok()?.uid;
            (us == 0 || us == user).then_some(pid)
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The names of all supervisors' sockets.
fn names() -> Vec<String> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = sockets
        .lines()
        .filter_map(|line| line.split_whitespace().next_back()?.strip_prefix('@'))
        .filter(|name| name.starts_with(CONTROL_PREFIX));
    names.map(str::to_owned).collect()
}

fn find(pid: u32) -> Result<OwnedFd, AskError> {
    Process::open(pid).map_err(|_| AskError::NoProcess(pid))?;
    let users = users_of(pid);
    let names = names();
    let mut next = Some(pid);
    for _ in 0..GENERATIONS {
        let Some(pid) = next.filter(|&pid| pid > 0) else {
            break;
        };
        let own = format!("{}{pid}-", CONTROL_PREFIX);
        let own = names.iter().filter(|name| name.starts_with(&own));
        let named = environment(pid);
        for name in own.map(|name| name.to_string()).chain(named) {
            if let Some(connection) = connect(&name, &users) {
                return Ok(connection);
            }
        }
        next = parent(pid);
    }
    Err(AskError::NotManaged(pid))
}

/// The supervisor's name in a process's environment, as it was started.
fn environment(pid: u32) -> Option<String> {
    let all = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = all
        .split(|&byte| byte == 0)
        .find_map(|variable| variable.strip_prefix(b"EBB_CONTROL="))?;
    String::from_utf8(value.to_vec()).ok()
}

fn parent(pid: u32) -> Option<u32> {
    Some(Process::open(pid).ok()?.stat().ok()?.parent)
}

/// Users whose supervisor may be asked: ours, and as root that of process `pid` too.
fn users_of(pid: u32) -> Vec<u32> {
    let us = rustix::process::geteuid().as_raw();
    let mut users = vec![us];
    if us == 0
        && let Ok(owner) = fs::metadata(format!("/proc/{pid}"))
    {
        users.push(owner.uid());
    }
    users
}

fn connect(name: &str, users: &[u32]) -> Option<OwnedFd> {
    let socket = super::open(SocketFlags::empty()).ok()?;
    net::connect(&socket, &address(name)?).ok()?;
    let peer = peer::of(socket.as_fd()).ok()?;
    let name = ControlName::parse(name)?;
    let is_one = users.iter().any(|&uid| name.is_listener(peer, uid));
    is_one.then_some(socket)
}
