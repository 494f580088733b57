//! What "on" and "off" are: the parts, and the ways in which every scene runs.

use seekway_policy::schedulers::REGISTRY;

/// Which parts are on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parts {
    /// The host's policy for the disk.
    pub scheduler: &'static str,
    pub cache: bool,
    pub prefetch: bool,
    pub tags: bool,
    pub agent: bool,
    /// Do the guests have the memory that the host's cache would have?
    pub guests_have_cache: bool,
}

/// The host's policy with everything off, and with everything on.
const OFF: &str = "noop";
const ON: &str = "fairway";

impl Parts {
    pub const NONE: Parts = Parts {
        scheduler: OFF,
        cache: false,
        prefetch: false,
        tags: false,
        agent: false,
        guests_have_cache: false,
    };
    pub const ALL: Parts = Parts {
        scheduler: ON,
        cache: true,
        prefetch: true,
        tags: true,
        agent: true,
        guests_have_cache: false,
    };
    /// Each part with those that are nothing without it: prefetching needs the cache, and
    /// nothing else reads tags.
    pub const EACH: [(&'static str, Parts); 5] = [
        ("fairway", Parts { scheduler: ON, ..Parts::NONE }),
        ("the cache", Parts { cache: true, prefetch: true, tags: true, ..Parts::NONE }),
        ("prefetching", Parts { prefetch: true, tags: true, ..Parts::NONE }),
        ("tags", Parts { tags: true, ..Parts::NONE }),
        ("the agent", Parts { agent: true, ..Parts::NONE }),
    ];

    /// The same under another policy.
    pub fn under(self, scheduler: &'static str) -> Parts {
        Parts { scheduler, ..self }
    }

    /// These, but for `others`.
    pub fn without(self, others: Parts) -> Parts {
        Parts {
            scheduler: if others.scheduler == ON { OFF } else { self.scheduler },
            cache: self.cache && !others.cache,
            prefetch: self.prefetch && !others.prefetch,
            tags: self.tags && !others.tags,
            agent: self.agent && !others.agent,
            guests_have_cache: self.guests_have_cache,
        }
    }
}

/// All policies, with every other part on.
pub(super) fn contestants() -> impl Iterator<Item = (&'static str, Parts)> {
    REGISTRY.iter().map(|entry| (entry.name, Parts::ALL.under(entry.name)))
}

/// Everything that runs in a scene, with parts one by one or without.
pub(super) fn ways(has_each_part: bool) -> Vec<(String, Parts)> {
    let none = Parts::NONE;
    let on = contestants().map(|(name, parts)| (format!("all on, {name}"), parts));
    let others = [
        ("all off", none),
        ("deadline alone, as Linux has it", none.under("deadline")),
        ("bfq alone, as Linux has it", none.under("bfq")),
        ("cfq alone, the papers' baseline", none.under("cfq")),
        (
            "equal memory: fairway and the agent, guests have the cache's memory",
            Parts { scheduler: ON, agent: true, guests_have_cache: true, ..none },
        ),
    ];
    let mut ways: Vec<_> =
        on.chain(others.map(|(name, parts)| (name.to_string(), parts))).collect();
    if has_each_part {
        ways.extend(by_part());
    }
    ways
}

/// Each part left out, and each alone. All on without fairway is all on under noop.
fn by_part() -> impl Iterator<Item = (String, Parts)> {
    let none = Parts::NONE;
    let others = Parts::EACH.into_iter().filter(|(_, part)| part.scheduler != ON);
    let without = others.map(|(name, part)| (format!("without {name}"), Parts::ALL.without(part)));
    let alone = [
        ("fairway alone", none.under(ON)),
        ("the cache alone", Parts { cache: true, ..none }),
        ("cache and prefetching alone", Parts { cache: true, prefetch: true, ..none }),
        (
            "cache, prefetching and tags alone",
            Parts { cache: true, prefetch: true, tags: true, ..none },
        ),
        ("the agent alone", Parts { agent: true, ..none }),
    ];
    without.chain(alone.map(|(name, parts)| (name.to_string(), parts)))
}
