//! The measured drives, where they are.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)] // a test may read files and print

use std::path::PathBuf;

/// The text of a trace below `traces/drives`, or `None` and a message.
pub fn trace(file: &str) -> Option<String> {
    let shared = std::env::var_os("SEEKWAY_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let path = shared.join("traces/drives").join(file);
    let text = std::fs::read_to_string(&path).ok();
    if text.is_none() {
        eprintln!("skipped: no trace at {} (set SEEKWAY_SHARED)", path.display());
    }
    text
}
