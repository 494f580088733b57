//! The one timer of a connection: when memory is given back, when it is asked for again, and when
//! a client has stood still for too long.

use super::{Connection, Phase, TIMER};
use crate::port::PortContext;
use io_uring::{opcode, types};

/// After this long without a request the connection gives its memory back.
const IDLE: types::Timespec = types::Timespec::new().sec(2);
/// When there was no memory because other clients of the disk had it: how soon to look again.
const RETRY: types::Timespec = types::Timespec::new().nsec(100_000_000);
/// Number of [`IDLE`] periods in which a client may read nothing of its replies, or send nothing of
/// a payload: 30 s.
const STALLS_MAX: u32 = 15;
/// Longest delay of the closing by a client that does not read its replies.
const LINGER: types::Timespec = types::Timespec::new().sec(1);

/// Purpose of the timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timer {
    Off,
    /// Memory, when it ends with no request since it began; and clients that stand still.
    Idle,
    /// Memory that other clients have.
    Retry,
    Linger,
}

impl Connection {
    pub(super) fn arm_timer(&mut self, timer: Timer, context: &mut dyn PortContext) {
        let time = match timer {
            Timer::Off => return,
            Timer::Idle => &IDLE,
            Timer::Retry => &RETRY,
            Timer::Linger => &LINGER,
        };
        (self.timer, self.busy) = (timer, false);
        self.moves = !self.sending && !self.wants_payload();
        // SAFETY: the time is a constant.
        unsafe { context.push(self.id, TIMER, opcode::Timeout::new(time).build()) };
    }

    pub(super) fn timer_ended(&mut self, context: &mut dyn PortContext) {
        let ended = std::mem::replace(&mut self.timer, Timer::Off);
        match ended {
            Timer::Retry if !self.closing => self.wait_turn(context),
            Timer::Idle if !self.closing => {
                if !self.moves {
                    self.stalls += 1;
                    if self.stalls >= STALLS_MAX {
                        return self.end(Phase::Broken, context);
                    }
                }
                if self.starved {
                    self.wait_turn(context);
                }
                if self.busy || !self.slots.is_empty() {
                    return self.arm_timer(Timer::Idle, context);
                }
                self.pool.clear();
                self.outbox.shrink();
            }
            Timer::Linger if self.sending || self.rests => {
                self.phase = Phase::Broken;
                self.cancel_sending(context);
            }
            // Cancelled because the port closes: replies still have their time.
            _ if self.closing && self.has_replies() => self.arm_timer(Timer::Linger, context),
            _ => {}
        }
    }
}
