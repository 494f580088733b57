//! `seekway-live noisy` with real daemons and clients: it prints its rows, ends, and
//! leaves nothing. What it measures is not looked at.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(600);

/// A run with a folder of its own for temporary files and the rows `disk`.
struct Lab {
    child: Child,
    folder: TempDir,
}

impl Lab {
    /// `None` where it cannot run.
    fn start(args: &[&str], change: impl FnOnce(&mut Command)) -> Option<Lab> {
        let lab = Path::new(env!("CARGO_BIN_EXE_seekway-live"));
        if !lab.with_file_name("seekway").is_file() {
            seekway_testing::skip("the program seekway beside seekway-live: cargo build");
            return None;
        }
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let mut command = Command::new(lab);
        command.args(["noisy", "--quick", "--format=json"]).args(args);
        command.arg("--work-dir").arg(folder.path()).env("TMPDIR", folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        change(&mut command);
        Some(Lab { child: command.spawn().expect("it starts"), folder })
    }

    /// Waits until it has written its images.
    fn wait_for_images(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let written = |dir: &PathBuf| dir.join("flood.img").exists();
        while !images_of(self.child.id()).iter().any(written) {
            assert!(self.child.try_wait().expect("alive").is_none(), "it ended");
            assert!(Instant::now() < deadline, "no images");
            sleep(Duration::from_millis(5));
        }
    }

    /// Its exit status, output and errors; nothing may be left of it.
    fn end(self) -> (Option<i32>, String, String) {
        let id = self.child.id();
        let output = self.child.wait_with_output().expect("it ends");
        assert_eq!(images_of(id), [] as [PathBuf; 0]);
        let left: Vec<_> = fs::read_dir(self.folder.path()).expect("its folder").collect();
        assert!(left.is_empty(), "{left:?}");
        let folder = self.folder.path().to_str().expect("UTF-8");
        // The daemon's process for each connection ends when it sees that the daemon has.
        let deadline = Instant::now() + PATIENCE;
        while let left = processes_with(folder)
            && !left.is_empty()
        {
            assert!(Instant::now() < deadline, "{left:?}");
            sleep(Duration::from_millis(5));
        }
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    }
}

/// What a run of this process has in memory.
fn images_of(id: u32) -> Vec<PathBuf> {
    let prefix = format!("seekway-live-{id}-");
    let entries = fs::read_dir("/dev/shm").expect("it is there").flatten();
    let own = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
    };
    entries.map(|entry| entry.path()).filter(own).collect()
}

/// Command lines in which `word` occurs.
fn processes_with(word: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("it is there").flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(word)).collect()
}

fn rows(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn rows_are_printed_and_nothing_is_left() {
    let args = ["--scenes=intel-x25m-g2/flood", "--servers=fairway", "--seconds=0.1"];
    let Some(lab) = Lab::start(&args, |_| {}) else { return };
    let (code, out, err) = lab.end();
    // 1 where the machine is slower than the drive, and says so in time.
    assert!(matches!(code, Some(0 | 1)), "{code:?} {err}");
    let rows = rows(&out);
    let servers: Vec<&str> = rows.iter().filter_map(|row| row["server"].as_str()).collect();
    assert_eq!(servers, ["noop", "fairway"], "{err}");
    for row in &rows {
        let known = ["met", "missed", "void"].map(Value::from);
        assert!(known.contains(&row["verdict"]), "{row}");
        let measured = ["quiet_iops", "flood_mib_s"].map(|key| row[key].as_f64());
        // A busy host may do nothing in a tenth of a second.
        assert!(measured.iter().all(|figure| figure.is_some_and(|f| f >= 0.0)), "{row}");
        assert!(row["simulated"]["quiet_iops"].as_f64().is_some_and(|iops| iops > 0.0));
    }
}

#[test]
fn a_missing_peer_is_a_void_row() {
    let args = ["--scenes=disk/stream", "--servers=qemu-storage-daemon", "--seconds=0.1"];
    let nowhere = |command: &mut Command| {
        command.env("PATH", "/nowhere");
    };
    let Some(lab) = Lab::start(&args, nowhere) else { return };
    let (code, out, err) = lab.end();
    assert_eq!(code, Some(0), "{err}");
    let rows = rows(&out);
    assert_eq!(rows.len(), 2, "{out}");
    let peer = &rows[1];
    assert_eq!(peer["verdict"], "void");
    assert_eq!(peer["server"], "qemu-storage-daemon");
    // The folder of the build may be in memory: then no row is of a disk.
    let why = peer["why"].as_str().expect("a reason");
    let known = ["is not installed", "is in memory", "the quiet VM alone"];
    assert!(known.iter().any(|part| why.contains(part)), "{why}");
}

#[test]
fn an_interrupted_run_ends_and_leaves_nothing() {
    let args = ["--scenes=intel-x25m-g2/flood", "--seconds=20"];
    let Some(mut lab) = Lab::start(&args, |_| {}) else { return };
    lab.wait_for_images();
    let interrupted = Instant::now();
    let kill = format!("kill -INT {}", lab.child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh").success());
    let (code, out, err) = lab.end();
    assert!(interrupted.elapsed() < PATIENCE, "it was not interrupted");
    assert_eq!((code, &*out), (Some(2), ""), "{err}");
    assert!(err.contains("interrupted"), "{err}");
}
