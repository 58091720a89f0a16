//! The one definition of the command line.

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde::de::DeserializeOwned;
use std::path::PathBuf;

/// Prints one of the experiments of Ebbtide's engine as a table.
#[derive(Parser)]
#[command(name = "ebb-lab", version, max_term_width = 100)]
pub struct Options {
    /// Which experiment; without it, the list of them
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// One JSON object per row on stdout instead of the table
    #[arg(long)]
    pub json: bool,
    /// Other parameters than the published ones, such as '{"rounds": 40}'; an unknown one lists those there are
    #[arg(long = "with", value_name = "JSON")]
    pub parameters: Option<String>,
    /// Also draw the result into FILE (SVG)
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// mthp, shrinker: drive the real pager, under an `ebb run` of its own; shrinker: also the
    /// kernel's swap, where root may turn it on
    #[arg(long)]
    pub real: bool,
    /// --real: be the program that is paged, in this mode
    #[arg(long, hide = true, value_name = "MODE", allow_hyphen_values = true)]
    pub work: Option<String>,
    /// mthp: only this allocator: ebb, ebb-large-in, ebb-compact, legacy, free-only
    #[arg(long, value_name = "NAME")]
    pub allocator: Option<String>,
    /// corpus: the pages of this process
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// corpus: the pages in FILE, one after the other; reclaim: the record in FILE, as EBB_RECORD=DIRECTORY makes
    /// one of each process that `ebb run` pages
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    pub dump: Option<PathBuf>,
    /// reclaim: the budget in which COMMAND is recorded, a quarter of the memory that it needs
    #[arg(long, value_name = "SIZE", requires = "command")]
    pub memory: Option<String>,
    /// corpus: run this, and take its pages near its peak; reclaim: run this, and record its touches
    #[arg(value_name = "COMMAND", last = true, conflicts_with_all = ["pid", "dump"])]
    pub command: Vec<String>,
}

/// Experiments whose parameters are options of this command.
const WITH_OPTIONS: [&str; 3] = ["mthp", "corpus", "reclaim"];

impl Options {
    /// The parameters of an experiment: the published ones, but for those that are given.
    ///
    /// # Errors
    /// There are none of that name, or of another type.
    pub fn parameters<T: Default + DeserializeOwned>(&self) -> Result<T> {
        match &self.parameters {
            None => Ok(T::default()),
            Some(json) => serde_json::from_str(json).with_context(|| format!("--with {json}")),
        }
    }

    /// Refuses an option that the experiment of this name does not take.
    ///
    /// # Errors
    /// The option, and the experiments that it is for.
    pub fn check(&self, name: &str) -> Result<()> {
        if self.parameters.is_some() && (WITH_OPTIONS.contains(&name) || self.real) {
            bail!("--with is not for mthp, corpus, reclaim and --real, which have options");
        }
        if self.allocator.is_some() && name != "mthp" {
            bail!("--allocator is an option of the experiment mthp alone");
        }
        if self.pid.is_some() && name != "corpus" {
            bail!("--pid is an option of the experiment corpus alone");
        }
        if self.memory.is_some() && name != "reclaim" {
            bail!("--memory is an option of the experiment reclaim alone");
        }
        let takes_program = name == "corpus" || name == "reclaim";
        if (self.dump.is_some() || !self.command.is_empty()) && !takes_program {
            bail!("--dump and a command are for the experiments corpus and reclaim alone");
        }
        if self.real && name != "mthp" && name != "shrinker" {
            bail!("--real is an option of the experiments mthp and shrinker alone");
        }
        if self.work.is_some() && !["mthp", "shrinker", "vswap"].contains(&name) {
            bail!("--work is for programs that experiments start");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Options::command().debug_assert();
    }
}
