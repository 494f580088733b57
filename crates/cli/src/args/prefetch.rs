//! Arguments for the host cache of `compare`, `predict` and `advise`.

use crate::complete;
use clap::Args;

/// A host cache and its prefetcher.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Host cache")]
pub struct PrefetchArgs {
    /// Prefetch into a host cache (`seekway list prefetchers`), with parameters as
    /// `NAME:key=value,…`; a list or `all`, each runs with every size of --cache
    #[arg(long, value_name = "LIST", add = complete::prefetcher())]
    pub prefetch: Vec<String>,
    /// Sizes of the host cache, `none,512MiB,2GiB`; every policy runs with each
    /// [default: 1GiB with --prefetch, else none]
    #[arg(long, value_name = "LIST")]
    pub cache: Option<String>,
}
