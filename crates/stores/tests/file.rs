//! The file store on real files.

use ebb_engine::PAGE_SIZE;
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_engine::random::Random;
use ebb_stores::{Facts, FileStore};
use ebb_sys::thread;
use proptest::prelude::*;
use rustix::fd::OwnedFd;
use std::fs::File;
use std::os::unix::fs::FileExt;

const SLOTS: u64 = 256;

fn file(slots: u64) -> File {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(slots * PAGE_SIZE as u64).unwrap();
    file
}

fn direct(file: &File) {
    let flags = rustix::fs::fcntl_getfl(file).unwrap();
    rustix::fs::fcntl_setfl(file, flags | rustix::fs::OFlags::DIRECT).unwrap();
}

fn store(file: &File, slots: u64, is_direct: bool) -> FileStore {
    let file = file.try_clone().unwrap();
    let mut facts = Facts::new(slots);
    facts.direct = is_direct;
    FileStore::from_fd(OwnedFd::from(file), facts)
}

fn page(seed: u64, salt: u64) -> Vec<u8> {
    let mut random = Random::new(seed << 32 | salt);
    (0..PAGE_SIZE).map(|_| random.next() as u8).collect()
}

/// Transfers of a batch whose memory starts `shift` bytes into each buffer.
#[derive(Clone, Debug)]
struct Batch {
    write: bool,
    ops: Vec<(u64, usize, bool)>,
}

fn batch() -> impl Strategy<Value = Batch> {
    let op = (0..SLOTS + 4, 1..9usize, any::<bool>());
    (any::<bool>(), proptest::collection::vec(op, 1..100)).prop_map(|(write, mut ops)| {
        // Within a batch of writes no slot comes twice: the order would be anybody's.
        let mut taken = vec![false; SLOTS as usize + 16];
        ops.retain(|&(slot, pages, _)| {
            let range = slot as usize..slot as usize + pages;
            let free = range.clone().all(|slot| !taken[slot]);
            taken[range].fill(true);
            free
        });
        Batch { write, ops }
    })
}

/// Page-aligned room for `pages` pages, or one byte off.
fn room(pages: usize, aligned: bool) -> (Vec<u8>, usize) {
    let room = vec![0xaa; (pages + 1) * PAGE_SIZE + 1];
    let start = room.as_ptr().align_offset(PAGE_SIZE) + usize::from(!aligned);
    (room, start)
}

fn run(is_direct: bool, at_once: bool, batches: Vec<Batch>) {
    let file = file(SLOTS);
    if is_direct {
        direct(&file);
    }
    let store = store(&file, SLOTS, is_direct);
    store.set_batches(at_once);
    let mut model = vec![0u8; SLOTS as usize * PAGE_SIZE];
    for (number, batch) in batches.into_iter().enumerate() {
        let mut rooms: Vec<_> = batch.ops.iter().map(|op| room(op.1, op.2)).collect();
        let fits = |slot: u64, pages: usize| slot + pages as u64 <= SLOTS;
        let mut results = vec![Ok(()); batch.ops.len()];
        if batch.write {
            for (i, ((room, start), &(slot, pages, _))) in
                rooms.iter_mut().zip(&batch.ops).enumerate()
            {
                let data = &mut room[*start..*start + pages * PAGE_SIZE];
                for (p, bytes) in data.chunks_mut(PAGE_SIZE).enumerate() {
                    bytes.copy_from_slice(&page(number as u64, (i * 10 + p) as u64));
                }
                if fits(slot, pages) {
                    let at = slot as usize * PAGE_SIZE;
                    model[at..at + data.len()].copy_from_slice(data);
                }
            }
            let ops: Vec<_> = rooms
                .iter()
                .zip(&batch.ops)
                .map(|((room, start), &(slot, pages, _))| WriteOp {
                    slot,
                    data: &room[*start..*start + pages * PAGE_SIZE],
                })
                .collect();
            store.write(&ops, &mut results);
        } else {
            let mut ops: Vec<_> = rooms
                .iter_mut()
                .zip(&batch.ops)
                .map(|((room, start), &(slot, pages, _))| ReadOp {
                    slot,
                    data: &mut room[*start..*start + pages * PAGE_SIZE],
                })
                .collect();
            store.read(&mut ops, &mut results);
            for (op, result) in ops.iter().zip(&results) {
                if result.is_ok() {
                    let at = op.slot as usize * PAGE_SIZE;
                    assert!(
                        *op.data == model[at..at + op.data.len()],
                        "slot {}",
                        op.slot
                    );
                }
            }
        }
        for (&(slot, pages, _), result) in batch.ops.iter().zip(&results) {
            let expected = if fits(slot, pages) {
                Ok(())
            } else {
                Err(IoError::Request)
            };
            assert_eq!(*result, expected, "slot {slot} pages {pages}");
        }
    }
    assert_holds(&file, &model);
}

fn assert_holds(file: &File, model: &[u8]) {
    let mut bytes = vec![0; model.len()];
    let plain = File::open(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(file)
    ));
    plain.unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert!(
        bytes == model,
        "the file differs from what plain writes would have left"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// Past the cache and through it, reads at once and one after the other: always what plain reads and writes of the
    /// same file show. The thread watches for the end of its reads, or sleeps.
    #[test]
    fn like_plain_reads_and_writes(
        is_direct: bool,
        at_once: bool,
        gives_way: bool,
        batches in proptest::collection::vec(batch(), 1..6),
    ) {
        let run = || {
            if gives_way {
                thread::set_urgency(0, thread::Urgency::Idle).expect("anyone may give way");
            }
            run(is_direct, at_once, batches);
        };
        std::thread::scope(|scope| scope.spawn(run).join()).expect("as the model");
    }
}

fn write_one(store: &dyn Store, slot: u64, data: &[u8]) -> Result<(), IoError> {
    let mut results = [Ok(())];
    store.write(&[WriteOp { slot, data }], &mut results);
    results[0]
}

fn read_one(store: &dyn Store, slot: u64, data: &mut [u8]) -> Result<(), IoError> {
    let mut results = [Ok(())];
    store.read(&mut [ReadOp { slot, data }], &mut results);
    results[0]
}

#[test]
fn a_file_cut_behind_our_back_is_an_error_of_the_slots_lost() {
    for is_direct in [false, true] {
        let file = file(16);
        if is_direct {
            direct(&file);
        }
        let store = store(&file, 16, is_direct);
        for slot in 0..16 {
            write_one(&store, slot, &page(slot, 0)).unwrap();
        }
        file.set_len(4 * PAGE_SIZE as u64 + 100).unwrap();
        let mut rooms = vec![[0xaau8; PAGE_SIZE]; 16];
        let mut results = [Ok(()); 16];
        let mut ops: Vec<_> = rooms
            .iter_mut()
            .enumerate()
            .map(|(slot, room)| ReadOp {
                slot: slot as u64,
                data: room,
            })
            .collect();
        store.read(&mut ops, &mut results);
        assert_eq!(results[..4], [Ok(()); 4]);
        assert_eq!(results[4..], [Err(IoError::Slot); 12], "direct {is_direct}");
        assert!(rooms[3] == *page(3, 0));
        assert!(store.last_errno().is_some());
    }
}

#[test]
fn a_request_out_of_range_touches_nothing() {
    let file = file(4);
    let store = store(&file, 4, false);
    let two = vec![1; 2 * PAGE_SIZE];
    assert_eq!(write_one(&store, 3, &two), Err(IoError::Request));
    assert_eq!(write_one(&store, u64::MAX, &two), Err(IoError::Request));
    assert_eq!(write_one(&store, 0, &two[..100]), Err(IoError::Request));
    assert_eq!(write_one(&store, 0, &[]), Err(IoError::Request));
    assert_eq!(store.discard(3, 2), Err(IoError::Request));
    assert_eq!(store.discard(0, 0), Err(IoError::Request));
    let mut bytes = vec![7; 4 * PAGE_SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    assert_eq!(file.metadata().unwrap().len(), 4 * PAGE_SIZE as u64);
}

#[test]
fn discard_gives_the_space_back() {
    use std::os::unix::fs::MetadataExt;
    let file = file(1024);
    let store = store(&file, 1024, false);
    let data = vec![3; 512 * PAGE_SIZE];
    write_one(&store, 512, &data).unwrap();
    file.sync_all().unwrap();
    let before = file.metadata().unwrap().blocks();
    store.discard(512, 512).unwrap();
    let after = file.metadata().unwrap().blocks();
    assert!(after + 4096 <= before, "blocks {before} then {after}");
    assert_eq!(file.metadata().unwrap().len(), 1024 * PAGE_SIZE as u64);
}

#[test]
fn many_threads_at_once() {
    const THREADS: u64 = 9;
    let file = file(THREADS * 64);
    direct(&file);
    let store = store(&file, THREADS * 64, true);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for round in 0..20 {
                    let pages: Vec<_> = (0..64).map(|i| page(thread * 64 + i, round)).collect();
                    let ops: Vec<_> = pages
                        .iter()
                        .enumerate()
                        .map(|(i, data)| WriteOp {
                            slot: thread * 64 + (i as u64 * 37) % 64,
                            data,
                        })
                        .collect();
                    let mut results = [Ok(()); 64];
                    store.write(&ops, &mut results);
                    assert_eq!(results, [Ok(()); 64]);
                    for op in &ops {
                        let mut data = vec![0; PAGE_SIZE];
                        read_one(store, op.slot, &mut data).unwrap();
                        assert!(data == op.data);
                    }
                }
            });
        }
    });
}

#[test]
fn a_device_that_refuses_every_write_is_gone() {
    let read_only = File::open("/dev/null").unwrap();
    let store = FileStore::from_fd(read_only.into(), Facts::new(8));
    assert_eq!(write_one(&store, 0, &page(0, 0)), Err(IoError::Device));
}

#[test]
fn after_a_fork_another_descriptor_serves() {
    let first = file(8);
    let second = file(8);
    let store = store(&first, 8, false);
    write_one(&store, 1, &page(1, 1)).unwrap();
    store.reattach(second.try_clone().unwrap().into()).unwrap();
    let mut data = vec![9; PAGE_SIZE];
    read_one(&store, 1, &mut data).unwrap();
    assert!(data.iter().all(|&byte| byte == 0), "still the first file");
}
