//! The configuration file: refused, or read, and then its values are no longer than the text.
#![no_main]

#[path = "../../crates/ebb/src/defaults/config_file.rs"]
mod config_file;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(values) = config_file::parse(text) else {
        return;
    };
    let specs = values.swap.map_or_else(Vec::new, config_file::Specs::into_list);
    let given = specs.into_iter().chain(values.memory).chain(values.pool);
    // Escapes are longer than what they stand for.
    assert!(given.map(|value| value.len()).sum::<usize>() <= text.len());
});
