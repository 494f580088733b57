//! One VM on a disk with a head: its requests by place and by age, and the streams that it reads.

use seekway_core::means::Mean;
use seekway_core::queues::{ExpiryQueue, LbaQueue, Links, Pool};
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::units::{Instant, Lba, Nanos};

/// A VM with so few requests queued has them served by age: its own sweep gains little.
pub(super) const FEW: usize = 4;

/// Streams that are known of a VM; the one that went on least recently is forgotten.
const STREAMS: usize = 8;

/// Where a run of adjacent requests ended.
#[derive(Clone, Copy, Default)]
struct Stream {
    end: Lba,
    /// Requests that continued it.
    run: u32,
    /// When it last went on, as a count.
    used: u64,
}

/// A VM's reads, or its writes with all that is no read.
#[derive(Default)]
struct Class {
    sorted: LbaQueue,
    fifo: ExpiryQueue,
    /// Mean time from arrival to dispatch.
    wait: Mean,
}

#[derive(Default)]
pub struct Vm {
    /// Tells a VM from the one that had its number before.
    pub serial: u64,
    /// Its reads at [`READS`], all that is no read at [`WRITES`].
    classes: [Class; 2],
    /// The device time that writes may have before the next read, in nanoseconds, and whether
    /// they have it now.
    credit: i64,
    is_turn_of_writes: bool,
    /// A request that begins here comes last: its stream has had its turn.
    skipped: Option<Lba>,
    streams: [Stream; STREAMS],
    served: u64,
    /// Its request in the common sweep.
    pub placed: Option<Request>,
    /// Is it too far ahead of others to be served?
    pub spent: bool,
    pub in_flight: u32,
    /// Mean device time of a command.
    pub cost: Mean,
    /// Where its last stream goes on, and the device time that this has had.
    pub stream_end: Lba,
    pub stream_had: Nanos,
    /// The device time that it has had since the head came to it.
    pub slice_had: Nanos,
    /// From the completion of the request at its end to the next one.
    pub stream_pause: Pause,
    /// Cost of its commands beyond their charges.
    pub owed: Owed,
    /// Mean time from a completion that left it without work to its next request.
    pub think: Mean,
    /// When its last completion left it without work that somebody waited for.
    pub idle_since: Option<Instant>,
    pub last_service: Instant,
    pub device_time: Nanos,
}

/// The difference between what a VM's commands cost and what they were charged, in
/// nanoseconds. A part of it is charged with each command, and at once what exceeds
/// [`OWED_MAX`].
#[derive(Clone, Copy, Default)]
pub struct Owed(i64);

/// The most that a VM may owe or be owed.
pub(super) const OWED_MAX: i64 = 50_000_000;

/// A command is charged so small a part of it: positions and turns of the platter differ from
/// command to command by half of what one costs, and would decide the order of equal VMs.
const OWED_PART: i64 = 32;

impl Owed {
    /// Charge of a command that costs `mean` on average.
    pub fn charge(self, mean: Nanos) -> Nanos {
        let beyond = self.0 - self.0.clamp(-OWED_MAX, OWED_MAX);
        let part = (self.0 - beyond) / OWED_PART + beyond;
        let charged = i64::try_from(mean.get()).unwrap_or(i64::MAX).saturating_add(part);
        Nanos::new(charged.max(0) as u64)
    }

    /// Settles a command that cost `had` and was charged `charged`.
    pub fn settle(&mut self, had: Nanos, charged: Nanos) {
        let signed = |time: Nanos| i64::try_from(time.get()).unwrap_or(i64::MAX);
        self.0 = self.0.saturating_add(signed(had)).saturating_sub(signed(charged));
    }
}

/// The two classes of a VM: somebody waits for a read, and mostly nobody for a write. A host
/// cannot tell which writes are waited for: all that guests send look so.
const READS: usize = 0;

const WRITES: usize = 1;

/// Device time of writes for that of reads, when a VM has both, and more than a [`FEW`] writes:
/// CFQ's slices of 40 ms for what nobody waits for, and of 100 ms.
const FOR_WRITES: (i64, i64) = (40, 100);

/// Writes have it at once, up to that slice.
const CREDIT_MAX: i64 = 40_000_000;

impl Vm {
    pub fn new(now: Instant, serial: u64) -> Self {
        Vm { serial, last_service: now, ..Vm::default() }
    }

    /// Is no request queued? Some may be on the device.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Requests that are queued.
    pub fn len(&self) -> usize {
        self.classes.iter().map(|class| class.sorted.len()).sum()
    }

    /// Nothing queued and nothing on the device.
    pub fn is_idle(&self) -> bool {
        self.is_empty() && self.in_flight == 0
    }

    pub fn insert(&mut self, links: &mut Links, request: &Request) {
        let class = &mut self.classes[class_of(request)];
        class.sorted.insert(request);
        class.fifo.push(links, request.id);
    }

    /// Take out a request that leaves unserved.
    pub fn withdraw(&mut self, links: &mut Links, request: &Request) {
        let class = &mut self.classes[class_of(request)];
        class.sorted.remove(request);
        class.fifo.remove(links, request.id);
    }

    /// Take out a request that is dispatched at `now`. How many before it it continues without a
    /// gap.
    pub fn take(&mut self, now: Instant, links: &mut Links, request: &Request) -> u32 {
        self.withdraw(links, request);
        self.skipped = None;
        let class = &mut self.classes[class_of(request)];
        class.wait.learn(now.since(request.arrived));
        self.served += 1;
        let (start, end) = (request.extent.start(), request.extent.end());
        let known = self.streams.iter_mut().find(|s| s.used > 0 && s.end == start);
        let stream = match known {
            Some(stream) => {
                stream.run = stream.run.saturating_add(1);
                stream
            }
            None => {
                let oldest = self.streams.iter_mut().min_by_key(|s| s.used).expect("some streams");
                oldest.run = 0;
                oldest
            }
        };
        (stream.end, stream.used) = (end, self.served);
        stream.run
    }

    /// Charges a request's device time.
    pub fn had(&mut self, request: &Request, time: Nanos) {
        self.device_time += time;
        self.stream_had += time;
        self.slice_had += time;
        let time = time.get().min(CREDIT_MAX as u64) as i64;
        if class_of(request) == READS {
            self.credit = (self.credit + time * FOR_WRITES.0 / FOR_WRITES.1).min(CREDIT_MAX);
        } else if !self.classes[READS].sorted.is_empty() {
            self.credit = (self.credit - time).max(-CREDIT_MAX);
        }
    }

    /// The class whose turn it is: by age while writes are few, else by credit.
    fn class(&mut self, queued: &Pool) -> usize {
        let arrived = |class: &Class| Some(queued.get(class.fifo.head()?)?.arrived);
        self.is_turn_of_writes = match [READS, WRITES].map(|n| arrived(&self.classes[n])) {
            [Some(read), Some(write)] if self.classes[WRITES].sorted.len() <= FEW => write < read,
            [Some(_), Some(_)] if self.is_turn_of_writes => self.credit > 0,
            [Some(_), Some(_)] => self.credit >= CREDIT_MAX,
            [read, write] => read.is_none() && write.is_some(),
        };
        usize::from(self.is_turn_of_writes)
    }

    /// Does this request, which has just come, come before the one that stands in the common
    /// sweep?
    pub fn goes_before_placed(&self, request: &Request, head: Lba) -> bool {
        let from = self.from(head);
        let place = |request: &Request| {
            let start = request.extent.start();
            (start < from, start)
        };
        self.placed.as_ref().is_none_or(|placed| {
            class_of(request) != class_of(placed) || place(request) < place(placed)
        })
    }

    /// The next that the head meets on its way up, of those whose turn it is.
    pub fn next(&mut self, queued: &Pool, head: Lba) -> Option<RequestId> {
        let class = self.class(queued);
        let sorted = &self.classes[class].sorted;
        let above = sorted.at_or_after(self.from(head));
        if above.is_none() {
            self.skipped = None; // There is nothing that could go before it.
        }
        above.or_else(|| sorted.first()).map(|(_, id)| id)
    }

    /// Where the head's way up begins.
    fn from(&self, head: Lba) -> Lba {
        let is_skipped = self.skipped == Some(head);
        if is_skipped { Lba::new(head.get().saturating_add(1)) } else { head }
    }

    /// The oldest request of those whose turn it is, how many there are, and how long they wait
    /// on average.
    pub fn oldest(&mut self, queued: &Pool) -> Option<(RequestId, usize, Nanos)> {
        let class = self.class(queued);
        let class = &self.classes[class];
        Some((class.fifo.head()?, class.sorted.len(), class.wait.get()?))
    }

    /// The oldest read, and the oldest write.
    pub fn heads(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.classes.iter().filter_map(|class| class.fifo.head())
    }

    /// Makes the request that begins at `end` come last: its stream has had its turn.
    pub fn skip(&mut self, end: Lba) {
        self.skipped = Some(end);
    }

    /// The request that begins at `end`.
    pub fn following(&self, end: Lba) -> Option<RequestId> {
        let following = |class: &Class| {
            let (lba, id) = class.sorted.at_or_after(end)?;
            (lba == end).then_some(id)
        };
        self.classes.iter().find_map(following)
    }
}

fn class_of(request: &Request) -> usize {
    if request.op == Op::Read { READS } else { WRITES }
}

// Time from the end of a stream's request to its next one, and the time for which the head is
// worth holding for it.
//
// Source: anticipatory scheduling (Iyer, Druschel, SOSP 2001), which holds for the 95th percentile
// of a process's think times and weighs it against the way back. A pause ends within three times
// the mean in 95 of 100 cases if its end does not depend on how long it has lasted.

/// Longest hold, in mean pauses.
const PATIENCE: u64 = 3;

/// Least hold: the time of a request through a guest that submits it at once.
const LEAST: Nanos = Nanos::from_micros(200);

#[derive(Default)]
pub struct Pause {
    /// When the request at the stream's end was done.
    since: Option<Instant>,
    /// A hold for the next one was in vain.
    in_vain: bool,
    /// Mean pause, of which one that a hold waited for in vain counts as twice the hold.
    mean: Mean,
    /// Mean of the pauses that were short enough for a hold.
    short: Mean,
}

impl Pause {
    /// The request at the stream's end is done.
    pub fn begin(&mut self, now: Instant) {
        (self.since, self.in_vain) = (Some(now), false);
    }

    /// The VM's stream goes on at once, or is another one: there is no pause.
    pub fn forget(&mut self) {
        self.since = None;
    }

    /// The stream's next request has come; no hold lasts longer than `stay`.
    pub fn end(&mut self, now: Instant, stay: Nanos) {
        let Some(since) = self.since.take() else { return };
        let pause = now.since(since);
        if !self.in_vain {
            self.mean.learn(pause.min(stay + stay));
        }
        if pause <= stay {
            self.short.learn(pause);
        }
    }

    /// Does the next one come often enough within `stay` for a hold to pay?
    pub fn is_worth(&self, stay: Nanos) -> bool {
        stay > Nanos::ZERO && self.mean.get().is_none_or(|mean| mean <= stay)
    }

    /// Until when the head is held, for `stay` at most; `None` if the pause has not begun, or a
    /// hold in it was in vain.
    pub fn until(&self, stay: Nanos) -> Option<Instant> {
        let patience = |mean: Nanos| stay.min(mean.scaled(PATIENCE, 1) + LEAST);
        let hold = self.short.get().map_or(stay, patience);
        self.since.filter(|_| !self.in_vain).map(|since| since + hold)
    }

    /// A hold of up to `stay` has ended in vain.
    pub fn was_in_vain(&mut self, stay: Nanos) {
        self.mean.learn(stay + stay);
        self.in_vain = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::request::{Extent, VmId};
    use seekway_core::units::Sectors;

    /// Number of reads among `commands` of a VM that always has these `reads` and `writes` queued.
    /// Each command takes 8 ms.
    fn reads_of(commands: u32, reads: u32, writes: u32) -> u32 {
        let (mut vm, mut queued, mut links) =
            (Vm::new(Instant::ZERO, 1), Pool::new(), Links::new());
        let (mut came, mut reads_gone) = (0, 0);
        let mut arrive = |vm: &mut Vm, queued: &mut Pool, links: &mut Links, op| {
            let extent = Extent::new(Lba::new(u64::from(came) * 64), Sectors::new(8)).unwrap();
            let (id, arrived) = (RequestId::new(came), Instant::from_nanos(u64::from(came)));
            let request =
                Request { id, vm: VmId::new(0), tag: None, op, sync: true, extent, arrived };
            queued.insert(request);
            vm.insert(links, &request);
            came += 1;
        };
        (0..reads).for_each(|_| arrive(&mut vm, &mut queued, &mut links, Op::Read));
        (0..writes).for_each(|_| arrive(&mut vm, &mut queued, &mut links, Op::Write));
        for _ in 0..commands {
            let id = vm.next(&queued, Lba::ZERO).expect("something is queued");
            let request = queued.take(id);
            vm.take(Instant::from_nanos(1 << 40), &mut links, &request);
            vm.had(&request, Nanos::from_millis(8));
            reads_gone += u32::from(request.op == Op::Read);
            arrive(&mut vm, &mut queued, &mut links, request.op);
        }
        reads_gone
    }

    #[test]
    fn beside_many_writes_a_vms_reads_have_five_sevenths_of_its_time() {
        let reads = reads_of(700, 1, 50);
        assert!((485..=515).contains(&reads), "{reads}");
    }

    #[test]
    fn reads_and_a_few_writes_go_by_age() {
        let reads = reads_of(700, 3, 3);
        assert!((340..=360).contains(&reads), "{reads}");
    }

    #[test]
    fn reads_alone_and_writes_alone_go() {
        assert_eq!((reads_of(50, 9, 0), reads_of(50, 0, 9)), (50, 0));
    }
}

#[cfg(test)]
mod pause_tests {
    use super::*;

    const STAY: Nanos = Nanos::from_millis(8);

    fn at_us(us: u64) -> Instant {
        Instant::ZERO + Nanos::from_micros(us)
    }

    /// A pause after this number of pauses of the same length, one in each second from the first
    /// on.
    fn after(pauses: u64, us: u64) -> Pause {
        let mut pause = Pause::default();
        for n in 0..pauses {
            pause.begin(at_us(n * 1_000_000));
            pause.end(at_us(n * 1_000_000 + us), STAY);
        }
        pause.begin(at_us(pauses * 1_000_000));
        pause
    }

    #[test]
    fn a_hold_lasts_for_three_times_the_mean_pause_and_no_longer_than_the_way_back_is_worth() {
        let held_us =
            |pause: Pause| pause.until(STAY).unwrap().since(at_us(20_000_000)).get() / 1_000;
        assert_eq!(
            [0, 100, 2_000, 4_000].map(|us| held_us(after(20, us))),
            [200, 500, 6_200, 8_000]
        );
        assert!(
            after(20, 7_000).is_worth(STAY) && !after(20, 7_000).is_worth(Nanos::from_millis(6))
        );
        assert!(!after(20, 9_000).is_worth(STAY), "a pause longer than any hold");
        assert!(!after(20, 0).is_worth(Nanos::ZERO), "holds are off");
    }

    #[test]
    fn who_comes_mostly_is_waited_for_and_who_comes_seldom_is_not() {
        // The share of pauses with a hold when the next request comes `come` times in four.
        let share_held = |come: u64| {
            let (mut pause, mut held) = (Pause::default(), 0);
            for n in 0..400 {
                let now = at_us(n * 1_000_000);
                pause.begin(now);
                let is_held = pause.is_worth(STAY);
                held += u64::from(is_held);
                if n % 4 < come {
                    pause.end(now + Nanos::from_micros(100), STAY);
                } else if is_held {
                    pause.was_in_vain(STAY);
                    assert_eq!(pause.until(STAY), None, "a second hold in the same pause");
                }
            }
            held as f64 / 400.0
        };
        let shares = [4, 3, 1].map(share_held);
        assert_eq!(shares[0], 1.0);
        assert!(shares[1] > 0.75 && shares[2] < 0.3, "{shares:?}");
    }
}
