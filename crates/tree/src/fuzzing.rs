//! Entry points of the fuzz targets (`fuzz/`): packets of the other side, and shared words that a member of the
//! tree has overwritten. Built with `--cfg fuzzing` alone.
//!
//! A wrong word may lead to a wrong figure or a refusal, never to a panic or an endless search.

use crate::MAX_MEMBERS;
use crate::lease::Leases;
use crate::protocol::{
    Hello, JoinReply, MemberPacket, Reply, Request, decode_devices, devices, welcome,
};
use crate::table::{
    AgeCutoff, Config, Mode, SlotNumber, StateWord, Table, create_leases, start_threshold,
};
use rustix::fs::{FallocateFlags, fallocate};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A packet as each side reads it: what is read is written as what reads as the same.
pub fn packets(packet: &[u8]) {
    if let Some(hello) = Hello::decode(packet) {
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }
    if let Some(JoinReply::Welcome(slot, settings)) = JoinReply::decode(packet) {
        let again = welcome(slot, &settings);
        assert!(matches!(
            JoinReply::decode(&again),
            Some(JoinReply::Welcome(to, said)) if (to, said) == (slot, settings)
        ));
    }
    if let Some((number, given)) = decode_devices(packet) {
        let again = decode_devices(&devices(number, &given));
        assert_eq!(again, Some((number, given)));
    }
    if let Some((_, Some(request))) = Request::decode(packet) {
        let again = Request::decode(&request.encode());
        assert_eq!(again.and_then(|(_, request)| request), Some(request));
    }
    if let Some(reply) = Reply::decode(packet) {
        let _ = Reply::decode(&reply.encode());
    }
    let _ = MemberPacket::decode(packet);
}

/// Numbers out of the input, zeros behind its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let taken = self.0.len().min(8);
        word[..taken].copy_from_slice(&self.0[..taken]);
        self.0 = &self.0[taken..];
        u64::from_le_bytes(word)
    }

    /// Pages that a caller may name: it trusts itself.
    fn pages(&mut self) -> i64 {
        (self.word() % (1 << 30)) as i64
    }

    fn slot(&mut self) -> SlotNumber {
        let n = self.word() as usize % MAX_MEMBERS;
        SlotNumber::new(n).expect("a slot")
    }
}

/// Words that a member overwrites: (position, word) up to this many.
const MOST_WORDS: usize = 64;

/// Writes hostile words to a shared file of so many bytes.
fn overwrite(fd: &OwnedFd, len: u64, input: &mut Input<'_>) {
    let words = usize::from(input.byte().unwrap_or(0)) % MOST_WORDS;
    for _ in 0..words {
        let at = input.word() % (len / 8) * 8;
        let word = input.word().to_le_bytes();
        rustix::io::pwrite(fd, &word, at).expect("the file is shared");
    }
}

/// Makes all of a shared file zeros.
fn clear(fd: &OwnedFd, len: u64) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(fd, flags, 0, len).expect("the file is shared");
}

thread_local! {
    static TABLE: (&'static Table, OwnedFd) = Table::create(1 << 20, Config::default()).expect("a table");
    static LEASES: (Leases<'static>, OwnedFd) = create_leases(CLUSTERS).expect("leases");
}

/// Calls of members and supervisor on a table with hostile words.
pub fn table(input: &[u8]) {
    let mut input = Input(input);
    TABLE.with(|(table, fd)| {
        let len = size_of::<Table>() as u64;
        clear(fd, len);
        table.budget.store(1 << 20, SeqCst);
        table.limit.0.store(1 << 20, SeqCst);
        // The words of the sums, the states and the first slots are those that most calls look at.
        overwrite(fd, len, &mut input);
        overwrite(fd, 64 << 10, &mut input);
        let mut steps = 0;
        while let Some(call) = input.byte() {
            one_call(table, call, &mut input);
            steps += 1;
            if steps == 200 {
                break;
            }
        }
    });
}

/// One call.
#[allow(
    dropping_copy_types,
    reason = "answers of any type are looked at by nobody"
)]
fn one_call(table: &Table, call: u8, input: &mut Input<'_>) {
    let me = input.slot();
    match call % 24 {
        0 => drop(table.try_charge(me, input.pages())),
        1 => table.charge_forced(me, input.pages()),
        2 => table.uncharge(me, input.pages()),
        3 => drop(table.take_credit(table.relatives(me), input.pages())),
        4 => table.unshare(me, input.pages(), input.word() as u32),
        5 => table.start_paging(me, input.pages()),
        6 => drop(table.fork_fits(me, input.pages())),
        7 => table.charge_for_child(me, input.slot(), input.pages()),
        8 => drop(table.clear_charges(Some(me), input.slot())),
        9 => drop((table.drift(), table.charged_and_limit(), table.in_use())),
        10 => drop(table.take_slot(StateWord::reserved(Some(me), true))),
        11 => drop(table.ask_reclaim(me, input.word())),
        12 => {
            let before = AgeCutoff {
                resident_ns: input.word(),
                pool_ns: input.word(),
            };
            let _ = table.ask_colder(me, before, input.word());
        }
        13 => {
            let pools = table.pools(me, input.word());
            let accept = table.limits.get().accept_percent;
            let limit = pools.limit(input.word(), accept, input.word());
            assert!(limit.accept_percent <= 100);
        }
        14 => table.slot(me).report_pool(input.word(), input.word()),
        15 => {
            let taken = table.state(me).taken;
            let _ = (table.slot(me).named(taken), table.slot(me).helper(taken));
        }
        16 => drop((table.budget_bytes(), table.limits.get())),
        17 => drop(table.last_load_ns(input.word())),
        18 => table.devices.iter().for_each(|row| _ = row.device()),
        19 => {
            let total = crate::Histogram::default();
            table
                .slot(me)
                .latency
                .iter()
                .for_each(|one| total.absorb(one));
            total.summary();
        }
        20 => table.wake_waiters(),
        21 => drop((
            table.delays_growth(),
            table.mode() == Mode::Paging,
            table.has_free_slot(),
        )),
        22 => drop(start_threshold(table.budget.load(SeqCst))),
        _ => drop(table.taken().count()),
    }
}

/// Clusters of the device whose leases are fuzzed.
const CLUSTERS: u32 = 200;

/// Calls of members and supervisor on a lease area with hostile words.
pub fn leases(input: &[u8]) {
    let mut input = Input(input);
    LEASES.with(|(leases, fd)| {
        let len = rustix::fs::fstat(fd).expect("a file").st_size as u64;
        clear(fd, len);
        leases.init();
        overwrite(fd, len, &mut input);
        overwrite(fd, 2 << 10, &mut input);
        let seen = AtomicU64::new(u64::MAX);
        let mut steps = 0;
        while let Some(call) = input.byte() {
            let me = input.slot().index();
            let cluster = input.word() as usize % CLUSTERS as usize;
            match call % 10 {
                0 => assert!(
                    leases
                        .acquire(me, &seen)
                        .is_none_or(|c| c < CLUSTERS as usize)
                ),
                1 => drop(leases.release(me, cluster)),
                2 => drop(leases.has_readers(cluster, me)),
                3 => leases.stop_reading(me, cluster),
                4 => leases.inherit(me, input.slot().index()),
                5 => leases.forget_reader(me),
                6 => drop(leases.reap(me)),
                7 => drop((leases.free(), leases.is_wanted(), leases.is_idle())),
                8 => leases.close(),
                _ => leases.reopen(),
            }
            steps += 1;
            if steps == 100 {
                break;
            }
        }
        // What is left may be wrong, and then it is said.
        let _ = leases.check(|_| true);
    });
}
