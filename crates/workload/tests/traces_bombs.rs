//! Small files that unpack to much: memory stays bounded, and what is refused is
//! refused before its end. One test, for it looks at the whole process.

use seekway_workload::traces::{Format, Reason, TraceOptions, TraceReader};
use std::io::{self, Read};

/// `megabytes` MiB of zeros, each member of the gzip stream 16 MiB long.
struct Bomb {
    member: Vec<u8>,
    at: usize,
    members_left: u32,
}

impl Bomb {
    fn new(megabytes: u32) -> Bomb {
        let member = 16 << 20;
        let mut packed = Vec::new();
        flate2::read::GzEncoder::new(io::repeat(0).take(member), flate2::Compression::new(6))
            .read_to_end(&mut packed)
            .unwrap();
        Bomb { member: packed, at: 0, members_left: megabytes / 16 }
    }
}

impl Read for Bomb {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.member.len() {
            self.at = 0;
            self.members_left = self.members_left.saturating_sub(1);
        }
        if self.members_left == 0 {
            return Ok(0);
        }
        let n = (&self.member[self.at..]).read(to)?;
        self.at += n;
        Ok(n)
    }
}

/// Lines of a trace whose volumes have names nearly as long as a line may be, none twice.
struct Names {
    line: Vec<u8>,
    lines: u32,
}

impl Read for Names {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.line.is_empty() && self.lines > 0 {
            self.lines -= 1;
            let name = "x".repeat(3900);
            let line = format!("12816637200300{},{name}{},0,Read,0,512,1\n", 9999, self.lines);
            self.line = line.into_bytes();
        }
        let n = self.line.as_slice().read(to)?;
        self.line.drain(..n);
        Ok(n)
    }
}

/// The most memory that this process has had, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_bomb_of_any_kind_is_read_in_bounded_memory() {
    // As text: one line of 256 MiB, skipped in pieces.
    for format in [Format::Msr, Format::Vscsi, Format::Blktrace] {
        let options =
            TraceOptions { format: Some(format), lenient: true, ..TraceOptions::default() };
        let mut reader =
            TraceReader::from_read("bomb", Box::new(Bomb::new(256)), &options).unwrap();
        assert!(reader.next_record().unwrap().is_none(), "{format}");
        assert!(!reader.stats().skipped.is_empty(), "{format}");
    }
    // The reorder window holds what it may and no more, however far requests lie back.
    let late = b"9000000000000 0 1 1 0\n5 0 1 1 0\n".repeat(1 << 20);
    let reader =
        TraceReader::from_read("late", Box::new(io::Cursor::new(late)), &TraceOptions::default());
    assert_eq!(reader.unwrap().filter(|r| r.is_ok()).count(), 2 << 20);
    // Volumes' names would be kept: 65,536 of them, of 4 KiB each.
    let names = Box::new(Names { line: Vec::new(), lines: 1 << 16 });
    let options =
        TraceOptions { format: Some(Format::Msr), lenient: true, ..TraceOptions::default() };
    let mut reader = TraceReader::from_read("names", names, &options).unwrap();
    assert!(reader.next_record().unwrap().is_none());
    let skipped = &reader.stats().skipped;
    assert_eq!((skipped[0].reason, skipped[0].count), (Reason::LongName, 1 << 16));
    let peak = peak_kib();
    assert!(peak < 100 << 10, "{peak} KiB");
}
