//! Writes a stack's journal ([`crate::journal`] has the format, and replays it).

use super::limit::{DiskLimits, GroupName, Limits};
use super::map::Map;
use super::{Action, Config, DiskSpec, IoError, Submit};
use crate::{cache, dispatcher};
use seekway_core::request::{ProcessTag, RequestId, VmId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Sectors};
use std::fmt;
use std::fmt::Write;
use std::num::NonZeroU32;

/// The version in the first line.
pub(crate) const MAGIC: &str = "seekway-journal 2";

/// The text that the engine has not taken yet.
pub(crate) struct Journal {
    text: String,
    /// When the last input came: what the stack does, it does then.
    now: Instant,
}

impl Journal {
    pub(crate) fn new(
        policy: &str,
        profile: &DeviceProfile,
        config: &Config,
        cache: Option<&(cache::Config, String)>,
    ) -> Self {
        let dispatcher::Config { depth, coalesce, merge, hard_limit, tags } = config.dispatch;
        let (policy, outstanding) = (one_word(policy), config.outstanding_max);
        let mut text = format!(
            "{MAGIC} policy={policy} depth={depth} coalesce={coalesce} hard={hard_limit} \
             outstanding={outstanding} capacity={}",
            profile.capacity
        );
        if merge {
            text.push_str(" merge=true");
        }
        if let Some(rotation) = profile.rotation {
            let _ = write!(text, " rotation={rotation}");
        }
        if !profile.seek.is_empty() {
            let knots: Vec<String> = profile.seek.iter().map(|(d, t)| format!("{d}:{t}")).collect();
            let _ = write!(text, " seek={}", knots.join(","));
        }
        if let Some(stripe) = profile.stripe {
            let _ = write!(text, " stripe={}:{}", stripe.members(), stripe.chunk());
        }
        if let Some(tags) = tags {
            let _ = write!(text, " tags={}:{}", tags.count, tags.sectors);
        }
        if let Some((cache, prefetcher)) = cache {
            let prefetcher = one_word(prefetcher);
            let _ = write!(
                text,
                " cache={} unit={} seed={} prefetch={prefetcher}",
                cache.bytes, cache.unit, cache.seed
            );
        }
        text.push('\n');
        Journal { text, now: Instant::ZERO }
    }

    /// One line: what the stack did at `now`. `None` for an action of which none tells.
    pub(crate) fn line_of(now: Instant, action: &Action) -> Option<String> {
        let mut journal = Journal { text: String::new(), now };
        journal.action(action);
        journal.text.pop(); // the line feed
        (!journal.text.is_empty()).then_some(journal.text)
    }

    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    fn line(&mut self, now: Instant, args: fmt::Arguments<'_>) {
        self.now = now;
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{} {args}", now.as_nanos());
    }

    /// The time of what the stack does next.
    pub(crate) fn now(&mut self, now: Instant) {
        self.now = now;
    }

    pub(crate) fn attach(&mut self, now: Instant, vm: VmId, spec: &DiskSpec) {
        let DiskSpec { weight, capacity, map, cached } = spec;
        let cached = if *cached { "yes" } else { "no" };
        let vm = vm.index();
        let args =
            format_args!("attach {vm} weight={weight} size={capacity} cached={cached} map={map}");
        self.line(now, args);
    }
    pub(crate) fn set_weight(&mut self, now: Instant, vm: VmId, weight: NonZeroU32) {
        self.line(now, format_args!("weight {} {weight}", vm.index()));
    }
    pub(crate) fn set_limits(&mut self, now: Instant, vm: VmId, limits: &DiskLimits) {
        self.line(now, format_args!("limit {} {limits}", vm.index()));
    }
    pub(crate) fn set_group(&mut self, now: Instant, name: &GroupName, limits: &Limits) {
        self.line(now, format_args!("group {name} {limits}"));
    }
    pub(crate) fn resize(&mut self, now: Instant, vm: VmId, size: Sectors, map: &Map) {
        self.line(now, format_args!("resize {} {size} {map}", vm.index()));
    }
    pub(crate) fn remap(&mut self, now: Instant, vm: VmId, map: &Map) {
        self.line(now, format_args!("remap {} {map}", vm.index()));
    }
    pub(crate) fn leave(&mut self, now: Instant, vm: VmId) {
        self.line(now, format_args!("leave {}", vm.index()));
    }
    pub(crate) fn detach(&mut self, now: Instant, vm: VmId) {
        self.line(now, format_args!("detach {}", vm.index()));
    }
    pub(crate) fn switch(&mut self, now: Instant, policy: &str) {
        self.line(now, format_args!("switch {}", one_word(policy)));
    }
    pub(crate) fn switch_prefetcher(&mut self, now: Instant, prefetcher: &str) {
        self.line(now, format_args!("prefetcher {}", one_word(prefetcher)));
    }
    pub(crate) fn resize_cache(&mut self, now: Instant, bytes: u64) {
        self.line(now, format_args!("cache {bytes}"));
    }
    pub(crate) fn trim_cache(&mut self, now: Instant, most: usize) {
        self.line(now, format_args!("trim {most}"));
    }
    pub(crate) fn bandwidth(&mut self, now: Instant, bytes_per_s: u64) {
        self.line(now, format_args!("bandwidth {bytes_per_s}"));
    }
    pub(crate) fn submit(&mut self, now: Instant, request: &Submit) {
        let Submit { vm, tag, op, sync, extent, token } = *request;
        let sync = if sync { "sync" } else { "async" };
        let (vm, op, tag) = (vm.index(), op.letter(), tag.map_or(0, ProcessTag::get));
        self.line(now, format_args!("submit {vm} {op} {sync} {extent} tag={tag} token={token}"));
    }
    pub(crate) fn io_done(&mut self, now: Instant, io: RequestId, failed: &[(RequestId, IoError)]) {
        if failed.is_empty() {
            return self.line(now, format_args!("io {} ok", io.slot()));
        }
        let failed: Vec<String> =
            failed.iter().map(|(id, e)| format!("{}:{}", id.slot(), e.0)).collect();
        self.line(now, format_args!("io {} {}", io.slot(), failed.join(",")));
    }
    /// Notes the stack's action. Actions that only tell of work that it has done itself are not
    /// noted.
    pub(crate) fn action(&mut self, action: &Action) {
        let now = self.now;
        match action {
            Action::Issue(c) => {
                let (slot, op, extent) = (c.id.slot(), c.op.letter(), c.extent);
                self.line(now, format_args!("issue {slot} {op} {extent}"));
            }
            Action::Copy(copy) => {
                self.line(now, format_args!("copy {} {}", copy.token, copy.part));
            }
            Action::Done(done) => match done.result {
                Ok(()) => self.line(now, format_args!("done {} ok", done.token)),
                Err(IoError(code)) => self.line(now, format_args!("done {} {code}", done.token)),
            },
            Action::Wait(wake) => {
                let at = |at: Option<Instant>| {
                    at.map_or("-".to_string(), |at| at.as_nanos().to_string())
                };
                self.line(now, format_args!("wait {} {}", at(wake.demand), at(wake.prefetch)));
            }
            Action::LookedUp { .. } | Action::Prefetching => {}
        }
    }
}

/// A policy's specification, which may be written with blanks, without them.
fn one_word(policy: &str) -> String {
    policy.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Entry, entry};
    use crate::stack::Op;
    use seekway_core::request::Extent;
    use seekway_core::units::Lba;

    #[test]
    fn entries_are_told_from_other_lines() {
        let extent = Extent::new(Lba::new(128), Sectors::new(8)).expect("not empty");
        let (vm, tag) = (VmId::new(1), ProcessTag::new(5));
        let submit = Submit { vm, tag, op: Op::Write, sync: false, extent, token: 7 };
        let mut journal = Journal { text: String::new(), now: Instant::ZERO };
        journal.submit(Instant::ZERO, &submit);
        journal.switch(Instant::ZERO, "cfq: issuer=vm");
        let text = journal.take();
        let entries: Vec<_> = text.lines().map(entry).collect();
        assert_eq!(entries, [Some(Entry::Submit(submit)), Some(Entry::Switch("cfq:issuer=vm"))]);
        assert_eq!(entry("9 issue 3 R 128+8"), Some(Entry::Issue(Op::Read, extent)));
        for other in ["", "9", "9 io 0 ok", "9 issue 3 R 128", MAGIC, "9 submit x R sync 1+1"] {
            assert_eq!(entry(other), None, "{other}");
        }
    }
}
