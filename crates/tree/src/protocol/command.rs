//! A command's side: asking the supervisor of a tree that runs.
//!
//! The supervisor is found from any process of the tree, or from its own number. The name of its socket
//! begins with its process number; no file stands for the name. So the sockets of this network namespace
//! are searched for the process and for its ancestors. Where that fails, the process's environment names the socket.
//! When a program ends and leaves processes behind, a copy of its supervisor carries on: the socket has the name that it
//! had, and the number of the copy. Anybody can give a socket such a name. So the listener must be the process in the
//! name ([`ControlName`]), or carry on for it, and of our own user. For root it may also be of the user of the process
//! that was named. The supervisor asks the same of us.
//!
//! Somebody may listen at many such names and accept nobody, so that nothing says who he is. He is not waited for: others
//! are asked in his place, and only where none of them answers is it said that a supervisor is silent.
//!
//! A supervisor in another network namespace cannot be reached; whoever asks for a process there is told where to ask.

use super::{CONTROL_PREFIX, ControlName, MAX_REQUEST, Reply, Request, address};
use ebb_sys::peer::{self, Peer};
use ebb_sys::proc::Process;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, SendFlags, SocketFlags};
use std::fmt::Display;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

/// The most generations that are looked at.
const GENERATIONS: usize = 256;
/// Time for a place in the queue of a supervisor, whichever it is. Only one that accepts nobody has none left.
const QUEUE: Duration = Duration::from_secs(2);
/// How often it is looked for one meanwhile.
const AGAIN: Duration = Duration::from_millis(20);

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
    /// There are supervisors where it is, and none of them can be reached from here.
    #[error(
        "process {0} is in another network namespace: ask there: `nsenter -t {0} -n -- ebb stats {0}`, or for a \
         container `docker exec CONTAINER ebb stats 1`"
    )]
    Elsewhere(u32),
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
    /// Nothing came within the time that the asker waits.
    #[error(
        "`ebb run` does not answer: if it is stopped (Ctrl-Z), continue it with `fg` or `kill -CONT`, else look whether it is busy"
    )]
    Silent,
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
        Self::send_on(&|| find(pid), request)
    }

    /// The same to the supervisor that this process is or follows, whose `control_value` this is.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn send_to(control: &str, request: &Request) -> Result<Self, AskError> {
        let pid = std::process::id();
        let ours = || match connect(control, &users_of(pid)) {
            Some(ours) => ours.map_err(|_| AskError::Silent),
            None => Err(AskError::NotManaged(pid)),
        };
        Self::send_on(&ours, request)
    }

    fn send_on(
        connection: &dyn Fn() -> Result<OwnedFd, AskError>,
        request: &Request,
    ) -> Result<Self, AskError> {
        let packet = request.encode();
        if packet.len() > MAX_REQUEST {
            return Err(AskError::TooLong);
        }
        let connection = patiently(connection)?;
        match net::send(&connection, &packet, SendFlags::NOSIGNAL) {
            // Refused already: the reason waits to be read.
            Ok(_) | Err(Errno::PIPE) => Ok(Self(connection)),
            Err(Errno::AGAIN) => Err(AskError::Silent),
            Err(errno) => Err(AskError::Broken(errno)),
        }
    }

    /// The supervisor that is asked; none if it has no number here.
    pub fn supervisor(&self) -> Option<u32> {
        peer::of(self.0.as_fd()).ok()?.pid
    }

    /// Whether the supervisor is of this user: what another's says may be meant for a terminal.
    pub fn is_ours(&self) -> bool {
        let us = rustix::process::geteuid().as_raw();
        peer::of(self.0.as_fd()).is_ok_and(|peer| peer.uid == us)
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// The supervisor ended, or said what cannot be understood.
    pub fn reply(&mut self) -> Result<Reply, AskError> {
        self.receive(None)
    }

    /// The same for at most so long. The request stays, so the reply may come to a later call.
    ///
    /// # Errors
    /// As above; [`AskError::Silent`] where nothing came.
    pub fn reply_within(&mut self, limit: Duration) -> Result<Reply, AskError> {
        self.receive(Some(limit))
    }

    fn receive(&mut self, limit: Option<Duration>) -> Result<Reply, AskError> {
        set_socket_timeout(&self.0, Timeout::Recv, limit).map_err(AskError::Broken)?;
        match Reply::receive(&self.0) {
            Ok(reply) => reply.ok_or(AskError::Ended),
            Err(Errno::AGAIN) => Err(AskError::Silent),
            Err(errno) => Err(AskError::Broken(errno)),
        }
    }
}

/// The supervisors of this user's trees, by their numbers; as root, of every user's.
pub fn trees() -> Vec<u32> {
    let us = rustix::process::geteuid().as_raw();
    let of_process = |pid: u32| Some((pid, fs::metadata(format!("/proc/{pid}")).ok()?.uid()));
    let mut found: Vec<u32> = sockets("self")
        .iter()
        .filter_map(|socket| {
            let pid = ControlName::parse(&socket.name)?.pid;
            let (supervisor, user) = match is_stopped(pid) && socket.is_held_by(pid) {
                // Nobody would accept the connection, and each takes a place in its queue.
                true => of_process(pid)?,
                false => match reach(&socket.name)? {
                    Ok((_, peer)) if is_maker(&socket.name, peer) => {
                        (peer.pid.unwrap_or(pid), peer.uid)
                    }
                    Err(Full) if socket.is_held_by(pid) => of_process(pid)?,
                    _ => return None,
                },
            };
            (us == 0 || us == user).then_some(supervisor)
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether a process is stopped, by Ctrl-Z or a debugger.
pub fn is_stopped(pid: u32) -> bool {
    let stat = Process::open(pid).and_then(|process| process.stat());
    stat.is_ok_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// A socket at which somebody listens as a supervisor does.
struct Socket {
    name: String,
    /// The number that descriptors of it show.
    inode: String,
}

impl Socket {
    /// One of `/proc/net/unix`. Every connection that was accepted has a line too, with the same name.
    fn parse(line: &str) -> Option<Self> {
        const LISTENS: &str = "00010000";
        let mut fields = line.split_whitespace();
        let listens = fields.nth(3)? == LISTENS;
        let inode = fields.nth(2)?.to_owned();
        let name = fields.next()?.strip_prefix('@')?;
        (listens && name.starts_with(CONTROL_PREFIX)).then(|| Self {
            name: name.to_owned(),
            inode,
        })
    }

    /// Whether a process has it, as far as can be seen.
    fn is_held_by(&self, pid: u32) -> bool {
        let ours = format!("socket:[{}]", self.inode);
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut links = descriptors.into_iter().flatten().flatten();
        links.any(|fd| fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == &*ours))
    }
}

/// The sockets in the network namespace of a process at which somebody listens as a supervisor does.
fn sockets(process: impl Display) -> Vec<Socket> {
    let sockets = fs::read_to_string(format!("/proc/{process}/net/unix")).unwrap_or_default();
    sockets.lines().filter_map(Socket::parse).collect()
}

/// Whether who listens at a name made it, or carries on; and is of ours, as root of anybody's.
fn is_maker(name: &str, peer: Peer) -> bool {
    ControlName::parse(name).is_some_and(|maker| {
        let users = users_of(peer.pid.unwrap_or(maker.pid));
        users.iter().any(|&uid| maker.is_listener(peer, uid))
    })
}

/// Looks for a supervisor until one answers, or says why there is none. That is as long as one has no place in its queue,
/// and no longer than [`QUEUE`].
fn patiently(look: &dyn Fn() -> Result<OwnedFd, AskError>) -> Result<OwnedFd, AskError> {
    let start = Instant::now();
    loop {
        match look() {
            Err(AskError::Silent) if start.elapsed() < QUEUE => thread::sleep(AGAIN),
            found => return found,
        }
    }
}

fn find(pid: u32) -> Result<OwnedFd, AskError> {
    let users = users_of(pid);
    let sockets = sockets("self");
    let (mut next, mut silent) = (Some(pid), false);
    for generation in 0..GENERATIONS {
        let Some(pid) = next.filter(|&pid| pid > 0) else {
            break;
        };
        let own = sockets.iter().filter(|socket| makes(pid, &socket.name));
        // The copy's own environment is that of the tree further out, if any.
        let carried_on = sockets
            .iter()
            .filter(|socket| generation == 0 && carries(pid, &socket.name));
        let mut is_this = false;
        for socket in own.chain(carried_on) {
            match connect(&socket.name, &users) {
                Some(Ok(connection)) => return Ok(connection),
                Some(Err(Full)) => {
                    silent = true;
                    is_this |= socket.is_held_by(pid);
                }
                None => {}
            }
        }
        // Another tree's, further out, is not the one that is asked for.
        if is_this {
            break;
        }
        match environment(pid).and_then(|name| connect(&name, &users)) {
            Some(Ok(connection)) => return Ok(connection),
            Some(Err(Full)) => {
                silent = true;
                break;
            }
            None => {}
        }
        next = parent(pid);
    }
    Err(match is_alive(pid) {
        _ if silent => AskError::Silent,
        true if is_elsewhere(pid) => AskError::Elsewhere(pid),
        true => AskError::NotManaged(pid),
        false => AskError::NoProcess(pid),
    })
}

/// Whether a process is in another network namespace than this one, in which there are supervisors.
fn is_elsewhere(pid: u32) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let theirs = namespace(&pid.to_string());
    theirs.is_some() && theirs != namespace("self") && !sockets(pid).is_empty()
}

/// Whether process `pid` made the name: the one of that number that is there, or, if none is, the one that had it.
fn makes(pid: u32, name: &str) -> bool {
    ControlName::parse(name)
        .is_some_and(|maker| maker.pid == pid && maker.maker_is_gone() != is_alive(pid))
}

/// Whether process `pid` carries on for the maker of the name.
fn carries(pid: u32, name: &str) -> bool {
    let is_left = ControlName::parse(name).is_some_and(|maker| maker.maker_is_gone());
    let peer = || Some(reach(name)?.ok()?.1).filter(|&peer| is_maker(name, peer));
    is_left && peer().is_some_and(|peer| peer.pid == Some(pid))
}

fn is_alive(pid: u32) -> bool {
    let stat = Process::open(pid).and_then(|process| process.stat());
    stat.is_ok_and(|stat| !stat.is_dead())
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

/// A queue of connections has no place left, as nobody accepts them.
struct Full;

/// A connection to the supervisor of this name, if it is one of these users'.
fn connect(name: &str, users: &[u32]) -> Option<Result<OwnedFd, Full>> {
    let (socket, peer) = match reach(name)? {
        Ok(reached) => reached,
        Err(full) => return Some(Err(full)),
    };
    let name = ControlName::parse(name)?;
    let is_one = users.iter().any(|&uid| name.is_listener(peer, uid));
    is_one.then_some(Ok(socket))
}

/// A connection to whoever listens at a name, without a wait for a place in its queue.
fn reach(name: &str) -> Option<Result<(OwnedFd, Peer), Full>> {
    let socket = super::open(SocketFlags::NONBLOCK).ok()?;
    match net::connect(&socket, &address(name)?) {
        Err(Errno::AGAIN) => return Some(Err(Full)),
        connected => connected.ok()?,
    }
    // From now on it is waited for what the other says.
    rustix::io::ioctl_fionbio(&socket, false).ok()?;
    set_socket_timeout(&socket, Timeout::Send, Some(QUEUE)).ok()?;
    let peer = peer::of(socket.as_fd()).ok()?;
    Some(Ok((socket, peer)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// A socket that nobody accepts from, with room for so many: a stopped supervisor's.
    fn stopped(backlog: i32) -> (String, OwnedFd) {
        let pid = std::process::id();
        listening(pid, u64::from(pid) << 32 | backlog as u64, backlog)
    }

    /// The same at a name of this process.
    fn listening(pid: u32, random: u64, backlog: i32) -> (String, OwnedFd) {
        let name = ControlName {
            pid,
            start_time: Process::open(pid).unwrap().start_time(),
            random,
        };
        let name = name.to_string();
        let socket = super::super::open(SocketFlags::empty()).unwrap();
        net::bind(&socket, &address(&name).unwrap()).unwrap();
        net::listen(&socket, backlog).unwrap();
        (name, socket)
    }

    #[test]
    fn a_supervisor_that_is_stopped_holds_nobody() {
        let (name, listener) = stopped(7);
        let mut ask = Ask::send_to(&name, &Request::Stats).unwrap();
        assert_eq!(ask.supervisor(), Some(std::process::id()));
        let short = Duration::from_millis(20);
        for _ in 0..2 {
            let silent = ask.reply_within(short);
            assert!(matches!(silent, Err(AskError::Silent)), "{silent:?}");
        }
        // It goes on, and the reply comes to whoever still waits.
        let answers = thread::spawn(move || {
            let accepted = net::accept(&listener).unwrap();
            // What was not received would break the connection as it is closed.
            let mut request = [0; MAX_REQUEST];
            net::recv(&accepted, &mut request, net::RecvFlags::empty()).unwrap();
            Reply::Done("figures".into()).send(&accepted).unwrap();
        });
        let reply = ask.reply_within(Duration::from_secs(20)).unwrap();
        assert_eq!(reply, Reply::Done("figures".into()));
        answers.join().unwrap();
    }

    #[test]
    fn a_queue_that_is_full_holds_nobody() {
        let (name, _listener) = stopped(0);
        let first = Ask::send_to(&name, &Request::Stats).unwrap();
        let second = Ask::send_to(&name, &Request::Stats);
        assert!(matches!(second, Err(AskError::Silent)), "{second:?}");
        drop(first);
    }

    /// A process of another's, at the end of whose names there is nobody.
    struct Idle(std::process::Child);

    impl Idle {
        fn start() -> Self {
            let mut command = std::process::Command::new("sleep");
            // It is of no tree, though the test may be.
            let command = command.arg("60").env_remove("EBB_CONTROL");
            Self(command.spawn().unwrap())
        }
    }

    impl Drop for Idle {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Somebody has taken names of a process, and accepts nobody: all its queues are full.
    fn squatted(pid: u32) -> Vec<OwnedFd> {
        let taken = (0..50).map(|n| listening(pid, 4711 + n, 0));
        let fill = |(name, listener): (String, OwnedFd)| {
            let filler = reach(&name).unwrap();
            [listener, filler.ok().unwrap().0]
        };
        taken.flat_map(fill).collect()
    }

    #[test]
    fn names_that_somebody_took_hold_nobody() {
        let idle = Idle::start();
        let pid = idle.0.id();
        let _taken = squatted(pid);
        let start = Instant::now();
        assert!(!trees().contains(&pid), "it listens nowhere itself");
        // One that answers is found beside them, at once: the parent's, as the process has none.
        let (_name, _listener) = listening(std::process::id(), 4711, 7);
        let ask = Ask::send(pid, &Request::Stats).unwrap();
        assert_eq!(ask.supervisor(), Some(std::process::id()));
        assert!(ask.is_ours());
        assert!(start.elapsed() < QUEUE / 2, "{:?}", start.elapsed());
        // Where there is none, they are waited for once, and not one after the other.
        drop((_name, _listener, ask));
        let start = Instant::now();
        let silent = Ask::send(pid, &Request::Stats);
        assert!(matches!(silent, Err(AskError::Silent)), "{silent:?}");
        let waited = start.elapsed();
        assert!(waited >= QUEUE && waited < 2 * QUEUE, "{waited:?}");
    }

    #[test]
    fn only_who_listens_is_a_supervisor() {
        let line = |flags: &str, name: &str| {
            Socket::parse(&format!(
                "0000000000000000: 00000002 00000000 {flags} 0005 01 4711 {name}"
            ))
        };
        let one = line("00010000", "@ebb-tree-7-1f-0000000000000001").unwrap();
        assert_eq!(one.inode, "4711");
        assert_eq!(one.name, "ebb-tree-7-1f-0000000000000001");
        assert!(line("00000000", "@ebb-tree-7-1f-0000000000000001").is_none());
        assert!(line("00010000", "@other").is_none());
        assert!(Socket::parse("Num RefCount Protocol Flags Type St Inode Path").is_none());
    }
}
