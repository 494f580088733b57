//! Can the disk carry the load? If not: how much of it, and which modelled disk could?

use super::judged::p99_ms;
use crate::json::CacheChoice;
use crate::load::distinct;
use crate::runs::{self, Outcome, Stage};
use anyhow::Result;
use seekway_core::units::{Nanos, Sectors};
use seekway_device::profile::{self, Profile};
use seekway_sim::engine::utilisation;
use seekway_sim::scenario::{Load, Ready, Scenario};
use seekway_sim::{Layout, VmResult};
use serde::Serialize;

/// Halvings of the search for the share: within 4 % of the place where it changes.
const STEPS: u32 = 7;
/// The least share that is looked for is 2^-7, somewhat below 1 %.
const SHARE_MIN_LOG2: f64 = -7.0;

/// Service of a load under the policy that serves it best. Scripts read these keys.
#[derive(Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Service {
    /// As sentences and tables call its stack.
    #[serde(skip)]
    pub label: String,
    pub policy: String,
    #[serde(flatten)]
    pub cache: CacheChoice,
    /// The VM with the largest p99, and that p99.
    pub vm: String,
    pub p99_ms: f64,
    /// Share of that VM's requests that took no longer than the limit.
    pub within_limit: f64,
    /// Requests that were forced out at the hard limit.
    pub forced: u64,
    /// Did the trace's clock wait because the queue was full?
    pub queue_full: bool,
    /// Share of the time in which the disk worked.
    pub busy: f64,
}

impl Service {
    fn of(outcome: &Outcome, load: &Load, p99_limit: Nanos) -> Service {
        let result = &outcome.result;
        let within = |vm: &VmResult| vm.response.quantile_below(p99_limit.get());
        let worst = result.vms.iter().max_by(|a, b| p99_ms(a).total_cmp(&p99_ms(b)));
        Service {
            label: outcome.label.clone(),
            policy: outcome.scenario.policy.clone(),
            cache: CacheChoice::new(&outcome.scenario),
            vm: worst.map(|vm| vm.name.clone()).unwrap_or_default(),
            p99_ms: worst.map_or(0.0, p99_ms),
            within_limit: worst.map_or(1.0, within),
            forced: result.stats.forced,
            queue_full: load.stalls_at().is_some_and(|limit| result.outstanding_max >= limit),
            busy: utilisation(result).min(1.0),
        }
    }

    fn carries(&self, p99_limit: Nanos) -> bool {
        self.p99_ms <= p99_limit.as_millis_f64() && self.forced == 0 && !self.queue_full
    }

    /// The best service: one that carries the load before one that does not, then by p99.
    fn best(services: impl Iterator<Item = Service>, p99_limit: Nanos) -> Option<Service> {
        services.min_by(|a, b| {
            let fails = |service: &Service| !service.carries(p99_limit);
            fails(a).cmp(&fails(b)).then(a.p99_ms.total_cmp(&b.p99_ms))
        })
    }
}

/// A load that the disk cannot carry. Scripts read these keys.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Overload {
    /// The whole load on this disk.
    pub best: Service,
    pub p99_limit_ms: f64,
    pub hard_limit_ms: f64,
    /// The largest part of the rate that the disk carries; null if it is below 1 %.
    pub share: Option<f64>,
    /// That part on this disk.
    pub at_share: Option<Service>,
    /// The modelled disks with the whole load: those that carry it, the slowest first, then
    /// those that do not.
    pub disks: Vec<Disk>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Disk {
    pub disk: String,
    pub carries: bool,
    /// Null if the load's disks do not fit on it.
    pub service: Option<Service>,
}

impl Overload {
    /// `None` if the disk carries the load. `outcomes` are the runs of all policies.
    ///
    /// A closed load (`--outstanding`) is always carried: it asks for as much as the disk gives.
    pub fn find(
        stage: &Stage<'_>,
        outcomes: &[Outcome],
        p99_limit: Nanos,
    ) -> Result<Option<Overload>> {
        if !stage.ready.load.open_loop {
            return Ok(None);
        }
        let services = outcomes.iter().map(|o| Service::of(o, &stage.ready.load, p99_limit));
        let Some(best) = Service::best(services, p99_limit) else { return Ok(None) };
        if best.carries(p99_limit) {
            return Ok(None);
        }
        let search = Search { stage, candidates: candidates(outcomes, &best), p99_limit };
        let carried = search.share()?;
        let (share, at_share) = carried.unzip();
        Ok(Some(Overload {
            best,
            p99_limit_ms: p99_limit.as_millis_f64(),
            hard_limit_ms: outcomes[0].scenario.stack.hard_limit.0.as_millis_f64(),
            share,
            at_share,
            disks: search.disks()?,
        }))
    }
}

/// True if the disk carries the load without a host cache. `outcomes` are the runs of all stacks.
pub fn carried_without_cache(load: &Load, outcomes: &[Outcome], p99_limit: Nanos) -> bool {
    let mut bare = outcomes.iter().filter(|o| o.scenario.cache.is_none());
    bare.any(|o| Service::of(o, load, p99_limit).carries(p99_limit))
}

/// The stacks most likely to carry what can be carried: those with the shortest p99 and the
/// shortest mean under the overload, and the policy for every device in place of the first's.
fn candidates(outcomes: &[Outcome], best: &Service) -> Vec<Scenario> {
    let mean = |outcome: &&Outcome| outcome.result.response.mean();
    let fastest = outcomes.iter().min_by(|a, b| mean(a).total_cmp(&mean(b)));
    let fastest = fastest.map(|outcome| outcome.scenario.clone());
    let best = outcomes.iter().find(|outcome| outcome.label == best.label);
    let best = best.map(|outcome| outcome.scenario.clone());
    let general = best.clone().map(|stack| Scenario { policy: "fairway".into(), ..stack });
    distinct(best.into_iter().chain(general).chain(fastest))
}

/// Runs of the same load at other rates and on other disks.
struct Search<'a> {
    stage: &'a Stage<'a>,
    candidates: Vec<Scenario>,
    p99_limit: Nanos,
}

impl Search<'_> {
    /// The largest share of the rate that the disk carries, and how: bisection over the
    /// share's logarithm. Whatever the disk carries at some rate, it carries at less.
    fn share(&self) -> Result<Option<(f64, Service)>> {
        let runs = STEPS as usize * self.candidates.len();
        let bar = self.stage.bar(runs, "how much it carries");
        let (mut carried, mut too_much) = (SHARE_MIN_LOG2, 0.0);
        let mut found = None;
        for _ in 0..STEPS {
            let middle: f64 = f64::midpoint(carried, too_much);
            let share = middle.exp2();
            let Some(load) = self.stage.ready.load.at_rate(share) else { break };
            let ready = Ready { load, ..self.stage.ready.clone() };
            let stage = Stage { ready: &ready, ..*self.stage };
            let outcomes = stage.run_all(&self.candidates, &bar)?;
            let services = outcomes.iter().map(|o| Service::of(o, &ready.load, self.p99_limit));
            match Service::best(services, self.p99_limit) {
                Some(service) if service.carries(self.p99_limit) => {
                    carried = middle;
                    found = Some((share, service));
                }
                _ => too_much = middle,
            }
        }
        bar.finish_and_clear();
        Ok(found)
    }

    /// Every modelled disk but this one with the whole load.
    fn disks(&self) -> Result<Vec<Disk>> {
        let others = others(&self.stage.ready.profile)?;
        let (fit, too_small): (Vec<Profile>, Vec<Profile>) =
            others.into_iter().partition(|profile| self.fits(profile));
        let items: Vec<(&Profile, &Scenario)> = fit
            .iter()
            .flat_map(|profile| self.candidates.iter().map(move |c| (profile, c)))
            .collect();
        let bar = self.stage.bar(items.len(), "which disk carries it");
        let services = runs::parallel(&items, self.stage.running.jobs, |(profile, stack)| {
            let load = self.stage.ready.load.clone();
            let ready = Ready { load, profile: (*profile).clone() };
            let stage = Stage { ready: &ready, ..*self.stage };
            let outcome = stage.run_one(stack, &bar)?;
            Ok(Service::of(&outcome, &ready.load, self.p99_limit))
        })?;
        bar.finish_and_clear();
        let of_disk = services.chunks(self.candidates.len());
        let mut disks: Vec<Disk> = fit
            .iter()
            .zip(of_disk)
            .map(|(profile, services)| self.disk(profile, services))
            .chain(too_small.iter().map(|profile| self.disk(profile, &[])))
            .collect();
        // Those that do not fit come last.
        let p99 = |disk: &Disk| disk.service.as_ref().map_or(-1.0, |service| service.p99_ms);
        disks.sort_by(|a, b| b.carries.cmp(&a.carries).then(p99(b).total_cmp(&p99(a))));
        Ok(disks)
    }

    fn disk(&self, profile: &Profile, services: &[Service]) -> Disk {
        let service = Service::best(services.iter().cloned(), self.p99_limit);
        let carries = service.as_ref().is_some_and(|service| service.carries(self.p99_limit));
        Disk { disk: profile.name().into(), carries, service }
    }

    fn fits(&self, profile: &Profile) -> bool {
        let load = &self.stage.ready.load;
        let capacity = Sectors::new(profile.capacity_sectors());
        Layout::place(&load.disks, capacity, &load.placement).is_ok()
    }
}

/// The modelled disks but for `this` and for models without a cache.
fn others(this: &Profile) -> Result<Vec<Profile>> {
    let mut others = Vec::new();
    for name in profile::names().filter(|name| *name != this.name()) {
        let profile = profile::load(name)?;
        if !profile.is_linear() {
            others.push(profile);
        }
    }
    Ok(others)
}
