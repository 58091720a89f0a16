//! Test programs, built by one call of cargo.

use anyhow::{Context, Result, ensure};
use ebb_harness::tools;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A test program that is built.
pub struct Program {
    pub path: PathBuf,
    /// The folder of its package.
    pub folder: PathBuf,
    /// The name of its target.
    pub name: String,
    /// Flag: it is a file of a folder `tests`, and no part of what it tests.
    pub is_apart: bool,
}

/// Builds the test programs that these words of cargo's name, and returns them in order.
///
/// # Errors
/// One does not build.
pub fn build(words: &[&str], variables: &[(&str, OsString)]) -> Result<Vec<Program>> {
    let output = Command::new("cargo")
        .arg("test")
        .args(words)
        .args(["--no-run", "--message-format", "json-render-diagnostics"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir(tools::project())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "cargo test {}: the tests do not build",
        words.join(" ")
    );
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut programs: Vec<_> = messages.lines().filter_map(Program::of).collect();
    programs.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(programs)
}

impl Program {
    /// The one that a message of cargo's tells of.
    fn of(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        let text = |value: &Value| value.as_str().map(String::from);
        let kind = &message["target"]["kind"][0];
        if message["profile"]["test"] != true || kind == "example" {
            return None;
        }
        let manifest = Path::new(message["manifest_path"].as_str()?);
        Some(Self {
            path: text(&message["executable"])?.into(),
            folder: manifest.parent()?.into(),
            name: text(&message["target"]["name"])?,
            is_apart: kind == "test",
        })
    }

    /// The name of its package's folder.
    pub fn package(&self) -> &str {
        let name = self.folder.file_name().and_then(OsStr::to_str);
        name.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_cargos_messages() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/a/crates/ebb/Cargo.toml",
            "target":{"kind":["test"],"name":"trees"},"profile":{"test":true},"executable":"/a/target/trees-1"}"#;
        let program = Program::of(message).unwrap();
        assert_eq!((program.package(), &*program.name), ("ebb", "trees"));
        assert!(program.is_apart);
        let built_beside = message.replace(r#""test":true"#, r#""test":false"#);
        assert!(Program::of(&built_beside).is_none());
        let example = message.replace(r#"["test"]"#, r#"["example"]"#);
        assert!(Program::of(&example).is_none());
        assert!(Program::of("a line of a build script").is_none());
    }
}
