//! The program. All of it is in the library, so that fuzz targets can use its parsers.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    warren::main()
}
