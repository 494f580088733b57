//! A reactor with one disk, and a socket on which it is served.

use crate::common::acceptor::Acceptor;
use crate::common::{Rig, RigSetup, dir, image, open_image};
use seekway_hostd::frontends::vhost_user::{ConfigListeners, DiskHandle, serve, start_rings};
use seekway_hostd::images::fault::Fault;
use seekway_hostd::images::{Kept, Limits, OpenOptions};
use seekway_hostd::reactor::{Disk, Handle, Message};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use tempfile::TempDir;

/// Number of connections that have ended.
#[derive(Default)]
struct Ended(Mutex<usize>, Condvar);

/// A disk being served.
pub struct Served {
    pub image: PathBuf,
    pub socket: PathBuf,
    pub limits: Arc<Mutex<Limits>>,
    pub config_changed: Arc<ConfigListeners>,
    ended: Arc<Ended>,
    acceptor: Option<Acceptor>,
    connections: Arc<AtomicUsize>,
}

impl Served {
    /// Attach a disk of `bytes` (when the image is not there yet) and listen. One
    /// with a fault goes through the page cache.
    pub fn start(
        handle: &Handle,
        dir: &Path,
        name: &str,
        shape: Shape,
        fault: Option<&str>,
    ) -> Served {
        let (file, socket) = (format!("{name}.img"), dir.join(format!("{name}.vhost")));
        let image = match dir.join(&file) {
            there if there.exists() => there,
            _ => image(dir, &file, shape.bytes),
        };
        let (read_only, direct) = (shape.read_only, fault.is_none());
        let options = OpenOptions { read_only, direct, ..OpenOptions::writing() };
        let opened = open_image(&image, &options).unwrap();
        let limits = Arc::new(Mutex::new(*opened.limits()));
        let fault = fault.map(|f| Fault::parse(f).unwrap());
        let disk = Disk { fault, ..Disk::new(name, opened) };
        let disk = handle.ask(|r| Message::AttachDisk(Box::new(disk), r)).unwrap().unwrap();
        let config_changed = Arc::new(ConfigListeners::default());
        let served = DiskHandle {
            name: name.into(),
            disk,
            handle: handle.clone(),
            limits: {
                let limits = limits.clone();
                Arc::new(move || *limits.lock().unwrap())
            },
            config_changed: config_changed.clone(),
            image_use: Arc::new(Kept),
            queues: shape.queues,
            serial: name.into(),
            guest_memory: None,
        };
        let listener = UnixListener::bind(&socket).unwrap();
        start_rings();
        let (ended, connections) = (Arc::new(Ended::default()), Arc::new(AtomicUsize::new(0)));
        let counted = connections.clone();
        let accept = move || {
            let accepted = listener.accept();
            counted.fetch_add(1, Ordering::AcqRel);
            accepted.map(|(stream, _)| stream)
        };
        let at = socket.clone();
        let poke = move || drop(UnixStream::connect(&at));
        let serve = {
            let ended = ended.clone();
            move |stream| {
                serve(stream, served.clone());
                *ended.0.lock().unwrap() += 1;
                ended.1.notify_all();
            }
        };
        let acceptor = Some(Acceptor::start(accept, poke, serve));
        Served { image, socket, limits, config_changed, ended, acceptor, connections }
    }

    /// Contents of the image.
    pub fn image(&self) -> Vec<u8> {
        std::fs::read(&self.image).unwrap()
    }

    /// Waits until all connections made until now have ended.
    pub fn wait_idle(&self) {
        let mut ended = self.ended.0.lock().unwrap();
        while *ended < self.connections.load(Ordering::Acquire) {
            let (guard, timeout) =
                self.ended.1.wait_timeout(ended, crate::common::PATIENCE).unwrap();
            assert!(!timeout.timed_out(), "a connection does not end");
            ended = guard;
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.config_changed.disconnect();
        drop(self.acceptor.take());
        std::fs::remove_file(&self.socket).unwrap();
    }
}

/// Size, virtqueues and access of a disk to serve.
#[derive(Clone, Copy)]
pub struct Shape {
    pub bytes: u64,
    pub queues: u16,
    pub read_only: bool,
}

/// A reactor that serves one disk. The sockets go first when it is dropped.
pub struct Server {
    served: Served,
    pub rig: Rig,
    dir: PathBuf,
    _temporary: Option<TempDir>,
}

impl Server {
    pub fn start(bytes: u64, queues: u16) -> Server {
        Server::with(Shape { bytes, queues, read_only: false })
    }

    pub fn with(shape: Shape) -> Server {
        let dir = dir();
        let server = Server::at(dir.path(), shape);
        Server { _temporary: Some(dir), ..server }
    }

    /// Through the host's page cache, with this fault.
    pub fn through_page_cache(shape: Shape, fault: &str) -> Server {
        let dir = dir();
        let rig = Rig::start(RigSetup::default());
        let served = Served::start(&rig.handle, dir.path(), "disk", shape, Some(fault));
        let path = dir.path().into();
        Server { served, rig, dir: path, _temporary: Some(dir) }
    }

    /// Keep the image and the socket here.
    pub fn at(dir: &Path, shape: Shape) -> Server {
        Server::on(RigSetup::default(), dir, shape)
    }

    /// On such a reactor.
    pub fn on(setup: RigSetup<'_>, dir: &Path, shape: Shape) -> Server {
        let rig = Rig::start(setup);
        let served = Served::start(&rig.handle, dir, "disk", shape, None);
        Server { served, rig, dir: dir.into(), _temporary: None }
    }

    /// One more disk on the same reactor.
    pub fn also(&self, name: &str, shape: Shape) -> Served {
        Served::start(&self.rig.handle, &self.dir, name, shape, None)
    }
}

impl std::ops::Deref for Server {
    type Target = Served;
    fn deref(&self) -> &Served {
        &self.served
    }
}
