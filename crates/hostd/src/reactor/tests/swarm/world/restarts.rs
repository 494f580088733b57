//! Starts and ends of the daemon: it ends as told, is killed or loses its power, and starts again.

use super::super::guest::Guest;
use super::super::kernel::{Ring, TAGS};
use super::super::random::Random;
use super::{CACHE_BYTES, Daemon, TURNS_MAX, World, pass, turn};
use crate::death;
use crate::frontends::vhost_user::account::shortage;
use crate::reactor::message::{Handle, Message};
use crate::reactor::tests::setup;
use crate::reactor::{CacheSetup, Poll, Reactor, Setup, Tuning};
use crate::throttle::Throttle;
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Nanos, Sectors};
use std::cell::RefCell;
use std::rc::Rc;

/// Turns of waiting after which I/O that hangs goes on.
const PATIENCE_TURNS: usize = 200;

impl World {
    /// While a thread of the daemon's waits for the reactor, the rest of the world goes on.
    pub(super) fn attend(&self) {
        let (kernel, process) = (self.kernel.clone(), self.process.clone());
        let losses = self.losses.clone();
        let seen = RefCell::new(0usize);
        crate::waiting::while_waiting(Some(Rc::new(move || {
            let turns = &mut *seen.borrow_mut();
            *turns += 1;
            if turns.is_multiple_of(PATIENCE_TURNS) {
                kernel.borrow_mut().release();
                let (_, lost, notes, unmarked) = &*losses;
                for image in lost.try_iter() {
                    image.keep(Some(notes)).expect("room for notes");
                    unmarked.remove(&image.identity);
                }
            }
            assert!(*turns < 100 * TURNS_MAX, "a thread waits for the reactor for ever");
            pass(&kernel);
            turn(&process);
        })));
    }

    /// The daemon starts, and all that it serves connect.
    pub(super) fn start(&mut self, random: &mut Random) -> Result<(), String> {
        let plan = &self.plan;
        let throttle = plan.throttle.then(|| Throttle::parse("intel-320:k=1"));
        let throttle = throttle.transpose().map_err(|e| e.to_string())?;
        let setup = Setup {
            policy: plan.policy.into(),
            tuning: Tuning {
                depth: plan.depth,
                coalesce: Sectors::new(random.one_of(&[0, 16, 1024])),
                merge: random.one_of(&[false, true]),
                hard_limit: plan.hard_limit,
                poll: Poll::OFF,
                ..Tuning::default()
            },
            cache: plan.prefetcher.map(|prefetcher| CacheSetup {
                bytes: CACHE_BYTES,
                room_bytes: 2 * CACHE_BYTES,
                prefetcher: prefetcher.into(),
                lock: false,
                bandwidth_bytes_per_s: Some(100 << 20),
                seed: Some(self.seed),
            }),
            throttle,
            tags: Some(TAGS),
            profile: DeviceProfile::unknown(Sectors::new(1 << 32), random.once_in(2)),
            ..setup("swarm")
        };
        let (handle, mailbox) = Handle::new().map_err(|e| e.to_string())?;
        let ring = Box::new(Ring(self.kernel.clone()));
        let mut reactor = Reactor::new(setup, mailbox, handle.clone(), ring)?;
        // The clock leaps here, and no file system hangs.
        reactor.core.mark_patience = Nanos::from_secs(3600);
        *self.process.borrow_mut() = Some(Daemon { reactor, handle });
        (0..self.disks.len()).try_for_each(|number| self.attach(number, random))
    }

    /// The daemon ends as it is told, and starts again.
    pub(super) fn shut_down(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(handle) = self.handle() else { return Ok(()) };
        self.disks.iter_mut().for_each(|disk| disk.leaves = true);
        handle.send(Message::Shutdown);
        let mut turns = 0usize;
        while turn(&self.process) {
            pass(&self.kernel);
            self.keep_losses()?;
            turns += 1;
            if turns.is_multiple_of(PATIENCE_TURNS) {
                self.kernel.borrow_mut().release();
                // Its clients have their time to read.
                self.hear()?;
            }
            if turns > TURNS_MAX {
                return Err("the daemon does not end".into());
            }
        }
        self.bury();
        self.start(random)
    }

    /// The daemon's process is gone, whatever it was doing.
    fn bury(&mut self) {
        // The kernel ends I/O that is under way before the process's memory is gone.
        self.kernel.borrow_mut().kill();
        self.process.take();
        self.guests.iter_mut().for_each(Guest::disconnect);
        self.disks.iter_mut().for_each(|disk| disk.number = None);
        self.answers.clear();
        for (number, client) in &mut self.clients {
            client.hung_up(&mut self.disks[*number], &mut self.notes);
        }
        self.clients.clear();
    }

    /// The daemon was killed and starts again.
    pub fn restart(&mut self, random: &mut Random) -> Result<(), String> {
        self.done.kills += 1;
        shortage::comes_after(None);
        let mut apart = random.apart();
        if let Some(daemon) = &*self.process.borrow()
            && apart.once_in(8)
        {
            for disk in daemon.reactor.core.disks.0.iter().flatten() {
                let image = disk.image.file().try_clone().map_err(|e| e.to_string())?;
                self.kernel.borrow_mut().linger(image, 1 + apart.below(2));
            }
        }
        self.forget_losses();
        self.bury();
        death::comes_in(None);
        self.attend();
        self.start(random)
    }

    /// The thread that marks images is killed before it has begun.
    fn forget_losses(&mut self) {
        for image in self.losses.1.try_iter() {
            self.losses.3.remove(&image.identity);
        }
    }

    /// The power fails, and the host starts again.
    pub(super) fn power_fails(&mut self, random: &mut Random) -> Result<(), String> {
        self.done.power_fails += 1;
        self.hear()?;
        self.forget_losses();
        self.bury();
        self.kernel.borrow_mut().power_fails();
        let now = self.notes.tick();
        let kernel = self.kernel.clone();
        for (number, disk) in self.disks.iter_mut().enumerate() {
            let kernel = kernel.borrow();
            let image = kernel.files[number].content.bytes();
            disk.truth.settle(image, now).map_err(|e| format!("disk {number}: {e}"))?;
            self.guests[number] = Guest::new(random, self.plan.is_long);
        }
        death::comes_in(None);
        self.attend();
        self.start(random)
    }
}
