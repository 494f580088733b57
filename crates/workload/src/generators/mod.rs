//! Synthetic loads. Most are applications inside a modelled guest
//! ([`crate::guest`]); `uniform` is a bare source for measuring engines.
//!
//! The application generators are tables of steps for one interpreter, `flow.rs`;
//! sysbench, fio, iometer, hadoop, surge, darwin and uniform are code.
//!
//! [`REGISTRY`] is the one list from which names, help and parsing derive;
//! [`parse_vm`] reads the command line's description of a VM.

pub mod build;
pub mod darwin;
pub mod filebench;
pub mod fio;
mod flow;
pub mod hadoop;
pub mod iometer;
pub mod plan;
mod servers;
pub mod surge;
pub mod sysbench;
pub mod tpch;
pub mod uniform;
pub mod web;
pub mod ycsb;

use crate::guest::app::App;
use crate::{Source, VmDisk};
pub(crate) use seekway_core::params::param;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::registry::{Registry, RegistryEntry};
use seekway_core::units::{Nanos, Sectors};

pub use plan::{AppPlan, DiskPlan, VmPlan};
pub use plan::{AppText, DiskText, Pairs, VmText, disk_limits, parse_vm};

/// Makes an application from its parameters and a seed.
pub type BuildApp = fn(&Params, u64) -> Result<Box<dyn App>, ParamError>;
/// Makes a source for a disk from its parameters and a seed.
pub type BuildSource = fn(VmDisk, &Params, u64) -> Result<Box<dyn Source>, ParamError>;

/// Constructor of a generator.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    /// An application of a guest.
    App(BuildApp),
    /// A source of its own, without a guest: the VM's only load.
    Bare(BuildSource),
}

/// A generator as the command line knows it.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    /// The name in `app=NAME:key=value`.
    pub name: &'static str,
    pub summary: &'static str,
    /// Its parameters with defaults and help.
    pub params: &'static [ParamSpec],
    /// Parameters that end the load, unless all of them are zero. Without any the load
    /// ends when its work is done.
    pub ends_by: &'static [&'static str],
    /// Makes the application or the source from parameters and a seed.
    pub build: Build,
}

impl Generator {
    /// True if a load with these parameters goes on until the run ends.
    pub fn is_endless(&self, params: &Params) -> bool {
        let is_zero = |key: &&str| match self.params.iter().find(|s| s.key == *key) {
            Some(ParamSpec { kind: Kind::Duration, .. }) => params.duration(key) == Nanos::ZERO,
            Some(ParamSpec { kind: Kind::Size, .. }) => params.size(key) == Sectors::ZERO,
            _ => params.count(key) == 0,
        };
        !self.ends_by.is_empty() && self.ends_by.iter().all(is_zero)
    }
}

impl RegistryEntry for Generator {
    fn name(&self) -> &'static str {
        self.name
    }
    fn summary(&self) -> &'static str {
        self.summary
    }
    fn params(&self) -> &'static [ParamSpec] {
        self.params
    }
}

pub static REGISTRY: Registry<Generator> = Registry::new(
    "generator",
    &[
        sysbench::GENERATOR,
        fio::GENERATOR,
        fio::SYNC_GENERATOR,
        iometer::GENERATOR,
        surge::GENERATOR,
        servers::FILE_GENERATOR,
        servers::WEB_GENERATOR,
        servers::OLTP_GENERATOR,
        servers::MAIL_GENERATOR,
        servers::PROXY_GENERATOR,
        servers::VIDEO_GENERATOR,
        darwin::GENERATOR,
        web::CLOUDSTONE_GENERATOR,
        web::WIKI_GENERATOR,
        ycsb::GENERATOR,
        hadoop::GENERATOR,
        build::GENERATOR,
        tpch::GENERATOR,
        uniform::GENERATOR,
    ],
);
