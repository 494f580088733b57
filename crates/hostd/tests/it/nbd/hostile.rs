//! Garbage before the requests: the connection ends, the server does not. Garbage among them is for
//! the fuzz target `nbd_session`.

use super::client::{Client, READ, WRITE, request};
use super::server::{Server, Setup};
use crate::common::pattern;
use seekway_hostd::frontends::nbd::{Export, Exports, serve};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// The server still serves.
fn unharmed(server: &Server) {
    let mut client = Client::open(&server.socket());
    client.send(&request(READ, 3, 0, 512));
    assert_eq!(client.reply(), (0, 3));
    assert_eq!(client.data(512), vec![0; 512]);
}

#[test]
fn garbage_instead_of_a_negotiation() {
    let server = Server::one(Setup::default());
    for seed in 0..32 {
        let mut socket = UnixStream::connect(server.socket()).unwrap();
        // An error means that the server has hung up already.
        let _ = socket.write_all(&pattern(seed, 4000));
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut client = Client { socket };
        assert!(client.rest().len() <= 18);
    }
    unharmed(&server);
    let errors = server.errors.lock().unwrap();
    assert!(errors.iter().any(|e| e.to_string().contains("flags")), "{errors:?}");
}

#[test]
fn garbage_instead_of_options() {
    let server = Server::one(Setup::default());
    for seed in 0..64 {
        let mut client = Client::greeted(&server.socket());
        let mut bytes = b"IHAVEOPT\0\0\0".to_vec();
        bytes.push(seed as u8 % 12);
        bytes.extend(((seed as u32 % 7) * 3).to_be_bytes());
        bytes.extend(pattern(seed, 500));
        let _ = client.socket.write_all(&bytes);
        let _ = client.socket.shutdown(std::net::Shutdown::Write);
        client.rest();
    }
    // An option longer than any.
    let mut client = Client::greeted(&server.socket());
    client.send(b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff");
    assert!(client.rest().is_empty());
    unharmed(&server);
}

#[test]
fn a_client_that_stalls_stalls_nobody_else() {
    let server = Server::one(Setup::default());
    let stalled: Vec<Client> = (0..8).map(|_| Client::greeted(&server.socket())).collect();
    let mut half = Client::open(&server.socket());
    half.send(&request(WRITE, 1, 0, 1 << 20)[..20]);
    unharmed(&server);
    drop((stalled, half));
    server.wait_idle();
}

/// Tells which thread drops it.
struct Held(Sender<Option<String>>);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().name().map(str::to_string));
    }
}

/// An export for one client.
struct Once(Mutex<Option<Export>>);

impl Exports for Once {
    fn find(&self, _name: &str) -> Option<Export> {
        self.0.lock().unwrap().take()
    }
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Freeing what a connection holds may wait for a file system: no reactor does that.
#[test]
fn a_connection_is_taken_down_by_its_own_thread() {
    let server = Server::one(Setup::default());
    let (told, dropped_by) = channel();
    let (export, held) = (server.disks[0].clone(), Held(told));
    let limits = export.limits.clone();
    let limits = Arc::new(move || {
        let _held = &held;
        limits()
    });
    let exports = Arc::new(Once(Mutex::new(Some(Export { limits, ..export }))));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let session = thread::Builder::new().name("session".into());
    let session = session.spawn(move || serve(theirs, exports, None, false)).unwrap();
    drop(Client::negotiate(ours).unwrap());
    session.join().unwrap().unwrap();
    assert_eq!(dropped_by.recv().unwrap().as_deref(), Some("session"));
}
