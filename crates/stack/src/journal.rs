//! The run of a stack as text: every input and output with its time, one
//! a line, so that a live daemon's decisions can be replayed byte for byte
//! (`seekway replay`): limits, cache, prefetcher, placement and policy. The first line carries a
//! version, the policy, the device's profile and the configuration.
//!
//! ```text
//! seekway-journal 2 policy=cfq depth=1 coalesce=1024 hard=30s outstanding=262144 capacity=1953525168 rotation=8333333ns
//! 0 attach 0 weight=1 size=24000000 cached=no map=24000000/18014398509481983:0@0
//! 1000 submit 0 R sync 128+8 tag=0 token=7
//! 1000 issue 0 R 128+8
//! 1000 wait - -
//! 9000 io 0 ok
//! 9000 done 7 ok
//! ```

use crate::cache;
use crate::dispatcher::Tags;
use crate::stack::journal::{Journal, MAGIC};
use crate::stack::limit::{DiskLimits, GroupName, Limits};
use crate::stack::{CacheSpec, Config, DiskSpec, IoError, Map, Stack, Submit};
use seekway_core::params::{ParamError, parse_duration};
use seekway_core::prefetcher::Prefetcher;
use seekway_core::request::{Extent, Op, ProcessTag, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, Scheduler, Stripe};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::prefetchers;
use seekway_policy::schedulers;
use std::fmt;
use std::num::NonZeroU32;

/// The last time that a replay takes: 146 years, so that sums stay far from overflow.
const TIME_MAX: u64 = u64::MAX / 4;
/// The largest cache that a replay takes, in bytes: its bookkeeping takes 3.5 % of that.
const CACHE_BYTES_MAX: u64 = 1 << 38;

/// Why a journal could not be replayed, or where the replay differed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// This line (counted from 1) is not one that a journal holds.
    Line(usize, String),
    /// The policy did something else than is written.
    Differs {
        /// The line, counted from 1.
        line: usize,
        /// The line in the journal.
        journal: String,
        /// The line that the replay made.
        replay: String,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Line(line, what) => write!(f, "line {line}: {what}"),
            ReplayError::Differs { line, journal, replay } => {
                write!(f, "line {line}: the journal says '{journal}', the replay '{replay}'")
            }
        }
    }
}
impl std::error::Error for ReplayError {}

/// Inputs and outputs of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplaySummary {
    /// Lines of input that were fed to the stack.
    pub inputs: u64,
    /// Outputs that came out the same.
    pub outputs: u64,
}

/// Builds something from its specification.
type Builder<'a, T> = &'a dyn Fn(&str) -> Result<Box<T>, ParamError>;

/// Builds policies and prefetchers from their specifications.
#[derive(Clone, Copy)]
pub struct Build<'a> {
    /// Builds the policy, as [`schedulers::build`] does.
    pub scheduler: Builder<'a, dyn Scheduler>,
    /// Builds the prefetcher, as [`prefetchers::build`] does.
    pub prefetcher: Builder<'a, dyn Prefetcher>,
}

impl Default for Build<'_> {
    /// Builds policies by the crate's registries.
    fn default() -> Self {
        Build { scheduler: &schedulers::build, prefetcher: &prefetchers::build }
    }
}

/// Parts of a line that readers of journals look for without replaying them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// A guest's request came in.
    Submit(Submit),
    /// A command went to the device.
    Issue(Op, Extent),
    /// The policy of this specification decides from here on.
    Switch(&'a str),
}

/// The entry in a line of a journal. `None` for other lines, the first among them.
pub fn entry(line: &str) -> Option<Entry<'_>> {
    let mut words = line.split(' ').skip(1);
    match (words.next()?, words.next()?) {
        ("submit", vm) => parse_submit(VmId::new(vm.parse().ok()?), words).map(Entry::Submit),
        ("issue", _) => {
            let op = Op::from_letter(words.next()?.chars().next()?)?;
            Some(Entry::Issue(op, parse_extent(words.next()?)?))
        }
        ("switch", policy) => Some(Entry::Switch(policy)),
        _ => None,
    }
}

/// A replay under way, fed line by line.
#[derive(Default)]
pub struct Replay<'a> {
    build: Build<'a>,
    stack: Option<Stack>,
    line: usize,
    /// The time of the last line; none goes back.
    now: Instant,
    replayed: ReplaySummary,
}

impl<'a> Replay<'a> {
    /// A replay that builds policies and prefetchers with `build`.
    pub fn new(build: Build<'a>) -> Self {
        Replay { build, ..Replay::default() }
    }

    /// Counts of what has been replayed until now.
    pub fn replayed(&self) -> ReplaySummary {
        self.replayed
    }

    /// Feed the next line, without its line feed.
    pub fn feed(&mut self, text: &str) -> Result<(), ReplayError> {
        self.line += 1;
        let line = self.line;
        let wrong = |what: String| ReplayError::Line(line, what);
        let Some(stack) = &mut self.stack else {
            self.stack = Some(parse_header(text, &self.build).map_err(wrong)?);
            return Ok(());
        };
        let (time, rest) = text.split_once(' ').unwrap_or((text, ""));
        let time: u64 = time.parse().map_err(|_| wrong(format!("'{time}' is not a time in ns")))?;
        let now = Instant::from_nanos(time);
        if now < self.now || time > TIME_MAX {
            let before = self.now.as_nanos();
            return Err(wrong(format!("time {time} after {before}: expected up to {TIME_MAX}")));
        }
        self.now = now;
        if matches!(rest.split(' ').next(), Some("issue" | "copy" | "done" | "wait")) {
            let replay = loop {
                if let Some(line) = Journal::line_of(now, &stack.poll(now)) {
                    break line;
                }
            };
            if replay != text {
                return Err(ReplayError::Differs { line, journal: text.into(), replay });
            }
            self.replayed.outputs += 1;
        } else {
            apply(stack, now, rest, &self.build)
                .ok_or_else(|| wrong(format!("'{rest}' is no input that can happen here")))?;
            self.replayed.inputs += 1;
        }
        Ok(())
    }
}

fn parse_header(text: &str, build: &Build<'_>) -> Result<Stack, String> {
    let rest = text.strip_prefix(MAGIC).ok_or(format!("expected '{MAGIC} …'"))?;
    let mut config = Config::default();
    let mut profile = DeviceProfile::unknown(Sectors::ZERO, false);
    let (mut policy, mut prefetcher) = (None, None);
    let mut cache = cache::Config::new(0);
    for pair in rest.split_whitespace() {
        let (key, value) = pair.split_once('=').ok_or(format!("'{pair}' is not key=value"))?;
        let dispatch = &mut config.dispatch;
        let known = match key {
            "policy" => {
                policy = Some(value);
                Some(())
            }
            "prefetch" => {
                prefetcher = Some(value);
                Some(())
            }
            "depth" => value.parse().ok().map(|v| dispatch.depth = v),
            "coalesce" => value.parse().ok().map(|v| dispatch.coalesce = Sectors::new(v)),
            "merge" => value.parse().ok().map(|v| dispatch.merge = v),
            "hard" => parse_duration(value).ok().map(|v| dispatch.hard_limit = v),
            "outstanding" => value.parse().ok().map(|v| config.outstanding_max = v),
            "capacity" => value.parse().ok().map(|v| profile.capacity = Sectors::new(v)),
            "rotation" => parse_duration(value).ok().map(|v| profile.rotation = Some(v)),
            "seek" => parse_seek(value).map(|v| profile.seek = v),
            "stripe" => parse_stripe(value).map(|v| profile.stripe = Some(v)),
            "tags" => parse_tags(value).map(|v| dispatch.tags = Some(v)),
            "cache" => {
                value.parse().ok().filter(|&v| v <= CACHE_BYTES_MAX).map(|v| cache.bytes = v)
            }
            "seed" => value.parse().ok().map(|v| cache.seed = v),
            "unit" => value.parse().ok().map(|v| cache.unit = Sectors::new(v)),
            _ => None,
        };
        known.ok_or(format!("'{pair}' is not understood"))?;
    }
    let scheduler = (build.scheduler)(policy.ok_or("no policy=")?).map_err(|e| e.to_string())?;
    let cache = match prefetcher {
        Some(spec) => {
            let prefetcher = (build.prefetcher)(spec).map_err(|e| e.to_string())?;
            Some(CacheSpec { config: cache, prefetcher, spec: spec.into() })
        }
        None => None,
    };
    Ok(Stack::new(scheduler, profile, config, cache))
}

fn parse_seek(text: &str) -> Option<Vec<(Sectors, Nanos)>> {
    let knot = |k: &str| {
        let (distance, time) = k.split_once(':')?;
        Some((Sectors::new(distance.parse().ok()?), parse_duration(time).ok()?))
    };
    let knots: Vec<_> = text.split(',').map(knot).collect::<Option<_>>()?;
    knots.is_sorted_by_key(|(distance, _)| *distance).then_some(knots)
}

fn parse_stripe(text: &str) -> Option<Stripe> {
    let (members, chunk) = text.split_once(':')?;
    Stripe::new(members.parse().ok()?, Sectors::new(chunk.parse().ok()?))
}

fn parse_tags(text: &str) -> Option<Tags> {
    let (count, sectors) = text.split_once(':')?;
    Some(Tags { count: count.parse().ok()?, sectors: Sectors::new(sectors.parse().ok()?) })
}

/// Feed one input. `None` when the text is none, or one that would break the
/// stack's preconditions (a journal may come from anywhere).
fn apply(s: &mut Stack, now: Instant, text: &str, build: &Build<'_>) -> Option<()> {
    let mut words = text.split(' ');
    let (verb, what) = (words.next()?, words.next()?);
    match verb {
        "switch" => s.switch(now, what, (build.scheduler)(what).ok()?),
        "prefetcher" => {
            s.switch_prefetcher(now, what, (build.prefetcher)(what).ok()?).then_some(())?;
        }
        "bandwidth" => s.set_bandwidth(now, what.parse().ok()?),
        "cache" => s.resize_cache(now, what.parse().ok()?).then_some(())?,
        "trim" if s.has_cache() && s.is_settled() => {
            s.trim_cache(now, what.parse().ok()?, &mut Vec::new());
        }
        "group" => {
            let limits = Limits::parse(words.next()?).ok()?;
            s.set_group(now, &GroupName::new(what).ok()?, &limits);
        }
        "io" => {
            let io = RequestId::new(what.parse().ok()?);
            let failed = parse_failed(words.next()?)?;
            let is_member = |id: RequestId| s.members(io).any(|m| m.id == id);
            let valid = s.is_in_flight(io) && failed.iter().all(|&(id, _)| is_member(id));
            valid.then(|| s.io_done(now, io, &failed))?;
        }
        "attach" => {
            let vm = VmId::new(what.parse().ok()?);
            s.can_attach(vm).then_some(())?;
            s.attach(now, vm, parse_disk(words)?);
        }
        _ => {
            let vm = VmId::new(what.parse().ok()?);
            s.is_attached(vm).then_some(())?;
            match verb {
                "submit" => s.submit(now, parse_submit(vm, words)?).ok()?,
                "limit" => s.set_limits(now, vm, &DiskLimits::parse(words.next()?).ok()?),
                "weight" => s.set_weight(now, vm, words.next()?.parse().ok()?),
                "resize" => {
                    let size = Sectors::new(words.next()?.parse().ok()?);
                    s.resize(now, vm, size, Some(words.next()?.parse().ok()?));
                }
                "remap" => s.remap(now, vm, words.next()?.parse().ok()?),
                "leave" => s.leave(now, vm),
                "detach" if !s.is_busy(vm) => s.detach(now, vm),
                _ => return None,
            }
        }
    }
    Some(())
}

/// Reads `ok`, or `ID:CODE,…` with an error code for each failed request.
fn parse_failed(text: &str) -> Option<Vec<(RequestId, IoError)>> {
    if text == "ok" {
        return Some(Vec::new());
    }
    let one = |text: &str| {
        let (id, code) = text.split_once(':')?;
        Some((RequestId::new(id.parse().ok()?), IoError(code.parse().ok()?)))
    };
    text.split(',').map(one).collect()
}

fn parse_disk<'t>(words: impl Iterator<Item = &'t str>) -> Option<DiskSpec> {
    let mut spec = DiskSpec {
        weight: NonZeroU32::MIN,
        capacity: Sectors::ZERO,
        map: Map::linear(Lba::ZERO, Sectors::ZERO),
        cached: false,
    };
    for word in words {
        match word.split_once('=')? {
            ("weight", w) => spec.weight = w.parse().ok()?,
            ("size", s) => spec.capacity = Sectors::new(s.parse().ok()?),
            ("cached", c) => spec.cached = c == "yes",
            ("map", m) => spec.map = m.parse().ok()?,
            _ => return None,
        }
    }
    Some(spec)
}

fn parse_submit<'t>(vm: VmId, mut words: impl Iterator<Item = &'t str>) -> Option<Submit> {
    let op = Op::from_letter(words.next()?.chars().next()?)?;
    let sync = words.next()? == "sync";
    let extent = parse_extent(words.next()?)?;
    let tag = ProcessTag::new(words.next()?.strip_prefix("tag=")?.parse().ok()?);
    let token = words.next()?.strip_prefix("token=")?.parse().ok()?;
    Some(Submit { vm, tag, op, sync, extent, token })
}

fn parse_extent(text: &str) -> Option<Extent> {
    let (start, len) = text.split_once('+')?;
    Extent::new(Lba::new(start.parse().ok()?), Sectors::new(len.parse().ok()?))
}
