//! Whether an area that is there already may be written over, by what it holds.
//!
//! It may if it carries a swap header and no other signature, or if all of it is zeros. Nothing less shows
//! that it is nobody's. A disk image may begin with mebibytes of zeros, and the records of a RAID or a
//! partition table may stand at its end alone. So all of it is read, but for the holes that the file system
//! knows, within the time that the caller gives. libblkid names the data; without that library, only data
//! beside a swap header goes unseen.
//!
//! Nothing is written here. Opening, and what the user allows, is done in [`crate::open`].

use crate::transfer::bounce::Bounce;
use ebb_engine::PAGE_SIZE;
use ebb_sys::blkid::{self, Signature, Usage};
use ebb_sys::file::read_up_to;
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// How long the search through an area of zeros may take.
pub enum SearchTime<'a> {
    /// No limit. A long search calls this once, with the bytes searched so far and the size.
    Unlimited(&'a dyn Fn(u64, u64)),
    /// At most so long.
    AtMost(Duration),
}

/// The content of an area.
#[derive(PartialEq, Eq, Debug)]
pub enum Content {
    /// A swap header, and nothing that tells of more.
    Swap,
    /// A swap header, and this beside it, in words.
    Mixed(String),
    /// Zeros, all of it.
    Zeros,
    /// The image of a suspended system.
    Hibernated,
    /// This, in words.
    Data(String),
    /// Zeros as far as there was time to look.
    NotSearched,
}

/// The content of an area of so many bytes.
pub fn content(fd: &OwnedFd, size: u64, look: &SearchTime<'_>) -> Result<Content, Errno> {
    let header = header(fd)?;
    if header == Some(Content::Hibernated) {
        return Ok(Content::Hibernated);
    }
    // A library that cannot be asked, or does not answer, finds nothing.
    let mut found = blkid::signatures(fd).unwrap_or_default();
    if let Some(swap) = header {
        found.retain(|signature| signature.kind != "swap");
        return Ok(match in_words(&found) {
            None => swap,
            Some(words) => Content::Mixed(format!("{words} beside a swap header")),
        });
    }
    if let Some(words) = in_words(&found) {
        return Ok(Content::Data(words));
    }
    Search::new(fd, size, look).run()
}

/// The content that the first page shows, where it is a header of swap.
fn header(fd: &OwnedFd) -> Result<Option<Content>, Errno> {
    let mut page = Bounce::new(1);
    read_up_to(fd, page.get(), 0)?;
    Ok(match &page.get()[PAGE_SIZE - 10..] {
        b"SWAPSPACE2" | b"SWAP-SPACE" => Some(Content::Swap),
        mark if mark.starts_with(b"S1SUSPEND") || mark.starts_with(b"S2SUSPEND") => {
            Some(Content::Hibernated)
        }
        _ => None,
    })
}

fn in_words(found: &[Signature]) -> Option<String> {
    let words = found.iter().map(|Signature { kind, usage }| match usage {
        Usage::FileSystem => format!("a file system ({kind})"),
        Usage::Member => format!("a part of a RAID or volume group ({kind})"),
        Usage::Encrypted => format!("encrypted data ({kind})"),
        Usage::Partitions => format!("a partition table ({kind})"),
        Usage::Other => format!("data ({kind})"),
    });
    let mut words: Vec<String> = words.collect();
    words.dedup();
    (!words.is_empty()).then(|| words.join(" and "))
}

/// A search for the first byte that is not zero.
struct Search<'a> {
    fd: &'a OwnedFd,
    size: u64,
    look: &'a SearchTime<'a>,
    buffer: Bounce,
    started: Instant,
    reported: bool,
}

impl<'a> Search<'a> {
    fn new(fd: &'a OwnedFd, size: u64, look: &'a SearchTime<'a>) -> Self {
        let _ = rustix::fs::fadvise(fd, 0, None, Advice::Sequential);
        Self {
            fd,
            size,
            look,
            buffer: Bounce::new(PIECE / PAGE_SIZE),
            started: Instant::now(),
            reported: false,
        }
    }

    fn run(mut self) -> Result<Content, Errno> {
        // The end first: that is where data is found that begins with zeros.
        let end = self.size.saturating_sub(PIECE as u64);
        for part in [end..self.size, 0..end] {
            let mut at = part.start;
            while let Some(extent) = self.written(at..part.end)? {
                at = extent.end;
                match self.first_data(extent)? {
                    Content::Zeros => {}
                    other => return Ok(other),
                }
            }
        }
        Ok(Content::Zeros)
    }

    /// The first part of a range that is no hole. Block devices have none, and not every file system tells
    /// of them: then the range.
    fn written(&self, range: Range<u64>) -> Result<Option<Range<u64>>, Errno> {
        if range.is_empty() {
            return Ok(None);
        }
        let start = match rustix::fs::seek(self.fd, SeekFrom::Data(range.start)) {
            Ok(start) => start.max(range.start),
            Err(Errno::NXIO) => return Ok(None),
            Err(_) => return Ok(Some(range)),
        };
        let end = rustix::fs::seek(self.fd, SeekFrom::Hole(start)).unwrap_or(range.end);
        let extent = start..end.min(range.end);
        Ok((!extent.is_empty()).then_some(extent))
    }

    fn first_data(&mut self, extent: Range<u64>) -> Result<Content, Errno> {
        let mut at = extent.start;
        while at < extent.end {
            let most = (extent.end - at).min(PIECE as u64) as usize;
            let piece = &mut self.buffer.get()[..most];
            let len = read_up_to(self.fd, piece, at)?;
            if let Some(found) = nonzero(&piece[..len]) {
                let byte = at + found as u64;
                return Ok(Content::Data(format!(
                    "data (at byte {byte}) and has no swap header"
                )));
            }
            // It would push what is in use out of the page cache.
            let passed = NonZeroU64::new(len as u64);
            let _ = rustix::fs::fadvise(self.fd, at, passed, Advice::DontNeed);
            at += most as u64;
            if !self.has_time(at) {
                return Ok(Content::NotSearched);
            }
        }
        Ok(Content::Zeros)
    }

    /// Whether to look on; and tells who waits.
    fn has_time(&mut self, at: u64) -> bool {
        const LONG: Duration = Duration::from_secs(2);
        let passed = self.started.elapsed();
        match self.look {
            SearchTime::Unlimited(tell) => {
                if passed > LONG && !self.reported {
                    self.reported = true;
                    tell(at, self.size);
                }
                true
            }
            SearchTime::AtMost(most) => passed < *most,
        }
    }
}

/// Where the first byte is that is not zero. In blocks, as those are compared many bytes at a time.
fn nonzero(bytes: &[u8]) -> Option<usize> {
    const BLOCK: usize = 256;
    let any = |block: &[u8]| block.iter().fold(0, |all, byte| all | byte) != 0;
    let block = bytes.chunks(BLOCK).position(any)? * BLOCK;
    let within = bytes[block..].iter().position(|byte| *byte != 0)?;
    Some(block + within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_first_byte_that_is_not_zero_is_found() {
        let mut bytes = vec![0; 1000];
        assert_eq!(nonzero(&bytes), None);
        assert_eq!(nonzero(&[]), None);
        for at in [999, 600, 512, 256, 255, 0] {
            bytes[at] = 1;
            assert_eq!(nonzero(&bytes), Some(at));
        }
    }

    /// A search of a file of this size, in which one byte is not zero.
    fn search(size: u64, byte: Option<u64>, holes: bool, look: &SearchTime<'_>) -> Content {
        let file = tempfile::tempfile().unwrap();
        if holes {
            file.set_len(size).unwrap();
        } else {
            file.write_all_at(&vec![0; size as usize], 0).unwrap();
        }
        if let Some(byte) = byte {
            file.write_all_at(&[1], byte).unwrap();
        }
        let fd = OwnedFd::from(file);
        Search::new(&fd, size, look).run().unwrap()
    }

    #[test]
    fn all_of_it_is_looked_at() {
        const SIZE: u64 = (5 << 20) + 12345;
        let through = SearchTime::Unlimited(&|_, _| {});
        for holes in [true, false] {
            assert_eq!(search(SIZE, None, holes, &through), Content::Zeros);
            for byte in [
                0,
                4095,
                4096,
                1 << 20,
                (3 << 20) + 1,
                SIZE - (1 << 20),
                SIZE - 1,
            ] {
                let found = search(SIZE, Some(byte), holes, &through);
                let says = format!("data (at byte {byte}) and has no swap header");
                assert_eq!(found, Content::Data(says), "{holes}");
            }
        }
    }

    #[test]
    fn a_probe_that_runs_out_of_time_says_so() {
        let at_once = SearchTime::AtMost(Duration::ZERO);
        assert_eq!(search(4 << 20, None, false, &at_once), Content::NotSearched);
        // Holes take none.
        assert_eq!(search(1 << 40, None, true, &at_once), Content::Zeros);
    }

    #[test]
    fn a_header_is_told_from_the_image_of_a_suspended_system() {
        let header_of = |mark: &[u8]| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(8192).unwrap();
            file.write_all_at(mark, 4086).unwrap();
            header(&OwnedFd::from(file)).unwrap()
        };
        assert_eq!(header_of(b"SWAPSPACE2"), Some(Content::Swap));
        assert_eq!(header_of(b"SWAP-SPACE"), Some(Content::Swap));
        assert_eq!(header_of(b"S1SUSPEND"), Some(Content::Hibernated));
        assert_eq!(header_of(b"SWAPSPACE3"), None);
        let short = OwnedFd::from(File::open("/dev/null").unwrap());
        assert_eq!(header(&short), Ok(None));
    }
}
