//! A cloud volume: block storage over a network, whose provider caps I/Os and
//! bytes a second, lets a volume exceed its base rate while it has credit, and
//! adds a latency that no load makes shorter.
//!
//! - **Caps.** Commands pass a gate one after the other. A command holds it for
//!   the longest that any cap asks: its I/Os at the rate of I/Os, its bytes at
//!   the rate of bytes. A command counts as one I/O for each started
//!   [`CloudSpec::unit_bytes`] (256 KiB on EBS) and is through with its last one.
//! - **Credit.** A token bucket for each cap: it starts full, refills at the base
//!   rate, and a command takes as much from it as it counts. With tokens the
//!   burst rate holds, without them the base rate. (EBS and Azure state it so.)
//! - **Latency.** Behind the gate, a floor and an exponentially distributed
//!   addition. The addition is a fixed sequence that follows from the profile's
//!   seed and the command's number, so that a run can be repeated.
//!
//! So beyond base rate × latency commands in flight, the rest only waits at the gate, in order of
//! arrival; commands behind the gate may overtake.
//!
//! Left out: merging of adjacent I/Os (EBS does it up to 256 KiB), the caps of the instance that
//! the volume is attached to, noise of neighbours at the provider, and the slow first touch of a
//! volume made from a snapshot.

use crate::DeviceModel;
use crate::in_flight::{InFlight, assert_inside};
use seekway_core::mix::nth;
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Sectors};

/// A cap on I/Os or on bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cap {
    /// Sustained rate, a second; at least 1.
    pub base: u64,
    /// While there is credit; at least `base`, which is a volume that cannot burst.
    pub burst: u64,
    /// Size of the bucket in I/Os or bytes; 0 for a volume that cannot burst.
    pub credit: u64,
}

/// Everything that a profile states of a cloud volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CloudSpec {
    /// Sectors, at least 1.
    pub capacity: u64,
    /// Cap on I/Os a second, each of at most `unit_bytes`.
    pub ios: Cap,
    /// Cap on bytes a second; discards and flushes count as none.
    pub bytes: Cap,
    /// Bytes of a command that count as one I/O, at least 1.
    pub unit_bytes: u64,
    /// The least that a read takes.
    pub read_latency_ns: u64,
    /// The least that a write takes.
    pub write_latency_ns: u64,
    /// Mean of the random addition.
    pub spread_ns: u64,
    /// Where the sequence of these additions begins.
    pub seed: u64,
    /// Commands that the volume takes at once, at least 1.
    pub queue_depth: u32,
}

const NS: u128 = 1_000_000_000;
/// Steps of the table of additions. The longest is 7.6 times the mean.
const STEPS: usize = 1 << 10;

/// The credit of a cap over time.
struct Bucket {
    cap: Cap,
    /// Tokens times 10⁹, so that a nanosecond earns a whole number.
    level: u128,
    /// Until when it is worked out, in ns.
    at_ns: u64,
}

impl Bucket {
    fn full(cap: Cap) -> Bucket {
        Bucket { cap, level: u128::from(cap.credit) * NS, at_ns: 0 }
    }

    /// Refills up to `now_ns`.
    fn refill(&mut self, now_ns: u64) {
        let earned = u128::from(self.cap.base) * u128::from(now_ns - self.at_ns);
        self.level = (self.level + earned).min(u128::from(self.cap.credit) * NS);
        self.at_ns = now_ns;
    }

    /// Time for which the gate stays closed after `amount`: at the burst rate, or until the missing
    /// credit is earned.
    fn hold_ns(&self, amount: u64) -> u64 {
        let asked = u128::from(amount) * NS;
        let bursting = asked.div_ceil(u128::from(self.cap.burst));
        let missing = asked.saturating_sub(self.level).div_ceil(u128::from(self.cap.base));
        u64::try_from(bursting.max(missing)).unwrap_or(u64::MAX / 4)
    }

    /// Takes `amount`, which kept the gate closed until `until_ns`.
    fn take(&mut self, amount: u64, until_ns: u64) {
        let earned = u128::from(self.cap.base) * u128::from(until_ns - self.at_ns);
        let left = (self.level + earned).saturating_sub(u128::from(amount) * NS);
        self.level = left.min(u128::from(self.cap.credit) * NS);
        self.at_ns = until_ns;
    }

    /// Credit that is left, in whole I/Os or bytes.
    fn tokens(&self) -> f64 {
        (self.level / NS) as f64
    }
}

#[derive(Default)]
struct Counts {
    reads: u64,
    writes: u64,
    billed: u64,
    bytes: u64,
    waited_ns: u64,
}

pub struct Cloud {
    spec: CloudSpec,
    ios: Bucket,
    bytes: Bucket,
    /// When the gate is free.
    gate_ns: u64,
    /// Times on top of the floor, by quantile.
    additions_ns: Vec<u64>,
    /// Number of commands that arrived.
    number: u64,
    in_flight: InFlight,
    counts: Counts,
}

impl Cloud {
    /// A volume with all its credit, at rest at time 0.
    pub fn new(spec: CloudSpec) -> Cloud {
        let addition = |step: usize| {
            let below = (step as f64 + 0.5) / STEPS as f64;
            (-(1.0 - below).ln() * spec.spread_ns as f64).round() as u64
        };
        Cloud {
            ios: Bucket::full(spec.ios),
            bytes: Bucket::full(spec.bytes),
            gate_ns: 0,
            additions_ns: (0..STEPS).map(addition).collect(),
            number: 0,
            in_flight: InFlight::new(spec.queue_depth),
            counts: Counts::default(),
            spec,
        }
    }

    /// Lets `bytes` in `billed` I/Os through the gate; returns the time of the last.
    fn pass(&mut self, now_ns: u64, billed: u64, bytes: u64) -> u64 {
        let begin_ns = self.gate_ns.max(now_ns);
        self.ios.refill(begin_ns);
        self.bytes.refill(begin_ns);
        let hold_ns = |ios, bytes| self.ios.hold_ns(ios).max(self.bytes.hold_ns(bytes));
        let all_ns = hold_ns(billed, bytes);
        // The first unit goes through at once and is paid for after it.
        let rest_ns = if billed > 1 {
            all_ns - hold_ns(1, bytes.min(self.spec.unit_bytes)).min(all_ns)
        } else {
            0
        };
        self.gate_ns = begin_ns + all_ns;
        self.ios.take(billed, self.gate_ns);
        self.bytes.take(bytes, self.gate_ns);
        self.counts.billed += billed;
        self.counts.bytes += bytes;
        self.counts.waited_ns += begin_ns + rest_ns - now_ns;
        begin_ns + rest_ns
    }

    /// Computes the command's time behind the gate.
    fn latency_ns(&mut self, floor_ns: u64) -> u64 {
        let step = nth(self.spec.seed.wrapping_add(self.number)) as usize % STEPS;
        self.number += 1;
        floor_ns + self.additions_ns[step]
    }

    fn accept(&mut self, now_ns: u64, command: &Request) -> u64 {
        let bytes = command.extent.len().bytes();
        let billed = bytes.div_ceil(self.spec.unit_bytes);
        let through_ns = match command.op {
            Op::Read => {
                self.counts.reads += 1;
                self.pass(now_ns, billed, bytes)
            }
            // The provider knows no way to write zeroes but to write them.
            Op::Write | Op::WriteZeroes => {
                self.counts.writes += 1;
                self.pass(now_ns, billed, bytes)
            }
            Op::Discard => self.pass(now_ns, 1, 0),
            // Completed writes are durable: there is nothing to flush, and it is not billed.
            Op::Flush => now_ns,
        };
        let floor_ns = match command.op {
            Op::Read => self.spec.read_latency_ns,
            _ => self.spec.write_latency_ns,
        };
        through_ns + self.latency_ns(floor_ns)
    }
}

impl DeviceModel for Cloud {
    /// No revolution and no seek: all offsets cost the same.
    fn profile(&self) -> DeviceProfile {
        DeviceProfile::unknown(Sectors::new(self.spec.capacity), false)
    }

    fn queue_depth(&self) -> u32 {
        self.spec.queue_depth
    }

    fn submit(&mut self, now: Instant, command: &Request) {
        assert_inside(command, self.spec.capacity);
        let done_ns = self.accept(now.as_nanos(), command);
        self.in_flight.enter(done_ns, command.id);
    }

    fn next_completion(&self) -> Option<Instant> {
        self.in_flight.next()
    }

    fn pop_completed(&mut self, now: Instant) -> Option<RequestId> {
        self.in_flight.pop(now)
    }

    /// `billed_ios` and `billed_mib` passed the gate, which delayed commands by `gate_ms` in all;
    /// `io_credit` and `byte_credit_mib` remain.
    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        let mib = f64::from(1 << 20);
        sink("reads", self.counts.reads as f64);
        sink("writes", self.counts.writes as f64);
        sink("billed_ios", self.counts.billed as f64);
        sink("billed_mib", self.counts.bytes as f64 / mib);
        sink("gate_ms", self.counts.waited_ns as f64 / 1e6);
        sink("io_credit", self.ios.tokens());
        sink("byte_credit_mib", self.bytes.tokens() / mib);
    }
}

#[cfg(test)]
mod tests;
