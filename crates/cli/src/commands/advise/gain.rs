//! Which stacks `advise` ranks when a cache is asked for, and what of the gain is the cache's.

use super::judged::{Judged, figure_name, smaller_is_better};
use crate::args::{Goal, PrefetchArgs};
use crate::caching::{self, NO_PREFETCH};
use crate::json::CacheChoice;
use crate::lists::distinct;
use anyhow::Result;
use seekway_report::number::significant;
use seekway_sim::scenario::Cache;
use serde::Serialize;

/// The policy that gains are measured from: what many hosts ran.
const BASE: &str = "cfq";

/// The caches to rank, from the least to the largest: none first, then each size without a
/// prefetcher and with each. So each part of a gain has a run that lacks only that part.
pub fn caches(args: &PrefetchArgs) -> Result<Vec<Option<Cache>>> {
    let given: Vec<Cache> = caching::caches(args)?.into_iter().flatten().collect();
    let mut sizes: Vec<u64> = given.iter().map(|cache| cache.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let of_size = |bytes: u64| {
        let plain = Cache::new(bytes, NO_PREFETCH);
        let given = given.iter().filter(move |cache| cache.size == bytes);
        std::iter::once(plain).chain(given.cloned()).map(Some)
    };
    Ok(distinct(std::iter::once(None).chain(sizes.into_iter().flat_map(of_size))))
}

/// The goal's figure on the way to the recommended stack, part by part. Scripts read these keys.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CacheGain {
    /// Under cfq without a cache.
    pub cfq: f64,
    /// Under the recommended policy without a cache.
    pub policy: f64,
    /// With the recommended cache, without a prefetcher.
    pub cache: f64,
    /// With its prefetcher: all of the recommended stack.
    pub prefetch: f64,
    /// Share of the gain over cfq that the cache and its prefetcher bring. Above 1 if the
    /// policy alone is worse than cfq; null if there is no gain.
    pub cache_share: Option<f64>,
    /// Share of the gain over cfq that the prefetcher brings.
    pub prefetch_share: Option<f64>,
}

impl CacheGain {
    /// `None` if the recommended stack, the first, has no cache.
    pub fn of(ranking: &[Judged], goal: Goal) -> Option<CacheGain> {
        let best = ranking.first()?;
        best.cache.cache_mib?;
        let value = |policy: &str, cache: CacheChoice| {
            let found = ranking.iter().find(|j| j.policy == policy && j.cache == cache);
            found.map(|judged| judged.value)
        };
        let plain = CacheChoice { prefetch: Some(NO_PREFETCH.into()), ..best.cache };
        let (cfq, policy) = (value(BASE, NO_CACHE)?, value(&best.policy, NO_CACHE)?);
        let cache = value(&best.policy, plain)?;
        let sign = if smaller_is_better(goal) { -1.0 } else { 1.0 };
        let total = sign * (best.value - cfq);
        let share = |from: f64| (total > 0.0).then(|| sign * (best.value - from) / total);
        Some(CacheGain {
            cfq,
            policy,
            cache,
            prefetch: best.value,
            cache_share: share(policy),
            prefetch_share: share(cache),
        })
    }
}

const NO_CACHE: CacheChoice = CacheChoice { cache_mib: None, prefetch: None };

/// Describes the cache's gain in a sentence; empty where no cache was tried.
pub fn sentence(ranking: &[Judged], goal: Goal) -> String {
    let three = |value: f64| significant(value, 3);
    let percent =
        |share: Option<f64>| share.map_or("–".into(), |share| format!("{:.0} %", share * 100.0));
    match CacheGain::of(ranking, goal) {
        Some(gain) => format!(
            "By this figure ({}): {BASE} without a cache {}, this policy without one {}, with the \
             cache {}, with its prefetcher {}. Of the gain over {BASE} {} is the cache's, {} by its \
             prefetcher. ",
            figure_name(goal),
            three(gain.cfq),
            three(gain.policy),
            three(gain.cache),
            three(gain.prefetch),
            percent(gain.cache_share),
            percent(gain.prefetch_share)
        ),
        None if ranking.iter().any(|judged| judged.cache != NO_CACHE) => {
            "A cache does not help. ".into()
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(policy: &str, cache: Option<(f64, &str)>, value: f64) -> Judged {
        let cache = CacheChoice {
            cache_mib: cache.map(|(mib, _)| mib),
            prefetch: cache.map(|(_, prefetch)| prefetch.to_string()),
        };
        let label = format!("{policy} {cache:?}");
        Judged { label, cache, ..super::super::judged::tests::judged(policy, value) }
    }

    #[test]
    fn a_gain_is_divided_among_policy_cache_and_prefetcher() {
        let ranking = [
            judged("fairway", Some((64.0, "vio")), 2.0),
            judged("fairway", Some((64.0, "none")), 4.0),
            judged("fairway", None, 7.0),
            judged("cfq", None, 12.0),
        ];
        let gain = CacheGain::of(&ranking, Goal::Latency).expect("a cache");
        assert_eq!((gain.cfq, gain.policy, gain.cache, gain.prefetch), (12.0, 7.0, 4.0, 2.0));
        assert_eq!((gain.cache_share, gain.prefetch_share), (Some(0.5), Some(0.2)));
        let text = sentence(&ranking, Goal::Latency);
        assert!(text.contains("50 % is the cache's, 20 % by its prefetcher."), "{text}");
        // With more being better there is no gain in this.
        assert_eq!(CacheGain::of(&ranking, Goal::Throughput).expect("a cache").cache_share, None);
    }

    #[test]
    fn a_cache_that_does_not_help_is_said_to() {
        let ranking = [judged("cfq", None, 3.0), judged("cfq", Some((64.0, "none")), 3.01)];
        assert!(CacheGain::of(&ranking, Goal::Latency).is_none());
        assert!(sentence(&ranking, Goal::Latency).starts_with("A cache does not help."));
        assert_eq!(sentence(&ranking[..1], Goal::Latency), "");
    }

    #[test]
    fn each_part_has_a_run_without_it() {
        let args = |cache: Option<&str>, prefetch: &str| PrefetchArgs {
            prefetch: vec![prefetch.into()],
            cache: cache.map(str::to_string),
        };
        let made = caches(&args(Some("2MiB,1MiB"), "vio")).unwrap();
        let shown: Vec<(u64, &str)> =
            made.iter().flatten().map(|c| (c.size >> 20, c.prefetch.as_str())).collect();
        assert_eq!(made[0], None);
        assert_eq!(shown, [(1, "none"), (1, "vio"), (2, "none"), (2, "vio")]);
    }
}
