//! Arguments for the host cache of `compare` and `experiment run`.

use clap::Args;

/// A host cache and its prefetcher.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Host cache")]
pub struct PrefetchArgs {
    /// Prefetch into a host cache (`seekway prefetcher list`), with parameters as
    /// `NAME:key=value,…`. `compare` takes a list or `all` and runs every policy with
    /// each prefetcher
    #[arg(long, value_name = "LIST")]
    pub prefetch: Vec<String>,
    /// Size of the host cache [default: 1GiB with --prefetch, else no cache]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<String>,
}
