//! Processes that may join, that may only ask, and that are not heard at all.

use crate::roles::{control, join, sleep_forever, wait_line};
use crate::support::{Tree, close_inherited, exit_now, fork, kill, mib};
use ebb_tree::{Ask, JoinError, Member, Reply, Request};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const S: fn(u64) -> Duration = Duration::from_secs;
pub const NOBODY: u32 = 65534;

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn become_nobody() {
    // SAFETY: of this process alone, which has one thread.
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(NOBODY, NOBODY, NOBODY) == 0
            && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
    };
    assert!(done);
}

/// A socket that does not wait.
pub fn socket() -> OwnedFd {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a new descriptor, which is ours.
    unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, kind, 0)) }
}

type Call = unsafe extern "C" fn(i32, *const libc::sockaddr, libc::socklen_t) -> i32;

/// `bind` or `connect` with an abstract name; whether it was done.
fn with_name(call: Call, socket: &OwnedFd, name: &str) -> bool {
    // SAFETY: plain numbers, for which zeros do.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = (size_of::<libc::sa_family_t>() + 1 + name.len()) as libc::socklen_t;
    // SAFETY: an address of that length.
    unsafe { call(socket.as_raw_fd(), (&raw const address).cast(), len) == 0 }
}

/// Whether it could be done.
pub fn connect(socket: &OwnedFd, name: &str) -> bool {
    with_name(libc::connect, socket, name)
}

fn connected(name: &str) -> Option<OwnedFd> {
    let socket = socket();
    connect(&socket, name).then_some(socket)
}

/// How many of these the other side has closed.
fn closed(sockets: &[OwnedFd]) -> usize {
    let hung_up = |socket: &&OwnedFd| {
        let events = libc::POLLIN | libc::POLLHUP;
        let fd = socket.as_raw_fd();
        let mut polled = libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        // SAFETY: one entry, as said.
        unsafe { libc::poll(&raw mut polled, 1, 0) };
        polled.revents & libc::POLLHUP != 0
    };
    sockets.iter().filter(hung_up).count()
}

/// Connects so often as the supervisor takes, for `time`.
fn flood(name: &str, count: usize, time: Duration) -> Vec<OwnedFd> {
    let end = Instant::now() + time;
    let mut held = Vec::new();
    while held.len() < count && Instant::now() < end {
        match connected(name) {
            Some(socket) => held.push(socket),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    held
}

/// Waits until as many of these are closed as must be.
fn await_closed(sockets: &[OwnedFd], count: usize, time: Duration) -> bool {
    let end = Instant::now() + time;
    while closed(sockets) < count && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    closed(sockets) >= count
}

/// A process of our user that is no descendant of ours, and runs `run` with the first line that it is sent;
/// what it returns is the answer.
fn stranger(run: fn(&str) -> String) -> UnixStream {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    // SAFETY: of this process alone.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 0) };
    let Some(between) = fork() else {
        drop(ours);
        if fork().is_none() {
            let mut name = [0; 200];
            let len = theirs.read(&mut name).unwrap();
            let answer = run(std::str::from_utf8(&name[..len]).unwrap());
            theirs.write_all(answer.as_bytes()).unwrap();
        }
        exit_now(0);
    };
    // SAFETY: a null status is allowed.
    unsafe { libc::waitpid(between as i32, std::ptr::null_mut(), 0) };
    ours
}

fn answer(tree: &mut Tree, stranger: &mut UnixStream) -> String {
    stranger.set_nonblocking(true).unwrap();
    let mut answer = String::new();
    tree.until(S(20), |_| {
        let mut part = [0; 500];
        match stranger.read(&mut part) {
            Ok(0) => true,
            Ok(len) => {
                answer.push_str(std::str::from_utf8(&part[..len]).unwrap());
                false
            }
            Err(_) => false,
        }
    });
    answer
}

/// Tries all that `run`'s processes may do; in words.
fn tries(name: &str) -> String {
    let joined = match Member::join(name, None, None) {
        Err(JoinError::Refused(why)) => why,
        other => format!("{:?}", other.err()),
    };
    let supervisor = name.split('-').nth(2).unwrap().parse().unwrap();
    let mut ask = Ask::send(supervisor, &Request::Counters).unwrap();
    let asked = matches!(ask.reply(), Ok(Reply::Done(_)));
    // Of many that say nothing 16 are kept, and those not for long.
    let held = flood(name, 100, S(5));
    let soon = await_closed(&held, 84, S(2));
    let all = await_closed(&held, 100, S(10));
    format!("{joined}; asked: {asked}; {} {soon} {all}", held.len())
}

pub fn only_descendants_join() {
    let mut stranger = stranger(tries);
    let mut tree = Tree::new(mib(512), 3);
    let control = tree.sup.control_value().to_owned();
    stranger.write_all(control.as_bytes()).unwrap();
    // Meanwhile others come and go.
    let mut member = tree.start(&["charge", "10"]);
    tree.expect("charged");
    let said = answer(&mut tree, &mut stranger);
    let expected = "is not of this tree: only what `ebb run` started, and what that starts, can join; \
                    asked: true; 100 true true";
    assert!(said.ends_with(expected), "{said}");
    member.kill().unwrap();
    member.wait().unwrap();
    // An orphan is of the tree all the same.
    let mut parent = tree.start(&["fork-and-die", "rejoin"]);
    tree.until(S(5), |_| parent.try_wait().unwrap().is_some());
    tree.expect("orphan is in");
}

pub fn others_take_no_place() {
    if !is_root() {
        println!("  no other user: not root");
        return;
    }
    let mut stranger = stranger(|name| {
        become_nobody();
        let held = flood(name, 2000, S(10));
        let all = await_closed(&held, held.len(), S(5));
        format!("{} {all}", held.len())
    });
    let mut tree = Tree::new(mib(512), 3);
    let control = tree.sup.control_value().to_owned();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    stranger.write_all(control.as_bytes()).unwrap();
    let mut members = [(); 5].map(|()| tree.start(&["watcher"]));
    assert!(tree.until(S(10), |tree| tree.sup.members() == 5));
    assert_eq!(answer(&mut tree, &mut stranger), "2000 true");
    // Seven each, with the pipes that we hold.
    assert!(open() <= before + 5 * 7 + 3, "{} of {before}", open());
    for member in &mut members {
        member.kill().unwrap();
        member.wait().unwrap();
    }
    tree.expect_empty();
}

/// Of a process that outlives the supervisor, and finds another in its place.
pub fn orphaned() {
    let (member, _devices) = join();
    member.start_paging(10);
    member.message("orphaned soon");
    wait_line();
    let tried = |nobody: bool| {
        let Some(squatter) = fork() else {
            if nobody {
                become_nobody();
            }
            let socket = socket();
            while !with_name(libc::bind, &socket, &control()) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // SAFETY: touches no memory.
            assert_eq!(unsafe { libc::listen(socket.as_raw_fd(), 9) }, 0);
            sleep_forever();
        };
        while connected(&control()).is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let refused = |result| matches!(result, Err(JoinError::Connect(_)));
        let fresh = refused(Member::join(&control(), None, None).map(drop));
        let child = member.reserve_child(0).unwrap();
        let Some(pid) = fork() else {
            close_inherited();
            assert!(member.child_started(child));
            let refused = refused(member.rejoin(&control(), None));
            exit_now(!refused as i32);
        };
        let mut status = 0;
        // SAFETY: room for a status; and of two children of ours.
        unsafe { libc::waitpid(pid as i32, &raw mut status, 0) };
        kill(squatter, libc::SIGKILL);
        // SAFETY: a null status is allowed.
        unsafe { libc::waitpid(squatter as i32, std::ptr::null_mut(), 0) };
        println!("{fresh} {}", status == 0);
    };
    tried(false);
    if is_root() {
        tried(true);
    } else {
        println!("true true");
    }
}

pub fn squatters_are_not_believed() {
    let mut tree = Tree::new(mib(64), 3);
    let mut member = tree.start(&["orphaned"]);
    tree.expect("orphaned soon");
    drop(tree);
    member.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let out = member.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        "true true\ntrue true\n"
    );
}
