//! Flushes, discards, write-zeroes and long requests among VMs: what goes together, whose turn it
//! is, and who pays for the device's time.

use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers;
use seekway_stack::dispatcher::{Arrival, Config, Dispatcher, Output};
use seekway_stack::stack::{self, ABANDONED, Action, DiskSpec, Done, IoError, Map, Stack, Submit};
use std::num::NonZeroU32;

const READER: VmId = VmId::new(0);
const FLUSHER: VmId = VmId::new(1);
const READ: Nanos = Nanos::from_micros(100);
const FLUSH: Nanos = Nanos::from_millis(5);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Nanos::from_millis(ms)
}

fn dispatcher(policy: &str, depth: u32, weights: &[u32]) -> Dispatcher {
    let profile = DeviceProfile::unknown(Sectors::new(1 << 30), true);
    let config = Config { depth, ..Config::default() };
    let mut d = Dispatcher::new(schedulers::build(policy).unwrap(), profile, config);
    for (vm, &weight) in weights.iter().enumerate() {
        let weight = NonZeroU32::new(weight).unwrap();
        d.attach(at(0), VmId::new(vm as u16), VmSpec { weight, ..VmSpec::default() });
    }
    d
}

fn arrive(d: &mut Dispatcher, now: Instant, vm: VmId, op: Op, start: u64, len: u64) -> RequestId {
    let extent = Extent::new(Lba::new(start), Sectors::new(len)).unwrap();
    d.arrive(now, Arrival { vm, tag: None, op, sync: op == Op::Read, extent })
}

fn flush(d: &mut Dispatcher, now: Instant, vm: VmId) -> RequestId {
    arrive(d, now, vm, Op::Flush, 0, 1)
}

fn command(d: &mut Dispatcher, now: Instant) -> Request {
    match d.poll(now) {
        Output::Dispatch(command) => command,
        other => panic!("expected a command, got {other:?}"),
    }
}

fn complete(d: &mut Dispatcher, now: Instant, id: RequestId) -> Vec<RequestId> {
    let mut done = Vec::new();
    d.complete(now, id, true, &mut done);
    done.iter().map(|completion| completion.request.id).collect()
}

#[test]
fn flushes_that_wait_go_together_in_a_command_that_begins_after_all_of_them() {
    let mut d = dispatcher("noop", 9, &[1]);
    let first = flush(&mut d, at(0), READER);
    assert_eq!(command(&mut d, at(0)).id, first);
    // They may not be done with the one that has begun: it need not cover their writes.
    let (second, third) = (flush(&mut d, at(1), READER), flush(&mut d, at(2), READER));
    assert_eq!(d.poll(at(2)), Output::Idle, "one at a time");
    assert_eq!(complete(&mut d, at(5), first), [first]);
    let next = command(&mut d, at(5));
    assert_eq!(d.members(next.id).map(|m| m.id).collect::<Vec<_>>(), [second, third]);
    let fourth = flush(&mut d, at(6), READER);
    assert_eq!(complete(&mut d, at(9), next.id), [second, third]);
    assert_eq!(command(&mut d, at(9)).id, fourth);
    assert_eq!(complete(&mut d, at(9), fourth), [fourth]);
    assert_eq!(d.stats().commands, 3);
}

#[test]
fn flushes_go_round_the_vms() {
    let mut d = dispatcher("noop", 1, &[1, 1, 1]);
    for vm in [0, 0, 0, 1, 2] {
        flush(&mut d, at(0), VmId::new(vm));
    }
    let mut vms = Vec::new();
    for turn in 0..6 {
        let next = command(&mut d, at(turn));
        vms.push(next.vm.index());
        flush(&mut d, at(turn), next.vm);
        complete(&mut d, at(turn + 1), next.id);
    }
    assert_eq!(vms, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_vm_that_leaves_takes_its_flushes_along() {
    let mut d = dispatcher("noop", 1, &[1, 1]);
    let under_way = flush(&mut d, at(0), FLUSHER);
    command(&mut d, at(0));
    flush(&mut d, at(0), FLUSHER);
    assert_eq!(d.detach(at(1), FLUSHER).len(), 1);
    d.attach(at(1), FLUSHER, VmSpec::default());
    let next = flush(&mut d, at(1), FLUSHER);
    complete(&mut d, at(2), under_way);
    assert_eq!(command(&mut d, at(2)).id, next);
}

/// A reader in a closed loop beside a VM that always has 64 flushes (or what `op` says), one
/// command at a time: the shares of the device's time in a second.
fn storm(policy: &str, op: Op, weights: [u32; 2]) -> (f64, f64) {
    let mut d = dispatcher(policy, 1, &weights);
    let mut now = at(0);
    let (mut used, mut lba) = ([0u64; 2], 0);
    let mut read_at = Some(now);
    (0..64).for_each(|n| _ = arrive(&mut d, now, FLUSHER, op, 1_000_000 + 8 * n, 8));
    while now < at(1_000) {
        if read_at.is_some_and(|at| at <= now) {
            read_at = None;
            lba += 8;
            arrive(&mut d, now, READER, Op::Read, lba, 8);
        }
        let wake = match d.poll(now) {
            Output::Dispatch(command) => {
                let service = if command.op.is_data() { READ } else { FLUSH };
                used[command.vm.index()] += service.get();
                now = now + service;
                // A guest takes a moment to ask for more.
                match complete(&mut d, now, command.id).len() {
                    done if command.vm == FLUSHER => {
                        let extent = command.extent.start().get();
                        (0..done).for_each(|_| _ = arrive(&mut d, now, FLUSHER, op, extent, 8));
                    }
                    _ => read_at = Some(now + Nanos::from_micros(50)),
                }
                continue;
            }
            Output::WakeAt(at) => Some(at),
            Output::Idle => None,
        };
        now = wake.into_iter().chain(read_at).min().expect("something happens");
    }
    (used[0] as f64 / 1e9, used[1] as f64 / 1e9)
}

#[test]
fn a_storm_of_barriers_leaves_others_their_share() {
    for policy in ["noop", "cfq", "deadline", "fairway"] {
        for op in [Op::Flush, Op::Discard, Op::WriteZeroes] {
            let (reader, storm) = storm(policy, op, [1, 1]);
            // It thinks for a third of its time.
            assert!(reader > 0.28 && storm > 0.25, "{policy} {op:?}: {reader} beside {storm}");
        }
    }
    let (reader, storm) = storm("noop", Op::Flush, [1, 4]);
    assert!((3.0..6.0).contains(&(storm / reader)), "weights 1 and 4: {reader} beside {storm}");
}

#[test]
fn a_vm_alone_waits_for_nobody() {
    let mut d = dispatcher("noop", 1, &[1, 1]);
    arrive(&mut d, at(0), READER, Op::Read, 0, 8);
    let read = command(&mut d, at(0)).id;
    complete(&mut d, at(1), read);
    for turn in 1..4 {
        flush(&mut d, at(10 * turn), FLUSHER);
        let next = command(&mut d, at(10 * turn)).id;
        complete(&mut d, at(10 * turn + 9), next);
    }
    // The other has just been there: its next read may be about to come.
    arrive(&mut d, at(40), READER, Op::Read, 0, 8);
    let read = command(&mut d, at(40)).id;
    complete(&mut d, at(41), read);
    flush(&mut d, at(41), FLUSHER);
    assert_eq!(d.poll(at(41)), Output::WakeAt(at(42)));
    assert_eq!(command(&mut d, at(42)).op, Op::Flush);
}

#[test]
fn what_nobody_else_wants_is_free() {
    let us = |us| Instant::ZERO + Nanos::from_micros(us);
    for depth in [1, 2] {
        let mut d = dispatcher("noop", depth, &[1, 1]);
        let flush_us = |d: &mut Dispatcher, from: u64, to: u64| {
            flush(d, us(from), FLUSHER);
            let next = command(d, us(from)).id;
            complete(d, us(to), next);
        };
        flush_us(&mut d, 0, 300);
        arrive(&mut d, us(900), READER, Op::Read, 0, 8);
        let read = command(&mut d, us(900)).id;
        complete(&mut d, us(1_000), read);
        // It owes 300 us, of which the read has paid 100.
        flush(&mut d, us(1_100), FLUSHER);
        if depth == 1 {
            assert_eq!(d.poll(us(1_100)), Output::WakeAt(us(1_200)));
        }
        // The time in which the device was idle pays as well; with room beside it, nothing is owed.
        let at = if depth == 1 { us(1_200) } else { us(1_100) };
        assert_eq!(command(&mut d, at).op, Op::Flush);
    }
}

/// A stack with two disks of 8 GiB and one command at a time.
fn two_disks(has_head: bool) -> Stack {
    let profile = DeviceProfile::unknown(Sectors::new(1 << 30), has_head);
    let scheduler = schedulers::build("noop").unwrap();
    let mut stack = Stack::new(scheduler, profile, stack::Config::default(), None);
    for vm in 0..2u16 {
        let capacity = Sectors::from_bytes(8 << 30);
        let map = Map::linear(Lba::new(u64::from(vm) << 25), capacity);
        let disk = DiskSpec { weight: NonZeroU32::MIN, capacity, map, cached: false };
        stack.attach(at(0), VmId::new(vm), disk);
    }
    stack
}

fn submit(stack: &mut Stack, now: Instant, vm: VmId, op: Op, bytes: u64, token: u64) {
    let extent = Extent::new(Lba::ZERO, Sectors::from_bytes(bytes)).unwrap();
    stack.submit(now, Submit { vm, tag: None, op, sync: true, extent, token }).unwrap();
}

/// The commands that follow, each of a millisecond, until nothing is left; tokens as they end.
fn run(stack: &mut Stack, mut now: Instant, fail: Option<usize>) -> (Vec<Request>, Vec<Done>) {
    let (mut commands, mut done) = (Vec::new(), Vec::new());
    loop {
        match stack.poll(now) {
            Action::Issue(command) => {
                now = now + Nanos::from_millis(1);
                let error = (fail == Some(commands.len())).then_some((command.id, IoError(5)));
                commands.push(command);
                stack.io_done(now, command.id, error.as_slice());
            }
            Action::Done(end) => done.push(end),
            Action::Wait(wake) => match wake.earliest() {
                Some(at) => now = at,
                None => return (commands, done),
            },
            _ => {}
        }
    }
}

#[test]
fn a_long_request_goes_in_pieces_and_others_have_turns_between_them() {
    for (op, piece_max, has_head) in [
        (Op::Discard, 16 << 20, false),
        (Op::WriteZeroes, 16 << 20, true),
        // One after the other; `long.rs` has several at once.
        (Op::Read, 1 << 20, true),
        (Op::Write, 1 << 20, true),
    ] {
        let mut stack = two_disks(has_head);
        submit(&mut stack, at(0), FLUSHER, op, 1 << 30, 7);
        let Action::Issue(first) = stack.poll(at(0)) else { panic!("the first piece goes") };
        submit(&mut stack, at(0), READER, Op::Read, 4096, 8);
        stack.io_done(at(1), first.id, &[]);
        let (commands, done) = run(&mut stack, at(1), None);
        assert_eq!(commands.iter().position(|c| c.vm == READER), Some(0), "the read is next");
        let mut pieces: Vec<Request> = vec![first];
        pieces.extend(commands.into_iter().filter(|c| c.vm == FLUSHER));
        assert!(pieces.iter().all(|piece| piece.extent.len().bytes() <= piece_max), "{op:?}");
        for pair in pieces.windows(2) {
            assert_eq!(pair[0].extent.end(), pair[1].extent.start(), "nothing is left out");
        }
        let bytes: u64 = pieces.iter().map(|piece| piece.extent.len().bytes()).sum();
        assert_eq!(bytes, 1 << 30);
        assert_eq!(
            done.iter().map(|d| (d.token, d.result)).collect::<Vec<_>>(),
            [(8, Ok(())), (7, Ok(()))]
        );
        assert!(stack.is_idle());
    }
}

#[test]
fn a_long_request_ends_with_the_first_piece_that_fails() {
    for op in [Op::WriteZeroes, Op::Read, Op::Write] {
        let mut stack = two_disks(true);
        submit(&mut stack, at(0), FLUSHER, op, 1 << 30, 7);
        let (commands, done) = run(&mut stack, at(0), Some(2));
        assert_eq!(commands.len(), 3);
        assert_eq!(done.iter().map(|d| d.result).collect::<Vec<_>>(), [Err(IoError(5))]);
        assert!(stack.is_idle());
    }
}

/// Whatever is queued: only what the device has begun is waited for.
#[test]
fn a_disk_that_leaves_ends_its_discards() {
    for op in [Op::Discard, Op::WriteZeroes] {
        let mut stack = two_disks(false);
        for token in 0..1000 {
            submit(&mut stack, at(0), FLUSHER, op, 1 << 30, token);
        }
        submit(&mut stack, at(0), READER, op, 1 << 30, 1000);
        let mut begun = Vec::new();
        while let Action::Issue(command) = stack.poll(at(0)) {
            begun.push(command);
        }
        stack.leave(at(1), FLUSHER);
        let mut ended = Vec::new();
        for command in begun {
            stack.io_done(at(2), command.id, &[]);
            while let Some(action) = stack.take() {
                if let Action::Done(done) = action {
                    ended.push(done);
                }
            }
        }
        // Those that had gone as far as the dispatcher go to the engine, which need not begin them.
        let (commands, done) = run(&mut stack, at(3), None);
        let left = commands.iter().filter(|command| command.vm == FLUSHER);
        assert!(left.count() <= 16, "{op:?}");
        ended.extend(done);
        let of_left = |done: &&Done| done.vm == FLUSHER;
        assert_eq!(ended.iter().filter(of_left).count(), 1000, "{op:?}");
        assert!(ended.iter().filter(of_left).all(|done| done.result == Err(ABANDONED)), "{op:?}");
        assert_eq!(ended.last().map(|done| (done.token, done.result)), Some((1000, Ok(()))));
        assert!(stack.is_idle());
    }
}

/// The VM owes much, and others want the device all the time: it would wait for the hard limit.
#[test]
fn a_vm_that_leaves_owes_nothing() {
    let mut d = dispatcher("noop", 1, &[1, 1]);
    flush(&mut d, at(0), FLUSHER);
    let first = command(&mut d, at(0)).id;
    complete(&mut d, at(100), first);
    arrive(&mut d, at(100), READER, Op::Read, 0, 8);
    arrive(&mut d, at(100), READER, Op::Read, 1 << 20, 8);
    flush(&mut d, at(100), FLUSHER);
    let read = command(&mut d, at(100));
    assert_eq!(read.op, Op::Read, "it owes 100 ms");
    d.leave(FLUSHER);
    complete(&mut d, at(101), read.id);
    assert_eq!(command(&mut d, at(101)).op, Op::Flush);
}
