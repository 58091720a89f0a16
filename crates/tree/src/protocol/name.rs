//! The name of the supervisor's socket, which the value of EBB_CONTROL is.

use ebb_sys::peer::Peer;
use ebb_sys::proc::Process;
use rustix::net::SocketAddrUnix;

/// Every value of EBB_CONTROL begins with this.
pub const CONTROL_PREFIX: &str = "ebb-tree-";

/// The address that a value of EBB_CONTROL stands for, if it is one of ours.
pub fn address(control: &str) -> Option<SocketAddrUnix> {
    ControlName::parse(control)?;
    SocketAddrUnix::new_abstract_name(control.as_bytes()).ok()
}

/// A value of EBB_CONTROL, which names the supervisor's socket, and says whose it is. No file stands for
/// the name, so anybody may take it once the supervisor has gone: whoever connects looks who listens
/// ([`is_listener`](Self::is_listener)) before he says anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlName {
    /// The process that began to listen.
    pub pid: u32,
    /// The time when that was started, in clock ticks since boot; 0: not known.
    pub start_time: u64,
    /// A random number, so that no two are equal.
    pub random: u64,
}

impl std::fmt::Display for ControlName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pid, start, random) = (self.pid, self.start_time, self.random);
        write!(f, "{CONTROL_PREFIX}{pid}-{start:x}-{random:016x}")
    }
}

impl ControlName {
    /// The name that `control` spells.
    pub fn parse(control: &str) -> Option<Self> {
        let mut parts = control.strip_prefix(CONTROL_PREFIX)?.split('-');
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let name = Self {
            pid: parts.next()?.parse().ok()?,
            start_time: hex(parts.next()?)?,
            random: hex(parts.next()?)?,
        };
        // One way to write it: what is compared is the whole.
        (name.to_string() == control).then_some(name)
    }

    /// Whether the peer who listens at this name is who made it. It is if it has the number and was started
    /// then, whatever its user looks like from here. In a user namespace of the program's own users have
    /// other numbers. Else as far as can be seen: it is of user `uid`. And it is of a PID namespace further out,
    /// where numbers are others, or the maker of the name has ended: then somebody carries on for it.
    pub fn is_listener(&self, peer: Peer, uid: u32) -> bool {
        let by_user = peer.uid == uid;
        match peer.pid {
            Some(pid) if pid == self.pid => match Process::open(pid) {
                Ok(process) if self.start_time != 0 => process.start_time() == self.start_time,
                _ => by_user,
            },
            Some(_) => by_user && self.start_time != 0 && self.maker_is_gone(),
            None => by_user,
        }
    }

    /// Whether the process that made the name has ended, as far as is known. Its number may be another's by now, or wait
    /// for its parent.
    pub fn maker_is_gone(&self) -> bool {
        let Ok(process) = Process::open(self.pid) else {
            return true;
        };
        let is_other = self.start_time != 0 && process.start_time() != self.start_time;
        is_other || process.stat().is_ok_and(|stat| stat.is_dead())
    }
}
