#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| warren_fuzz::roster::run(data));
