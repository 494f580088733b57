//! The host cache of `compare` and `experiment run`, and what fills it.

use clap::Args;

/// A host cache, and what fills it ahead of the guests.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Host cache")]
pub struct PrefetchArgs {
    /// Read ahead into a host cache: a prefetcher (`seekway prefetcher list`)
    /// with its parameters as `NAME:key=value,…`. `compare` takes several, by
    /// commas or repeated, or `all`, and runs every policy with each
    #[arg(long, value_name = "LIST")]
    pub prefetch: Vec<String>,
    /// Size of the host cache [default with --prefetch: 1GiB]; without --prefetch
    /// it keeps what guests have read (`none`)
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<String>,
}
