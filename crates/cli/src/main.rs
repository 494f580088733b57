//! The `seekway` program. Its code is the library `seekway_cli`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    seekway_cli::main()
}
