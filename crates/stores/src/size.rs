//! A size as a user writes it: `512M`, `1.5G`, `50%`.
//!
//! Units are powers of 1024. A bare number is bytes if it is a mebibyte or more, as programs write it. A
//! smaller one is refused rather than guessed at: `--memory 512` means bytes to one reader and mebibytes to
//! another. With a `B` behind it any number is bytes.
//!
//! No text overflows: numbers that are too large stay too large, and are refused as such. A size is shown
//! so that it is the same when it is read again.

use std::fmt;
use std::str::FromStr;

/// The largest size accepted: what 2^32 slots of a page hold.
pub const MAX_SIZE: u64 = 16 << 40;

/// A number of bytes, or a share of something that the place of use names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Bytes, 1 to [`MAX_SIZE`].
    Bytes(u64),
    /// Hundredths of a percent, 1 to 10000.
    Share(u16),
}

impl Size {
    /// Bytes, where a share is taken of `whole`; rounded down.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Share(hundredths) => (whole as u128 * hundredths as u128 / 10_000) as u64,
        }
    }
}

/// Why a text is not a size. The message says what is allowed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SizeError {
    /// Nothing there.
    #[error("the size is empty: write a number and a unit, like 512M, 1.5G or 50%")]
    Empty,
    /// A number without unit.
    #[error(
        "size \"{0}\" has no unit: write {0}M for mebibytes, {0}G for gibibytes (units: B K M G T %)"
    )]
    NoUnit(String),
    /// Not a number.
    #[error("size \"{0}\" does not start with a number: write it like 512M, 1.5G or 50%")]
    NotANumber(String),
    /// A negative number.
    #[error("size \"{0}\" is negative: it must be above zero")]
    Negative(String),
    /// Letters that name no unit.
    #[error("size \"{text}\" has the unknown unit \"{unit}\": allowed are B, K, M, G, T and %")]
    Unit {
        /// The whole text.
        text: String,
        /// The part that was not understood.
        unit: String,
    },
    /// Zero, or rounded to zero.
    #[error("size \"{0}\" is zero: it must be above zero")]
    Zero(String),
    /// A share above 100%.
    #[error("size \"{0}\" is above 100%: give less")]
    OverWhole(String),
    /// Above [`MAX_SIZE`].
    #[error("size \"{0}\" is too large: at most 16T")]
    TooLarge(String),
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(SizeError::Empty);
        }
        if text.starts_with('-') {
            return Err(SizeError::Negative(text.into()));
        }
        let unit_at = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        let (number, scale) = decimal(number).ok_or_else(|| SizeError::NotANumber(text.into()))?;
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" if number / scale < 1 << 20 => return Err(SizeError::NoUnit(text.into())),
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1u128 << 40,
            "%" => {
                return match number.saturating_mul(100) / scale {
                    0 => Err(SizeError::Zero(text.into())),
                    share @ 1..=10_000 => Ok(Size::Share(share as u16)),
                    _ => Err(SizeError::OverWhole(text.into())),
                };
            }
            _ => {
                return Err(SizeError::Unit {
                    text: text.into(),
                    unit: unit.into(),
                });
            }
        };
        match number.saturating_mul(factor) / scale {
            0 => Err(SizeError::Zero(text.into())),
            bytes if bytes <= MAX_SIZE as u128 => Ok(Size::Bytes(bytes as u64)),
            _ => Err(SizeError::TooLarge(text.into())),
        }
    }
}

/// A decimal number as (digits, power of ten that divides them). Digits that would not fit
/// saturate: the caller refuses such sizes anyway.
fn decimal(text: &str) -> Option<(u128, u128)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || fraction.contains('.') {
        return None;
    }
    // Nine decimals of a tebibyte are about a kilobyte; what follows is below a page.
    let fraction = &fraction[..fraction.len().min(9)];
    let scale = 10u128.pow(fraction.len() as u32);
    let digits = |text: &str| {
        text.bytes().fold(0u128, |n, digit| {
            n.saturating_mul(10).saturating_add((digit - b'0') as u128)
        })
    };
    let number = digits(whole)
        .saturating_mul(scale)
        .saturating_add(digits(fraction));
    Some((number, scale))
}

/// Units and the powers of two that they are, the largest first.
const UNITS: [(u32, &str); 5] = [(40, "T"), (30, "G"), (20, "M"), (10, "K"), (0, "B")];

/// Reads as the same size.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Size::Share(share) if share % 100 == 0 => write!(f, "{}%", share / 100),
            Size::Share(share) => write!(f, "{}.{:02}%", share / 100, share % 100),
            Size::Bytes(bytes) => {
                let (number, decimals, unit) = shortest(bytes);
                let scale = 10u128.pow(decimals);
                write!(f, "{}", number / scale)?;
                if decimals > 0 {
                    let width = decimals as usize;
                    write!(f, ".{:0width$}", number % scale)?;
                }
                f.write_str(unit)
            }
        }
    }
}

/// Digits, how many of them are decimals (at most 3), and the largest unit with which these are rounded down
/// to this size.
fn shortest(bytes: u64) -> (u128, u32, &'static str) {
    let bytes = u128::from(bytes);
    for (shift, unit) in UNITS {
        for decimals in 0..=3 {
            let scale = 10u128.pow(decimals);
            let number = (bytes * scale).div_ceil(1 << shift);
            let written = match decimals {
                0 => bytes >> shift > 0,
                _ => (1..1024).contains(&(bytes >> shift)),
            };
            if written && (number << shift) / scale == bytes {
                return (number, decimals, unit);
            }
        }
    }
    (bytes, 0, "B")
}

/// Bytes for people, in the largest unit that fits, with at most one decimal; the rest is cut off.
pub fn human(bytes: u64) -> String {
    in_tenths(bytes, |tenths, unit| tenths / unit)
}

/// The same, rounded up: whoever gives the size that it reads as gives so much at least.
pub fn human_at_least(bytes: u64) -> String {
    in_tenths(bytes, u128::div_ceil)
}

/// Bytes with one decimal; `divide` gives ten times the bytes in units.
fn in_tenths(bytes: u64, divide: fn(u128, u128) -> u128) -> String {
    for (shift, unit) in UNITS {
        if shift > 0 && bytes >> shift > 0 {
            let tenths = divide(u128::from(bytes) * 10, 1 << shift);
            return match tenths % 10 {
                0 => format!("{}{unit}", tenths / 10),
                decimal => format!("{}.{decimal}{unit}", tenths / 10),
            };
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Size, SizeError> {
        text.parse()
    }

    #[test]
    fn units_and_decimals() {
        assert_eq!(parse("512M"), Ok(Size::Bytes(512 << 20)));
        assert_eq!(parse("2g"), Ok(Size::Bytes(2 << 30)));
        assert_eq!(parse("1.5G"), Ok(Size::Bytes(3 << 29)));
        assert_eq!(parse("4KiB"), Ok(Size::Bytes(4096)));
        assert_eq!(parse("512B"), Ok(Size::Bytes(512)));
        assert_eq!(parse(" 16T "), Ok(Size::Bytes(MAX_SIZE)));
        assert_eq!(parse("1048576"), Ok(Size::Bytes(1 << 20)));
        assert_eq!(parse("50%"), Ok(Size::Share(5000)));
        assert_eq!(parse("12.25%"), Ok(Size::Share(1225)));
        assert_eq!(
            parse("0.0000000001T"),
            Err(SizeError::Zero("0.0000000001T".into()))
        );
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        for (text, says) in [
            ("", "the size is empty"),
            ("512", "512M for mebibytes"),
            ("1048575", "has no unit"),
            ("banana", "does not start with a number"),
            (".5G", "does not start with a number"),
            ("1.2.3G", "does not start with a number"),
            ("-1G", "negative"),
            ("5X", "unknown unit \"X\": allowed are B, K, M, G, T and %"),
            ("340282366920938463463374607431768211455%", "above 100%"),
            ("340282366920938463463374607431768211456%", "above 100%"),
            ("3402823669209384634633746074317682114.56%", "above 100%"),
            ("5MB", "unknown unit \"MB\""),
            ("0G", "above zero"),
            ("0%", "above zero"),
            ("101%", "above 100%"),
            ("17T", "at most 16T"),
            (
                "99999999999999999999999999999999999999999999T",
                "at most 16T",
            ),
            ("5 000M", "unknown unit"),
            ("½G", "does not start with a number"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_share_is_taken_of_the_whole() {
        assert_eq!(Size::Share(5000).of(1001), 500);
        assert_eq!(Size::Share(10_000).of(u64::MAX), u64::MAX);
        assert_eq!(Size::Bytes(7).of(1), 7);
    }

    #[test]
    fn shown_as_people_write_it() {
        assert_eq!(Size::Bytes(3 << 29).to_string(), "1.5G");
        assert_eq!(Size::Bytes(2 << 20).to_string(), "2M");
        assert_eq!(Size::Share(1225).to_string(), "12.25%");
        for text in ["4.3G", "1.234T", "17M", "999B", "1.001K", "16T", "1B"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Size::Bytes((1 << 30) + 1).to_string(), "1073741825B");
        assert_eq!(human(999), "999 bytes");
        assert_eq!(human_at_least(999), "999 bytes");
        let shown = |bytes| [human(bytes), human_at_least(bytes)];
        assert_eq!(shown(1280 << 20), ["1.2G", "1.3G"]);
        assert_eq!(shown(3 << 29), ["1.5G", "1.5G"]);
        assert_eq!(shown((1 << 30) - 1), ["1023.9M", "1024M"]);
    }

    /// A text as somebody may write it, near what is right and far from it.
    fn texts() -> impl Strategy<Value = String> {
        let digits = prop_oneof![
            any::<u128>().prop_map(|n| n.to_string()),
            any::<u64>().prop_map(|n| n.to_string()),
            "[0-9]{1,60}",
        ];
        let fraction = prop_oneof![Just(String::new()), "\\.[0-9]{0,60}"];
        let unit = prop_oneof!["[bBkKmMgGtT%]?(iB)?", ".{0,3}"];
        prop_oneof![
            (digits, fraction, unit).prop_map(|(a, b, c)| format!("{a}{b}{c}")),
            ".*",
        ]
    }

    proptest! {
        #[test]
        fn a_size_that_is_shown_reads_as_the_same(bytes in 1..=MAX_SIZE, fewer in 0u32..44) {
            for size in [Size::Bytes((bytes >> fewer).max(1)), Size::Share((bytes % 10_000 + 1) as u16)] {
                prop_assert_eq!(size.to_string().parse(), Ok(size));
            }
        }

        /// Overflow would be a panic here, and a wrong size without checks for it: neither depends on how
        /// it was built.
        #[test]
        fn any_text_is_a_size_in_range_or_refused(text in texts(), whole: u64) {
            match parse(&text) {
                Ok(Size::Bytes(bytes)) => prop_assert!((1..=MAX_SIZE).contains(&bytes)),
                Ok(Size::Share(share)) => {
                    prop_assert!((1..=10_000).contains(&share));
                    prop_assert!(Size::Share(share).of(whole) <= whole);
                }
                Err(error) => prop_assert!(error.to_string().contains("size")),
            }
            let _ = [human(whole), human_at_least(whole)];
        }

        #[test]
        fn a_size_that_is_shown_rounded_up_is_enough(bytes in 1024..=MAX_SIZE, fewer in 0u32..34) {
            let bytes = (bytes >> fewer).max(1024);
            let Ok(Size::Bytes(read)) = parse(&human_at_least(bytes)) else {
                panic!("{bytes}");
            };
            prop_assert!((bytes..=bytes + bytes / 10 + 1).contains(&read), "{read}");
        }

        /// The meaning of a number and a unit, computed in another way.
        #[test]
        fn numbers_mean_what_they_say(whole in 0u64..20_000_000, thousandths in 0u64..1000, unit in 0usize..4) {
            let (shift, name) = UNITS[unit];
            let exact = (u128::from(whole) * 1000 + u128::from(thousandths)) * (1 << shift) / 1000;
            let read = parse(&format!("{whole}.{thousandths:03}{name}"));
            match u64::try_from(exact) {
                Ok(0) => prop_assert!(matches!(read, Err(SizeError::Zero(_)))),
                Ok(bytes) if bytes <= MAX_SIZE => prop_assert_eq!(read, Ok(Size::Bytes(bytes))),
                _ => prop_assert!(matches!(read, Err(SizeError::TooLarge(_)))),
            }
        }
    }
}
