//! Did the reader keep what it is to keep beside a load, and if it did not, did it lose that to the
//! daemon or to a processor that others had?

/// The reader keeps at least this part of its reads a second.
pub const SHARE_MIN: f64 = 0.5;
/// Most that its p99 may be, in multiples of the p99 alone.
pub const P99_RATIO_MAX: f64 = 3.0;

/// Result of the reader.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub reads: f64,
    pub seconds: f64,
    pub p99_us: f64,
    /// Time in which the reader, and the daemon's threads that serve it, could have run but had no
    /// processor. 0 where the kernel does not say.
    pub waited_s: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Met,
    Missed,
    /// The target was not met, but would have been if nobody had waited for a processor: this says
    /// nothing about the daemon.
    Void,
}

impl Sample {
    pub fn reads_per_s(&self) -> f64 {
        self.reads / self.seconds
    }

    /// The part of the reads a second, and how many times the p99, that this has of `alone`.
    pub fn beside(&self, alone: &Sample) -> (f64, f64) {
        (self.reads_per_s() / alone.reads_per_s(), self.p99_us / alone.p99_us)
    }

    /// Time that passed for want of a processor, beyond what the same reads take alone.
    fn lost_s(&self, alone: &Sample) -> f64 {
        let usual_s = alone.waited_s / alone.reads * self.reads;
        (self.waited_s - usual_s).clamp(0.0, self.seconds)
    }
}

/// A row is void if waiting explains all that was missed. A read is the work of one thread after
/// another, so what each of them waits is time of the reads.
///
/// - The reads: without the waiting, the same number would have taken no longer than it may.
/// - The p99: all waiting together is at least as long as what the slowest hundredth of the reads
///   took beyond three times the p99 of alone.
pub fn judge(alone: &Sample, beside: &Sample) -> Verdict {
    let (share, p99_ratio) = beside.beside(alone);
    let lost_s = beside.lost_s(alone);
    let needed_s = beside.reads / (SHARE_MIN * alone.reads_per_s());
    let beyond_us = beside.p99_us - P99_RATIO_MAX * alone.p99_us;
    let slow_s = beyond_us / 1e6 * beside.reads / 100.0;
    let is_met = [share >= SHARE_MIN, p99_ratio <= P99_RATIO_MAX];
    let is_explained =
        [beside.reads > 0.0 && beside.seconds - lost_s <= needed_s, lost_s >= slow_s];
    match (is_met, [is_met[0] || is_explained[0], is_met[1] || is_explained[1]]) {
        ([true, true], _) => Verdict::Met,
        (_, [true, true]) => Verdict::Void,
        _ => Verdict::Missed,
    }
}
