//! Synthetic loads. Most are applications inside a modelled guest
//! ([`crate::guest`]); `uniform` is a bare source for measuring engines.
//!
//! [`REGISTRY`] is the one list from which names, help and parsing derive;
//! [`parse_vm`] reads the command line's description of a VM.

pub mod darwin;
pub mod dist;
pub mod filebench;
pub mod fio;
pub mod fio_job;
pub mod fragmented;
pub mod hadoop;
pub mod iometer;
pub mod pace;
pub mod permutation;
pub mod plan;
pub mod rng;
pub mod surge;
pub mod sysbench;
pub mod tpch;
pub mod uniform;
pub mod web;
pub mod ycsb;

use crate::guest::app::App;
use crate::{Source, VmDisk};
use seekway_policy::params::{ParamError, ParamSpec, Params};
use seekway_policy::registry::{Registry, RegistryEntry};

pub use fio_job::parse_fio_job;
pub use plan::{AppPlan, VmPlan, fleet, parse_vm};

/// Makes an application from its parameters and a seed.
pub type BuildApp = fn(&Params, u64) -> Result<Box<dyn App>, ParamError>;
/// Makes a source for a disk from its parameters and a seed.
pub type BuildSource = fn(VmDisk, &Params, u64) -> Result<Box<dyn Source>, ParamError>;

/// How a generator is made.
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
    /// One line.
    pub summary: &'static str,
    /// Its parameters with defaults and help.
    pub params: &'static [ParamSpec],
    /// Makes one.
    pub build: Build,
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

/// All generators.
pub static REGISTRY: Registry<Generator> = Registry::new(
    "generator",
    &[
        sysbench::GENERATOR,
        fio::GENERATOR,
        fio::SYNC_GENERATOR,
        iometer::GENERATOR,
        surge::GENERATOR,
        filebench::servers::FILE_GENERATOR,
        filebench::servers::WEB_GENERATOR,
        filebench::oltp::GENERATOR,
        filebench::servers::MAIL_GENERATOR,
        filebench::servers::PROXY_GENERATOR,
        filebench::video::GENERATOR,
        darwin::GENERATOR,
        web::CLOUDSTONE_GENERATOR,
        web::WIKI_GENERATOR,
        ycsb::GENERATOR,
        hadoop::GENERATOR,
        tpch::GENERATOR,
        uniform::GENERATOR,
    ],
);

/// A parameter's declaration, in one line.
pub(crate) const fn param(
    key: &'static str,
    kind: seekway_policy::params::Kind,
    default: &'static str,
    help: &'static str,
) -> ParamSpec {
    ParamSpec { key, kind, default, help }
}
