//! There is one host path: engines drive the stack, and nobody but it drives the dispatcher
//! and the host cache.

use std::fs;
use std::path::{Path, PathBuf};

/// Sources and tests of a folder, of Rust.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// Does this line name one of them? As a whole word, and not in a comment.
fn names(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or("");
    let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| word == "Dispatcher" || word == "HostCache")
}

#[test]
fn nobody_but_the_stack_knows_the_dispatcher_and_the_host_cache() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    sources(crates, &mut files);
    // Policies' own tests drive them through the dispatcher.
    let own =
        |file: &PathBuf| ["stack", "policy"].iter().any(|own| file.starts_with(crates.join(own)));
    assert!(files.iter().filter(|file| !own(file)).count() > 100, "{} files", files.len());
    assert!(files.iter().any(|f| own(f) && fs::read_to_string(f).unwrap().lines().any(names)));
    for file in files.iter().filter(|file| !own(file)) {
        for (n, line) in fs::read_to_string(file).unwrap().lines().enumerate() {
            assert!(!names(line), "{}:{}: {line}", file.display(), n + 1);
        }
    }
}
