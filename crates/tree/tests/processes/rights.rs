//! Processes that connect as one user, and execute a program that has more rights then: they keep their number, and others
//! may have their connection.

use crate::admission::{NOBODY, become_nobody, connect, is_root, socket};
use crate::roles::{control, sleep_forever};
use crate::support::{Tree, exit_now, fork, kill, mib};
use ebb_sys::userfaultfd::Userfaultfd;
use rustix::fs::OFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use std::ffi::CString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The packet of who joins with this version of the protocol.
fn hello(version: u32, pid: u32) -> Vec<u8> {
    let numbers = [version, pid, u32::MAX, 0].map(u32::to_le_bytes);
    [b"H", &numbers.concat()[..]].concat()
}

/// Sends a packet; the answer, and the descriptors with it.
fn answer(socket: &OwnedFd, packet: &[u8]) -> (Vec<u8>, Vec<OwnedFd>) {
    rustix::net::send(socket, packet, SendFlags::NOSIGNAL).unwrap();
    let mut answer = vec![0; 1024];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let mut parts = [IoSliceMut::new(&mut answer)];
        match rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::empty()) {
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            got => break got.unwrap(),
        }
    };
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    answer.truncate(got.bytes);
    (answer, fds)
}

/// The version that the supervisor speaks, which it tells to who speaks another.
fn version() -> u32 {
    let socket = socket();
    assert!(connect(&socket, &control()));
    let (refused, _) = answer(&socket, &hello(0, std::process::id()));
    let text = String::from_utf8(refused).unwrap();
    let number = text.split("and ebb ").nth(1).unwrap();
    number.split(';').next().unwrap().parse().unwrap()
}

/// A process that connects by this socket, and executes a program of this file when it is told to `go`.
fn connects(socket: &OwnedFd, file: &Path, role: &str, go: OwnedFd) -> u32 {
    let Some(pid) = fork() else {
        assert!(connect(socket, &control()));
        rustix::io::read(&go, &mut [0; 1][..]).unwrap();
        let words = [file.to_str().unwrap(), "--role", "climbed", role];
        let words = words.map(|word| CString::new(word).unwrap());
        let mut argv = words.each_ref().map(|word| word.as_ptr()).to_vec();
        argv.push(std::ptr::null());
        // SAFETY: a list that ends with a null.
        unsafe { libc::execv(argv[0], argv.as_ptr()) };
        exit_now(1);
    };
    pid
}

fn tell(end: &OwnedFd) {
    assert_eq!(rustix::io::write(end, b"!"), Ok(1));
}

fn await_name(pid: u32, name: &str) {
    while ebb_sys::proc::name(pid) != name {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A program that was executed: it says by its name that it is there, after it gave the rights of its file up, if it
/// `drops` them.
pub fn climbed(role: &str) -> ! {
    if role == "drops" {
        // SAFETY: of this process alone, which has one thread.
        assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
    }
    let name = CString::new(role).unwrap();
    // SAFETY: a name that ends.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    sleep_forever();
}

/// A worker that gave up root, and what it comes by through its children.
pub fn climber(dir: &str) {
    become_nobody();
    let version = version();
    let file = |name: &str| PathBuf::from(dir).join(name);
    let joins = |file: &Path, role: &str| {
        let socket = socket();
        let (go, end) = rustix::pipe::pipe().unwrap();
        let pid = connects(&socket, file, role, go);
        tell(&end);
        await_name(pid, role);
        let (said, fds) = answer(&socket, &hello(version, pid));
        kill(pid, libc::SIGKILL);
        let text = String::from_utf8_lossy(&said[1..]).replace(&pid.to_string(), "N");
        match said[0] {
            b'W' => println!("welcome with {}", fds.len()),
            _ => println!("{text}"),
        }
    };
    joins(&file("plain"), "stays");
    joins(&file("setuid"), "stays");
    joins(&file("setuid"), "drops");

    // It joins as what it is, and is another program when it asks for the devices.
    let socket = socket();
    let (go, end) = rustix::pipe::pipe().unwrap();
    let pid = connects(&socket, &file("setuid"), "stays", go);
    let asked = |number: u8| {
        let (said, fds) = answer(&socket, &[b'A', number, 0, 0, 0, 1]);
        assert_eq!((said[0], fds.len()), (b'D', 2));
        let how = rustix::fs::fcntl_getfl(&fds[0]).unwrap() & OFlags::ACCMODE;
        println!("may write: {}", how != OFlags::RDONLY);
    };
    // The process is there, and has connected, when its connection answers.
    while rustix::net::getpeername(&socket).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (said, fds) = answer(&socket, &hello(version, pid));
    assert_eq!((said[0], fds.len()), (b'W', 4));
    asked(1);
    tell(&end);
    await_name(pid, "stays");
    asked(2);
    kill(pid, libc::SIGKILL);
}

pub fn give_nothing_to_who_connected() {
    let privileged = rustix::thread::capabilities(None).unwrap().effective;
    let may_look = privileged.contains(rustix::thread::CapabilitySet::SYS_PTRACE);
    if !is_root() || !may_look || Userfaultfd::open_device().is_err() {
        println!("  nobody else is served: not root, without CAP_SYS_PTRACE or /dev/userfaultfd");
        return;
    }
    let dir = PathBuf::from(format!("/var/tmp/ebb-rights-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    for (name, mode) in [("plain", 0o755), ("setuid", 0o4755)] {
        let file = dir.join(name);
        std::fs::copy(std::env::current_exe().unwrap(), &file).unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, mode).unwrap();
    }
    let mut tree = Tree::new(mib(64), 3);
    let mut climber = tree.start(&["climber", dir.to_str().unwrap()]);
    let ended = tree.until(Duration::from_secs(20), |_| {
        climber.try_wait().unwrap().is_some()
    });
    std::fs::remove_dir_all(&dir).unwrap();
    climber.kill().unwrap();
    let said = climber.wait_with_output().unwrap();
    let refused =
        "process N is not what it was as it connected, as user 65534: its program has other rights";
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        format!("welcome with 4\n{refused}\n{refused}\nmay write: false\nmay write: false\n")
    );
    assert!(ended && said.status.success(), "{:?}", said.status);
}
