//! A store copied by fork: the child goes on with a descriptor of its own, the parent with
//! what it had, and neither disturbs the other.

use ebb_engine::PAGE_SIZE;
use ebb_engine::env::{ReadOp, Store, WriteOp};
use ebb_stores::{Device, Facts, Keyring};
use ebb_sys::thread;
use rustix::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

const BATCH: u64 = 32;

fn write(store: &dyn Store, first: u64, byte: u8) -> bool {
    let page = [byte; PAGE_SIZE];
    // Every other slot: a batch of many transfers.
    let ops: [WriteOp<'_>; BATCH as usize] = std::array::from_fn(|i| WriteOp {
        slot: first + i as u64 * 2,
        data: &page,
    });
    let mut results = [Ok(()); BATCH as usize];
    store.write(&ops, &mut results);
    results.iter().all(Result::is_ok)
}

fn holds(store: &dyn Store, first: u64, byte: u8) -> bool {
    (0..BATCH).all(|i| {
        let mut page = [0; PAGE_SIZE];
        let mut results = [Ok(())];
        let op = ReadOp {
            slot: first + i * 2,
            data: &mut page,
        };
        store.read(&mut [op], &mut results);
        results[0].is_ok() && page == [byte; PAGE_SIZE]
    })
}

/// The mapped rings of asynchronous reads.
fn rings_of_reads() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter(|line| line.contains("[aio]")).count()
}

/// The child's part. The number of the parent's descriptor, which the child may not touch. It reads as its parent did,
/// by rings of its own if that `has_rings`.
fn child(device: &Device, again: OwnedFd, number: i32, has_rings: bool) -> bool {
    // As in a process whose private descriptors did not come along: their numbers are now
    // something else's.
    // SAFETY: the number is the parent's store's, which nobody else here owns.
    unsafe { libc::dup2(2, number) };
    device.file.reattach(again).is_ok()
        && rings_of_reads() == 0
        && holds(&*device.store, 0, 1)
        && write(&*device.store, 1000, 2)
        && holds(&*device.store, 1000, 2)
        && (rings_of_reads() > 0) == has_rings
        // SAFETY: asks about a descriptor number only.
        && unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
}

/// With a thread that watches for the end of its reads, in rings of their own, too. One after the other: a child has
/// what all of its parent has.
#[test]
fn parent_and_child_go_on_apart() {
    go_on_apart(false);
    let by_a_thread_that_gives_way = || {
        thread::set_urgency(0, thread::Urgency::Idle).expect("anyone may give way");
        go_on_apart(true);
    };
    std::thread::scope(|scope| scope.spawn(by_a_thread_that_gives_way).join()).unwrap();
}

fn go_on_apart(is_direct: bool) {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(4096 * PAGE_SIZE as u64).unwrap();
    if is_direct {
        let flags = rustix::fs::fcntl_getfl(&file).unwrap() | rustix::fs::OFlags::DIRECT;
        if rustix::fs::fcntl_setfl(&file, flags).is_err() {
            return println!("skipped in part: no O_DIRECT here");
        }
    }
    let again = OwnedFd::from(file.try_clone().unwrap());
    let fd = OwnedFd::from(file);
    let number = fd.as_raw_fd();
    let keys = Arc::<Keyring>::default();
    let mut facts = Facts::new(4096);
    facts.direct = is_direct;
    let device = Device::new(fd, facts, 0, Some(&keys), None);
    assert!(write(&*device.store, 0, 1) && holds(&*device.store, 0, 1));
    let has_rings = rings_of_reads() > 0;
    if is_direct && !has_rings {
        println!("skipped in part: no asynchronous reads");
    }
    // SAFETY: the child only transfers pages and exits; it takes no lock that another thread
    // of this process may hold.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child should anything hang.
        unsafe { libc::alarm(20) };
        let good = child(&device, again, number, has_rings);
        // SAFETY: leaves at once, running none of the parent's destructors.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    assert!(pid > 0);
    for round in 0..20 {
        assert!(write(&*device.store, 2000, round) && holds(&*device.store, 2000, round));
    }
    let mut status = 0;
    // SAFETY: `status` is ours; the child is ours to wait for.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed or hung");
    assert!(holds(&*device.store, 0, 1));
    // The child alone knows with which key it wrote.
    assert!(!holds(&*device.store, 1000, 2));
}

/// The byte from the other side of a pipe; 0 at its end.
fn heard(pipe: &OwnedFd) -> u8 {
    let mut byte = [0];
    rustix::io::read(pipe, &mut byte).unwrap();
    byte[0]
}

/// A worker has the keys of what its parent had on the device when it was born, and no others.
#[test]
fn neither_side_of_a_fork_reads_what_the_other_writes_later() {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(4096 * PAGE_SIZE as u64).unwrap();
    let again = OwnedFd::from(file.try_clone().unwrap());
    let keys = Arc::<Keyring>::default();
    let device = Device::new(file.into(), Facts::new(4096), 0, Some(&keys), None);
    let part = |is_child| keys.rotate(is_child, device.slot_keys.as_deref().into_iter());
    assert!(write(&*device.store, 0, 1) && write(&*device.store, 100, 1));
    let (told, tell) = rustix::pipe::pipe().unwrap();
    let (answered, answer) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child only transfers pages and exits; it takes no lock that another thread
    // of this process may hold.
    let pid = unsafe { libc::fork() };
    part(pid == 0);
    if pid == 0 {
        // SAFETY: ends the child should anything hang.
        unsafe { libc::alarm(20) };
        let good = device.file.reattach(again).is_ok()
            && write(&*device.store, 3000, 3)
            && rustix::io::write(&answer, &[1]).is_ok()
            && heard(&told) == 1
            // Pages from before the fork are read; pages written later, in the same slots or others, are
            // not.
            && holds(&*device.store, 100, 1)
            && !holds(&*device.store, 0, 2)
            && !holds(&*device.store, 2000, 2);
        // SAFETY: leaves at once, running none of the parent's destructors.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    assert!(pid > 0);
    assert!(write(&*device.store, 0, 2) && write(&*device.store, 2000, 2));
    assert_eq!(heard(&answered), 1);
    rustix::io::write(&tell, &[1]).unwrap();
    let mut status = 0;
    // SAFETY: `status` is ours; the child is ours to wait for.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed or hung");
    assert!(holds(&*device.store, 0, 2) && holds(&*device.store, 100, 1));
    assert!(!holds(&*device.store, 3000, 3), "the child's page is read");
}
