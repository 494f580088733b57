//! Arguments for the host cache of `compare`, `predict`, `advise` and `experiment run`.

use crate::complete;
use clap::Args;

/// A host cache and its prefetcher.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Host cache")]
pub struct PrefetchArgs {
    /// Prefetch into a host cache (`seekway prefetcher list`), with parameters as
    /// `NAME:key=value,…`; a list or `all`, each runs with every size of --cache
    /// (`experiment run` takes one)
    #[arg(long, value_name = "LIST", add = complete::prefetcher())]
    pub prefetch: Vec<String>,
    /// Sizes of the host cache, `none,512MiB,2GiB`; every policy runs with each
    /// (`experiment run` takes one) [default: 1GiB with --prefetch, else none]
    #[arg(long, value_name = "LIST")]
    pub cache: Option<String>,
}
