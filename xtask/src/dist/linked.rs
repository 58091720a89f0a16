//! The crates that are linked into `ebb` and its library, which no dependency connects.
//!
//! `cargo tree` tells which they are, `cargo metadata` what those are. Not here: crates that only run while others are
//! built, and those of tests.

use super::run;
use anyhow::Result;
use ebb_harness::tools;
use serde_json::Value;
use std::collections::HashSet;
use std::process::Command;

/// The package of the command.
pub const COMMAND: &str = "ebb";
/// The package of the library inside it.
const INSIDE: &str = "ebb-preload";

/// The crates, and how they depend on each other.
pub struct Linked {
    /// Names and versions.
    crates: HashSet<(String, String)>,
    /// The answer of `cargo metadata`, on all packages.
    metadata: Value,
}

impl Linked {
    /// Asks cargo.
    pub fn here() -> Result<Self> {
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let cargo = |words: &[&str]| {
            let mut cargo = Command::new("cargo");
            run(cargo.args(words).current_dir(tools::project()))
        };
        let kinds = ["-e", "normal,no-proc-macro", "--prefix", "none"];
        let tree = ["tree", "--locked", "-p", COMMAND, "-p", INSIDE, "--target"];
        let tree = cargo(&[&tree[..], &[&target], &kinds].concat())?;
        let metadata = ["metadata", "--format-version=1", "--locked"];
        let metadata = cargo(&[&metadata[..], &["--filter-platform", &target]].concat())?;
        Ok(Self::new(&tree, serde_json::from_str(&metadata)?))
    }

    /// Of lines such as "zstd-sys v2.1.2+zstd.1.5.7 (*)".
    pub fn new(tree: &str, metadata: Value) -> Self {
        let crates = tree.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
            Some((name.to_owned(), version.to_owned()))
        });
        Self {
            crates: crates.collect(),
            metadata,
        }
    }

    /// The packages, in cargo's order.
    pub fn packages(&self) -> impl Iterator<Item = &Value> {
        list(&self.metadata["packages"]).filter(|package| {
            let name = text(&package["name"]).to_owned();
            let version = text(&package["version"]).to_owned();
            self.crates.contains(&(name, version))
        })
    }

    /// Each package's dependencies; other packages among them.
    pub fn nodes(&self) -> impl Iterator<Item = &Value> {
        list(&self.metadata["resolve"]["nodes"])
    }
}

/// The elements of a list.
pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A text; empty where it is none.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
