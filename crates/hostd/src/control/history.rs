//! Differences between successive reports, and a bounded history of them, which the web page and
//! `seekway top` show. Pure: the caller has the clock.
//!
//! A [`Sample`] has sums, so that neighbours can be [merged](Sample::merge): the history keeps the
//! last ten minutes in seconds, and all since its start in steps that grow as it gets longer.

use super::counts::{Counter, Counts, add_counts, counts_since, since};
use super::figures::Number;
use super::report::{DeviceReport, DiskReport, HostReport};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Samples kept as they came.
const RECENT: usize = 600;
/// Number of samples since the start at which they are merged in pairs.
const WHOLE: usize = 720;
/// Disks in all samples together; with more disks the history is shorter, down to [`FEWEST`].
/// A disk's part is some hundred bytes: 60 MB at the most.
const DISKS: usize = 100_000;
const FEWEST: usize = 16;

/// Changes in an interval.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sample {
    /// From and until when, in seconds of the daemon's life.
    pub since_s: f64,
    pub until_s: f64,
    pub devices: Vec<DeviceSample>,
}

/// Changes of a device. State (policy, fairness, outstanding requests) is that of the end.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceSample {
    pub name: String,
    pub policy: String,
    pub outstanding: u64,
    pub in_flight: u32,
    pub commands: u64,
    /// Time in which it was busy with reads and writes.
    pub service_ms: f64,
    /// Time withheld, by cause; causes with none are left out.
    pub held_ms: BTreeMap<String, f64>,
    /// Jain's index; absent with fewer than two busy disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jain: Option<f64>,
    /// Commands by the 64th of the device where they began.
    pub regions: Counts,
    pub disks: Vec<DiskSample>,
}

/// Kind of a figure: its value at the end of an interval.
struct Now;
/// Kind of a figure: its increase in an interval.
struct Sum;

impl Now {
    fn between<T>(_before: Option<T>, now: T) -> T {
        now
    }
    fn merge<T>(_earlier: T, later: T) -> T {
        later
    }
}

impl Sum {
    fn between<T: Counter>(before: Option<T>, now: T) -> T {
        since(before, now)
    }
    fn merge<T: Counter>(earlier: T, later: T) -> T {
        earlier + later
    }
}

/// The one table of a disk's figures: kind, name, type, and the value in a report.
macro_rules! disk_figures {
    ($($(#[$doc:meta])* $kind:ident $name:ident: $type:ty = $of:expr;)+) => {
        /// Changes of a disk.
        #[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub struct DiskSample {
            pub name: String,
            $($(#[$doc])* pub $name: $type,)+
            /// Number of reads and writes by response time, by [class](class_of_ns).
            pub responses: Counts,
        }

        impl DiskSample {
            /// Names, in the order of [`DiskSample::figures`].
            pub(super) const FIGURES: &[&str] = &[$(stringify!($name)),+];

            pub(super) fn figures(&self) -> impl Iterator<Item = Number> + use<> {
                [$(Number::from(self.$name)),+].into_iter()
            }

            fn between(before: Option<&DiskReport>, now: &DiskReport) -> DiskSample {
                DiskSample {
                    name: now.name.clone(),
                    $($name: {
                        let of: fn(&DiskReport) -> $type = $of;
                        $kind::between(before.map(of), of(now))
                    },)+
                    responses: counts_since(before.map(|d| &d.responses), &now.responses),
                }
            }

            /// Merges the interval just before into this one.
            fn add(&mut self, earlier: &DiskSample) {
                $(self.$name = $kind::merge(earlier.$name, self.$name);)+
                add_counts(&mut self.responses, &earlier.responses);
            }
        }
    };
}

disk_figures! {
    Sum reads: u64 = |d| op(d, "read").0;
    Sum writes: u64 = |d| op(d, "write").0;
    Sum read_bytes: u64 = |d| op(d, "read").1;
    Sum written_bytes: u64 = |d| op(d, "write").1;
    /// Requests that failed.
    Sum errors: u64 = |d| d.ops.values().map(|op| op.errors).sum();
    Now outstanding: u32 = |d| d.outstanding;
    /// Requests of those that wait for its limits.
    Now limited: u64 = |d| d.limited;
    Sum device_time_ms: f64 = |d| d.device_time_ms;
    /// Time in which requests waited for limits.
    Sum limited_ms: f64 = |d| d.limited_ms;
    /// Time withheld while it was served last, all causes.
    Sum held_ms: f64 = |d| d.held_ms.values().sum();
    /// Bytes read and found in the cache.
    Sum hit_bytes: u64 = |d| d.cache.as_ref().map_or(0, |c| c.usage.hit_bytes);
    Sum prefetched_bytes: u64 = |d| d.cache.as_ref().map_or(0, |c| c.usage.prefetched_bytes);
    Sum used_bytes: u64 = |d| d.cache.as_ref().map_or(0, |c| c.usage.used_bytes);
}

/// Requests of an operation, and their bytes.
fn op(disk: &DiskReport, name: &str) -> (u64, u64) {
    disk.ops.get(name).map_or((0, 0), |op| (op.requests, op.bytes))
}

impl Sample {
    /// Changes between two reports of the same daemon.
    pub fn between(before: &HostReport, after: &HostReport) -> Sample {
        let device = |now: &DeviceReport| {
            let then = before.devices.iter().find(|d| d.name == now.name);
            DeviceSample::between(then, now)
        };
        Sample {
            since_s: before.uptime_s,
            until_s: after.uptime_s,
            devices: after.devices.iter().map(device).collect(),
        }
    }

    /// Its length in seconds, above zero.
    pub fn seconds(&self) -> f64 {
        (self.until_s - self.since_s).max(1e-3)
    }

    /// Both together; `next` is the later.
    pub fn merge(self, next: Sample) -> Sample {
        let mut devices = next.devices;
        for (at, earlier) in self.devices.into_iter().enumerate() {
            if let Some(at) = find(&devices, at, |d| d.name == earlier.name) {
                devices[at].add(earlier);
            }
        }
        Sample { since_s: self.since_s, until_s: next.until_s, devices }
    }
}

impl DeviceSample {
    fn between(before: Option<&DeviceReport>, now: &DeviceReport) -> DeviceSample {
        let disk = |(at, disk): (usize, &DiskReport)| {
            let disks = before.map_or(&[][..], |d| &d.disks);
            let then = find(disks, at, |d| d.name == disk.name).map(|at| &disks[at]);
            DiskSample::between(then, disk)
        };
        DeviceSample {
            name: now.name.clone(),
            policy: now.policy.clone(),
            outstanding: now.outstanding,
            in_flight: now.in_flight,
            commands: since(before.map(|d| d.commands), now.commands),
            service_ms: since(before.map(|d| d.served.service_ms), now.served.service_ms),
            held_ms: held_since(before.map(|d| &d.held_ms), &now.held_ms),
            jain: now.fairness.jain,
            regions: counts_since(before.map(|d| &d.regions), &now.regions),
            disks: now.disks.iter().enumerate().map(disk).collect(),
        }
    }

    /// Merges the interval just before into this one.
    fn add(&mut self, earlier: DeviceSample) {
        self.commands += earlier.commands;
        self.service_ms += earlier.service_ms;
        for (why, ms) in earlier.held_ms {
            *self.held_ms.entry(why).or_insert(0.0) += ms;
        }
        add_counts(&mut self.regions, &earlier.regions);
        for (at, before) in earlier.disks.iter().enumerate() {
            if let Some(at) = find(&self.disks, at, |d| d.name == before.name) {
                self.disks[at].add(before);
            }
        }
    }
}

/// The index of an entry that is likely to be where it was a second ago: with thousands of disks,
/// a search for each would take seconds.
fn find<T>(list: &[T], likely: usize, is_it: impl Fn(&T) -> bool) -> Option<usize> {
    match list.get(likely) {
        Some(entry) if is_it(entry) => Some(likely),
        _ => list.iter().position(is_it),
    }
}

/// A disk by its name, which is likely to be at this index.
pub fn find_disk<'a>(disks: &'a [DiskSample], likely: usize, name: &str) -> Option<&'a DiskSample> {
    find(disks, likely, |disk| disk.name == name).map(|at| &disks[at])
}

fn held_since(
    before: Option<&BTreeMap<String, f64>>,
    now: &BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    let then = |why: &String| before.and_then(|held| held.get(why)).copied();
    let since = now.iter().map(|(why, ms)| (why.clone(), since(then(why), *ms)));
    since.filter(|(_, ms)| *ms > 0.0).collect()
}

/// Samples since a start, in bounded memory.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct History {
    /// The last ones as they came, oldest first.
    pub recent: VecDeque<Sample>,
    /// All since the start, oldest first, each of about as many as `step`. What is newer than the
    /// last of them is in `recent`.
    pub whole: Vec<Sample>,
    /// Number of samples that one of `whole` is made of.
    pub step: usize,
    /// The sample that still grows, and the number of samples merged into it.
    #[serde(skip)]
    partial: Option<(Sample, usize)>,
}

impl History {
    /// All since the start, oldest first, with the one that grows.
    pub fn whole(&self) -> impl Iterator<Item = &Sample> {
        self.whole.iter().chain(self.partial.iter().map(|(sample, _)| sample))
    }

    /// Take in the next sample, and merge old ones to keep memory bounded.
    pub fn push(&mut self, sample: Sample) {
        let disks = sample.devices.iter().map(|d| d.disks.len()).sum::<usize>().max(1);
        let most = |count: usize| count.min((DISKS / 2 / disks).max(FEWEST));
        self.step = self.step.max(1);
        let (merged, count) = match self.partial.take() {
            Some((partial, count)) => (partial.merge(sample.clone()), count + 1),
            None => (sample.clone(), 1),
        };
        if count >= self.step {
            self.whole.push(merged);
        } else {
            self.partial = Some((merged, count));
        }
        while self.whole.len() > most(WHOLE) {
            self.halve();
        }
        self.recent.push_back(sample);
        while self.recent.len() > most(RECENT) {
            self.recent.pop_front();
        }
    }

    /// Merge neighbours of `whole` in pairs: each then covers twice as many samples.
    fn halve(&mut self) {
        let mut samples = std::mem::take(&mut self.whole).into_iter();
        while let Some(sample) = samples.next() {
            match samples.next() {
                Some(next) => self.whole.push(sample.merge(next)),
                None => self.whole.push(sample),
            }
        }
        self.step *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u64, disks: usize) -> Sample {
        let disk = |n: usize| DiskSample {
            name: format!("d{n}"),
            reads: 1,
            responses: vec![(at as u32 % 5, 2)],
            ..DiskSample::default()
        };
        let held_ms = BTreeMap::from([("idle".to_string(), 0.5)]);
        let device = DeviceSample {
            name: "sda".into(),
            commands: at,
            held_ms,
            disks: (0..disks).map(disk).collect(),
            ..DeviceSample::default()
        };
        Sample { since_s: at as f64, until_s: at as f64 + 1.0, devices: vec![device] }
    }

    #[test]
    fn the_history_is_bounded_and_loses_no_request() {
        for disks in [1, 7, 40_000] {
            let (mut history, count) = (History::default(), 5_000 / disks.min(100) as u64);
            for at in 0..count {
                history.push(sample(at, disks));
            }
            let kept = |n: usize| n <= 720 && n * disks <= (DISKS / 2).max(FEWEST * disks);
            assert!(kept(history.whole.len()) && kept(history.recent.len()), "{disks}");
            assert_eq!(history.recent.back(), Some(&sample(count - 1, disks)));
            let all: Vec<&Sample> = history.whole().collect();
            assert_eq!(all[0].since_s, 0.0);
            assert!(all.windows(2).all(|w| w[0].until_s == w[1].since_s));
            let reads: u64 = all.iter().map(|s| s.devices[0].disks[0].reads).sum();
            assert_eq!(reads, count, "{disks} disks");
            let of = |s: &&Sample| -> u64 {
                s.devices[0].disks[0].responses.iter().map(|(_, n)| n).sum()
            };
            assert_eq!(all.iter().map(of).sum::<u64>(), 2 * count);
            let held: f64 = all.iter().map(|s| s.devices[0].held_ms["idle"]).sum();
            assert_eq!(held, count as f64 / 2.0);
        }
    }
}
