//! A host: the daemon's process, its disks with their guests and clients, and what may happen to
//! them. What happens is drawn from the seed, step by step.

mod moves;
mod restarts;

use super::client::Client;
use super::disk::{Disk, Notes};
use super::guest::Guest;
use super::kernel::{Kernel, TAGS};
use super::plan::Plan;
use super::random::Random;
use crate::death;
use crate::frontends::nbd::Export;
use crate::frontends::vhost_user::account::shortage;
use crate::frontends::vhost_user::{ConfigListeners, DiskHandle};
use crate::images::{
    self, Image, ImageError, Kept, LostImage, Marker, Notes as Losses, OpenOptions, Unmarked,
};
use crate::reactor::Reactor;
use crate::reactor::message::{self, Disk as Served, Handle, Message};
use seekway_core::units::{Lba, Nanos};
use seekway_policy::schedulers;
use seekway_stack::stack::limit::DiskLimits;
use seekway_testing::disk::{Model, SECTOR_BYTES};
use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// Sectors of a disk when it begins, and of one for long requests.
const SECTORS: usize = 256;
const SECTORS_LONG: usize = 7 << 10;
const CACHE_BYTES: u64 = 64 << 10;
/// Turns in which all that is under way ends, if nothing is added.
const TURNS_MAX: usize = 20_000;

/// Longest time of a child of another test from its fork to its exec.
const FORK_PATIENCE: Duration = Duration::from_secs(600);

/// The daemon's process, of which only one reactor is simulated.
struct Daemon {
    reactor: Reactor,
    handle: Handle,
}

type Process = Rc<RefCell<Option<Daemon>>>;

/// A host and all that it serves.
pub struct World {
    plan: Plan,
    seed: u64,
    kernel: Rc<RefCell<Kernel>>,
    process: Process,
    disks: Vec<Disk>,
    guests: Vec<Guest>,
    /// Clients, and which disk they use.
    clients: Vec<(usize, Client)>,
    notes: Notes,
    /// Marks images of which a sync has failed: the marker, the images to mark, and where they are
    /// noted.
    losses: Rc<(Marker, Receiver<LostImage>, Losses, Arc<Unmarked>)>,
    /// Answers to settings that are to come.
    answers: Vec<(&'static str, Answer)>,
    pub done: Done,
}

/// Looks whether an answer has come.
type Answer = Box<dyn FnMut() -> bool>;

fn answer<T: 'static>(of: Receiver<T>) -> Answer {
    Box::new(move || of.try_recv().is_ok())
}

/// Counts of events in a seed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Done {
    pub requests: u64,
    pub kills: u64,
    /// Guests whose memory was taken away.
    pub cuts: u64,
    /// Steps in which a VMM had used up what it may hold.
    pub shortages: u64,
    /// Images that a process that was killed still had when the next one opened them.
    pub lingering: u64,
    /// Images that were refused because a flush had failed.
    pub losses: u64,
    /// Guests that have moved to another VMM.
    pub moves: u64,
    /// Those of them that had a failed flush, which the other daemon had to find out.
    pub lost_moves: u64,
    pub power_fails: u64,
    /// The last time and the images' contents, as a number.
    pub hash: u64,
}

/// One turn of the daemon, if it runs. False when it was the last.
fn turn(process: &Process) -> bool {
    process.borrow_mut().as_mut().is_some_and(|daemon| daemon.reactor.turn())
}

/// Time passes, and the device does some of its work.
fn pass(kernel: &Rc<RefCell<Kernel>>) {
    let mut kernel = kernel.borrow_mut();
    kernel.let_go();
    if !kernel.finish_one() {
        let wake = kernel.next_wake().filter(|&at| at > kernel.now);
        let until_wake = wake.map_or(Nanos::from_millis(1), |at| at.since(kernel.now));
        kernel.pass(until_wake);
    }
}

impl World {
    /// A host as its seed has it, with the daemon running. Its images are in `folder`.
    pub fn new(seed: u64, folder: &Path) -> Result<World, String> {
        let mut random = Random::new(seed, u64::MAX);
        let plan = Plan::of(&mut random);
        let mut kernel = Kernel::new(Random::new(seed, u64::MAX - 1), plan.faults);
        kernel.tags = Some(TAGS);
        let kernel = Rc::new(RefCell::new(kernel));
        let may_fail = plan.faults.fails > 0;
        let syncs_may_fail = plan.faults.again > 0;
        let mut disks = Vec::new();
        for number in 0..1 + random.index(3) {
            let path = folder.join(format!("{number}.img"));
            let sectors = if plan.is_long { SECTORS_LONG } else { SECTORS };
            let bytes = sectors * SECTOR_BYTES;
            let _ = std::fs::remove_file(&path); // an earlier seed's, perhaps with its mark
            let file = std::fs::File::create(&path).map_err(|e| e.to_string())?;
            file.set_len(bytes as u64).map_err(|e| e.to_string())?;
            let inode = file.metadata().map_err(|e| e.to_string())?.ino();
            let buffered = random.once_in(2);
            let mut apart = random.apart();
            let (keeps_dsync, keeps_mark) = (!apart.once_in(4), !apart.once_in(2));
            // Less than the device has, or as much.
            let block = apart.one_of(&[SECTOR_BYTES, 4096]);
            kernel.borrow_mut().add_file(inode, bytes, buffered, keeps_dsync, block);
            disks.push(Disk {
                path,
                truth: Model::new(sectors),
                sectors,
                may_fail,
                syncs_may_fail,
                buffered,
                keeps_dsync,
                keeps_mark,
                block,
                opened: 0,
                failed_flush: None,
                awaited: None,
                leaves: false,
                number: None,
                limits: Arc::default(),
                memory: Arc::default(),
            });
        }
        let guests = disks.iter().map(|_| Guest::new(&mut random, plan.is_long)).collect();
        let (marker, lost, unmarked) = Marker::new();
        let state = folder.join("state");
        let _ = std::fs::remove_dir_all(&state); // an earlier seed's
        let losses = Losses::open(&state).map_err(|e| e.to_string())?;
        let mut world = World {
            plan,
            seed,
            kernel,
            process: Rc::default(),
            disks,
            guests,
            clients: Vec::new(),
            notes: Notes::default(),
            losses: Rc::new((marker, lost, losses, unmarked)),
            answers: Vec::new(),
            done: Done::default(),
        };
        world.attend();
        world.start(&mut random)?;
        Ok(world)
    }

    fn handle(&self) -> Option<Handle> {
        self.process.borrow().as_ref().map(|daemon| daemon.handle.clone())
    }

    /// Attach a disk, and connect its guest.
    fn attach(&mut self, number: usize, random: &mut Random) -> Result<(), String> {
        if self.handle().is_none() {
            return Ok(());
        }
        let image = self.open(number)?;
        self.serve(number, image)?;
        self.connect(number, random)
    }

    /// Attach an image.
    fn serve(&mut self, number: usize, image: Image) -> Result<(), String> {
        let handle = self.handle().ok_or("the reactor has ended")?;
        let disk = &mut self.disks[number];
        disk.leaves = false;
        let mut image = image.as_on_disk(!disk.buffered, disk.keeps_dsync, disk.block as u32);
        image.mark_by(self.losses.0.clone()).map_err(|e| e.to_string())?;
        *disk.limits.lock().expect("unpoisoned") = Some(*image.limits());
        let mut served = Served::new(format!("disk {number}"), image);
        served.weight = NonZeroU32::new(1 + number as u32).expect("positive");
        // What the file system says of its place comes from a thread, at any time.
        served.lba = Some(Lba::new(number as u64 * 8192));
        if self.plan.limits {
            served.limits = DiskLimits::parse("iops=2000").map_err(|e| e.to_string())?;
        }
        let attached = handle.ask(|reply| Message::AttachDisk(Box::new(served), reply));
        disk.number = Some(attached.ok_or("the reactor has ended")??);
        Ok(())
    }

    /// Open a disk's image. Where writes are lost somebody accepts that, and mends the image.
    fn open(&mut self, number: usize) -> Result<Image, String> {
        self.keep_losses()?;
        self.done.lingering += u64::from(self.kernel.borrow().lingers());
        let (disk, mut kernel) = (&mut self.disks[number], self.kernel.borrow_mut());
        let file = &mut kernel.files[number];
        let has_failed_sync = std::mem::take(&mut file.has_failed_sync);
        let has_failed_flush = disk.failed_flush.take().is_some();
        file.content.mend();
        drop(kernel);
        disk.opened = self.notes.tick();
        let (disk, losses) = (&self.disks[number], &self.losses.2);
        let open = |accept_lost_writes| {
            let options = OpenOptions { accept_lost_writes, ..OpenOptions::writing() };
            open(disk, &options, losses, &self.kernel)
        };
        match open(false) {
            Ok(_) if has_failed_flush => Err("that a flush had failed was forgotten".into()),
            Err(ImageError::LostWrites { .. }) if has_failed_sync => {
                self.done.losses += 1;
                open(true).map_err(|e| e.to_string())
            }
            opened => opened.map_err(|e| e.to_string()),
        }
    }

    fn connect(&mut self, number: usize, random: &mut Random) -> Result<(), String> {
        let (Some(handle), Some(disk)) = (self.handle(), self.disks[number].number) else {
            return Ok(());
        };
        if self.guests[number].is_cut() {
            self.guests[number].end(&mut self.disks[number], &mut self.notes);
            self.guests[number] = Guest::new(random, self.plan.is_long);
        }
        let limits = self.disks[number].limits.clone();
        let served = DiskHandle {
            name: format!("disk {number}"),
            serial: format!("disk {number}"),
            disk,
            handle,
            limits: Arc::new(move || limits.lock().expect("unpoisoned").expect("it is attached")),
            config_changed: Arc::new(ConfigListeners::default()),
            image_use: Arc::new(Kept),
            queues: self.guests[number].queues(),
            guest_memory: None,
        };
        self.guests[number].connect(served, random)
    }

    fn add_client(&mut self, random: &mut Random) {
        let number = random.index(self.disks.len());
        let (Some(handle), Some(disk)) = (self.handle(), self.disks[number].number) else { return };
        let limits = self.disks[number].limits.clone();
        let export = Export {
            name: format!("disk {number}"),
            disk,
            handle: handle.clone(),
            limits: Arc::new(move || limits.lock().expect("unpoisoned").expect("it is attached")),
            memory: self.disks[number].memory.clone(),
        };
        let (client, connection) = Client::new(export, random.once_in(2));
        let _ = handle.ask(|reply| Message::OpenPort(Box::new(connection), reply));
        self.clients.push((number, client));
    }

    /// Makes one step.
    pub fn step(&mut self, random: &mut Random) -> Result<(), String> {
        let plan = &self.plan;
        if random.once_in(plan.power_fails) {
            return self.power_fails(random);
        }
        if random.once_in(plan.kills) {
            death::comes_in(Some(random.below(120)));
        }
        let mut apart = random.apart();
        if apart.once_in(plan.cuts) {
            let number = apart.index(self.guests.len());
            self.guests[number].cut_memory(&mut apart);
            self.done.cuts += 1;
        }
        self.done.shortages += u64::from(shortage::has_come());
        let is_short = apart.once_in(plan.shortages);
        shortage::comes_after(is_short.then(|| apart.below(12)));
        if apart.once_in(4) {
            self.keep_losses()?;
        }
        self.happen(random)
    }

    fn happen(&mut self, random: &mut Random) -> Result<(), String> {
        match random.below(100) {
            0..28 => {
                let number = random.index(self.guests.len());
                let (guest, disk) = (&mut self.guests[number], &mut self.disks[number]);
                for _ in 0..1 + random.below(4) {
                    guest.submit(disk, &mut self.notes, random);
                }
            }
            28..40 => self.client_asks(random),
            40..64 => {
                for _ in 0..1 + random.below(6) {
                    self.kernel.borrow_mut().finish_one();
                }
                turn(&self.process);
            }
            64..78 => _ = turn(&self.process),
            78..86 => _ = self.hear()?,
            86..91 => {
                let most = random.one_of(&[100, 10_000, 2_000_000, 600_000_000]);
                self.kernel.borrow_mut().pass(Nanos::new(random.below(most)));
            }
            91..93 => self.change_setting(random),
            93..95 => self.migrate(random)?,
            95..97 => {
                let number = random.index(self.guests.len());
                match self.guests[number].is_connected() {
                    true => self.guests[number].rearrange(random)?,
                    false => self.connect(number, random)?,
                }
            }
            97 => {
                let number = random.index(self.guests.len());
                self.guests[number].switch_cache()?;
            }
            98 => self.hang_up(random)?,
            99 if random.once_in(4) => self.shut_down(random)?,
            _ => self.reattach(random)?,
        }
        Ok(())
    }

    fn client_asks(&mut self, random: &mut Random) {
        self.clients.retain(|(_, client)| !client.is_gone);
        if self.clients.len() < 2 && random.once_in(3) {
            return self.add_client(random);
        }
        if self.clients.is_empty() {
            return;
        }
        let at = random.index(self.clients.len());
        let (number, client) = &mut self.clients[at];
        for _ in 0..1 + random.below(3) {
            client.submit(&mut self.disks[*number], &mut self.notes, random);
            client.send(random);
        }
    }

    /// A guest's VMM or a client hangs up, and comes again.
    fn hang_up(&mut self, random: &mut Random) -> Result<(), String> {
        if !self.clients.is_empty() && random.once_in(2) {
            // What it has asked for may be done at any time from now on.
            self.clients.swap_remove(random.index(self.clients.len()));
            return Ok(());
        }
        let number = random.index(self.guests.len());
        self.guests[number].disconnect();
        self.connect(number, random)
    }

    fn change_setting(&mut self, random: &mut Random) {
        let Some(handle) = self.handle() else { return };
        let number = random.index(self.disks.len());
        let Some(id) = self.disks[number].number else { return };
        let entry = random.index(schedulers::REGISTRY.len());
        macro_rules! tell {
            ($message:expr, $($part:expr),*) => {{
                let (reply, answered) = sync_channel(1);
                if handle.send($message($($part,)* reply)) {
                    self.answers.push((stringify!($message), answer(answered)));
                }
            }};
        }
        match random.below(6) {
            0 => tell!(Message::SetPolicy, schedulers::REGISTRY[entry].name.to_string()),
            1 => tell!(Message::ResizeCache, random.below(3) * CACHE_BYTES),
            2 => tell!(Message::SetWeight, id, NonZeroU32::MIN),
            3 => tell!(Message::Status,),
            4 => {
                let limits = random.one_of(&["iops=500", "bandwidth=1MiB", "iops=100000"]);
                tell!(Message::SetLimits, id, DiskLimits::parse(limits).expect("limits"));
            }
            _ => {
                let disk = &mut self.disks[number];
                disk.sectors += 64;
                let bytes = disk.sectors * SECTOR_BYTES;
                disk.truth.grow(disk.sectors);
                self.kernel.borrow_mut().files[number].content.grow(bytes);
                let file = std::fs::File::options().write(true).open(&disk.path);
                file.and_then(|file| file.set_len(bytes as u64)).expect("room for images");
                // Nobody asks beyond the old end before this is answered.
                if let Some(Ok(capacity)) = handle.ask(|reply| Message::Resize(id, false, reply))
                    && let Some(limits) = &mut *disk.limits.lock().expect("unpoisoned")
                {
                    limits.capacity_bytes = capacity;
                }
            }
        }
    }

    /// A disk is detached, and attached again.
    fn reattach(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(handle) = self.handle() else { return Ok(()) };
        let number = random.index(self.disks.len());
        let Some(id) = self.disks[number].number.take() else { return Ok(()) };
        let (reply, detached) = sync_channel(1);
        self.disks[number].leaves = true;
        handle.send(Message::DetachDisk(id, reply));
        self.guests[number].disconnect();
        message::wait(&detached).ok_or("the reactor has ended")??;
        self.hear()?;
        self.attach(number, random)
    }

    /// Guests and clients look whether there is something for them. True if there was.
    fn hear(&mut self) -> Result<bool, String> {
        let mut heard = false;
        for (number, guest) in self.guests.iter_mut().enumerate() {
            heard |= guest
                .hear(&mut self.disks[number], &mut self.notes)
                .map_err(|e| format!("guest {number}: {e}"))?;
        }
        for (number, client) in &mut self.clients {
            heard |= client
                .hear(&mut self.disks[*number], &mut self.notes)
                .map_err(|e| format!("client of disk {number}: {e}"))?;
        }
        Ok(heard)
    }

    /// Nothing more is asked for and nothing more goes wrong: all is answered, and each disk is as
    /// its users were told.
    pub fn finish(&mut self, random: &mut Random) -> Result<(), String> {
        death::comes_in(None);
        shortage::comes_after(None);
        self.kernel.borrow_mut().heal();
        for number in 0..self.guests.len() {
            if !self.guests[number].is_connected() {
                self.connect(number, random)?;
            }
        }
        for _ in 0..TURNS_MAX {
            let mut moved = self.hear()?;
            self.keep_losses()?;
            for (_, client) in &mut self.clients {
                moved |= client.send(random);
            }
            self.answers.retain_mut(|(_, is_there)| !is_there());
            let guests = self.guests.iter().map(Guest::outstanding);
            let clients = self.clients.iter().map(|(_, client)| client.outstanding());
            if guests.chain(clients).sum::<usize>() + self.answers.len() == 0 {
                return self.compare();
            }
            if !moved {
                pass(&self.kernel);
            }
            turn(&self.process);
        }
        let waits = |what: &str, n: usize, of: usize| format!("\n  {what} {n}: {of} requests");
        let guests = self.guests.iter().map(Guest::outstanding).enumerate();
        let guests: String = guests.map(|(n, of)| waits("guest", n, of)).collect();
        let clients = self.clients.iter().map(|(_, c)| c.outstanding()).enumerate();
        let clients: String = clients.map(|(n, of)| waits("client", n, of)).collect();
        let settings: Vec<&str> = self.answers.iter().map(|(name, _)| *name).collect();
        Err(format!("something stands still:{guests}{clients}\n  settings: {settings:?}"))
    }

    /// Compares the images with the models.
    fn compare(&mut self) -> Result<(), String> {
        let now = self.notes.tick();
        let mut hash = DefaultHasher::new();
        (now, self.kernel.borrow().now.as_nanos()).hash(&mut hash);
        for (number, disk) in self.disks.iter().enumerate() {
            let kernel = self.kernel.borrow();
            let bytes = kernel.files[number].content.bytes();
            disk.check(0, bytes, now).map_err(|e| format!("the image of disk {number}: {e}"))?;
            bytes.hash(&mut hash);
        }
        (self.done.requests, self.done.hash) = (self.notes.requests(), hash.finish());
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        death::comes_in(None);
        shortage::comes_after(None);
        self.kernel.borrow_mut().kill();
        self.process.take();
        crate::waiting::while_waiting(None);
    }
}

/// Open a disk's image, as the daemon does. A child of another test has its lock too from its fork
/// until its exec.
fn open(
    disk: &Disk,
    options: &OpenOptions,
    losses: &Losses,
    kernel: &RefCell<Kernel>,
) -> Result<Image, ImageError> {
    let began = Instant::now();
    let image = loop {
        let lingers = kernel.borrow().lingers();
        let until = if lingers { began + FORK_PATIENCE } else { began };
        match images::patiently(until, || Image::open(&disk.path, options)) {
            Err(ImageError::Locked { .. }) if !lingers && began.elapsed() < FORK_PATIENCE => {
                std::thread::yield_now();
            }
            opened => break opened?,
        }
    };
    let image = if disk.keeps_mark { image } else { image.without_mark() };
    losses.judge(&image, options.accept_lost_writes)?;
    Ok(image)
}
