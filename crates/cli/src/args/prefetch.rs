//! The host cache of `compare` and `experiment run`, and what fills it.

use clap::Args;

/// A host cache, and what fills it ahead of the guests.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Host cache")]
pub struct PrefetchArgs {
    /// Read ahead into a host cache: `none`, or prefetchers with their
    /// parameters, `linux,vio:threshold=0.5`; with several, every policy runs
    /// with each (repeat, or separate by commas)
    #[arg(long, value_name = "LIST")]
    pub prefetch: Vec<String>,
    /// Size of the host cache [default with --prefetch: 1GiB]; without --prefetch
    /// it keeps what guests have read (`none`)
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<String>,
}
