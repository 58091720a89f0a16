//! The text that names a swap device: `PATH[:SIZE][,prio=N][,node=N][,discard=on|off]
//! [,rotational=on|off][,overwrite=yes|no]`, or `none`.
//!
//! The text after the last colon is the size unless it holds a slash. A path that itself holds a colon in
//! its last part ends with one more colon and no size. A path cannot hold a comma. Nothing is looked up
//! here: opening is [`crate::open`].

use crate::size::{Size, SizeError};
use ebb_engine::Node;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Largest priority, as for the kernel's swapon.
pub const MAX_PRIORITY: i16 = 32767;
/// Largest node number, as in the kernel.
pub const MAX_NODE: u16 = 1023;

/// A swap device as asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwapSpec {
    /// No swap device: the pool alone.
    None,
    /// A file, directory or block device.
    At(SwapTarget),
}

/// Where, how large, and what the user knows better than the system.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SwapTarget {
    /// A swap file or block device, a directory for a private file, or nothing: then a
    /// private file in the first directory that serves.
    pub path: Option<PathBuf>,
    /// Size; a share is of what the file system has free, or of the device.
    pub size: Option<Size>,
    /// 0 to [`MAX_PRIORITY`], higher first; automatic if none.
    pub priority: Option<i16>,
    /// NUMA node, instead of the one the system names.
    pub node: Option<Node>,
    /// Flag: freed slots are discarded. If none: on block devices that support it, and not in files.
    pub discard: Option<bool>,
    /// Flag: a head moves, instead of what the system says.
    pub rotational: Option<bool>,
    /// Flag: what a file or device holds may go. If none: it must be swap, or empty.
    pub overwrite: Option<bool>,
}

/// Reads as the same spec. A path is shown as far as it is text.
impl fmt::Display for SwapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self {
            SwapSpec::None => return f.write_str("none"),
            SwapSpec::At(place) => place,
        };
        let path = place.path.as_deref().unwrap_or(Path::new("")).display();
        write!(f, "{path}:")?;
        if let Some(size) = place.size {
            write!(f, "{size}")?;
        }
        let word = |on: bool, words: [&'static str; 2]| words[usize::from(on)];
        let (off_on, no_yes) = (["off", "on"], ["no", "yes"]);
        for (name, value) in [
            ("prio", place.priority.map(|n| n.to_string())),
            ("node", place.node.map(|n| n.0.to_string())),
            ("discard", place.discard.map(|on| word(on, off_on).into())),
            (
                "rotational",
                place.rotational.map(|on| word(on, off_on).into()),
            ),
            (
                "overwrite",
                place.overwrite.map(|yes| word(yes, no_yes).into()),
            ),
        ] {
            if let Some(value) = value {
                write!(f, ",{name}={value}")?;
            }
        }
        Ok(())
    }
}

impl Default for SwapSpec {
    /// One private file, as large as may be.
    fn default() -> Self {
        SwapSpec::At(SwapTarget::default())
    }
}

/// Why a text does not name a swap device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// Nothing there.
    #[error(
        "the swap spec is empty: write PATH[:SIZE][,prio=N][,node=N][,discard=on|off][,rotational=on|off][,overwrite=yes] or none"
    )]
    Empty,
    /// `none` with something behind it.
    #[error("\"none\" takes no size and no option, but \"{0}\" follows: leave that out")]
    NoneTakesNothing(String),
    /// The size is not one.
    #[error(
        "{error} (the text after the last \":\" of a swap spec is its size; if the path itself ends that way, write one more \":\" behind it)"
    )]
    Size {
        /// The error in it.
        error: SizeError,
    },
    /// An option that does not exist.
    #[error(
        "unknown swap option \"{0}\": allowed are prio=N, node=N, discard=on|off, rotational=on|off, overwrite=yes (a path cannot hold a comma)"
    )]
    UnknownOption(String),
    /// An option given twice.
    #[error("the swap option \"{0}\" is given twice: leave one out")]
    Twice(&'static str),
    /// A value that the option does not take.
    #[error("\"{value}\" is no value for the swap option {option}: allowed is {allowed}")]
    Value {
        /// The option.
        option: &'static str,
        /// The value given.
        value: String,
        /// The values allowed.
        allowed: &'static str,
    },
    /// A path that no file can have.
    #[error("the swap path holds a zero byte")]
    ZeroByte,
}

impl FromStr for SwapSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (place, options) = match text.split_once(',') {
            Some((place, options)) => (place, Some(options)),
            None => (text, None),
        };
        if place.is_empty() {
            return Err(SpecError::Empty);
        }
        if text.contains('\0') {
            return Err(SpecError::ZeroByte);
        }
        if let Some(rest) = text.strip_prefix("none")
            && (rest.is_empty() || rest.starts_with([':', ',']))
        {
            return match rest {
                "" => Ok(SwapSpec::None),
                rest => Err(SpecError::NoneTakesNothing(rest[1..].into())),
            };
        }
        let mut at = SwapTarget::default();
        let (path, size) = match place.rsplit_once(':') {
            Some((path, size)) if !size.contains('/') => (path, size),
            _ => (place, ""),
        };
        if path.is_empty() {
            return Err(SpecError::Empty);
        }
        at.path = Some(path.into());
        if !size.is_empty() {
            at.size = Some(size.parse().map_err(|error| SpecError::Size { error })?);
        }
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            at.set(option)?;
        }
        Ok(SwapSpec::At(at))
    }
}

impl SwapTarget {
    fn set(&mut self, option: &str) -> Result<(), SpecError> {
        let Some((name, value)) = option.split_once('=') else {
            return Err(SpecError::UnknownOption(option.into()));
        };
        match name {
            "prio" => once(&mut self.priority, "prio", || {
                number(
                    value,
                    "prio",
                    MAX_PRIORITY,
                    "a whole number from 0 to 32767",
                )
            }),
            "node" => once(&mut self.node, "node", || {
                number(value, "node", MAX_NODE, "a whole number from 0 to 1023").map(Node)
            }),
            "discard" => once(&mut self.discard, "discard", || {
                switch(value, "discard", ["on", "off"], "on or off")
            }),
            "rotational" => once(&mut self.rotational, "rotational", || {
                switch(value, "rotational", ["on", "off"], "on or off")
            }),
            "overwrite" => once(&mut self.overwrite, "overwrite", || {
                switch(value, "overwrite", ["yes", "no"], "yes or no")
            }),
            _ => Err(SpecError::UnknownOption(option.into())),
        }
    }
}

fn once<T>(
    place: &mut Option<T>,
    name: &'static str,
    value: impl FnOnce() -> Result<T, SpecError>,
) -> Result<(), SpecError> {
    if place.is_some() {
        return Err(SpecError::Twice(name));
    }
    *place = Some(value()?);
    Ok(())
}

fn number<T: FromStr + PartialOrd + Default>(
    text: &str,
    option: &'static str,
    max: T,
    allowed: &'static str,
) -> Result<T, SpecError> {
    match text.parse::<T>() {
        Ok(n) if n >= T::default() && n <= max => Ok(n),
        _ => Err(SpecError::Value {
            option,
            value: text.into(),
            allowed,
        }),
    }
}

fn switch(
    text: &str,
    option: &'static str,
    [on, off]: [&str; 2],
    allowed: &'static str,
) -> Result<bool, SpecError> {
    match text {
        text if text == on => Ok(true),
        text if text == off => Ok(false),
        _ => Err(SpecError::Value {
            option,
            value: text.into(),
            allowed,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::option;
    use proptest::prelude::*;

    fn at(text: &str) -> SwapTarget {
        match text.parse() {
            Ok(SwapSpec::At(place)) => place,
            other => panic!("{text:?} gave {other:?}"),
        }
    }

    #[test]
    fn everything_at_once() {
        assert_eq!(
            at("/var/swap:1.5G,prio=5,node=1,discard=off,rotational=on,overwrite=yes"),
            SwapTarget {
                path: Some("/var/swap".into()),
                size: Some(Size::Bytes(3 << 29)),
                priority: Some(5),
                node: Some(Node(1)),
                discard: Some(false),
                rotational: Some(true),
                overwrite: Some(true),
            }
        );
    }

    #[test]
    fn the_path_alone() {
        assert_eq!(at("/dev/vdb").path, Some("/dev/vdb".into()));
        assert_eq!(at("relative/x").path, Some("relative/x".into()));
        assert_eq!(at("nonesuch").path, Some("nonesuch".into()));
        assert_eq!("none".parse(), Ok(SwapSpec::None));
    }

    #[test]
    fn colons_in_paths() {
        assert_eq!(at("/a:b/c").path, Some("/a:b/c".into()));
        let place = at("/dev/disk/by-path/pci-0000:00:1f.2-ata-1:");
        assert_eq!(
            place.path,
            Some("/dev/disk/by-path/pci-0000:00:1f.2-ata-1".into())
        );
        assert_eq!(place.size, None);
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        for (text, says) in [
            ("", "the swap spec is empty"),
            (":5G", "the swap spec is empty"),
            (",prio=1", "the swap spec is empty"),
            ("none:5G", "takes no size and no option"),
            ("none,prio=1", "takes no size and no option"),
            ("/s:banana", "does not start with a number"),
            ("/s:12", "has no unit"),
            ("/s,prio", "unknown swap option \"prio\""),
            ("/s,priority=3", "prio=N, node=N"),
            ("/s,", "unknown swap option \"\""),
            ("/s,prio=-1", "from 0 to 32767"),
            ("/s,prio=32768", "from 0 to 32767"),
            ("/s,node=70000", "from 0 to 1023"),
            (
                "/s,discard=yes",
                "\"yes\" is no value for the swap option discard: allowed is on or off",
            ),
            (
                "/s,rotational=disk",
                "\"disk\" is no value for the swap option rotational: allowed is on or off",
            ),
            (
                "/s,rotational=",
                "swap option rotational: allowed is on or off",
            ),
            ("/s,rotational", "unknown swap option \"rotational\""),
            ("/s,rotational=on,rotational=on", "given twice"),
            ("/s,discard=on,discard=off", "given twice"),
            ("/s,node=0,node=1", "given twice"),
            ("/s,overwrite=yes,overwrite=yes", "given twice"),
            (
                "/s,overwrite=on",
                "swap option overwrite: allowed is yes or no",
            ),
            ("/s,prio=1,prio=2", "given twice"),
            ("/s\0x", "zero byte"),
        ] {
            let error = text.parse::<SwapSpec>().expect_err(text).to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    /// Specs of every kind, with paths that hold what a spec gives a meaning to.
    fn specs() -> impl Strategy<Value = SwapSpec> {
        let size = prop_oneof![
            (1..=crate::MAX_SIZE).prop_map(Size::Bytes),
            (1..=10_000u16).prop_map(Size::Share),
        ];
        let switch = || option::of(any::<bool>());
        let numbers = (option::of(0..=MAX_PRIORITY), option::of(0..=MAX_NODE));
        let switches = (switch(), switch(), switch());
        let place = ("/?[^,\0]{1,20}", option::of(size), numbers, switches);
        place.prop_map(|(path, size, (priority, node), switches)| {
            let (discard, rotational, overwrite) = switches;
            SwapSpec::At(SwapTarget {
                path: Some(path.into()),
                size,
                priority,
                node: node.map(Node),
                discard,
                rotational,
                overwrite,
            })
        })
    }

    /// Words of a spec in any order, and anything.
    fn texts() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            Just("none".to_owned()),
            "/?[a-z/:.]{0,6}",
            "[:,=]{1,2}",
            "[0-9]{1,30}[KMGT%]?",
            "(prio|node|discard|rotational|overwrite)=(on|off|yes|no|-?[0-9]{1,30})",
        ];
        prop_oneof![
            ".*",
            proptest::collection::vec(word, 0..8).prop_map(|words| words.concat()),
        ]
    }

    proptest! {
        #[test]
        fn a_spec_that_is_shown_reads_as_the_same(spec in specs()) {
            // "none" and what follows is no path.
            let shown = spec.to_string();
            prop_assume!(!shown.starts_with("none:"));
            prop_assert_eq!(shown.parse(), Ok(spec));
        }

        #[test]
        fn any_text_is_a_spec_or_refused(text in texts()) {
            match text.parse::<SwapSpec>() {
                Ok(SwapSpec::None) => prop_assert_eq!(text, "none"),
                Ok(spec) => {
                    // The spec shown holds all that was read.
                    prop_assert_eq!(spec.to_string().parse(), Ok(spec));
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
