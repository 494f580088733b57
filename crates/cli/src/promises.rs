//! Service-level targets of a VM beside its weight (a reservation, a latency, a group's share), and
//! the policies that keep them.

use crate::lists::distinct;
use seekway_policy::schedulers::REGISTRY;
use seekway_stack::stack::limit::Limits;

/// The promises among these limits that a policy does not keep, by their keys, each once.
/// `policy` may have parameters; nothing is said of a policy that is not known.
pub fn not_kept<'l>(
    policy: &str,
    limits: impl IntoIterator<Item = &'l Limits>,
) -> Vec<&'static str> {
    let name = policy.split(':').next().unwrap_or(policy);
    let Ok(entry) = REGISTRY.find(name) else { return Vec::new() };
    let promises = limits.into_iter().flat_map(Limits::promises);
    distinct(promises.filter(|(promise, _)| !entry.keeps.contains(promise)).map(|(_, key)| key))
}

/// The policies that keep all of these promises, for a message.
pub fn keepers() -> String {
    let all = REGISTRY.iter().filter(|entry| entry.keeps.len() > 1);
    all.map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}
