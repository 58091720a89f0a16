//! Costs of the shared table: members' calls in ns, the supervisor's ticks in µs and in share of a
//! processor.
//!
//! `cargo run --release -p ebb-tree --example costs`

use ebb_stores::Facts;
use ebb_sys::clock::monotonic_ns;
use ebb_sys::proc::Process;
use ebb_tree::{Config, Limits, Member, Setup, SetupDevice, Supervisor, Way};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn supervisor(budget_pages: u64, device_pages: u64) -> Supervisor {
    let file = std::fs::File::open("/dev/null").expect("/dev/null opens");
    Supervisor::new(Setup {
        budget_pages,
        budgets: Box::new(|| 1..=1 << 40),
        limits: Limits::default(),
        devices: vec![SetupDevice {
            name: "null".into(),
            fd: OwnedFd::from(file),
            facts: Facts::new(device_pages),
            priority: None,
        }],
        config: Config::default(),
        notices: None,
        open: None,
        guard: None,
    })
    .expect("a supervisor")
}

fn time(name: &str, n: u64, mut f: impl FnMut()) {
    let start = Instant::now();
    (0..n).for_each(|_| f());
    println!(
        "{name:<44} {:>8.1} ns",
        start.elapsed().as_nanos() as f64 / n as f64
    );
}

/// A member measures its own calls, then sleeps.
fn member() {
    let start = Instant::now();
    let control = std::env::var("EBB_CONTROL").expect("started by the example");
    let member = Member::join(&control, None, None).expect("joins");
    println!(
        "{:<44} {:>8.1} µs",
        "join",
        start.elapsed().as_nanos() as f64 / 1e3
    );
    member.start_paging(0);
    time("try_charge + uncharge", 1_000_000, || {
        assert!(member.try_charge(64));
        member.uncharge(64);
    });
    let histogram = member.latency(Way::Pool);
    let mut ns = 1;
    time("record a latency", 10_000_000, || {
        ns = ns * 7 % 1_000_003;
        histogram.record(ns);
    });
    let lender = member.lender(0).expect("a device");
    time("acquire + release a cluster", 1_000_000, || {
        let cluster = lender.acquire().expect("free");
        lender.release(cluster);
    });
    let held: Vec<_> = (0..10_000)
        .map(|_| lender.acquire().expect("free"))
        .collect();
    time("reserve + cancel a child, 10000 clusters", 1000, || {
        let child = member.reserve_child(0).expect("a slot");
        member.cancel_child(child);
    });
    time("has_readers, nobody reads", 1_000_000, || {
        assert!(!lender.has_readers(held[0]));
    });
    let _child = member.reserve_child(0).expect("a slot");
    time("has_readers, one reader", 1_000_000, || {
        assert!(lender.has_readers(held[0]))
    });
    println!("done");
    std::io::stdout().flush().expect("a pipe");
    std::thread::sleep(Duration::from_secs(60));
}

fn cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Supervises `n` idle processes for a second, with so much room, and prints what it costs.
fn watch(n: usize, headroom_mib: u64) {
    let mut sup = supervisor((64 + headroom_mib) << 8, 1 << 20);
    let mut children: Vec<_> = (0..n)
        .map(|_| Command::new("sleep").arg("60").spawn().expect("sleep"))
        .collect();
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        sup.step(Duration::from_millis(10)).expect("step");
    }
    let (start, cpu, mut ticks) = (monotonic_ns(), cpu_ns(), 0);
    while monotonic_ns() - start < 1_000_000_000 {
        sup.step(Duration::from_secs(1)).expect("step");
        ticks += 1;
    }
    let spent = cpu_ns() - cpu;
    println!(
        "{n:>4} processes, {headroom_mib:>5} MiB of room: {ticks:>4} ticks/s, {:>7.1} µs each, {:.2}% of a processor",
        spent as f64 / ticks as f64 / 1e3,
        spent as f64 / 1e7
    );
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn main() {
    if std::env::args().nth(1).is_some_and(|arg| arg == "--member") {
        return member();
    }
    let mut sup = supervisor(1 << 20, 100_000 * 512);
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .arg("--member")
        .env("EBB_CONTROL", sup.control_value())
        .stdin(Stdio::null())
        .spawn()
        .expect("a member");
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        sup.step(Duration::from_millis(50)).expect("step");
    }
    let _ = child.kill();
    let _ = child.wait();
    drop(sup);

    let memory = std::hint::black_box(vec![1u8; 1 << 30]);
    let me = Process::open(std::process::id()).expect("ourselves");
    time("smaps_rollup of 1 GiB", 5, || {
        me.rollup().expect("readable");
    });
    time("statm", 10_000, || {
        me.statm().expect("readable");
    });
    time("stat", 10_000, || {
        me.stat().expect("readable");
    });
    drop(memory);
    for (n, room) in [
        (1, 10_000),
        (1, 60),
        (10, 10_000),
        (10, 60),
        (100, 10_000),
        (100, 60),
    ] {
        watch(n, room);
    }
}
