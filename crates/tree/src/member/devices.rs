//! The devices of the tree, as a member sees them: which there are, how it comes to hold one,
//! and how it lets go.
//!
//! # Protocol
//! The table has a row for each device. Whenever rows change, [`Member::device_changes`] does
//! and every member is woken. Then, on the thread that owns the descriptors:
//! ```text
//! a row is On, and not held     attach: ask the supervisor, which sends file and leases
//! a held row is Asked           say what it would take to leave; go on as before
//! a held row is Leaving         move everything away, close the file, detach
//! a held row is On again        go on as before
//! a held row is another's       only in a forked child that had nothing there: detach
//! ```
//! A row is given to another device only when every member has detached, and nobody owns or
//! reads a cluster of it.

use super::{JoinError, Member};
use crate::MAX_DEVICES;
use crate::lease::Leases;
use crate::protocol::{self, GivenDevice};
use crate::table::{DeviceRow, DeviceState, ShareReport, clusters_of, create_leases, map_leases};
use ebb_engine::ClusterIndex;
use ebb_engine::env::Lender;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// A swap device as received: the descriptor is the caller's.
#[derive(Debug)]
pub struct Device {
    /// The row in the table, below [`MAX_DEVICES`].
    pub row: usize,
    /// The number, never used twice in a tree.
    pub serial: u64,
    /// The file, in this thread's descriptor table.
    pub fd: OwnedFd,
    /// The facts.
    pub facts: crate::Facts,
    /// Higher is used first; none: after those with one.
    pub priority: Option<i16>,
}

/// A question for devices, to which no answer has come.
pub struct DeviceQuestion {
    number: u32,
    rows: u8,
    /// The devices of all rows as it was put.
    before: [Option<(u64, DeviceState)>; MAX_DEVICES],
    /// Rows in answers to questions before it.
    passed_over: u8,
}

impl Member {
    /// Changes with every change of the tree's devices.
    pub fn device_changes(&self) -> u64 {
        self.table.changes.load(SeqCst)
    }

    /// The device in a row by its serial number, and what becomes of it.
    pub fn device(&self, row: usize) -> Option<(u64, DeviceState)> {
        self.table.devices.get(row)?.device()
    }

    /// Receives the devices of `rows`, one bit each, and holds their leases. Rows that have
    /// become free are left out. On the thread that joined.
    ///
    /// An answer is that to this question. One to a question that was given up may have been judged before the process
    /// gave its user up. While the supervisor is late, it is waited for as long as `waits` says, and not asked again.
    ///
    /// # Errors
    /// The supervisor is gone ([`JoinError::Connect`]), does not answer in time ([`JoinError::is_late`]), or cannot hand
    /// over one that is there ([`JoinError::NotGiven`]); nothing more is held then.
    pub fn attach(&self, rows: u8, waits: impl Fn() -> bool) -> Result<Vec<Device>, JoinError> {
        if rows == 0 {
            return Ok(Vec::new());
        }
        let mut question = self.question(rows);
        // A queue that is full is a supervisor that is late.
        patiently(&waits, || self.put(&question, SendFlags::empty()))?;
        let answered = patiently(&waits, || self.answer_to(&mut question, RecvFlags::empty()));
        self.accept(question, answered)
    }

    /// The same without any wait: asks, and [`take_answer`](Self::take_answer) receives.
    ///
    /// # Errors
    /// As above.
    pub fn ask_for(&self, rows: u8) -> Result<DeviceQuestion, JoinError> {
        let question = self.question(rows);
        self.put(&question, SendFlags::DONTWAIT)?;
        Ok(question)
    }

    /// The devices that were asked for; none: the supervisor is late, and the question stays.
    ///
    /// # Errors
    /// As above.
    pub fn take_answer(
        &self,
        question: &mut Option<DeviceQuestion>,
    ) -> Option<Result<Vec<Device>, JoinError>> {
        let answered = self.answer_to(question.as_mut()?, RecvFlags::DONTWAIT);
        match answered {
            Err(why) if why.is_late() => None,
            answered => Some(self.accept(question.take()?, answered)),
        }
    }

    /// The answer to this question will be passed over by whoever asks next.
    pub fn give_up(&self, question: DeviceQuestion) {
        self.disown(rows_of(question.passed_over));
    }

    fn question(&self, rows: u8) -> DeviceQuestion {
        DeviceQuestion {
            number: self.asked.fetch_add(1, Relaxed).wrapping_add(1),
            rows,
            before: std::array::from_fn(|row| self.device(row)),
            passed_over: 0,
        }
    }

    fn put(&self, question: &DeviceQuestion, how: SendFlags) -> Result<(), JoinError> {
        let packet = protocol::ask(question.number, question.rows);
        net::send(self.reach()?, &packet, SendFlags::NOSIGNAL | how)?;
        Ok(())
    }

    fn reach(&self) -> Result<BorrowedFd<'_>, JoinError> {
        let connection = self.connection.get();
        connection.ok_or(JoinError::Protocol("there is no connection"))
    }

    /// The answer to a question; those to others before it are passed over.
    fn answer_to(
        &self,
        question: &mut DeviceQuestion,
        how: RecvFlags,
    ) -> Result<Answered, JoinError> {
        loop {
            let (number, given, fds) = answer(self.reach()?, how)?;
            if number == question.number {
                return Ok((given, fds));
            }
            let rows = given.iter().fold(0, |rows, d| rows | 1 << d.row);
            question.passed_over |= rows;
        }
    }

    /// Holds the devices of an answer, and disowns those that were passed over.
    fn accept(
        &self,
        question: DeviceQuestion,
        answered: Result<Answered, JoinError>,
    ) -> Result<Vec<Device>, JoinError> {
        let DeviceQuestion { rows, before, .. } = question;
        let mut given = Vec::new();
        let taken = answered.and_then(|(devices, fds)| {
            given = devices;
            let given_or_gone = |row: usize| {
                let serial = |device: Option<(u64, _)>| device.map(|(serial, _)| serial);
                given.iter().any(|device| device.row == row)
                    || serial(before[row]).is_none()
                    || serial(before[row]) != serial(self.device(row))
            };
            match rows_of(rows).all(given_or_gone) {
                true => self.take(&given, fds),
                false => Err(JoinError::NotGiven),
            }
        });
        // After it: a row may have been passed over first.
        let named = given.iter().map(|device| device.row);
        let named = named.filter(|_| taken.is_err());
        self.disown(named.chain(rows_of(question.passed_over)));
        taken
    }

    fn take(&self, given: &[GivenDevice], fds: Vec<OwnedFd>) -> Result<Vec<Device>, JoinError> {
        const MISSING: &str = "descriptors missing; raise the limit on open files";
        let mut devices = Vec::new();
        let mut leases = Vec::new();
        let mut fds = fds.into_iter();
        for device in given {
            let &GivenDevice { row, serial, .. } = device;
            let (Some(fd), Some(lease)) = (fds.next(), fds.next()) else {
                return Err(JoinError::Protocol(MISSING));
            };
            // The row is this device's as long as we do not detach.
            if self.device(row).is_none_or(|(now, _)| now != serial) {
                return Err(JoinError::Protocol("the device of a row has changed"));
            }
            let known = self.held.lock()[row].filter(|held| held.0 == serial);
            let mapped = match known {
                Some((_, leases)) => leases,
                None => map_leases(lease.as_fd(), clusters_of(device.facts.slots))
                    .map_err(JoinError::Map)?,
            };
            leases.push((row, (serial, mapped)));
            devices.push(Device {
                row,
                serial,
                fd,
                facts: device.facts,
                priority: device.priority,
            });
        }
        let mut held = self.held.lock();
        for (row, leases) in leases {
            held[row] = Some(leases);
        }
        Ok(devices)
    }

    /// In a forked child that opens a device by itself: says that it holds it; whether that is still there.
    pub fn holds_again(&self, row: usize, serial: u64) -> bool {
        // First: a device that is there after it does not go before this process has detached.
        let attached = &self.table.slot(self.slot()).attached;
        attached.fetch_or(1 << row, SeqCst);
        let there = self.device(row).is_some_and(|(now, _)| now == serial);
        if !there {
            attached.fetch_and(!(1 << row), SeqCst);
        }
        there
    }

    /// The supervisor takes this process for one that holds these devices, and it does not.
    fn disown(&self, rows: impl Iterator<Item = usize>) {
        let held = self.held.lock();
        let missing = rows.filter(|row| held[*row].is_none());
        let missing = missing.fold(0, |rows, row| rows | 1 << row);
        if missing == 0 {
            return;
        }
        let slot = self.table.slot(self.slot());
        slot.attached.fetch_and(!missing, SeqCst);
        self.connection.send(&protocol::POKE_PACKET);
    }

    /// This process has nothing on the device any more and has closed its file.
    pub fn detach(&self, row: usize, serial: u64) {
        let mut held = self.held.lock();
        if held[row].is_some_and(|held| held.0 == serial) {
            held[row] = None;
            drop(held);
            let slot = self.table.slot(self.slot());
            slot.shares[row].report(ShareReport::default());
            slot.attached.fetch_and(!(1 << row), SeqCst);
            self.connection.send(&protocol::POKE_PACKET);
        }
    }

    /// Devices whose removal nobody sees through any more, as the supervisor is gone, stay. Any number of members may
    /// do so at a time. Nothing is done by a process that cannot tell: in a tree of several PID namespaces.
    pub fn take_removals_back(&self) {
        let table = self.table;
        let leaving = |row: &DeviceRow| row.device().is_some_and(|(_, state)| state.is_to_go());
        if !table.devices.iter().any(leaving) || table.is_mixed() || table.is_supervised() {
            return;
        }
        let held = *self.held.lock();
        for (row, held) in table.devices.iter().zip(held) {
            if let Some((serial, leases)) = held
                && row.stay(serial, || leases.reopen())
            {
                table.devices_changed();
            }
        }
    }

    /// Processes that have pages on a device, by their own word.
    pub fn users(&self, row: usize) -> u64 {
        let shares = self.table.taken();
        let shares = shares.map(|(slot, _)| &self.table.slot(slot).shares[row]);
        shares.filter(|share| share.used.load(Relaxed) > 0).count() as u64
    }

    /// Reports this process's share of a device.
    pub fn report_share(&self, row: usize, said: ShareReport) {
        self.table.slot(self.slot()).shares[row].report(said);
    }

    /// Whether somebody looks at the map of clusters: how full they are is to be said.
    pub fn map_is_wanted(&self) -> bool {
        /// Nanoseconds. `ebb top` asks once a second.
        const LATELY: u64 = 3_000_000_000;
        let asked = self.table.map_asked.0.load(Relaxed);
        asked != 0 && ebb_sys::clock::monotonic_ns().saturating_sub(asked) < LATELY
    }

    /// Says how many slots of each cluster are in use, of those that this process owns on the device in a row.
    pub fn report_fills(&self, row: usize, fills: impl Iterator<Item = (ClusterIndex, u16)>) {
        let held = self.held.lock().get(row).copied().flatten();
        let Some((_, leases)) = held else { return };
        let me = self.slot().index() as u32 + 1;
        for (cluster, slots) in fills {
            let c = cluster.index();
            if leases
                .owner
                .get(c)
                .is_some_and(|owner| owner.load(Relaxed) == me)
            {
                leases.fill[c].store(slots.into(), Relaxed);
            }
        }
    }

    /// In a tree without a supervisor: the leases of a device of this process's own, in a row, which forked children
    /// share with it.
    ///
    /// # Errors
    /// There is no shared memory for them.
    pub fn lend(&self, row: usize, slots: u64) -> Result<Option<Arc<dyn Lender>>, Errno> {
        let (leases, _fd) = create_leases(clusters_of(slots))?;
        self.held.lock()[row] = Some((row as u64, leases));
        Ok(self.lender(row))
    }

    /// In a simulation: holds the leases of a device, in a row that the table does not tell of.
    #[cfg(debug_assertions)]
    pub fn hold(
        &self,
        row: usize,
        device: crate::simulated::SimulatedDevice,
    ) -> Option<Arc<dyn Lender>> {
        self.held.lock()[row] = Some((row as u64, device.0));
        self.lender(row)
    }

    /// The leases of the device held in a row. They follow this process's slot number: in a
    /// forked child they are the child's.
    pub fn lender(&self, row: usize) -> Option<Arc<dyn Lender>> {
        let (_, leases) = self.held.lock().get(row).copied().flatten()?;
        Some(Arc::new(DeviceLender {
            leases,
            me: self.me.clone(),
            searched: AtomicU64::new(u64::MAX),
        }))
    }
}

/// The same again while it is late and `waits`: a supervisor that is stopped, as a shell's job is, goes on later.
fn patiently<T>(
    waits: impl Fn() -> bool,
    mut call: impl FnMut() -> Result<T, JoinError>,
) -> Result<T, JoinError> {
    loop {
        match call() {
            Err(why) if why.is_late() && waits() => {}
            done => return done,
        }
    }
}

/// The devices of an answer, and their descriptors.
type Answered = (Vec<GivenDevice>, Vec<OwnedFd>);

/// The next answer to a question for devices: its number, the devices, and their descriptors.
fn answer(
    connection: BorrowedFd<'_>,
    how: RecvFlags,
) -> Result<(u32, Vec<GivenDevice>, Vec<OwnedFd>), JoinError> {
    #[cfg(debug_assertions)]
    if !how.contains(RecvFlags::DONTWAIT) {
        crate::waits::wait_until_readable(connection);
    }
    let (packet, fds) = protocol::receive_up_to(connection, protocol::MAX_PACKET, how)?;
    if packet.is_empty() {
        return Err(JoinError::Connect(Errno::CONNRESET));
    }
    let (number, given) = protocol::decode_devices(&packet)
        .ok_or(JoinError::Protocol("an unknown packet for devices"))?;
    Ok((number, given, fds))
}

/// The rows that bits stand for.
fn rows_of(bits: u8) -> impl Iterator<Item = usize> {
    (0..MAX_DEVICES).filter(move |row| bits >> row & 1 == 1)
}

/// A device's leases for this process.
struct DeviceLender {
    leases: Leases<'static>,
    me: Arc<AtomicU32>,
    /// `acquire`'s memory of a scan that found nothing.
    searched: AtomicU64,
}

impl DeviceLender {
    fn me(&self) -> usize {
        self.me.load(Relaxed) as usize
    }
}

impl Lender for DeviceLender {
    fn acquire(&self) -> Option<ClusterIndex> {
        self.leases
            .acquire(self.me(), &self.searched)
            .map(|c| ClusterIndex(c as u32))
    }

    fn release(&self, cluster: ClusterIndex) {
        let ours = self.leases.release(self.me(), cluster.index());
        debug_assert!(ours, "released cluster {cluster}, which is not ours");
    }

    fn has_readers(&self, cluster: ClusterIndex) -> bool {
        self.leases.has_readers(cluster.index(), self.me())
    }

    fn returned(&self) -> u64 {
        self.leases.returned()
    }

    fn stop_reading(&self, cluster: ClusterIndex) {
        self.leases.stop_reading(self.me(), cluster.index());
    }

    fn adopt(&self, cluster: ClusterIndex) -> bool {
        self.leases.adopt(self.me(), cluster.index())
    }

    fn free_clusters(&self) -> u64 {
        self.leases.free()
    }

    fn is_wanted(&self) -> bool {
        self.leases.is_wanted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Facts;
    use crate::table::{Config, SlotNumber, SlotState, StateWord, Table, create_leases};
    use rustix::fs::MemfdFlags;
    use rustix::net::sockopt::Timeout;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    /// A member, and the supervisor's end of its connection.
    fn connected() -> (Member, OwnedFd) {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        let me = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
        connected_to(table, me)
    }

    fn connected_to(table: &'static Table, me: SlotNumber) -> (Member, OwnedFd) {
        let member = Member::for_test(table, me);
        let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = net::socketpair(unix, packets, SocketFlags::CLOEXEC, None);
        let (ours, supervisor) = pair.unwrap();
        member.connection.keep(ours);
        (member, supervisor)
    }

    /// It may end before it is asked, with the question unread, and before it answers.
    #[test]
    fn a_supervisor_that_ends_before_its_answer_is_out_of_reach() {
        let ends: [fn(OwnedFd, &Member) -> _; 3] = [
            |supervisor, member| {
                drop(supervisor);
                member.attach(1, || false)
            },
            |supervisor, member| {
                std::thread::scope(|scope| {
                    scope.spawn(move || await_packet(supervisor, RecvFlags::PEEK));
                    member.attach(1, || false)
                })
            },
            |supervisor, member| {
                std::thread::scope(|scope| {
                    scope.spawn(move || await_packet(supervisor, RecvFlags::empty()));
                    member.attach(1, || false)
                })
            },
        ];
        for (n, end) in ends.into_iter().enumerate() {
            let (member, supervisor) = connected();
            assert!(member.supervised());
            let attached = end(supervisor, &member);
            assert!(
                matches!(attached, Err(JoinError::Connect(_))),
                "{n}: {attached:?}"
            );
            assert!(!member.supervised(), "{n}");
        }
    }

    /// It is not taken for a tree without devices: what is not there now may be given later.
    #[test]
    fn a_device_that_is_not_handed_over_is_no_device_that_is_gone() {
        let (member, supervisor) = connected();
        let table = member.table;
        let answered = |number| {
            protocol::send(&supervisor, &protocol::devices(number, &[]), &[]).unwrap();
            member.attach(2, || false)
        };
        table.devices[1].fill(7);
        assert!(matches!(answered(1), Err(JoinError::NotGiven)));
        table.devices[1].clear();
        assert!(
            answered(2).unwrap().is_empty(),
            "gone before it was asked for"
        );
    }

    fn given(row: usize, serial: u64) -> GivenDevice {
        GivenDevice {
            row,
            serial,
            facts: Facts::from_words([4 * 512, 1 << 20, 8]),
            priority: Some(-7),
        }
    }

    /// Of two answers the later one counts: the other may have been judged before the process gave up its user. What
    /// that one gave is not held.
    #[test]
    fn an_answer_to_a_question_that_was_given_up_is_passed_over() {
        let (member, supervisor) = connected();
        let table = member.table;
        let (_leases, lease) = create_leases(4).unwrap();
        let file = |name| rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
        for row in [1, 2] {
            table.devices[row].fill(7 + row as u64);
        }
        table.slot(member.slot()).attached.store(6, SeqCst);
        let send = |number, row: usize, file: &OwnedFd| {
            let packet = protocol::devices(number, &[given(row, 7 + row as u64)]);
            protocol::send(&supervisor, &packet, &[file.as_fd(), lease.as_fd()]).unwrap();
        };
        let (before, other, after) = (file("before"), file("other"), file("after"));
        limit(&member);
        assert!(member.attach(2, || false).is_err_and(|why| why.is_late()));
        send(1, 1, &before);
        send(1, 2, &other);
        send(2, 1, &after);
        let [device] = &member.attach(2, || false).unwrap()[..] else {
            panic!("one was asked for")
        };
        assert_eq!((device.row, inode(&device.fd)), (1, inode(&after)));
        assert_eq!(table.slot(member.slot()).attached.load(SeqCst), 2);
    }

    /// A device of an answer that was passed over is not held either, where the next answer never comes.
    #[test]
    fn a_supervisor_that_stops_between_two_answers_holds_no_device_for_us() {
        let (member, supervisor) = connected();
        let table = member.table;
        let (_leases, lease) = create_leases(4).unwrap();
        for row in [1, 2] {
            table.devices[row].fill(7 + row as u64);
        }
        limit(&member);
        assert!(member.attach(4, || false).is_err_and(|why| why.is_late()));
        table.slot(member.slot()).attached.store(4, SeqCst);
        let packet = protocol::devices(1, &[given(2, 9)]);
        protocol::send(&supervisor, &packet, &[lease.as_fd(), lease.as_fd()]).unwrap();
        assert!(member.attach(2, || false).is_err_and(|why| why.is_late()));
        assert_eq!(table.slot(member.slot()).attached.load(SeqCst), 0);
    }

    /// However long it takes.
    #[test]
    fn a_supervisor_that_is_late_is_asked_once() {
        let (member, supervisor) = connected();
        let (_leases, lease) = create_leases(4).unwrap();
        member.table.devices[1].fill(8);
        limit(&member);
        let waited = AtomicU32::new(0);
        let waits = || {
            if waited.fetch_add(1, SeqCst) == 20 {
                let packet = protocol::devices(1, &[given(1, 8)]);
                protocol::send(&supervisor, &packet, &[lease.as_fd(), lease.as_fd()]).unwrap();
            }
            true
        };
        assert_eq!(member.attach(2, waits).unwrap().len(), 1);
        assert!(protocol::hear(&supervisor, 16).is_ok());
        assert!(protocol::hear(&supervisor, 16).is_err(), "asked again");
        // Nor is it asked so often that no question goes out and nothing waits.
        while member.attach(2, || false).is_err() && waited.fetch_add(1, SeqCst) < 1000 {}
        let start = std::time::Instant::now();
        assert!(member.attach(2, || false).is_err_and(|why| why.is_late()));
        assert!(start.elapsed() >= Duration::from_millis(1));
    }

    /// Who only asks waits for nothing, and its question stays.
    #[test]
    fn a_supervisor_that_is_late_answers_a_question_that_stays() {
        let (member, supervisor) = connected();
        let (_leases, lease) = create_leases(4).unwrap();
        member.table.devices[1].fill(8);
        let mut question = Some(member.ask_for(2).unwrap());
        for _ in 0..3 {
            assert!(member.take_answer(&mut question).is_none());
        }
        let packet = protocol::devices(1, &[given(1, 8)]);
        protocol::send(&supervisor, &packet, &[lease.as_fd(), lease.as_fd()]).unwrap();
        let answered = member.take_answer(&mut question).expect("it came");
        assert_eq!(answered.unwrap().len(), 1);
        assert!(question.is_none());
        assert!(protocol::hear(&supervisor, 16).is_ok());
        assert!(protocol::hear(&supervisor, 16).is_err(), "asked again");
        // A supervisor that does not read is late as well.
        let refused = (0..10_000).find_map(|_| member.ask_for(2).err());
        assert!(refused.expect("its queue is full").is_late());
    }

    /// From here on a wait for the supervisor is short.
    fn limit(member: &Member) {
        let connection = member.connection.get().unwrap();
        let soon = Some(Duration::from_millis(1));
        for way in [Timeout::Recv, Timeout::Send] {
            net::sockopt::set_socket_timeout(connection, way, soon).unwrap();
        }
    }

    /// It is late, however often it is asked: also once its queue is full.
    #[test]
    fn a_supervisor_that_does_not_read_holds_nobody() {
        let (member, supervisor) = connected();
        limit(&member);
        for _ in 0..1000 {
            assert!(member.attach(1, || false).is_err_and(|why| why.is_late()));
        }
        // So it was asked less often than that.
        let mut asked = 0;
        while protocol::hear(&supervisor, 16).is_ok() {
            asked += 1;
        }
        assert!((1..1000).contains(&asked), "{asked}");
    }

    /// Members that became another user have the table. Whatever they write there, nobody does without encryption, or
    /// writes elsewhere on a device, or takes itself for one that has not given up root.
    #[test]
    fn no_word_of_the_table_is_a_setting() {
        let (table, fd) = Table::create(100, Config::default()).unwrap();
        let me = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
        let (member, supervisor) = connected_to(table, me);
        let settings = || (member.config(), member.user(), member.serves_other_users());
        let before = settings();
        let len = rustix::fs::fstat(&fd).unwrap().st_size as usize;
        for byte in [0xff, 0x5a, 0] {
            let written = rustix::io::pwrite(&fd, &vec![byte; len], 0);
            assert_eq!(written, Ok(len));
            assert_eq!(settings(), before, "{byte}");
        }
        // A device is another, or what the supervisor says.
        let (_leases, lease) = create_leases(4).unwrap();
        let packet = protocol::devices(1, &[given(1, 7)]);
        protocol::send(&supervisor, &packet, &[lease.as_fd(), lease.as_fd()]).unwrap();
        rustix::io::pwrite(&fd, &vec![0x5a; len], 0).unwrap();
        table.devices[1].fill(7);
        let [device] = &member.attach(2, || false).unwrap()[..] else {
            panic!("one was asked for")
        };
        let sent = given(1, 7);
        assert_eq!((device.facts, device.priority), (sent.facts, sent.priority));
    }

    /// A removal that the supervisor began and nobody ends: the device stays, as its leases.
    #[test]
    fn a_removal_ends_with_its_supervisor() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        table.arrive();
        let me = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
        let member = Member::for_test(table, me);
        let (leases, _lease_fd) = create_leases(4).unwrap();
        let state = |row: usize| member.device(row).unwrap().1;
        for row in [0, 1] {
            table.devices[row].fill(7 + row as u64);
            table.devices[row].set_state(7 + row as u64, DeviceState::Leaving);
        }
        leases.close();
        member.held.hold(0, 7, leases);
        let changes = member.device_changes();
        let takes = || {
            leases
                .acquire(me.index(), &AtomicU64::new(u64::MAX))
                .is_some()
        };
        table.supervised_by(std::process::id());
        member.take_removals_back();
        assert_eq!((state(0), takes()), (DeviceState::Leaving, false));
        table.supervisor_leaves();
        member.take_removals_back();
        member.take_removals_back();
        assert_eq!((state(0), takes()), (DeviceState::On, true));
        assert_eq!(state(1), DeviceState::Leaving, "whoever holds it does that");
        assert_eq!(member.device_changes(), changes + 1);
    }

    fn await_packet(socket: OwnedFd, how: RecvFlags) {
        net::recv(&socket, &mut [0; 8][..], how).unwrap();
    }
}
