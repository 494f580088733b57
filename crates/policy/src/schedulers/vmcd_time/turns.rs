//! Turns, on a device with a head: how long one is, when it waits for its channel or for a
//! stream of that, and when it ends.

use super::channel::{Channel, weighed};
use super::{STALL, TURN_LEAST, VmcdTime};
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
            && let Some((since, longest)) = match channel.stream_since.take() {
                Some(since) => Some((since, self.stay)),
                None => channel.idle_since.map(|since| (since, self.hold)),
            }
        {
            // A turn may outlive its hold, with nothing queued and nobody to end it.
            channel.charge(now.since(since).min(longest));
        }
    }

    /// A turn that begins now: shortened, when many have work, so that a round
    /// of turns fits into the bound.
    pub(super) fn turn_length(&self) -> Nanos {
        let fits = self.bound.scaled(1, self.waiting.len() as u64 + 1);
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

    /// Until when the running turn waits for its channel's stream, though other requests of the
    /// channel are queued. `None`: not at all.
    pub(super) fn stays_until(&self, channel: &Channel) -> Option<Instant> {
        let since = channel.stream_since?;
        let late = channel.stream_think.get().is_some_and(|think| think > self.stay);
        (!late && channel.pending.following().is_none()).then(|| since + self.stay)
    }

    /// The turn no longer waits for a stream of its channel.
    pub(super) fn end_stay(&mut self, now: Instant, vm: usize) {
        let Some(channel) = self.channels[vm].as_mut() else { return };
        let Some(since) = channel.stream_since else { return };
        if channel.pending.following().is_none() && now >= since + self.stay {
            channel.stream_think.learn(self.stay + self.stay);
        }
        if self.turn.as_ref().is_some_and(|turn| turn.held) {
            self.end_hold(now);
        }
        if let Some(channel) = self.channels[vm].as_mut() {
            channel.stream_since = None;
        }
    }

    /// Whose request goes next on a device with turns; or until when it waits.
    pub(super) fn select(&mut self, now: Instant) -> Result<Option<usize>, Instant> {
        if self.turn_is_used_up() {
            self.end_hold(now);
            self.renew_turn();
        }
        if let Some(turn) = &self.turn
            && let Some(channel) = self.channel(turn.vm)
        {
            let (vm, held, has_work) = (turn.vm, turn.held, !channel.pending.is_empty());
            let waits =
                if has_work { self.stays_until(channel) } else { self.waits_until(channel) };
            if let Some(until) = waits.filter(|&until| now < until) {
                self.holds += !held as u64;
                self.turn.as_mut().expect("there is a turn").held = true;
                return Err(until);
            }
            if has_work {
                self.end_stay(now, vm);
                return Ok(Some(vm));
            }
            self.holds_in_vain += held as u64;
            self.end_hold(now);
            self.end_turn();
        }
        Ok(self.next_channel())
    }
}
