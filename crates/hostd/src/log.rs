//! Messages for the operator, on standard error.

use std::io::{self, Write};

/// Say something. A standard error that is closed is no reason to stop.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "seekway: {text}");
}
