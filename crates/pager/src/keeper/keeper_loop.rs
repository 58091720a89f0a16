//! The keeper: the thread that does everything that need not happen inside a fault.
//!
//! While the tree still fits its budget it only waits ([`join`](super::join)). When the tree starts paging, the
//! process is adopted ([`adopt`](super::adopt)). Each turn has new ranges registered, serves memory calls of
//! children, measures unmanaged memory and divides the budget ([`measure`](super::measure)). It gives memory to peers
//! ([`give_to_peers`](super::give_to_peers)), and lets the engine work in the background. It also rescues starved service threads.

use crate::fault::pressure;
use crate::keeper::cpu_contention::CpuContention;
use crate::keeper::drain_capacity::PoolTarget;
use crate::keeper::give_to_peers::Gift;
use crate::keeper::thread::Keeper;
use crate::pager::Pager;
use crate::process::worker::Worker;
use ebb_sys::paging::{Kernel, Time};
use std::time::Duration;

/// How often the keeper looks while faults are being served. Not more often: each time it goes
/// back to sleep, its processor is idle anew and the scheduler moves the program's thread there.
pub const BUSY: Duration = Duration::from_millis(20);
/// Service threads that were starved compete for so long: what starved them is there yet, mostly.
const RESCUED: Duration = Duration::from_secs(1);
/// While a memory call of a child's has to be made again: what a transit takes.
const OWING: Duration = Duration::from_micros(50);
/// A lock that is held for longer has a holder without a processor.
const HELD: Duration = Duration::from_micros(500);
/// Turns that a call of a child's waits for transits.
const OWED: u32 = 64;
/// How long the keeper waits until those that are under way have ended.
const DRAINED: Duration = Duration::from_millis(50);
/// While pages move from a device that is to go.
const MOVING: Duration = Duration::from_millis(1);
/// Pages that go when the system has none for us.
const REFUSED: u64 = 256;
/// How often it is seen whether the supervisor is there.
const SUPERVISED: Duration = Duration::from_millis(200);
/// How often it is seen which threads have ended whose stacks stay. Short beside the time after which a process that
/// lacks memory is ended.
const HOLDERS: Duration = Duration::from_millis(100);
/// While nothing happens; twice as long from time to time, and at most this.
pub const QUIET: Duration = Duration::from_millis(250);
const IDLE: Duration = Duration::from_secs(1);

/// How often memory is measured.
const MEASURED: Duration = Duration::from_millis(20);
/// Steps of the engine's background work a turn.
const STEPS: usize = 64;

/// The state of the keeper from turn to turn.
struct KeeperTurn {
    worker: Worker,
    contention: CpuContention,
    /// The window of the time that all threads waited.
    pressure: pressure::PressureWindow,
    /// News of the tree that were seen.
    seen: u32,
    /// Faults served, as last looked.
    served: u64,
    /// Flag: pages move from a device that is to go.
    moving: bool,
    /// Flag: a call of a child has to be made again.
    owing: bool,
    /// Turns in a row after which one had to be.
    owed: u32,
    /// The time when it was last seen whether the supervisor is there.
    supervised: Time,
    /// The time when memory was last measured.
    measured: Time,
    /// The time when it was last seen whose memory is held by nobody any more.
    held: Time,
    /// The time when faults were last served, or waited.
    heard: Time,
    /// The time when service threads were last starved.
    starved: Option<Time>,
    /// The next pause while nothing happens.
    quiet: Duration,
}

impl KeeperTurn {
    /// Before the first turn.
    fn new(kernel: &impl Kernel) -> Self {
        let now = kernel.now();
        Self {
            worker: Worker::new(kernel),
            contention: CpuContention::new(kernel),
            pressure: pressure::PressureWindow::default(),
            seen: 0,
            served: 0,
            moving: false,
            owing: false,
            owed: 0,
            supervised: now,
            measured: now,
            held: now,
            heard: now,
            starved: None,
            quiet: QUIET,
        }
    }
}

impl<K: Kernel> Pager<K> {
    /// The keeper's work, for ever.
    pub fn run(&'static self, keeper: Keeper<K>) -> ! {
        let mut turn = KeeperTurn::new(&self.kernel);
        let task = self.kernel.thread();
        self.lifecycle.keeper_begins(task);
        self.follow_user_change(&keeper);
        loop {
            self.keeper_turn(&keeper, &mut turn);
        }
    }

    /// One turn: waits for news, and does all that has to be done by then.
    fn keeper_turn(&'static self, keeper: &Keeper<K>, turn: &mut KeeperTurn) {
        keeper.look_after_service(turn);
        let pause = keeper.keeper_pause(turn);
        let seen = self.wait_for_news(keeper.member, turn.seen, pause);
        if std::mem::replace(&mut turn.seen, seen) != seen {
            turn.quiet = QUIET;
        }
        keeper.sees_to_holders();
        self.follow_user_change(keeper);
        keeper.keeper_looks();
        keeper.attend_fork(&mut turn.worker);
        self.serve_children_in_turn(keeper, turn);
        keeper.register_new();
        keeper.look_after_budget(turn);
        self.look_after_holders(turn);
        keeper.look_after_supervisor(turn);
        keeper.give_to_peers(turn);
        keeper.work_in_background(turn);
    }

    /// Now and then: sees which threads on stacks of the program's have ended.
    fn look_after_holders(&'static self, turn: &mut KeeperTurn) {
        let now = self.kernel.now();
        if now - turn.held > HOLDERS {
            turn.held = now;
            self.end_holders();
        }
    }

    /// Makes the memory calls of children. Where pages that one needs were in transit turn after turn, no fault begins
    /// for a moment: the transits that are under way end meanwhile.
    fn serve_children_in_turn(&'static self, keeper: &Keeper<K>, turn: &mut KeeperTurn) {
        turn.owing = self.serve_children();
        turn.owed = if turn.owing { turn.owed + 1 } else { 0 };
        if turn.owed < OWED {
            return;
        }
        turn.owed = 0;
        keeper.services.compete(true);
        let _closed = self.transit.close(&self.kernel);
        let begin = self.kernel.now();
        while turn.owing && self.kernel.now() - begin < DRAINED {
            self.kernel.sleep(OWING);
            turn.owing = self.serve_children();
        }
    }

    /// Makes the memory calls of children that share this memory; whether some have to be made again.
    pub fn serve_children(&'static self) -> bool {
        self.vfork_calls.serve(&self.kernel, |call| {
            // SAFETY: the child answers for its call as any thread of the program for its own.
            let outcome = unsafe { self.execute(call) };
            if outcome != Err(crate::process::outcome::RETRY)
                && let Some(process) = self.process()
            {
                process.register_new();
            }
            outcome
        })
    }
}

impl<K: Kernel> Keeper<K> {
    /// Service threads that are starved compete from now on, and those that cannot are replaced.
    fn look_after_service(&self, turn: &mut KeeperTurn) {
        let served = self.services.served();
        let fails_after = self.swap_space.devices.faults().keeper_after;
        assert!(
            fails_after.is_none_or(|after| served < after),
            "EBB_FAULTS asks for it"
        );
        let busy = served != turn.served;
        turn.served = served;
        let now = self.now();
        let starved = !busy && self.kernel.has_faults(0);
        // Or a fault is in the hand of a thread that waits for its processor, if not for a device.
        let blind = turn.contention.is_blind();
        if starved || blind && !busy && self.pressure.waits() {
            turn.starved = Some(now).filter(|_| blind);
            self.services.rescue();
        }
        if busy || starved {
            turn.heard = now;
            let crowded = turn.contention.sample(self.kernel);
            match starved {
                // The threads that are awake may all wait for a device that hangs.
                true => self.services.share(),
                false => {
                    let lately = turn.starved.is_some_and(|at| now - at < RESCUED);
                    self.services.compete(crowded || lately);
                }
            }
        }
        let run = self.base.lifecycle.service_entry();
        self.services.replace_stuck(run);
    }

    /// How long to wait for news.
    fn keeper_pause(&self, turn: &mut KeeperTurn) -> Duration {
        match () {
            _ if turn.owing => OWING,
            _ if turn.moving => MOVING,
            // A request may have ended the last wait before there was a fault.
            _ if self.now() - turn.heard < 2 * BUSY => {
                turn.quiet = QUIET;
                BUSY
            }
            _ => {
                let longer = (2 * turn.quiet).min(IDLE);
                std::mem::replace(&mut turn.quiet, longer)
            }
        }
    }

    /// Dates pages, ends protection, measures and divides the budget, and tells the tree of old pages.
    fn look_after_budget(&self, turn: &mut KeeperTurn) {
        let mut state = self.lock();
        state.pages.date(self.base.now_ms());
        self.end_protection(&mut state);
        let now = self.now();
        if now - turn.measured <= MEASURED {
            return;
        }
        turn.measured = now;
        self.count_pressure(&mut turn.pressure, now);
        if self.measure(&mut state) {
            turn.quiet = QUIET;
        }
        self.share_budget(&mut state);
        if self.base.lifecycle.is_checking() {
            self.faults().check(&state);
            self.swap_space.devices.check();
            self.base.vfork_calls.check();
        }
        if state.offer.may_be_asked(now) {
            self.publish_oldest(&mut state);
        }
    }

    /// Counts how long threads have waited so far, some and all.
    fn count_pressure(&self, window: &mut pressure::PressureWindow, now: Time) {
        let counters = self.counters();
        let waited = self.pressure.split(now).as_nanos() as u64;
        counters.psi_some_ns.add(waited);
        let full = window.turn(now, counters.psi_some_ns.get(), self.kernel.program_time());
        counters.psi_full_ns.add(full);
    }

    /// Now and then: sees whether the supervisor is there, and gives memory of our own back.
    fn look_after_supervisor(&self, turn: &mut KeeperTurn) {
        let now = self.now();
        if now - turn.supervised <= SUPERVISED {
            return;
        }
        turn.supervised = now;
        self.report_released();
        self.swap.free_idle();
        turn.worker.give_buffer_back(self.kernel);
        self.kernel.give_heap_back();
        self.kernel.give_stack_back();
        if self.member.supervised() {
            self.send_userfaultfd();
        } else {
            self.member.take_removals_back();
            self.member.end_reduction();
            self.member.reap_dead();
        }
    }

    /// Gives memory up, if peers asked for some or the system had none for us.
    fn give_to_peers(&self, turn: &mut KeeperTurn) {
        let request = self.member.take_reclaim_request();
        let refused = self.take_refusal();
        if !refused && request.pages == 0 {
            return;
        }
        let before = self.counters().evicted.get();
        let charged = self.lock().charge.charged();
        let gift = match refused {
            true => {
                let pages = u64::from(request.pages).max(REFUSED) as i64;
                self.give_to_system(&mut turn.worker, pages);
                Gift::Nothing
            }
            false => self.give_up(&mut turn.worker, request),
        };
        self.member.has_given();
        let mut state = self.lock();
        let gave = self.counters().evicted.get() - before;
        state.peer_reclaim.gave(gave);
        if gave > 0 || state.charge.charged() < charged {
            state.offer.asked(true, self.now());
            self.publish_oldest(&mut state);
        } else if gift == Gift::Young {
            // The peer that asked saw an older age.
            self.publish_oldest(&mut state);
        } else {
            state.offer.asked(false, self.now());
            self.member.publish_oldest(0, 0);
            self.tell_pool(&mut state);
        }
    }

    /// Looks after the devices, and lets the engine work.
    fn work_in_background(&self, turn: &mut KeeperTurn) {
        let _gate = self.gate();
        let mut target = PoolTarget {
            keeper: self,
            worker: &mut turn.worker,
        };
        let (devices, now) = (&self.swap_space.devices, || self.now());
        turn.moving = devices.update(self.member, self.swap, self.cpu(), now, &mut target);
        // Nothing after this ends transits.
        self.attend_waiting(&mut turn.worker);
        for _ in 0..STEPS {
            self.swap.others_loaded(self.member.last_load_ns());
            if !self.swap.work(self.cpu()) || self.is_wanted() {
                break;
            }
        }
    }

    /// Whether somebody waits for what the keeper alone does.
    fn is_wanted(&self) -> bool {
        let base = &self.base;
        self.member.is_asked() || base.registration.is_awaited() || base.fork.is_wanted()
    }

    /// A thread of idle urgency may wait for its processor with the lock of the state in its hand, or the gate. The
    /// keeper alone sees to that, and does not wait for them before it has.
    fn sees_to_holders(&self) {
        let begin = self.now();
        let is_held = || self.base.try_lock_service().is_none() || self.try_gate().is_none();
        while is_held() {
            if self.now() - begin > HELD {
                return self.services.compete(true);
            }
            self.kernel.sleep(OWING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::install::Refusals;
    use crate::map::page_map::UNIT;
    use crate::tests::machine::Machine;
    use ebb_engine::slots::DeviceSpec;
    use ebb_engine::{DeviceId, PAGE_SIZE};
    use ebb_stores::RamStore;
    use ebb_sys::userfaultfd::Fault;
    use std::sync::Arc;

    /// Where a device goes and its pages take room in memory, the keeper evicts, and so comes by faults of others: on
    /// pages whose transit it ended.
    #[test]
    fn faults_that_the_keeper_took_over_come_again_by_the_end_of_its_turn() {
        let mut machine = Machine::new(1024);
        let page = machine.map(1);
        machine.write(page, 5);
        machine.evict(page);
        assert!(machine.kernel.touch(7, page, None).is_err(), "it is out");
        let mut buffer = [Fault::default(); 1];
        let faults = machine.kernel.read_faults(&mut buffer).expect("it waits");
        let mut turn = KeeperTurn::new(machine.kernel);
        turn.worker.unpark(&mut faults.to_vec());
        machine.pager.keeper_turn(&machine.keeper, &mut turn);
        assert!(!machine.kernel.waits(7));
        machine.read_all();
    }

    /// A process of 32 MiB or more charges as many pages ahead as are to be given up. They are no pages of the system's:
    /// counted as given, nothing would be evicted, and the program ended.
    #[test]
    fn where_the_system_has_no_page_memory_is_given_up_beside_what_is_charged_ahead() {
        const PAGES: usize = 1024;
        let mut machine = Machine::without_pool(8192, RamStore::new(8192));
        let start = machine.map(PAGES);
        (0..PAGES).for_each(|i| machine.write(start + i * PAGE_SIZE, 1 + i as u8 % 100));
        let mut refusals = Refusals::default();
        for _ in 0..2 {
            machine.process.refused(&mut refusals);
            machine.kernel.pass(Duration::from_secs(1));
        }
        let mut state = machine.process.lock();
        machine.process.measure(&mut state);
        assert!(machine.process.has_room(&mut state, REFUSED as usize));
        let before = state.pages.in_memory();
        drop(state);
        let mut turn = KeeperTurn::new(machine.kernel);
        machine.pager.keeper_turn(&machine.keeper, &mut turn);
        let gave = before - machine.process.lock().pages.in_memory();
        assert!(gave + UNIT >= REFUSED as usize, "{gave} pages");
        machine.read_all();
        machine.check();
    }

    /// A device that is to go stays while its pages find no other place. Asked anew, it looks anew.
    #[test]
    fn a_device_goes_when_there_is_room_elsewhere() {
        let mut machine = Machine::without_pool(1024, RamStore::new(1024));
        let devices = &machine.process.swap_space.devices;
        let start = machine.map(UNIT);
        (0..UNIT).for_each(|i| machine.write(start + i * PAGE_SIZE, 1 + i as u8));
        (0..UNIT).for_each(|i| machine.evict(start + i * PAGE_SIZE));
        machine.store_staged();
        let mut turn = KeeperTurn::new(machine.kernel);
        let mut turns = |n| {
            for _ in 0..n {
                machine.pager.keeper_turn(&machine.keeper, &mut turn);
            }
        };
        devices.leave_unlisted(DeviceId(0), true);
        turns(40);
        assert_eq!(devices.devices.usage()[0].used as usize, UNIT);
        devices.leave_unlisted(DeviceId(0), false);
        turns(1);
        let other = Arc::new(RamStore::new(1024));
        let other = devices.devices.add(other, DeviceSpec::default(), None);
        devices.leave_unlisted(DeviceId(0), true);
        turns(4);
        let usage = devices.devices.usage();
        assert_eq!((usage.len(), Ok(usage[0].device)), (1, other));
        assert_eq!(usage[0].used as usize, UNIT);
        machine.read_all();
        machine.check();
    }
}
