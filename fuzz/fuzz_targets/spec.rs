//! A SPEC and a SIZE as users write them: refused with a message, or read, and shown as what reads as the same.
#![no_main]

use ebb_stores::{Faults, Size, SwapSpec};

libfuzzer_sys::fuzz_target!(|text: &str| {
    match text.parse::<SwapSpec>() {
        Ok(spec) => assert_eq!(
            spec.to_string().parse::<SwapSpec>().as_ref(),
            Ok(&spec),
            "{spec}"
        ),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match text.parse::<Size>() {
        Ok(size) => {
            assert_eq!(
                size.to_string().parse::<Size>().as_ref(),
                Ok(&size),
                "{size}"
            );
            size.of(1 << 40);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let _ = text.parse::<Faults>();
});
