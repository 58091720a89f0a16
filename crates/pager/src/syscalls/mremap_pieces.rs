//! `mremap` of memory that is several mappings to the kernel.
//!
//! One range here may be several mappings to the kernel: parts that were protected, or that a fork has copied, do not
//! merge again when they are alike. It refuses to move or resize those in one call (EFAULT), as a program that knows
//! nothing of us does not expect. They are moved one by one.

use crate::map::ranges::{Attributes, Ranges};
use crate::pager::Pager;
use crate::syscalls::mremap_parts::{KNOWN, are_apart, part_end};
use ebb_engine::PAGE_SIZE;
use ebb_sys::Errno;
use ebb_sys::paging::Kernel;

/// The attributes of memory that a program knows as one mapping: all of it is managed, and alike but for what the pager
/// alone knows.
pub fn of_one_mapping(ranges: &Ranges, (start, end): (usize, usize)) -> Option<Attributes> {
    let first = ranges.find(start).filter(|_| start < end)?;
    (part_end(ranges, start, end) == end).then_some(first.attributes)
}

/// The first registered part of `at..end`, be it several ranges.
fn registered_part(ranges: &Ranges, at: usize, end: usize) -> Option<(usize, usize)> {
    let mut part: Option<(usize, usize)> = None;
    for range in ranges.within(at, end) {
        let is_next = part.is_none_or(|(_, stop)| stop == range.start);
        match range.attributes.registered && is_next {
            true => part = Some((part.map_or(range.start, |p| p.0), range.end)),
            false if part.is_some() => break,
            false => {}
        }
    }
    part
}

/// A call that the kernel refuses because the memory is several mappings to it.
pub struct Pieces<'a, K: Kernel> {
    pager: &'a Pager<K>,
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: i32,
    /// The place where it is to be, with MREMAP_FIXED.
    target: usize,
    /// The attributes of all of it.
    like: Attributes,
    /// Flag: something was mapped or moved.
    pub begun: bool,
}

impl<'a, K: Kernel> Pieces<'a, K> {
    /// A call as the program made it, about memory of these attributes.
    pub fn new(
        pager: &'a Pager<K>,
        like: Attributes,
        (old, end): (usize, usize),
        new_len: usize,
        flags: i32,
        target: usize,
    ) -> Self {
        Self {
            pager,
            old,
            old_len: end - old,
            new_len,
            flags,
            target,
            like,
            begun: false,
        }
    }

    /// Makes it piece by piece.
    pub fn remap(&mut self) -> Result<usize, Errno> {
        let &mut Self {
            old,
            old_len,
            new_len,
            flags,
            target,
            ..
        } = self;
        if flags & !KNOWN != 0 || new_len == 0 {
            return Err(Errno(libc::EFAULT));
        }
        let leaves = flags & libc::MREMAP_DONTUNMAP != 0;
        if leaves && (flags & libc::MREMAP_MAYMOVE == 0 || new_len != old_len) {
            return Err(Errno(libc::EINVAL));
        }
        if flags & libc::MREMAP_FIXED != 0 {
            let apart = are_apart((target, new_len), (old, old_len));
            let aligned = target.is_multiple_of(PAGE_SIZE);
            if flags & libc::MREMAP_MAYMOVE == 0 || !apart || !aligned {
                return Err(Errno(libc::EINVAL));
            }
            self.begun = true;
            self.map(target, new_len, libc::MAP_FIXED)?;
            return self.move_to(target);
        }
        if leaves {
            return self.move_anywhere();
        }
        if new_len <= old_len {
            if new_len < old_len {
                // SAFETY: what the program gives up.
                unsafe { self.pager.kernel.munmap(old + new_len, old_len - new_len)? };
            }
            return Ok(old);
        }
        let more = new_len - old_len;
        match self.map(old + old_len, more, libc::MAP_FIXED_NOREPLACE) {
            Ok(_) => Ok(old),
            Err(_) if flags & libc::MREMAP_MAYMOVE == 0 => Err(Errno(libc::ENOMEM)),
            Err(_) => self.move_anywhere(),
        }
    }

    /// Maps memory as this is.
    fn map(&self, at: usize, len: usize, how: i32) -> Result<usize, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | how;
        let (kernel, prot) = (&self.pager.kernel, self.like.protection);
        // SAFETY: what lies there is the program's to replace, where anything is replaced.
        let start = unsafe { kernel.mmap(at, len, prot, flags, -1, 0)? };
        if self.like.in_child.wiped {
            // SAFETY: advice on memory that nobody knows of yet.
            let advised = unsafe { kernel.madvise(start, len, libc::MADV_WIPEONFORK) };
            if let Err(error) = advised {
                // SAFETY: the same memory.
                let _ = unsafe { kernel.munmap(start, len) };
                return Err(error);
            }
        }
        Ok(start)
    }

    /// Moves all of it to where the kernel has room.
    fn move_anywhere(&mut self) -> Result<usize, Errno> {
        let to = self.map(0, self.new_len, 0)?;
        self.begun = true;
        self.move_to(to)
    }

    /// Moves all of it to `to`, where memory of the new length is mapped.
    fn move_to(&self, to: usize) -> Result<usize, Errno> {
        let kept = self.old_len.min(self.new_len);
        let leaves = self.flags & libc::MREMAP_DONTUNMAP;
        let Err((moved, error)) = self.pager.move_each(self.old, to, kept, leaves) else {
            if kept < self.old_len {
                // SAFETY: what the program gives up. If it cannot be unmapped it is nobody's.
                let _ = unsafe {
                    self.pager
                        .kernel
                        .munmap(self.old + kept, self.old_len - kept)
                };
            }
            return Ok(to);
        };
        // Another thread may have mapped memory in the hole meanwhile, without the lock.
        let is_ours = leaves != 0 || moved == 0 || self.pager.takes(self.old, moved);
        if (!is_ours || self.pager.move_each(to, self.old, moved, 0).is_err())
            && let Some(process) = self.pager.process()
        {
            process.fail(&format!(
                "memory at {:#x} was moved in part and can neither be moved on nor back ({error}): \
                 the process has too many mappings; raise vm.max_map_count",
                self.old
            ));
        }
        // SAFETY: mapped by `map`, and nothing of the program's is there.
        let _ = unsafe { self.pager.kernel.munmap(to, self.new_len) };
        Err(error)
    }
}

impl<K: Kernel> Pager<K> {
    /// Marks what is registered in an area (`registration::set_apart`).
    ///
    /// # Errors
    /// As there.
    pub(super) fn set_pieces_apart(
        &self,
        ranges: &Ranges,
        (start, end): (usize, usize),
    ) -> Result<(), Errno> {
        let mut at = start;
        while let Some(part) = registered_part(ranges, at, end) {
            self.set_apart(part.0, part.1 - part.0)?;
            at = part.1;
        }
        Ok(())
    }

    /// Takes those marks away.
    pub(super) fn join_pieces_again(&self, ranges: &Ranges, (start, end): (usize, usize)) {
        let mut at = start;
        while let Some(part) = registered_part(ranges, at, end) {
            self.join_again(part.0, part.1 - part.0);
            at = part.1;
        }
    }

    /// Moves `len` bytes from `from` to `to`, as many mappings as they are, which stay if it `leaves` them
    /// (MREMAP_DONTUNMAP); else how many were, and why no more.
    pub(super) fn move_each(
        &self,
        from: usize,
        to: usize,
        len: usize,
        leaves: i32,
    ) -> Result<(), (usize, Errno)> {
        let (mut at, mut most) = (0, len);
        while at < len {
            let piece = most.min(len - at);
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | leaves;
            // SAFETY: moves the program's memory as it asked for, over what was mapped for that.
            match unsafe { self.kernel.mremap(from + at, piece, piece, how, to + at) } {
                Ok(_) => {
                    at += piece;
                    most = 2 * piece;
                }
                // Still more than one.
                Err(Errno(libc::EFAULT)) if piece > PAGE_SIZE => {
                    most = piece / 2 / PAGE_SIZE * PAGE_SIZE
                }
                Err(error) => return Err((at, error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_sys::memory;
    use ebb_sys::system_kernel::SystemKernel;

    const PLAIN: i32 = libc::PROT_READ | libc::PROT_WRITE;

    static PAGER: Pager<SystemKernel> = Pager::new(SystemKernel::new());

    fn page(start: usize, n: usize) -> *mut u8 {
        (start + n * PAGE_SIZE) as *mut u8
    }

    /// Eight pages, each with its number in it, that the kernel holds as several mappings, as advice sets some of
    /// them apart. Two programs would call them one memory.
    fn several() -> usize {
        let start = memory::reserve(8 * PAGE_SIZE).unwrap();
        for n in 0..8 {
            // SAFETY: memory of this test's own.
            unsafe { page(start, n).write(n as u8 + 1) };
        }
        for n in [1, 4, 5] {
            PAGER.set_apart(start + n * PAGE_SIZE, PAGE_SIZE).unwrap();
        }
        start
    }

    fn pieces(
        old: usize,
        old_pages: usize,
        new_pages: usize,
        flags: i32,
        target: usize,
    ) -> Pieces<'static, SystemKernel> {
        Pieces {
            pager: &PAGER,
            old,
            old_len: old_pages * PAGE_SIZE,
            new_len: new_pages * PAGE_SIZE,
            flags,
            target,
            like: Attributes::mapped(PLAIN),
            begun: false,
        }
    }

    fn holds(start: usize, pages: &[u8]) {
        for (n, &wanted) in pages.iter().enumerate() {
            // SAFETY: as above.
            assert_eq!(unsafe { page(start, n).read() }, wanted, "page {n}");
        }
    }

    /// The program knows nothing of pins.
    #[test]
    fn memory_with_a_pinned_page_is_one_mapping_and_with_a_hole_it_is_none() {
        let mut ranges = Ranges::new();
        let area = (8 * PAGE_SIZE, 16 * PAGE_SIZE);
        ranges.insert(area.0, area.1, Attributes::mapped(PLAIN));
        ranges.change(area.0, area.0 + PAGE_SIZE, |a| a.pinned.for_good = true);
        let whole = of_one_mapping(&ranges, area).map(|like| like.protection);
        assert_eq!(whole, Some(PLAIN));
        assert_eq!(of_one_mapping(&ranges, (area.0, area.0)), None);
        assert_eq!(of_one_mapping(&ranges, (area.0, area.1 + PAGE_SIZE)), None);
        let mut locked = Ranges::new();
        locked.insert(area.0, area.1, Attributes::mapped(PLAIN));
        locked.change(area.0, area.0 + PAGE_SIZE, |a| a.locked = true);
        assert_eq!(of_one_mapping(&locked, area), None);
        ranges.remove(area.0 + PAGE_SIZE, area.0 + 2 * PAGE_SIZE);
        assert_eq!(of_one_mapping(&ranges, area), None);
    }

    #[test]
    fn a_move_that_the_kernel_refuses_is_made_piece_by_piece() {
        let start = several();
        let whole = 8 * PAGE_SIZE;
        // SAFETY: as above.
        let refused = unsafe { memory::mremap(start, whole, 2 * whole, libc::MREMAP_MAYMOVE, 0) };
        assert_eq!(refused, Err(Errno(libc::EFAULT)));
        // Nothing can grow where it is, if something lies behind it.
        let grown = pieces(start, 7, 20, libc::MREMAP_MAYMOVE, 0)
            .remap()
            .unwrap();
        assert_ne!(grown, start);
        holds(grown, &[1, 2, 3, 4, 5, 6, 7, 0, 0]);
        let fixed = memory::reserve(4 * PAGE_SIZE).unwrap();
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        assert_eq!(pieces(grown, 20, 4, how, fixed).remap(), Ok(fixed));
        holds(fixed, &[1, 2, 3, 4]);
        // The old mapping may stay, and holds zeros then.
        PAGER.set_apart(fixed + PAGE_SIZE, PAGE_SIZE).unwrap();
        let leaves = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let moved = pieces(fixed, 4, 4, leaves, 0).remap().unwrap();
        holds(moved, &[1, 2, 3, 4]);
        holds(fixed, &[0, 0, 0, 0]);
        let resized = pieces(moved, 4, 3, leaves, 0).remap();
        assert_eq!(resized, Err(Errno(libc::EINVAL)));
        assert_eq!(pieces(moved, 4, 2, 0, 0).remap(), Ok(moved));
        holds(moved, &[1, 2]);
    }

    /// Forked children get zeros of what grows, too.
    #[test]
    fn what_grows_is_wiped_at_a_fork_as_the_rest_is() {
        let start = several();
        // SAFETY: memory of this test's own.
        unsafe { memory::madvise(start, 8 * PAGE_SIZE, libc::MADV_WIPEONFORK).unwrap() };
        let mut grows = pieces(start, 8, 20, libc::MREMAP_MAYMOVE, 0);
        grows.like.in_child.wiped = true;
        let grown = grows.remap().unwrap();
        for n in 0..20 {
            let flags = flags_of(grown + n * PAGE_SIZE);
            assert!(
                flags.split(' ').any(|flag| flag == "wf"),
                "page {n}: {flags}"
            );
        }
    }

    /// The flags of the mapping at an address.
    fn flags_of(at: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut here = false;
        for line in maps.lines() {
            let bounds = line.split(' ').next().and_then(|word| word.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((start, end)) = bounds
                && let (Some(start), Some(end)) = (number(start), number(end))
            {
                here = (start..end).contains(&at);
            } else if here && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.into();
            }
        }
        panic!("nothing is mapped at {at:#x}")
    }

    #[test]
    fn an_impossible_move_is_refused_and_changes_nothing() {
        let start = several();
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let over = start + 2 * PAGE_SIZE;
        assert_eq!(
            pieces(start, 8, 8, how, over).remap(),
            Err(Errno(libc::EINVAL))
        );
        assert_eq!(pieces(start, 7, 9, 0, 0).remap(), Err(Errno(libc::ENOMEM)));
        holds(start, &[1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
