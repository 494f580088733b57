//! Speed of the readers, and memory for a hundred million requests: `cargo bench -p
//! seekway-workload --bench traces`, with traces of your own in the folder that SEEKWAY_TRACES
//! names.

use seekway_workload::traces::{TraceOptions, TraceReader, scan};
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Instant;

fn rate(name: &str, requests: u64, bytes: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    let (millions, megabytes) = (requests as f64 / 1e6, bytes as f64 / 1e6);
    println!(
        "{name:24} {requests:10} requests {:7.1} M/s {:7.0} MB/s",
        millions / seconds,
        megabytes / seconds
    );
}

fn main() {
    // `cargo test --all-targets` runs benches too, without this argument.
    if std::env::args().any(|arg| arg == "--bench") {
        rows_per_second();
        files_of_your_own();
        memory_of_a_hundred_million_requests();
    }
}

/// Makes the `i`th row of a format.
type Row = fn(&mut String, u64);

const ROWS: [(&str, Row); 4] = [
    ("msr", |out, i| {
        let (time, offset) = (130_000_000_000_000_000 + i * 1000, i * 7919 % 100_000_000 * 4096);
        let _ = writeln!(out, "{time},host,{},Read,{offset},4096,1000", i % 3);
    }),
    ("tencent", |out, i| {
        let (time, offset) = (1_600_000_000 + i / 5000, i * 7919 % 100_000_000 * 8);
        let _ = writeln!(out, "{time},{offset},8,{},{}", i % 2, i * 31 % 2000);
    }),
    ("mqsim", |out, i| {
        let _ = writeln!(out, "{} {} {} 8 {}", i * 10_000, i % 8, i * 7919 % 100_000_000, i % 2);
    }),
    ("blkreplay", |out, i| {
        let (s, us) = (i / 10_000, i % 10_000 * 100);
        let _ = writeln!(out, "{s:10}.{us:06}000 ; {:12} ; 8 ; W ; 0.0 ; 0.0", i * 7919 % 100_000);
    }),
];

/// A stream of `repeats` copies of a text, never held whole.
struct Repeat {
    text: Vec<u8>,
    at: usize,
    repeats: u64,
}

impl Read for Repeat {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.text.len() {
            (self.at, self.repeats) = (0, self.repeats.saturating_sub(1));
        }
        if self.repeats == 0 {
            return Ok(0);
        }
        let n = out.len().min(self.text.len() - self.at);
        out[..n].copy_from_slice(&self.text[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

fn rows_per_second() {
    for (name, row) in ROWS {
        let mut text = String::new();
        (0..1_000_000).for_each(|i| row(&mut text, i));
        let bytes = text.len() as u64;
        let input = Box::new(io::Cursor::new(text));
        let start = Instant::now();
        let mut reader = TraceReader::from_read(name, input, &TraceOptions::default()).unwrap();
        while reader.next_record().unwrap().is_some() {}
        rate(name, reader.stats().requests(), bytes, start);
    }
}

fn files_of_your_own() {
    let Some(folder) = std::env::var_os("SEEKWAY_TRACES") else { return };
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let start = Instant::now();
        let scanned = scan(&path, &TraceOptions::default()).unwrap();
        let bytes = path.metadata().unwrap().len();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        rate(&name, scanned.stats.requests(), bytes, start);
    }
}

/// A hundred million requests. Prints the most memory that the process has had.
fn memory_of_a_hundred_million_requests() {
    let mut text = String::new();
    (0..100_000).for_each(|i| ROWS[1].1(&mut text, i));
    let input = Box::new(Repeat { text: text.into_bytes(), at: 0, repeats: 1000 });
    let start = Instant::now();
    let mut reader = TraceReader::from_read("tencent", input, &TraceOptions::default()).unwrap();
    while reader.next_record().unwrap().is_some() {}
    rate("tencent", reader.stats().requests(), 0, start);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().filter(|line| line.starts_with("VmHWM")).for_each(|line| println!("{line}"));
}
