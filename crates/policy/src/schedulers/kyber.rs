//! **kyber**: tokens for reads and for writes; a kind of request that keeps its
//! latency target gives tokens up while another one misses its own.
//!
//! Source: Linux `block/kyber-iosched.c`, 6.12 (unchanged since 4.20 but for names).
//!
//! Reads and writes are *domains*, each with a queue in order of arrival and a
//! number of tokens. A command needs a token of its domain from its dispatch to
//! its completion. Domains take turns: up to 16 reads, then up to 8 writes; a
//! domain without a request or without a token is passed over. If neither can
//! send, the policy waits for a completion.
//!
//! Each completion adds two samples to histograms of its domain: the time on
//! the device, and the time since the request was admitted. A histogram has
//! eight buckets, each a quarter of the target wide; the upper four are late. At
//! most 100 ms after a completion a timer looks at them. A percentile counts
//! once there are 500 samples or a second has passed. If the 90th percentile of
//! device time is late in some domain, the device is congested. Then every
//! domain gets `tokens · (bucket + 1) / 4` tokens, by the bucket of its 99th
//! percentile of total time: fewer when it is early, more when it is late.
//! Without congestion only late domains change, and these gain.
//!
//! Ahead of the domains stand the tags of the block layer (`nr_requests`): twice
//! the device's depth, at most 256. A request that finds none waits outside, in
//! order of arrival, and its total time begins when it gets one. Asynchronous
//! writes have at most three quarters of them, so that some stay for the others.
//!
//! The numbers of tokens, 256 for reads and 128 for writes, do not depend on the
//! device in Linux, nor here; only the tags do. So tokens restrain nothing until
//! the policy has cut them below the device's depth.
//!
//! Where Seekway differs:
//! - The domains of discards and of everything else are missing: the dispatcher
//!   sends these as barriers and policies do not see them.
//! - There is one queue for each domain, not one for each CPU and domain.
//! - Linux holds back asynchronous requests by which bits of a bitmap they may
//!   have; here by how many tags they have.
//! - There is no timer: what the timer would have done is done at the first
//!   input or decision after it was due.
//! - Samples and tokens are those of commands: runs of adjacent requests count
//!   as one, as they are merged in Linux.

use crate::entry::Entry;
use crate::runs::Run;
use seekway_core::params::{Kind, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, Links, Pool, Slots};
use seekway_core::request::{Completion, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler};
use seekway_core::units::{Instant, Nanos};

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("read_target", Kind::Duration, "2ms", "latency target of reads (read_lat_nsec)"),
    param("write_target", Kind::Duration, "10ms", "latency target of writes (write_lat_nsec)"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "kyber",
    summary: "tokens for reads and writes, adjusted to latency targets; knows no VMs",
    source: "Linux block/kyber-iosched.c, 6.12",
    params: PARAMS,
    holds: &[TOKENS],
    keeps: &[],
    starves: &[],
    build: |params| Ok(Box::new(Kyber::new(params))),
};

/// Waits for a token or a tag, which only a completion returns.
const TOKENS: &str = "tokens";

const READ: usize = 0;
const WRITE: usize = 1;
/// The most reads and writes in flight, where their numbers begin (`kyber_depth`).
const TOKENS_MAX: [u32; 2] = [256, 128];
/// Requests in a row of reads and of writes (`kyber_batch_size`).
const BATCH: [u32; 2] = [16, 8];
/// Buckets of a histogram, and how many of them lie within the target.
const BUCKETS: usize = 8;
const GOOD_BUCKETS: usize = 4;
/// Samples that make a percentile at once, and the time after which fewer do.
const SAMPLES: u32 = 500;
const SAMPLES_WAIT: Nanos = Nanos::from_secs(1);
/// From a completion to the timer, at most.
const TIMER: Nanos = Nanos::from_millis(100);
/// Tags of the block layer: twice the depth, which counts up to 128 (`BLKDEV_DEFAULT_RQ`).
const DEPTH_COUNTED_MAX: u32 = 128;
/// Percentage of the tags that asynchronous requests may take.
const ASYNC_PERCENT: u32 = 75;

#[derive(Clone, Copy, Default)]
struct Histogram([u32; BUCKETS]);

impl Histogram {
    /// Counts a latency in its bucket, a quarter of the target wide (`add_latency_sample`).
    fn add(&mut self, target: Nanos, latency: Nanos) {
        let width = (target.get() / 4).max(1);
        let bucket = (latency.get().saturating_sub(1) / width).min(BUCKETS as u64 - 1);
        self.0[bucket as usize] += 1;
    }

    fn samples(&self) -> u32 {
        self.0.iter().sum()
    }

    /// The bucket of a percentile. The histogram is empty afterwards.
    fn take_percentile(&mut self, percent: u32) -> usize {
        let mut rank = (self.samples() * percent).div_ceil(100);
        let buckets = std::mem::take(&mut self.0);
        for (bucket, &samples) in buckets.iter().enumerate() {
            if samples >= rank {
                return bucket;
            }
            rank -= samples;
        }
        BUCKETS - 1
    }
}

/// Kyber's tokens and latencies of reads, or of writes.
#[derive(Default)]
struct Domain {
    target: Nanos,
    /// Those that have a tag, oldest first.
    fifo: ExpiryQueue,
    tokens_max: u32,
    tokens: u32,
    /// Commands in flight: tokens taken.
    taken: u32,
    device_time: Histogram,
    total_time: Histogram,
    /// When fewer samples will do; set when the first were seen. One for both histograms.
    enough_at: Option<Instant>,
    /// The last 99th percentile, until a congestion has used it.
    p99: Option<usize>,
}

impl Domain {
    fn new(target: Nanos, tokens: u32) -> Self {
        Domain { target, tokens_max: tokens, tokens, ..Domain::default() }
    }

    /// `calculate_percentile`: `None` until there are enough samples.
    fn percentile(&mut self, now: Instant, device: bool, percent: u32) -> Option<usize> {
        let histogram = if device { &mut self.device_time } else { &mut self.total_time };
        let samples = histogram.samples();
        if samples == 0 {
            return None;
        }
        let enough_at = *self.enough_at.get_or_insert(now + SAMPLES_WAIT);
        if samples < SAMPLES && now < enough_at {
            return None;
        }
        self.enough_at = None;
        Some(histogram.take_percentile(percent))
    }

    /// The domain's part of `kyber_timer_fn`: its number of tokens anew.
    fn adjust(&mut self, now: Instant, congested: bool) {
        let mut p99 = self.percentile(now, false, 99);
        if congested {
            p99 = p99.or(self.p99);
            self.p99 = None;
        } else if p99.is_some() {
            self.p99 = p99;
        }
        if let Some(bucket) = p99.filter(|&bucket| congested || bucket >= GOOD_BUCKETS) {
            let tokens = u64::from(self.tokens) * (bucket as u64 + 1) / GOOD_BUCKETS as u64;
            self.tokens = tokens.clamp(1, u64::from(self.tokens_max)) as u32;
        }
    }
}

/// A request's record from arrival to completion.
#[derive(Clone, Copy)]
struct Known {
    /// Its number among all arrivals.
    arrival: u64,
    /// When it got its tag.
    admitted: Option<Instant>,
    /// Is the request in flight and the first of its command? Then it has a token.
    leads: bool,
}

#[derive(Default)]
struct Kyber {
    queued: Pool,
    links: Links,
    known: Slots<Known>,
    domains: [Domain; 2],
    current: usize,
    /// Commands of the current domain since it had its turn.
    batched: u32,
    /// Requests without a tag: asynchronous, synchronous.
    outside: [ExpiryQueue; 2],
    /// Tags; none until the device's depth is known.
    tags: u32,
    /// Tags taken by asynchronous, by synchronous requests.
    tags_taken: [u32; 2],
    arrivals: u64,
    /// When the timer fires.
    timer: Option<Instant>,
    run: Run,
    /// Number of times that the device had room and no domain a token.
    throttled: u64,
}

fn domain(request: &Request) -> usize {
    if request.op == Op::Read { READ } else { WRITE }
}

impl Kyber {
    fn new(params: &Params) -> Self {
        Kyber {
            domains: [
                Domain::new(params.duration("read_target"), TOKENS_MAX[READ]),
                Domain::new(params.duration("write_target"), TOKENS_MAX[WRITE]),
            ],
            current: READ,
            ..Kyber::default()
        }
    }

    /// `kyber_timer_fn`, if it was due.
    fn tick(&mut self, now: Instant) {
        if self.timer.is_none_or(|due| now < due) {
            return;
        }
        self.timer = None;
        let mut congested = false;
        for domain in &mut self.domains {
            let p90 = domain.percentile(now, true, 90);
            congested |= p90.is_some_and(|bucket| bucket >= GOOD_BUCKETS);
        }
        for domain in &mut self.domains {
            domain.adjust(now, congested);
        }
    }

    /// Give tags to requests outside, the oldest first.
    fn admit(&mut self, now: Instant) {
        while self.tags_taken[0] + self.tags_taken[1] < self.tags
            && let Some(id) = self.next_outside()
        {
            let request = self.queued.get(id).expect("outside: queued");
            let sync = usize::from(request.sync);
            self.outside[sync].remove(&mut self.links, id);
            self.domains[domain(request)].fifo.push(&mut self.links, id);
            self.known.get_mut(id).expect("queued: known").admitted = Some(now);
            self.tags_taken[sync] += 1;
        }
    }

    /// The oldest request outside that may have a tag.
    fn next_outside(&self) -> Option<RequestId> {
        let most = (self.tags * ASYNC_PERCENT / 100).max(1);
        let [others, sync] = [0, 1].map(|sync| self.outside[sync].head());
        let others = others.filter(|_| self.tags_taken[0] < most);
        let arrival = |&id: &RequestId| self.known.get(id).map(|known| known.arrival);
        sync.into_iter().chain(others).min_by_key(arrival)
    }

    /// The oldest request of a domain if it has a token, or needs none because
    /// it continues the command that is being made.
    fn sendable(&self, domain: usize) -> Option<RequestId> {
        let Domain { fifo, taken, tokens, .. } = &self.domains[domain];
        let head = fifo.head()?;
        let request = self.queued.get(head).expect("in a queue: queued");
        (taken < tokens || self.run.continues(request)).then_some(head)
    }

    /// The request that goes next, by batches and turns (`kyber_dispatch_request`).
    fn select(&mut self) -> Option<RequestId> {
        if self.batched < BATCH[self.current]
            && let Some(id) = self.sendable(self.current)
        {
            return Some(id);
        }
        self.batched = 0;
        for _ in 0..self.domains.len() {
            self.current = 1 - self.current;
            if let Some(id) = self.sendable(self.current) {
                return Some(id);
            }
        }
        None
    }

    /// A request has left the pool unserved.
    fn leaves(&mut self, request: &Request) {
        let known = self.known.remove(request.id).expect("queued: known");
        let queue = match known.admitted {
            Some(_) => {
                self.tags_taken[usize::from(request.sync)] -= 1;
                &mut self.domains[domain(request)].fifo
            }
            None => &mut self.outside[request.sync as usize],
        };
        queue.remove(&mut self.links, request.id);
    }
}

impl Scheduler for Kyber {
    fn detach(&mut self, now: Instant, vm: VmId) -> Vec<Request> {
        let leaving = self.queued.take_vm(vm);
        leaving.iter().for_each(|request| self.leaves(request));
        self.admit(now);
        leaving
    }

    fn withdraw(&mut self, now: Instant, id: RequestId) {
        let request = self.queued.take(id);
        self.leaves(&request);
        self.admit(now);
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.tick(now);
        self.run.end();
        let known = Known { arrival: self.arrivals, admitted: None, leads: false };
        self.arrivals += 1;
        self.known.insert(request.id, known);
        self.outside[request.sync as usize].push(&mut self.links, request.id);
        self.queued.insert(request);
        if self.tags > 0 {
            self.admit(now);
        }
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.tick(now);
        self.run.end();
        let Some(known) = self.known.remove(completion.request.id) else { return };
        self.tags_taken[usize::from(completion.request.sync)] -= 1;
        if known.leads {
            let domain = &mut self.domains[domain(&completion.request)];
            domain.taken -= 1;
            let admitted = known.admitted.expect("dispatched: admitted");
            domain.device_time.add(domain.target, now.since(completion.dispatched));
            domain.total_time.add(domain.target, now.since(admitted));
            self.timer.get_or_insert(now + TIMER);
        }
        self.admit(now);
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        self.tick(now);
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        self.tags = 2 * device.depth.clamp(1, DEPTH_COUNTED_MAX);
        self.admit(now);
        let Some(id) = self.select() else {
            self.throttled += 1;
            return Decision::Wait { until: None, why: TOKENS };
        };
        let request = self.queued.take(id);
        let leads = !self.run.extend(&request);
        let domain = &mut self.domains[domain(&request)];
        domain.fifo.remove(&mut self.links, id);
        domain.taken += leads as u32;
        self.batched += leads as u32;
        self.known.get_mut(id).expect("queued: known").leads = leads;
        Decision::Dispatch(id)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("read_tokens", f64::from(self.domains[READ].tokens));
        sink("write_tokens", f64::from(self.domains[WRITE].tokens));
        sink("throttled", self.throttled as f64);
    }
}

/// The rules of kyber, one by one.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedulers::tests::Rig;

    /// `n` reads or writes, each on the device for `us`, the next one after the last.
    fn serve(rig: &mut Rig, op: Op, n: u64, us: u64) {
        for i in 0..n {
            rig.arrive(0, 0, op, true, 1_000_000 + 100 * i);
            rig.serve(us);
        }
    }

    #[test]
    fn sixteen_reads_then_eight_writes() {
        let mut rig = Rig::new("kyber");
        rig.reads(0, (0..40).map(|i| 1_000 + 100 * i));
        rig.writes(1, (0..20).map(|i| 100_000 + 100 * i));
        let reads: Vec<bool> = rig.serve_n(60).iter().map(|&lba| lba < 100_000).collect();
        let turns: Vec<usize> = reads.chunk_by(|a, b| a == b).map(<[bool]>::len).collect();
        assert_eq!(turns, [16, 8, 16, 8, 8, 4]);
    }

    #[test]
    fn a_domain_goes_in_order_of_arrival_whoevers_the_requests_are() {
        let mut rig = Rig::new("kyber");
        rig.reads(0, [500, 100]);
        rig.reads(1, [900]);
        rig.reads(0, [300]);
        assert_eq!(rig.serve_n(4), [500, 100, 900, 300]);
    }

    #[test]
    fn without_a_token_it_waits_and_the_other_domain_goes_on() {
        let mut rig = Rig::new("kyber");
        rig.writes(0, (0..129).map(|i| 100 * i));
        for n in 0..128 {
            assert_eq!(rig.dispatch(), 100 * n);
        }
        assert_eq!(rig.decide(), Decision::Wait { until: None, why: TOKENS });
        rig.read(0, 900_000);
        assert_eq!(rig.dispatch(), 900_000);
        rig.complete();
        assert_eq!(rig.dispatch(), 12_800);
        assert_eq!(rig.metric("throttled"), 1.0);
    }

    #[test]
    fn a_run_of_adjacent_requests_takes_one_token() {
        let mut rig = Rig::new("kyber");
        rig.writes(0, [100, 108, 116]);
        rig.writes(0, (5..133).map(|i| 100 * i));
        assert_eq!((rig.dispatch(), rig.dispatch(), rig.dispatch()), (100, 108, 116));
        for n in 5..132 {
            assert_eq!(rig.dispatch(), 100 * n);
        }
        assert_eq!(rig.decide(), Decision::Wait { until: None, why: TOKENS });
        rig.complete();
        assert_eq!(rig.dispatch(), 13_200);
    }

    #[test]
    fn buckets_are_quarters_of_the_target() {
        let mut histogram = Histogram::default();
        for us in [0, 500, 501, 2_000, 2_001, 3_501, 60_000_000] {
            histogram.add(Nanos::from_millis(2), Nanos::from_micros(us));
        }
        assert_eq!(histogram.0, [2, 1, 0, 1, 1, 0, 0, 2]);
        assert_eq!(histogram.take_percentile(50), 3);
        assert_eq!(histogram.samples(), 0);
    }

    #[test]
    fn late_reads_take_tokens_from_early_writes() {
        let mut rig = Rig::new("kyber");
        // Reads of 6 ms, target 2 ms; writes of 0.2 ms, target 10 ms: the lowest bucket.
        for _ in 0..4 {
            serve(&mut rig, Op::Read, 500, 6_000);
            serve(&mut rig, Op::Write, 500, 200);
        }
        assert_eq!(rig.metric("read_tokens"), 256.0);
        assert!(rig.metric("write_tokens") <= 128.0 / 16.0, "{}", rig.metric("write_tokens"));
    }

    #[test]
    fn early_domains_keep_their_tokens_without_congestion() {
        let mut rig = Rig::new("kyber");
        serve(&mut rig, Op::Read, 2_000, 400);
        serve(&mut rig, Op::Write, 2_000, 400);
        assert_eq!((rig.metric("read_tokens"), rig.metric("write_tokens")), (256.0, 128.0));
    }

    #[test]
    fn a_flood_of_reads_is_never_throttled_for_a_quiet_reader() {
        let mut rig = Rig::new("kyber");
        // 64 outstanding, 8 ms each: late, so the domain would even gain tokens.
        rig.reads(0, (0..64).map(|i| 100 * i));
        for i in 0..4_000 {
            while rig.decide() != Decision::Idle {}
            rig.wait_us(125);
            rig.complete();
            rig.read(0, 1_000_000 + 100 * i);
        }
        assert_eq!((rig.metric("read_tokens"), rig.metric("throttled")), (256.0, 0.0));
    }

    #[test]
    fn a_percentile_counts_after_500_samples_or_a_second() {
        let mut domain = Domain::new(Nanos::from_millis(2), 256);
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        domain.device_time.add(domain.target, Nanos::from_millis(6));
        assert_eq!(domain.percentile(at(100), true, 90), None);
        assert_eq!(domain.percentile(at(1_099), true, 90), None);
        assert_eq!(domain.percentile(at(1_100), true, 90), Some(7));
        (0..500).for_each(|_| domain.device_time.add(domain.target, Nanos::from_millis(1)));
        assert_eq!(domain.percentile(at(1_101), true, 90), Some(1));
    }

    #[test]
    fn congestion_uses_a_saved_percentile_once() {
        let mut domain = Domain::new(Nanos::from_millis(2), 256);
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        (0..500).for_each(|_| domain.total_time.add(domain.target, Nanos::from_micros(900)));
        domain.adjust(at(100), false);
        assert_eq!((domain.tokens, domain.p99), (256, Some(1)));
        domain.adjust(at(200), true);
        assert_eq!((domain.tokens, domain.p99), (128, None));
        domain.adjust(at(300), true);
        assert_eq!(domain.tokens, 128);
        // A domain that is late gains, congested or not, up to where it began.
        (0..500).for_each(|_| domain.total_time.add(domain.target, Nanos::from_micros(9_000)));
        domain.adjust(at(400), false);
        assert_eq!(domain.tokens, 256);
    }

    #[test]
    fn at_least_one_token_stays() {
        let mut domain = Domain::new(Nanos::from_millis(2), 3);
        for ms in 0..4 {
            (0..500).for_each(|_| domain.total_time.add(domain.target, Nanos::new(1)));
            domain.adjust(Instant::ZERO + Nanos::from_millis(ms), true);
        }
        assert_eq!(domain.tokens, 1);
    }

    #[test]
    fn asynchronous_requests_get_three_quarters_of_the_tags() {
        // The rig's device is deep: 256 tags, and as many tokens of reads.
        let mut rig = Rig::new("kyber");
        for i in 0..300 {
            rig.arrive(0, 0, Op::Read, false, 100 * i);
        }
        for n in 0..192 {
            assert_eq!(rig.dispatch(), 100 * n);
        }
        assert_eq!(rig.decide(), Decision::Wait { until: None, why: TOKENS });
        rig.read(1, 1_000_000);
        assert_eq!(rig.dispatch(), 1_000_000);
        // One that is done makes room for the next one.
        rig.complete();
        assert_eq!(rig.dispatch(), 19_200);
    }

    #[test]
    fn tags_go_in_order_of_arrival() {
        let mut rig = Rig::new("kyber");
        rig.reads(0, (0..300).map(|i| 100 * i));
        let write = 50_000_000;
        rig.write(1, write);
        // 256 reads have tags. When the 44 others have theirs, it is the write's turn.
        let order = rig.serve_n(301);
        let place = order.iter().position(|&lba| lba == write).unwrap();
        assert!((45..=61).contains(&place), "{place}");
    }
}
