//! A VM as the command line describes it, and the sources that come of it:
//! `name=web,image=12g,max_request_kib=64,app=sysbench:mode=SR,app=sysbench:mode=RR`.
//!
//! First the VM's own keys, then one `app=GENERATOR` after the other, each
//! followed by its parameters. Rate limits of the VM's disk (`iops=2000,group=t`) stand
//! among its own keys, or behind an application that has no parameter of that name. `target=2ms`
//! is the target of latency, because `latency` is the guest's own way to the host.

use crate::generators::rng::split;
use crate::generators::{Build, Generator, REGISTRY};
use crate::guest::{GuestParams, GuestVm, params};
use crate::tasks::{BareTask, TaskSource};
use crate::{AppReport, Issue, Source, SourceError, VmDisk};
use seekway_policy::params::{ParamError, Params};
use seekway_policy::stack::limit::{DiskLimits, LimitsDraft};
use seekway_policy::units::{Instant, Sectors};

/// At most this many applications in one VM.
pub const APPS_MAX: usize = 64;

/// Longest name of a VM.
pub const NAME_BYTES_MAX: usize = 64;

/// One load of a VM.
#[derive(Clone, Debug)]
pub struct AppPlan {
    pub generator: &'static Generator,
    pub params: Params,
}

/// One VM: name, guest, loads.
#[derive(Clone, Debug)]
pub struct VmPlan {
    /// Shown in every table.
    pub name: String,
    /// The guest's settings, see [`params::SPECS`].
    pub guest: GuestParams,
    /// The rate limits of its disk, and the group whose limits hold as well.
    pub limits: DiskLimits,
    /// What runs in it, at least one.
    pub apps: Vec<AppPlan>,
}

/// A generator and the pairs given to it, as written.
type Given<'a> = (&'static Generator, Vec<(&'a str, &'a str)>);

/// Read the description of a VM. The error names the key and lists the valid ones.
pub fn parse_vm(text: &str) -> Result<VmPlan, ParamError> {
    let mut name = None;
    let mut guest: Vec<(&str, &str)> = Vec::new();
    let mut limits = LimitsDraft::default();
    let mut apps: Vec<Given<'_>> = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(ParamError::new(format!("'{pair}' in '{text}' is not key=value")));
        };
        let (key, value) = (key.trim(), value.trim());
        let is_apps = apps.last().is_some_and(|(g, _)| g.params.iter().any(|s| s.key == key));
        // `latency` is the guest's way to the host; a target of latency has another name here.
        let limit = match key {
            "latency" => None,
            "target" => Some("latency"),
            _ => Some(key),
        };
        if let Some(limit) = limit.filter(|_| !is_apps)
            && limits.set(limit, value)?
        {
            continue;
        }
        if key == "app" {
            apps.push(start_app(value)?);
        } else if let Some((generator, given)) = apps.last_mut() {
            add_once(given, key, value, generator.name)?;
        } else if key == "name" {
            if value.is_empty() || value.len() > NAME_BYTES_MAX {
                let what = format!("name={value}: expected 1 to {NAME_BYTES_MAX} bytes");
                return Err(ParamError::new(what));
            }
            name = Some(value);
        } else {
            add_once(&mut guest, key, value, "the VM")?;
        }
    }
    if apps.is_empty() || apps.len() > APPS_MAX {
        let n = apps.len();
        let need =
            format!("VM '{text}' has {n} loads: give 1 to {APPS_MAX}, as app=sysbench:mode=SR");
        return Err(ParamError::new(need));
    }
    let finish = |(generator, given): Given<'_>| {
        let params = Params::with(generator.params, generator.name, &given);
        let params = params.map_err(|e| misplaced(e, generator, &given))?;
        Ok(AppPlan { generator, params })
    };
    let is_bare = |(generator, _): &Given<'_>| matches!(generator.build, Build::Bare(_));
    if let Some((generator, _)) = apps.iter().find(|app| is_bare(app))
        && let Some((key, _)) = guest.iter().find(|(key, _)| *key != "image")
    {
        let name = generator.name;
        return Err(ParamError::new(format!(
            "{key} is a guest's, and {name} has none: of the VM's keys it takes image and rate limits"
        )));
    }
    let plan = VmPlan {
        name: name.unwrap_or("vm").to_string(),
        guest: GuestParams::from(&Params::with(params::SPECS, "a VM", &guest)?),
        limits: limits.finish()?,
        apps: apps.into_iter().map(finish).collect::<Result<_, ParamError>>()?,
    };
    plan.apps_for(0)?; // what only making them finds out
    Ok(plan)
}

/// `NAME` or `NAME:key=value`, the first part of an application.
fn start_app(value: &str) -> Result<Given<'_>, ParamError> {
    let (name, first) = value.split_once(':').unwrap_or((value, ""));
    let generator = REGISTRY.find(name.trim())?;
    let mut given = Vec::new();
    if !first.trim().is_empty() {
        let Some((key, value)) = first.split_once('=') else {
            return Err(ParamError::new(format!("'{first}' in 'app={value}' is not key=value")));
        };
        given.push((key.trim(), value.trim()));
    }
    Ok((generator, given))
}

fn add_once<'a>(
    given: &mut Vec<(&'a str, &'a str)>,
    key: &'a str,
    value: &'a str,
    whose: &str,
) -> Result<(), ParamError> {
    if given.iter().any(|(k, _)| *k == key) {
        return Err(ParamError::new(format!("{key} is given twice for {whose}")));
    }
    given.push((key, value));
    Ok(())
}

/// A key of the VM behind an `app=` deserves a better word than "unknown".
fn misplaced(error: ParamError, generator: &Generator, given: &[(&str, &str)]) -> ParamError {
    let is_vms = |key: &str| key == "name" || params::SPECS.iter().any(|s| s.key == key);
    let is_apps = |key: &str| generator.params.iter().any(|s| s.key == key);
    match given.iter().find(|(key, _)| is_vms(key) && !is_apps(key)) {
        Some((key, _)) => {
            ParamError::new(format!("{key} belongs to the VM: write it before the first app="))
        }
        None => error,
    }
}

type Apps = Vec<Box<dyn crate::guest::app::App>>;

impl VmPlan {
    /// A VM with default settings and these loads, each `NAME:key=value,key=value`.
    pub fn with_apps(name: &str, apps: &[&str]) -> Result<VmPlan, ParamError> {
        let apps: Vec<String> = apps.iter().map(|a| format!("app={a}")).collect();
        parse_vm(&format!("name={name},{}", apps.join(",")))
    }

    /// True if both describe the same load in the same guest under the same limits.
    /// Names do not matter.
    pub fn is_like(&self, other: &VmPlan) -> bool {
        let app = |(a, b): (&AppPlan, &AppPlan)| {
            a.generator.name == b.generator.name && a.params == b.params
        };
        self.guest == other.guest
            && self.limits == other.limits
            && self.apps.len() == other.apps.len()
            && self.apps.iter().zip(&other.apps).all(app)
    }

    /// True if one of its loads goes on until the run ends.
    pub fn is_endless(&self) -> bool {
        self.apps.iter().any(|app| app.generator.is_endless(&app.params))
    }

    /// The applications, or `None` when the load is a bare source.
    fn apps_for(&self, seed: u64) -> Result<Option<Apps>, ParamError> {
        let mut apps: Apps = Vec::new();
        for (number, plan) in self.apps.iter().enumerate() {
            match plan.generator.build {
                Build::App(build) => {
                    apps.push(build(&plan.params, split(seed, number as u64 + 1))?)
                }
                Build::Bare(_) if self.apps.len() == 1 => return Ok(None),
                Build::Bare(_) => {
                    let name = plan.generator.name;
                    return Err(ParamError::new(format!("{name} must be the only load of its VM")));
                }
            }
        }
        Ok(Some(apps))
    }

    /// The VM's load as a source. `number` is the VM's position in the
    /// experiment: with the same `seed`, different VMs get different streams,
    /// and a VM's stream does not depend on the others.
    pub fn source(&self, seed: u64, number: u16) -> Result<Box<dyn Source>, SourceError> {
        match self.load(seed, number)? {
            Load::Guest(guest) => Ok(guest),
            Load::Bare(source) => Ok(source),
        }
    }

    /// The same load as tasks, for vCPUs that somebody else models.
    pub fn tasks(&self, seed: u64, number: u16) -> Result<Box<dyn TaskSource>, SourceError> {
        match self.load(seed, number)? {
            Load::Guest(guest) => Ok(guest.on_modelled_vcpus()),
            Load::Bare(source) => Ok(Box::new(BareTask::new(source, self.guest.cpu_op))),
        }
    }

    fn load(&self, seed: u64, number: u16) -> Result<Load, SourceError> {
        let seed = split(seed, u64::from(number));
        let whose = |e: ParamError| SourceError(format!("VM {}: {e}", self.name));
        if let Some(apps) = self.apps_for(seed).map_err(whose)? {
            let guest = GuestVm::new(&self.name, self.guest.clone(), apps, seed)?;
            return Ok(Load::Guest(Box::new(guest)));
        }
        let capacity = Sectors::new(self.guest.image_sectors);
        let disk = VmDisk { name: self.name.clone(), capacity };
        match self.apps[0].generator.build {
            Build::Bare(build) => {
                Ok(Load::Bare(build(disk, &self.apps[0].params, seed).map_err(whose)?))
            }
            Build::App(_) => unreachable!("apps_for made it"),
        }
    }
}

/// What a VM runs.
enum Load {
    Guest(Box<GuestVm>),
    Bare(Box<dyn Source>),
}

/// Several VMs as one source, numbered as in `plans`.
pub fn fleet(plans: &[VmPlan], seed: u64) -> Result<Fleet, SourceError> {
    let sources: Result<Vec<_>, _> =
        plans.iter().enumerate().map(|(n, p)| p.source(seed, n as u16)).collect();
    Ok(Fleet::new(sources?))
}

/// Sources side by side. Tokens carry the source in their upper 16 bits.
pub struct Fleet {
    members: Vec<Box<dyn Source>>,
    first_vm: Vec<u16>,
    vms: Vec<VmDisk>,
    /// Members that something happened to since the last poll.
    stirred: Vec<bool>,
}

const TOKEN_BITS: u32 = 48;

impl Fleet {
    /// Their VMs in the order of `members`.
    pub fn new(members: Vec<Box<dyn Source>>) -> Fleet {
        let mut first_vm = Vec::new();
        let mut vms: Vec<VmDisk> = Vec::new();
        for member in &members {
            first_vm.push(vms.len() as u16);
            vms.extend_from_slice(member.vms());
        }
        Fleet { stirred: vec![true; members.len()], members, first_vm, vms }
    }
}

impl Source for Fleet {
    fn vms(&self) -> &[VmDisk] {
        &self.vms
    }
    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        for (number, member) in self.members.iter_mut().enumerate() {
            let due = member.next_wake().is_some_and(|at| at <= now);
            if !std::mem::take(&mut self.stirred[number]) && !due {
                continue;
            }
            let from = out.len();
            member.poll(now, out)?;
            for issue in &mut out[from..] {
                assert!(issue.token >> TOKEN_BITS == 0, "a source's token exceeds 48 bits");
                issue.token |= (number as u64) << TOKEN_BITS;
                issue.vm += self.first_vm[number];
            }
        }
        Ok(())
    }
    fn completed(&mut self, now: Instant, token: u64) {
        let number = (token >> TOKEN_BITS) as usize;
        self.stirred[number] = true;
        self.members[number].completed(now, token & ((1 << TOKEN_BITS) - 1));
    }
    fn next_wake(&self) -> Option<Instant> {
        self.members.iter().filter_map(|m| m.next_wake()).min()
    }
    fn finished(&self) -> bool {
        self.members.iter().all(|m| m.finished())
    }
    fn apps(&self) -> Vec<AppReport> {
        let mut all = Vec::new();
        for (member, first) in self.members.iter().zip(&self.first_vm) {
            all.extend(member.apps().into_iter().map(|a| AppReport { vm: a.vm + first, ..a }));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_read_from_its_description() {
        let plan = parse_vm(
            "name=web, image=2g,max_request_kib=64,app=sysbench:mode=SR,size=64m,app=sysbench",
        )
        .unwrap();
        assert_eq!((plan.name.as_str(), plan.apps.len()), ("web", 2));
        assert_eq!((plan.guest.request_pages, plan.guest.image_sectors), (16, 4 << 20));
        assert_eq!(plan.apps[0].params.size("size"), Sectors::new(131_072));
        assert_eq!(plan.source(3, 0).unwrap().vms()[0].name, "web");
        assert!(plan.limits.is_none());
    }

    #[test]
    fn limits_are_the_vms_unless_its_load_has_such_a_key() {
        let limits = |text: &str| parse_vm(text).unwrap().limits.to_string();
        assert_eq!(limits("iops=5,image=2g,group=t,app=sysbench"), "iops=5,group=t");
        assert_eq!(limits("app=sysbench:mode=SR,bandwidth=1MiB"), "bandwidth=1MiB");
        assert_eq!(limits("app=iometer:iops=7"), "none");
        assert_eq!(limits("iops=5,app=iometer:iops=7"), "iops=5");
        assert_eq!(limits("target=2ms,latency=100us,app=sysbench"), "latency=2ms");
        assert_eq!(limits("latency=100us,app=sysbench"), "none");
    }

    #[test]
    fn errors_name_the_key() {
        for (text, part) in [
            ("name=a", "has 0 loads"),
            ("iamge=1g,app=sysbench", "a VM has no parameter 'iamge'; it has image, ram"),
            ("app=sysbnech", "no generator 'sysbnech'; there are sysbench"),
            ("app=sysbench:mod=SR", "sysbench has no parameter 'mod'; it has mode"),
            ("app=sysbench:mode=SR,ram=1g", "ram belongs to the VM"),
            ("app=sysbench:mode=SR,mode=RR", "mode is given twice for sysbench"),
            ("app=sysbench:mode", "is not key=value"),
            ("iops=5,read_iops=5,app=sysbench", "iops and read_iops contradict"),
            ("iops=0,app=sysbench", "iops=0: expected"),
            ("latency=60us,app=uniform", "latency is a guest's, and uniform has none"),
            ("name=,app=sysbench", "expected 1 to 64 bytes"),
            ("app=sysbench:block=1g", "a block must fit in a file"),
        ] {
            let error = parse_vm(text).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let small = parse_vm("image=1g,app=sysbench,app=sysbench").unwrap();
        let error = small.source(1, 0).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("exceed the image"), "{error}");
    }
}
