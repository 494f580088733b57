//! fairway on a device without a head, behind the real dispatcher: an access that many commands
//! have at once, then a link that one has at a time. Closed loops of clients drive it.

use crate::dispatcher::{Arrival, Config, Dispatcher, Output};
use crate::request::{Extent, Op, RequestId, VmId};
use crate::scheduler::{DeviceProfile, VmSpec};
use crate::schedulers::build;
use crate::units::{Instant, Lba, Nanos, Sectors};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// A VM in a closed loop.
#[derive(Clone, Copy, Debug)]
struct Client {
    weight: u32,
    /// Sectors of a request.
    len: u64,
    depth: u32,
    write: bool,
    /// Nanoseconds from a completion to the next request.
    think: u64,
}

const QUIET: Client = Client { weight: 1, len: 8, depth: 1, write: false, think: 0 };
const FLOOD: Client = Client { weight: 1, len: 128, depth: 64, write: false, think: 0 };

/// What a VM got.
#[derive(Clone, Default, Debug)]
struct Got {
    requests: u64,
    sectors: u64,
    /// Nanoseconds from arrival to completion.
    longest: u64,
    /// The most cost that others sent from when the VM had an oldest request until that went.
    passed: u64,
}

struct Bench {
    dispatcher: Dispatcher,
    clients: Vec<Client>,
    now: Instant,
    link_free: Instant,
    /// By time and a serial number: completions of commands, and arrivals.
    commands: BTreeMap<(Instant, u64), RequestId>,
    arrivals: BTreeMap<(Instant, u64), usize>,
    serial: u64,
    next_lba: u64,
    got: Vec<Got>,
    /// Sectors of each VM that have not gone, and the cost that passed the first of them.
    waiting: Vec<(u64, u64)>,
    /// When the policy wants to be asked again.
    wake: Option<Instant>,
    /// The VM whose commands the device never completes.
    hangs: Option<usize>,
    /// Of the device: sectors a microsecond, and the access in nanoseconds.
    rate: u64,
    access: u64,
}

impl Bench {
    fn new(policy: &str, clients: &[Client]) -> Bench {
        let profile = DeviceProfile::unknown(Sectors::new(1 << 40), false);
        let config = Config { depth: 128, ..Config::default() };
        let mut dispatcher = Dispatcher::new(build(policy).unwrap(), profile, config);
        for (vm, client) in clients.iter().enumerate() {
            let weight = NonZeroU32::new(client.weight).unwrap();
            let spec = VmSpec { weight, ..VmSpec::default() };
            dispatcher.attach(Instant::ZERO, VmId::new(vm as u16), spec);
        }
        let mut bench = Bench {
            dispatcher,
            clients: clients.to_vec(),
            now: Instant::ZERO,
            link_free: Instant::ZERO,
            commands: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            serial: 0,
            next_lba: 0,
            got: vec![Got::default(); clients.len()],
            waiting: vec![(0, 0); clients.len()],
            wake: None,
            hangs: None,
            rate: 1,
            access: 150_000,
        };
        for (vm, client) in clients.iter().enumerate() {
            (0..client.depth).for_each(|_| bench.arrives(Instant::ZERO, vm));
        }
        bench
    }

    fn arrives(&mut self, at: Instant, vm: usize) {
        self.serial += 1;
        self.arrivals.insert((at, self.serial), vm);
    }

    /// Run for so long; what each VM got.
    fn run(mut self, ms: u64) -> Vec<Got> {
        let end = Instant::ZERO + Nanos::from_millis(ms);
        while self.now < end {
            let next = [self.commands.keys().next(), self.arrivals.keys().next()];
            let next = next.into_iter().flatten().map(|key| key.0).chain(self.wake).min();
            self.now = next.expect("something is under way");
            self.complete_due();
            self.arrive_due();
            self.dispatch();
            let waiting = self.dispatcher.outstanding() > 0;
            let works = !self.commands.is_empty() || self.hangs.is_some();
            assert!(!waiting || works, "idle with work at {}", self.now);
        }
        self.got
    }

    fn complete_due(&mut self) {
        while let Some(entry) = self.commands.first_entry().filter(|e| e.key().0 <= self.now) {
            let id = entry.remove();
            let mut done = Vec::new();
            self.dispatcher.complete(self.now, id, true, &mut done);
            for end in done {
                let vm = end.request.vm.index();
                let got = &mut self.got[vm];
                got.requests += 1;
                got.sectors += end.request.extent.len().get();
                got.longest = got.longest.max(self.now.since(end.request.arrived).get());
                self.arrives(self.now + Nanos::new(self.clients[vm].think), vm);
            }
        }
    }

    fn arrive_due(&mut self) {
        while let Some(entry) = self.arrivals.first_entry().filter(|e| e.key().0 <= self.now) {
            let vm = entry.remove();
            let Client { len, write, .. } = self.clients[vm];
            // Nothing is adjacent: each request is a command of its own, or several.
            self.next_lba += 2 * len;
            let extent = Extent::new(Lba::new(self.next_lba), Sectors::new(len)).unwrap();
            let op = if write { Op::Write } else { Op::Read };
            let arrival = Arrival { vm: VmId::new(vm as u16), tag: None, op, sync: !write, extent };
            self.dispatcher.arrive(self.now, arrival);
            self.waiting[vm].0 += len;
        }
    }

    fn dispatch(&mut self) {
        loop {
            let command = match self.dispatcher.poll(self.now) {
                Output::Dispatch(command) => command,
                Output::WakeAt(at) => return self.wake = Some(at),
                Output::Idle => return self.wake = None,
            };
            if self.hangs == Some(command.vm.index()) {
                continue;
            }
            let len = command.extent.len().get();
            let read = self.now + Nanos::new(self.access);
            self.link_free = self.link_free.max(read) + Nanos::new(len * 1_000 / self.rate);
            self.serial += 1;
            self.commands.insert((self.link_free, self.serial), command.id);
            let cost = super::cost::of_command(command.extent.len());
            for (vm, (waiting, passed)) in self.waiting.iter_mut().enumerate() {
                if vm != command.vm.index() {
                    *passed += if *waiting > 0 { cost } else { 0 };
                } else {
                    let got = &mut self.got[vm];
                    got.passed = got.passed.max(std::mem::take(passed));
                    *waiting -= len;
                }
            }
        }
    }
}

fn run(policy: &str, clients: &[Client], ms: u64) -> Vec<Got> {
    Bench::new(policy, clients).run(ms)
}

#[test]
fn one_vm_alone_gets_what_the_device_gives() {
    for client in [QUIET, FLOOD, Client { write: true, len: 2048, ..FLOOD }] {
        let [noop, fairway] = ["noop", "fairway"].map(|policy| run(policy, &[client], 200));
        assert_eq!(noop[0].requests, fairway[0].requests, "{client:?}");
    }
}

#[test]
fn a_quiet_vm_keeps_half_beside_floods() {
    let alone = run("noop", &[QUIET], 500)[0].requests as f64;
    for (len, floods) in [(8, 1), (128, 1), (2048, 1), (128, 16)] {
        let depth = if len == 2048 { 8 } else { 64 };
        let mut clients = vec![Client { len, depth, ..FLOOD }; floods];
        clients.push(QUIET);
        let [noop, fairway] = ["noop", "fairway"].map(|policy| run(policy, &clients, 1000));
        let flood = |got: &[Got]| got[..floods].iter().map(|g| g.sectors).sum::<u64>() as f64;
        let quiet = fairway[floods].requests as f64 / 2.0 / alone;
        let kept = flood(&fairway) / flood(&noop);
        assert!(quiet >= 0.45 && kept >= 0.85, "{len} sectors × {floods}: {quiet} and {kept}");
    }
}

#[test]
fn shares_are_by_weight_whatever_the_sizes() {
    let of = |weight, len| Client { weight, len, depth: 64, ..FLOOD };
    for clients in [[of(1, 8), of(2, 8), of(4, 8)], [of(1, 64), of(2, 8), of(4, 24)]] {
        let got = run("fairway", &clients, 1000);
        let cost = |n: usize| {
            let len = Sectors::new(clients[n].len);
            (got[n].requests * super::cost::of_command(len)) as f64 / f64::from(clients[n].weight)
        };
        for n in 1..3 {
            let ratio = cost(n) / cost(0);
            assert!((0.97..=1.03).contains(&ratio), "{clients:?}: VM {n} has {ratio} of its share");
        }
    }
}

#[test]
fn a_command_that_hangs_stops_nobody() {
    let alone = run("noop", &[QUIET], 1000)[0].requests as f64;
    let hung = Client { depth: 4, ..QUIET };
    let mut bench = Bench::new("fairway", &[QUIET, FLOOD, hung]);
    bench.hangs = Some(2);
    let got = bench.run(1000);
    // It takes some stalls until all four have gone; the others wait for each.
    assert!(got[0].requests as f64 >= 0.25 * alone, "{} of {alone}", got[0].requests);
    assert!(got[1].sectors > 200_000, "the flood read {} sectors", got[1].sectors);
}

#[test]
fn a_vm_that_slept_brings_one_quantum() {
    // It sleeps for 50 ms after each batch; the other never does.
    let sleeper = Client { think: 50_000_000, depth: 32, len: 8, ..FLOOD };
    let flood = Client { len: 8, ..FLOOD };
    let got = run("fairway", &[flood, sleeper], 1000);
    let most = super::flash::QUANTUM + 3 * super::cost::of_command(Sectors::new(8));
    assert!(got[0].passed <= most, "{} passed", got[0].passed);
}

fn client() -> impl Strategy<Value = Client> {
    let len = prop::sample::select(vec![1u64, 8, 24, 64, 256, 1024]);
    (1..8u32, len, 1..40u32, any::<bool>(), prop::sample::select(vec![0u64, 70_000, 5_000_000]))
        .prop_map(|(weight, len, depth, write, think)| Client { weight, len, depth, write, think })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    /// While a VM has work, each other VM sends at most its weight times a quantum and twice
    /// the longest command over the weight of the one that waits, and one command.
    #[test]
    fn waits_are_bounded_and_the_device_works(clients in prop::collection::vec(client(), 1..7)) {
        let got = run("fairway", &clients, 60);
        let longest = clients.iter().map(|c| super::cost::of_command(Sectors::new(c.len))).max().unwrap();
        for (n, one) in clients.iter().enumerate() {
            let others = clients.iter().enumerate().filter(|&(m, _)| m != n);
            let bound: u64 = others
                .map(|(_, c)| {
                    let own = 2 * longest / u64::from(one.weight) + super::flash::QUANTUM;
                    u64::from(c.weight) * own + longest
                })
                .sum();
            prop_assert!(got[n].passed <= bound, "VM {} of {:?}: {} passed, {}", n, clients, got[n].passed, bound);
        }
    }
}
