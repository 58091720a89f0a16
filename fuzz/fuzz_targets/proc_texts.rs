//! Texts of `/proc`, in which names of processes and paths of files are others'.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/ebb/src/available.rs"]
mod available;
#[allow(dead_code)]
#[path = "../../crates/ebb/src/cgroups.rs"]
mod cgroups;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    ebb_sys::proc::fuzzing::texts(text);
    ebb_stores::fuzzing::swaps(text);
    available::fuzzing(text);
});
