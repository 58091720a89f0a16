//! The other side of a comparison: the program alone where all fits, else one of the kernel's kinds of
//! swap, turned on for a run.

use anyhow::Result;
use ebb_harness::kernel_swap::{SwapFile, Zram};

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// No limit that matters.
    Plain,
    /// Part of the memory it needs, and the kernel's swap.
    Kernel(Kernel),
}

/// The swap that `--kernel` turns on.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// Compressed memory
    Zram,
    /// A swap file behind zswap
    Zswap,
    /// A swap file
    File,
}

impl Side {
    /// In the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Kernel(kernel) => kernel.name(),
        }
    }
}

impl Kernel {
    /// In the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zram => "zram",
            Self::Zswap => "zswap",
            Self::File => "swap file",
        }
    }

    /// The marks between which its table stands in docs/BENCHMARKS.md.
    pub const fn marks(self) -> [&'static str; 2] {
        match self {
            Self::Zram => ["<!-- bench:begin -->", "<!-- bench:end -->"],
            Self::Zswap => ["<!-- bench-zswap:begin -->", "<!-- bench-zswap:end -->"],
            Self::File => ["<!-- bench-file:begin -->", "<!-- bench-file:end -->"],
        }
    }

    /// The swap of `ebb run` in its place.
    pub const fn ebb_args(self) -> &'static str {
        match self {
            Self::Zram => "--swap none",
            Self::Zswap | Self::File => "--swap /var/tmp",
        }
    }

    /// Turns it on; zram with this algorithm.
    ///
    /// # Errors
    /// No root, swap in use already, or the kernel has none of this kind.
    pub fn on(self, algorithm: &str) -> Result<Swap> {
        /// Bytes of a swap file.
        const SIZE: u64 = 2 << 30;
        Ok(match self {
            Self::Zram => Swap::Zram(Zram::on(algorithm)?),
            Self::Zswap | Self::File => Swap::File(SwapFile::on(SIZE, self == Self::Zswap)?),
        })
    }
}

/// The kernel's swap while a run lasts.
pub enum Swap {
    /// Compressed memory.
    Zram(Zram),
    /// A file, behind zswap or not.
    File(SwapFile),
}

impl Swap {
    /// The most bytes it held that no cgroup was charged for.
    pub fn peak(&self) -> u64 {
        match self {
            Self::Zram(zram) => zram.peak(),
            Self::File(file) => file.peak(),
        }
    }
}
