//! The reactor of one physical device: a thread that owns the ring, the
//! stack, the throttle, the disks and all ports. A turn of its loop:
//!
//! 1. completions of the ring: I/O that ended, events of ports, messages;
//! 2. commands that the throttle lets go;
//! 3. jobs that are done are handed to their ports;
//! 4. ports whose turn it is take requests, as many as their budget allows;
//! 5. the stack is polled, and what it says is done, until it waits;
//! 6. ports with news tell their guests;
//! 7. submit everything in one call, and sleep until there is news or a hold ends.
//!
//! The stack ([`seekway_stack::stack`]) decides what happens to a request between its port and
//! the image; the reactor has the request's buffers, and carries out its I/O.
//!
//! Each file knows only those above it in this list (and [`crate::port`]):
//!
//! ```text
//!  intervals  what disks got, fairness        message  what other threads send and are answered
//!  jobs, turns, edges, disks                  tables of what is there
//!  poll                                       time of looking before sleeping
//!  io, ring, cache                            I/Os, the kernel's ring, the cache's memory
//!  core       the state of a reactor, and what ports may ask of it
//!  commands   from the stack's decisions to I/O and back
//!  admin      messages carried out
//! ```

mod admin;
mod cache;
mod commands;
mod core;
mod disks;
mod edges;
mod intervals;
mod io;
mod jobs;
mod journal;
mod message;
mod poll;
pub(crate) mod ring;
mod turns;

pub use crate::op_kind::OpKind;
pub use cache::CacheSetup;
pub use intervals::{DiskUse, Fairness, INTERVAL};
pub use jobs::SlowRequest;
pub use message::{
    CacheStatus, Disk, DiskCache, DiskStatus, Handle, Message, OpStatus, ProcessCache, Served,
    Status, wait,
};
pub use poll::Poll;
pub use ring::Submitter;

use self::core::Core;
use crate::log::say;
use crate::port::{Budget, Port, PortContext};
use crate::sandbox;
use crate::throttle::Throttle;
use cache::CacheMemory;
use journal::JournalWriter;
use ring::{Backend, Cqe, Ring, Source};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_policy::schedulers;
use seekway_stack::dispatcher::{self, COALESCE_DEFAULT, Tags};
use seekway_stack::stack::limit::{GroupName, Limits};
use seekway_stack::stack::{Config, Stack};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::fs::File;
use std::panic::{self, PanicHookInfo};
use std::sync::Once;
use std::sync::mpsc::{self, Receiver};
use std::thread::{Builder, JoinHandle};
use std::{mem, process};

/// Commands at once on a device that turns: the policy orders them, and a queue
/// below it would order them again.
const DEPTH_ROTATIONAL: u32 = 1;
/// Interval between two looks at an image's mark, while a failure waits for that.
const MARK_LOOK: Nanos = Nanos::from_millis(1);
/// Commands at once on a device that does not: what NVMe and virtio queues take.
const DEPTH_SOLID: u32 = 128;

/// Parts and options of a reactor.
pub struct Setup {
    /// For the thread's name and messages.
    pub name: String,
    pub policy: String,
    pub tuning: Tuning,
    /// Keep what guests read, and read ahead of them.
    pub cache: Option<CacheSetup>,
    /// Takes as long as an emulated device would; `None` for the real one.
    pub throttle: Option<Throttle>,
    /// Size and kind of the real device, for policies.
    pub profile: DeviceProfile,
    /// Tags of the real device's queue, where they are known.
    pub tags: Option<Tags>,
    /// Where to write the journal of every input and output.
    pub journal: Option<File>,
    /// Rate limits of groups of disks.
    pub groups: Vec<(GroupName, Limits)>,
}

/// Settings of how a reactor hands I/O to its device, and waits for news.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Commands at once; `None` for what the modelled device takes when one is
    /// emulated, else 1 for a device that turns and 128 for one that does not.
    pub depth: Option<u32>,
    /// Longest command that adjacent requests are coalesced into; 0 never.
    pub coalesce: Sectors,
    /// Requests are merged up to `coalesce` as they arrive.
    pub merge: bool,
    /// A request that has waited longer goes whatever the policy says.
    pub hard_limit: Nanos,
    /// Time for which to look for news before sleeping.
    pub poll: Poll,
    /// Submitter of I/O on images.
    pub submitter: Submitter,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            depth: None,
            coalesce: COALESCE_DEFAULT,
            merge: false,
            hard_limit: Nanos::from_secs(30),
            poll: Poll::AUTO,
            submitter: Submitter::Own,
        }
    }
}

/// Start a reactor's thread. Fails for a policy that cannot be built and for
/// a kernel without what the ring needs (Linux 5.19).
pub fn spawn(setup: Setup) -> Result<(Handle, JoinHandle<()>), String> {
    let (handle, mailbox) = Handle::new().map_err(|e| format!("eventfd: {e}"))?;
    let own = handle.clone();
    let (ready, started) = mpsc::sync_channel(1);
    let thread = Builder::new()
        .name(format!("dev-{}", setup.name).chars().take(15).collect())
        .spawn(move || {
            begin();
            shorten();
            // The ring belongs to the thread that makes it.
            let ring = Ring::new(setup.tuning.submitter).map_err(|e| {
                format!(
                    "io_uring: {e} (is it switched off? see /proc/sys/kernel/io_uring_disabled)"
                )
            });
            let ring = ring.map(|ring| Box::new(ring) as Box<dyn Backend>);
            match ring.and_then(|ring| Reactor::new(setup, mailbox, own, ring)) {
                Ok(reactor) => {
                    sandbox::enter(sandbox::Kind::Reactor);
                    let _ = ready.send(Ok(()));
                    reactor.run();
                }
                Err(e) => _ = ready.send(Err(e)),
            }
        })
        .map_err(|e| format!("thread: {e}"))?;
    started.recv().map_err(|_| "the reactor's thread has died".to_string())??;
    Ok((handle, thread))
}

/// The reactor: its state, and the ports.
struct Reactor {
    core: Core,
    ports: Vec<Option<Box<dyn Port>>>,
    mailbox: Receiver<Message>,
    /// There may be more in the mailbox.
    mail: bool,
    shutdown: bool,
    journal: Option<JournalWriter>,
    /// Reused for each batch.
    cqes: Vec<Cqe>,
}

impl Reactor {
    fn new(
        setup: Setup,
        mailbox: Receiver<Message>,
        handle: Handle,
        ring: Box<dyn Backend>,
    ) -> Result<Reactor, String> {
        let scheduler = schedulers::build(&setup.policy).map_err(|e| e.to_string())?;
        let (rotational, tuning) = (setup.profile.rotational(), setup.tuning);
        let natural = match &setup.throttle {
            Some(throttle) => throttle.queue_depth(),
            None if rotational => DEPTH_ROTATIONAL,
            None => DEPTH_SOLID,
        };
        let profile = setup.throttle.as_ref().map_or(setup.profile, Throttle::profile);
        let dispatch = dispatcher::Config {
            // A model takes no more than its queue holds.
            depth: match &setup.throttle {
                Some(_) => tuning.depth.unwrap_or(natural).clamp(1, natural),
                None => tuning.depth.unwrap_or(natural).max(1),
            },
            coalesce: tuning.coalesce,
            merge: tuning.merge,
            hard_limit: tuning.hard_limit,
            tags: setup.tags,
        };
        let config = Config { dispatch, ..Config::default() };
        let cache = setup.cache.as_ref().map(CacheSetup::spec).transpose()?;
        let mut stack = Stack::new(scheduler, profile, config, cache);
        let journal = setup.journal.map(|file| JournalWriter::start(file, &setup.name));
        let journal = journal.transpose().map_err(|e| format!("the journal's thread: {e}"))?;
        if journal.is_some() {
            stack.start_journal(&setup.policy);
        }
        for (name, limits) in &setup.groups {
            stack.set_group(Instant::ZERO, name, limits);
        }
        let memory = setup.cache.as_ref().map(|cache| CacheMemory::new(cache, &mut stack));
        let memory = memory.transpose()?;
        let Setup { policy, throttle, .. } = setup;
        let mut core = Core::new(stack, policy, dispatch.depth, throttle, memory, handle, ring);
        core.poll = tuning.poll;
        let (ports, cqes) = (Vec::new(), Vec::new());
        Ok(Reactor { core, ports, mailbox, mail: false, shutdown: false, journal, cqes })
    }

    fn run(mut self) {
        while self.turn() {}
        self.note(true);
        match self.core.ring.has_lost_completions() {
            true => self.give_up(),
            false => self.core.close_disks(),
        }
    }

    /// Completions were dropped. What they belong to never ends, and nobody knows what it was: the
    /// daemon ends, and the next one takes up what guests have in flight.
    fn give_up(mut self) {
        say(
            "the kernel had no memory for completions of I/O and dropped some (EBADR): the daemon \
             ends, to be started again; see dmesg, and MemoryMax= of its unit",
        );
        self.core.suspect_syncs();
        // Whoever asks this reactor is told that it has ended.
        drop(std::mem::replace(&mut self.mailbox, mpsc::channel().1));
        // I/O that is under way still uses its memory.
        std::mem::forget(self);
    }

    /// One turn of the loop. False when it was the last.
    fn turn(&mut self) -> bool {
        if self.core.ring.has_lost_completions() {
            return false;
        }
        self.core.handle.turned();
        self.begin_turn();
        let wake = self.end_turn();
        if self.shutdown && self.core.is_drained() {
            return false;
        }
        self.note(false);
        match self.mail || self.core.has_ready() {
            // The kernel has its turn all the same: what never needs the device
            // must not keep the rest from it.
            true => _ = self.core.ring.peek(),
            false => self.sleep(wake),
        }
        true
    }

    /// Takes in what has happened: completions, messages, answers to ports, and their requests.
    fn begin_turn(&mut self) {
        self.core.tick();
        self.core.end_interval();
        self.reap();
        self.core.release_throttled();
        self.deliver();
        self.take_requests();
    }

    /// Acts on it. Returns the time to come back if nothing happens.
    fn end_turn(&mut self) -> Option<Instant> {
        let wake = self.core.pump().earliest();
        self.core.trim_cache();
        self.flush();
        self.core.remap_stale();
        let thaw = self.core.look_at_frozen();
        self.end_ports();
        // The thread that marks images has no way to wake this one.
        let look = (!self.core.marking.is_empty()).then(|| self.core.now + MARK_LOOK);
        wake.into_iter().chain(thaw).chain(look).min()
    }

    /// Handle what the ring has.
    fn reap(&mut self) {
        let mut cqes = std::mem::take(&mut self.cqes);
        self.core.ring.completions(&mut cqes);
        for cqe in cqes.drain(..) {
            match cqe.source {
                Source::Io(io) => self.core.io_done(io, cqe.result),
                Source::Mailbox => {
                    if !cqe.more {
                        self.core.watch_mailbox();
                    }
                    self.mail = true;
                }
                Source::Cancel => {}
                Source::Port(id, tag) => {
                    if !cqe.more {
                        self.core.ports.slot(id).sqes -= 1;
                    }
                    // A port stays until its last SQE has ended.
                    if let Some(port) = &mut self.ports[usize::from(id.index)] {
                        port.event(tag, cqe.result, cqe.more, &mut self.core);
                        self.core.ports.mark(id.index);
                    }
                }
            }
        }
        self.cqes = cqes;
        if self.mail {
            self.messages();
        }
        self.core.end_unsent();
    }

    /// Hand jobs that are done to their ports.
    fn deliver(&mut self) {
        // Not those that they hand in meanwhile and the cache answers at once:
        // a guest that always has another would keep the others waiting.
        if !self.core.ready.is_empty() {
            self.core.ports.turns.resume();
        }
        for _ in 0..self.core.ready.len() {
            let Some((id, token, result)) = self.core.next_ready() else { break };
            if let Some(port) = &mut self.ports[usize::from(id.index)] {
                port.done(token, result, &mut self.core);
                self.core.ports.mark(id.index);
            }
        }
    }

    /// Let ports take requests, each disk's ports as much as one budget allows.
    fn take_requests(&mut self) {
        for _ in 0..self.core.ports.turns.len() {
            let Some(disk) = self.core.ports.turns.next_disk() else { break };
            let now = self.core.now;
            let mut budget = self.core.ports.turns.budget(disk, now);
            let whole = budget.left();
            let mut has_room = self.core.has_room(disk);
            while has_room
                && !budget.is_spent()
                && let Some(id) = self.core.ports.next_turn(disk)
            {
                budget.spend(Budget::REQUEST_WORK);
                if let Some(port) = &mut self.ports[usize::from(id.index)] {
                    if port.take(&mut budget, &mut self.core) {
                        self.core.ports.wait_turn(id);
                    }
                    self.core.ports.mark(id.index);
                }
                has_room = self.core.has_room(disk);
            }
            self.core.ports.turns.note(disk, now, whole - budget.left() - budget.copies());
            self.core.ports.turns.end(disk, !has_room);
        }
    }

    /// Let ports with news tell their guests.
    fn flush(&mut self) {
        while let Some(id) = self.core.ports.next_marked() {
            if let Some(port) = &mut self.ports[usize::from(id.index)] {
                port.flush(&mut self.core);
            }
        }
    }

    /// Start closing ports that were asked to close, and remove those that have drained.
    fn end_ports(&mut self) {
        while let Some(id) = self.core.ports.next_closing() {
            if let Some(port) = &mut self.ports[usize::from(id.index)] {
                port.closing(&mut self.core);
                port.flush(&mut self.core);
            }
        }
        let drained = self.core.ports.drained();
        for &id in &drained {
            if let Some(port) = self.ports[usize::from(id.index)].take() {
                self.core.ports.release(id);
                port.closed();
            }
        }
        if !drained.is_empty() {
            self.core.jobs.shrink();
        }
        self.core.finish_detaching();
    }

    /// Submit, and wait for news until `wake`.
    fn sleep(&mut self, wake: Option<Instant>) {
        if self.core.poll == Poll::OFF {
            return self.core.submit_and_wait(wake);
        }
        let began = self.core.tick();
        let (mut has_news, mut displaced) = (false, Nanos::ZERO);
        if self.core.poll.time() > Nanos::ZERO {
            let worked = self.core.ring.busy();
            has_news = self.spin(began + self.core.poll.time(), wake);
            let looked = self.core.tick().since(began);
            let worked = Nanos::new((self.core.ring.busy() - worked).as_nanos() as u64);
            displaced = looked.saturating_sub(worked);
        }
        if !has_news {
            self.core.submit_and_wait(wake);
        }
        let now = self.core.tick();
        self.core.poll.waited(now, now.since(began), displaced);
    }

    /// Look for news until `end` without sleeping. True when there is some.
    fn spin(&mut self, end: Instant, wake: Option<Instant>) -> bool {
        let end = wake.map_or(end, |wake| wake.min(end));
        loop {
            if self.core.ring.peek() {
                return true;
            }
            let mut news = false;
            for (index, port) in self.ports.iter_mut().enumerate() {
                if let Some(port) = port
                    && port.poll(&mut self.core)
                {
                    self.core.ports.mark(index as u16);
                    news = true;
                }
            }
            if news || self.core.tick() >= end {
                return news;
            }
            std::hint::spin_loop();
        }
    }

    /// Pass the journal on. A journal that cannot be written ends.
    fn note(&mut self, last: bool) {
        if let Some(journal) = &mut self.journal
            && !journal.note(self.core.stack.take_journal(), last)
        {
            self.journal = None;
            self.core.stack.stop_journal();
        }
    }
}

// Properties of a reactor's thread alone: others depend on it at each moment.

thread_local! {
    static IS_REACTOR: Cell<bool> = const { Cell::new(false) };
}

/// Make this thread a reactor's. Its messages to the operator wait for nobody. A panic, once it is
/// told, ends the process at once: if the thread were unwound, buffers would be freed that a device
/// still writes to. The service manager starts the daemon again, which takes up what was in flight.
fn begin() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| match IS_REACTOR.get() {
            true => end(info),
            false => previous(info),
        }));
    });
    IS_REACTOR.set(true);
    crate::log::start();
}

/// Tell of a panic, as the standard library does but without waiting for whoever does not read
/// standard error, and end the process.
fn end(info: &PanicHookInfo<'_>) -> ! {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let backtrace = Backtrace::capture();
    let more = match backtrace.status() {
        BacktraceStatus::Captured => format!("\n{backtrace}"),
        _ => String::new(),
    };
    crate::log::say(&format!("thread '{name}' {info}{more}"));
    crate::log::flush();
    process::abort();
}

// The slice of a reactor: it runs as soon as it has something to do, where processors are few.

/// The time for which a reactor wants the processor at once: the least that Linux takes.
const SLICE_NS: u64 = 100_000;

/// Ask for short slices of the processor for this thread: it then runs before threads with longer
/// ones when it wakes, and has no more of the processor for that (sched(7), EEVDF; Linux 6.12).
/// Older kernels, and those who forbid it, leave all as it is.
fn shorten() {
    // SAFETY: plain numbers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    attributes.size = mem::size_of::<libc::sched_attr>() as u32;
    // SAFETY: reads as many bytes as `size` says; 0 is this thread. The policy stays SCHED_OTHER.
    let current = unsafe {
        libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, attributes.size, 0)
    };
    if current == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SLICE_NS;
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

#[cfg(test)]
pub(crate) mod tests;
