//! Traces that can be read only once: named pipes and the standard input.

use crate::names;

use names::{FIXTURES, fixture};
use seekway_workload::traces::{Record, TraceOptions, TraceReader, scannable};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn records(path: &Path) -> Vec<Record> {
    let reader = TraceReader::open(path, &TraceOptions::default()).unwrap();
    reader.map(Result::unwrap).collect()
}

/// A named pipe that somebody writes `bytes` into, a few at a time.
struct Pipe(PathBuf, #[allow(dead_code)] TempDir);

impl Pipe {
    fn with(name: &str, bytes: Vec<u8>) -> Pipe {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success(), "mkfifo {}", path.display());
        let to = path.clone();
        std::thread::spawn(move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(to).unwrap();
            for piece in bytes.chunks(37) {
                // The reader may have gone: it stops at an error or a limit.
                if pipe.write_all(piece).is_err() {
                    return;
                }
            }
        });
        Pipe(path, dir)
    }
}

#[test]
fn a_named_pipe_gives_what_the_file_gives() {
    for name in FIXTURES {
        let file = fixture(name);
        let pipe = Pipe::with(name, std::fs::read(&file).unwrap());
        assert!(scannable(&file) && !scannable(&pipe.0));
        assert_eq!(records(&pipe.0), records(&file), "{name}");
    }
}

const CHILD: &str = "SEEKWAY_TEST_READS_STDIN";

/// Does nothing, except in the process that `the_standard_input` starts.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        println!("{:?}", records(Path::new("-")));
    }
}

#[test]
fn the_standard_input() {
    for name in FIXTURES {
        let bytes = std::fs::read(fixture(name)).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "traces_streams::child", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let expected = format!("{:?}", records(&fixture(name)));
        assert!(text.contains(&expected), "{name}: {text}");
    }
}
