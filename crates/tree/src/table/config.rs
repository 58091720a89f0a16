//! How a run was configured, in one word of the supervisor's welcome.

use ebb_engine::slots::DeviceChoice;

/// How pages of the pool are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    /// No pool: pages go to devices as they are.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd(Zstd),
    /// LZ4 at first; idle pages again with Zstandard, in the background.
    Lz4ThenZstd(Zstd),
}

/// How Zstandard compresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zstd {
    /// The level.
    pub level: i32,
    /// Flag: it has a dictionary, trained on the program's own pages.
    pub dictionary: bool,
}

/// How the run was configured; the same for every member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The codec of the pool.
    pub codec: Codec,
    /// Flag: what goes to devices is encrypted, by each process with keys of its own.
    pub encrypt: bool,
    /// Flag: processes page from the first instant instead of when the budget is near (tests, benchmarks).
    pub eager: bool,
    /// Flag: a service thread of idle urgency may watch for the end of a read. Not where the processors have a quota.
    pub watches: bool,
    /// The order in which several devices are tried.
    pub choice: DeviceChoice,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            codec: Codec::Lz4,
            encrypt: true,
            eager: false,
            watches: true,
            choice: DeviceChoice::default(),
        }
    }
}

/// By their numbers in the packed configuration.
const CHOICES: [DeviceChoice; 3] = [
    DeviceChoice::PerNode,
    DeviceChoice::Activation,
    DeviceChoice::EqualTurns,
];

impl Config {
    pub(crate) fn pack(self) -> u64 {
        let plain = Zstd {
            level: 0,
            dictionary: false,
        };
        let (codec, zstd) = match self.codec {
            Codec::None => (0, plain),
            Codec::Lz4 => (1, plain),
            Codec::Zstd(zstd) => (2, zstd),
            Codec::Lz4ThenZstd(zstd) => (3, zstd),
        };
        let choice = CHOICES.iter().position(|choice| *choice == self.choice);
        codec
            | (self.encrypt as u64) << 8
            | (self.eager as u64) << 9
            | (zstd.dictionary as u64) << 10
            | (self.watches as u64) << 11
            | (choice.unwrap_or(0) as u64) << 16
            | (zstd.level as u32 as u64) << 32
    }

    pub(crate) fn unpack(word: u64) -> Self {
        let zstd = Zstd {
            level: (word >> 32) as i32,
            dictionary: word >> 10 & 1 == 1,
        };
        let codec = match word as u8 {
            0 => Codec::None,
            2 => Codec::Zstd(zstd),
            3 => Codec::Lz4ThenZstd(zstd),
            _ => Codec::Lz4,
        };
        Self {
            codec,
            encrypt: word >> 8 & 1 == 1,
            eager: word >> 9 & 1 == 1,
            watches: word >> 11 & 1 == 1,
            choice: CHOICES
                .get((word >> 16 & 0xff) as usize)
                .copied()
                .unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_carries_the_configuration() {
        let zstd = |level, dictionary| Zstd { level, dictionary };
        for codec in [
            Codec::None,
            Codec::Lz4,
            Codec::Zstd(zstd(-5, false)),
            Codec::Zstd(zstd(19, true)),
            Codec::Lz4ThenZstd(zstd(1, true)),
        ] {
            for (encrypt, eager, choice) in [
                (true, false, DeviceChoice::PerNode),
                (false, true, DeviceChoice::EqualTurns),
                (true, true, DeviceChoice::Activation),
            ] {
                let config = Config {
                    codec,
                    encrypt,
                    eager,
                    watches: !eager,
                    choice,
                };
                assert_eq!(Config::unpack(config.pack()), config);
            }
        }
    }
}
