//! Moving a round of a batch: all runs at once, or one after the other.

use super::FileStore;
use super::lane::Mover;
use crate::transfer::batch::{PIECES, Piece, Round, Run};
use ebb_engine::env::{IoError, ReadOp, WriteOp};
use ebb_sys::transfers::{Read, Write};
use ebb_sys::{block_device, clock};
use rustix::fd::BorrowedFd;
use rustix::fs::Advice;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::sync::PoisonError;

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
        let Mover {
            fd,
            bounce,
            transfers,
            ..
        } = mover;
        let fd = *fd;
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
        let mut moved = [Err(Errno::IO); PIECES];
        // One run takes one system call either way.
        let transfers = transfers.as_deref_mut().filter(|_| round.runs().len() > 1);
        let all = self.at_once(transfers, |transfers| {
            let mut batch: [Write<'_>; PIECES] = std::array::from_fn(|i| {
                let run = round.runs().get(i).copied().unwrap_or_default();
                Write {
                    offset: run.offset,
                    data: &segments[run.pieces()],
                    result: Err(Errno::IO),
                }
            });
            let batch = &mut batch[..round.runs().len()];
            transfers.write(fd, batch)?;
            for (moved, write) in moved.iter_mut().zip(batch) {
                *moved = write.result;
            }
            Ok(())
        });
        if !all {
            for (run, moved) in round.runs().iter().zip(&mut moved) {
                *moved = rustix::io::pwritev(fd, &segments[run.pieces()], run.offset);
            }
        }
        for (run, moved) in round.runs().iter().zip(moved) {
            if moved != Ok(run.len) {
                let mut offset = run.offset;
                for (piece, segment) in pieces_of(round, run).zip(&segments[run.pieces()]) {
                    if let Err(errno) = write_whole(fd, segment, offset) {
                        results[piece.op] = Err(self.failed(errno));
                    }
                    offset += piece.len as u64;
                }
            }
        }
        if !self.facts.direct {
            self.write_back(fd, round, results);
        }
    }

    /// Waits until the page cache's copy of a round is on the device, then drops it. An error may be of any write since
    /// the last wait, and is told once. So one thread waits at a time, and an error is that of the whole round.
    fn write_back(&self, fd: BorrowedFd<'_>, round: &Round, results: &mut [Result<(), IoError>]) {
        let _alone = self
            .write_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut all = Ok(());
        // The first pass starts the transfers only, so that they are under way at once.
        for wait in [false, true] {
            for run in round.runs() {
                let flushed = block_device::flush_range(fd, run.offset, run.len as u64, wait);
                all = all.and(flushed);
            }
        }
        if let Err(errno) = all {
            let error = self.failed(errno);
            for piece in round.pieces() {
                results[piece.op] = results[piece.op].and(Err(error));
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
            transfers,
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
            let all = self.at_once(transfers.as_deref_mut().filter(|_| wanted), |transfers| {
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
                transfers.read(fd, batch, patience)?;
                for (moved, read) in moved.iter_mut().zip(batch) {
                    *moved = read.result;
                }
                Ok(())
            });
            match all {
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
                    (Err(errno), _) => results[piece.op] = Err(self.failed(errno)),
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
