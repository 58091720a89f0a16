//! Asynchronous reads into memory that belongs to the reader (`io_submit(2)`).
//!
//! Protocol. [`AioReader::begin`] prepares a read into the next free frames of the reader.
//! [`AioReader::submit`] hands prepared reads to the kernel. [`AioReader::take`] copies bytes out, and
//! waits if their read is still in flight. The kernel writes only to frames of a read in flight, and nobody
//! else looks at those frames: that makes the calls safe. Frames are a ring: a new read takes the frames of
//! the oldest reads, unless one of those is in flight.
//!
//! ```text
//! Empty --begin--> InFlight --completion--> Complete --take, invalidate, frames reused--> Empty
//!                     |  invalidate: marked invalid; its frames stay taken until the completion
//! ```
//!
//! Not here: deciding what to read, retries, and files opened without O_DIRECT, whose reads are not
//! asynchronous. A read that fails or ends short counts as never begun.
//!
//! Fork: the child has the parent's frames and no reads in flight. It calls
//! [`AioReader::abandon`] and nothing else.

use super::aio_context::{Completion, Context};
use crate::kernel::clock;
use crate::{Errno, memory};
use libc::iocb;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Bytes of a frame.
const FRAME: usize = memory::PAGE;
/// The kernel's number of a plain read (`linux/aio_abi.h`).
const IOCB_CMD_PREAD: u16 = 0;
/// Reads that can be known at a time.
pub const READS: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Empty,
    InFlight,
    Complete,
}

/// A read: `len` bytes of the file from `offset` on, in the frames from `frame` on.
#[derive(Clone, Copy, Debug)]
struct Read {
    state: State,
    offset: u64,
    len: usize,
    frame: usize,
    /// Flag: its bytes of the file were written since it began.
    invalid: bool,
}

impl Read {
    const EMPTY: Self = Self {
        state: State::Empty,
        offset: 0,
        len: 0,
        frame: 0,
        invalid: false,
    };

    fn overlaps(&self, offset: u64, len: usize) -> bool {
        self.state != State::Empty
            && self.offset < offset + len as u64
            && offset < self.offset + self.len as u64
    }

    fn uses(&self, frame: usize, frames: usize) -> bool {
        self.state != State::Empty
            && self.frame < frame + frames
            && frame < self.frame + self.len / FRAME
    }
}

/// Frames, one after the other.
struct Frames {
    /// Address of the first.
    start: usize,
    count: usize,
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: the mapping is the reader's, and the kernel does not write to it any more: the context went first,
        // or was the parent's.
        let _ = unsafe { memory::release(self.start, self.count * FRAME) };
    }
}

/// An asynchronous reader with frames of its own.
pub struct AioReader {
    /// The context. It goes before the frames, and waits for what is in flight.
    context: Context,
    frames: Frames,
    /// The frame after those of the youngest read.
    next: usize,
    reads: [Read; READS],
    in_flight: usize,
    /// Begun and not submitted yet.
    begun: [usize; READS],
    begun_count: usize,
}

impl AioReader {
    /// A reader with `frames` frames of 4096 bytes, which cost memory when first used.
    ///
    /// # Errors
    /// ENOSYS, EPERM: not allowed here; EAGAIN: `/proc/sys/fs/aio-max-nr` is used up; ENOMEM.
    pub fn new(frames: usize) -> Result<Self, Errno> {
        let context = Context::new(READS)?;
        let frames = Frames {
            start: memory::reserve(frames * FRAME)?,
            count: frames,
        };
        Ok(Self {
            context,
            frames,
            next: 0,
            reads: [Read::EMPTY; READS],
            in_flight: 0,
            begun: [0; READS],
            begun_count: 0,
        })
    }

    /// Prepares to read `len` bytes, a multiple of 4096, from `offset` of the file on, with the
    /// next [`AioReader::submit`], which must follow. False: a read covers some of it already, or no
    /// frames are free.
    pub fn begin(&mut self, offset: u64, len: usize) -> bool {
        let frames = len / FRAME;
        if frames == 0 || frames > self.frames.count || self.covers(offset, len) {
            return false;
        }
        let frame = if self.next + frames > self.frames.count {
            0
        } else {
            self.next
        };
        let in_the_way = |r: &Read| r.uses(frame, frames);
        if self
            .reads
            .iter()
            .any(|r| in_the_way(r) && r.state == State::InFlight)
        {
            return false;
        }
        for read in self.reads.iter_mut().filter(|r| in_the_way(r)) {
            *read = Read::EMPTY;
        }
        let Some(i) = self.place() else {
            return false;
        };
        self.reads[i] = Read {
            state: State::InFlight,
            offset,
            len,
            frame,
            invalid: false,
        };
        self.next = frame + frames;
        self.in_flight += 1;
        self.begun[self.begun_count] = i;
        self.begun_count += 1;
        true
    }

    /// A place for one more read: where short reads fill all places, that of the oldest that nobody took.
    fn place(&self) -> Option<usize> {
        let empty = self.reads.iter().position(|r| r.state == State::Empty);
        let age =
            |i: &usize| (self.reads[*i].frame + self.frames.count - self.next) % self.frames.count;
        let complete = |i: &usize| self.reads[*i].state == State::Complete;
        empty.or_else(|| (0..READS).filter(complete).min_by_key(age))
    }

    /// Hands the prepared reads to the kernel, without waiting. Reads that the kernel refuses are
    /// dropped.
    pub fn submit(&mut self, fd: BorrowedFd<'_>) {
        let count = std::mem::take(&mut self.begun_count);
        // SAFETY: all zeros is a valid request.
        let mut requests: [iocb; READS] = unsafe { std::mem::zeroed() };
        let mut list = [std::ptr::null_mut::<iocb>(); READS];
        for ((request, slot), &i) in requests.iter_mut().zip(&mut list).zip(&self.begun[..count]) {
            let read = self.reads[i];
            request.aio_data = i as u64;
            request.aio_lio_opcode = IOCB_CMD_PREAD;
            request.aio_fildes = fd.as_raw_fd() as u32;
            request.aio_buf = (self.frames.start + read.frame * FRAME) as u64;
            request.aio_nbytes = read.len as u64;
            request.aio_offset = read.offset as i64;
            *slot = request;
        }
        // SAFETY: the requests live until the call returns. The frames they name are ours and mapped as long as `self`
        // lives. No other read has them, and nobody looks at them before the completion.
        let taken = unsafe { self.context.submit(&list[..count]) };
        for &i in &self.begun[taken..count] {
            self.reads[i] = Read::EMPTY;
            self.in_flight -= 1;
        }
    }

    fn covers(&self, offset: u64, len: usize) -> bool {
        self.reads
            .iter()
            .any(|r| !r.invalid && r.overlaps(offset, len))
    }

    /// Copies `out.len()` bytes of the file from `offset` on out of a read that covers them. It waits for a read in
    /// flight: it watches for the end for at most `patience`, and sleeps then. The reader keeps no copy. False: no read covers them, or it failed.
    pub fn take(&mut self, offset: u64, out: &mut [u8], patience: Duration) -> bool {
        let end = offset + out.len() as u64;
        let Some(i) = self.reads.iter().position(|r| {
            r.state != State::Empty
                && !r.invalid
                && r.offset <= offset
                && end <= r.offset + r.len as u64
        }) else {
            return false;
        };
        let until = match self.reads[i].state {
            State::InFlight => clock::monotonic_ns() + patience.as_nanos() as u64,
            _ => 0,
        };
        while self.reads[i].state == State::InFlight {
            self.context.watch(until);
            if self.reap(true).is_err() {
                return false;
            }
        }
        let read = self.reads[i];
        if read.state != State::Complete {
            return false;
        }
        let at = self.frames.start + read.frame * FRAME + (offset - read.offset) as usize;
        // SAFETY: within the frames of this read, which the kernel is done with; what it wrote
        // there are plain bytes.
        out.copy_from_slice(unsafe { std::slice::from_raw_parts(at as *const u8, out.len()) });
        // Reads ahead are taken in order: pages before this one are passed over.
        let past = (end - read.offset) as usize;
        let read = &mut self.reads[i];
        if past == read.len {
            *read = Read::EMPTY;
        } else if past.is_multiple_of(FRAME) {
            read.offset = end;
            read.frame += past / FRAME;
            read.len -= past;
        }
        true
    }

    /// These bytes of the file were written: reads that cover them are invalid.
    pub fn invalidate(&mut self, offset: u64, len: usize) {
        for read in self.reads.iter_mut().filter(|r| r.overlaps(offset, len)) {
            if read.state == State::InFlight {
                read.invalid = true;
            } else {
                *read = Read::EMPTY;
            }
        }
    }

    /// The same for the whole file.
    pub fn invalidate_all(&mut self) {
        self.invalidate(0, usize::MAX);
    }

    /// Collects completions; with `wait` it waits for at least one.
    fn reap(&mut self, wait: bool) -> Result<(), Errno> {
        let mut completions = [Completion::default(); READS];
        let count = self.context.collect(&mut completions, usize::from(wait))?;
        for completion in &completions[..count] {
            let read = &mut self.reads[completion.token as usize];
            self.in_flight -= 1;
            if completion.result == read.len as i64 && !read.invalid {
                read.state = State::Complete;
            } else {
                *read = Read::EMPTY;
            }
        }
        Ok(())
    }

    /// Collects completions without waiting.
    pub fn poll(&mut self) {
        if self.in_flight > 0 {
            let _ = self.reap(false);
        }
    }

    /// In a forked child: gives its copy of the frames back. The context is the parent's.
    pub fn abandon(self) {
        self.context.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::OFlags;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const PAGES: u64 = 96;

    /// A file whose page `n` is full of `n`.
    fn file() -> Option<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT;
        let Ok(fd) = rustix::fs::open("/var/tmp", flags, 0o600.into()) else {
            eprintln!("skipped: no O_DIRECT in /var/tmp");
            return None;
        };
        let file = File::from(fd);
        let page = memory::reserve(FRAME).unwrap();
        // SAFETY: just mapped, and ours alone.
        let page = unsafe { std::slice::from_raw_parts_mut(page as *mut u8, FRAME) };
        for n in 0..PAGES {
            page.fill(n as u8);
            file.write_all_at(page, n * FRAME as u64).unwrap();
        }
        Some(file)
    }

    fn reader(frames: usize) -> Option<AioReader> {
        AioReader::new(frames)
            .inspect_err(|e| eprintln!("skipped: no asynchronous reads: {e}"))
            .ok()
    }

    const fn at(page: u64) -> u64 {
        page * FRAME as u64
    }

    #[test]
    fn reads_are_taken_once_and_in_pieces() {
        let (Some(file), Some(mut reader)) = (file(), reader(16)) else {
            return;
        };
        assert!(reader.begin(at(3), 4 * FRAME));
        assert!(reader.begin(at(20), 2 * FRAME));
        assert!(!reader.begin(at(6), 2 * FRAME), "partly known");
        reader.submit(file.as_fd());
        let mut page = [0; FRAME];
        for n in [3, 4, 20, 6, 21] {
            assert!(reader.take(at(n), &mut page, Duration::ZERO), "page {n}");
            assert_eq!(page, [n as u8; FRAME]);
            assert!(
                !reader.take(at(n), &mut page, Duration::ZERO),
                "page {n} again"
            );
        }
        assert!(
            !reader.take(at(5), &mut page, Duration::ZERO),
            "passed over"
        );
        assert_eq!(reader.in_flight, 0);
    }

    #[test]
    fn written_bytes_are_not_taken() {
        let (Some(file), Some(mut reader)) = (file(), reader(16)) else {
            return;
        };
        let mut page = [0; FRAME];
        for _ in 0..3 {
            assert!(reader.begin(at(1), FRAME));
            assert!(reader.begin(at(2), 2 * FRAME));
            reader.submit(file.as_fd());
            reader.invalidate(at(3), FRAME);
            assert!(
                !reader.take(at(2), &mut page, Duration::ZERO)
                    && !reader.take(at(3), &mut page, Duration::ZERO)
            );
            assert!(reader.take(at(1), &mut page, Duration::ZERO));
        }
        assert!(reader.begin(at(5), FRAME));
        reader.submit(file.as_fd());
        reader.invalidate_all();
        assert!(!reader.take(at(5), &mut page, Duration::ZERO));
    }

    #[test]
    fn the_oldest_reads_give_way_but_not_in_flight() {
        let (Some(file), Some(mut reader)) = (file(), reader(4)) else {
            return;
        };
        assert!(reader.begin(at(0), 4 * FRAME));
        assert!(!reader.begin(at(8), FRAME), "all frames are in flight");
        reader.submit(file.as_fd());
        while reader.in_flight > 0 {
            reader.reap(true).unwrap();
        }
        assert!(reader.begin(at(8), FRAME));
        reader.submit(file.as_fd());
        let mut page = [0; FRAME];
        assert!(!reader.take(at(1), &mut page, Duration::ZERO), "gave way");
        assert!(reader.take(at(8), &mut page, Duration::ZERO) && page == [8; FRAME]);
    }

    #[test]
    fn short_reads_that_nobody_takes_give_way_too() {
        let (Some(file), Some(mut reader)) = (file(), reader(2 * READS)) else {
            return;
        };
        for n in 0..READS as u64 {
            assert!(reader.begin(at(n), FRAME));
        }
        assert!(!reader.begin(at(READS as u64), FRAME), "all are in flight");
        reader.submit(file.as_fd());
        while reader.in_flight > 0 {
            reader.reap(true).unwrap();
        }
        assert!(reader.begin(at(READS as u64), FRAME));
        reader.submit(file.as_fd());
        let mut page = [0; FRAME];
        for (n, known) in [(0, false), (1, true), (READS as u64, true)] {
            let took = reader.take(at(n), &mut page, Duration::ZERO);
            assert_eq!(took, known, "page {n}");
        }
    }

    #[test]
    fn the_end_of_the_file_is_no_page() {
        let (Some(file), Some(mut reader)) = (file(), reader(4)) else {
            return;
        };
        assert!(reader.begin(at(PAGES - 1), 2 * FRAME));
        reader.submit(file.as_fd());
        assert!(!reader.take(at(PAGES - 1), &mut [0; FRAME], Duration::ZERO));
        assert!(!reader.take(at(PAGES), &mut [0; FRAME], Duration::ZERO));
    }
}
