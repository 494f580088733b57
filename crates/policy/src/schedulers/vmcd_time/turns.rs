//! Turns, on a device with a head: how long one is, when it waits for its channel, and when it
//! ends.

use super::channel::{Channel, weighed};
use super::{BOUND, STALL, TURN_LEAST, VmcdTime};
use seekway_core::units::{Instant, Nanos};

impl VmcdTime {
    /// The running turn ends, and its channel waits if it has work.
    pub(super) fn end_turn(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        let by_turns = self.by_turns;
        if let Some(channel) = self.channels[turn.vm].as_mut() {
            channel.grant(turn.length);
            if !channel.pending.is_empty() {
                self.waiting.insert(channel.place(by_turns, turn.vm));
            }
        }
    }

    /// The running turn has been used up: its channel has another one, if it
    /// is still the one that is next, with a request or without: one with a
    /// request at a time has none just then.
    pub(super) fn renew_turn(&mut self) {
        let length = self.turn_length();
        let Some(turn) = &mut self.turn else { return };
        let Some(channel) = self.channels[turn.vm].as_mut() else { return };
        channel.grant(turn.length);
        let place = channel.place(true, turn.vm);
        if self.waiting.first().is_none_or(|first| place < *first) {
            (turn.length, turn.looked) = (length, false);
            channel.turns += 1;
            self.reached = self.reached.max(channel.granted);
        } else {
            self.turn = None;
            if !channel.pending.is_empty() {
                self.waiting.insert(place);
            }
        }
    }

    /// The time for which the device was held for the turn's channel until now
    /// is the channel's own.
    pub(super) fn end_hold(&mut self, now: Instant) {
        let Some(turn) = &mut self.turn else { return };
        if std::mem::take(&mut turn.held)
            && let Some(channel) = &mut self.channels[turn.vm]
            && let Some(since) = channel.idle_since
        {
            // A turn may outlive its hold, with nothing queued and nobody to end it.
            channel.charge(now.since(since).min(self.hold));
        }
    }

    /// A turn that begins now: shortened, when many have work, so that a round
    /// of turns fits into the bound.
    pub(super) fn turn_length(&self) -> Nanos {
        let fits = BOUND.scaled(1, self.waiting.len() as u64 + 1);
        self.turn_length.min(fits.max(TURN_LEAST))
    }

    /// Has the running turn's channel had all that the turn is worth?
    pub(super) fn turn_is_used_up(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| {
            self.channel(turn.vm).is_some_and(|channel| {
                let used = channel.used + weighed(channel.expected, channel.weight);
                used >= channel.granted + weighed(turn.length, channel.weight)
            })
        })
    }

    /// Until when the running turn waits for its channel, which has nothing
    /// queued. `None`: not at all.
    pub(super) fn waits_until(&self, channel: &Channel) -> Option<Instant> {
        if channel.think.get().is_some_and(|think| think > self.hold) {
            return None;
        }
        match channel.idle_since {
            Some(since) => Some(since + self.hold),
            None => (channel.in_flight > 0).then(|| channel.last_service + STALL),
        }
    }

    /// Chooses the channel that sends next on a device with turns, or the time until which to wait.
    pub(super) fn select(&mut self, now: Instant) -> Result<Option<usize>, Instant> {
        if self.turn_is_used_up() {
            self.end_hold(now);
            self.renew_turn();
        }
        if let Some(turn) = &self.turn
            && let Some(channel) = self.channel(turn.vm)
        {
            let (vm, held) = (turn.vm, turn.held);
            if !channel.pending.is_empty() {
                return Ok(Some(vm));
            }
            if let Some(until) = self.waits_until(channel).filter(|&until| now < until) {
                self.holds += !held as u64;
                self.turn.as_mut().expect("there is a turn").held = true;
                return Err(until);
            }
            self.holds_in_vain += held as u64;
            self.end_hold(now);
            self.end_turn();
        }
        Ok(self.next_channel())
    }
}
