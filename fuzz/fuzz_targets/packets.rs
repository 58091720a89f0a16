//! Packets of the protocol, as each side reads them from the other.
#![no_main]

libfuzzer_sys::fuzz_target!(|packet: &[u8]| ebb_tree::fuzzing::packets(packet));
