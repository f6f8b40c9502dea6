#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| warren::fuzzing::clients_store(data));
