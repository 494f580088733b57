//! A reactor with one disk, and a socket on which it is served.

use crate::common::{Rig, RigSetup, dir, image, open_image};
use seekway_hostd::frontends::vhost_user::{ConfigListeners, DiskHandle, serve, start_rings};
use seekway_hostd::images::fault::Fault;
use seekway_hostd::images::{Kept, Limits, OpenOptions};
use seekway_hostd::reactor::{Disk, Handle, Message};
use seekway_hostd::sandbox::{Kind, enter};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use tempfile::TempDir;

/// How many connections have ended.
#[derive(Default)]
struct Ended(Mutex<usize>, Condvar);

/// A disk being served.
pub struct Served {
    pub image: PathBuf,
    pub socket: PathBuf,
    pub limits: Arc<Mutex<Limits>>,
    pub config_changed: Arc<ConfigListeners>,
    ended: Arc<Ended>,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
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
            guest_memory: None,
        };
        let listener = UnixListener::bind(&socket).unwrap();
        start_rings();
        let (ended, stop) = (Arc::new(Ended::default()), Arc::new(AtomicBool::new(false)));
        let connections = Arc::new(AtomicUsize::new(0));
        let accepting = {
            let (ended, stop, connections) = (ended.clone(), stop.clone(), connections.clone());
            thread::spawn(move || {
                let mut threads = Vec::new();
                while let Ok((stream, _)) = listener.accept() {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    connections.fetch_add(1, Ordering::AcqRel);
                    let (served, ended) = (served.clone(), ended.clone());
                    threads.push(thread::spawn(move || {
                        enter(Kind::FrontEnd); // as in the daemon
                        serve(stream, served);
                        *ended.0.lock().unwrap() += 1;
                        ended.1.notify_all();
                    }));
                }
                threads.into_iter().for_each(|t| t.join().expect("a connection ended well"));
            })
        };
        Served {
            image,
            socket,
            limits,
            config_changed,
            ended,
            stop,
            accepting: Some(accepting),
            connections,
        }
    }

    /// What is in the image.
    pub fn image(&self) -> Vec<u8> {
        std::fs::read(&self.image).unwrap()
    }

    /// Wait until all connections made so far have ended.
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
        self.stop.store(true, Ordering::Release);
        self.config_changed.disconnect();
        let _ = std::os::unix::net::UnixStream::connect(&self.socket);
        let joined = self.accepting.take().unwrap().join();
        if !thread::panicking() {
            joined.expect("the listener ended well");
        }
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

/// A reactor that serves one disk.
pub struct Server {
    served: Option<Served>,
    rig: Option<Rig>,
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
        Server { served: Some(served), rig: Some(rig), dir: path, _temporary: Some(dir) }
    }

    /// Keep the image and the socket here.
    pub fn at(dir: &Path, shape: Shape) -> Server {
        Server::on(RigSetup::default(), dir, shape)
    }

    /// On such a reactor.
    pub fn on(setup: RigSetup<'_>, dir: &Path, shape: Shape) -> Server {
        let rig = Rig::start(setup);
        let served = Served::start(&rig.handle, dir, "disk", shape, None);
        Server { served: Some(served), rig: Some(rig), dir: dir.into(), _temporary: None }
    }

    /// One more disk on the same reactor.
    pub fn also(&self, name: &str, shape: Shape) -> Served {
        Served::start(&self.rig().handle, &self.dir, name, shape, None)
    }

    pub fn rig(&self) -> &Rig {
        self.rig.as_ref().unwrap()
    }

    /// End, and see that all ended well.
    pub fn stop(mut self) {
        drop(self.served.take());
        self.rig.take().unwrap().stop();
    }
}

impl std::ops::Deref for Server {
    type Target = Served;
    fn deref(&self) -> &Served {
        self.served.as_ref().unwrap()
    }
}
