//! Traces that can be read only once: named pipes and the standard input.

use crate::names;

use names::{FIXTURES, fixture};
use seekway_core::units::{Instant, Sectors};
use seekway_workload::Source;
use seekway_workload::replay::{Pace, ReplayOptions, TraceSource};
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

#[test]
fn a_named_pipe_is_replayed_on_a_disk_of_given_size() {
    let bytes = std::fs::read(fixture("vscsi1.vscsi")).unwrap();
    let pipe = Pipe::with("replay", bytes.clone());
    let mut options = ReplayOptions {
        capacity: Some(Sectors::new(1 << 34)),
        pace: Pace::Outstanding { per_vm: 2 },
        ..ReplayOptions::default()
    };
    let mut source = TraceSource::open(&pipe.0, &options).unwrap();
    let (mut now, mut issued, mut out) = (Instant::ZERO, 0, Vec::new());
    while !source.finished() {
        source.poll(now, &mut out).unwrap();
        issued += out.len();
        now = now + seekway_core::units::Nanos::from_micros(1);
        out.drain(..).for_each(|issue| source.completed(now, issue.token));
    }
    assert_eq!(issued, records(&fixture("vscsi1.vscsi")).len());
    // Without a size there is no disk: said before anything is replayed.
    options.capacity = None;
    let pipe = Pipe::with("sizeless", bytes);
    let error = TraceSource::open(&pipe.0, &options).err().unwrap().to_string();
    assert!(error.ends_with("a stream cannot be scanned for the disk's size: give a capacity"));
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
