//! Merging at arrival: what the policy sees, what the device gets, and what ends when.

use seekway_core::request::{Completion, Extent, Op, ProcessTag, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, VmSpec};
use seekway_core::units::{Instant, Lba, Sectors};
use seekway_policy::schedulers;
use seekway_stack::dispatcher::{Arrival, Config, Dispatcher, Output};

/// A disk that merges up to 64 sectors and coalesces nothing else, with two VMs.
fn disk(policy: &str) -> Dispatcher {
    let config = Config { coalesce: Sectors::new(64), merge: true, ..Config::default() };
    let profile = DeviceProfile::unknown(Sectors::new(1 << 20), true);
    let mut disk = Dispatcher::new(schedulers::build(policy).unwrap(), profile, config);
    (0..2).for_each(|vm| disk.attach(Instant::ZERO, VmId::new(vm), VmSpec::default()));
    disk
}

fn arrival(vm: u16, op: Op, lba: u64) -> Arrival {
    let extent = Extent::new(Lba::new(lba), Sectors::new(8)).unwrap();
    Arrival { vm: VmId::new(vm), tag: None, op, sync: true, extent }
}

fn read(disk: &mut Dispatcher, lba: u64) -> RequestId {
    disk.arrive(Instant::ZERO, arrival(0, Op::Read, lba))
}

/// The next command: its extent and members.
fn next(disk: &mut Dispatcher) -> (String, Vec<RequestId>) {
    let Output::Dispatch(command) = disk.poll(Instant::ZERO) else { panic!("no command") };
    let members: Vec<RequestId> = disk.members(command.id).map(|member| member.id).collect();
    assert_eq!(members[0], command.id);
    (command.extent.to_string(), members)
}

fn complete(disk: &mut Dispatcher, id: RequestId) -> Vec<RequestId> {
    let mut done: Vec<Completion> = Vec::new();
    disk.complete(Instant::from_nanos(1_000), id, true, &mut done);
    done.iter().map(|completion| completion.request.id).collect()
}

#[test]
fn neighbours_behind_and_before_are_one_request_to_the_policy() {
    for policy in ["noop", "deadline", "anticipatory", "cfq", "pregather", "pregather:literal=true"]
    {
        let mut disk = disk(policy);
        let busy = read(&mut disk, 5_000);
        assert_eq!(next(&mut disk).1, [busy]);
        let middle = read(&mut disk, 108);
        let behind = read(&mut disk, 116);
        let before = read(&mut disk, 100);
        let far = read(&mut disk, 132);
        assert_eq!(disk.queued(), 2, "{policy}");
        // The gap is filled: both become one.
        let filling = read(&mut disk, 124);
        assert_eq!(disk.queued(), 1, "{policy}");
        complete(&mut disk, busy);
        let members = [before, middle, behind, filling, far];
        assert_eq!(next(&mut disk), ("100+40".into(), members.to_vec()), "{policy}");
        assert_eq!(disk.stats().requests, 6);
        assert_eq!(complete(&mut disk, before), members, "{policy}: each ends");
        assert_eq!((disk.outstanding(), disk.queued()), (0, 0));
        assert_eq!(disk.poll(Instant::from_nanos(1_000)), Output::Idle);
    }
}

#[test]
fn merged_requests_have_a_bound() {
    let mut disk = disk("noop");
    let ids: Vec<RequestId> = (0..9).map(|i| read(&mut disk, 8 * i)).collect();
    assert_eq!(disk.queued(), 2);
    assert_eq!(next(&mut disk), ("0+64".into(), ids[..8].to_vec()));
    complete(&mut disk, ids[0]);
    assert_eq!(next(&mut disk), ("64+8".into(), ids[8..].to_vec()));
}

#[test]
fn others_are_not_merged() {
    let other_vm = arrival(1, Op::Read, 108);
    let other_op = arrival(0, Op::Write, 108);
    let other_urgency = Arrival { sync: false, ..arrival(0, Op::Read, 108) };
    let other_process = Arrival { tag: ProcessTag::new(7), ..arrival(0, Op::Read, 108) };
    let gap = arrival(0, Op::Read, 109);
    for other in [other_vm, other_op, other_urgency, other_process, gap] {
        let mut disk = disk("noop");
        read(&mut disk, 100);
        disk.arrive(Instant::ZERO, other);
        assert_eq!(disk.queued(), 2, "{other:?}");
    }
    // A policy that takes none.
    let mut disk = disk("fairway");
    read(&mut disk, 100);
    read(&mut disk, 108);
    assert_eq!(disk.queued(), 2);
}

#[test]
fn a_flush_and_a_discard_are_not_crossed() {
    let mut disk = disk("noop");
    let write = |disk: &mut Dispatcher, lba| disk.arrive(Instant::ZERO, arrival(0, Op::Write, lba));
    write(&mut disk, 100);
    disk.arrive(Instant::ZERO, arrival(0, Op::Flush, 0));
    write(&mut disk, 108);
    assert_eq!(disk.queued(), 2);
    // Behind a discard of the same sectors a write waits, and then it is merged.
    let mut disk = self::disk("noop");
    let busy = read(&mut disk, 5_000);
    next(&mut disk);
    let discard = disk.arrive(Instant::ZERO, arrival(0, Op::Discard, 200));
    let waits = write(&mut disk, 200);
    let first = write(&mut disk, 192);
    assert_eq!(disk.queued(), 1);
    complete(&mut disk, busy);
    assert_eq!(next(&mut disk).1, [discard]);
    complete(&mut disk, discard);
    assert_eq!(next(&mut disk), ("192+16".into(), vec![first, waits]));
}

#[test]
fn another_policy_and_a_vm_that_leaves_get_them_one_by_one() {
    let mut disk = disk("cfq");
    let ids: Vec<RequestId> = (0..3).map(|i| read(&mut disk, 8 * i)).collect();
    assert_eq!(disk.queued(), 1);
    disk.switch(Instant::ZERO, schedulers::build("fairway").unwrap());
    assert_eq!(disk.queued(), 3);
    disk.switch(Instant::ZERO, schedulers::build("deadline").unwrap());
    assert_eq!(disk.queued(), 1);
    let back = disk.detach(Instant::ZERO, VmId::new(0));
    assert_eq!(back.iter().map(|request| request.id).collect::<Vec<_>>(), ids);
    assert_eq!((disk.outstanding(), disk.queued()), (0, 0));
}
