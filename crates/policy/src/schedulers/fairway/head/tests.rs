//! fairway on a disk with a head, behind the real dispatcher. The model disk takes one command
//! at a time: 4 ms and what the way costs, unless the command begins at the head, and 10 µs a
//! sector. Closed loops of clients drive it.

use crate::schedulers::build;
use crate::schedulers::fairway::head_vm::OWED_MAX;
use proptest::prelude::*;
use seekway_core::request::{Extent, Op, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, Group, Reserve, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_stack::dispatcher::{Arrival, Config, Dispatcher, Output};
use std::num::NonZeroU32;

/// Sectors of a VM's region.
const REGION: u64 = 10_000_000;
const MS: u64 = 1_000_000;

/// A VM in a closed loop.
#[derive(Clone, Copy, Debug)]
struct Client {
    weight: u32,
    len: u64,
    depth: u32,
    streams: bool,
    /// Microseconds from a completion to the next request.
    think: u64,
    group: Option<u16>,
    /// Requests reserved a second.
    reserve: u64,
    /// Target of latency in milliseconds; 0: none.
    target: u64,
    /// All it reads are prefetches.
    prefetches: bool,
    /// Client in whose VM it runs too; none: it has a VM of its own.
    in_vm_of: Option<usize>,
}

const RANDOM: Client = Client {
    weight: 1,
    len: 8,
    depth: 1,
    streams: false,
    think: 60,
    group: None,
    reserve: 0,
    target: 0,
    prefetches: false,
    in_vm_of: None,
};
const STREAM: Client = Client { len: 128, streams: true, ..RANDOM };
const FLOOD: Client = Client { len: 128, depth: 64, ..RANDOM };

/// Service of a VM.
#[derive(Clone, Default, Debug)]
struct Got {
    requests: u64,
    /// Nanoseconds of the disk.
    time: u64,
    took: Vec<u64>,
    /// The most that others had of the disk while the VM had work and was not served.
    passed: u64,
    waiting: u64,
    since_served: u64,
}

struct Bench {
    dispatcher: Dispatcher,
    clients: Vec<Client>,
    now: Instant,
    head: u64,
    random: u64,
    /// When a client's next request comes.
    due: Vec<(Instant, usize)>,
    places: Vec<u64>,
    got: Vec<Got>,
    /// Time of the longest command until now, in nanoseconds.
    longest: u64,
}

impl Bench {
    fn new(policy: &str, clients: &[Client]) -> Bench {
        let profile = DeviceProfile::unknown(Sectors::new(1 << 40), true);
        let mut dispatcher = Dispatcher::new(build(policy).unwrap(), profile, Config::default());
        let own = |client: &(usize, &Client)| client.1.in_vm_of.is_none();
        for (vm, client) in clients.iter().enumerate().filter(own) {
            let weight = NonZeroU32::new(client.weight).unwrap();
            let spec = VmSpec {
                weight,
                group: client.group.map(|number| Group { number, weight: NonZeroU32::MIN }),
                reserve: Reserve { iops: client.reserve, bytes_per_s: 0 },
                latency: (client.target > 0).then(|| Nanos::from_millis(client.target)),
                region: Vec::new(),
            };
            dispatcher.attach(Instant::ZERO, VmId::new(vm as u16), spec);
        }
        let depths = clients.iter().enumerate().map(|(vm, c)| (vm, c.depth));
        let due = depths.flat_map(|(vm, n)| (0..n).map(move |_| (Instant::ZERO, vm))).collect();
        Bench {
            dispatcher,
            clients: clients.to_vec(),
            now: Instant::ZERO,
            head: 0,
            random: 1,
            due,
            places: (0..clients.len() as u64).map(|vm| vm * REGION).collect(),
            got: vec![Got::default(); clients.len()],
            longest: 0,
        }
    }

    fn arrive_due(&mut self) {
        self.due.sort();
        while self.due.first().is_some_and(|&(at, _)| at <= self.now) {
            let (_, vm) = self.due.remove(0);
            let Client { len, streams, .. } = self.clients[vm];
            if !streams {
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                self.places[vm] = vm as u64 * REGION + (self.random >> 33) % (REGION - len);
            }
            let extent = Extent::new(Lba::new(self.places[vm]), Sectors::new(len)).unwrap();
            self.places[vm] += len;
            let number = self.clients[vm].in_vm_of.unwrap_or(vm);
            let (vm_id, op) = (VmId::new(number as u16), Op::Read);
            let arrival = Arrival { vm: vm_id, tag: None, op, sync: true, extent };
            if self.clients[vm].prefetches {
                self.dispatcher.arrive_background(self.now, arrival);
                continue;
            }
            self.dispatcher.arrive(self.now, arrival);
            self.got[vm].waiting += 1;
        }
    }

    /// The disk does a command of the client whose region it lies in.
    fn serve(&mut self, id: RequestId, extent: Extent) {
        let vm = (extent.start().get() / REGION) as usize;
        let start = extent.start().get();
        let way = start.abs_diff(self.head);
        let position = if way == 0 { 0 } else { 4 * MS + way / 20 };
        let time = position + 10_000 * extent.len().get();
        self.longest = self.longest.max(time);
        self.head = extent.end().get();
        let end = self.now + Nanos::new(time);
        for (other, got) in self.got.iter_mut().enumerate() {
            if other == vm {
                got.passed = got.passed.max(std::mem::take(&mut got.since_served));
                got.time += time;
            } else if got.waiting > 0 {
                got.since_served += time;
            }
        }
        // What comes in the meantime comes before the completion.
        self.due.sort();
        while let Some(&(at, _)) = self.due.first().filter(|&&(at, _)| at < end) {
            self.now = self.now.max(at);
            self.arrive_due();
        }
        self.now = end;
        let mut done = Vec::new();
        self.dispatcher.complete(end, id, true, &mut done);
        for request in done {
            let got = &mut self.got[vm];
            got.requests += 1;
            got.waiting = got.waiting.saturating_sub(1);
            got.took.push(end.since(request.request.arrived).get());
            self.due.push((end + Nanos::from_micros(self.clients[vm].think), vm));
        }
    }

    /// Run up to this millisecond.
    fn run(&mut self, ms: u64) {
        let end = Instant::from_nanos(ms * MS);
        while self.now < end {
            self.arrive_due();
            let next = self.due.iter().map(|due| due.0).min();
            match self.dispatcher.poll(self.now) {
                Output::Dispatch(command) => {
                    self.serve(command.id, command.extent);
                }
                Output::WakeAt(at) => self.now = next.map_or(at, |next| next.min(at)),
                Output::Idle => {
                    assert_eq!(self.dispatcher.outstanding(), 0, "idle with work at {}", self.now);
                    self.now = next.expect("somebody comes again");
                }
            }
        }
    }

    fn held(&self) -> u64 {
        self.dispatcher.holds().idle.get()
    }
}

fn run(policy: &str, clients: &[Client], ms: u64) -> Bench {
    let mut bench = Bench::new(policy, clients);
    bench.run(ms);
    bench
}

#[test]
fn device_time_is_shared_by_weight_over_a_second_or_so() {
    for depth in [1, 4, 64] {
        for lens in [[8, 8, 8], [8, 32, 128], [256, 32, 8]] {
            let client = |n: usize| Client { weight: 1 << n, len: lens[n], depth, ..RANDOM };
            let mut bench = Bench::new("fairway", &[client(0), client(1), client(2)]);
            bench.run(4_000);
            for second in [8_000, 12_000] {
                let before: Vec<u64> = bench.got.iter().map(|got| got.time).collect();
                bench.run(second);
                let had = bench.got.iter().zip(before).map(|(got, before)| got.time - before);
                let had: Vec<u64> = had.collect();
                let total: u64 = had.iter().sum();
                for (n, &had) in had.iter().enumerate() {
                    let share = had as f64 / total as f64 * 7.0 / f64::from(1 << n);
                    assert!((0.97..=1.03).contains(&share), "{depth}, {lens:?}, {n}: {share}");
                }
            }
        }
    }
}

#[test]
fn one_vm_alone_has_no_less_than_under_cfq() {
    for client in [RANDOM, STREAM, FLOOD, Client { depth: 8, ..STREAM }] {
        let [cfq, fairway] =
            ["cfq", "fairway"].map(|policy| run(policy, &[client], 5_000).got[0].requests as f64);
        assert!(fairway >= 0.98 * cfq, "{client:?}: {fairway} of {cfq}");
    }
}

#[test]
fn streams_stay_together_and_a_hold_is_charged() {
    let bench = run("fairway", &[STREAM, FLOOD], 5_000);
    let [stream, flood] = [0, 1].map(|vm| &bench.got[vm]);
    // 1.28 ms a request of the stream: nearly half of the time goes into them.
    assert!(stream.requests > 1_500, "{stream:?}");
    let waited = stream.time + bench.held();
    let ratio = waited as f64 / flood.time as f64;
    assert!((0.95..=1.05).contains(&ratio), "{waited} ns and {} ns", flood.time);
    let without = run("fairway:stay=0", &[STREAM, FLOOD], 5_000);
    assert!(without.got[0].requests < stream.requests, "{:?}", without.got[0]);
}

#[test]
fn a_guest_that_takes_its_time_keeps_its_stream_while_coming_back_costs_more() {
    let stream = |policy: &str, think| {
        run(policy, &[Client { think, ..STREAM }, FLOOD], 5_000).got[0].requests as f64
    };
    let (held, not_held) = (stream("fairway", 2_200), stream("fairway:stay=2ms", 2_200));
    assert!(held > 1.5 * not_held, "pauses of 2.2 ms: {held}, with holds of 2 ms {not_held}");
    // A command after another VM's takes some 6 ms here.
    let (long, never) = (stream("fairway", 6_000), stream("fairway:stay=0", 6_000));
    assert!(
        (0.95..=1.05).contains(&(long / never)),
        "pauses of 6 ms: {long}, without holds {never}"
    );
}

#[test]
fn a_vm_alone_reads_beside_its_own_stream() {
    let bench = run(
        "fairway",
        &[Client { depth: 8, think: 0, ..STREAM }, Client { in_vm_of: Some(0), ..RANDOM }],
        5_000,
    );
    let [stream, random] = [0, 1].map(|client| bench.got[client].requests);
    assert!(random >= 3 && stream > 2_000, "{random} reads and {stream} of the stream");
}

#[test]
fn a_vm_with_two_streams_reads_as_much_as_one_with_one() {
    let second = Client { in_vm_of: Some(0), ..STREAM };
    let one = run("fairway", &[STREAM, FLOOD], 5_000).got[0].requests;
    let bench = run("fairway", &[STREAM, FLOOD, second], 5_000);
    let two = bench.got[0].requests + bench.got[2].requests;
    assert!(two * 10 >= one * 9, "{two} requests of two streams, {one} of one");
}

#[test]
fn a_quiet_vm_waits_for_a_command_or_two() {
    let alone = run("noop", &[RANDOM], 5_000).got[0].requests;
    let bench = run("fairway", &[RANDOM, FLOOD], 5_000);
    let quiet = &bench.got[0];
    assert!(quiet.requests * 100 >= alone * 45, "{} of {alone}", quiet.requests);
    let longest = quiet.took.iter().max().copied().unwrap_or(0);
    assert!(longest <= 40 * MS, "{longest} ns");
}

#[test]
fn a_stream_keeps_its_part_however_many_vms_read_a_little() {
    let alone = run("noop", &[STREAM], 5_000).got[0].requests as f64;
    for pings in [2, 6, 12, 24] {
        // Ten reads a second each, or as many as a disk slower by the number of VMs does.
        let ping = Client { think: 95_000, ..RANDOM };
        let clients = [&vec![ping; pings][..], &[STREAM]].concat();
        let stream = run("fairway", &clients, 5_000).got[pings].requests as f64;
        let kept = stream / alone * (pings + 1) as f64;
        assert!(kept >= 0.5, "beside {pings} VMs: {kept} of a private disk");
    }
}

#[test]
fn who_read_ahead_alone_owes_nothing_for_it() {
    let ahead = Client { prefetches: true, depth: 8, ..STREAM };
    let mut bench = Bench::new("fairway", &[ahead, FLOOD]);
    let flood = std::mem::take(&mut bench.due).into_iter().partition(|&(_, vm)| vm == 1);
    let (flood, ahead): (Vec<_>, Vec<_>) = flood;
    bench.due = ahead;
    bench.run(2_000);
    assert!(bench.got[0].requests > 1_000, "{} prefetches", bench.got[0].requests);
    bench.due.extend(flood);
    bench.clients[0] = Client { depth: 8, ..FLOOD };
    let before = bench.got[0].time;
    bench.run(6_000);
    let ratio = (bench.got[0].time - before) as f64 / bench.got[1].time as f64;
    assert!((0.8..1.25).contains(&ratio), "it has {ratio} of the other's time");
}

#[test]
fn a_reservation_is_met_first_and_reservations_shrink_in_proportion() {
    // The disk does some 190 such requests a second; a ninth would be 21.
    let of = |reserve| Client { reserve, depth: 8, ..RANDOM };
    let clients = [&[FLOOD; 8][..], &[of(60)]].concat();
    let bench = run("fairway", &clients, 10_000);
    let got = bench.got[8].requests;
    assert!((590..=640).contains(&got), "{got} in 10 s of 60 a second");
    let bench = run("fairway", &[FLOOD, of(200), of(400)], 20_000);
    let ratio = bench.got[2].requests as f64 / bench.got[1].requests as f64;
    assert!((1.9..=2.1).contains(&ratio), "{ratio}");
}

#[test]
fn a_group_has_one_share() {
    let of = |group, weight| Client { group: Some(group), weight, depth: 8, ..RANDOM };
    let clients = [of(0, 1), of(1, 1), of(1, 1), of(1, 2)];
    let mut bench = run("fairway", &clients, 4_000);
    let before: Vec<u64> = bench.got.iter().map(|got| got.time).collect();
    bench.run(16_000);
    let had = |n: usize| (bench.got[n].time - before[n]) as f64;
    let (group, inside) = ((had(1) + had(2) + had(3)) / had(0), had(3) / had(1));
    assert!((0.95..=1.05).contains(&group), "the group has {group} of the other");
    assert!((1.9..=2.1).contains(&inside), "inside it is {inside}");
}

#[test]
fn a_target_of_latency_is_met_where_it_can_be() {
    let p99 = |target| {
        let clients = [&[FLOOD; 4][..], &[Client { depth: 2, target, ..RANDOM }]].concat();
        let bench = run("fairway", &clients, 30_000);
        let mut took = bench.got[4].took[bench.got[4].took.len() / 2..].to_vec();
        took.sort_unstable();
        (took[took.len() * 99 / 100], bench.got[0].requests)
    };
    let ((without, others), (with, _)) = (p99(0), p99(40));
    assert!(without > 50 * MS, "{without} ns without a target");
    assert!(with <= 40 * MS, "{with} ns");
    // No command takes less than 4 ms: it is given up, and the others live.
    let (with, left) = p99(1);
    assert!(with > MS && left * 2 > others, "{left} of {others}");
}

fn client() -> impl Strategy<Value = Client> {
    let len = prop::sample::select(vec![1u64, 8, 64, 256]);
    let think = prop::sample::select(vec![0u64, 60, 1_500, 30_000]);
    (1..8u32, len, 1..20u32, any::<bool>(), think).prop_map(
        |(weight, len, depth, streams, think)| Client {
            weight,
            len,
            depth,
            streams,
            think,
            ..RANDOM
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    /// While a VM has work and is not served, another one has no more of the disk than its
    /// weight over the waiting VM's of a turn and a command, a turn and a command of its own,
    /// and what may be owed.
    #[test]
    fn waits_are_bounded(clients in prop::collection::vec(client(), 1..7)) {
        let bench = run("fairway", &clients, 3_000);
        let longest = bench.longest;
        for (n, one) in clients.iter().enumerate() {
            let others = clients.iter().enumerate().filter(|&(m, _)| m != n).map(|(_, c)| c);
            let turn = 100 * MS + longest;
            let owed = OWED_MAX as u64 + longest;
            let bound: u64 = others
                .map(|c| {
                    let rate = u64::from(c.weight);
                    (turn + 2 * owed) * rate / u64::from(one.weight) + turn + 2 * owed
                })
                .sum();
            let got = &bench.got[n];
            let passed = got.passed.max(got.since_served);
            prop_assert!(passed <= bound, "VM {} of {:?}: {} passed, {}", n, clients, passed, bound);
        }
    }
}
