//! What commands read from a supervisor that may be of another version or no supervisor at all.
#![no_main]

use ebb_stores::human;
use ebb_tree::{DeviceShown, LimitsShown};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(devices) = serde_json::from_str::<Vec<DeviceShown>>(text) {
        for device in &devices {
            human(device.size_bytes);
            human(device.used_bytes);
        }
        let again = serde_json::to_string(&devices).unwrap();
        assert_eq!(
            serde_json::from_str::<Vec<DeviceShown>>(&again).unwrap(),
            devices
        );
    }
    if let Ok(limits) = serde_json::from_str::<LimitsShown>(text) {
        human(limits.memory_bytes);
        let again = serde_json::to_string(&limits).unwrap();
        assert_eq!(serde_json::from_str::<LimitsShown>(&again).unwrap(), limits);
    }
});
