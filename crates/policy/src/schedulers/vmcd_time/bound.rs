//! The latency bound: which channel has been without service for too long.

use super::channel::Channel;
use super::{BOUND, TURN_LEAST, VmcdTime};
use seekway_core::request::RequestId;
use seekway_core::units::{Instant, Nanos};

impl VmcdTime {
    /// The bound; longer when the least turns of all VMs with work do not fit into it: otherwise
    /// only late requests would be served.
    pub(super) fn bound(&self) -> Nanos {
        let turns = self.waiting.len() as u64 + 1;
        BOUND.max(TURN_LEAST.min(self.turn_length).scaled(3 * turns, 2))
    }

    /// Since when the channel, if it has work, has been without service.
    fn unserved(&self, channel: &Channel) -> Option<Instant> {
        let oldest = channel.pending.oldest(&self.queued)?;
        Some(oldest.arrived.max(channel.last_service))
    }

    /// The oldest request of the channel that has been late longest.
    pub(super) fn late(&mut self, now: Instant) -> Option<(usize, RequestId)> {
        // The bound is never less than [`BOUND`], and takes longer to find out.
        if self.unserved_since.is_none_or(|since| now < since + BOUND) {
            return None;
        }
        let bound = self.bound();
        if self.unserved_since.is_none_or(|since| now < since + bound) {
            return None;
        }
        let channels = self.channels.iter().enumerate();
        let unserved = channels.filter_map(|(vm, c)| Some((self.unserved(c.as_ref()?)?, vm)));
        let longest = unserved.min();
        self.unserved_since = longest.map(|(since, _)| since);
        let (_, vm) = longest.filter(|&(since, _)| since + bound <= now)?;
        let id = self.channel(vm)?.pending.oldest(&self.queued)?.id;
        Some((vm, id))
    }
}
