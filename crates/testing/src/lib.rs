//! Support for all crates' tests. No program depends on it.
//!
//! A test that needs something of the computer (root, a loop device, a kernel feature) gets it
//! itself. If it cannot, it calls [`skip`] with what is missing and returns. libtest knows no
//! skip at run time and counts such a test as passed, so `skip` also appends a line to the file
//! that the environment variable [`SKIPPED`] names. `make test` sets the variable and prints the
//! lines and their number at the end.

pub mod disk;
mod schema;

pub use schema::{OneOrMany, schema, schema_of_input};

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Child;

/// The environment variable with the absolute path of the file that lists skipped tests.
pub const SKIPPED: &str = "SEEKWAY_SKIPPED";

/// Records that the current test, or a part of it, does not run because `missing` is missing.
/// Call it from the test's own thread, whose name is the test's.
///
/// # Panics
/// The file cannot be written: then the test would be counted as passed.
pub fn skip(missing: impl Display) {
    let missing = missing.to_string();
    eprintln!("skipped: {missing}");
    let Some(file) = env::var_os(SKIPPED) else { return };
    let thread = std::thread::current();
    let exe = env::current_exe().unwrap_or_default();
    let line = line(&exe, thread.name().unwrap_or("?"), &missing);
    append(Path::new(&file), &line).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}

/// A number from the environment, of those who run a test for longer or once more.
///
/// # Panics
/// It is no number.
pub fn setting(name: &str, default: u64) -> u64 {
    let Ok(text) = env::var(name) else { return default };
    text.parse().unwrap_or_else(|e| panic!("{name}={text}: expected a number: {e}"))
}

/// Test programs run side by side: one write appends one line.
fn append(file: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

/// `PROGRAM TEST: MISSING`, one line. Cargo adds a hash to a test program's name.
fn line(exe: &Path, test: &str, missing: &str) -> String {
    let stem = exe.file_stem().unwrap_or_default().to_string_lossy();
    let program = stem.rsplit_once('-').map_or(&*stem, |(program, _)| program);
    let words: Vec<&str> = missing.split_whitespace().collect();
    format!("{program} {test}: {}\n", words.join(" "))
}

/// Sends a signal, such as `libc::SIGTERM`, to a child that has not been waited for. A minimal
/// Debian has no program `kill`.
///
/// # Panics
/// The kernel refuses.
pub fn signal(child: &Child, signal: i32) {
    // SAFETY: kill takes no pointers, and the number is still the child's.
    let sent = unsafe { libc::kill(child.id().cast_signed(), signal) };
    assert_eq!(sent, 0, "kill: {}", io::Error::last_os_error());
}

/// The path of a file in the folder of traces that are kept beside the repository, or where the
/// environment variable `SEEKWAY_SHARED` says. Skips if the file does not exist.
pub fn shared(file: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let path = env::var_os("SEEKWAY_SHARED").map_or(beside, PathBuf::from).join(file);
    let found = path.exists();
    if !found {
        skip(format_args!("no trace {} (set SEEKWAY_SHARED)", path.display()));
    }
    found.then_some(path)
}

/// Takes all capabilities from this thread: those by which root opens any file, and locks memory past
/// the limit.
///
/// # Panics
/// The kernel refuses it.
pub fn drop_capabilities() {
    // capset(2), version 3: no effective, permitted or inheritable ones.
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    // SAFETY: both point to what the call reads, and they outlive it.
    let dropped = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(dropped, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_program_the_test_and_what_is_missing() {
        let exe = Path::new("/target/debug/deps/images-0123456789abcdef");
        let said = line(exe, "maps::holes", "no loop device:\n  EPERM\n");
        assert_eq!(said, "images maps::holes: no loop device: EPERM\n");
    }

    #[test]
    fn lines_are_added_to_those_of_other_programs() {
        let file = env::temp_dir().join(format!("seekway-skipped-{}", std::process::id()));
        let done = append(&file, "a\n").and_then(|()| append(&file, "b\n"));
        let lines = std::fs::read_to_string(&file);
        // It may be absent, of which the next line tells.
        let _ = std::fs::remove_file(&file);
        assert_eq!((done.is_ok(), lines.expect("the file")), (true, "a\nb\n".to_owned()));
        assert!(append(Path::new("/absent/file"), "a\n").is_err());
    }
}
