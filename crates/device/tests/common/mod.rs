//! The measured drives, where they are.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)] // a test may read files and print

/// The text of a trace below `traces/drives`, or `None` where the traces are absent.
pub fn trace(file: &str) -> Option<String> {
    let path = seekway_testing::shared(&format!("traces/drives/{file}"))?;
    Some(std::fs::read_to_string(path).expect("a trace is text"))
}
