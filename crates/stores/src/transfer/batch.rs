//! Cutting a batch into rounds: which bytes move in one go, which of them through the bounce
//! buffer, and which operations join into one transfer.
//!
//! A *piece* is the part of one operation that a round moves. A *run* is a stretch of pieces whose slots
//! follow each other, moved by one vectored transfer. An operation whose memory the device can reach moves
//! whole; another one takes its turn in the bounce buffer and may need several rounds. Pure arithmetic: no
//! memory is touched here.
//!
//! Invariants of a round, checked by [`Round::check`]:
//! - pieces name operations in rising order, each at most once;
//! - the bounced pieces lie in the bounce buffer one after the other, without overlap;
//! - the runs cover the pieces, in order, each exactly once; a run's pieces are adjacent
//!   on the device.

use ebb_engine::PAGE_SIZE;
use std::ops::Range;

/// Most pieces, and so most transfers, of a round.
pub const PIECES: usize = 64;

/// The facts of an operation that a round needs.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Byte of the device where it starts.
    pub offset: u64,
    /// Bytes; above 0 and a multiple of a page.
    pub len: usize,
    /// Flag: the device can reach its memory without the bounce buffer.
    pub direct: bool,
}

/// A part of one operation.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The operation.
    pub op: usize,
    /// First byte within it.
    pub at: usize,
    /// Bytes.
    pub len: usize,
    /// The place where it lies in the bounce buffer, if it goes through it.
    pub bounce: Option<usize>,
}

impl Piece {
    /// The bytes of the operation that this piece is.
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// Pieces moved by one transfer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Run {
    /// Byte of the device where it starts.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Position of its first piece.
    pub first: usize,
    /// Pieces.
    pub count: usize,
}

impl Run {
    /// The positions of its pieces.
    pub fn pieces(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

/// How far a batch has come.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Cursor {
    op: usize,
    at: usize,
}

/// One round of a batch.
pub struct Round {
    pieces: [Piece; PIECES],
    piece_count: usize,
    runs: [Run; PIECES],
    run_count: usize,
}

impl Round {
    /// The next round, moving `cursor` past it; none when all `ops` operations are done.
    /// `shape` gives an operation's shape, or none for one to leave out. `bounce` is the
    /// size of the bounce buffer, at least a page.
    pub fn next(
        cursor: &mut Cursor,
        ops: usize,
        bounce: usize,
        shape: impl Fn(usize) -> Option<Shape>,
    ) -> Option<Round> {
        let mut round = Round {
            pieces: [Piece::default(); PIECES],
            piece_count: 0,
            runs: [Run::default(); PIECES],
            run_count: 0,
        };
        let room = bounce / PAGE_SIZE * PAGE_SIZE;
        let mut used = 0;
        while cursor.op < ops && round.piece_count < PIECES {
            let Some(shape) = shape(cursor.op) else {
                cursor.op += 1;
                continue;
            };
            let left = shape.len - cursor.at;
            let len = if shape.direct {
                left
            } else {
                left.min(room - used)
            };
            if len == 0 {
                break;
            }
            round.push(
                shape.offset + cursor.at as u64,
                Piece {
                    op: cursor.op,
                    at: cursor.at,
                    len,
                    bounce: (!shape.direct).then_some(used),
                },
            );
            if !shape.direct {
                used += len;
            }
            if len < left {
                cursor.at += len;
                break;
            }
            *cursor = Cursor {
                op: cursor.op + 1,
                at: 0,
            };
        }
        (round.piece_count > 0).then_some(round)
    }

    fn push(&mut self, offset: u64, piece: Piece) {
        self.pieces[self.piece_count] = piece;
        match self.runs[..self.run_count].last_mut() {
            Some(run) if run.offset + run.len as u64 == offset => {
                run.len += piece.len;
                run.count += 1;
            }
            _ => {
                self.runs[self.run_count] = Run {
                    offset,
                    len: piece.len,
                    first: self.piece_count,
                    count: 1,
                };
                self.run_count += 1;
            }
        }
        self.piece_count += 1;
    }

    /// The pieces, by rising operation.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.piece_count]
    }

    /// The transfers.
    pub fn runs(&self) -> &[Run] {
        &self.runs[..self.run_count]
    }

    /// Panics unless the module's invariants hold.
    #[cfg(test)]
    pub fn check(&self, bounce: usize, shape: impl Fn(usize) -> Option<Shape>) {
        let mut used = 0;
        for pair in self.pieces().windows(2) {
            assert!(pair[0].op < pair[1].op);
        }
        for piece in self.pieces() {
            let shape = shape(piece.op).expect("left out");
            assert!(piece.len > 0 && piece.at + piece.len <= shape.len);
            assert_eq!(piece.bounce.is_none(), shape.direct);
            if let Some(at) = piece.bounce {
                assert_eq!(at, used);
                used += piece.len;
            }
        }
        assert!(used <= bounce);
        let mut first = 0;
        for run in self.runs() {
            assert_eq!(run.first, first);
            assert!(run.count > 0);
            let mut at = run.offset;
            for piece in &self.pieces[run.pieces()] {
                assert_eq!(shape(piece.op).unwrap().offset + piece.at as u64, at);
                at += piece.len as u64;
            }
            assert_eq!(at, run.offset + run.len as u64);
            first += run.count;
        }
        assert_eq!(first, self.piece_count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every byte of every operation moves exactly once, in order.
        #[test]
        fn rounds_cover_the_batch(
            ops in proptest::collection::vec((0u64..20, 1usize..6, any::<bool>(), 0..8), 0..150),
            bounce_pages in 1usize..9,
        ) {
            let shapes: Vec<Option<Shape>> = ops.iter().map(|&(slot, pages, direct, keep)| {
                (keep > 0).then_some(Shape {
                    offset: slot * PAGE_SIZE as u64,
                    len: pages * PAGE_SIZE,
                    direct,
                })
            }).collect();
            let mut moved = vec![0; shapes.len()];
            let mut cursor = Cursor::default();
            let bounce = bounce_pages * PAGE_SIZE;
            while let Some(round) = Round::next(&mut cursor, shapes.len(), bounce, |i| shapes[i]) {
                round.check(bounce, |i| shapes[i]);
                for piece in round.pieces() {
                    prop_assert_eq!(piece.at, moved[piece.op]);
                    moved[piece.op] += piece.len;
                }
            }
            for (moved, shape) in moved.iter().zip(&shapes) {
                prop_assert_eq!(*moved, shape.map_or(0, |shape| shape.len));
            }
        }
    }

    #[test]
    fn adjacent_slots_join() {
        let shape = |i: usize| {
            Some(Shape {
                offset: [0, 1, 2, 9, 10, 5][i] * PAGE_SIZE as u64,
                len: PAGE_SIZE,
                direct: i.is_multiple_of(2),
            })
        };
        let round = Round::next(&mut Cursor::default(), 6, 64 * PAGE_SIZE, shape).unwrap();
        let counts: Vec<usize> = round.runs().iter().map(|run| run.count).collect();
        assert_eq!(counts, [3, 2, 1]);
    }
}
