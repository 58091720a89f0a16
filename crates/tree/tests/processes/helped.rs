//! Members that are served from outside their thread group: a helper shares the program's memory, and
//! joins for it.
//!
//! The two have one heap and one set of thread-locals here, so at most one of them runs anything but system
//! calls at a time. The helper runs once it is made, and the program when the helper only sleeps.

use crate::roles::{control, sleep_forever, touch, wait_line};
use crate::support::{Tree, close_inherited, descendants, exit_now, fork, kill, mib};
use ebb_tree::{HelperExit, JoinError, LimitChange, Member, Reply, Request};
use rustix::process::PidfdFlags;
use std::ffi::{CString, c_int, c_void};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

const S: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;

fn pidfd_of(pid: u32) -> OwnedFd {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("it lives")
}

/// The arguments of a helper.
struct Made {
    run: fn(&Made),
    program: u32,
    how: &'static str,
}

extern "C" fn helper(made: *mut c_void) -> c_int {
    // SAFETY: `serve` leaked it.
    let made: &Made = unsafe { &*made.cast() };
    // SAFETY: touches no memory.
    unsafe { libc::setsid() };
    (made.run)(made);
    exit_now(0);
}

/// The process in between, of which the helper becomes an orphan.
extern "C" fn between(made: *mut c_void) -> c_int {
    // SAFETY: a name for this process and those it makes; and one with a stack of its own.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"ebb-helper".as_ptr());
        let made = libc::clone(helper, stack(), libc::CLONE_VM, made);
        exit_now((made < 0) as i32);
    }
}

/// The top of a new one.
fn stack() -> *mut c_void {
    const BYTES: usize = 1 << 20;
    let memory = vec![0u128; BYTES / 16].leak();
    memory.as_mut_ptr_range().end.cast()
}

/// Starts a helper that runs `run`.
fn serve(run: fn(&Made), how: &'static str) {
    let made: &Made = Box::leak(Box::new(Made {
        run,
        program: std::process::id(),
        how,
    }));
    let made = std::ptr::from_ref(made).cast_mut().cast();
    let top = stack();
    // SAFETY: a process with a stack of its own, which ends at once.
    let status = unsafe {
        let pid = libc::clone(between, top, libc::CLONE_VM, made);
        assert!(pid > 0, "clone: {}", std::io::Error::last_os_error());
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, libc::__WALL), pid);
        status
    };
    assert_eq!(status, 0);
}

/// Where the helper leaves the membership for its program.
static MEMBER: AtomicPtr<Member> = AtomicPtr::new(std::ptr::null_mut());
static READY: AtomicU32 = AtomicU32::new(0);

fn await_helper(times: u32) {
    while READY.load(SeqCst) < times {
        // SAFETY: sleeps, and touches no memory that another uses.
        unsafe { libc::usleep(1000) };
    }
}

/// Does nothing but system calls, for ever.
fn pause_forever() -> ! {
    loop {
        // SAFETY: touches no memory.
        unsafe { libc::pause() };
    }
}

/// A helper's life.
fn serving(made: &Made) {
    if made.how == "late" {
        wait_line();
    }
    let program = pidfd_of(made.program);
    let member = Member::join(&control(), None, Some(program.as_fd())).unwrap();
    assert_eq!(member.program_pid(), made.program);
    if made.how != "late" && made.how != "unmanaged" {
        let devices = member.attach(1, || false).unwrap();
        assert_eq!(devices.len(), 1);
        member.start_paging(1000);
        member.lender(0).unwrap().acquire().unwrap();
    }
    member.message(&format!("serves as {}", std::process::id()));
    MEMBER.store(Box::leak(Box::new(member)), SeqCst);
    READY.fetch_add(1, SeqCst);
    // SAFETY: leaked above.
    let member = unsafe { &*MEMBER.load(SeqCst) };
    match made.how {
        "polite" => {
            let mut polled = [rustix::event::PollFd::new(
                &program,
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut polled, None).unwrap();
            member.announce_exit(HelperExit::Ends);
        }
        "unmanaged" => {
            wait_line();
            member.announce_exit(HelperExit::Unmanaged);
        }
        _ => pause_forever(),
    }
}

pub fn play(role: &[String]) {
    let how: &'static str = role[0].clone().leak();
    match how {
        "exec" => execs(&["sleep", "60"]),
        "exec-again" => {
            let own = std::env::current_exe().unwrap();
            execs(&[own.to_str().unwrap(), "--role", "helped", "sleepy"]);
        }
        "fork" => forks(),
        "liar" => lies(),
        _ => {
            touch(40).leak();
            serve(serving, how);
            pause_forever();
        }
    }
}

/// Becomes another program when told.
fn execs(command: &[&str]) {
    let words: Vec<CString> = command.iter().map(|w| CString::new(*w).unwrap()).collect();
    let mut argv: Vec<_> = words.iter().map(|w| w.as_ptr()).collect();
    argv.push(std::ptr::null());
    serve(serving, "exec");
    await_helper(1);
    let mut byte = 0u8;
    // SAFETY: room for one byte; and a list that ends with a null.
    unsafe {
        libc::read(0, (&raw mut byte).cast(), 1);
        libc::execvp(argv[0], argv.as_ptr());
    }
    exit_now(1);
}

/// Forks; the child has a helper of its own.
fn forks() {
    serve(serving, "forks");
    await_helper(1);
    // SAFETY: the helper leaked it, and sleeps.
    let member: &'static Member = unsafe { &*MEMBER.load(SeqCst) };
    let child = member.reserve_child(0).unwrap();
    let Some(pid) = fork() else {
        close_inherited();
        assert!(member.child_started(child));
        assert_eq!(member.program_pid(), std::process::id());
        serve(
            |made| {
                let program = pidfd_of(made.program);
                // SAFETY: leaked by the other helper, before the fork.
                let member = unsafe { &*MEMBER.load(SeqCst) };
                member.rejoin(&control(), Some(program.as_fd())).unwrap();
                assert_eq!(member.attach(1, || false).unwrap().len(), 1);
                assert_eq!(member.own_charge(), 1000);
                member.message(&format!("serves a child of {}", member.program_pid()));
                pause_forever();
            },
            "",
        );
        pause_forever();
    };
    member.child_forked(child, pid);
    pause_forever();
}

/// Says that it serves a process whose memory it does not have.
fn lies() {
    let Some(pid) = fork() else { sleep_forever() };
    let other = pidfd_of(pid);
    match Member::join(&control(), None, Some(other.as_fd())) {
        Err(JoinError::Refused(why)) => assert!(why.contains("does not share"), "{why}"),
        other => panic!("{:?}", other.err()),
    }
    let null = std::fs::File::open("/dev/null").unwrap();
    match Member::join(&control(), None, Some(null.as_fd())) {
        Err(JoinError::Program(_)) => {}
        other => panic!("{:?}", other.err()),
    }
    println!("refused");
    kill(pid, libc::SIGKILL);
}

/// A tree with one process that is served by a helper, and the helper's number.
fn tree_with(how: &str) -> (Tree, Child, u32) {
    let mut tree = Tree::new(mib(512), 3);
    let program = tree.start(&["helped", how]);
    let helper = helper_of(&mut tree, program.id());
    assert_ne!(helper, program.id());
    (tree, program, helper)
}

/// A process that says that it serves `program`.
#[track_caller]
fn helper_of(tree: &mut Tree, program: u32) -> u32 {
    let find = |tree: &Tree| {
        let notices = tree.notices.lock().unwrap();
        let begin = format!("[{program}]: serves as ");
        let said = notices.iter().rfind(|line| line.contains(&begin))?;
        said.rsplit(' ').next()?.parse::<u32>().ok()
    };
    assert!(
        tree.until(S(10), |tree| find(tree).is_some()),
        "nobody serves"
    );
    find(tree).unwrap()
}

/// Whether a process is there, as more than a zombie.
fn lives(pid: u32) -> bool {
    let stat = ebb_sys::proc::Process::open(pid).and_then(|process| process.stat());
    stat.is_ok_and(|stat| !stat.is_dead())
}

fn reap(tree: &mut Tree) {
    let _ = tree.sup.collect(rustix::process::getpid());
}

fn told(tree: &Tree, what: &str) -> usize {
    let notices = tree.notices.lock().unwrap();
    notices.iter().filter(|line| line.contains(what)).count()
}

fn tell(child: &mut Child) {
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
}

#[track_caller]
fn ends(tree: &mut Tree, mut program: Child) {
    program.kill().unwrap();
    program.wait().unwrap();
    tree.expect_empty();
    reap(tree);
    assert_eq!(descendants(std::process::id()), Vec::<u32>::new());
}

pub fn is_its_program() {
    let mut tree = Tree::new(mib(512), 3);
    let mut program = tree.start(&["helped", "late"]);
    // Not yet joined, known by its name and its memory: counted once.
    tree.settles_at(40..60);
    assert_eq!(descendants(std::process::id()).len(), 2);
    assert_eq!(tree.sup.members(), 0);
    tell(&mut program);
    let helper = helper_of(&mut tree, program.id());
    assert_eq!(tree.sup.members(), 1);
    tree.settles_at(40..60);
    // Named by its helper, it is the same member.
    for pid in [program.id(), helper] {
        let mut limit = |process| {
            let writeback = Some(false);
            let change = LimitChange {
                process,
                writeback,
                ..LimitChange::default()
            };
            tree.ask_of(pid, Request::Limit(change))
        };
        let Reply::Done(shown) = limit(Some(pid)) else {
            panic!("process {pid} is no member")
        };
        let (program, helper) = (program.id().to_string(), helper.to_string());
        assert!(
            shown.contains(&program) && !shown.contains(&helper),
            "{shown}"
        );
    }
    ends(&mut tree, program);
    assert_eq!(told(&tree, "is ended"), 0);
}

pub fn is_no_program_that_cannot_be_managed() {
    let mut tree = Tree::new(mib(512), 3);
    let mut program = tree.start(&["helped", "late"]);
    tree.settles_at(40..60);
    // Its helper waits for a line.
    let line = program.stdin.take();
    program.kill().unwrap();
    program.wait().unwrap();
    // It has not joined, and shares its memory with nobody. It counts still, and is about to end.
    tree.run_for(MS(200));
    tree.settles_at(40..60);
    assert_eq!(tree.sup.unjoined(), None);
    tree.kill_all();
    drop(line);
}

pub fn ends_with_its_program() {
    let (mut tree, mut program, helper) = tree_with("rude");
    program.kill().unwrap();
    program.wait().unwrap();
    tree.run_for(MS(50));
    // It may be writing still.
    assert!(lives(helper));
    assert_eq!(tree.sup.members(), 1);
    assert!(tree.until(S(5), |_| !lives(helper)), "it is left over");
    tree.expect_empty();
    reap(&mut tree);
    assert_eq!(descendants(std::process::id()), Vec::<u32>::new());

    // One that minds is not killed, and is waited for no longer than it takes.
    let (mut tree, mut program, helper) = tree_with("polite");
    program.kill().unwrap();
    program.wait().unwrap();
    tree.sup.wait_for_helpers(S(5), |_, _| ()).unwrap();
    assert!(!lives(helper));
    // A program that was killed early left the process by which it made its helper.
    let is_empty = |tree: &mut Tree| {
        reap(tree);
        !tree.sup.has_processes()
    };
    assert!(tree.until(S(5), is_empty));
    assert_eq!(told(&tree, "is ended"), 0);
}

pub fn takes_its_program_along() {
    let (mut tree, mut program, helper) = tree_with("rude");
    kill(helper, libc::SIGKILL);
    assert!(tree.until(S(5), |_| program.try_wait().unwrap().is_some()));
    tree.expect_empty();
    assert_eq!(told(&tree, "is ended: the process of ours"), 1);
    // Killed together, as the system does that is short of memory: nobody is told.
    let (mut tree, mut program, helper) = tree_with("rude");
    kill(program.id(), libc::SIGSTOP);
    kill(helper, libc::SIGKILL);
    kill(program.id(), libc::SIGKILL);
    assert!(tree.until(S(5), |_| program.try_wait().unwrap().is_some()));
    tree.expect_empty();
    assert_eq!(told(&tree, "is ended"), 0);
}

pub fn says_goodbye() {
    let (mut tree, mut program, helper) = tree_with("unmanaged");
    tree.settles_at(40..60);
    tell(&mut program);
    assert!(tree.until(S(5), |_| !lives(helper)));
    assert!(tree.until(S(5), |tree| tree.sup.members() == 0));
    // Measured like any other.
    tree.settles_at(40..60);
    assert!(program.try_wait().unwrap().is_none(), "it was ended");
    ends(&mut tree, program);
}

pub fn notices_exec() {
    let (mut tree, mut program, helper) = tree_with("exec");
    tell(&mut program);
    assert!(tree.until(S(5), |_| !lives(helper)), "it is left over");
    tree.expect_empty();
    assert!(program.try_wait().unwrap().is_none(), "sleep lives on");
    ends(&mut tree, program);

    // The next program joins while the old helper has not noticed.
    let (mut tree, mut program, helper) = tree_with("exec-again");
    tree.notices.lock().unwrap().clear();
    tell(&mut program);
    let next = helper_of(&mut tree, program.id());
    assert!(tree.until(S(5), |tree| tree.sup.members() == 1));
    assert!(!lives(helper) && lives(next));
    tree.sup.check().unwrap();
    tree.settles_at(0..20);
    assert_eq!(told(&tree, "is ended"), 0);
    ends(&mut tree, program);
}

pub fn serves_a_child() {
    let (mut tree, program, _) = tree_with("fork");
    assert!(tree.until(S(10), |tree| told(tree, "serves a child of") == 1));
    assert_eq!(tree.sup.members(), 2);
    let is_helper = |pid: &u32| ebb_sys::proc::name(*pid) == "ebb-helper";
    let mut others = descendants(std::process::id());
    others.retain(|pid| *pid != program.id() && !is_helper(pid));
    let [child] = others[..] else {
        panic!("{others:?}")
    };
    assert_eq!(told(&tree, &format!("serves a child of {child}")), 1);
    kill(child, libc::SIGKILL);
    assert!(tree.until(S(5), |tree| tree.sup.members() == 1));
    tree.sup.check().unwrap();
    ends(&mut tree, program);
}

pub fn does_not_lie() {
    let mut tree = Tree::new(mib(512), 3);
    let mut liar = tree.start(&["helped", "liar"]);
    let ended = tree.until(S(10), |_| liar.try_wait().unwrap().is_some());
    assert!(ended && liar.wait().unwrap().success());
    tree.expect_empty();
    reap(&mut tree);
}
