//! Asking the supervisor to join its tree.

use crate::protocol::{self, ControlName, Hello, JoinReply, Settings};
use crate::table::{ChildSlot, SlotNumber};
use ebb_sys::paging::MemoryDescriptors;
use ebb_sys::{credentials, peer, proc, program};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

const ROOT: u32 = 0;

/// How long to wait at a time for the supervisor's answer. One that is stopped, as a shell's job is, goes on later, and
/// whoever needs the answer waits again, after a look at what else has come.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a process could not join its tree. It can run unmanaged; its memory is then measured
/// and counted, but not paged.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The value of EBB_CONTROL is not one of ours.
    #[error("EBB_CONTROL is {0:?}, which `ebb run` did not set; unset it")]
    Control(String),
    /// Nobody listens, or somebody else: the supervisor is gone, or lives in another network namespace.
    #[error("cannot reach the `ebb run` that started this tree: {0}; start it again")]
    Connect(Errno),
    /// The supervisor said no.
    #[error("`ebb run` refused this process: {0}")]
    Refused(String),
    /// The connection broke or said something unexpected.
    #[error("`ebb run` did not answer as expected ({0}); are ebb and its library of one version?")]
    Protocol(&'static str),
    /// The supervisor could not hand over a device of the tree.
    #[error(
        "`ebb run` cannot hand over a swap device; is it out of descriptors? raise `ulimit -n`"
    )]
    NotGiven,
    /// The pidfd does not say which process the program is.
    #[error("cannot tell the program's process: {0}; is /proc mounted?")]
    Program(Errno),
    /// The received descriptor could not be mapped.
    #[error("cannot map the table shared with `ebb run`: {0}; raise the limit on address space")]
    Map(Errno),
}

const LATE: &str = "no answer in time";

impl JoinError {
    /// Whether the supervisor has not answered yet, and may be asked again.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Protocol(LATE))
    }
}

/// The supervisor's welcome.
pub struct Welcome {
    pub connection: OwnedFd,
    pub slot: SlotNumber,
    pub settings: Settings,
    pub table: Option<OwnedFd>,
    /// The place where this process is of another user than the supervisor.
    pub memory: Option<MemoryDescriptors>,
}

/// The number of the program's process: of the one `program` stands for, or of this one.
pub fn number_of(program: Option<BorrowedFd<'_>>) -> Result<u32, JoinError> {
    match program {
        Some(pidfd) => proc::pidfd_target(pidfd)
            .map(|target| target.own_pid)
            .map_err(JoinError::Program),
        None => Ok(std::process::id()),
    }
}

/// A request to join.
pub struct JoinRequest<'a> {
    pub control: &'a str,
    /// The user of the supervisor.
    pub uid: u32,
    pub reserved: Option<ChildSlot>,
    pub program: Option<BorrowedFd<'a>>,
    /// The program's.
    pub pid: u32,
}

/// Connects, says hello, and waits for the answer.
pub fn request_join(request: &JoinRequest<'_>) -> Result<Welcome, JoinError> {
    // Root's supervisor judges by who connects: a program of root's that is another user for a while is root's.
    let (mut socket, user) = credentials::as_user(ROOT, || connect(request))?;
    if user != ROOT && credentials::can_become(ROOT) {
        (socket, _) = connect(request)?;
    }
    for way in [net::sockopt::Timeout::Recv, net::sockopt::Timeout::Send] {
        net::sockopt::set_socket_timeout(&socket, way, Some(ANSWER_TIMEOUT))
            .map_err(JoinError::Connect)?;
    }
    let hello = Hello::new(request.pid, request.reserved).encode();
    match retry(|| protocol::send(&socket, &hello, request.program.as_slice())) {
        // It has closed already: its reason is waiting for us.
        Ok(()) | Err(Errno::PIPE) => {}
        Err(e) => return Err(JoinError::Connect(e)),
    }
    let (packet, fds) = await_answer(&socket, request)?;
    if packet.is_empty() && request.reserved.is_some() {
        // It refuses with a word. If it has ended, nobody listens any more.
        connect(request)?;
    }
    match JoinReply::decode(&packet) {
        Some(JoinReply::Welcome(slot, settings)) => {
            let mut fds = fds.into_iter();
            let table = fds.next();
            let given = <[OwnedFd; 3]>::try_from(fds.collect::<Vec<_>>()).ok();
            Ok(Welcome {
                connection: socket,
                slot,
                settings,
                table,
                memory: given.map(|[device, pagemap, memory]| MemoryDescriptors {
                    device,
                    pagemap,
                    memory,
                }),
            })
        }
        Some(JoinReply::Refused(why)) => Err(JoinError::Refused(why.to_owned())),
        None if packet.is_empty() => Err(JoinError::Protocol("it closed the connection")),
        None => Err(JoinError::Protocol("an unknown packet")),
    }
}

/// A connection to the supervisor, and its user.
fn connect(request: &JoinRequest<'_>) -> Result<(OwnedFd, u32), JoinError> {
    let control = request.control;
    let unknown = || JoinError::Control(control.to_owned());
    let name = ControlName::parse(control).ok_or_else(unknown)?;
    let address = protocol::address(control).ok_or_else(unknown)?;
    let socket = protocol::open(SocketFlags::empty()).map_err(JoinError::Connect)?;
    retry(|| net::connect(&socket, &address)).map_err(JoinError::Connect)?;
    let peer = peer::of(socket.as_fd()).map_err(|e| JoinError::Connect(e.into()))?;
    // A program that began as root's may be another's by now.
    if !name.is_listener(peer, request.uid) && !name.is_listener(peer, ROOT) {
        // As if it were not there.
        return Err(JoinError::Connect(Errno::CONNREFUSED));
    }
    Ok((socket, peer.uid))
}

/// Waits for the answer as long as there are a supervisor, which may be stopped, and the program.
fn await_answer(
    socket: &OwnedFd,
    request: &JoinRequest<'_>,
) -> Result<(Vec<u8>, Vec<OwnedFd>), JoinError> {
    loop {
        #[cfg(debug_assertions)]
        crate::waits::wait_until_readable(socket.as_fd());
        match protocol::receive(socket) {
            // A program that becomes another user waits until the calling thread has.
            Err(Errno::AGAIN) if !is_gone(request) => _ = credentials::follow(),
            received => return Ok(received?),
        }
    }
}

/// Whether the program has ended, or uses this process's memory no more, as after an exec.
fn is_gone(request: &JoinRequest<'_>) -> bool {
    request.program.is_some_and(proc::has_ended) || program::is_gone().is_some()
}

fn retry<T>(mut f: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match f() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

impl From<Errno> for JoinError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => JoinError::Protocol(LATE),
            errno => JoinError::Connect(errno),
        }
    }
}
