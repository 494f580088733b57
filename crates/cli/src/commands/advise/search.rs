//! The load elsewhere: without the drive's write cache, several times side by side, on other disks.

use super::verdict::{self, Excess, Limits, Service};
use crate::json::CacheChoice;
use crate::runs::{self, Stage};
use anyhow::Result;
use indicatif::ProgressBar;
use seekway_core::units::Sectors;
use seekway_device::profile::{self, Profile};
use seekway_sim::scenario::{Ready, Scenario};
use seekway_stack::dispatcher::VMS_MAX;
use serde::Serialize;
use std::ops::Range;

/// Most copies of the load that are tried side by side.
const TIMES_MAX: u32 = 16;
/// Requests of one run of several copies, unless two have more.
const REQUESTS_MAX: u64 = 2_000_000;
/// Requests of all runs that look for a stack under which the disk carries more copies.
const REQUESTS_OF_OTHERS_MAX: u64 = 10_000_000;

/// Number of copies of the load that the disk carries side by side. Scripts read these keys.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Headroom {
    /// Copies that the disk carries under the recommended stack, this load among them.
    pub times: u32,
    /// Limit that one more would exceed first; null if no more were tried.
    pub breaks: Option<Excess>,
    /// The stack under which it carries the most, if that is more; null if none was found.
    pub more: Option<More>,
}

/// A stack under which the disk carries more copies.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct More {
    /// As sentences call the stack.
    #[serde(skip)]
    pub label: String,
    pub policy: String,
    #[serde(flatten)]
    pub cache: CacheChoice,
    pub times: u32,
}

/// A modelled disk with the whole load.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Disk {
    pub disk: String,
    pub carries: bool,
    /// Null if the load's disks do not fit on it.
    pub service: Option<Service>,
    pub excesses: Vec<Excess>,
}

/// A drive with its write cache on or off; `None` if it has none.
pub fn with_write_cache(profile: &Profile, is_on: bool) -> Option<Profile> {
    profile.clone().with(&format!("write_cache={is_on}")).ok()
}

/// Runs of the load in other circumstances.
pub struct Search<'a> {
    pub stage: &'a Stage<'a>,
    pub limits: Limits,
}

impl Search<'_> {
    fn service(&self, ready: &Ready, stack: &Scenario, bar: &ProgressBar) -> Result<Service> {
        let outcome = Stage { ready, ..*self.stage }.run_one(stack, bar)?;
        Ok(Service::of(&outcome, ready.load.span(), &self.limits))
    }

    fn on(&self, profile: Profile) -> Ready {
        Ready { profile, ..self.stage.ready.clone() }
    }

    /// The best service of the load with the drive's write cache off; `None` if it has none.
    pub fn without_write_cache(&self, stacks: &[Scenario]) -> Result<Option<Service>> {
        let Some(profile) = with_write_cache(&self.stage.ready.profile, false) else {
            return Ok(None);
        };
        let ready = self.on(profile);
        let bar = self.stage.bar(stacks.len(), "without the write cache");
        let made = runs::parallel(stacks, self.stage.running.jobs, |stack| {
            self.service(&ready, stack, &bar)
        })?;
        bar.finish_and_clear();
        let nearest = verdict::nearest(&made, &self.limits);
        Ok(made.into_iter().nth(nearest))
    }

    /// Finds out how often the load fits beside itself under the first of these stacks, and under
    /// which other one more often; `None` if it cannot be copied.
    pub fn headroom(&self, stacks: &[Scenario]) -> Result<Option<Headroom>> {
        let load = &self.stage.ready.load;
        let fits = (VMS_MAX / load.disks.len().max(1)) as u32;
        let (Some(requests), Some((stack, others))) = (load.requests(), stacks.split_first())
        else {
            return Ok(None);
        };
        if fits < 2 || load.beside(2).is_none() {
            return Ok(None);
        }
        let most = (REQUESTS_MAX / requests.max(1)).clamp(2, TIMES_MAX.min(fits).into()) as u32;
        let bar = self.stage.bar(0, "how much more");
        let (mut times, mut fails, mut breaks) = (1, most + 1, None);
        while fails - times > 1 {
            let tried = points(times, fails, self.stage.running.jobs as u32);
            self.stage.lengthen(&bar, tried.iter().sum::<u32>() as usize);
            let made = runs::parallel(&tried, self.stage.running.jobs, |copies| {
                let Some(ready) = self.beside(*copies) else { return Ok(Vec::new()) };
                self.excesses_of_copies(&ready, stack, &bar)
            })?;
            for (copies, excesses) in tried.into_iter().zip(made) {
                match excesses.into_iter().next() {
                    None => times = copies,
                    Some(excess) => {
                        (fails, breaks) = (copies, Some(excess));
                        break;
                    }
                }
            }
        }
        bar.finish_and_clear();
        let more = self.more(others, times..most, requests)?;
        Ok(Some(Headroom { times, breaks, more }))
    }

    /// Finds the stack under which the disk carries the most copies, from one more than the start of
    /// `copies` to its end. Tries as many stacks, in their order, as a bounded number of requests
    /// allows.
    fn more(&self, stacks: &[Scenario], copies: Range<u32>, requests: u64) -> Result<Option<More>> {
        let (mut stacks, mut left) = (stacks.to_vec(), REQUESTS_OF_OTHERS_MAX);
        let mut found = None;
        for times in copies.map(|carried| carried + 1) {
            let of_run = requests.max(1) * u64::from(times);
            stacks.truncate((left / of_run) as usize);
            left -= of_run * stacks.len() as u64;
            let Some(ready) = self.beside(times).filter(|_| !stacks.is_empty()) else { break };
            let bar = self.stage.bar(stacks.len() * times as usize, "who carries more");
            let made = runs::parallel(&stacks, self.stage.running.jobs, |stack| {
                self.excesses_of_copies(&ready, stack, &bar)
            })?;
            bar.finish_and_clear();
            let mut carries = made.iter().map(Vec::is_empty);
            stacks.retain(|_| carries.next() == Some(true));
            let Some(stack) = stacks.first() else { break };
            found = Some(More {
                label: self.stage.names.label(stack),
                policy: stack.policy.clone(),
                cache: CacheChoice::new(stack),
                times,
            });
        }
        Ok(found)
    }

    /// The load several times; `None` if it cannot be copied.
    fn beside(&self, copies: u32) -> Option<Ready> {
        let load = self.stage.ready.load.beside(copies)?;
        Some(Ready { load, ..self.stage.ready.clone() })
    }

    /// The limits that copies of the load exceed if they go on at this rate.
    fn excesses_of_copies(
        &self,
        ready: &Ready,
        stack: &Scenario,
        bar: &ProgressBar,
    ) -> Result<Vec<Excess>> {
        let service = self.service(ready, stack, bar)?;
        Ok(service.excesses_in_the_long_run(&self.limits))
    }

    /// Every modelled disk but this one with the whole load: those that carry it first, the slowest
    /// at the head; then those that do not, and those that are too small.
    pub fn disks(&self, stack: &Scenario) -> Result<Vec<Disk>> {
        let others = others(&self.stage.ready.profile)?;
        let bar = self.stage.bar(others.len(), "which disk carries it");
        let mut disks = runs::parallel(&others, self.stage.running.jobs, |profile| {
            let ready = self.on(with_write_cache(profile, true).unwrap_or_else(|| profile.clone()));
            let fits = ready.load.layout(Sectors::new(profile.capacity_sectors())).is_ok();
            let service = fits.then(|| self.service(&ready, stack, &bar)).transpose()?;
            let excesses = service.as_ref().map(|service| service.excesses(&self.limits));
            let carries = excesses.as_ref().is_some_and(Vec::is_empty);
            let excesses = excesses.unwrap_or_default();
            Ok(Disk { disk: profile.name().into(), carries, service, excesses })
        })?;
        bar.finish_and_clear();
        let longest = |disk: &Disk| disk.service.as_ref().map_or(-1.0, Service::longest_ms);
        disks.sort_by(|a, b| b.carries.cmp(&a.carries).then(longest(b).total_cmp(&longest(a))));
        Ok(disks)
    }
}

/// Numbers above `carries` and below `fails` to try at once, up to the last: at least two.
fn points(carries: u32, fails: u32, jobs: u32) -> Vec<u32> {
    let (count, reach) = (jobs.clamp(2, 8), fails - 1 - carries);
    let mut points: Vec<u32> = (1..=count).map(|n| carries + (reach * n).div_ceil(count)).collect();
    points.dedup();
    points
}

/// The modelled disks but for `this` and for models without a cache.
fn others(this: &Profile) -> Result<Vec<Profile>> {
    let names = profile::names().filter(|name| *name != this.name());
    let loaded = names.map(profile::load).collect::<Result<Vec<Profile>, _>>()?;
    Ok(loaded.into_iter().filter(|profile| !profile.is_linear()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_tries_the_last_and_some_between() {
        assert_eq!(points(1, 17, 2), [9, 16]);
        assert_eq!(points(9, 16, 1), [12, 15]);
        assert_eq!(points(1, 3, 8), [2]);
        assert_eq!(points(3, 6, 4), [4, 5]);
    }
}
