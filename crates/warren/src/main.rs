//! The program. All of it is in the library, so that a fuzz target can have its parsers.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    warren::main()
}
