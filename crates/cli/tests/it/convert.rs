//! `convert`: traces as CSV, packed or not; and what is said of Parquet, which the program neither
//! reads nor writes.

use crate::common::{Folder, fixture, seekway, seekway_with, timeless_runs, trace};
use std::fs;

fn figures(trace: &str) -> Vec<serde_json::Value> {
    let args = ["compare", "--trace", trace, "--policies", "noop,cfq", "--format", "json"];
    timeless_runs(&seekway(&args).ok())
}

#[test]
fn a_converted_trace_gives_the_same_figures() {
    let folder = Folder::new();
    let text = trace(300);
    let (before, after) = (folder.file("a.trace", &text), folder.arg("a.csv.gz"));
    assert_eq!(seekway(&["convert", &before, &after]).ok(), "");
    assert_eq!(figures(&before), figures(&after));
    // From the standard input, and a converted one from there.
    let (piped, again) = (folder.arg("piped.csv"), folder.arg("again.csv"));
    seekway_with(text.as_bytes(), &["convert", "-", &piped]).ok();
    let bytes = fs::read(&after).expect("written");
    seekway_with(&bytes, &["convert", "-", &again]).ok();
    assert_eq!(fs::read(&piped).expect("written"), fs::read(&again).expect("written"));
    assert_eq!(folder.names(), ["a.csv.gz", "a.trace", "again.csv", "piped.csv"]);
}

#[test]
fn what_fails_leaves_nothing() {
    let folder = Folder::new();
    let (good, out) = (folder.file("a.trace", &trace(10)), folder.arg("out.csv"));
    let damaged = folder.file("b.trace", &format!("{}broken\n", trace(300)));
    seekway(&["convert", &damaged, &out]).refused(&["b.trace:301:"]);
    seekway(&["convert", &good, &good]).refused(&["is the trace itself"]);
    let link = folder.path("link.csv");
    std::os::unix::fs::symlink(&good, &link).expect("a link");
    seekway(&["convert", &good, &folder.arg("link.csv")]).refused(&["is the trace itself"]);
    seekway(&["convert", &good, &folder.arg("absent/out.csv")]).refused(&["folder"]);
    seekway(&["convert", &good, "/dev/full"]).refused(&["/dev/full", "No space left"]);
    assert_eq!(folder.names(), ["a.trace", "b.trace", "link.csv"]);
    assert_eq!(fs::read_to_string(&good).expect("still there"), trace(10));
}

#[test]
fn a_damaged_file_is_an_error_that_names_it() {
    let folder = Folder::new();
    let whole = folder.arg("whole.csv.gz");
    seekway(&["convert", &fixture("kernel-loop.blktrace"), &whole]).ok();
    let bytes = fs::read(&whole).expect("written");
    let cut = folder.arg("cut.csv.gz");
    fs::write(&cut, &bytes[..bytes.len() - 3]).expect("room");
    seekway(&["compare", "--trace", &cut]).refused(&["cut.csv.gz: gzip data truncated"]);
}

#[test]
fn parquet_is_refused_with_what_converts_it() {
    let folder = Folder::new();
    let good = folder.file("a.trace", &trace(10));
    let to = folder.arg("a.parquet");
    let line = format!("seekway.write_trace(seekway.read_trace('{good}'), '{to}')\"");
    seekway(&["convert", &good, &to]).refused(&["python3 -c \"import seekway;", &line]);
    let from = folder.file("b.parquet", "PAR1\u{15}\u{4}PAR1");
    let line =
        format!("python3 -c \"import seekway; seekway.write_trace('{from}', '{from}.csv.gz')\"");
    for args in [&["inspect", &from][..], &["convert", &from, &to], &["compare", "--trace", &from]]
    {
        let said = if args[0] == "convert" { "python3" } else { &line };
        seekway(args).refused(&[said]);
    }
    seekway(&["compare", "--trace", &good, "--format", "parquet"]).refused(&["possible values"]);
    assert_eq!(folder.names(), ["a.trace", "b.parquet"]);
}
