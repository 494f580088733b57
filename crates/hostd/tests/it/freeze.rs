//! Frozen disks, and the log of slow requests, as guests and operators find them. What waits is
//! known from the status, never by waiting for it.

use crate::common;

use common::Ask;
use common::bench::{Bench, take};
use seekway_core::units::Nanos;
use seekway_hostd::port::DiskId;
use seekway_hostd::reactor::{Message, SlowRequest};
use seekway_stack::stack::Stages;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

const LEN: u64 = 4096;
/// Longer than any test.
const LONG: Nanos = Nanos::from_secs(3600);

fn begin_freeze(bench: &Bench, disk: DiskId, time: Nanos) -> Receiver<Result<(), String>> {
    let (reply, answer) = sync_channel(1);
    assert!(bench.rig.handle.send(Message::Freeze(disk, time, reply)));
    answer
}

fn freeze(bench: &Bench, disk: DiskId, time: Nanos) -> Result<(), String> {
    begin_freeze(bench, disk, time).recv().unwrap()
}

fn thaw(bench: &Bench, disk: DiskId) -> Result<(), String> {
    bench.rig.handle.ask(|reply| Message::Thaw(disk, reply)).unwrap()
}

fn slow_over(bench: &Bench, over: Nanos) -> Vec<SlowRequest> {
    bench.rig.handle.ask(|reply| Message::Slow(over, reply)).unwrap()
}

fn writes(count: u64) -> Vec<Ask> {
    (0..count).map(|n| Ask::write(n * LEN, vec![7; LEN as usize])).collect()
}

#[test]
fn what_comes_to_a_frozen_disk_waits_and_others_do_not() {
    let bench = Bench::new();
    let (disk, other) = (bench.disk("a"), bench.disk("b"));
    let ports = [
        bench.rig.open_in_turns(disk),
        bench.rig.open_in_turns(disk),
        bench.rig.open_in_turns(other),
    ];
    ports[0].ask(writes(3));
    take(&ports[0], 3);
    assert_eq!(freeze(&bench, disk, LONG), Ok(()));
    assert_eq!(freeze(&bench, disk, LONG), Err("is frozen already".into()));
    for port in &ports[..2] {
        port.ask(writes(4));
        port.ask(vec![Ask::flush()]);
    }
    ports[2].ask(writes(4));
    take(&ports[2], 4);
    let status = bench.status(disk);
    assert_eq!((status.outstanding, status.ops[1].requests), (0, 3));
    assert!(status.frozen_until.is_some());
    assert_eq!(thaw(&bench, disk), Ok(()));
    ports[..2].iter().for_each(|port| take(port, 5));
    assert_eq!(bench.status(disk).frozen_until, None);
    assert!(thaw(&bench, disk).unwrap_err().starts_with("is not frozen"));
}

#[test]
fn a_disk_is_frozen_when_all_that_was_under_way_has_ended() {
    let bench = Bench::new();
    let disk = bench.disk("a");
    bench.limit(disk, "bandwidth=1");
    let port = bench.rig.open_in_turns(disk);
    port.ask(writes(3));
    take(&port, 1);
    let frozen = begin_freeze(&bench, disk, LONG);
    assert_eq!(bench.status(disk).outstanding, 2);
    assert_eq!(frozen.try_recv(), Err(TryRecvError::Empty));
    bench.limit(disk, "none");
    assert_eq!(frozen.recv(), Ok(Ok(())));
    assert_eq!(bench.status(disk).outstanding, 0);
    take(&port, 2);
    assert_eq!(thaw(&bench, disk), Ok(()));
}

#[test]
fn a_disk_thaws_by_itself_when_its_time_is_over() {
    let bench = Bench::new();
    let disk = bench.disk("a");
    let port = bench.rig.open_in_turns(disk);
    assert_eq!(freeze(&bench, disk, Nanos::from_millis(20)), Ok(()));
    port.ask(writes(2));
    // Nobody thaws it.
    take(&port, 2);
    assert!(thaw(&bench, disk).unwrap_err().contains("its time was over"));
    // What does not end in time is said, and nothing stays frozen.
    bench.limit(disk, "bandwidth=1");
    port.ask(writes(3));
    take(&port, 1);
    let refused = freeze(&bench, disk, Nanos::from_millis(5));
    assert_eq!(refused, Err("2 requests did not end in time".into()));
    assert_eq!(bench.status(disk).frozen_until, None);
    bench.limit(disk, "none");
    take(&port, 2);
}

#[test]
fn a_frozen_disk_can_be_detached_and_the_daemon_ends_with_one() {
    let bench = Bench::new();
    let (disk, other) = (bench.disk("a"), bench.disk("b"));
    let port = bench.rig.open_in_turns(disk);
    assert_eq!(freeze(&bench, disk, LONG), Ok(()));
    port.ask(writes(2));
    assert!(bench.status(disk).frozen_until.is_some());
    let detached = bench.rig.handle.ask(|reply| Message::DetachDisk(disk, reply));
    assert_eq!(detached, Some(Ok(())));
    // Another disk has its number, and is served.
    let next = bench.disk("c");
    assert_eq!(next, disk);
    let port = bench.rig.open_in_turns(next);
    port.ask(writes(2));
    take(&port, 2);
    assert_eq!(freeze(&bench, other, LONG), Ok(()));
    drop(bench);
}

#[test]
fn slow_requests_are_kept_with_where_their_time_went() {
    let bench = Bench::new();
    let disk = bench.disk("a");
    bench.limit(disk, "bandwidth=1");
    let port = bench.rig.open_in_turns(disk);
    port.ask(writes(3));
    take(&port, 1);
    // Time passes while two wait for the limit: a status is a round trip to the reactor's thread.
    let begun = bench.rig.status().now;
    while bench.rig.status().now.since(begun) < Nanos::from_millis(2) {}
    bench.limit(disk, "none");
    take(&port, 2);
    let slow = slow_over(&bench, Nanos::from_millis(2));
    let limited: Vec<_> =
        slow.iter().filter(|r| r.stages.limited >= Nanos::from_millis(2)).collect();
    assert_eq!(limited.len(), 2, "{slow:?}");
    for SlowRequest { stages, response, offset_bytes, len_bytes, ok, .. } in limited {
        let Stages { limited, queued, device } = *stages;
        assert_eq!(limited + queued + device, *response);
        assert!([LEN, 2 * LEN].contains(offset_bytes) && *len_bytes == LEN && *ok);
    }
    assert_eq!(slow_over(&bench, LONG), []);
}
