//! The settings, and the refusals of wrong ones.

use std::ops::RangeInclusive;

/// How pages in the pool are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodecKind {
    /// LZ4: fast.
    Lz4,
    /// Zstandard: denser and slower; folios in blocks.
    Zstd {
        /// One of [`ZSTD_LEVELS`].
        level: i32,
    },
    /// LZ4 at first; idle pages are compressed again with Zstandard, in blocks, in the background.
    Lz4ThenZstd {
        /// One of [`ZSTD_LEVELS`].
        level: i32,
    },
    /// None: pages are kept as they are, or go straight to a device.
    None,
}

impl CodecKind {
    /// Whether pages are compressed together, too ([`crate::codec::Codec::Block`]).
    pub const fn has_blocks(self) -> bool {
        matches!(self, Self::Zstd { .. } | Self::Lz4ThenZstd { .. })
    }
}

/// Settings of a swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The compression of pages in the pool.
    pub codec: CodecKind,
    /// The most memory the pool may hold, in bytes.
    pub pool_max_bytes: u64,
    /// The shrinker starts one percent above this share of `pool_max_bytes`, and works down
    /// to it.
    pub accept_threshold_percent: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            codec: CodecKind::Lz4,
            pool_max_bytes: 1 << 30,
            accept_threshold_percent: 90,
        }
    }
}

/// A setting out of range. The message says the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The pool's limit is too small or too large.
    #[error(
        "the pool's limit of {0} bytes is out of range: give {MIN_POOL} ({least} MiB) to {MAX_POOL} ({most} GiB), or codec none for no pool",
        least = MIN_POOL >> 20,
        most = MAX_POOL >> 30
    )]
    PoolMax(u64),
    /// The threshold is no percentage.
    #[error("the accept threshold of {0}% is out of range: give 1 to 99")]
    AcceptThreshold(u8),
    /// There is no such level.
    #[error("zstd has no level {0} here: allowed are -7 (fastest) to 19 (densest)")]
    ZstdLevel(i32),
}

/// Levels of Zstandard, fastest first; 0 is its own default. Faster ones are no denser than LZ4,
/// denser ones take tens of milliseconds a page.
pub const ZSTD_LEVELS: RangeInclusive<i32> = -7..=19;

const MIN_POOL: u64 = 1 << 20;
const MAX_POOL: u64 = crate::pool::MAX_BYTES;
/// The limits that a pool can have, in bytes.
pub const POOL_MAX: RangeInclusive<u64> = MIN_POOL..=MAX_POOL;

impl Config {
    /// Says what is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !POOL_MAX.contains(&self.pool_max_bytes) {
            return Err(ConfigError::PoolMax(self.pool_max_bytes));
        }
        if !(1..=99).contains(&self.accept_threshold_percent) {
            return Err(ConfigError::AcceptThreshold(self.accept_threshold_percent));
        }
        match self.codec {
            CodecKind::Zstd { level } | CodecKind::Lz4ThenZstd { level }
                if !ZSTD_LEVELS.contains(&level) =>
            {
                Err(ConfigError::ZstdLevel(level))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_give_the_range() {
        let bad = |config: Config| config.check().unwrap_err().to_string();
        let fine = Config::default();
        assert!(fine.check().is_ok());
        assert!(
            bad(Config {
                pool_max_bytes: 5,
                ..fine
            })
            .contains("1 MiB")
        );
        assert!(
            bad(Config {
                pool_max_bytes: u64::MAX,
                ..fine
            })
            .contains("to 137438953472 (128 GiB)")
        );
        assert!(
            bad(Config {
                accept_threshold_percent: 100,
                ..fine
            })
            .contains("1 to 99")
        );
        assert!(
            bad(Config {
                codec: CodecKind::Zstd { level: 20 },
                ..fine
            })
            .contains("-7 (fastest) to 19")
        );
        assert!(
            bad(Config {
                codec: CodecKind::Lz4ThenZstd { level: -8 },
                ..fine
            })
            .contains("-7 (fastest) to 19")
        );
    }
}
