//! A seeded guest, the same for the simulator and for the reactor.

use super::DISK_SECTORS;
use seekway_core::request::{Op, ProcessTag};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_workload::{Issue, Source, SourceError, VmDisk};

/// A guest: some requests outstanding, think times, streams and random places.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) disk: [VmDisk; 1],
    random: u64,
    left: u32,
    depth: u32,
    under_way: u32,
    /// Requests that are to be issued, by their time.
    due: Vec<Instant>,
    next: u64,
    token: u64,
    /// Some of its writes are durable.
    is_durable: bool,
}

impl Load {
    pub(super) fn new(vm: u64, seed: u64, is_durable: bool) -> Load {
        let capacity = Sectors::new(DISK_SECTORS);
        Load {
            disk: [VmDisk { name: format!("vm{vm}"), capacity }],
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (vm + 1) << 17 | 1,
            left: 160,
            depth: 1 + vm as u32 * 4,
            under_way: 0,
            due: Vec::new(),
            next: vm * 1_000,
            token: 0,
            is_durable,
        }
    }

    /// A number below `n`, by xorshift64 (Marsaglia 2003) with Vigna's factor (2016).
    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }

    fn issue(&mut self) -> Issue {
        let op = match self.below(32) {
            0..20 => Op::Read,
            20..28 => Op::Write,
            28..30 => Op::Flush,
            30 => Op::Discard,
            _ => Op::WriteZeroes,
        };
        let blocks = if self.below(8) == 0 { 96 } else { 8 };
        let len = 8 * (1 + self.below(blocks));
        let start = match self.below(3) {
            0 => self.below(DISK_SECTORS / 8 - 100) * 8,
            _ if self.next + len <= DISK_SECTORS => self.next,
            _ => 0,
        };
        self.next = start + len;
        self.token += 1;
        // A write that somebody waits for says so by FUA, which is all that the wire has. Durable
        // zeroes take two I/Os here and one command there.
        let sync = match op {
            Op::Write => self.below(2) == 0 && self.is_durable,
            Op::WriteZeroes => false,
            _ => true,
        };
        let tag = ProcessTag::new([0, 8, 9][self.below(3) as usize]);
        let (start, len) = (Lba::new(start), Sectors::new(len));
        Issue { token: self.token, vm: 0, tag, op, sync, start, len }
    }
}

impl Source for Load {
    fn vms(&self) -> &[VmDisk] {
        &self.disk
    }
    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        while self.left > 0 && self.under_way + (self.due.len() as u32) < self.depth {
            self.left -= 1;
            let think = [0, 0, 700_000, 4_000_000][self.below(4) as usize];
            let think = if think == 0 { 0 } else { self.below(think) };
            self.due.push(now + Nanos::new(think));
        }
        for _ in self.due.extract_if(.., |at| *at <= now).collect::<Vec<_>>() {
            self.under_way += 1;
            let issue = self.issue();
            out.push(issue);
        }
        Ok(())
    }
    fn completed(&mut self, _now: Instant, _token: u64) {
        self.under_way -= 1;
    }
    fn next_wake(&self) -> Option<Instant> {
        self.due.iter().min().copied()
    }
    fn finished(&self) -> bool {
        self.left == 0 && self.under_way == 0 && self.due.is_empty()
    }
}
