//! Does a disk carry a load? Figures of a run, and the limits that they exceed.

use crate::json::{CacheChoice, mib};
use crate::runs::Outcome;
use seekway_core::request::Op;
use seekway_core::units::{Instant, Nanos};
use seekway_report::rank::{Better, EQUAL_WITHIN, best};
use seekway_sim::engine::utilisation;
use seekway_sim::metrics::{self, Times, ms};
use seekway_sim::{RunResult, VmResult};
use serde::Serialize;

/// Bursts that are shown.
const BURSTS_MAX: usize = 5;

/// Requests of a VM that are judged together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Read,
    /// Somebody waits for it.
    SyncWrite,
    /// Nobody waits for it.
    Write,
}

impl Operation {
    pub fn is_waited_for(self) -> bool {
        self != Operation::Write
    }

    pub fn plural(self) -> &'static str {
        match self {
            Operation::Read => "reads",
            Operation::SyncWrite => "synchronous writes",
            Operation::Write => "writes",
        }
    }
}

/// Service of a VM's requests of one kind. Scripts read these keys.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Served {
    pub vm: String,
    pub operation: Operation,
    pub requests: u64,
    pub mib: f64,
    pub mean_ms: f64,
    pub p99_ms: f64,
    pub longest_ms: f64,
    /// Largest amount that had come and was not on the disk; null for reads.
    pub backlog_mib: Option<f64>,
}

/// A time in which requests were always under way.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Burst {
    pub from_s: f64,
    pub length_s: f64,
    /// Largest number of requests under way or waiting in guests.
    pub requests: u64,
    /// Their largest amount.
    pub mib: f64,
    /// Longest wait of any of them.
    pub longest_ms: f64,
    /// The request that somebody waited for longest; null if nobody waited for any.
    pub waiter: Option<Waiter>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Waiter {
    pub vm: String,
    pub operation: Operation,
    pub longest_ms: f64,
}

/// Service of a load by a stack on a disk. Scripts read these keys.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Service {
    /// As sentences and tables call its stack.
    #[serde(skip)]
    pub label: String,
    pub policy: String,
    #[serde(flatten)]
    pub cache: CacheChoice,
    /// Time for which the disk had a command, or the policy kept it idle while requests waited, over
    /// the time in which the requests came: above 1 if they came faster than the disk is. Null if
    /// they came in less time than one of them may take: that is no rate.
    pub busy: Option<f64>,
    /// Time from the first request until all were done.
    pub lasted_s: f64,
    /// Time from the last request until all were done.
    pub behind_s: f64,
    pub served: Vec<Served>,
    /// The worst ones, by their longest wait over its limit.
    pub bursts: Vec<Burst>,
}

/// Limits of a load that a disk carries.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Of the p99 of requests that somebody waits for.
    pub p99_ms: f64,
    /// Of the longest wait of any request. Writes that nobody waits for drain in that time.
    pub longest_ms: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The disk's time: `busy`, at most 1.
    Rate,
    /// In ms.
    P99,
    /// In ms.
    Longest,
}

/// A figure above its limit.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Excess {
    pub of: Limit,
    /// Null for the rate, as is the operation.
    pub vm: Option<String>,
    pub operation: Option<Operation>,
    pub value: f64,
    pub limit: f64,
}

impl Excess {
    fn ratio(&self) -> f64 {
        self.value / self.limit
    }
}

impl Service {
    /// The limits that it exceeds: the rate first, then by how far. None if the disk carries the
    /// load.
    pub fn excesses(&self, limits: &Limits) -> Vec<Excess> {
        // A short trace says nothing of the rate: what it left has to take a while, and so has the
        // whole of it. Writes that nobody waits for may all come at once.
        let is_waited_for = self.served.iter().any(|served| served.operation.is_waited_for());
        let least_ms = if is_waited_for { limits.p99_ms } else { limits.longest_ms };
        let is_rate = self.behind_s * 1e3 > limits.p99_ms && self.lasted_s * 1e3 > least_ms;
        self.excesses_if(limits, is_rate)
    }

    /// As [`Service::excesses`], of a load that goes on at this rate.
    pub fn excesses_in_the_long_run(&self, limits: &Limits) -> Vec<Excess> {
        self.excesses_if(limits, self.is_over_its_rate())
    }

    /// Did the requests come faster than the disk is? The last ones end after the trace does.
    pub fn is_over_its_rate(&self) -> bool {
        self.busy.is_some_and(|busy| busy > 1.0 + EQUAL_WITHIN)
    }

    fn excesses_if(&self, limits: &Limits, is_rate_judged: bool) -> Vec<Excess> {
        let Limits { p99_ms: p99_limit, longest_ms: longest_limit } = *limits;
        let of_served = |served: &Served| {
            let (of, value, limit) = match served.operation.is_waited_for() {
                true if served.p99_ms > p99_limit => (Limit::P99, served.p99_ms, p99_limit),
                _ => (Limit::Longest, served.longest_ms, longest_limit),
            };
            let (vm, operation) = (Some(served.vm.clone()), Some(served.operation));
            (value > limit).then_some(Excess { of, vm, operation, value, limit })
        };
        let mut all: Vec<Excess> = self.served.iter().filter_map(of_served).collect();
        all.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
        let rate = self.busy.filter(|busy| *busy > 1.0 && is_rate_judged).map(|busy| Excess {
            of: Limit::Rate,
            vm: None,
            operation: None,
            value: busy,
            limit: 1.0,
        });
        rate.into_iter().chain(all).collect()
    }

    /// The figure that is the largest multiple of its limit; `None` if the disk carries the load.
    pub fn largest_excess(&self, limits: &Limits) -> Option<Excess> {
        let all = self.excesses(limits).into_iter();
        all.reduce(|a, b| if b.ratio() > a.ratio() { b } else { a })
    }

    /// The largest p99 of requests that somebody waits for; `None` if there are none.
    pub fn worst_p99_ms(&self) -> Option<f64> {
        let waited = self.served.iter().filter(|served| served.operation.is_waited_for());
        waited.map(|served| served.p99_ms).reduce(f64::max)
    }

    /// The longest wait of any request.
    pub fn longest_ms(&self) -> f64 {
        self.served.iter().map(|served| served.longest_ms).fold(0.0, f64::max)
    }

    /// Figures of a run. `span`: the time in which its requests came.
    pub fn of(outcome: &Outcome, span: Option<Nanos>, limits: &Limits) -> Service {
        let result = &outcome.result;
        let last =
            |of: fn(&VmResult) -> Instant| result.vms.iter().map(of).max().unwrap_or(Instant::ZERO);
        let withheld_s = result.holds.idle.as_secs_f64();
        let busy_s = utilisation(result) * result.simulated.as_secs_f64() + withheld_s;
        let span_s = span.map(Nanos::as_secs_f64).filter(|span| span * 1e3 >= limits.p99_ms);
        let queues = result.guest_queues.as_ref();
        let bursts = queues.map_or(&[][..], |queues| &queues.bursts);
        let mut bursts: Vec<Burst> = bursts.iter().map(|burst| Burst::of(burst, result)).collect();
        // Two requests that meet are none.
        bursts.retain(|burst| burst.requests > 2);
        bursts.sort_by(|a, b| b.severity(limits).total_cmp(&a.severity(limits)));
        bursts.truncate(BURSTS_MAX);
        Service {
            label: outcome.label.clone(),
            policy: outcome.scenario.policy.clone(),
            cache: CacheChoice::new(&outcome.scenario),
            busy: span_s.map(|span| busy_s / span),
            lasted_s: last(|vm| vm.last).as_secs_f64(),
            behind_s: last(|vm| vm.last).since(last(|vm| vm.last_arrival)).as_secs_f64(),
            served: (0..result.vms.len()).flat_map(|vm| served(result, vm)).collect(),
            bursts,
        }
    }
}

/// Number of the service that comes nearest to carrying the load; of equal ones the first.
pub fn nearest(services: &[Service], limits: &Limits) -> usize {
    let ratio =
        |service: &Service| service.largest_excess(limits).map_or(0.0, |excess| excess.ratio());
    let ratios: Vec<Option<f64>> = services.iter().map(|service| Some(ratio(service))).collect();
    best(&ratios, Better::Less)[0]
}

/// Each kind of a VM's requests that it has.
fn served(result: &RunResult, vm: usize) -> Vec<Served> {
    let (name, reads) = (&result.vms[vm].name, &result.vms[vm].reads);
    type Figures<'a> = (u64, u64, &'a Times, u64);
    let one =
        |operation, (requests, bytes, times, longest_ns): Figures<'_>, backlog: Option<u64>| {
            (requests > 0).then(|| Served {
                vm: name.clone(),
                operation,
                requests,
                mib: mib(bytes),
                mean_ms: times.mean() / 1e6,
                p99_ms: ms(times.value_at_quantile(0.99)),
                longest_ms: ms(longest_ns),
                backlog_mib: backlog.map(mib),
            })
        };
    let writes = result.guest_queues.as_ref().map(|queues| &queues.writes[vm]);
    let of = |operation, writes: &metrics::Writes| {
        let longest_ns = writes.longest.get();
        let figures = (writes.requests, writes.bytes, &writes.response, longest_ns);
        one(operation, figures, Some(writes.backlog_bytes))
    };
    let all = [
        one(Operation::Read, (reads.requests, reads.bytes, &reads.response, reads.worst_ns), None),
        writes.and_then(|writes| of(Operation::SyncWrite, &writes.sync)),
        writes.and_then(|writes| of(Operation::Write, &writes.later)),
    ];
    all.into_iter().flatten().collect()
}

impl Burst {
    fn severity(&self, limits: &Limits) -> f64 {
        let waiter_ms = self.waiter.as_ref().map_or(0.0, |waiter| waiter.longest_ms);
        (waiter_ms / limits.p99_ms).max(self.longest_ms / limits.longest_ms)
    }

    fn of(burst: &metrics::Burst, result: &RunResult) -> Burst {
        // A file system of the host, behind the VMs, is not among them.
        let name = |vm: u16| result.vms.get(usize::from(vm)).map_or("host", |vm| vm.name.as_str());
        let waiter = |(vm, op, longest): (u16, Op, Nanos)| Waiter {
            vm: name(vm).to_string(),
            operation: if op == Op::Read { Operation::Read } else { Operation::SyncWrite },
            longest_ms: longest.as_millis_f64(),
        };
        Burst {
            from_s: burst.from.as_secs_f64(),
            length_s: burst.until.since(burst.from).as_secs_f64(),
            requests: burst.requests,
            mib: mib(burst.bytes),
            longest_ms: burst.longest.as_millis_f64(),
            waiter: burst.waiter.map(waiter),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const LIMITS: Limits = Limits { p99_ms: 1000.0, longest_ms: 30_000.0 };

    pub fn served(operation: Operation, p99_ms: f64, longest_ms: f64) -> Served {
        let backlog_mib = (operation != Operation::Read).then_some(512.0);
        let (vm, requests, mib, mean_ms) = ("db".into(), 1000, 4.0, p99_ms / 10.0);
        Served { vm, operation, requests, mib, mean_ms, p99_ms, longest_ms, backlog_mib }
    }

    pub fn service(busy: f64, behind_s: f64, served: Vec<Served>) -> Service {
        let cache = CacheChoice { cache_mib: None, prefetch: None };
        let (label, policy, busy) = ("fairway".into(), "fairway".into(), Some(busy));
        let lasted_s = 100.0;
        Service { label, policy, cache, busy, lasted_s, behind_s, served, bursts: Vec::new() }
    }

    fn exceeded(service: &Service) -> Vec<(Limit, Option<Operation>)> {
        service.excesses(&LIMITS).into_iter().map(|e| (e.of, e.operation)).collect()
    }

    #[test]
    fn each_kind_of_request_has_its_limit() {
        use Operation::{Read, SyncWrite, Write};
        for (operation, p99_ms, longest_ms, expected) in [
            (Read, 1000.0, 30_000.0, None),
            (Read, 1001.0, 1001.0, Some(Limit::P99)),
            (Read, 10.0, 30_001.0, Some(Limit::Longest)),
            (SyncWrite, 1001.0, 40_000.0, Some(Limit::P99)),
            // Nobody waits for them: they have to drain, that is all.
            (Write, 29_000.0, 30_000.0, None),
            (Write, 10.0, 30_001.0, Some(Limit::Longest)),
        ] {
            let made = service(0.5, 0.0, vec![served(operation, p99_ms, longest_ms)]);
            let expected: Vec<_> = expected.map(|of| (of, Some(operation))).into_iter().collect();
            assert_eq!(exceeded(&made), expected, "{operation:?} {p99_ms} {longest_ms}");
        }
    }

    #[test]
    fn the_rate_is_too_much_if_the_disk_falls_behind_and_comes_first() {
        let late = || vec![served(Operation::Read, 20_000.0, 20_000.0)];
        let rate = (Limit::Rate, None);
        assert_eq!(exceeded(&service(1.4, 20.0, late()))[0], rate);
        assert_eq!(exceeded(&service(1.4, 20.0, Vec::new())), [rate]);
        // A few milliseconds of a trace are no rate; a disk that is busy half the time has bursts.
        let short = service(90.0, 0.9, Vec::new());
        assert!(exceeded(&short).is_empty());
        assert_eq!(short.excesses_in_the_long_run(&LIMITS)[0].of, Limit::Rate);
        assert!(service(1.01, 0.9, Vec::new()).excesses_in_the_long_run(&LIMITS).is_empty());
        assert!(!exceeded(&service(0.5, 20.0, late())).contains(&rate));
        // Writes that nobody waits for may come in a burst, and drain.
        let burst = |lasted_s, operation| {
            let served = vec![served(operation, 900.0, 3_000.0)];
            exceeded(&Service { lasted_s, ..service(2.5, 3.0, served) })
        };
        assert!(burst(5.0, Operation::Write).is_empty());
        assert_eq!(burst(31.0, Operation::Write), [rate]);
        assert_eq!(burst(5.0, Operation::SyncWrite)[0], rate);
        let largest = |service: Service| service.largest_excess(&LIMITS).map(|e| e.ratio());
        assert_eq!(largest(service(1.4, 20.0, late())), Some(20.0));
        assert_eq!(largest(service(0.5, 0.0, Vec::new())), None);
    }

    #[test]
    fn of_those_as_near_to_carrying_the_load_the_first_is_taken() {
        let of = |ms| service(0.5, 0.0, vec![served(Operation::Write, 10.0, ms)]);
        let near = |all: &[f64]| nearest(&all.iter().copied().map(of).collect::<Vec<_>>(), &LIMITS);
        assert_eq!(near(&[60_000.0, 59_900.0]), 0);
        assert_eq!(near(&[60_000.0, 50_000.0, 49_900.0]), 1);
        assert_eq!(near(&[60_000.0, 29_000.0, 10.0]), 1, "both carry it");
    }

    #[test]
    fn what_is_furthest_beyond_its_limit_comes_first() {
        let reads = served(Operation::Read, 2000.0, 2000.0);
        let writes = served(Operation::Write, 10.0, 90_000.0);
        let made = service(0.5, 0.0, vec![reads, writes]);
        let order = exceeded(&made);
        assert_eq!(order[0], (Limit::Longest, Some(Operation::Write)));
        assert_eq!(order[1], (Limit::P99, Some(Operation::Read)));
    }
}
