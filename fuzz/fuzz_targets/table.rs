//! The shared table of a tree, in which another member has written what it likes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ebb_tree::fuzzing::table(input));
