//! `/proc` against real children.

use super::ids::Text;
use super::stat::{secure_execution, users};
use super::*;
use crate::kernel::clock::ticks;
use rustix::io::Errno;
use std::io::Write;
use std::process::{Command, Stdio};

/// Of another process, which does nothing meanwhile: in this one other tests come and go.
#[test]
fn a_process_has_the_users_that_its_status_says() {
    // A name may look like anything, but is escaped.
    let text = b"Name:\tUid:\\n1\nState:\tS\nUid:\t1000\t0\t7\t9\nGid:\t5\t5\t5\t5\n";
    assert_eq!(users(text), Some([1000, 0, 7]));
    assert_eq!(users(b"Name:\tx\n"), None);
    assert_eq!(users(b"Uid:\t1\t2\n"), None);
    let us = Process::open(std::process::id()).unwrap();
    let user = rustix::process::geteuid().as_raw();
    assert_eq!(
        (us.has_user(user), us.has_user(user + 1)),
        (Ok(true), Ok(false))
    );
    assert_eq!(
        (us.is_user(user), us.is_user(user + 1)),
        (Ok(true), Ok(false))
    );
    assert!(us.is_of_one_user_with(&us));
}

#[test]
fn a_program_with_rights_of_its_file_is_told_by_its_auxiliary_vector() {
    let auxv = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_ne_bytes()).collect() };
    assert_eq!(
        secure_execution(&auxv(&[6, 4096, 23, 0, 0, 0])),
        Some(false)
    );
    assert_eq!(secure_execution(&auxv(&[23, 1, 0, 0])), Some(true));
    // Numbers that are no kinds; and the words of a 32-bit program.
    assert_eq!(secure_execution(&auxv(&[6, 23, 0, 0])), None);
    assert_eq!(secure_execution(&auxv(&[23 | 1 << 32, 0])), None);
    assert_eq!(secure_execution(b""), None);
    let us = Process::open(std::process::id()).unwrap();
    assert_eq!(us.has_rights_of_its_file(), Ok(false));
}

#[test]
fn ids_are_found_wherever_the_text_is_cut() {
    let text = "Name:\tUid:\\n1\nUid:\t1000\t0\t7\t9\nGid:\t5\t6\t8\t10\nGroups:\t4 27 1000000 \nNStgid:\t3\n";
    let read = |text: &str| {
        let mut groups = Vec::new();
        let mut parts = Text::new(|group| groups.push(group));
        text.bytes().for_each(|byte| parts.byte(byte));
        let ids = parts.ids();
        (ids.map(|ids| (ids.users, ids.groups)), groups)
    };
    assert_eq!(
        read(text),
        (Some(([1000, 0, 7], [5, 6, 8])), vec![4, 27, 1_000_000])
    );
    assert_eq!(read("Uid:\t1\t2\t3\t4\n").0, None);
    let mut groups = Vec::new();
    let ids = ids_of(std::process::id(), crate::thread::id(), |g| groups.push(g));
    let users = ids.unwrap().users;
    assert_eq!(users, [rustix::process::getuid().as_raw(); 3]);
    let wanted = rustix::process::getgroups().unwrap();
    assert!(groups.into_iter().eq(wanted.iter().map(|g| g.as_raw())));
}

/// The child is user 5 and group 7 to itself.
#[test]
fn users_of_another_namespace_have_the_numbers_that_they_have_here() {
    let (user, group) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let child = Command::new("unshare")
        .args([
            "--map-user=5",
            "--map-group=7",
            "sh",
            "-c",
            "id -u && id -g && read _",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.unwrap();
    let mut said = String::new();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
    }
    let ids = ids_of(child.id(), child.id(), |_| {});
    drop(child.stdin.take());
    child.wait().unwrap();
    if said != "5\n7\n" {
        return println!("skipped: no user namespace: {said}");
    }
    let ids = ids.unwrap();
    assert_eq!((ids.users, ids.groups), ([user; 3], [group; 3]));
}

#[test]
fn memory_shows_in_statm_and_rollup() {
    const PAGES: u64 = 2048;
    // Keeps the last lines it has read, until its input ends.
    let mut child = Command::new("tail")
        .args(["-n", "1000000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let process = Process::open(child.id()).unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&vec![b'x'; 4096 * PAGES as usize]).unwrap();
    let start = std::time::Instant::now();
    let asleep = |process: &Process| process.stat().unwrap().state == b'S';
    // All is read when it waits for more.
    while process.statm().unwrap().anonymous() < PAGES || !asleep(&process) {
        assert!(start.elapsed().as_secs() < 60, "it keeps nothing");
        std::thread::yield_now();
    }
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    let error = cpus * (2 * cpus).max(32);
    let (statm, rollup) = (process.statm().unwrap(), process.rollup().unwrap());
    assert!(
        statm.anonymous().abs_diff(rollup.anonymous) <= error,
        "{statm:?} {rollup:?}"
    );
    assert!(rollup.anonymous >= PAGES && rollup.proportional <= rollup.anonymous);
    drop(input);
    child.wait().unwrap();
}

#[test]
fn touches_are_seen_and_forgotten() {
    let us = Process::open(std::process::id()).unwrap();
    const MIB: u64 = 1 << 20;
    // Pages of its own, no huge ones.
    let len = 64 * MIB as usize;
    let memory = crate::memory::reserve(len).unwrap() as *mut u8;
    // SAFETY: advice on memory just mapped.
    unsafe { libc::madvise(memory.cast(), len, libc::MADV_NOHUGEPAGE) };
    let touch = |bytes: u64| {
        for at in (0..bytes as usize).step_by(4096) {
            // SAFETY: within the memory.
            unsafe { memory.add(at).write_volatile(1) };
        }
    };
    touch(64 * MIB);
    let touched = || us.touched().unwrap();
    assert!(touched().touched >= 60 * MIB, "{:?}", touched());
    us.forget_touches().unwrap();
    let before = touched();
    assert!(before.resident >= 64 * MIB, "{before:?}");
    touch(32 * MIB);
    let after = touched();
    let more = after.touched.saturating_sub(before.touched);
    assert!((22 * MIB..44 * MIB).contains(&more), "{before:?} {after:?}");
    // SAFETY: mapped above, and not used any more.
    unsafe { crate::memory::munmap(memory.addr(), len) }.unwrap();
}

#[test]
fn mappings_add_up_wherever_the_text_is_cut() {
    let text = b"55e0-55f0 rw-p 0 00:00 0    [heap]\nSize: 99 kB\nRss: 80 kB\nPss: 40 kB\n\
        Referenced: 30 kB\nAnonymous: 60 kB\nVmFlags: rd wr\n\
        7f00-7f10 r--p 0 08:01 7    /lib/Rss: 5 kB\nRss: 50 kB\nPss: 50 kB\nReferenced: 50 kB\nAnonymous: 0 kB\n\
        7f20-7f30 rw-p 0 00:00 0\nRss: 8 kB\nPss: 8 kB\nReferenced: 9 kB\nAnonymous: 4 kB\n";
    for cut in 0..text.len() {
        let mut sums = super::touched::Sums::default();
        sums.text(&text[..cut]);
        sums.text(&text[cut..]);
        let wanted = Touched {
            resident: (30 + 4) << 10,
            touched: (15 + 4) << 10,
        };
        assert_eq!(sums.end(), wanted, "cut at {cut}");
    }
}

#[test]
fn a_child_is_found_and_its_death_seen_for_good() {
    let mut child = Command::new("sleep")
        .arg("60")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let process = Process::open(child.id()).unwrap();
    let age = ticks() - process.start_time();
    assert!(age < 60 * 100, "{age} ticks");
    let mut seen = false;
    children(std::process::id(), |pid| seen |= pid == child.id()).unwrap();
    assert!(seen);
    assert_eq!(process.stat().unwrap().parent, std::process::id());
    // It has called exec, so its memory is its own.
    let me = Process::open(std::process::id()).unwrap();
    assert!(!process.lives_in(std::process::id()) && me.lives_in(std::process::id()));
    child.kill().unwrap();
    while !process.stat().unwrap().is_dead() {
        std::thread::yield_now();
    }
    assert!(!process.stat().unwrap().image.is_some());
    child.wait().unwrap();
    assert_eq!(process.stat().unwrap_err(), Errno::SRCH);
    assert_eq!(process.statm().unwrap_err(), Errno::SRCH);
}

/// Read all the time while another thread reaps it. The kernel alone says "parent 0" of every fifth or so.
#[test]
fn a_process_that_is_reaped_never_seems_to_have_no_parent() {
    let us = std::process::id();
    for _ in 0..300 {
        let mut child = Command::new("true").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        let reaper = std::thread::spawn(move || child.wait().unwrap());
        let end = loop {
            match process.parent() {
                Ok(parent) => assert_eq!(parent.map(|parent| parent.pid()), Some(us)),
                Err(e) => break e,
            }
        };
        assert_eq!(end, Errno::SRCH);
        reaper.join().unwrap();
    }
}

#[test]
fn a_killed_process_is_ending_before_it_has_noticed() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let process = Process::open(child.id()).unwrap();
    assert!(!process.is_ending());
    child.kill().unwrap();
    assert!(process.is_ending());
    child.wait().unwrap();
    assert!(process.is_ending());
}

#[test]
fn exec_changes_the_image() {
    // A shell that waits for a line and then becomes another program.
    let mut child = Command::new("sh")
        .args(["-c", "read x; exec sleep 60"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let process = Process::open(child.id()).unwrap();
    // Until its own exec is over, not only under way.
    while name(child.id()) != "sh" || process.stat().unwrap().image.code == 0 {
        std::thread::yield_now();
    }
    let before = process.stat().unwrap().image;
    assert_eq!(process.stat().unwrap().image, before);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    while name(child.id()) != "sleep" {
        std::thread::yield_now();
    }
    assert_ne!(process.stat().unwrap().image, before);
    child.kill().unwrap();
    child.wait().unwrap();
}
