//! A VM as the command line describes it ([`super::vm_text`] reads that), and the sources that
//! come of it.

use crate::generators::rng::split;
use crate::generators::{Build, Generator};
use crate::guest::{GuestParams, GuestVm};
use crate::tasks::{BareTask, TaskSource};
use crate::{Source, SourceError, VmDisk};
use seekway_core::params::{ParamError, Params};
use seekway_core::units::Sectors;
use seekway_stack::stack::limit::DiskLimits;

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
