//! The program as a user runs it, and traces to run it on.
#![allow(dead_code)] // each test file uses its part

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Nothing here takes that long, unless it fails.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The three VMs of `make demo`: two streams, a stream beside random reads,
/// and random reads, as in the Pregather paper's figure 5.
pub const DEMO: &str = "compare --vm name=vm1,app=sysbench:mode=SR,app=sysbench:mode=SR \
    --vm name=vm2,app=sysbench:mode=SR,app=sysbench:mode=RR,requests=100000 \
    --vm name=vm3,app=sysbench:mode=RR,requests=100000,app=sysbench:mode=RR,requests=100000 \
    --device seagate-1tb-7200 --map packed:1283200000 --until 60s";

/// Result of a run of the program.
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn new(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("text on standard output"),
            err: String::from_utf8(output.stderr).expect("text on standard error"),
        }
    }

    /// Waits for the end.
    pub fn ended(child: Child) -> Ran {
        Ran::new(child.wait_with_output().expect("the program ends"))
    }

    /// The standard output of a run that did what it was asked.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }

    /// The message of a run that was asked something impossible: exit status 2,
    /// nothing on standard output, and every one of `parts` in the message.
    #[track_caller]
    pub fn refused(self, parts: &[&str]) {
        assert_eq!(self.code, Some(2), "{}\n{}", self.out, self.err);
        assert_eq!(self.out, "", "results although it failed");
        for part in parts {
            assert!(self.err.contains(part), "no {part:?} in {:?}", self.err);
        }
    }
}

/// The program with arguments, standard input closed, no terminal about.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seekway"));
    command.args(args).stdin(Stdio::null()).env_remove("COLUMNS").env_remove("NO_COLOR");
    // The notes of lost writes of the daemons here are not this computer's.
    command.env("STATE_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// The words of a command line without quotes, and more behind them.
pub fn line<'a>(line: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    line.split_whitespace().chain(more.iter().copied()).collect()
}

/// Run it to the end.
pub fn seekway(args: &[&str]) -> Ran {
    Ran::new(command(args).output().expect("the program starts"))
}

/// Start `command`, whose outputs are kept for who waits for it.
pub fn started(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Run it with `input` on its standard input.
pub fn seekway_with(input: &[u8], args: &[&str]) -> Ran {
    let mut command = command(args);
    command.stdin(Stdio::piped());
    let mut child = started(command);
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    // It may end before it has read all, as it does after a bad line.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let ran = Ran::ended(child);
    feeder.join().expect("no panic");
    ran
}

/// `compare` on one small trace of MQSim's format, `requests` long.
pub fn trace(requests: u64) -> String {
    let mut text = String::new();
    for n in 0..requests {
        let (time, place) = (n * 4_000_000, n * n * 7_919 % 10_000_000 * 8);
        let _ = writeln!(text, "{time} 0 {place} 8 {}", n % 3 / 2);
    }
    text
}

/// A small file system, until it is dropped.
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// At a folder that it makes. `None`, and the test is skipped, where we may not mount it.
    pub fn mount(at: PathBuf, bytes: u64) -> Option<Tmpfs> {
        std::fs::create_dir(&at).expect("our folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(&at);
        let mounted = mount.stderr(Stdio::null()).status().is_ok_and(|s| s.success());
        if !mounted {
            seekway_testing::skip("the right to mount a tmpfs (root)");
        }
        mounted.then_some(Tmpfs(at))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy".as_ref(), self.0.as_os_str()]).status();
    }
}

/// A folder that goes with the test, and a file in it.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    /// The path as an argument.
    pub fn arg(&self, name: &str) -> String {
        self.path(name).to_str().expect("a plain path").to_string()
    }
    pub fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).expect("room for a fixture");
        self.arg(name)
    }
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("our folder");
        let name = |e: std::io::Result<std::fs::DirEntry>| {
            e.expect("an entry").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

/// The project's root, two folders above this crate.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Trace fixtures of the workload crate.
pub fn fixture(name: &str) -> String {
    root().join("crates/workload/tests/fixtures").join(name).display().to_string()
}

/// JSON, or a failure that shows the text.
#[track_caller]
pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The number of a key.
#[track_caller]
pub fn number(value: &serde_json::Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The runs of a comparison without the real time that they took, the one figure that differs.
#[track_caller]
pub fn timeless_runs(text: &str) -> Vec<serde_json::Value> {
    let mut runs = json(text)["runs"].as_array_mut().map(std::mem::take).expect("a list");
    runs.iter_mut().for_each(|run| drop(run.as_object_mut().expect("a run").remove("wall_s")));
    runs
}

/// The names of all policies.
pub fn policies() -> Vec<String> {
    listed("policies").into_iter().map(|(name, _)| name).collect()
}

/// The names and summaries that `seekway list KIND` prints.
pub fn listed(kind: &str) -> Vec<(String, String)> {
    let listed = json(&seekway(&["list", kind, "--format", "json"]).ok());
    let text = |entry: &serde_json::Value, key| entry[key].as_str().expect("a text").to_string();
    let entries = listed.as_array().expect("a list").iter();
    entries.map(|entry| (text(entry, "name"), text(entry, "summary"))).collect()
}
