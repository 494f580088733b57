//! Changes while the reactor of one device hangs.

use super::*;
use crate::config::{Config, DiskConfig};
use crate::daemon::{Daemon, StartOptions};
use crate::port::PortId;
use crate::reactor::Message;
use std::fs::File;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use tempfile::TempDir;

/// A failing test says so after this long.
const PATIENCE: Duration = Duration::from_secs(600);

/// Something that keeps the thread that drops it waiting until the other end is gone.
struct Hang(Receiver<()>);

impl Drop for Hang {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

/// A daemon with the disk `hung` on one device, and a folder on another.
struct Rig {
    daemon: Daemon,
    folder: TempDir,
    elsewhere: TempDir,
}

impl Rig {
    /// `None`, with a message, where there is only one device.
    fn new() -> Option<Rig> {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir_in("/dev/shm").ok();
        let config = Config { listen: Some(folder.path().into()), ..Config::default() };
        let daemon = Daemon::start(config, StartOptions::default()).unwrap();
        let host = daemon.host();
        host.attach(&disk(folder.path(), "hung")).unwrap();
        let is_other = |at: &TempDir| {
            host.attach(&disk(at.path(), "first")).unwrap();
            host.devices().len() == 2
        };
        let elsewhere = elsewhere.filter(is_other);
        let Some(elsewhere) = elsewhere else {
            seekway_testing::skip("/dev/shm on another device than the temporary folder");
            return None;
        };
        Some(Rig { daemon, folder, elsewhere })
    }

    fn host(&self) -> &Arc<Host> {
        self.daemon.host()
    }

    /// The first device's reactor hangs until what is returned is dropped.
    fn hang(&self) -> Sender<()> {
        let (goes_on, waits) = channel();
        let nobody = PortId { index: u16::MAX, generation: 0 };
        let hang = Message::ToPort(nobody, Box::new(Hang(waits)));
        assert!(self.host().devices()[0].handle().send(hang));
        goes_on
    }

    /// Everything that can be done with a disk of the other device.
    fn change_the_other(&self) {
        let (host, other) = (self.host(), disk(self.elsewhere.path(), "other"));
        host.attach(&other).unwrap();
        host.resize("other", Some(2 << 20), false).unwrap();
        host.set_weight("other", NonZeroU32::new(4).unwrap()).unwrap();
        host.set_limits("other", &Default::default()).unwrap();
        host.set_policy("noop", Some(&host.disk("other").unwrap().device.name)).unwrap();
        host.detach("other").unwrap();
    }

    fn wait_until_nothing_is_pending(&self) {
        let until = Instant::now() + PATIENCE;
        while !self.host().pending().is_empty() {
            assert!(Instant::now() < until, "a change never ends");
            std::thread::yield_now();
        }
    }
}

fn disk(folder: &Path, name: &str) -> DiskConfig {
    let path = folder.join(format!("{name}.img"));
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    DiskConfig::new(name, path)
}

fn pending(host: &Host) -> Vec<(String, Change)> {
    host.pending().into_iter().map(|p| (p.disk, p.change)).collect()
}

#[test]
fn a_device_that_hangs_keeps_no_command_of_another_waiting() {
    let Some(rig) = Rig::new() else { return };
    let host = rig.host();
    let goes_on = rig.hang();
    // Before, the first of these waited for ever, and all others behind it.
    let refused = host.set_policy("deadline", None).unwrap_err();
    assert!(matches!(refused, HostError::Silent(_)), "{refused}");
    rig.change_the_other();
    assert!(matches!(host.set_limits("hung", &Default::default()), Err(HostError::Silent(_))));
    rig.change_the_other();
    drop(goes_on);
    host.detach("hung").unwrap();
    rig.daemon.host().end().unwrap();
}

#[test]
fn an_attach_on_a_device_that_hangs_leaves_nothing() {
    let Some(rig) = Rig::new() else { return };
    let (host, late) = (rig.host(), disk(rig.folder.path(), "late"));
    let goes_on = rig.hang();
    let refused = host.attach(&late).unwrap_err();
    assert!(matches!(&refused, HostError::SilentBefore(name, _) if name == "late"), "{refused}");
    assert!(!rig.folder.path().join("late.vhost").exists());
    assert_eq!(pending(host), []);
    let refused = host.resize("hung", Some(2 << 20), false).unwrap_err();
    assert!(matches!(refused, HostError::SilentBefore(..)), "{refused}");
    assert_eq!(rig.folder.path().join("hung.img").metadata().unwrap().len(), 1 << 20);
    drop(goes_on);
    host.attach(&late).unwrap(); // its image is locked by nobody
    host.end().unwrap();
}

#[test]
fn a_detach_on_a_device_that_hangs_says_so_and_ends_when_it_goes_on() {
    let Some(rig) = Rig::new() else { return };
    let host = rig.host();
    let goes_on = rig.hang();
    let refused = host.detach("hung").unwrap_err();
    let is_silent = |e: &HostError| {
        matches!(e, HostError::Pending { change: Change::Detach, reason: Reason::Silent(_), .. })
    };
    assert!(is_silent(&refused), "{refused}");
    assert_eq!(pending(host), [("hung".into(), Change::Detach)]);
    assert!(!rig.folder.path().join("hung.vhost").exists());
    assert!(matches!(host.disk("hung"), Err(HostError::NoDisk { .. })));
    let again = host.attach(&disk(rig.folder.path(), "hung")).unwrap_err();
    assert!(matches!(again, HostError::Claimed(_)), "{again}");
    rig.change_the_other();
    drop(goes_on);
    rig.wait_until_nothing_is_pending();
    host.attach(&DiskConfig::new("hung", rig.folder.path().join("hung.img"))).unwrap();
    host.end().unwrap();
}

#[test]
fn an_attach_that_was_given_up_is_undone() {
    let Some(rig) = Rig::new() else { return };
    let host = rig.host();
    let (hung, late) = (host.devices()[0].clone(), disk(rig.elsewhere.path(), "late"));
    let (again, goes_on) = (late.clone(), rig.hang());
    let (may_go_on, waits) = channel::<()>();
    let given_up = host.change("late", Change::Attach, move |host, claim| {
        // As if the device had begun to hang after it was asked whether it lives.
        claim.lies_on(&hung);
        let _ = waits.recv();
        host.attach_claimed(claim, &late, None, Instant::now())
    });
    let given_up = given_up.unwrap_err();
    assert!(matches!(&given_up, HostError::Pending { change: Change::Attach, .. }), "{given_up}");
    assert_eq!(pending(host), [("late".into(), Change::Attach)]);
    drop((may_go_on, goes_on));
    rig.wait_until_nothing_is_pending();
    assert!(matches!(host.disk("late"), Err(HostError::NoDisk { .. })));
    host.attach(&again).unwrap(); // its image is locked by nobody
    host.end().unwrap();
}
