//! A reactor with disks, and sockets on which they are served: what the
//! daemon's control thread does, in small.

use crate::common::acceptor::Acceptor;
use crate::common::{PATIENCE, Rig, RigSetup, dir, image};
use seekway_hostd::frontends::nbd::{Export, Exports, Only, ServeError, Stream, serve};
use seekway_hostd::images::fault::Fault;
use seekway_hostd::images::{Image, Limits, OpenOptions};
use seekway_hostd::port::DiskId;
use seekway_hostd::reactor::{CacheSetup, Disk, DiskStatus, Message};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

#[derive(Default)]
pub struct Setup<'a> {
    pub read_only: bool,
    pub cache: Option<CacheSetup>,
    pub fault: Option<&'a str>,
    pub tls: Option<Arc<rustls::ServerConfig>>,
    pub tls_required: bool,
}

pub struct Server {
    /// Dropped first: it ends all connections, so that threads of TLS sessions end.
    pub rig: Option<Rig>,
    acceptor: Option<Acceptor>,
    pub dir: TempDir,
    pub disks: Vec<Export>,
    pub errors: Arc<Mutex<Vec<ServeError>>>,
}

struct All(Vec<Export>);

impl Exports for All {
    fn find(&self, name: &str) -> Option<Export> {
        self.0.iter().find(|e| e.name == name).cloned()
    }
    fn names(&self) -> Vec<String> {
        self.0.iter().map(|e| e.name.clone()).collect()
    }
}

impl Server {
    /// A server of one disk, "disk", on a unix socket.
    pub fn one(setup: Setup<'_>) -> Server {
        let mut server = Server::empty(&setup);
        let export = server.add("disk", &setup);
        let path = server.dir.path().join("disk.nbd");
        let listener = UnixListener::bind(&path).unwrap();
        let accept = move || listener.accept().map(|(stream, _)| Stream::from(stream));
        let poke = move || drop(UnixStream::connect(&path));
        server.accept(&setup, Arc::new(Only(export)), accept, poke);
        server
    }

    /// A server of two disks, "web" and "db", over TCP; its port.
    pub fn two(setup: Setup<'_>) -> (Server, u16) {
        let mut server = Server::empty(&setup);
        let all = All(vec![server.add("web", &setup), server.add("db", &setup)]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accept = move || listener.accept().map(|(stream, _)| Stream::from(stream));
        let poke = move || drop(TcpStream::connect(address));
        server.accept(&setup, Arc::new(all), accept, poke);
        (server, address.port())
    }

    fn empty(setup: &Setup<'_>) -> Server {
        Server {
            dir: dir(),
            rig: Some(Rig::start(RigSetup { cache: setup.cache.clone(), ..RigSetup::default() })),
            disks: Vec::new(),
            errors: Arc::default(),
            acceptor: None,
        }
    }

    fn add(&mut self, name: &str, setup: &Setup<'_>) -> Export {
        let path = image(&self.dir, name, 64 * MIB);
        let options = OpenOptions { read_only: setup.read_only, ..OpenOptions::writing() };
        let image = Image::open(&path, &options).unwrap();
        let limits = *image.limits();
        let fault = setup.fault.map(|f| Fault::parse(f).unwrap());
        let name = name.to_string();
        let disk = Disk { fault, ..Disk::new(name.clone(), image) };
        let handle = self.rig().handle.clone();
        let disk = handle.ask(|r| Message::AttachDisk(Box::new(disk), r)).unwrap().unwrap();
        let asked = handle.clone();
        let limits = Arc::new(move || {
            let status = asked.ask(Message::Status).expect("the reactor runs");
            let disk = status.disks.iter().find(|d| d.id == disk).expect("attached");
            Limits { capacity_bytes: disk.capacity_bytes, ..limits }
        });
        let export = Export { name, disk, handle, limits, memory: Arc::default() };
        self.disks.push(export.clone());
        export
    }

    fn accept(
        &mut self,
        setup: &Setup<'_>,
        exports: Arc<dyn Exports>,
        accept: impl Fn() -> std::io::Result<Stream> + Send + 'static,
        poke: impl Fn() + Send + 'static,
    ) {
        let (tls, required) = (setup.tls.clone(), setup.tls_required);
        let errors = self.errors.clone();
        let serve = move |socket| {
            if let Err(error) = serve(socket, exports.clone(), tls.clone(), required) {
                errors.lock().unwrap().push(error);
            }
        };
        self.acceptor = Some(Acceptor::start(accept, poke, serve));
    }

    pub fn rig(&self) -> &Rig {
        self.rig.as_ref().expect("it runs")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("disk.nbd")
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket().display())
    }

    pub fn image(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    pub fn disk(&self, id: DiskId) -> DiskStatus {
        let status = self.rig().status();
        status.disks.into_iter().find(|d| d.id == id).expect("attached")
    }

    /// Wait until what `when` says of the first disk is true.
    pub fn wait(&self, what: &str, when: impl Fn(&DiskStatus) -> bool) {
        let start = Instant::now();
        while !when(&self.disk(self.disks[0].disk)) {
            assert!(start.elapsed() < PATIENCE, "{what} did not come about");
            std::thread::yield_now();
        }
    }

    /// No connection, and nothing under way.
    pub fn wait_idle(&self) {
        self.wait("an idle disk", |d| d.ports == 0 && d.outstanding == 0);
    }
}

/// Run a program that must succeed within a minute; what it printed.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = try_run(program, args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {}\n{out}\n{err}", output.status);
    out
}

/// Run a program that must fail, and not by the time limit; its messages.
pub fn run_failing(program: &str, args: &[&str]) -> String {
    let output = try_run(program, args);
    let code = output.status.code();
    assert!(code.is_some_and(|c| c != 0 && c != 124), "{program} {args:?}: {}", output.status);
    text(&output.stderr) + &text(&output.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn try_run(program: &str, args: &[&str]) -> Output {
    let package = match program {
        "nbdinfo" | "nbdcopy" => "libnbd-bin",
        "nbdsh" => "python3-libnbd",
        "qemu-img" | "qemu-io" | "qemu-nbd" => "qemu-utils",
        other => other,
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    assert!(found, "{program} is not installed: it is in Debian's package {package}");
    let mut command = Command::new("timeout");
    command.arg("600");
    match program {
        // The packaged module belongs to the packaged Python, and nbdsh takes
        // the first Python in the path.
        "nbdsh" => command.args(["/usr/bin/python3", "-m", "nbd"]),
        _ => command.arg(program),
    };
    command.args(args).output().unwrap()
}
