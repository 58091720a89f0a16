//! The configuration file: refused with a message that names the keys, or read, and then each value stands in the text.
#![no_main]

#[path = "../../crates/ebb/src/defaults/config_file.rs"]
mod config_file;

libfuzzer_sys::fuzz_target!(|text: &str| {
    match config_file::parse(text) {
        Ok(values) => {
            let specs = values.swap.map_or_else(Vec::new, |specs| specs.into_list());
            let given = specs.into_iter().chain(values.memory).chain(values.pool);
            // What is written with escapes is shorter than its text.
            assert!(given.map(|value| value.len()).sum::<usize>() <= text.len());
        }
        Err(why) => assert!(why.contains("keys are memory, swap and pool"), "{why}"),
    }
});
