//! Defaults of `ebb run`: options that the command line leaves out.
//!
//! ```text
//! --memory, --swap, --pool        the command line
//! EBB_MEMORY, EBB_SWAP, EBB_POOL  several devices stand with ";" between them
//! ~/.config/ebb.toml              memory = "2G", swap = ["/mnt/nvme:20G"] or "none", pool = "zstd"
//! ```
//! The first that is given holds, for each option by itself.
//!
//! Not here: the text of the file (`config_file`), the meaning of a value (`setup`).

mod config_file;

use crate::cli::RunArgs;
use crate::setup::places;
use anyhow::{Context, Result, anyhow};
use config_file::{Specs, Values};
use ebb_stores::SwapSpec;
use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// An option and the default that it got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filled {
    option: &'static str,
    value: String,
    source: String,
}

impl fmt::Display for Filled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{} {} (from {})", self.option, self.value, self.source)
    }
}

/// Puts defaults where the command line says nothing; returns what it put.
///
/// # Errors
/// The file cannot be read, or has a key that there is not.
pub fn fill(args: &mut RunArgs) -> Result<Vec<Filled>> {
    fill_from(args, |name| std::env::var_os(name), file().as_deref())
}

/// Names the defaults beside an error of the setup, which knows options alone.
pub fn named(error: anyhow::Error, filled: &[Filled]) -> anyhow::Error {
    if filled.is_empty() {
        return error;
    }
    anyhow!("{error:#}\n     defaults in use: {}", list(filled))
}

fn list(filled: &[Filled]) -> String {
    let all: Vec<String> = filled.iter().map(Filled::to_string).collect();
    all.join(", ")
}

/// Values that `ebb run` takes now where its command line gives none.
pub struct InUse {
    /// The budget; none: what is free.
    pub memory: Option<String>,
    /// Swap devices.
    pub swap: Vec<SwapSpec>,
    /// Defaults that are set, for people; none if there are none.
    pub shown: Option<String>,
}

/// See [`InUse`].
///
/// # Errors
/// As of [`fill`]; or a value of the swap devices or the pool is wrong.
pub fn in_use() -> Result<InUse> {
    let mut args = RunArgs::of(Vec::new());
    let filled = fill(&mut args)?;
    let (_, swap) = places(&args).map_err(|error| named(error, &filled))?;
    Ok(InUse {
        memory: args.memory,
        swap,
        shown: (!filled.is_empty()).then(|| list(&filled)),
    })
}

/// Where the file is looked for.
pub fn file() -> Option<PathBuf> {
    let directory = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let config = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")));
    Some(config?.join("ebb.toml"))
}

fn fill_from(
    args: &mut RunArgs,
    variable: impl Fn(&str) -> Option<OsString>,
    file: Option<&Path>,
) -> Result<Vec<Filled>> {
    let text = |name: &str| -> Result<Option<(String, String)>> {
        let Some(value) = variable(name).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let value = value.into_string();
        let value = value.map_err(|_| anyhow!("{name} is no valid UTF-8: set it again"))?;
        Ok(Some((value, name.into())))
    };
    let (values, name) = match file {
        Some(file) => (read(file)?, file.display().to_string()),
        None => Default::default(),
    };
    let in_file = |value: Option<String>| value.map(|value| (value, name.clone()));
    let mut put = Vec::new();
    let mut default = |option, (value, source): (String, String)| {
        let put_value = value.clone();
        put.push(Filled {
            option,
            value,
            source,
        });
        put_value
    };
    if args.memory.is_none() {
        let given = text("EBB_MEMORY")?.or_else(|| in_file(values.memory));
        args.memory = given.map(|given| default("memory", given));
    }
    if args.swap.is_empty() {
        let specs = match text("EBB_SWAP")? {
            Some((all, name)) => {
                let specs = all
                    .split(';')
                    .map(str::trim)
                    .filter(|spec| !spec.is_empty());
                specs.map(|spec| (spec.to_owned(), name.clone())).collect()
            }
            None => {
                let specs = values.swap.map_or_else(Vec::new, Specs::into_list);
                specs
                    .into_iter()
                    .filter_map(|spec| in_file(Some(spec)))
                    .collect::<Vec<_>>()
            }
        };
        args.swap = specs
            .into_iter()
            .map(|given| default("swap", given))
            .collect();
    }
    if args.pool.is_none() {
        let given = text("EBB_POOL")?.or_else(|| in_file(values.pool));
        args.pool = given.map(|given| default("pool", given));
    }
    Ok(put)
}

/// A file that is not there gives no defaults.
fn read(file: &Path) -> Result<Values> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Values::default());
        }
        // HOME is another user's, as after setpriv or sudo: what lies there is not meant for this one.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && file.metadata().is_err() => {
            return Ok(Values::default());
        }
        Err(error) => {
            return Err(error).with_context(|| {
                format!(
                    "cannot read {}: make it readable or remove it",
                    file.display()
                )
            });
        }
    };
    config_file::parse(&text).map_err(|why| anyhow!("{}: {why}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Verb};
    use clap::Parser;

    fn filled(words: &[&str], variables: &[(&str, &str)], file: &str) -> Result<RunArgs> {
        let words = ["ebb", "run"].iter().chain(words).chain(&["true"]);
        let Verb::Run(mut args) = Cli::try_parse_from(words).unwrap().verb else {
            panic!()
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ebb.toml");
        std::fs::write(&path, file).unwrap();
        let variable = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == name)?;
            Some(OsString::from(found.1))
        };
        fill_from(&mut args, variable, Some(&path))?;
        Ok(args)
    }

    const FILE: &str = "memory = \"1G\"\nswap = [\"/a:1G\", \"/b\"]\npool = \"zstd\"\n";

    #[test]
    fn the_command_line_wins_then_the_variable_then_the_file() {
        let args = filled(&[], &[], FILE).unwrap();
        assert_eq!(args.memory.as_deref(), Some("1G"));
        assert_eq!(args.swap, ["/a:1G", "/b"]);
        assert_eq!(args.pool.as_deref(), Some("zstd"));
        let variables = [
            ("EBB_MEMORY", "2G"),
            ("EBB_SWAP", "/c ; /d:2G"),
            ("EBB_POOL", ""),
        ];
        let args = filled(&[], &variables, FILE).unwrap();
        assert_eq!(args.memory.as_deref(), Some("2G"));
        assert_eq!(args.swap, ["/c", "/d:2G"]);
        assert_eq!(
            args.pool.as_deref(),
            Some("zstd"),
            "an empty variable is none"
        );
        let words = ["-m", "3G", "-s", "none", "--pool", "lz4"];
        let args = filled(&words, &variables, FILE).unwrap();
        assert_eq!(args.memory.as_deref(), Some("3G"));
        assert_eq!(args.swap, ["none"]);
        assert_eq!(args.pool.as_deref(), Some("lz4"));
        let args = filled(&[], &[], "swap = \"none\"").unwrap();
        assert_eq!((args.memory, args.swap), (None, vec!["none".to_string()]));
    }

    #[test]
    fn a_key_that_there_is_not_is_named() {
        for (file, says) in [
            ("memroy = \"1G\"", "memroy"),
            ("memory = 2", "line 1"),
            ("[run]\nmemory = \"1G\"", "run"),
            ("memory", "line 1"),
        ] {
            let error = format!("{:#}", filled(&[], &[], file).err().expect("an error"));
            assert!(
                error.contains(says) && error.contains("ebb.toml"),
                "{error}"
            );
            assert!(error.contains("keys are memory, swap and pool"), "{error}");
        }
    }
}
