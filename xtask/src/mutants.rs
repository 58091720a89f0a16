//! `cargo xtask mutants`: the defects of `xtask/mutants.toml`, planted one at a time in a copy of the tree. Each has to be
//! found by the simulator, or by a named test where the simulator has no such part.
//!
//! A seed that fails without the defect, too, is not what finds it: the search goes on after it.

use crate::simulate::{build, seconds};
use crate::table;
use anyhow::{Context, Result, bail, ensure};
use ebb_harness::tools;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Plant defects, and see that each is found
#[derive(clap::Args)]
pub struct Options {
    /// Only defects whose names hold this
    #[arg(value_name = "TEXT")]
    only: Option<String>,
    /// For how long the simulator looks for each, in minutes of a processor
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
}

#[derive(Deserialize)]
struct Mutants {
    mutant: Vec<Mutant>,
}

/// A defect.
#[derive(Deserialize)]
struct Mutant {
    name: String,
    #[serde(flatten)]
    edit: Edit,
    /// More of it, where a second safety would hide the first edit.
    #[serde(default)]
    also: Vec<Edit>,
    /// A test that finds it, as `cargo test` takes it; none: the simulator does.
    test: Option<Vec<String>>,
    /// Flag: the test is a loom model.
    #[serde(default)]
    loom: bool,
}

/// A place where it is planted.
#[derive(Deserialize)]
struct Edit {
    file: String,
    find: String,
    plant: String,
}

impl Mutant {
    fn edits(&self) -> impl Iterator<Item = &Edit> {
        std::iter::once(&self.edit).chain(&self.also)
    }
}

/// How a defect was found.
struct Found {
    net: &'static str,
    after: Duration,
    why: String,
}

/// Where defects are planted.
pub struct Field {
    project: PathBuf,
    /// A copy of the project's sources.
    tree: PathBuf,
    target: PathBuf,
    /// The simulator without a defect.
    sound: PathBuf,
    minutes: f64,
}

/// Plants each defect; true if all were found.
///
/// # Errors
/// A defect cannot be planted, or does not build.
pub fn mutants(options: &Options) -> Result<bool> {
    let project = tools::project();
    let list = fs::read_to_string(project.join("xtask/mutants.toml"))?;
    let list: Mutants = toml::from_str(&list)?;
    let field = Field::new(project, options.minutes)?;
    let wanted = |mutant: &&Mutant| {
        let text = options.only.as_ref();
        text.is_none_or(|text| mutant.name.contains(text))
    };
    let (mut rows, mut good) = (Vec::new(), true);
    for mutant in list.mutant.iter().filter(wanted) {
        let found = field.plant(mutant).with_context(|| mutant.name.clone())?;
        good &= found.is_some();
        let row = match found {
            Some(Found { net, after, why }) => {
                let after = format!("{:.0} s", after.as_secs_f64());
                vec![mutant.name.clone(), after, net.to_owned(), why]
            }
            None => vec![
                mutant.name.clone(),
                "not found".into(),
                String::new(),
                String::new(),
            ],
        };
        eprintln!("{}", row.join(" | "));
        rows.push(row);
    }
    ensure!(!rows.is_empty(), "no defect of that name");
    let heads = ["defect", "found after", "by", "as"];
    print!("{}", table::markdown(&heads, &rows));
    Ok(good)
}

impl Field {
    /// A copy of the project, in which the simulator looks for each defect for so many minutes of a processor.
    pub fn new(project: PathBuf, minutes: f64) -> Result<Self> {
        let top = project.join("target/mutants");
        let (tree, target) = (top.join("tree"), top.join("target"));
        for part in ["crates", "xtask"] {
            copy_tree(&project.join(part), &tree.join(part))?;
        }
        for file in ["Cargo.toml", "Cargo.lock"] {
            copy_file(&project.join(file), &tree.join(file))?;
        }
        let built = build(&tree, &target, "dev", false)?;
        let built = built.context("the simulator does not build")?;
        let sound = top.join("ebb-sim");
        fs::copy(built, &sound)?;
        Ok(Self {
            project,
            tree,
            target,
            sound,
            minutes,
        })
    }

    /// Plants a defect and looks for it; none: it was not found.
    fn plant(&self, mutant: &Mutant) -> Result<Option<Found>> {
        for edit in mutant.edits() {
            let file = self.tree.join(&edit.file);
            let text = fs::read_to_string(&file)?;
            let places = text.matches(&edit.find).count();
            ensure!(
                places == 1,
                "{} holds what is to be replaced {places} times",
                edit.file
            );
            fs::write(file, text.replace(&edit.find, &edit.plant))?;
        }
        let found = match &mutant.test {
            Some(test) => self.test(test, mutant.loom),
            None => match build(&self.tree, &self.target, "dev", true)? {
                Some(simulator) => self.simulate(&simulator),
                None => bail!("it does not build"),
            },
        };
        for edit in mutant.edits() {
            copy_file(&self.project.join(&edit.file), &self.tree.join(&edit.file))?;
        }
        found
    }

    /// Whether the simulator finds what a patch changes in a file; one with which it does not build is found.
    pub fn finds(&self, file: &str, patch: &Path) -> Result<bool> {
        let mut tool = Command::new("patch");
        tool.args(["--silent", "--forward", file, "--input"]);
        tool.arg(patch).current_dir(&self.tree);
        ensure!(tool.status()?.success(), "{}", patch.display());
        let found = match build(&self.tree, &self.target, "dev", true)? {
            Some(simulator) => self.simulate(&simulator)?.is_some(),
            None => true,
        };
        copy_file(&self.project.join(file), &self.tree.join(file))?;
        Ok(found)
    }

    fn simulate(&self, simulator: &Path) -> Result<Option<Found>> {
        let (mut from, mut spent) = (1, 0.0);
        while spent < self.minutes * 60.0 {
            let left = self.minutes - spent / 60.0;
            let output = Command::new(simulator)
                .args(["--quick", "--swarm", "--seconds", &seconds(left)])
                .args(["--from", &from.to_string()])
                .stderr(Stdio::null())
                .output()?;
            if output.status.success() {
                break;
            }
            let said = String::from_utf8_lossy(&output.stdout);
            let failure = Failure::read(&said).with_context(|| said.clone().into_owned())?;
            spent += failure.seconds;
            if self.is_good_without(failure.seed)? {
                return Ok(Some(Found {
                    net: "simulator",
                    after: Duration::from_secs_f64(spent),
                    why: failure.why.chars().take(110).collect(),
                }));
            }
            from = failure.seed + 1;
        }
        Ok(None)
    }

    /// Whether nothing fails in the run of a seed without a defect.
    fn is_good_without(&self, seed: u64) -> Result<bool> {
        let status = Command::new(&self.sound)
            .args(["--quick", "--swarm", "--seed", &seed.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        Ok(status.success())
    }

    fn test(&self, test: &[String], loom: bool) -> Result<Option<Found>> {
        let cargo = |last: &[&str]| {
            // A defect may be that something never ends.
            let mut cargo = Command::new("timeout");
            cargo.args(["--kill-after=5", "900", "cargo", "test", "--quiet"]);
            cargo.args(test).args(last);
            cargo.current_dir(&self.tree).stdin(Stdio::null());
            match loom {
                true => cargo
                    .args(["--release", "--config", "build.rustflags=['--cfg','loom']"])
                    .env("CARGO_TARGET_DIR", self.target.join("loom")),
                false => cargo.env("CARGO_TARGET_DIR", &self.target),
            };
            cargo.output()
        };
        let built = cargo(&["--no-run"])?;
        ensure!(built.status.success(), "it does not build");
        let begin = Instant::now();
        let output = cargo(&[])?;
        if output.status.success() {
            return Ok(None);
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let failed = said.lines().find_map(|line| line.strip_prefix("---- "));
        let name = failed.map_or("it ended", |line| line.trim_end_matches(" stdout ----"));
        Ok(Some(Found {
            net: if loom { "loom" } else { "test" },
            after: begin.elapsed(),
            why: name.to_owned(),
        }))
    }
}

/// A seed that fails, as the simulator tells of it.
struct Failure<'a> {
    seed: u64,
    /// Seconds of a processor until then.
    seconds: f64,
    why: &'a str,
}

impl<'a> Failure<'a> {
    fn read(said: &'a str) -> Option<Self> {
        let (_, rest) = said.split_once(" runs, ")?;
        let (seconds, rest) = rest.split_once(" s of a processor\nseed ")?;
        let (seed, why) = rest.split_once(" fails: ")?;
        Some(Self {
            seed: seed.parse().ok()?,
            seconds: seconds.parse().ok()?,
            why: why.lines().next().unwrap_or_default(),
        })
    }
}

/// Copies what differs. A file that is the same stays as it is, and nothing of it is built again; one that a run that was
/// ended had changed does not.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (from, to) = {
            let entry = entry?;
            (entry.path(), to.join(entry.file_name()))
        };
        match from.is_dir() {
            true => copy_tree(&from, &to)?,
            false => copy_file(&from, &to)?,
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let content = fs::read(from)?;
    if fs::read(to).ok().as_ref() != Some(&content) {
        fs::write(to, content)?;
    }
    Ok(())
}
