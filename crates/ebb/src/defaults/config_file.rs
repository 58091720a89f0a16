//! The text of the configuration file: [`parse`].
//!
//! It comes from outside, so a fuzz target has this file too (`fuzz/fuzz_targets/config_file.rs`).

use serde::Deserialize;

/// Values of the file.
#[derive(Deserialize, Default, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Values {
    /// The budget.
    pub memory: Option<String>,
    /// Swap devices.
    pub swap: Option<Specs>,
    /// The compression of the pool.
    pub pool: Option<String>,
}

/// One SPEC or several.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(untagged)]
pub enum Specs {
    /// One, as a text.
    One(String),
    /// A list.
    Several(Vec<String>),
}

impl Specs {
    /// All of them, in order.
    pub fn into_list(self) -> Vec<String> {
        match self {
            Specs::One(spec) => vec![spec],
            Specs::Several(specs) => specs,
        }
    }
}

/// Reads the file's text.
///
/// # Errors
/// The text is no TOML, or a key or a value is unknown. The message has line and column, and names the keys.
pub fn parse(text: &str) -> Result<Values, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let lines = error.to_string().replace('\n', "\n     ");
        let lines = lines.trim_end_matches(' ');
        format!("{lines}     keys are memory, swap and pool, and values stand in quotes")
    })
}
