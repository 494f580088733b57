//! A client of our own: does what well-behaved ones do not.

use crate::common::PATIENCE;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;

pub struct Client {
    pub socket: UnixStream,
}

impl Client {
    /// Connected, and the greeting answered.
    pub fn greeted(path: &Path) -> Client {
        let mut socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
        socket.write_all(&[0, 0, 0, 3]).unwrap();
        Client { socket }
    }

    /// In the transmission phase, with simple replies.
    pub fn open(path: &Path) -> Client {
        let mut client = Client::greeted(path);
        client.socket.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        let mut reply = [0; 10];
        client.socket.read_exact(&mut reply).unwrap();
        client
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// A simple reply: error and cookie.
    pub fn reply(&mut self) -> (u32, u64) {
        let mut bytes = [0; 16];
        self.socket.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..4], [0x67, 0x44, 0x66, 0x98]);
        let error = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
        (error, u64::from_be_bytes(bytes[8..].try_into().unwrap()))
    }

    pub fn data(&mut self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.socket.read_exact(&mut data).unwrap();
        data
    }

    /// The server has hung up: nothing more comes. What still comes before is
    /// returned.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(e) => panic!("the server did not hang up: {e}"),
        }
        rest
    }
}

/// The header of a request.
pub fn request(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}
