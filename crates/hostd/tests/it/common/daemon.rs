//! A daemon on a thread, with its sockets in a folder of its own.

use super::image;
use seekway_hostd::config::{Config, DiskConfig};
use seekway_hostd::control::{Client, ClientError, Request};
use seekway_hostd::daemon::{Daemon, Host, StartOptions, Stopper};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use tempfile::TempDir;

pub struct Running {
    pub folder: TempDir,
    pub host: Arc<Host>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(config: Config) -> Running {
        Running::start_in(tempfile::tempdir().unwrap(), config)
    }

    pub fn start_in(folder: TempDir, config: Config) -> Running {
        let config = Config { listen: Some(folder.path().into()), ..config };
        let daemon = Daemon::start(config, StartOptions::default()).unwrap();
        let (host, stopper) = (daemon.host().clone(), daemon.stopper().unwrap());
        let thread = Some(std::thread::spawn(move || {
            daemon.confine();
            daemon.run().unwrap()
        }));
        Running { folder, host, stopper, thread }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn disk(&self, name: &str) -> DiskConfig {
        DiskConfig::new(name, image(&self.folder, &format!("{name}.img"), 1 << 20))
    }

    pub fn tcp(&self, kind: &str) -> SocketAddr {
        let addresses = self.host.addresses(None);
        addresses.iter().find(|(k, _)| *k == kind).unwrap().1.parse().unwrap()
    }

    pub fn ask(&self, request: &Request) -> Result<serde_json::Value, ClientError> {
        Client::connect(&self.path("control.sock")).unwrap().ask(request)
    }

    pub fn end(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        let _ = self.thread.take().map(JoinHandle::join); // it has said why it failed
    }
}

/// Any port of this computer that is free.
pub fn loopback() -> Option<SocketAddr> {
    Some("127.0.0.1:0".parse().unwrap())
}
