//! A small engine: drives a policy as the dispatcher does, and checks the contract at every step.

use crate::Policy;
use seekway_core::request::{Completion, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, HOLD_MAX, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_stack::dispatcher::Arrival;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Holds that may follow each other, each to its end and without any input.
const HOLDS_IN_A_ROW_MAX: u32 = 4;
/// Adjacent requests are coalesced into commands of at most this.
const COALESCE: Sectors = Sectors::new(1024);

/// A command on the device: requests that continue each other, or a part of one.
pub struct Command {
    /// Of its first request, or of its own for a part.
    pub id: RequestId,
    pub requests: Vec<Request>,
    pub dispatched: Instant,
}

/// A policy, the requests that it holds, and a device that takes `depth` commands.
pub struct Engine {
    policy: Box<dyn Scheduler>,
    /// The causes that it may name.
    holds: &'static [&'static str],
    profile: DeviceProfile,
    depth: usize,
    pub now: Instant,
    head: Lba,
    /// In the policy, with their order of arrival.
    queued: BTreeMap<RequestId, (u64, Request)>,
    pub flying: Vec<Command>,
    /// Handed out by the policy in the middle of a command that it does not continue.
    staged: Option<Request>,
    /// A command is being made, which counts as one in flight.
    making: bool,
    /// Requests that went in parts: how many of these are on the device.
    parts: BTreeMap<RequestId, u32>,
    free: Vec<RequestId>,
    slots: u32,
    arrivals: u64,
    last_completion: Instant,
    pub hold: Option<Instant>,
    holds_in_a_row: u32,
    /// The log of the policy's decisions, one in a line.
    pub log: String,
    pub dispatched: u64,
    pub completed: u64,
    pub withdrawn: u64,
}

impl Engine {
    pub fn new(policy: &Policy, profile: DeviceProfile, depth: usize) -> Self {
        let (mut scheduler, holds) = (policy.build(), policy.entry.holds);
        scheduler.takes_over(&profile);
        Engine {
            policy: scheduler,
            holds,
            profile,
            depth,
            now: Instant::ZERO,
            head: Lba::ZERO,
            queued: BTreeMap::new(),
            flying: Vec::new(),
            staged: None,
            making: false,
            parts: BTreeMap::new(),
            free: Vec::new(),
            slots: 0,
            arrivals: 0,
            last_completion: Instant::ZERO,
            hold: None,
            holds_in_a_row: 0,
            log: String::new(),
            dispatched: 0,
            completed: 0,
            withdrawn: 0,
        }
    }

    pub fn attach(&mut self, vm: VmId, spec: VmSpec) {
        self.policy.attach(self.now, vm, spec);
    }

    /// Detach a VM, and check that it gets back all it had queued, in order.
    pub fn detach(&mut self, vm: VmId) -> Vec<Request> {
        let returned = self.policy.detach(self.now, vm);
        let of_vm = self.queued.values().filter(|(_, r)| r.vm == vm);
        let mut expected: Vec<(u64, Request)> = of_vm.copied().collect();
        expected.sort_by_key(|&(order, _)| order);
        let expected: Vec<Request> = expected.into_iter().map(|(_, r)| r).collect();
        assert_eq!(returned, expected, "detach of {vm:?} hands back all, in order of arrival");
        for request in &returned {
            self.queued.remove(&request.id);
            self.taken_back(request.id);
        }
        if self.staged.is_some_and(|request| request.vm == vm) {
            let request = self.staged.take().unwrap();
            self.launch(request.id, vec![request]);
        }
        self.input();
        returned
    }

    /// A queued request is the policy's no longer. Parts of it that are on the device end it.
    fn taken_back(&mut self, id: RequestId) {
        match self.parts.get(&id) {
            Some(1..) => self.dispatched += 1,
            _ => {
                self.parts.remove(&id);
                self.free.push(id);
            }
        }
    }

    /// Take a queued request back, the `nth` of them modulo their number.
    pub fn withdraw(&mut self, nth: usize) {
        let Some(&id) = self.queued.keys().nth(nth % self.queued.len().max(1)) else { return };
        self.queued.remove(&id);
        self.policy.withdraw(self.now, id);
        self.withdrawn += 1;
        self.taken_back(id);
        writeln!(self.log, "{} withdraw {}", self.now, id.slot()).unwrap();
        self.input();
    }

    pub fn arrive(&mut self, arrival: Arrival) -> RequestId {
        let Arrival { vm, tag, op, sync, extent } = arrival;
        let id = self.next_free();
        let request = Request { id, vm, tag, op, sync, extent, arrived: self.now };
        self.queued.insert(id, (self.arrivals, request));
        self.arrivals += 1;
        self.policy.arrived(self.now, request);
        self.input();
        id
    }

    /// The queued request that arrived first.
    pub fn oldest(&self) -> Option<Request> {
        self.queued.values().min_by_key(|(order, _)| order).map(|&(_, request)| request)
    }

    fn next_free(&mut self) -> RequestId {
        self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            RequestId::new(self.slots - 1)
        })
    }

    /// Something has happened: a hold may end early.
    fn input(&mut self) {
        self.hold = None;
        self.holds_in_a_row = 0;
    }

    /// The command at `index` completes now.
    pub fn complete(&mut self, index: usize) -> Command {
        let command = self.flying.remove(index);
        let mut service = self.now.since(command.dispatched.max(self.last_completion));
        self.last_completion = self.now;
        for &request in &command.requests {
            let last = self.part_done(request.id);
            let end = Completion::alone(request, command.dispatched, service);
            self.policy.completed(self.now, &Completion { command: command.id, last, ..end });
            service = Nanos::ZERO;
            self.completed += u64::from(last);
            if last {
                self.free.push(request.id);
            }
        }
        if command.id != command.requests[0].id {
            self.free.push(command.id);
        }
        self.input();
        command
    }

    /// A request is done, or a part of one: is it all of it?
    fn part_done(&mut self, id: RequestId) -> bool {
        let Some(out) = self.parts.get_mut(&id) else { return true };
        *out -= 1;
        let last = *out == 0 && !self.queued.contains_key(&id);
        if last {
            self.parts.remove(&id);
        }
        last
    }

    /// Ask until the device is full, or the policy holds or has nothing. The
    /// commands that were begun.
    pub fn pump(&mut self) -> usize {
        let mut begun = 0;
        while self.flying.len() < self.depth {
            let Some(first) = self.staged.take().or_else(|| self.ask()) else { break };
            match self.parts.contains_key(&first.id) {
                true => {
                    let id = self.next_free();
                    self.launch(id, vec![first]);
                }
                false => self.make_command(first),
            }
            begun += 1;
        }
        begun
    }

    fn make_command(&mut self, first: Request) {
        let mut requests = vec![first];
        let (mut end, mut len) = (first.extent.end(), first.extent.len());
        let continues = |r: &Request, end, len| {
            (r.vm, r.op, r.extent.start()) == (first.vm, first.op, end) && len < COALESCE
        };
        self.making = true;
        while self.queued.values().any(|(_, r)| continues(r, end, len)) {
            let Some(next) = self.ask() else { break };
            let part = self.parts.contains_key(&next.id);
            if part || !continues(&next, end, len) || len + next.extent.len() > COALESCE {
                self.staged = Some(next);
                break;
            }
            (end, len) = (next.extent.end(), len + next.extent.len());
            requests.push(next);
        }
        self.making = false;
        self.launch(first.id, requests);
    }

    fn launch(&mut self, id: RequestId, requests: Vec<Request>) {
        self.flying.push(Command { id, requests, dispatched: self.now });
    }

    /// Ask the policy once, and check its answer.
    fn ask(&mut self) -> Option<Request> {
        let in_flight: usize = self.flying.iter().map(|c| c.requests.len()).sum();
        let commands = self.flying.len() + usize::from(self.making);
        let view = DeviceView {
            in_flight: in_flight as u32,
            depth: self.depth as u32,
            commands: commands as u32,
            ..DeviceView::idle(self.head, &self.profile)
        };
        let decision = self.policy.decide(self.now, &view);
        self.hold = None;
        match decision {
            Decision::Dispatch(id) => {
                let Some((_, request)) = self.queued.remove(&id) else {
                    panic!("{id:?} is dispatched at {}, and is not queued", self.now);
                };
                if let Some(out) = self.parts.get_mut(&id) {
                    *out += 1;
                }
                self.head = request.extent.end();
                self.dispatched += 1;
                self.holds_in_a_row = 0;
                writeln!(self.log, "{} {} {:?}", self.now, id.slot(), request.vm).unwrap();
                Some(request)
            }
            Decision::Hold { until, why } => {
                assert!(!self.queued.is_empty(), "a hold with nothing queued at {}", self.now);
                assert!(self.now < until, "a hold until {until} at {}", self.now);
                assert!(until.since(self.now) <= HOLD_MAX, "held until {until} at {}", self.now);
                assert!(self.holds.contains(&why), "'{why}' is no cause of its entry's");
                writeln!(self.log, "{} hold {why} until {until}", self.now).unwrap();
                self.hold = Some(until);
                None
            }
            Decision::DispatchPart { id, len } => {
                let request = self.part(id, len);
                self.head = request.extent.end();
                self.holds_in_a_row = 0;
                writeln!(self.log, "{} {} {}", self.now, id.slot(), request.extent).unwrap();
                Some(request)
            }
            Decision::Wait { until, why } => {
                assert!(!self.queued.is_empty(), "a wait with nothing queued at {}", self.now);
                assert!(commands > 0, "a wait with nothing in flight at {}", self.now);
                assert!(self.holds.contains(&why), "'{why}' is no cause of its entry's");
                writeln!(self.log, "{} wait {why}", self.now).unwrap();
                self.hold = until;
                None
            }
            Decision::Idle => {
                let n = self.queued.len();
                assert_eq!(n, 0, "idle at {} with requests queued", self.now);
                None
            }
        }
    }

    /// Cuts the first `len` sectors off the queued rest of a request.
    fn part(&mut self, id: RequestId, len: Sectors) -> Request {
        let Some((_, whole)) = self.queued.get_mut(&id) else {
            panic!("a part of {id:?} is dispatched at {}, and it is not queued", self.now);
        };
        let (first, rest) = whole.extent.split(len);
        let request = Request { extent: first, ..*whole };
        match rest {
            Some(rest) => whole.extent = rest,
            None => {
                self.queued.remove(&id);
                self.dispatched += 1;
            }
        }
        if rest.is_some() || self.parts.contains_key(&id) {
            *self.parts.entry(id).or_default() += 1;
        }
        request
    }

    /// Lets time pass, with a decision where a hold ends.
    pub fn wait(&mut self, span: Nanos) {
        let end = self.now + span;
        while let Some(until) = self.hold.filter(|&until| until <= end) {
            self.now = until;
            self.hold = None;
            if self.flying.len() == self.depth {
                continue; // no room: nobody asks before a completion
            }
            self.holds_in_a_row += 1;
            let n = self.holds_in_a_row;
            assert!(n <= HOLDS_IN_A_ROW_MAX, "{n} holds without progress by {until}");
            self.pump();
        }
        self.now = end;
    }

    /// Complete everything that is left, each command after `service`.
    pub fn drain(&mut self, service: Nanos) {
        let mut steps = 0;
        loop {
            self.pump();
            if !self.flying.is_empty() {
                self.wait(service);
                self.complete(0);
            } else if let Some(until) = self.hold {
                self.wait(until.since(self.now));
            } else {
                assert_eq!(self.queued.len(), 0, "nothing goes and nothing is held");
                return;
            }
            steps += 1;
            assert!(steps < 100_000, "the policy does not come to an end");
        }
    }

    pub fn metrics(&self) {
        self.policy.metrics(&mut |name, value| {
            assert!(value.is_finite(), "metric {name} is {value}");
        });
    }
}

/// Knuth's generator: enough for a trace, and the same everywhere.
pub struct Lcg(pub u64);

impl Lcg {
    /// The next number, less than `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}
