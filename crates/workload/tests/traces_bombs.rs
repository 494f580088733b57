//! Small files that unpack to much: memory stays bounded, and what is refused is
//! refused before its end. One test, for it looks at the whole process.

use seekway_workload::traces::{Format, TraceOptions, TraceReader};
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
        assert!(reader.stats().skipped_total() > 0, "{format}");
    }
    // The reorder window holds what it may and no more, however far requests lie back.
    let late = b"9000000000000 0 1 1 0\n5 0 1 1 0\n".repeat(1 << 20);
    let reader =
        TraceReader::from_read("late", Box::new(io::Cursor::new(late)), &TraceOptions::default());
    assert_eq!(reader.unwrap().filter(|r| r.is_ok()).count(), 2 << 20);
    let peak = peak_kib();
    assert!(peak < 100 << 10, "{peak} KiB");
}
