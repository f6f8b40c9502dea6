//! The program. All of its code is in the library, so that fuzz targets can use the parsers.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    warren::main()
}
