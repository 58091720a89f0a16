//! The devices of a tree in one of its processes, beside a real supervisor that answers when the test lets it.

use super::machine::MemoryKernel;
use crate::devices::device_set::DrainTarget;
use crate::devices::swap_space::{self, SwapSpace};
use ebb_engine::Cpu;
use ebb_stores::SwapSpec;
use ebb_sys::paging::Kernel;
use ebb_sys::shm::Area;
use ebb_tree::{
    Ask, Config, Facts, Limits, Member, Reply, Request, Setup, SetupDevice, Supervisor,
};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// No memory for pages of devices.
struct Nothing;

impl DrainTarget for Nothing {
    fn holds(&mut self, _: u64) -> u64 {
        0
    }
    fn make_room(&mut self, _: usize) -> bool {
        false
    }
}

fn supervisor() -> Supervisor {
    let open = |_: &SwapSpec| {
        let (_, fd) = Area::create("device", 4 << 21).map_err(|e| e.to_string())?;
        let device = SetupDevice {
            name: "device".into(),
            fd,
            facts: Facts::new(4 * 512),
            priority: None,
        };
        Ok((device, None))
    };
    let setup = Setup {
        budget_pages: 1000,
        budgets: Box::new(|| 1..=1000),
        limits: Limits::default(),
        devices: Vec::new(),
        config: Config::default(),
        notices: Some(Box::new(|_| None)),
        open: Some(open),
        guard: None,
    };
    Supervisor::new(setup).expect("a supervisor")
}

/// Supervises while `f` runs in another thread; what that returned.
fn beside<T: Send>(supervisor: &mut Supervisor, f: impl FnOnce() -> T + Send) -> T {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let result = f();
            is_done.store(true, SeqCst);
            result
        });
        while !is_done.load(SeqCst) {
            supervisor.step(Duration::from_millis(1)).unwrap();
        }
        other.join().unwrap()
    })
}

/// Faults wait for the gate, which the keeper holds in its turn.
#[test]
fn a_keeper_does_not_wait_for_a_supervisor_that_is_stopped() {
    let mut supervisor = supervisor();
    let control = supervisor.control_value().to_owned();
    let kernel: &'static MemoryKernel = Box::leak(Box::new(MemoryKernel::alone()));
    let joins = || Member::join(&control, None, None).expect("a member");
    let member: &'static Member = Box::leak(Box::new(beside(&mut supervisor, joins)));
    let space: &'static SwapSpace = swap_space::open(kernel, member, |_| ()).expect("an engine");
    let turn = || {
        let (now, start) = (|| kernel.now(), Instant::now());
        let (devices, swap) = (&space.devices, &space.swap);
        devices.update(member, swap, Cpu(0), now, &mut Nothing);
        assert!(start.elapsed() < Duration::from_secs(1), "it waited");
        devices.devices.usage().len()
    };
    let mut ask = Ask::send_to(&control, &Request::On("a device".into())).unwrap();
    while supervisor.devices().is_empty() {
        supervisor.step(Duration::from_millis(1)).unwrap();
    }
    assert!(matches!(ask.reply(), Ok(Reply::Done(_))));
    // It is stopped: however often it is looked, and for how long.
    for _ in 0..10 {
        assert_eq!(turn(), 0);
        kernel.pass(Duration::from_millis(200));
    }
    // It goes on, and has one question to answer.
    let end = Instant::now() + Duration::from_secs(10);
    while turn() == 0 && Instant::now() < end {
        supervisor.step(Duration::from_millis(1)).unwrap();
    }
    assert_eq!(turn(), 1);
    assert_eq!(supervisor.devices()[0].processes, 1);
}
