//! Whether any process of the tree lives, where one look does not tell.

use crate::support::{Tree, exit_now, fork, mib};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

fn reap() {
    // SAFETY: a null status is allowed.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// No process can be looked at: that is not to say that none is there.
pub fn unseen() {
    let mut tree = Tree::new(mib(512), 3);
    let mut program = Command::new("sleep").arg("60").spawn().unwrap();
    let limit = getrlimit(Resource::Nofile);
    let mut low = limit;
    low.current = Some(3);
    setrlimit(Resource::Nofile, low).unwrap();
    let there = [tree.sup.has_processes(), tree.sup.still_has_processes()];
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(there, [true, true]);
    assert!(tree.sup.has_processes());
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(!tree.sup.has_processes());
}

/// Each process starts the next and ends at once, so that one is there at every moment, and seldom the same.
pub fn relay() {
    let (mut end, baton) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&end, true).unwrap();
    let mut tree = Tree::new(mib(512), 3);
    if fork().is_none() {
        let stop = Instant::now() + Duration::from_secs(3);
        while Instant::now() < stop && fork().is_none() {}
        exit_now(0);
    }
    drop(baton);
    let mut looks = 0;
    while tree.sup.has_processes() {
        looks += 1;
        reap();
    }
    let over = end.read(&mut [0]);
    assert!(
        matches!(over, Ok(0)),
        "one lived, after {looks} looks: {over:?}"
    );
    assert!(looks > 10);
}
