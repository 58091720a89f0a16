//! Moving a round of a batch. Its runs are read all at once, where that is allowed. They are written one after the
//! other: a process that is killed then ends only when its writes have, and its slots may be given to others.

use super::FileStore;
use super::lane::Mover;
use crate::transfer::batch::{PIECES, Piece, Round, Run};
use crate::transfer::one_by_one::OneByOne;
use ebb_engine::env::{IoError, ReadOp, WriteOp};
use ebb_sys::batch_reads::Read;
use ebb_sys::{block_device, clock};
use rustix::fd::BorrowedFd;
use rustix::fs::Advice;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::sync::{MutexGuard, PoisonError};

impl FileStore {
    /// Drops a run from the page cache. It is advice: a page that stays is counted with the
    /// cache that the kernel reclaims by itself.
    fn drop_cache(&self, fd: BorrowedFd<'_>, run: &Run) {
        if !self.facts.direct {
            let _ = rustix::fs::fadvise(
                fd,
                run.offset,
                NonZeroU64::new(run.len as u64),
                Advice::DontNeed,
            );
        }
    }

    /// Writes a round of `ops`.
    pub(super) fn write_round(
        &self,
        mover: &mut Mover<'_>,
        round: &Round,
        ops: &[WriteOp<'_>],
        results: &mut [Result<(), IoError>],
    ) {
        let Mover { fd, bounce, .. } = mover;
        let fd = *fd;
        let errors = (!self.facts.direct).then(|| *self.write_back_errors());
        for piece in round.pieces() {
            if let Some(at) = piece.bounce {
                bounce[at..at + piece.len].copy_from_slice(&ops[piece.op].data[piece.range()]);
            }
        }
        let mut segments = [IoSlice::new(&[]); PIECES];
        for (segment, piece) in segments.iter_mut().zip(round.pieces()) {
            *segment = IoSlice::new(match piece.bounce {
                Some(at) => &bounce[at..at + piece.len],
                None => &ops[piece.op].data[piece.range()],
            });
        }
        for run in round.runs() {
            let moved = rustix::io::pwritev(fd, &segments[run.pieces()], run.offset);
            if moved != Ok(run.len) {
                let (mut offset, mut singly) = (run.offset, OneByOne::new());
                for (piece, segment) in pieces_of(round, run).zip(&segments[run.pieces()]) {
                    let written = singly.make(|| {
                        write_whole(fd, segment, offset).map_err(|errno| self.failed(fd, errno))
                    });
                    if written.is_err() {
                        results[piece.op] = written;
                    }
                    offset += piece.len as u64;
                }
            }
        }
        if let Some(errors) = errors {
            self.write_back(fd, round, (&segments, errors), results);
        }
    }

    fn write_back_errors(&self) -> MutexGuard<'_, u64> {
        self.write_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the page cache's copy of a round is on the device, then drops it. An error may be of any write since
    /// the last wait, and is told once. So one thread waits at a time. If there was an error since the round was begun,
    /// each of its pieces is written again by itself, and has its own.
    fn write_back(
        &self,
        fd: BorrowedFd<'_>,
        round: &Round,
        (segments, before): (&[IoSlice<'_>], u64),
        results: &mut [Result<(), IoError>],
    ) {
        let mut errors = self.write_back_errors();
        let flush = |errors: &mut u64, offset, len, wait| {
            let flushed = block_device::flush_range(fd, offset, len, wait);
            *errors += u64::from(flushed.is_err());
            flushed
        };
        // The first pass starts the transfers only, so that they are under way at once.
        for wait in [false, true] {
            for run in round.runs() {
                let _ = flush(&mut errors, run.offset, run.len as u64, wait);
            }
        }
        if *errors != before {
            for run in round.runs() {
                let mut offset = run.offset;
                for (piece, segment) in pieces_of(round, run).zip(&segments[run.pieces()]) {
                    let len = piece.len as u64;
                    let written = write_whole(fd, segment, offset);
                    let flushed = flush(&mut errors, offset, len, true);
                    if let Err(errno) = written.and(flushed) {
                        results[piece.op] = Err(self.failed(fd, errno));
                    }
                    offset += len;
                }
            }
        }
        for run in round.runs() {
            self.drop_cache(fd, run);
        }
    }

    /// Reads a round of `ops`.
    pub(super) fn read_round(
        &self,
        mover: &mut Mover<'_>,
        round: &Round,
        ops: &mut [ReadOp<'_>],
        results: &mut [Result<(), IoError>],
    ) {
        let Mover {
            fd,
            bounce,
            reads,
            patience,
        } = mover;
        let (fd, patience) = (*fd, *patience);
        let mut moved = [Err(Errno::IO); PIECES];
        {
            let mut segments: [IoSliceMut<'_>; PIECES] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let mut bounce_left = &mut **bounce;
            let mut ops_left = ops.iter_mut().enumerate();
            for (segment, piece) in segments.iter_mut().zip(round.pieces()) {
                let op = ops_left.find(|(i, _)| *i == piece.op);
                *segment = IoSliceMut::new(match (piece.bounce, op) {
                    (None, Some((_, op))) => &mut op.data[piece.range()],
                    _ => {
                        let (head, tail) = bounce_left.split_at_mut(piece.len);
                        bounce_left = tail;
                        head
                    }
                });
            }
            let wanted = round.runs().len() > 1 || !patience.is_zero();
            let begun = clock::monotonic_ns();
            let all = self.at_once(reads.as_deref_mut().filter(|_| wanted), |reads| {
                let mut left = &mut segments[..];
                let mut batch: [Read<'_, '_>; PIECES] = std::array::from_fn(|i| {
                    let run = round.runs().get(i).copied().unwrap_or_default();
                    let (data, rest) = std::mem::take(&mut left).split_at_mut(run.count);
                    left = rest;
                    Read {
                        offset: run.offset,
                        data,
                        result: Err(Errno::IO),
                    }
                });
                let batch = &mut batch[..round.runs().len()];
                reads.read(fd, batch, patience)?;
                for (moved, read) in moved.iter_mut().zip(batch) {
                    *moved = read.result;
                }
                Ok(())
            });
            match all {
                // The end of several says little of one.
                true if round.runs().len() > 1 => {}
                true => self.waited(patience, begun),
                false => {
                    for (run, moved) in round.runs().iter().zip(&mut moved) {
                        *moved = rustix::io::preadv(fd, &mut segments[run.pieces()], run.offset);
                    }
                }
            }
        }
        self.finish_read(mover, round, moved, ops, results);
    }

    /// Takes up transfers that ended short, and copies what came through the bounce buffer.
    fn finish_read(
        &self,
        mover: &mut Mover<'_>,
        round: &Round,
        moved: [Result<usize, Errno>; PIECES],
        ops: &mut [ReadOp<'_>],
        results: &mut [Result<(), IoError>],
    ) {
        let Mover { fd, bounce, .. } = mover;
        let fd = *fd;
        for (run, moved) in round.runs().iter().zip(moved) {
            let mut offset = run.offset;
            for piece in pieces_of(round, run) {
                let op = &mut ops[piece.op].data[piece.range()];
                let target = match piece.bounce {
                    Some(at) => &mut bounce[at..at + piece.len],
                    None => &mut *op,
                };
                let whole = if moved == Ok(run.len) {
                    Ok(())
                } else {
                    read_whole(fd, target, offset)
                };
                match (whole, piece.bounce) {
                    (Ok(()), Some(at)) => op.copy_from_slice(&bounce[at..at + piece.len]),
                    (Ok(()), None) => {}
                    (Err(errno), _) => results[piece.op] = Err(self.failed(fd, errno)),
                }
                offset += piece.len as u64;
            }
            self.drop_cache(fd, run);
        }
    }
}

fn pieces_of<'r>(round: &'r Round, run: &Run) -> impl Iterator<Item = &'r Piece> {
    round.pieces()[run.pieces()].iter()
}

/// Writes all of `data`, however many transfers it takes.
fn write_whole(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(fd, &data[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(short(errno, done)),
        }
    }
    Ok(())
}

/// Fills all of `data`. EIO at the end of the file: it was cut behind our back.
fn read_whole(fd: BorrowedFd<'_>, data: &mut [u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pread(fd, &mut data[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(short(errno, done)),
        }
    }
    Ok(())
}

/// A transfer cut inside a block leaves a rest that O_DIRECT refuses as unaligned: the
/// device's failure, not a wrong request.
fn short(errno: Errno, done: usize) -> Errno {
    if errno == Errno::INVAL && done > 0 {
        Errno::IO
    } else {
        errno
    }
}
