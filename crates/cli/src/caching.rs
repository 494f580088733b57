//! `--prefetch` and `--cache`, checked.

use crate::args::PrefetchArgs;
use crate::load;
use anyhow::{Context, Result, bail};
use seekway_policy::cache::BLOCK_BYTES;
use seekway_policy::params::split_specs;
use seekway_policy::prefetchers;
use seekway_sim::experiments::CACHE_BYTES_DEFAULT;

/// Most of a cache: its books, not its data, are in memory here.
const CACHE_BYTES_MAX: u64 = 1 << 40;

/// With which prefetchers each policy is to run, and over how large a cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caching {
    /// Their specifications; `None` runs without a host cache.
    pub prefetch: Vec<Option<String>>,
    /// Size of the cache of those that have one.
    pub bytes: u64,
}

impl Default for Caching {
    /// No host cache.
    fn default() -> Self {
        Caching { prefetch: vec![None], bytes: CACHE_BYTES_DEFAULT }
    }
}

impl Caching {
    /// What the arguments say. Says on standard error which size it takes where none is given.
    pub fn new(args: &PrefetchArgs) -> Result<Caching> {
        let all = || prefetchers::REGISTRY.iter().map(|e| e.name.to_string()).collect();
        let named = |list: &String| if list == "all" { all() } else { split_specs(list) };
        let specs: Vec<String> = args.prefetch.iter().flat_map(named).collect();
        if specs.is_empty() && !args.prefetch.is_empty() {
            bail!("--prefetch: name at least one, or `none`");
        }
        for spec in &specs {
            prefetchers::build(spec).context("--prefetch")?;
        }
        let bytes = match &args.cache {
            Some(text) => cache_bytes(text)?,
            None if specs.is_empty() => return Ok(Caching::default()),
            None => {
                eprintln!("host cache: 1GiB (--cache SIZE for another)");
                CACHE_BYTES_DEFAULT
            }
        };
        let prefetch = match specs.is_empty() {
            true => vec![Some("none".into())],
            false => specs.into_iter().map(Some).collect(),
        };
        Ok(Caching { prefetch, bytes })
    }
}

fn cache_bytes(text: &str) -> Result<u64> {
    let bytes = load::size("--cache", text)?.bytes();
    if !(BLOCK_BYTES..=CACHE_BYTES_MAX).contains(&bytes) {
        bail!("--cache {text}: at least one block of 4KiB, at most 1TiB");
    }
    Ok(bytes)
}
