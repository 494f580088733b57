//! `seekway load`: a generated load on a real file.

use crate::common::{Folder, json, seekway};

const READS: &str = "image=16MiB,app=fio:rw=randread,bs=4k,size=1MiB,direct=true,iodepth=4";

/// A sparse file on a file system that knows O_DIRECT.
fn disk(folder: &Folder) -> String {
    let path = folder.path("disk.img");
    std::fs::File::create(&path).expect("a file").set_len(16 << 20).expect("a sparse file");
    folder.arg("disk.img")
}

#[test]
fn a_load_is_run_on_a_file_and_measured() {
    let folder = Folder::new();
    let out = seekway(&["load", "--vm", READS, "--on", &disk(&folder), "--format", "json"]);
    let ran = json(&out.ok());
    assert_eq!(
        (&ran["requests"], &ran["reads"], &ran["bytes"]),
        (&256.into(), &256.into(), &1048576.into())
    );
    assert_eq!(ran["finished"], true);
    for key in ["mean", "stdev", "p50", "p99", "p999", "max"] {
        assert!(ran["response_ms"][key].as_f64().is_some_and(|ms| ms > 0.0), "{key}: {ran}");
    }
}

#[test]
fn a_window_ends_it_and_settling_is_not_counted() {
    let folder = Folder::new();
    let endless = READS.replace("iodepth=4", "io_size=1TiB,thinktime=1ms");
    let args = ["load", "--vm", &endless, "--on", &disk(&folder)];
    let timed = ["--settle", "100ms", "--for", "1s", "--format", "json"];
    let ran = json(&seekway(&[&args[..], &timed[..]].concat()).ok());
    assert_eq!(ran["finished"], false);
    // At most one a millisecond, and none of those before the window.
    let seconds = ran["seconds"].as_f64().unwrap();
    assert!(seconds >= 1.0, "{ran}");
    let most = (seconds * 1000.0) as u64 + 1;
    assert!(ran["requests"].as_u64().unwrap() <= most, "{ran}");
}

#[test]
fn nothing_is_written_unless_it_is_allowed() {
    let folder = Folder::new();
    let disk = disk(&folder);
    let writes = READS.replace("randread", "randwrite");
    let args = ["load", "--vm", &writes, "--on", &disk];
    seekway(&args).refused(&["disk.img", "writing was not allowed"]);
    assert!(std::fs::read(&disk).unwrap().iter().all(|&b| b == 0));
    seekway(&[&args[..], &["--write"]].concat()).ok();
    assert!(std::fs::read(&disk).unwrap().iter().any(|&b| b != 0));
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = Folder::new();
    let disk = disk(&folder);
    let run = |vm: &str, on: &str, more: &[&str]| {
        seekway(&[&["load", "--vm", vm, "--on", on], more].concat())
    };
    run(READS, &folder.arg("none.img"), &[]).refused(&["none.img", "No such file"]);
    run("image=1GiB,app=fio:size=1MiB", &disk, &[]).refused(&["smaller image="]);
    run("app=flying", &disk, &[]).refused(&["no generator 'flying'"]);
    run("image=1MiB,app=uniform", &disk, &[]).refused(&["does not end by itself", "--for TIME"]);
    run(READS, &disk, &["--for", "soon"]).refused(&["--for soon", "such as 500ms"]);
    run(READS, &disk, &["--threads", "0"]).refused(&["--threads"]);
}
