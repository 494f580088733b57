//! A VM as the command line describes it, how that text is read, and the sources that come of it.

use crate::generators::{Build, Generator, REGISTRY};
use crate::guest::{DISKS_MAX, GuestParams, GuestVm, params};
use crate::rng::split;
use crate::tasks::{BareTask, TaskSource};
use crate::{Source, SourceError, VmDisk};
use seekway_core::params::{ParamError, Params, parse_size};
use seekway_core::units::Sectors;
use seekway_stack::stack::limit::{DiskLimits, LimitsDraft, is_limit};

/// At most this many applications in one VM.
pub const APPS_MAX: usize = 64;

/// One load of a VM.
#[derive(Clone, Debug)]
pub struct AppPlan {
    pub generator: &'static Generator,
    pub params: Params,
    /// The disk that its files are on: 0 for the image, n for the n-th of [`VmPlan::disks`].
    pub disk: usize,
}

/// A disk of a VM beside its image.
#[derive(Clone, Debug)]
pub struct DiskPlan {
    /// Unique in its VM; tables show it behind the VM's, as `web.log`.
    pub name: String,
    /// Size, at least one sector.
    pub sectors: Sectors,
    /// Its own rate limits, and the group whose limits hold as well.
    pub limits: DiskLimits,
}

/// One VM: name, guest, loads.
#[derive(Clone, Debug)]
pub struct VmPlan {
    /// Shown in every table.
    pub name: String,
    /// The guest's settings, see [`params::SPECS`](crate::guest::params::SPECS).
    pub guest: GuestParams,
    /// The rate limits of its image, and the group whose limits hold as well.
    pub limits: DiskLimits,
    /// Disks beside the image, at most [`DISKS_MAX`](crate::guest::DISKS_MAX) with it.
    pub disks: Vec<DiskPlan>,
    /// Applications, at least one.
    pub apps: Vec<AppPlan>,
}

type Apps = Vec<Box<dyn crate::guest::app::App>>;

impl VmPlan {
    /// True if both describe the same load in the same guest under the same limits.
    /// Names do not matter.
    pub fn is_like(&self, other: &VmPlan) -> bool {
        let app = |(a, b): (&AppPlan, &AppPlan)| {
            a.generator.name == b.generator.name && a.params == b.params && a.disk == b.disk
        };
        let disk = |(a, b): (&DiskPlan, &DiskPlan)| a.sectors == b.sectors && a.limits == b.limits;
        self.guest == other.guest
            && self.limits == other.limits
            && self.disks.len() == other.disks.len()
            && self.disks.iter().zip(&other.disks).all(disk)
            && self.apps.len() == other.apps.len()
            && self.apps.iter().zip(&other.apps).all(app)
    }

    /// The rate limits of its disks: the image's first.
    pub fn limits_by_disk(&self) -> impl Iterator<Item = &DiskLimits> {
        [&self.limits].into_iter().chain(self.disks.iter().map(|disk| &disk.limits))
    }

    /// Its disks, the image first.
    fn vm_disks(&self) -> Vec<VmDisk> {
        let capacity = Sectors::new(self.guest.image_sectors);
        let image = VmDisk { name: self.name.clone(), capacity };
        let disk = |disk: &DiskPlan| VmDisk {
            name: format!("{}.{}", self.name, disk.name),
            capacity: disk.sectors,
        };
        [image].into_iter().chain(self.disks.iter().map(disk)).collect()
    }

    /// True if one of its loads goes on until the run ends.
    pub fn is_endless(&self) -> bool {
        self.apps.iter().any(|app| app.generator.is_endless(&app.params))
    }

    /// The applications, or `None` when the load is a bare source.
    pub(super) fn apps_for(&self, seed: u64) -> Result<Option<Apps>, ParamError> {
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

    /// Makes the load as tasks, for vCPUs that somebody else models.
    pub fn tasks(&self, seed: u64, number: u16) -> Result<Box<dyn TaskSource>, SourceError> {
        match self.load(seed, number)? {
            Load::Guest(guest) => Ok(guest.on_modelled_vcpus()),
            Load::Bare(source) => Ok(Box::new(BareTask::new(source, self.guest.cpu_op))),
        }
    }

    pub(crate) fn load(&self, seed: u64, number: u16) -> Result<Load, SourceError> {
        let seed = split(seed, u64::from(number));
        let whose = |e: ParamError| SourceError(format!("VM {}: {e}", self.name));
        if let Some(apps) = self.apps_for(seed).map_err(whose)? {
            let apps = self.apps.iter().map(|plan| plan.disk).zip(apps).collect();
            let guest = GuestVm::with_disks(self.vm_disks(), self.guest.clone(), apps, seed)?;
            return Ok(Load::Guest(Box::new(guest)));
        }
        let disk = self.vm_disks().remove(0);
        match self.apps[0].generator.build {
            Build::Bare(build) => {
                Ok(Load::Bare(build(disk, &self.apps[0].params, seed).map_err(whose)?))
            }
            Build::App(_) => unreachable!("apps_for made it"),
        }
    }
}

/// Load of a VM.
pub(crate) enum Load {
    Guest(Box<GuestVm>),
    Bare(Box<dyn Source>),
}

// The text that describes a VM on the command line:
// `name=web,image=12g,max_request_kib=64,app=sysbench:mode=SR,app=sysbench:mode=RR`.
//
// First the VM's own keys, then one `app=GENERATOR` after the other, each
// followed by its parameters. Rate limits of the VM's disk (`iops=2000,group=t`) stand
// among its own keys, or behind an application that has no parameter of that name. `target=2ms`
// is the target of latency, because `latency` is the guest's own way to the host.
//
// `disk=log:2GiB` among the VM's keys is a disk beside the image, and rate limits behind it are
// that disk's. `disk=log` behind an application says that its files are there.

/// Longest name of a VM.
const NAME_BYTES_MAX: usize = 64;

/// Longest name of a disk beside the image.
const DISK_NAME_BYTES_MAX: usize = 16;

/// Keys with their values, as they were written.
pub type Pairs = Vec<(String, String)>;

/// Text of a load.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AppText {
    /// Name of the generator.
    pub app: String,
    /// Parameters of the generator.
    pub given: Pairs,
    /// Name of the disk that its files are on, if that is not the image.
    pub disk: Option<String>,
}

/// A disk beside the image, as it is written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DiskText {
    pub name: String,
    pub size: String,
    pub limits: Pairs,
}

/// A VM as it is written, whether as one text or as a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VmText {
    pub name: Option<String>,
    /// Keys of [`params::SPECS`].
    pub guest: Pairs,
    /// Limits of the image.
    pub limits: Pairs,
    /// The disks beside the image.
    pub disks: Vec<DiskText>,
    pub apps: Vec<AppText>,
}

/// Read the description of a VM. The error names the key and lists the valid ones.
pub fn parse_vm(text: &str) -> Result<VmPlan, ParamError> {
    VmText::parse(text)?.plan()
}

impl VmText {
    /// Takes a description apart: which key is whose.
    ///
    /// # Errors
    /// For what is no pair, for an unknown generator, and for a key that is given twice.
    pub fn parse(text: &str) -> Result<VmText, ParamError> {
        let mut draft = VmText::default();
        for pair in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(ParamError::new(format!("'{pair}' in '{text}' is not key=value")));
            };
            draft.add(key.trim(), value.trim())?;
        }
        Ok(draft)
    }

    fn add(&mut self, key: &str, value: &str) -> Result<(), ParamError> {
        let of_app = match self.apps.last() {
            Some(app) => REGISTRY.find(&app.app)?.params.iter().any(|spec| spec.key == key),
            None => false,
        };
        if !of_app && self.add_limit(key, value)? {
            return Ok(());
        }
        match (key, self.apps.last_mut()) {
            ("app", _) => self.apps.push(start_app(value)?),
            ("disk", Some(app)) => {
                if app.disk.replace(value.into()).is_some() {
                    return Err(ParamError::new(format!("disk is given twice for {}", app.app)));
                }
            }
            (_, Some(app)) => add_once(&mut app.given, key, value, &app.app)?,
            ("disk", None) => self.add_disk(value)?,
            ("name", None) => self.name = Some(value.into()),
            (_, None) => add_once(&mut self.guest, key, value, "the VM")?,
        }
        Ok(())
    }

    /// Takes a rate limit, which is that of the disk declared last; false for another key.
    fn add_limit(&mut self, key: &str, value: &str) -> Result<bool, ParamError> {
        // `latency` is the guest's way to the host; a target of latency has another name here.
        let name = match key {
            "latency" => return Ok(false),
            "target" => "latency",
            _ => key,
        };
        if !is_limit(name)? {
            return Ok(false);
        }
        if !(self.disks.is_empty() || self.apps.is_empty()) {
            return Err(ParamError::new(format!(
                "{key}={value}: which disk? Write it before the first app=, behind the disk= that \
                 it limits (in front of all disk= for the image)"
            )));
        }
        let limits = self.disks.last_mut().map_or(&mut self.limits, |disk| &mut disk.limits);
        limits.push((name.into(), value.into()));
        Ok(true)
    }

    /// `NAME:SIZE`, a disk beside the image.
    fn add_disk(&mut self, value: &str) -> Result<(), ParamError> {
        let Some((name, size)) = value.split_once(':') else {
            let expected = "expected a name and a size, as disk=log:2GiB";
            return Err(ParamError::new(format!("disk={value}: {expected}")));
        };
        self.disks.push(DiskText { name: name.into(), size: size.into(), limits: Pairs::new() });
        Ok(())
    }

    /// The VM, if it can be.
    ///
    /// # Errors
    /// Names the key and lists the valid ones.
    pub fn plan(&self) -> Result<VmPlan, ParamError> {
        let name = self.name.as_deref().unwrap_or("vm");
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let what = format!("name={name}: expected 1 to {NAME_BYTES_MAX} bytes");
            return Err(ParamError::new(what));
        }
        if self.apps.is_empty() || self.apps.len() > APPS_MAX {
            let n = self.apps.len();
            return Err(ParamError::new(format!(
                "VM '{name}' has {n} loads: give 1 to {APPS_MAX}, as app=sysbench:mode=SR"
            )));
        }
        self.judge_bare()?;
        let mut disks: Vec<DiskPlan> = Vec::with_capacity(self.disks.len());
        for disk in &self.disks {
            disks.push(disk.plan(&disks)?);
        }
        let guest = Params::with(params::SPECS, "a VM", &borrowed(&self.guest))?;
        let plan = VmPlan {
            name: name.to_string(),
            guest: GuestParams::from(&guest),
            limits: disk_limits(&self.limits)?,
            apps: self.apps.iter().map(|app| app.plan(&disks)).collect::<Result<_, _>>()?,
            disks,
        };
        plan.apps_for(0)?; // what only making them finds out
        Ok(plan)
    }

    /// A bare load has no guest.
    fn judge_bare(&self) -> Result<(), ParamError> {
        for app in &self.apps {
            let generator = REGISTRY.find(&app.app)?;
            if !matches!(generator.build, Build::Bare(_)) {
                continue;
            }
            let other = self.guest.iter().map(|(key, _)| key.as_str()).find(|key| *key != "image");
            let has_disks = app.disk.is_some() || !self.disks.is_empty();
            if let Some(key) = other.or(has_disks.then_some("disk")) {
                let name = generator.name;
                return Err(ParamError::new(format!(
                    "{key} is a guest's, and {name} has none: of the VM's keys it takes image and \
                     rate limits"
                )));
            }
        }
        Ok(())
    }
}

impl DiskText {
    /// `before` are the disks declared before it.
    fn plan(&self, before: &[DiskPlan]) -> Result<DiskPlan, ParamError> {
        let DiskText { name, size, .. } = self;
        let wrong = |what: &str| Err(ParamError::new(format!("disk={name}:{size}: {what}")));
        let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        if name.is_empty() || name.len() > DISK_NAME_BYTES_MAX || !letters {
            return wrong(&format!(
                "a disk's name is 1 to {DISK_NAME_BYTES_MAX} letters, digits, - or _"
            ));
        }
        if before.iter().any(|known| known.name == *name) {
            return wrong("there is a disk of this name already");
        }
        if before.len() + 1 == DISKS_MAX {
            return wrong(&format!("a VM has at most {DISKS_MAX} disks"));
        }
        let sectors = match parse_size(size) {
            Ok(Sectors::ZERO) => return wrong("expected a size such as 2GiB, not 0"),
            Ok(sectors) => sectors,
            Err(e) => return wrong(&e.to_string()),
        };
        Ok(DiskPlan { name: name.clone(), sectors, limits: disk_limits(&self.limits)? })
    }
}

impl AppText {
    /// `disks` are those beside the image.
    fn plan(&self, disks: &[DiskPlan]) -> Result<AppPlan, ParamError> {
        let (generator, given) = (REGISTRY.find(&self.app)?, borrowed(&self.given));
        let params = Params::with(generator.params, generator.name, &given);
        let params = params.map_err(|e| misplaced(e, generator, &given))?;
        let number = |name: &String| {
            let found = disks.iter().position(|known| known.name == *name);
            found.map(|n| n + 1).ok_or_else(|| {
                let names: Vec<&str> = disks.iter().map(|disk| disk.name.as_str()).collect();
                let there = if disks.is_empty() { "none".into() } else { names.join(", ") };
                ParamError::new(format!(
                    "disk={name} of {}: no such disk, there are {there}; declare it before the \
                     first app=, as disk=log:2GiB. Without disk= files are on the image",
                    generator.name
                ))
            })
        };
        let disk = self.disk.as_ref().map_or(Ok(0), number)?;
        Ok(AppPlan { generator, params, disk })
    }
}

fn borrowed(pairs: &Pairs) -> Vec<(&str, &str)> {
    pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// The limits of a disk, by their keys.
///
/// # Errors
/// Names the key, or the two that contradict each other.
pub fn disk_limits(pairs: &Pairs) -> Result<DiskLimits, ParamError> {
    LimitsDraft::read(borrowed(pairs))?.finish()
}

/// `NAME` or `NAME:key=value`, the first part of an application.
fn start_app(value: &str) -> Result<AppText, ParamError> {
    let (name, first) = value.split_once(':').unwrap_or((value, ""));
    let generator = REGISTRY.find(name.trim())?;
    let mut given = Pairs::new();
    if !first.trim().is_empty() {
        let Some((key, value)) = first.split_once('=') else {
            return Err(ParamError::new(format!("'{first}' in 'app={value}' is not key=value")));
        };
        given.push((key.trim().into(), value.trim().into()));
    }
    Ok(AppText { app: generator.name.into(), given, disk: None })
}

fn add_once(given: &mut Pairs, key: &str, value: &str, whose: &str) -> Result<(), ParamError> {
    if given.iter().any(|(k, _)| *k == key) {
        return Err(ParamError::new(format!("{key} is given twice for {whose}")));
    }
    given.push((key.into(), value.into()));
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

#[cfg(test)]
mod vm_text_tests {
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
    fn disks_and_their_limits_are_read_and_applications_choose_one() {
        let text = "name=db,iops=9,disk=log:2GiB,iops=7,group=t,ram=1g,disk=tmp:4096,\
                    app=sysbench:mode=SR,app=sysbench:mode=SW,disk=tmp,app=sysbench,disk=log";
        let plan = parse_vm(text).unwrap();
        let limits: Vec<String> = plan.limits_by_disk().map(ToString::to_string).collect();
        assert_eq!(limits, ["iops=9", "iops=7,group=t", "none"]);
        assert_eq!(plan.apps.iter().map(|app| app.disk).collect::<Vec<_>>(), [0, 2, 1]);
        assert_eq!(plan.disks[1].sectors, Sectors::new(8), "a bare number is bytes");
        let other = |from: &str, to: &str| parse_vm(&text.replace(from, to)).unwrap();
        assert!(plan.is_like(&other("log", "lag")), "names do not matter");
        for (from, to) in [("iops=7", "iops=8"), ("4096", "8192"), (",disk=tmp,", ",")] {
            assert!(!plan.is_like(&other(from, to)), "{to} for {from}");
        }
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
            ("iops=0,app=sysbench", "iops=0: at least 1"),
            ("throttling.iops-total=5,app=sysbench", "(QEMU's name): write iops"),
            ("bps_rd=5,app=sysbench", "no limit 'bps_rd' (QEMU's name): write read_bandwidth"),
            ("latency=60us,app=uniform", "latency is a guest's, and uniform has none"),
            ("name=,app=sysbench", "expected 1 to 64 bytes"),
            ("app=sysbench:block=1g", "a block must fit in a file"),
            ("disk=log,app=sysbench", "disk=log: expected a name and a size"),
            ("disk=log:0,app=sysbench", "disk=log:0: expected a size"),
            ("disk=a.b:1g,app=sysbench", "1 to 16 letters, digits, - or _"),
            ("disk=b:1g,disk=b:2g,app=sysbench", "a disk of this name already"),
            ("disk=b:1g,app=sysbench,disk=c", "disk=c of sysbench: no such disk, there are b;"),
            ("app=sysbench,disk=c", "there are none; declare it before the first app="),
            ("disk=b:1g,app=sysbench,disk=b,disk=b", "disk is given twice for sysbench"),
            ("disk=b:1g,app=sysbench,iops=5", "iops=5: which disk?"),
            ("disk=b:1g,app=uniform", "disk is a guest's, and uniform has none"),
        ] {
            let error = parse_vm(text).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let small = parse_vm("image=1g,app=sysbench,app=sysbench").unwrap();
        let error = small.source(1, 0).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("VM vm: its applications' files exceed the image"), "{error}");
        let small = parse_vm("disk=b:512m,app=sysbench,disk=b").unwrap();
        let error = small.source(1, 0).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("VM vm.b: its applications' files exceed the disk"), "{error}");
        let many: String = (1..16).map(|n| format!("disk=d{n}:1g,")).collect();
        assert_eq!(parse_vm(&format!("{many}app=sysbench")).unwrap().disks.len(), 15);
        let error = parse_vm(&format!("{many}disk=e:1g,app=sysbench")).unwrap_err().to_string();
        assert!(error.contains("at most 16 disks"), "{error}");
    }
}
