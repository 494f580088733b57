//! The virtual performance throttle: makes a fast device behave as a modelled
//! one for real clients (algorithms.md, section 5). Pure: time is an argument,
//! and the same calls give the same answers.
//!
//! Each command goes to both devices, the model and the real one, and is
//! handed up when both have done it: the data are the real device's, the time
//! is the model's. A command that the real device brings early waits for its
//! *target*, the moment at which the model has done it; one that comes behind
//! its target is *late* and goes up at once.
//!
//! **The model's time.** The model lives in a time of its own, which passes k
//! times slower than the real one, so that everything in it (rotation, seeks,
//! read-ahead, idle time) stays consistent with everything else at any k. A
//! change of k bends the clock from that moment on: what the model has under
//! way takes longer or shorter from there, no target lies in the past, and the
//! model's time never runs backwards.
//!
//! **What lateness does.** The model does not hear of it: at its target it has
//! freed itself and goes on with what else is in its queue, in its own order
//! and time. The engine, though, counts the command as in flight until it is
//! handed up. So at depth 1 a late command keeps the modelled device idle for
//! as long as it is late, which the model sees as time without work (the
//! platter turns on, read-ahead goes on); at greater depths one place in its
//! queue is lost meanwhile. Nothing is caught up later. A run with late
//! commands therefore understates the modelled device; [`Report`] counts them.
//!
//! **Barriers** (flush, discard, write-zeroes) bypass the model and are handed
//! up when the real device is done, as the simulator completes them at once:
//! the models keep no volatile data.
//!
//! **Scaling.** [`Scaling::Auto`] raises k when commands come late and lowers
//! it, never below 1, when they all come with time to spare: see [`scale`] for
//! the rule. The scheduler's own constants (idling, expiry) and the guests'
//! think times are *not* scaled: a run whose k stayed at 1 predicts absolute
//! times, any other only the order of policies, and that the less the more of
//! their time is idling.

mod scale;

use scale::{AutoScale, Sample};
use seekway_core::params::SPEC_BYTES_MAX;
use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_device::DeviceModel;
use seekway_device::profile::{self, PROFILE_BYTES_MAX, Profile};
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::Read;

/// Changes of k that are remembered.
const CHANGES_MAX: usize = 1024;

/// Rule by which the time of the model is stretched.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scaling {
    /// Raised when the real device is too slow, lowered when it has slack.
    Auto,
    /// Always this, 1 to [`FACTOR_MAX`], in steps of 0.001.
    Fixed(f64),
}

/// The device that guests see: the model's times, the real device's data.
pub struct Throttle {
    model: Box<dyn DeviceModel>,
    clock: Clock,
    /// `None` when k is fixed.
    auto: Option<AutoScale>,
    /// By slot of the id.
    commands: Vec<Option<Command>>,
    /// Done in both worlds: since when, and in which order that was found.
    ready: BTreeSet<(Instant, u64, RequestId)>,
    /// Commands that have become ready.
    readied: u64,
    /// When the last command of the model was handed up, in both times.
    last: Moment,
    /// But for what the clock and the model say when they are asked.
    report: Report,
}

/// A moment in both times.
#[derive(Clone, Copy, Default)]
struct Moment {
    real: Instant,
    model: Instant,
}

/// A command on the way.
struct Command {
    /// A barrier, which the model does not see.
    barrier: bool,
    dispatched: Moment,
    /// When the model was done.
    target: Option<Moment>,
    /// When the real device was done.
    arrived: Option<Instant>,
}

/// Report of a throttle. Barriers are in [`Report::barriers`] and nowhere else.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// The specification, without k.
    pub profile: String,
    /// The factor on all times now.
    pub k: f64,
    /// Every change of k: when, to what, why. At most the last 1024.
    pub changes: Vec<(Instant, f64, &'static str)>,
    /// Reads and writes done, both by the model and by the real device.
    pub commands: u64,
    /// Flushes, discards and write-zeroes done, which the model does not see.
    pub barriers: u64,
    /// Commands whose real completion came after the target.
    pub late: u64,
    /// By how much, together.
    pub late_by: Nanos,
    /// Time from when commands could have been handed up until they were, together:
    /// what timers and the reactor's other work add to the model's times.
    pub overslept: Nanos,
    /// The sum of service times from dispatch to completion. A driver with two
    /// requests outstanding counts one request of queueing as service here.
    pub service_from_dispatch: Nanos,
    /// The sum of service times from the later of dispatch and previous completion.
    pub service: Nanos,
    /// As `service_from_dispatch`, in the model's time: each stretch divided by
    /// the k that held then.
    pub model_service_from_dispatch: Nanos,
    /// As `service`, in the model's time.
    pub model_service: Nanos,
    /// Figures of the model's own.
    pub model_metrics: Vec<(&'static str, f64)>,
}

impl Throttle {
    /// A throttle from `PROFILE[:key=value,…][:k=auto|1|2.5]`: a profile by
    /// name, or a profile file ([`profile::path_of`]), with the model's own
    /// parameters ([`profile::load`]), and how to scale, `auto` unless given.
    ///
    /// # Errors
    /// Says what was expected; for the operator.
    pub fn parse(text: &str) -> Result<Throttle, String> {
        if text.len() > SPEC_BYTES_MAX {
            return Err(format!("throttle of {} bytes; at most {SPEC_BYTES_MAX}", text.len()));
        }
        // How to scale is no part of the profile, and may stand behind either colon.
        let file = profile::path_of(text.split(":k=").next().unwrap_or(text));
        let name = file.map_or_else(|| text.split(':').next().unwrap_or(text), |(path, _)| path);
        let rest = text[name.len()..].trim_start_matches(':');
        let pairs = rest.split([':', ',']).map(str::trim).filter(|p| !p.is_empty());
        let (scale, model): (Vec<&str>, Vec<&str>) = pairs.partition(|p| p.starts_with("k="));
        let scaling = match scale[..] {
            [] => Scaling::Auto,
            [pair] => parse_scaling(&pair[2..])?,
            _ => return Err(format!("k is given twice in '{text}'")),
        };
        let mut spec = name.trim().to_owned();
        if !model.is_empty() {
            spec = format!("{spec}:{}", model.join(","));
        }
        let profile = match file {
            Some((path, _)) => Profile::parse_with(&read_profile(path)?, &model.join(",")),
            None => profile::load(&spec),
        };
        let profile = profile.map_err(|e| e.to_string())?;
        Ok(Throttle::new(spec, profile.build(), scaling))
    }

    /// A throttle over a model at rest. A fixed factor out of its range is
    /// taken to the nearest end of it.
    pub fn new(profile: String, model: Box<dyn DeviceModel>, scaling: Scaling) -> Throttle {
        let (factor, auto) = match scaling {
            Scaling::Auto => (Factor::ONE, Some(AutoScale::new())),
            Scaling::Fixed(k) => (Factor::nearest(k), None),
        };
        Throttle {
            model,
            clock: Clock::new(factor),
            auto,
            commands: Vec::new(),
            ready: BTreeSet::new(),
            readied: 0,
            last: Moment::default(),
            report: Report { profile, ..Report::default() },
        }
    }

    /// Profile of the device for policies: the model's profile, its times stretched by k as it is
    /// now.
    pub fn profile(&self) -> DeviceProfile {
        let mut profile = self.model.profile();
        let stretch = |span: Nanos| self.clock.factor().stretch(span);
        profile.rotation = profile.rotation.map(stretch);
        profile.seek.iter_mut().for_each(|(_, time)| *time = stretch(*time));
        profile
    }

    /// Commands that the modelled device takes at once.
    pub fn queue_depth(&self) -> u32 {
        self.model.queue_depth()
    }

    /// A command goes to both devices. `now` never runs backwards, here and in
    /// the other calls.
    ///
    /// Panics for what the engine has to rule out: an extent past the end of
    /// the modelled device ([`DeviceProfile::capacity`]), more data commands
    /// than [`Throttle::queue_depth`], an id that is in use.
    pub fn submit(&mut self, now: Instant, command: &Request) {
        self.advance(now);
        let dispatched = self.moment(now);
        let barrier = !command.op.is_data();
        if !barrier {
            self.model.submit(dispatched.model, command);
        }
        let slot = command.id.slot();
        if self.commands.len() <= slot {
            self.commands.resize_with(slot + 1, || None);
        }
        let target = barrier.then_some(dispatched);
        let command = Command { barrier, dispatched, target, arrived: None };
        assert!(self.commands[slot].replace(command).is_none(), "slot {slot} is in use");
    }

    /// The real device is done with it, well or not.
    ///
    /// Panics when the command was not submitted or has arrived before.
    pub fn arrived(&mut self, now: Instant, id: RequestId) {
        self.advance(now);
        let command = self.command(id);
        assert!(command.arrived.replace(now).is_none(), "{id:?} has arrived before");
        self.settle(now, id);
    }

    /// When to call [`Throttle::pop`] next if nothing else happens: the next
    /// command may be handed up then. (Or it turns out that the real device
    /// still has it; then there is nothing to pop.)
    pub fn next(&self) -> Option<Instant> {
        let ready = self.ready.first().map(|&(since, ..)| since);
        let model = self.model.next_completion().map(|done| self.clock.real(done));
        ready.into_iter().chain(model).min()
    }

    /// A command that is done in both worlds by `now`: in the order in which
    /// they became so, and of those of one moment, as that was found.
    pub fn pop(&mut self, now: Instant) -> Option<RequestId> {
        self.advance(now);
        let (since, _, id) = self.ready.pop_first()?;
        let command = self.commands[id.slot()].take().expect("what is ready is on the way");
        if command.barrier {
            self.report.barriers += 1;
            return Some(id);
        }
        let (end, last, begin) = (self.moment(now), self.last, command.dispatched);
        let counts = &mut self.report;
        counts.commands += 1;
        counts.overslept += now.since(since);
        counts.service_from_dispatch += now.since(begin.real);
        counts.service += now.since(begin.real.max(last.real));
        counts.model_service_from_dispatch += end.model.since(begin.model);
        counts.model_service += end.model.since(begin.model.max(last.model));
        self.last = end;
        Some(id)
    }

    /// The model's own time at `now`: k times slower than the real one, whatever k
    /// has been meanwhile.
    pub fn model_time(&self, now: Instant) -> Instant {
        self.clock.model(now)
    }

    pub fn report(&self) -> Report {
        let mut model_metrics = Vec::new();
        self.model.metrics(&mut |name, value| model_metrics.push((name, value)));
        Report { k: self.clock.factor().as_f64(), model_metrics, ..self.report.clone() }
    }

    fn moment(&self, real: Instant) -> Moment {
        Moment { real, model: self.clock.model(real) }
    }

    fn command(&mut self, id: RequestId) -> &mut Command {
        match self.commands.get_mut(id.slot()) {
            Some(Some(command)) => command,
            _ => panic!("{id:?} was not submitted"),
        }
    }

    /// Take from the model what it has done by `now`.
    fn advance(&mut self, now: Instant) {
        // Of targets that have passed, the clock of before tells the real time,
        // even when one of the commands changes k.
        let clock = self.clock;
        while let Some(done) = self.model.next_completion()
            && let Some(id) = self.model.pop_completed(clock.model(now))
        {
            let target = Moment { real: clock.real(done), model: done };
            self.command(id).target = Some(target);
            self.settle(now, id);
        }
    }

    /// Is the command done in both worlds?
    fn settle(&mut self, now: Instant, id: RequestId) {
        let &mut Command { barrier, dispatched, target, arrived } = self.command(id);
        let (Some(target), Some(arrived)) = (target, arrived) else { return };
        self.readied += 1;
        self.ready.insert((target.real.max(arrived), self.readied, id));
        if barrier {
            return;
        }
        self.report.late += u64::from(arrived > target.real);
        self.report.late_by += arrived.since(target.real);
        let sample = Sample {
            real: arrived.since(dispatched.real),
            model: target.model.since(dispatched.model),
        };
        let Some(auto) = &mut self.auto else { return };
        if let Some((factor, why)) = auto.observe(self.clock.factor(), sample) {
            self.clock.rescale(now, factor);
            let changes = &mut self.report.changes;
            if changes.len() == CHANGES_MAX {
                changes.remove(0);
            }
            changes.push((now, factor.as_f64(), why));
        }
    }
}

fn parse_scaling(text: &str) -> Result<Scaling, String> {
    if text == "auto" {
        return Ok(Scaling::Auto);
    }
    match text.parse::<f64>() {
        Ok(k) if (1.0..=FACTOR_MAX).contains(&k) => Ok(Scaling::Fixed(k)),
        _ => Err(format!("k={text}: expected auto or a number from 1 to {FACTOR_MAX}")),
    }
}

/// The text of a profile file, for the operator when it cannot be read.
fn read_profile(path: &str) -> Result<String, String> {
    let mut text = String::new();
    let most = PROFILE_BYTES_MAX as u64 + 1;
    File::open(path)
        .and_then(|file| file.take(most).read_to_string(&mut text))
        .map_err(|e| format!("cannot read the profile {path}: {e}"))?;
    Ok(text)
}

// The model's time against the real one.

/// Largest factor: a model of milliseconds over a device that takes seconds.
pub const FACTOR_MAX: f64 = 1000.0;

/// A factor on times in thousandths, 1 to [`FACTOR_MAX`]: whole numbers, so
/// that a factor of 1 changes nothing and all others round the same way
/// everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Factor(u64);

impl Factor {
    const UNIT: u64 = 1000;
    /// k = 1: the model's time goes as fast as real time.
    pub const ONE: Factor = Factor(Factor::UNIT);

    /// The nearest that there is.
    pub fn nearest(k: f64) -> Factor {
        // Out of its range, the conversion saturates; a NaN becomes 0, and then 1.
        Factor::from_thousandths((k * Factor::UNIT as f64).round() as u64)
    }

    /// A factor of this number of thousandths, clamped to the range.
    pub fn from_thousandths(thousandths: u64) -> Factor {
        Factor(thousandths.clamp(Factor::UNIT, FACTOR_MAX as u64 * Factor::UNIT))
    }

    /// The factor in thousandths.
    pub fn thousandths(self) -> u64 {
        self.0
    }

    /// A span of the model in real time, rounded up.
    pub fn stretch(self, span: Nanos) -> Nanos {
        let wide = u128::from(span.get()) * u128::from(self.0);
        let wide = wide.div_ceil(u128::from(Factor::UNIT));
        Nanos::new(u64::try_from(wide).unwrap_or(u64::MAX))
    }

    /// A real span in the model's time, rounded down.
    fn shrink(self, span: Nanos) -> Nanos {
        span.scaled(Factor::UNIT, self.0)
    }

    /// k as a floating-point number, for reports.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / Factor::UNIT as f64
    }
}

/// `model = model0 + (real - real0) / k`.
#[derive(Clone, Copy, Debug)]
struct Clock {
    real: Instant,
    model: Instant,
    factor: Factor,
}

impl Clock {
    /// Both start at 0.
    pub fn new(factor: Factor) -> Clock {
        Clock { real: Instant::ZERO, model: Instant::ZERO, factor }
    }

    /// The k that holds since the last change.
    pub fn factor(&self) -> Factor {
        self.factor
    }

    /// The model's time at a moment since the last change of k.
    pub fn model(&self, now: Instant) -> Instant {
        self.model + self.factor.shrink(now.since(self.real))
    }

    /// The first moment at which the model's time is this, or later.
    pub fn real(&self, model: Instant) -> Instant {
        self.real + self.factor.stretch(model.since(self.model))
    }

    /// From `now` on, another k.
    pub fn rescale(&mut self, now: Instant, factor: Factor) {
        *self = Clock { real: now, model: self.model(now), factor };
    }
}

// Bandwidth of a modelled device's reads, for prefetchers: a real device's is measured when it is
// opened.

/// Sectors of one read.
const READ: Sectors = Sectors::new(256);
/// Reads at once, as far as the model takes them.
const DEPTH: u32 = 32;
/// Reads in all: 64 MiB.
const READS: u64 = 512;

impl Throttle {
    /// Bytes a second that the modelled device reads at best, one read of 128 KiB
    /// behind the other from its first sector on, at the k of now. It uses the
    /// throttle up: the model has a past then. `None` for a device that is too
    /// small to tell.
    pub fn bandwidth(self) -> Option<u64> {
        let mut model = self.model;
        if model.profile().capacity.get() < READS * READ.get() {
            return None;
        }
        let depth = model.queue_depth().min(DEPTH);
        let mut free: VecDeque<RequestId> = (0..depth).map(RequestId::new).collect();
        let (mut now, mut sent, mut done) = (Instant::ZERO, 0, 0);
        while done < READS {
            while sent < READS
                && let Some(id) = free.pop_front()
            {
                model.submit(now, &read(id, sent * READ.get(), now));
                sent += 1;
            }
            now = model.next_completion()?;
            while let Some(id) = model.pop_completed(now) {
                free.push_back(id);
                done += 1;
            }
        }
        let span = self.clock.factor().stretch(now.since(Instant::ZERO));
        Some(((READS * READ.bytes()) as f64 / span.as_secs_f64()) as u64)
    }
}

fn read(id: RequestId, start: u64, now: Instant) -> Request {
    let extent = Extent::new(Lba::new(start), READ).expect("it lies inside the device");
    Request { id, vm: VmId::new(0), tag: None, op: Op::Read, sync: true, extent, arrived: now }
}

#[cfg(test)]
mod tests;
