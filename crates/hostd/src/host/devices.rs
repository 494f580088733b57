//! Devices: which one an image lies on, what it is called, and its reactor.

use super::error::HostError;
use super::start::Stopper;
use crate::config::Config;
use crate::images::Image;
use crate::log::say;
use crate::reactor::{self, CacheSetup, Handle, Message, Setup, Status};
use crate::sandbox;
use crate::threads::{SMALL_STACK_BYTES, lock, spawn};
use crate::throttle::Throttle;
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::Sectors;
use seekway_stack::stack::limit::{GroupName, Limits as RateLimits};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The policy of a device when the operator names none.
pub const POLICY_DEFAULT: &str = "fairway";
/// Longest wait of an operator's command for a reactor, which answers in microseconds.
const SETTING_PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
/// Most journals of one device in a folder.
const JOURNALS_MAX: u32 = 100_000;

/// Until when an operator's command that begins now waits for reactors.
pub(super) fn patience() -> Instant {
    Instant::now() + SETTING_PATIENCE
}

/// A device with its reactor.
pub struct Device {
    /// As the kernel calls it (`sda`), or `MAJOR:MINOR`, or the emulated profile.
    pub name: String,
    /// Major and minor number; `None` when emulated.
    pub number: Option<(u32, u32)>,
    /// Where its journal is written.
    pub journal: Option<PathBuf>,
    /// Nobody knows yet what it reads a second, and its prefetcher would like to.
    unmeasured: AtomicBool,
    handle: Handle,
    watcher: Mutex<Option<JoinHandle<()>>>,
    /// The device has been asked to end.
    ending: Arc<AtomicBool>,
    /// The device has ended by itself.
    pub died: Arc<AtomicBool>,
}

impl Device {
    /// Start the reactor for the device of `image`.
    pub(super) fn start(
        config: &Config,
        policy: Option<&str>,
        cache: Option<CacheSetup>,
        groups: Vec<(GroupName, RateLimits)>,
        image: &Image,
        stopper: &Stopper,
    ) -> Result<Arc<Device>, HostError> {
        let limits = image.limits();
        let throttle = config.emulate.as_deref().map(Throttle::parse).transpose();
        let throttle = throttle.map_err(HostError::Emulate)?;
        let number = throttle.is_none().then(|| image.device());
        let name = match (&config.emulate, number) {
            (Some(profile), _) => emulated_name(profile),
            (None, Some(number)) => kernel_name(number),
            (None, None) => unreachable!("either emulated or real"),
        };
        let capacity = Sectors::from_bytes(limits.capacity_bytes);
        let capacity = image.device_capacity().unwrap_or(capacity);
        let profile = DeviceProfile {
            stripe: image.stripe(),
            ..DeviceProfile::unknown(capacity, limits.rotational)
        };
        let journal =
            config.journal.as_ref().map(|folder| new_journal(folder, &name)).transpose()?;
        let (journal, journal_path) = journal.unzip();
        let cache = cache.map(|cache| of_model(cache, config.emulate.as_deref()));
        let unmeasured = cache.as_ref().is_some_and(|c| c.bandwidth_bytes_per_s.is_none());
        let setup = Setup {
            name: name.clone(),
            policy: policy.unwrap_or(POLICY_DEFAULT).to_string(),
            depth: config.depth,
            coalesce: config.coalesce,
            merge: config.merge,
            hard_limit: config.hard_limit,
            cache,
            throttle,
            profile,
            tags: image.tags(),
            poll: config.poll,
            submitter: config.submitter,
            journal,
            groups,
        };
        let failed = |e| HostError::Reactor(name.clone(), e);
        let (handle, thread) = reactor::spawn(setup).map_err(failed)?;
        let (ending, died) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let watcher = watch(&name, thread, stopper, ending.clone(), died.clone());
        let watcher = watcher.map_err(|e| {
            // Nobody else would end it.
            handle.send(Message::Shutdown);
            HostError::System("thread", e)
        })?;
        Ok(Arc::new(Device {
            name,
            number,
            journal: journal_path,
            unmeasured: AtomicBool::new(unmeasured && number.is_some()),
            handle,
            watcher: Mutex::new(Some(watcher)),
            ending,
            died,
        }))
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Bandwidth of its reads, measured with one of its images before any is served; `None` when it
    /// is known, of no use, or cannot be measured.
    pub(super) fn measure(&self, image: &Image) -> Option<u64> {
        if !self.unmeasured.load(Ordering::SeqCst) {
            return None;
        }
        let measured = image.measure_bandwidth();
        self.unmeasured.store(measured.is_none(), Ordering::SeqCst);
        measured
    }

    /// Ask it how it stands. Nothing comes when its reactor has ended, or waits for its disk.
    pub(super) fn ask_status(&self) -> Receiver<Status> {
        self.handle.request(Message::Status)
    }

    /// Ask it for something. The reply is taken by [`Device::reply`].
    pub(super) fn request<T>(&self, message: impl FnOnce(SyncSender<T>) -> Message) -> Receiver<T> {
        self.handle.request(message)
    }

    /// Its reply to something that an operator wants, who is not to wait for a disk that hangs
    /// beyond `until` ([`patience`]).
    ///
    /// # Errors
    /// Its reactor has ended, or does not answer.
    pub(super) fn reply<T>(&self, reply: &Receiver<T>, until: Instant) -> Result<T, HostError> {
        let left = until.saturating_duration_since(Instant::now());
        reply.recv_timeout(left).map_err(|e| match e {
            RecvTimeoutError::Disconnected => HostError::ReactorDied(self.name.clone()),
            RecvTimeoutError::Timeout => HostError::Silent(self.name.clone()),
        })
    }

    /// Ask it for something that is waited for without end: only by whoever has the disk's claim.
    ///
    /// # Errors
    /// Its reactor has ended.
    pub(super) fn ask<T>(
        &self,
        message: impl FnOnce(SyncSender<T>) -> Message,
    ) -> Result<T, HostError> {
        self.handle.ask(message).ok_or_else(|| HostError::ReactorDied(self.name.clone()))
    }

    /// Does its reactor answer within this time? One that has ended does not hang, either.
    pub(super) fn answers(&self, patience: Duration) -> bool {
        let reply = self.handle.request(Message::CacheMemory).recv_timeout(patience);
        reply != Err(RecvTimeoutError::Timeout)
    }

    /// See that its reactor answers before something of the disk of this name is begun.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn must_answer(&self, disk: &str) -> Result<(), HostError> {
        match self.answers(SETTING_PATIENCE) {
            true => Ok(()),
            false => Err(HostError::SilentBefore(disk.into(), self.name.clone())),
        }
    }

    /// Ask it to end. [`Device::join`] waits until it has.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.handle.send(Message::Shutdown);
    }

    pub(super) fn join(&self) {
        let watcher = lock(&self.watcher).take();
        if let Some(watcher) = watcher {
            let _ = watcher.join(); // it does nothing that panics
        }
    }
}

/// The cache of an emulated device: it reads what its model does, unless that was
/// given.
fn of_model(cache: CacheSetup, emulate: Option<&str>) -> CacheSetup {
    let model = || Throttle::parse(emulate?).ok()?.bandwidth();
    let bandwidth_bytes_per_s = cache.bandwidth_bytes_per_s.or_else(model);
    CacheSetup { bandwidth_bytes_per_s, ..cache }
}

/// Wait for the reactor's end on a thread of its own: one that ends unasked
/// ends the daemon, for the guests on it would hang.
fn watch(
    name: &str,
    thread: JoinHandle<()>,
    stopper: &Stopper,
    ending: Arc<AtomicBool>,
    died: Arc<AtomicBool>,
) -> std::io::Result<JoinHandle<()>> {
    let (name, stopper) = (name.to_string(), stopper.duplicate()?);
    spawn(&format!("end-{name}"), SMALL_STACK_BYTES, move || {
        sandbox::enter(sandbox::Kind::Helper);
        let panicked = thread.join().is_err();
        if panicked || !ending.load(Ordering::SeqCst) {
            died.store(true, Ordering::SeqCst);
            say(&format!("the reactor of {name} has ended by itself; ending"));
            stopper.stop();
        }
    })
}

/// The name of what `PROFILE:key=value` or a path to a profile emulates.
fn emulated_name(profile: &str) -> String {
    let name = profile.split(':').next().unwrap_or_default();
    let name = Path::new(name).file_stem().map_or(name.into(), |s| s.to_string_lossy());
    name.chars().take(64).collect()
}

/// The kernel's name for the device.
pub(super) fn kernel_name((major, minor): (u32, u32)) -> String {
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}"));
    let name = link.ok().and_then(|l| Some(l.file_name()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| format!("{major}:{minor}"))
}

/// A new file for a journal: `sda.1.journal`, and so on.
fn new_journal(folder: &Path, device: &str) -> Result<(File, PathBuf), HostError> {
    let failed = |path: &Path, e| HostError::Journal(path.to_path_buf(), e);
    std::fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
    for n in 1..=JOURNALS_MAX {
        let path = folder.join(format!("{}.{n}.journal", device.replace(['/', ':'], "-")));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(&path, e)),
        }
    }
    let full =
        std::io::Error::other(format!("{JOURNALS_MAX} journals are there: clear the folder"));
    Err(failed(folder, full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(emulated_name("seagate-1tb-7200:queue_depth=8:k=1"), "seagate-1tb-7200");
        assert_eq!(emulated_name("/etc/profiles/mine.toml:k=auto"), "mine");
        assert_eq!(kernel_name((0, 4_000_000)), "0:4000000");
    }

    #[test]
    fn journals_do_not_overwrite_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("new");
        let first = new_journal(&inner, "0:25").unwrap().1;
        let second = new_journal(&inner, "0:25").unwrap().1;
        assert_eq!(first, inner.join("0-25.1.journal"));
        assert_eq!(second, inner.join("0-25.2.journal"));
    }
}
