//! The roles of member processes.

use crate::support::{close_inherited, exit_now, fork, kill, stamps_of};
use ebb_engine::ClusterIndex;
use ebb_engine::env::Lender;
use ebb_engine::random::Random;
use ebb_sys::userfaultfd::Userfaultfd;
use ebb_tree::{
    Answer, ChildSlot, Codec, Config, DeviceState, JoinError, Member, Mode, ShareReport, SlotState,
    Way,
};
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub fn play(role: &[String]) {
    let number = |i: usize| role[i].parse::<u64>().unwrap();
    match role[0].as_str() {
        "charge" => charge(number(1)),
        "exec" => exec(),
        "fill" => fill(number(1)),
        "refused" => refused(),
        "twice" => twice(),
        "greedy" => greedy(),
        "sharer" => sharer(number(1)),
        "dropper" => dropper(number(1)),
        "fork-and-die" => fork_and_die(&role[1]),
        "unreached" => unreached(role[1] == "parent ends"),
        "in-vain" => forks_in_vain(number(1)),
        "giver" => giver(number(1), number(2)),
        "after" => after(),
        "old-report" => old_report(),
        "watcher" => watcher(),
        "pool" => pool(number(1), number(2), number(3)),
        "erring" => erring(),
        "reaper" => reaper(&role[1]),
        "apart" => apart(),
        "holds-up" => holds_up(role[1] == "late"),
        "leaver" => leaver(number(1) as u32),
        "crowd" => crowd(number(1)),
        "too-many" => too_many(),
        "storm" => storm(number(1)),
        "orphaned" => crate::admission::orphaned(),
        "climber" => crate::rights::climber(&role[1]),
        "climbed" => crate::rights::climbed(&role[1]),
        "helped" => crate::helped::play(&role[1..]),
        other => panic!("no role {other}"),
    }
}

pub fn control() -> String {
    std::env::var("EBB_CONTROL").unwrap()
}

pub fn join() -> (Member, Vec<ebb_tree::Device>) {
    let member = Member::join(&control(), None, None).unwrap();
    let devices = member.attach(1, || false).unwrap();
    (member, devices)
}

/// Waits for a line on standard input.
pub fn wait_line() {
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap();
}

pub fn sleep_forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Touches so many MiB of fresh memory.
pub fn touch(mib: u64) -> Vec<u8> {
    let mut memory = vec![0u8; (mib << 20) as usize];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    std::hint::black_box(memory)
}

fn charge(pages: u64) {
    let (member, devices) = join();
    assert_eq!(
        member.config(),
        Config {
            codec: Codec::Lz4,
            encrypt: true,
            eager: false,
            watches: true,
            choice: ebb_engine::slots::DeviceChoice::default(),
        }
    );
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].priority, Some(3));
    assert_eq!(member.mode(), Mode::Watching);
    member.start_paging(pages);
    assert_eq!(
        (member.own_charge(), member.state()),
        (pages, SlotState::Paging)
    );
    let lender = member.lender(0).unwrap();
    let a = lender.acquire().unwrap();
    let b = lender.acquire().unwrap();
    assert_ne!(a, b);
    lender.release(a);
    member.counters().fault.add(pages);
    for ns in 1..=1000 {
        member.latency(Way::Pool).record(ns * 1000);
    }
    member.message("charged");
    wait_line();
}

/// Its pool has shrunk since it said how large that is.
fn old_report() {
    let (member, _) = join();
    member.start_paging(1000);
    member.report_pool(100 << 20, 0, (50_000, 90 << 20));
    member.message("reported");
    wait_line();
}

fn exec() {
    use std::os::unix::process::CommandExt;
    let (member, _) = join();
    member.start_paging(1000);
    member.lender(0).unwrap().acquire().unwrap();
    member.message("about to exec");
    wait_line();
    panic!("{}", std::process::Command::new("sleep").arg("60").exec());
}

/// Never joins.
fn fill(mib: u64) {
    wait_line();
    let memory = touch(mib);
    println!("filled");
    std::io::stdout().flush().unwrap();
    wait_line();
    drop(memory);
}

fn refused() {
    let child: ChildSlot = {
        // A slot that nobody reserved for us: our own.
        let (member, _) = join();
        let child = member.reserve_child(0).unwrap();
        member.cancel_child(child);
        refused_in_anothers_place(&member, child);
        child
    };
    match Member::join(&control(), Some(child), None) {
        Err(JoinError::Refused(why)) => assert!(why.contains("joined already"), "{why}"),
        other => panic!("{:?}", other.err()),
    }
    match Member::join("../../etc/passwd", None, None) {
        Err(JoinError::Control(_)) => {}
        other => panic!("{:?}", other.err()),
    }
    match Member::join("ebb-tree-1-0-0123456789abcdef", None, None) {
        Err(JoinError::Connect(_)) => {}
        other => panic!("{:?}", other.err()),
    }
}

/// A place was taken back from a child that had not run yet, and given to another.
fn refused_in_anothers_place(member: &Member, child: ChildSlot) {
    let other = member.reserve_child(0).unwrap();
    assert!(other.number() == child.number() && other != child);
    let Some(pid) = fork() else {
        close_inherited();
        assert!(!member.child_started(child));
        match member.rejoin(&control(), None) {
            Err(JoinError::Refused(why)) => assert!(why.contains("not reserved for it"), "{why}"),
            other => panic!("{other:?}"),
        }
        exit_now(0);
    };
    let mut status = 0;
    // SAFETY: room for a status, of a child of ours.
    unsafe { libc::waitpid(pid as i32, &raw mut status, 0) };
    assert_eq!(status, 0);
    member.cancel_child(other);
}

fn twice() {
    let (member, _) = join();
    match Member::join(&control(), None, None) {
        Err(JoinError::Refused(why)) => assert!(why.contains("joined already"), "{why}"),
        other => panic!("{:?}", other.err()),
    }
    member.message("still here");
    wait_line();
}

/// Takes all the room there is, and gives it back when told.
fn greedy() {
    let (member, _) = join();
    member.start_paging(0);
    while member.try_charge(64) {}
    member.message("full");
    let mut seen = 0;
    wait_line();
    // A little more than is wanted: the limit moves with what is measured outside.
    member.uncharge(640 + 64);
    member.message("gave");
    // Then ask for it back from whoever has cold pages.
    wait_line();
    let end = Instant::now() + Duration::from_secs(5);
    while !member.try_charge(640) {
        assert!(Instant::now() < end, "nobody gave");
        // Nobody is left to ask once the giver gave; then the room is there.
        let _ = member.ask_reclaim(640);
        seen = member.wait(seen, Some(Duration::from_millis(100)));
    }
    member.message("got it back");
    wait_line();
}

/// Waits for room, then gives whatever it is asked for. `age`: of its oldest page, in percent of the time
/// since the machine was started, so that no page is older than that.
fn giver(wants: u64, age: u64) {
    let (member, _) = join();
    member.start_paging(0);
    let mut seen = 0;
    while !member.try_charge(wants) {
        member.message("waits");
        let start = Instant::now();
        seen = member.wait(seen, Some(Duration::from_secs(10)));
        assert!(
            start.elapsed() < Duration::from_secs(9),
            "the room was not announced: {} of {} pages charged",
            member.charged(),
            member.limit()
        );
    }
    member.publish_oldest(ebb_sys::clock::monotonic_ns() / 100 * (100 - age), 0);
    member.message(&format!("has {wants}"));
    loop {
        seen = member.wait(seen, Some(Duration::from_secs(1)));
        let asked = u64::from(member.take_reclaim_request().pages).min(member.own_charge());
        if asked > 0 {
            member.uncharge(asked);
            member.message(&format!("gave {asked} of {wants}"));
        }
    }
}

/// A process that has `mib` MiB and shares them with a forked child, which goes on in `child`.
fn share(mib: u64, child: impl FnOnce(Member, Vec<u8>)) -> ! {
    let (member, _) = join();
    let memory = touch(mib);
    member.start_paging(mib << 8);
    let slot = member.reserve_child(0).unwrap();
    if let Some(pid) = fork() {
        member.child_forked(slot, pid);
        sleep_forever();
    }
    close_inherited();
    assert!(member.child_started(slot));
    member.rejoin(&control(), None).unwrap();
    let devices = member.attach(1, || false).unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!(member.state(), SlotState::Paging);
    assert_eq!(member.own_charge(), mib << 8);
    member.message("child is in");
    wait_line();
    child(member, memory);
    std::process::exit(0);
}

/// The child gives back what it has charged, as after dropping pages that the supervisor is to look at, and ends.
fn dropper(mib: u64) {
    share(mib, |member, _| member.uncharge(mib << 8));
}

/// The child writes half of what it shares.
fn sharer(mib: u64) {
    share(mib, |member, mut memory| {
        let half = memory.len() / 2;
        // The second part as soon as the first is measured, before the supervisor looks at faults again.
        let since = member.rollups();
        for part in memory[..half].chunks_mut(half / 2) {
            part.iter_mut().step_by(4096).for_each(|byte| *byte = 2);
            measured_since(&member, since);
        }
        member.message("half written");
        wait_line();
        // Drops a quarter, and says so when that was measured already, as a fault had it done.
        let since = member.rollups();
        let quarter = memory[half..half + half / 2].as_mut_ptr_range();
        let start = quarter.start.addr().next_multiple_of(4096);
        let len = (quarter.end.addr() & !4095) - start;
        // SAFETY: nothing but bytes lies there, which nobody reads again.
        let dropped = unsafe { libc::madvise(start as *mut _, len, libc::MADV_DONTNEED) };
        assert_eq!(dropped, 0);
        memory[half * 2 - 1] = 2;
        measured_since(&member, since);
        // Each costs a fault the first time, after which it would be measured again in any case.
        member.unshare(0, since);
        member.message("a quarter is gone");
        std::thread::sleep(Duration::from_secs(1));
        member.unshare(len as u64 / 4096, since);
        member.message("a quarter was shared");
        sleep_forever();
    });
}

/// Waits until what is shared has been measured since it was `since`.
fn measured_since(member: &Member, since: u32) {
    let begin = Instant::now();
    while member.rollups().wrapping_sub(since) < 2 {
        assert!(begin.elapsed() < Duration::from_secs(5), "nobody measures");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Touches `mib` MiB, forks `children` that share them, and then each writes `write` MiB.
fn pool(mib: u64, children: u64, write: u64) {
    let mut memory = touch(mib);
    let mut pipes = [0; 2];
    // SAFETY: `pipes` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipes.as_mut_ptr()) }, 0);
    for _ in 0..children {
        if fork().is_none() {
            let mut byte = 0u8;
            // SAFETY: `byte` has room for one byte.
            unsafe { libc::read(pipes[0], (&raw mut byte).cast(), 1) };
            let write = (write << 20) as usize;
            memory[..write]
                .iter_mut()
                .step_by(4096)
                .for_each(|byte| *byte = 2);
            sleep_forever();
        }
    }
    println!("forked");
    std::io::stdout().flush().unwrap();
    wait_line();
    // SAFETY: four bytes are read from a string of that length at least.
    unsafe { libc::write(pipes[1], c"........".as_ptr().cast(), children as usize) };
    sleep_forever();
}

/// Processes that join, as many as asked for. Told to, one of them ends; then this one says whether a child
/// of its own would have a place before that, and after.
fn crowd(count: u64) {
    let mut last = 0;
    for _ in 0..count {
        match fork() {
            Some(pid) => last = pid,
            None => {
                let member = Member::join(&control(), None, None).unwrap();
                member.message("joined");
                sleep_forever();
            }
        }
    }
    let (member, _) = join();
    member.message("joined");
    wait_line();
    assert!(!member.has_free_slot());
    assert!(member.reserve_child(0).is_none());
    kill(last, libc::SIGKILL);
    while !member.has_free_slot() {
        std::thread::sleep(Duration::from_millis(1));
    }
    member.message("there is a place again");
    wait_line();
    let child = member.reserve_child(0).unwrap();
    member.cancel_child(child);
    member.message("and for a child");
    sleep_forever();
}

/// One more than can be managed.
fn too_many() {
    match Member::join(&control(), None, None) {
        Err(JoinError::Refused(why)) => assert!(why.contains("every place"), "{why}"),
        other => panic!("{:?}", other.err()),
    }
}

/// The parent dies as early as it can: before it could say which process its child is.
fn fork_and_die(how: &str) {
    let (member, devices) = join();
    let stamps = stamps_of(&devices[0].fd);
    member.start_paging(500);
    let lender = member.lender(0).unwrap();
    let cluster = lender.acquire().unwrap();
    stamps[cluster.index()].store(1234, SeqCst);
    let child = member.reserve_child(0).unwrap();
    if how == "childless" {
        member.message("reserved");
        wait_line();
        exit_now(0);
    }
    match fork() {
        Some(_) if how == "nameless" => {
            member.child_forked(child, 0);
            member.message("forked");
            sleep_forever();
        }
        Some(_) => exit_now(0),
        None => {
            close_inherited();
            if how == "nameless" {
                exit_now(0);
            }
            // Long enough for the supervisor to look for us many times.
            std::thread::sleep(Duration::from_millis(400));
            assert!(member.child_started(child));
            if how == "exec" {
                use std::os::unix::process::CommandExt;
                panic!("{}", std::process::Command::new("sleep").arg("60").exec());
            }
            std::thread::sleep(Duration::from_millis(200));
            member.rejoin(&control(), None).unwrap();
            assert_eq!(stamps[cluster.index()].load(SeqCst), 1234);
            member.message("orphan is in");
            wait_line();
            assert_eq!(
                stamps[cluster.index()].load(SeqCst),
                1234,
                "handed out under a reader"
            );
            member.lender(0).unwrap().stop_reading(cluster);
            member.message("orphan read it");
            sleep_forever();
        }
    }
}

/// Its child cannot reach the supervisor, as in another network namespace: it pages by itself, and becomes another
/// program.
fn unreached(parent_ends: bool) {
    let (member, _) = join();
    member.start_paging(500);
    member.message("may fork");
    wait_line();
    let child = member.reserve_child(0).unwrap();
    if let Some(pid) = fork() {
        member.child_forked(child, pid);
        if parent_ends {
            exit_now(0);
        }
        sleep_forever();
    }
    close_inherited();
    assert!(member.child_started(child));
    member.start_paging(0);
    println!("pages");
    wait_line();
    use std::os::unix::process::CommandExt;
    panic!("{}", std::process::Command::new("sleep").arg("60").exec());
}

/// Forks so often in vain, without knowing: as many places are taken as there are, and more. Its parent is
/// of the same image, and never joins.
fn forks_in_vain(times: u64) {
    let Some(pid) = fork() else {
        let (member, _) = join();
        member.start_paging(100);
        let reserve = || {
            while !member.has_free_slot() {
                std::thread::sleep(Duration::from_millis(1));
            }
            member.reserve_child(0).unwrap()
        };
        for _ in 0..times {
            member.child_forked(reserve(), 0);
        }
        member.message("all in vain");
        // A real one is not taken for another in vain, though nobody says which it is.
        let child = reserve();
        if fork().is_none() {
            close_inherited();
            std::thread::sleep(Duration::from_millis(300));
            assert!(member.child_started(child));
            std::thread::sleep(Duration::from_millis(100));
            member.rejoin(&control(), None).unwrap();
            member.message("and one was not");
            sleep_forever();
        }
        member.child_forked(child, 0);
        sleep_forever();
    };
    wait_line();
    kill(pid, libc::SIGKILL);
}

/// Reaps the dead together with its second child, which has no connection. It may be of a PID namespace of its own:
/// `apart`. `beside`: the supervisor lives. Each of the three has charged 100 pages.
fn reaper(how: &str) {
    let apart = how == "apart";
    let reap = |pid: u32| {
        // SAFETY: a null status is allowed.
        unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), 0) };
    };
    let (member, _devices) = join();
    member.start_paging(100);
    let first = member.reserve_child(0).unwrap();
    let Some(pid) = fork() else {
        assert!(member.child_started(first));
        sleep_forever();
    };
    member.child_forked(first, pid);
    member.message("has a child");
    wait_line();
    while how != "beside" && member.supervised() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: the process has one thread, and only what it forks is concerned.
    if apart && unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
        println!("not allowed");
        kill(pid, libc::SIGKILL);
        return;
    }
    let second = member.reserve_child(0).unwrap();
    let Some(child) = fork() else {
        assert!(member.child_started(second));
        member.reap_dead();
        println!("{}", member.charged());
        exit_now(0);
    };
    member.child_forked(second, child);
    reap(child);
    member.reap_dead();
    println!("{}", member.charged());
    kill(pid, libc::SIGKILL);
    reap(pid);
    member.reap_dead();
    println!("{}", member.charged());
}

/// A process with two children that cannot reach the supervisor, as from another network namespace. The first ends,
/// while who serves it lives on. The second, of another PID namespace, has a child itself, which it names by a number
/// that nobody has outside.
fn apart() {
    const NOBODY: u32 = i32::MAX as u32;
    let (member, _devices) = join();
    member.start_paging(100);
    let (from, to) = rustix::pipe::pipe().unwrap();
    let tell = |pid: u32| {
        let told = rustix::io::write(&to, &pid.to_ne_bytes());
        assert_eq!(told, Ok(4));
    };
    let told = || {
        let mut pid = [0; 4];
        assert_eq!(rustix::io::read(&from, &mut pid), Ok(4));
        u32::from_ne_bytes(pid)
    };
    let begin = |child: ChildSlot| {
        assert!(member.child_started(child));
        member.start_paging(0);
    };
    let first = member.reserve_child(0).unwrap();
    let Some(pid) = fork() else {
        begin(first);
        let us = rustix::process::getpid();
        let us = rustix::process::pidfd_open(us, rustix::process::PidfdFlags::empty()).unwrap();
        if fork().is_none() {
            let unreachable = member.rejoin("ebb-tree-1-0-0123456789abcdef", Some(us.as_fd()));
            assert!(matches!(unreachable, Err(JoinError::Connect(_))));
            tell(std::process::id());
            sleep_forever();
        }
        loop {
            // SAFETY: touches no memory.
            unsafe { libc::pause() };
        }
    };
    member.child_forked(first, pid);
    let helper = told();
    kill(pid, libc::SIGKILL);
    // SAFETY: a null status is allowed.
    unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), 0) };
    // SAFETY: the process has one thread, and only what it forks is concerned.
    if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
        member.message("not allowed");
        sleep_forever();
    }
    let second = member.reserve_child(0).unwrap();
    let Some(pid) = fork() else {
        begin(second);
        let third = member.reserve_child(0).unwrap();
        if fork().is_none() {
            begin(third);
            tell(std::process::id());
            sleep_forever();
        }
        member.child_forked(third, NOBODY - 1);
        sleep_forever();
    };
    member.child_forked(second, pid);
    assert_eq!(told(), 2, "its number inside");
    member.message("all are there");
    wait_line();
    kill(helper, libc::SIGKILL);
    sleep_forever();
}

/// A child of it gives the supervisor the descriptor of its parent's memory, whose readers wait; `late`: from when the
/// supervisor has it. The child ends, and the memory is in use.
fn holds_up(late: bool) {
    let faults = match Userfaultfd::open() {
        Ok(faults) => faults,
        Err(e) => return println!("no userfaultfd: {e}"),
    };
    let hold_up = || rustix::fs::fcntl_setfl(&faults, rustix::fs::OFlags::empty()).unwrap();
    if fork().is_some() {
        sleep_forever();
    }
    let (member, _devices) = join();
    if !late {
        hold_up();
    }
    assert!(member.send_userfaultfd(&faults));
    member.message("gave it");
    wait_line();
    hold_up();
    exit_now(0);
}

/// Says that a device fails it, twice: first some writes, then all.
fn erring() {
    let (member, devices) = join();
    let row = devices[0].row;
    let failed = |errors, out| {
        member.report_share(
            row,
            ShareReport {
                used: 5,
                errors,
                out,
                ..ShareReport::default()
            },
        );
    };
    failed(3, false);
    wait_line();
    failed(16, true);
    wait_line();
    exit_now(0);
}

/// Has so many pages on the device, and wants other places for all of them if it is to leave.
fn leaver(pages: u32) {
    let (member, devices) = join();
    let (row, serial) = (devices[0].row, devices[0].serial);
    let mut seen = 0;
    loop {
        let change = member.device_changes();
        let answer = match member.device(row) {
            Some((_, DeviceState::Asked)) => Some((change, Answer::Wants(pages))),
            Some((_, DeviceState::Leaving)) => {
                member.message("leaves");
                member.detach(row, serial);
                sleep_forever();
            }
            _ => None,
        };
        member.report_share(
            row,
            ShareReport {
                used: pages,
                answer,
                ..ShareReport::default()
            },
        );
        seen = member.wait(seen, Some(Duration::from_secs(1)));
    }
}

/// Takes every cluster it can get and stamps it.
fn after() {
    let (member, devices) = join();
    let stamps = stamps_of(&devices[0].fd);
    let lender = member.lender(0).unwrap();
    let mut got = 0;
    while let Some(cluster) = lender.acquire() {
        stamps[cluster.index()].store(9999, SeqCst);
        got += 1;
    }
    member.message(&format!("got {got}"));
    wait_line();
    if lender.acquire().is_some() {
        member.message("got one more");
    }
    sleep_forever();
}

/// Says when it has to page.
fn watcher() {
    let (member, _) = join();
    let mut seen = 0;
    while member.mode() == Mode::Watching {
        seen = member.wait(seen, None);
    }
    member.start_paging(10);
    member.message("paging");
    let limit = member.limit();
    println!("{limit}");
    std::io::stdout().flush().unwrap();
    wait_line();
    assert!(
        member.try_charge(1),
        "the supervisor is gone, and so is our membership"
    );
    match Member::join(&control(), None, None) {
        Err(JoinError::Connect(_)) => println!("alone"),
        other => println!("{:?}", other.err()),
    }
}

/// A process of the storm: allocates, frees, forks, reads what it inherited, and looks
/// after every step whether anyone has written over it.
struct Stormer {
    member: Member,
    lender: Arc<dyn Lender>,
    stamps: &'static [AtomicU64],
    random: Random,
    owned: HashMap<ClusterIndex, u64>,
    /// Owned at a fork: not to be written while there are readers.
    frozen: HashMap<ClusterIndex, u64>,
    inherited: HashMap<ClusterIndex, u64>,
    charged: u64,
    generation: u64,
}

static STAMP: AtomicU64 = AtomicU64::new(1);

fn storm(seed: u64) {
    let (member, devices) = join();
    member.start_paging(10);
    let lender = member.lender(0).unwrap();
    let stamps = stamps_of(&devices[0].fd);
    let mut stormer = Stormer {
        member,
        lender,
        stamps,
        random: Random::new(seed),
        owned: HashMap::new(),
        frozen: HashMap::new(),
        inherited: HashMap::new(),
        charged: 10,
        generation: 0,
    };
    loop {
        stormer.step();
    }
}

impl Stormer {
    fn fail(&self, why: String) -> ! {
        self.member.message(&format!("VIOLATION {why}"));
        exit_now(99);
    }

    fn fresh_stamp(&self) -> u64 {
        (std::process::id() as u64) << 32 | STAMP.fetch_add(1, SeqCst)
    }

    fn check(&self) {
        let charged = self.member.own_charge();
        if charged != self.charged {
            self.fail(format!(
                "charged {} became {charged}, generation {} slot {} {:?}",
                self.charged,
                self.generation,
                self.member.slot(),
                self.member.state()
            ));
        }
        for (kind, clusters) in [
            ("owned", &self.owned),
            ("frozen", &self.frozen),
            ("inherited", &self.inherited),
        ] {
            for (&cluster, &stamp) in clusters {
                let now = self.stamps[cluster.index()].load(SeqCst);
                if now != stamp {
                    self.fail(format!(
                        "{kind} cluster {cluster}: {stamp:x} became {now:x}"
                    ));
                }
            }
        }
    }

    fn any(&mut self, which: fn(&Self) -> &HashMap<ClusterIndex, u64>) -> Option<ClusterIndex> {
        let len = which(self).len();
        let at = self.random.below(len.max(1));
        which(self).keys().nth(at).copied()
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..30 => {
                if let Some(cluster) = self.lender.acquire() {
                    if self.lender.has_readers(cluster) {
                        self.fail(format!("cluster {cluster} was handed out with readers"));
                    }
                    if self.inherited.contains_key(&cluster) {
                        self.fail(format!("cluster {cluster} was handed out while we read it"));
                    }
                    let stamp = self.fresh_stamp();
                    self.stamps[cluster.index()].store(stamp, SeqCst);
                    self.owned.insert(cluster, stamp);
                }
            }
            30..50 => {
                if let Some(cluster) = self.any(|s| &s.owned) {
                    self.owned.remove(&cluster);
                    self.lender.release(cluster);
                }
            }
            50..60 => {
                if let Some(cluster) = self.any(|s| &s.frozen) {
                    // Given back under readers, or used again once there are none.
                    let stamp = self.frozen.remove(&cluster).unwrap();
                    if self.random.below(2) == 0 {
                        self.lender.release(cluster);
                    } else if self.lender.has_readers(cluster) {
                        self.frozen.insert(cluster, stamp);
                    } else {
                        let stamp = self.fresh_stamp();
                        self.stamps[cluster.index()].store(stamp, SeqCst);
                        self.owned.insert(cluster, stamp);
                    }
                }
            }
            60..75 => {
                if let Some(cluster) = self.any(|s| &s.inherited) {
                    self.inherited.remove(&cluster);
                    self.lender.stop_reading(cluster);
                }
            }
            75..85 => {
                let pages = self.random.below(200) as u64 + 1;
                if self.member.try_charge(pages) {
                    self.charged += pages;
                }
            }
            85..97 => {
                let pages = self.random.below(self.charged as usize + 1) as u64;
                self.member.uncharge(pages);
                self.charged -= pages;
            }
            _ if self.generation < 4
                && crate::support::descendants(std::process::id()).len() < 3 =>
            {
                self.fork();
            }
            _ => std::thread::yield_now(),
        }
        self.check();
        // SAFETY: a null status is allowed.
        unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    }

    fn fork(&mut self) {
        let Some(child) = self.member.reserve_child(0) else {
            return;
        };
        let seed = self.random.next();
        if self.random.below(10) == 0 {
            self.member.cancel_child(child);
            return;
        }
        match fork() {
            Some(pid) => {
                let name = [pid, 0][self.random.below(2)];
                self.member.child_forked(child, name);
                self.frozen.extend(self.owned.drain());
            }
            None => {
                close_inherited();
                assert!(self.member.child_started(child));
                self.random = Random::new(seed);
                self.generation += 1;
                self.inherited.extend(self.owned.drain());
                self.inherited.extend(self.frozen.drain());
                // Some do not live long enough to join again.
                if self.random.below(5) == 0 {
                    exit_now(0);
                }
                if let Err(e) = self.member.rejoin(&control(), None) {
                    eprintln!("a child cannot rejoin: {e}");
                    exit_now(98);
                }
            }
        }
    }
}
