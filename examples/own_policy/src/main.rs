//! A `seekway` that knows one policy more.

use std::process::ExitCode;

fn main() -> ExitCode {
    seekway_cli::main_with(&[own_policy::ENTRY])
}
