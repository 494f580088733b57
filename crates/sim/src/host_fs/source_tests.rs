//! Tests of the requests that reach the disk, and their times, with a disk that takes a fixed time
//! for everything.

use super::*;

const CAPACITY: Sectors = Sectors::new(1_953_525_168);
/// Where the two VMs' images begin.
const IMAGES: [u64; 2] = [1_283_200_000, 1_310_000_000];

fn ms(ms: u64) -> Instant {
    Instant::ZERO + Nanos::from_millis(ms)
}

/// One VM that asks at fixed times.
struct Script {
    disks: [VmDisk; 1],
    asks: VecDeque<(Instant, Op)>,
    under_way: u32,
}

impl Source for Script {
    fn vms(&self) -> &[VmDisk] {
        &self.disks
    }
    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        while let Some(&(at, op)) = self.asks.front().filter(|(at, _)| *at <= now) {
            self.asks.pop_front();
            self.under_way += 1;
            let start = Lba::new(at.as_nanos() / 1_000_000);
            let len = Sectors::new(8);
            out.push(Issue { token: 7, vm: 0, tag: None, op, sync: true, start, len });
        }
        Ok(())
    }
    fn completed(&mut self, _now: Instant, token: u64) {
        assert_eq!(token, 7);
        self.under_way -= 1;
    }
    fn next_wake(&self) -> Option<Instant> {
        self.asks.front().map(|(at, _)| *at)
    }
    fn finished(&self) -> bool {
        self.asks.is_empty() && self.under_way == 0
    }
}

fn vm(asks: impl IntoIterator<Item = (u64, Op)>) -> Box<dyn Source> {
    let disks = [VmDisk { name: "vm".to_string(), capacity: Sectors::new(1 << 24) }];
    let asks = asks.into_iter().map(|(at, op)| (ms(at), op)).collect();
    Box::new(Script { disks, asks, under_way: 0 })
}

/// The requests that reach the disk, each taking `latency_ms`: time in ms, VM, sectors, and whether
/// it is a flush. The host is VM 2.
fn reach(vms: [Box<dyn Source>; 2], latency_ms: u64) -> Vec<(u64, u16, u64, bool)> {
    let fs = HostFs::new(CAPACITY, IMAGES[0]);
    let mut files = FileBacked::new(vms.into(), &fs, CAPACITY, &IMAGES.map(Lba::new));
    let (mut now, mut out, mut seen) = (Instant::ZERO, Vec::new(), Vec::new());
    let mut under_way: VecDeque<(Instant, u64)> = VecDeque::new();
    loop {
        files.poll(now, &mut out).unwrap();
        for issue in out.drain(..) {
            let log = fs.log.contains(&(issue.start.get() / BLOCK_SECTORS));
            let inode = files.images.iter().any(|image| image.inode == issue.start.get());
            assert_eq!(log || inode, issue.vm == 2, "{issue:?}");
            assert!(issue.vm < 2 || issue.start + issue.len <= Lba::ZERO + CAPACITY);
            let at = now.as_nanos() / 1_000_000;
            seen.push((at, issue.vm, issue.len.get(), issue.op == Op::Flush));
            under_way.push_back((now + Nanos::from_millis(latency_ms), issue.token));
        }
        let done = under_way.front().map(|(at, _)| *at);
        match [done, files.next_wake()].into_iter().flatten().min() {
            Some(next) => now = next,
            None => break,
        }
        while let Some((_, token)) = under_way.pop_front_if(|(at, _)| *at <= now) {
            files.completed(now, token);
        }
    }
    assert!(files.finished());
    seen
}

fn of_host(seen: &[(u64, u16, u64, bool)]) -> Vec<(u64, u64)> {
    seen.iter().filter(|s| s.1 == 2).map(|s| (s.0, s.2)).collect()
}

#[test]
fn a_commit_five_seconds_after_the_first_write() {
    // From 100 ms to 11.9 s; the other VM reads once.
    let writes = (1..120).map(|n| (n * 100, Op::Write));
    let seen = reach([vm(writes), vm([(300, Op::Read)])], 1);
    // A descriptor and two inodes, then the commit block. The next transaction begins with the
    // next second, and has one inode.
    assert_eq!(of_host(&seen), [(5100, 24), (5101, 8), (11_000, 16), (11_001, 8)]);
    assert_eq!(seen.iter().filter(|s| s.1 == 0).count(), 119);
}

#[test]
fn nothing_is_committed_when_nothing_changes() {
    assert_eq!(reach([vm([]), vm([(9000, Op::Flush)])], 1), [(9000, 1, 8, true)]);
}

#[test]
fn a_flush_forces_a_commit_and_waits_for_it() {
    let asks = [(100, Op::Write), (200, Op::Flush), (300, Op::Flush)];
    let seen = reach([vm(asks), vm([])], 10);
    let expected = [(100, 0, 8, false), (200, 2, 16, false), (210, 2, 8, false)];
    assert_eq!(seen[..3], expected);
    assert_eq!(seen[3..], [(220, 0, 8, true), (300, 0, 8, true)]);
}

#[test]
fn who_changes_an_inode_on_its_way_to_the_log_sleeps() {
    // The log takes from 5 s to 6.5 s. The first VM's times change in that second: its write
    // waits, and so does all that comes behind. The other VM is not part of the transaction.
    let asks = [(0, Op::Write), (5500, Op::Write), (6100, Op::Write), (6200, Op::Read)];
    let seen = reach([vm(asks), vm([(6100, Op::Write)])], 1500);
    let guests: Vec<_> = seen.iter().filter(|s| s.1 < 2).map(|s| (s.0, s.1)).collect();
    assert_eq!(guests, [(0, 0), (6100, 1), (6500, 0), (6500, 0), (6500, 0)]);
    // A read is sent, and the requests behind it wait.
    let asks = [(0, Op::Write), (6100, Op::Read), (6200, Op::Read)];
    let seen = reach([vm(asks), vm([])], 1500);
    let guests: Vec<_> = seen.iter().filter(|s| s.1 == 0).map(|s| s.0).collect();
    assert_eq!(guests, [0, 6100, 6500]);
}

#[test]
fn an_inode_is_written_in_place_every_thirty_seconds_at_most() {
    let writes = (0..100).map(|n| (n * 1000, Op::Write));
    let host = of_host(&reach([vm(writes), vm([])], 1));
    // One block behind each commit block that ends a commit of 30 s later.
    let in_place: Vec<u64> =
        host.windows(2).filter(|w| w[0].1 == 8 && w[1].1 == 8).map(|w| w[1].0).collect();
    assert!((2..=3).contains(&in_place.len()), "{host:?}");
    assert!(in_place.windows(2).all(|w| w[1] - w[0] >= 30_000), "{in_place:?}");
}
