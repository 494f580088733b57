//! A closed loop on a model: a fixed number of commands in flight, and the next
//! one when one completes. Everything that measures a model uses it; only
//! engines drive models themselves.

use crate::DeviceModel;
use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::units::{Instant, Nanos};
use std::collections::VecDeque;

/// A closed loop: commands in flight, and the host's time between two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClosedLoop {
    /// Commands in flight; the model's queue depth if that is less.
    pub depth: u32,
    /// From a completion to the next submission.
    pub think: Nanos,
}

impl ClosedLoop {
    /// Submits commands from time zero on until `next` returns `None`, and waits for all of them.
    /// `next` gets the number of commands submitted before; `completed` gets the time of each
    /// completion, in order.
    ///
    /// # Panics
    /// If an extent lies past the model's end ([`DeviceModel::submit`]).
    pub fn run(
        self,
        device: &mut dyn DeviceModel,
        mut next: impl FnMut(u64) -> Option<(Op, Extent)>,
        mut completed: impl FnMut(Instant),
    ) {
        let depth = self.depth.min(device.queue_depth());
        // Completions come in order, so submissions are due in order.
        let mut due: VecDeque<Instant> = (0..depth).map(|_| Instant::ZERO).collect();
        let mut submitted = 0;
        loop {
            let completion = device.next_completion();
            match (due.front().copied(), completion) {
                (Some(at), done) if done.is_none_or(|done| at <= done) => {
                    due.pop_front();
                    let Some((op, extent)) = next(submitted) else {
                        due.clear();
                        continue;
                    };
                    device.submit(at, &command(submitted as u32, op, extent, at));
                    submitted += 1;
                }
                (_, Some(done)) => {
                    while device.pop_completed(done).is_some() {
                        completed(done);
                        due.push_back(done + self.think);
                    }
                }
                (_, None) => return,
            }
        }
    }
}

/// Serves one command on an idle model, submitted at `now`; returns when it completes.
///
/// # Panics
/// As [`ClosedLoop::run`].
pub fn serve(device: &mut dyn DeviceModel, now: Instant, op: Op, extent: Extent) -> Instant {
    device.submit(now, &command(0, op, extent, now));
    let mut done = now;
    while let Some(next) = device.next_completion() {
        done = next;
        device.pop_completed(next);
    }
    done
}

pub(crate) fn command(number: u32, op: Op, extent: Extent, arrived: Instant) -> Request {
    let (id, vm) = (RequestId::new(number), VmId::new(0));
    Request { id, vm, tag: None, op, sync: true, extent, arrived }
}
