//! The run of a dispatcher as text: every input and output with its time, one
//! a line, so that a live daemon's decisions can be replayed byte for byte
//! (`seekway replay`). The first line carries a version, the policy, the
//! device's profile and the configuration.
//!
//! ```text
//! seekway-journal 1 policy=cfq depth=1 coalesce=1024 hard=30s capacity=1953525168 rotation=8333333ns seek=1:800000ns,…
//! 0 attach 0 weight=1 region=0+24000000
//! 1000 arrive 0 R sync 128+8 tag=0
//! 1000 dispatch 0 R 128+8
//! 1000 idle
//! 9000 complete 0 ok
//! ```

use crate::dispatcher::{Arrival, Config, Dispatcher, Output};
use crate::params::{ParamError, parse_duration};
use crate::request::{Extent, Op, ProcessTag, RequestId, VmId};
use crate::scheduler::{DeviceProfile, Scheduler, VmSpec};
use crate::units::{Instant, Lba, Sectors};
use std::fmt::{self, Write};
use std::num::NonZeroU32;

/// The version in the first line.
const MAGIC: &str = "seekway-journal 1";

/// The last time that a replay takes: 146 years, so that sums stay far from overflow.
const TIME_MAX: u64 = u64::MAX / 4;

/// Notes taken and not yet handed to the engine.
pub(crate) struct Journal {
    text: String,
}

impl Journal {
    pub(crate) fn new(policy: &str, profile: &DeviceProfile, config: &Config) -> Self {
        let Config { depth, coalesce, hard_limit } = config;
        let policy = one_word(policy);
        let mut text = format!(
            "{MAGIC} policy={policy} depth={depth} coalesce={coalesce} hard={hard_limit} capacity={}",
            profile.capacity
        );
        if let Some(rotation) = profile.rotation {
            let _ = write!(text, " rotation={rotation}");
        }
        if !profile.seek.is_empty() {
            let knots: Vec<String> = profile.seek.iter().map(|(d, t)| format!("{d}:{t}")).collect();
            let _ = write!(text, " seek={}", knots.join(","));
        }
        text.push('\n');
        Journal { text }
    }

    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    fn line(&mut self, now: Instant, args: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{} {args}", now.as_nanos());
    }

    pub(crate) fn attach(&mut self, now: Instant, vm: VmId, spec: &VmSpec) {
        self.line(now, format_args!("attach {} {}", vm.index(), SpecText(spec)));
    }
    pub(crate) fn respec(&mut self, now: Instant, vm: VmId, spec: &VmSpec) {
        self.line(now, format_args!("respec {} {}", vm.index(), SpecText(spec)));
    }
    pub(crate) fn detach(&mut self, now: Instant, vm: VmId) {
        self.line(now, format_args!("detach {}", vm.index()));
    }
    pub(crate) fn switch(&mut self, now: Instant, policy: &str) {
        self.line(now, format_args!("switch {}", one_word(policy)));
    }
    pub(crate) fn arrive(&mut self, now: Instant, a: &Arrival) {
        self.line(now, format_args!("arrive {}", ArrivalText(a)));
    }
    pub(crate) fn arrive_background(&mut self, now: Instant, a: &Arrival) {
        self.line(now, format_args!("background {}", ArrivalText(a)));
    }
    pub(crate) fn withdraw(&mut self, now: Instant, id: RequestId) {
        self.line(now, format_args!("withdraw {}", id.slot()));
    }
    pub(crate) fn complete(&mut self, now: Instant, id: RequestId, ok: bool) {
        let how = if ok { "ok" } else { "error" };
        self.line(now, format_args!("complete {} {how}", id.slot()));
    }
    pub(crate) fn output(&mut self, now: Instant, output: &Output) {
        match output {
            Output::Dispatch(c) => {
                let (slot, op, extent) = (c.id.slot(), c.op.letter(), c.extent);
                self.line(now, format_args!("dispatch {slot} {op} {extent}"));
            }
            Output::WakeAt(until) => self.line(now, format_args!("wake {}", until.as_nanos())),
            Output::Idle => self.line(now, format_args!("idle")),
        }
    }
}

/// A policy's specification, which may be written with blanks, without them.
fn one_word(policy: &str) -> String {
    policy.split_whitespace().collect()
}

struct ArrivalText<'a>(&'a Arrival);

impl fmt::Display for ArrivalText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Arrival { vm, tag, op, sync, extent } = *self.0;
        let sync = if sync { "sync" } else { "async" };
        let (vm, op, tag) = (vm.index(), op.letter(), tag.map_or(0, ProcessTag::get));
        write!(f, "{vm} {op} {sync} {extent} tag={tag}")
    }
}

struct SpecText<'a>(&'a VmSpec);

impl fmt::Display for SpecText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight={}", self.0.weight)?;
        for (n, extent) in self.0.region.iter().enumerate() {
            write!(f, "{}{extent}", if n == 0 { " region=" } else { "," })?;
        }
        Ok(())
    }
}

/// Why a journal could not be replayed, or where the replay differed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// This line (counted from 1) is not one that a journal holds.
    Line(usize, String),
    /// The policy did something else than is written.
    Differs {
        /// The line, counted from 1.
        line: usize,
        /// What the journal says.
        journal: String,
        /// What the replay did.
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

/// What a replay went through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replayed {
    /// Inputs fed.
    pub inputs: u64,
    /// Outputs that came out the same.
    pub outputs: u64,
}

/// Builds a policy from its specification, as the registry does.
pub type Build<'a> = &'a dyn Fn(&str) -> Result<Box<dyn Scheduler>, ParamError>;

/// A replay under way, fed line by line.
pub struct Replay<'a> {
    build: Build<'a>,
    dispatcher: Option<Dispatcher>,
    line: usize,
    /// The time of the last line; none goes back.
    now: Instant,
    replayed: Replayed,
}

impl<'a> Replay<'a> {
    /// A replay that builds policies with `build`.
    pub fn new(build: Build<'a>) -> Self {
        Replay {
            build,
            dispatcher: None,
            line: 0,
            now: Instant::ZERO,
            replayed: Replayed::default(),
        }
    }

    /// What has been replayed so far.
    pub fn replayed(&self) -> Replayed {
        self.replayed
    }

    /// Feed the next line, without its line feed.
    pub fn feed(&mut self, text: &str) -> Result<(), ReplayError> {
        self.line += 1;
        let line = self.line;
        let wrong = |what: String| ReplayError::Line(line, what);
        let Some(dispatcher) = &mut self.dispatcher else {
            self.dispatcher = Some(parse_header(text, self.build).map_err(wrong)?);
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
        if matches!(rest.split(' ').next(), Some("dispatch" | "wake" | "idle")) {
            let mut journal = Journal { text: String::new() };
            journal.output(now, &dispatcher.poll(now));
            let replay = journal.take();
            if replay.trim_end() != text {
                let (journal, replay) = (text.into(), replay.trim_end().into());
                return Err(ReplayError::Differs { line, journal, replay });
            }
            self.replayed.outputs += 1;
        } else {
            apply(dispatcher, now, rest, self.build)
                .ok_or_else(|| wrong(format!("'{rest}' is no input that can happen here")))?;
            self.replayed.inputs += 1;
        }
        Ok(())
    }
}

fn parse_header(text: &str, build: Build<'_>) -> Result<Dispatcher, String> {
    let rest = text.strip_prefix(MAGIC).ok_or(format!("expected '{MAGIC} …'"))?;
    let mut config = Config::default();
    let mut profile = DeviceProfile { capacity: Sectors::ZERO, rotation: None, seek: Vec::new() };
    let mut policy = None;
    for pair in rest.split_whitespace() {
        let (key, value) = pair.split_once('=').ok_or(format!("'{pair}' is not key=value"))?;
        let known = match key {
            "policy" => {
                policy = Some(value);
                Some(())
            }
            "depth" => value.parse().ok().map(|v| config.depth = v),
            "coalesce" => value.parse().ok().map(|v| config.coalesce = Sectors::new(v)),
            "hard" => parse_duration(value).map(|v| config.hard_limit = v),
            "capacity" => value.parse().ok().map(|v| profile.capacity = Sectors::new(v)),
            "rotation" => parse_duration(value).map(|v| profile.rotation = Some(v)),
            "seek" => parse_seek(value).map(|v| profile.seek = v),
            _ => None,
        };
        known.ok_or(format!("'{pair}' is not understood"))?;
    }
    let scheduler = build(policy.ok_or("no policy=")?).map_err(|e| e.to_string())?;
    Ok(Dispatcher::new(scheduler, profile, config))
}

fn parse_seek(text: &str) -> Option<Vec<(Sectors, crate::units::Nanos)>> {
    let knot = |k: &str| {
        let (distance, time) = k.split_once(':')?;
        Some((Sectors::new(distance.parse().ok()?), parse_duration(time)?))
    };
    let knots: Vec<_> = text.split(',').map(knot).collect::<Option<_>>()?;
    knots.is_sorted_by_key(|(distance, _)| *distance).then_some(knots)
}

/// Feed one input. `None` when the text is none, or one that would break the
/// dispatcher's preconditions (a journal may come from anywhere).
fn apply(d: &mut Dispatcher, now: Instant, text: &str, build: Build<'_>) -> Option<()> {
    let mut words = text.split(' ');
    let (verb, what) = (words.next()?, words.next()?);
    match verb {
        "switch" => d.switch(now, what, build(what).ok()?),
        "complete" => {
            let id = RequestId::new(what.parse().ok()?);
            let ok = words.next()? == "ok";
            d.is_in_flight(id).then(|| d.complete(now, id, ok, &mut Vec::new()))?;
        }
        "withdraw" => d.withdraw(now, RequestId::new(what.parse().ok()?)).then_some(())?,
        _ => {
            let vm = VmId::new(what.parse().ok()?);
            match verb {
                "attach" if d.can_attach(vm) => d.attach(now, vm, parse_vm_spec(words)?),
                "respec" if d.is_attached(vm) => d.respec(now, vm, parse_vm_spec(words)?),
                "detach" if d.is_attached(vm) => drop(d.detach(now, vm)),
                "arrive" if d.has_room(vm) => drop(d.arrive(now, parse_arrival(vm, words)?)),
                "background" if d.has_room(vm) => {
                    let arrival = parse_arrival(vm, words).filter(|a| a.op == Op::Read)?;
                    d.arrive_background(now, arrival);
                }
                _ => return None,
            }
        }
    }
    Some(())
}

fn parse_vm_spec<'t>(words: impl Iterator<Item = &'t str>) -> Option<VmSpec> {
    let mut spec = VmSpec::default();
    for word in words {
        match word.split_once('=')? {
            ("weight", w) => spec.weight = NonZeroU32::new(w.parse().ok()?)?,
            ("region", r) => spec.region = r.split(',').map(parse_extent).collect::<Option<_>>()?,
            _ => return None,
        }
    }
    Some(spec)
}

fn parse_arrival<'t>(vm: VmId, mut words: impl Iterator<Item = &'t str>) -> Option<Arrival> {
    let op = Op::from_letter(words.next()?.chars().next()?)?;
    let sync = words.next()? == "sync";
    let extent = parse_extent(words.next()?)?;
    let tag = ProcessTag::new(words.next()?.strip_prefix("tag=")?.parse().ok()?);
    Some(Arrival { vm, tag, op, sync, extent })
}

fn parse_extent(text: &str) -> Option<Extent> {
    let (start, len) = text.split_once('+')?;
    Extent::new(Lba::new(start.parse().ok()?), Sectors::new(len.parse().ok()?))
}
