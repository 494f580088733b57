//! `--host` and `--vcpu`: how VMs share the host's processors, and what the agent in each
//! guest does about it.

use crate::args::SharingArgs;
use crate::lists::check_distinct;
use anyhow::{Context, Result, bail};
use seekway_policy::params::{Kind, ParamSpec, Params, param, parse_spec, split_specs};
use seekway_policy::units::Nanos;
use seekway_policy::vcpu;
use seekway_sim::vcpu::{Completes, Processors};
use std::fmt;

/// The policy for vCPUs that does nothing: no agent in the guest.
pub const NO_AGENT: &str = "vanilla";

/// The keys of `--host`.
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

/// A host whose processors are shared by the VMs' vCPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedHost {
    /// As the simulator has them; what the command line does not say is as KVM on Linux has it.
    pub processors: Processors,
    /// As it was given.
    text: String,
}

impl SharedHost {
    /// Parses the value of `--host`, as `cpus=4,slice=11ms`; `cpus` is required.
    pub fn parse(text: &str) -> Result<SharedHost> {
        let shown = || format!("--host {text}");
        let spec = format!("host:{text}");
        let given = parse_spec(&spec).with_context(shown)?.given;
        let params = Params::with(SPECS, "a host", &given).with_context(shown)?;
        if !params.is_given("cpus") {
            bail!("{}: say how many processors there are, as in cpus=4,slice=11ms", shown());
        }
        let slice = params.duration_within("slice", SLICE_MIN, SLICE_MAX).with_context(shown)?;
        let below_slice = |key| match params.is_given(key) {
            true => params.duration_within(key, Nanos::ZERO, slice).with_context(shown),
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
        let text = text.split(',').map(str::trim).collect::<Vec<_>>().join(",");
        Ok(SharedHost { processors, text })
    }
}

impl fmt::Display for SharedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Each way in which processors are shared with each policy for vCPUs. Where they are not
/// shared no agent has anything to do, and there is one run without.
pub fn sharing(args: &SharingArgs) -> Result<Vec<(Option<SharedHost>, String)>> {
    let parse = |text: &String| match text.trim() {
        "none" => Ok(None),
        text => SharedHost::parse(text).map(Some),
    };
    let mut hosts = args.host.iter().map(parse).collect::<Result<Vec<_>>>()?;
    if hosts.is_empty() {
        hosts.push(None);
    }
    check_distinct("--host", &hosts, |host| {
        host.as_ref().map_or("none".into(), |h| h.text.clone())
    })?;
    let agents = agents(args.vcpu.as_deref())?;
    if hosts.iter().all(Option::is_none)
        && let Some(agent) = agents.iter().find(|agent| *agent != NO_AGENT)
    {
        bail!(
            "--vcpu {agent}: an agent has nothing to do where each vCPU has a processor of its \
             own; share them with --host cpus=N"
        );
    }
    let mut sharing = Vec::new();
    for host in hosts {
        match host {
            None => sharing.push((None, NO_AGENT.to_string())),
            Some(_) => sharing.extend(agents.iter().map(|agent| (host.clone(), agent.clone()))),
        }
    }
    Ok(sharing)
}

/// The policies for vCPUs that `--vcpu` names, checked.
fn agents(list: Option<&str>) -> Result<Vec<String>> {
    let agents = match list {
        None => vec![NO_AGENT.to_string()],
        Some("all") => vcpu::REGISTRY.names().map(str::to_string).collect(),
        Some(list) => split_specs(list),
    };
    if agents.is_empty() {
        bail!("--vcpu: name at least one, or `vanilla`");
    }
    for agent in &agents {
        vcpu::build(agent).context("--vcpu")?;
    }
    check_distinct("--vcpu", &agents, String::clone)?;
    Ok(agents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(hosts: &[&str], vcpu: Option<&str>) -> SharingArgs {
        let host = hosts.iter().map(|h| h.to_string()).collect();
        SharingArgs { host, vcpu: vcpu.map(str::to_string) }
    }

    #[test]
    fn a_host_is_plain_values_with_defaults() {
        let given = SharedHost::parse("cpus=4, slice=3ms,cut=20,completes=steered").unwrap();
        let Processors { count, host, guest, .. } = &given.processors;
        assert_eq!((*count, host.slice, host.cut_permille), (4, Nanos::from_millis(3), 20));
        assert_eq!(
            (host.jitter, host.context_switch),
            (Nanos::from_micros(300), Nanos::from_micros(5))
        );
        assert_eq!(guest.completes, Completes::Steered);
        assert_eq!(given.to_string(), "cpus=4,slice=3ms,cut=20,completes=steered");
        let short = SharedHost::parse("cpus=1,slice=100us").unwrap().processors.host;
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
            let error = format!("{:#}", SharedHost::parse(text).unwrap_err());
            assert!(
                error.starts_with(&format!("--host {text}: ")) && error.contains(part),
                "{error}"
            );
        }
    }

    #[test]
    fn agents_run_only_where_processors_are_shared() {
        let made = sharing(&args(&["none", "cpus=2"], Some("vanilla,vmigrater"))).unwrap();
        let shown: Vec<(bool, &str)> =
            made.iter().map(|(h, v)| (h.is_some(), v.as_str())).collect();
        assert_eq!(shown, [(false, "vanilla"), (true, "vanilla"), (true, "vmigrater")]);
        assert_eq!(sharing(&args(&[], Some("vanilla"))).unwrap(), [(None, "vanilla".into())]);
        for (hosts, vcpu, part) in [
            (&[][..], "vmigrater", "share them with --host cpus=N"),
            (&["cpus=2"], "vsmt", "--vcpu: no vCPU policy 'vsmt'"),
            (&["cpus=2"], ",", "name at least one"),
            (&["cpus=2"], "vmigrater,vmigrater", "vmigrater is given twice"),
            (&["cpus=2", "cpus=2"], "vanilla", "cpus=2 is given twice"),
        ] {
            let error = format!("{:#}", sharing(&args(hosts, Some(vcpu))).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
