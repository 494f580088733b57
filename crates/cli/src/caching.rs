//! `--prefetch` and `--cache`, checked.

use crate::args::PrefetchArgs;
use crate::lists::check_distinct;
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::params::split_specs;
use seekway_policy::prefetchers;
pub use seekway_sim::scenario::NO_PREFETCH;
use seekway_sim::scenario::{CACHE_BYTES_DEFAULT, Cache, cache_bytes};

/// The host caches with their prefetchers that the arguments list: each size with each
/// prefetcher, and `None` once for no cache. Says on standard error which size it takes where
/// none is given.
pub fn caches(args: &PrefetchArgs) -> Result<Vec<Option<Cache>>> {
    let prefetchers = prefetchers(&args.prefetch)?;
    let sizes = match &args.cache {
        Some(list) => sizes(list)?,
        None if prefetchers.is_empty() => return Ok(vec![None]),
        None => {
            eprintln!("host cache: 1GiB (--cache SIZE for another)");
            vec![Some(CACHE_BYTES_DEFAULT)]
        }
    };
    let useless = prefetchers.iter().find(|spec| *spec != NO_PREFETCH);
    if let (true, Some(spec)) = (sizes.iter().all(Option::is_none), useless) {
        bail!("--prefetch {spec}: it needs a cache to prefetch into; give --cache a size");
    }
    let prefetchers =
        if prefetchers.is_empty() { vec![NO_PREFETCH.to_string()] } else { prefetchers };
    let of_size = |size: Option<u64>| match size {
        None => vec![None],
        Some(bytes) => {
            prefetchers.iter().map(|spec| Some(Cache::new(bytes, spec.clone()))).collect()
        }
    };
    Ok(sizes.into_iter().flat_map(of_size).collect())
}

fn prefetchers(lists: &[String]) -> Result<Vec<String>> {
    let all = || prefetchers::REGISTRY.iter().map(|e| e.name.to_string()).collect();
    let named = |list: &String| if list == "all" { all() } else { split_specs(list) };
    let specs: Vec<String> = lists.iter().flat_map(named).collect();
    if specs.is_empty() && !lists.is_empty() {
        bail!("--prefetch: name at least one, or `none`");
    }
    for spec in &specs {
        prefetchers::build(spec).context("--prefetch")?;
    }
    Ok(specs)
}

/// The sizes in bytes; `None` for no cache.
fn sizes(list: &str) -> Result<Vec<Option<u64>>> {
    let size = |text: &str| match text {
        "none" => Ok(None),
        text => cache_bytes(text).map(Some).map_err(|e| anyhow!("--cache {text}: {e}")),
    };
    let sizes = list.split(',').map(|text| size(text.trim())).collect::<Result<Vec<_>>>()?;
    let shown = |size: &Option<u64>| size.map_or("none".into(), |bytes| format!("{bytes} bytes"));
    check_distinct("--cache", &sizes, shown)?;
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(cache: Option<&str>, prefetch: &[&str]) -> Result<Vec<(u64, String)>> {
        let prefetch = prefetch.iter().map(|p| p.to_string()).collect();
        let made = caches(&PrefetchArgs { prefetch, cache: cache.map(str::to_string) })?;
        let plain = |cache: Option<Cache>| cache.map_or((0, "".into()), |c| (c.size, c.prefetch));
        Ok(made.into_iter().map(plain).collect())
    }

    #[test]
    fn each_size_comes_with_each_prefetcher_and_no_cache_once() {
        let pairs = made(Some("none,4KiB, 1MiB"), &["none,vio"]).unwrap();
        let shown: Vec<(u64, &str)> = pairs.iter().map(|(b, p)| (*b, p.as_str())).collect();
        let (kib, mib) = (4 << 10, 1 << 20);
        assert_eq!(shown, [(0, ""), (kib, "none"), (kib, "vio"), (mib, "none"), (mib, "vio")]);
        assert_eq!(made(Some("none"), &["none"]).unwrap(), [(0, String::new())]);
        assert_eq!(made(None, &[]).unwrap(), [(0, String::new())]);
        assert_eq!(made(Some("1MiB"), &[]).unwrap(), [(mib, "none".into())]);
        assert_eq!(made(None, &["vio"]).unwrap(), [(CACHE_BYTES_DEFAULT, "vio".into())]);
    }
}
