//! The VMs' shares of the host's processors, and the agents in the guests.

use super::read::{Chosen, Scalar, Time, is_default};
use crate::vcpu::{Ablation, Completes, Costs, Detector, GuestCpu, Processors};
use seekway_core::params::{Kind, ParamSpec, Params, param, parse_spec};
use seekway_core::units::Nanos;
use seekway_vcpu as vcpu;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// The policy for vCPUs that does nothing: no agent in the guest.
pub const NO_AGENT: &str = "vanilla";

/// The keys of `--host`; a scenario calls `cpus` `count`.
#[rustfmt::skip]
pub static SPECS: &[ParamSpec] = &[
    param("cpus", Kind::Count(1, 1024), "1", "processors; vCPU n runs on processor n modulo this"),
    param("slice", Kind::Duration, "11ms", "time slice while another vCPU waits"),
    param("jitter", Kind::Duration, "300us", "slices are longer or shorter by up to this"),
    param("cut", Kind::Count(0, 1000), "0", "of 1000 slices, those that end early"),
    param("switch", Kind::Duration, "5us", "time of a switch from one vCPU to another"),
    param("completes", Kind::Choice(&["submitter", "fixed", "any", "steered"]), "submitter",
        "the vCPU that hears of a completed request"),
];

/// Slices of a scheduler: below 10 µs the switches would be all.
const SLICE_MIN: Nanos = Nanos::from_micros(10);
const SLICE_MAX: Nanos = Nanos::from_secs(10);

/// Processors that the VMs' vCPUs share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// The simulator's settings; by default those of KVM on Linux.
    pub processors: Processors,
    /// Specification of the policy for vCPUs of the agent in each guest.
    pub agent: String,
    /// Given values of [`SPECS`], in their order.
    given: Vec<(&'static str, String)>,
    /// All that was given beside those.
    more: CpuMore,
}

impl Cpu {
    /// Parses the value of `--host`, as `cpus=4,slice=11ms`; `cpus` is required. Without an agent.
    ///
    /// # Errors
    /// Says what is expected.
    pub fn parse(text: &str) -> Result<Cpu, String> {
        let spec = format!("host:{text}");
        let given = parse_spec(&spec).map_err(|e| e.to_string())?.given;
        let given = given.into_iter().map(|(key, value)| (key, value.to_string())).collect();
        Cpu::new(given, CpuMore::default())
    }

    /// With this agent in each guest.
    ///
    /// # Errors
    /// There is no such policy for vCPUs.
    pub fn with_agent(mut self, agent: &str) -> Result<Cpu, String> {
        vcpu::build(agent).map_err(|e| e.to_string())?;
        self.agent = agent.into();
        Ok(self)
    }

    /// Gives each VM a `parts`-th of them, without an agent.
    pub(super) fn one_of(mut self, parts: u32) -> Cpu {
        self.agent = NO_AGENT.into();
        self.more.part = Some(parts);
        self.processors.part = parts;
        self
    }

    /// As [`Cpu::parse`] takes it.
    fn new(given: Vec<(&str, String)>, more: CpuMore) -> Result<Cpu, String> {
        let pairs: Vec<(&str, &str)> = given.iter().map(|(key, text)| (*key, &**text)).collect();
        let params = Params::with(SPECS, "a host", &pairs).map_err(|e| e.to_string())?;
        if !params.is_given("cpus") {
            return Err("say how many processors there are, as in cpus=4,slice=11ms".into());
        }
        let slice =
            params.duration_within("slice", SLICE_MIN, SLICE_MAX).map_err(|e| e.to_string())?;
        let below_slice = |key| match params.is_given(key) {
            true => params.duration_within(key, Nanos::ZERO, slice).map_err(|e| e.to_string()),
            false => Ok(params.duration(key).min(slice)),
        };
        let mut processors = Processors::new(params.count("cpus") as u16);
        processors.host.slice = slice;
        processors.host.jitter = below_slice("jitter")?;
        processors.host.cut_permille = params.count("cut") as u16;
        processors.host.context_switch = below_slice("switch")?;
        processors.guest.completes = match params.choice("completes") {
            "submitter" => Completes::Submitter,
            "fixed" => Completes::Fixed,
            "any" => Completes::Any,
            _ => Completes::Steered,
        };
        more.apply(&mut processors)?;
        let of_spec = |spec: &ParamSpec| {
            let (_, text) = given.iter().find(|(key, _)| *key == spec.key)?;
            Some((spec.key, text.clone()))
        };
        let given = SPECS.iter().filter_map(of_spec).collect();
        Ok(Cpu { processors, agent: NO_AGENT.into(), given, more })
    }

    /// Tells whether these are the same processors, whatever the agent.
    pub fn is_like(&self, other: &Cpu) -> bool {
        self.processors == other.processors && self.given == other.given
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = self.given.iter().map(|(key, text)| format!("{key}={text}"));
        f.write_str(&given.chain(self.more.shown()).collect::<Vec<_>>().join(","))
    }
}

/// Keys of a scenario beyond those of `--host`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
struct CpuMore {
    wakeup_preempts: Option<bool>,
    part: Option<u32>,
    guests_compute: Option<bool>,
    guest: GuestTable,
    detector: Option<DetectorTable>,
    costs: CostsTable,
    without: Without,
}

/// Parts that are not modelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Without {
    /// No stopper: a task that is current on a vCPU that is away moves at once.
    stopper: bool,
    /// Completions are heard at once.
    completions: bool,
    /// Moves cost nothing.
    moves: bool,
    /// Time by which the policy is told of a preemption in advance.
    foresight: Option<Time>,
}

/// A guest's own scheduler.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GuestTable {
    slice: Option<Time>,
    switch: Option<Time>,
    balances: Option<bool>,
    shared_cache: Option<bool>,
}

/// Detector of preemption for a guest's policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DetectorTable {
    Heartbeat { beat: Time },
    Exact { delay: Time, edge: Time },
}

/// Costs of the agent's doings.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CostsTable {
    call: Option<Time>,
    cold: Option<Time>,
    window: Option<Time>,
    wake: Option<Time>,
    turn: Option<Time>,
}

impl CpuMore {
    fn apply(&self, to: &mut Processors) -> Result<(), String> {
        let time = |value: Option<Time>, default: Nanos| value.map_or(default, |Time(time)| time);
        if self.part == Some(0) {
            return Err("part = 0: at least 1, which is all of the processors".into());
        }
        to.part = self.part.unwrap_or(to.part);
        to.guests_compute = self.guests_compute.unwrap_or(to.guests_compute);
        to.host.wakeup_preempts = self.wakeup_preempts.unwrap_or(to.host.wakeup_preempts);
        let GuestTable { slice, switch, balances, shared_cache } = self.guest;
        to.guest = GuestCpu {
            slice: time(slice, to.guest.slice),
            context_switch: time(switch, to.guest.context_switch),
            balances: balances.unwrap_or(to.guest.balances),
            shared_cache: shared_cache.unwrap_or(to.guest.shared_cache),
            completes: to.guest.completes,
        };
        if !(SLICE_MIN..=SLICE_MAX).contains(&to.guest.slice) {
            let slice = to.guest.slice;
            return Err(format!("guest.slice = {slice}: {SLICE_MIN} to {SLICE_MAX}"));
        }
        to.detector = match self.detector {
            None => to.detector,
            Some(DetectorTable::Heartbeat { beat: Time(beat) }) => Detector::Heartbeat { beat },
            Some(DetectorTable::Exact { delay: Time(delay), edge: Time(edge) }) => {
                Detector::Exact { delay, edge }
            }
        };
        let CostsTable { call, cold, window, wake, turn } = self.costs;
        to.costs = Costs {
            call: time(call, to.costs.call),
            cold: time(cold, to.costs.cold),
            window: time(window, to.costs.window),
            wake: time(wake, to.costs.wake),
            turn: time(turn, to.costs.turn),
        };
        let Without { stopper, completions, moves, foresight } = self.without;
        to.ablation = Ablation {
            free_stopper: stopper,
            free_completions: completions,
            free_moves: moves,
            foresight: foresight.map(|Time(time)| time),
        };
        Ok(())
    }

    /// The given keys, one by one, for names of runs.
    fn shown(&self) -> Vec<String> {
        let flags = [
            ("wakeup_preempts", self.wakeup_preempts.map(|on| on.to_string())),
            ("part", self.part.map(|part| part.to_string())),
            ("guests_compute", self.guests_compute.map(|on| on.to_string())),
            ("guest", (!is_default(&self.guest)).then(|| "set".into())),
            (
                "detector",
                self.detector.map(|detector| match detector {
                    DetectorTable::Heartbeat { beat: Time(beat) } => format!("heartbeat {beat}"),
                    DetectorTable::Exact { delay: Time(delay), .. } => format!("exact {delay}"),
                }),
            ),
            ("costs", (!is_default(&self.costs)).then(|| "set".into())),
            ("without", (!is_default(&self.without)).then(|| "set".into())),
        ];
        let given = flags.into_iter().filter_map(|(key, value)| Some((key, value?)));
        given.map(|(key, value)| format!("{key}={value}")).collect()
    }
}

/// Processors as a scenario has them.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CpuTable {
    count: Option<Scalar>,
    slice: Option<Scalar>,
    jitter: Option<Scalar>,
    cut: Option<Scalar>,
    switch: Option<Scalar>,
    completes: Option<Scalar>,
    agent: Option<String>,
    wakeup_preempts: Option<bool>,
    part: Option<u32>,
    guests_compute: Option<bool>,
    guest: GuestTable,
    detector: Option<DetectorTable>,
    costs: CostsTable,
    without: Without,
}

impl Chosen for CpuTable {
    type Made = Cpu;

    fn made(self) -> Result<Option<Cpu>, String> {
        let more = CpuMore {
            wakeup_preempts: self.wakeup_preempts,
            part: self.part,
            guests_compute: self.guests_compute,
            guest: self.guest,
            detector: self.detector,
            costs: self.costs,
            without: self.without,
        };
        let given = [
            ("cpus", self.count),
            ("slice", self.slice),
            ("jitter", self.jitter),
            ("cut", self.cut),
            ("switch", self.switch),
            ("completes", self.completes),
        ];
        let given = given.into_iter().filter_map(|(key, text)| Some((key, text?.0)));
        let cpu = Cpu::new(given.collect(), more)?;
        match self.agent {
            None => Ok(Some(cpu)),
            Some(agent) => cpu.with_agent(&agent).map_err(|e| format!("agent: {e}")).map(Some),
        }
    }
}

impl Serialize for Cpu {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            #[serde(flatten)]
            given: BTreeMap<&'a str, Scalar>,
            agent: &'a str,
            #[serde(flatten)]
            more: &'a CpuMore,
        }
        let key = |key: &'static str| if key == "cpus" { "count" } else { key };
        let given = self.given.iter().map(|(name, text)| (key(name), Scalar(text.clone())));
        let (given, agent, more) = (given.collect(), self.agent.as_str(), &self.more);
        Shown { given, agent, more }.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_plain_values_with_defaults() {
        let given = Cpu::parse("cpus=4, slice=3ms,cut=20,completes=steered").unwrap();
        let Processors { count, host, guest, .. } = &given.processors;
        assert_eq!((*count, host.slice, host.cut_permille), (4, Nanos::from_millis(3), 20));
        assert_eq!(
            (host.jitter, host.context_switch),
            (Nanos::from_micros(300), Nanos::from_micros(5))
        );
        assert_eq!(guest.completes, Completes::Steered);
        assert_eq!(given.to_string(), "cpus=4,slice=3ms,cut=20,completes=steered");
        let short = Cpu::parse("cpus=1,slice=100us").unwrap().processors.host;
        assert_eq!(short.jitter, short.slice, "a default is no longer than the slice");
    }

    #[test]
    fn wrong_hosts_are_refused_with_what_to_write() {
        for (text, part) in [
            ("slice=3ms", "say how many processors there are"),
            ("cpus=0", "a whole number from 1 to 1024"),
            ("cpus=1025", "a whole number from 1 to 1024"),
            ("cpus=2,slice=9us", "slice=9us: at least 10us"),
            ("cpus=2,slice=11s", "slice=11s: at most 10s"),
            ("cpus=2,slice=1ms,jitter=2ms", "jitter=2ms: at most 1ms"),
            ("cpus=2,switch=1s", "switch=1s: at most 11ms"),
            ("cpus=2,cut=1001", "from 0 to 1000"),
            ("cpus=2,completes=all", "one of submitter, fixed, any, steered"),
            ("cpus=2,cores=3", "a host has no parameter 'cores'; it has cpus, slice"),
            ("4", "is not key=value"),
        ] {
            let error = Cpu::parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
