//! `--host` and `--vcpu`: how VMs share the host's processors, and what the agent in each
//! guest does about it.

use crate::args::SharingArgs;
use crate::lists::check_distinct;
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::params::split_specs;
use seekway_sim::scenario::{Cpu, NO_AGENT};
use seekway_vcpu as vcpu;

/// Each way in which processors are shared with each policy for vCPUs. Where they are not
/// shared no agent has anything to do, and there is one run without.
pub fn sharing(args: &SharingArgs) -> Result<Vec<Option<Cpu>>> {
    let parse = |text: &String| match text.trim() {
        "none" => Ok(None),
        text => Cpu::parse(text).map(Some).map_err(|e| anyhow!("--host {text}: {e}")),
    };
    let mut hosts = args.host.iter().map(parse).collect::<Result<Vec<_>>>()?;
    if hosts.is_empty() {
        hosts.push(None);
    }
    check_distinct("--host", &hosts, |host| {
        host.as_ref().map_or("none".into(), ToString::to_string)
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
        let Some(host) = host else {
            sharing.push(None);
            continue;
        };
        for agent in &agents {
            let host = host.clone().with_agent(agent).map_err(|e| anyhow!("--vcpu: {e}"))?;
            sharing.push(Some(host));
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

    fn made(hosts: &[&str], vcpu: Option<&str>) -> Result<Vec<Option<Cpu>>> {
        let host = hosts.iter().map(|h| h.to_string()).collect();
        sharing(&SharingArgs { host, vcpu: vcpu.map(str::to_string) })
    }

    #[test]
    fn agents_run_only_where_processors_are_shared() {
        let shared = made(&["none", "cpus=2"], Some("vanilla,vmigrater")).unwrap();
        let shown: Vec<Option<&str>> =
            shared.iter().map(|cpu| cpu.as_ref().map(|cpu| cpu.agent.as_str())).collect();
        assert_eq!(shown, [None, Some("vanilla"), Some("vmigrater")]);
        assert_eq!(made(&[], Some("vanilla")).unwrap(), [None]);
        for (hosts, vcpu, part) in [
            (&[][..], "vmigrater", "share them with --host cpus=N"),
            (&["cpus=2"], "vsmt", "--vcpu: no vCPU policy 'vsmt'"),
            (&["cpus=2"], ",", "name at least one"),
            (&["cpus=2"], "vmigrater,vmigrater", "vmigrater is given twice"),
            (&["cpus=2", "cpus=2"], "vanilla", "cpus=2 is given twice"),
            (&["cpus=0"], "vanilla", "--host cpus=0: "),
        ] {
            let error = format!("{:#}", made(hosts, Some(vcpu)).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
