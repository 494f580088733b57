//! The README's examples of formats, and every fixture and sample: each is told as one format.

use crate::names;

use names::{FIXTURES, fixture};
use seekway_workload::traces::{Format, TraceOptions, TraceReader, scan};
use std::io::Cursor;
use std::path::Path;

/// Name and example of each row of the README's table; no example for a binary format.
fn examples() -> Vec<(String, Option<String>)> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, section) = readme.split_once("### Formats of traces").expect("the section");
    let rows =
        section.lines().skip_while(|l| !l.starts_with("| `")).take_while(|l| l.starts_with('|'));
    let row = |line: &str| {
        let (name, example) = line.strip_prefix("| `")?.split_once("` | ")?;
        let code = example.split('`').skip(1).step_by(2).collect::<Vec<_>>().join("\n");
        Some((name.to_string(), (!example.starts_with("binary: ")).then_some(code)))
    };
    rows.map(|line| row(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

#[test]
fn the_readme_has_an_example_of_each_format_that_is_read() {
    let examples = examples();
    let names: Vec<_> = examples.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, Format::all().map(Format::name).collect::<Vec<_>>());
    for (name, example) in examples {
        let Some(text) = example else { continue };
        let options = TraceOptions::default();
        let input = Box::new(Cursor::new(text.clone().into_bytes()));
        let mut reader = TraceReader::from_read("README", input, &options)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(reader.format().name(), name);
        let read: Result<Vec<_>, _> = reader.by_ref().collect();
        let read = read.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(read.len(), 1, "{name}: {text}");
    }
}

/// The name of a file's format, or its refusal.
fn told(path: &Path) -> Result<&'static str, String> {
    let reader = TraceReader::open(path, &TraceOptions::default());
    reader.map(|reader| reader.format().name()).map_err(|e| e.to_string())
}

#[test]
fn each_fixture_is_told_as_the_format_that_it_is() {
    let formats = [
        ("vscsi1.vscsi", "vscsi"),
        ("vscsi2.vscsi", "vscsi"),
        ("fio2.log", "fio"),
        ("fio3.log", "fio"),
        ("trace-cmd.txt", "perf"),
        ("iosnoop.txt", "biosnoop"),
        ("fio-latency.log", "fio-log"),
        ("fio2-latency.log", "fio-log"),
        ("own.csv", "csv"),
        ("own-frame.csv", "csv"),
        ("own-tabs.tsv", "csv"),
        ("kernel-loop.blktrace", "blktrace"),
    ];
    for name in FIXTURES {
        let stem = name.split('.').next().unwrap_or(name);
        let format = formats.iter().find(|(file, _)| *file == name).map_or(stem, |(_, of)| of);
        assert_eq!(told(&fixture(name)).as_deref(), Ok(format), "{name}");
    }
}

#[test]
fn each_sample_is_told_as_the_format_that_it_is() {
    for (name, format) in [
        ("vm/cloudPhysicsIO.vscsi", "vscsi"),
        ("host/linux-mysql.load.gz", "blkreplay"),
        ("samples/msr-cambridge1-sample.csv", "msr"),
        ("samples/systor17-additional-sample.csv.gz", "systor"),
        ("samples/cloud_storage-sample.bz2", "tencent"),
        ("samples/tpcc-small.trace", "mqsim"),
        ("drives/cheetah9LP/cheetah9LP.trace", "disksim"),
        ("drives/atlas10k/atlas10k.trace", "disksim"),
        ("drives/cheetah15k5/random.trace", "disksim"),
    ] {
        let Some(path) = seekway_testing::shared(&format!("traces/{name}")) else { return };
        assert_eq!(told(&path).as_deref(), Ok(format), "{name}");
        let scanned = scan(&path, &TraceOptions::default()).unwrap();
        assert_eq!(scanned.warnings(), [""; 0], "{name}");
    }
}
