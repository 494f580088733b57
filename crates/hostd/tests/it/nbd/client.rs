//! A client of our own: does as little as it can, and what well-behaved ones do not.
#![allow(dead_code)] // each program uses its part

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(600);

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;

pub struct Client {
    pub socket: UnixStream,
}

impl Client {
    /// Connected, and the greeting answered.
    pub fn greeted(path: &Path) -> Client {
        Client::greet(UnixStream::connect(path).unwrap()).unwrap()
    }

    fn greet(mut socket: UnixStream) -> io::Result<Client> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting)?;
        assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
        socket.write_all(&[0, 0, 0, 3])?;
        Ok(Client { socket })
    }

    /// In the transmission phase, with simple replies.
    pub fn open(path: &Path) -> Client {
        Client::connect(path).unwrap()
    }

    pub fn connect(path: &Path) -> io::Result<Client> {
        Client::negotiate(UnixStream::connect(path)?)
    }

    /// As [`Client::connect`], with a connection that the daemon may not have taken yet.
    pub fn negotiate(socket: UnixStream) -> io::Result<Client> {
        let mut client = Client::greet(socket)?;
        client.socket.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0")?;
        client.socket.read_exact(&mut [0; 10])?;
        Ok(client)
    }

    /// The data, or the error of the reply.
    pub fn read(&mut self, offset: u64, len: u32) -> io::Result<Result<Vec<u8>, u32>> {
        self.socket.write_all(&request(READ, 0, offset, len))?;
        let (error, _) = self.try_reply()?;
        if error != 0 {
            return Ok(Err(error));
        }
        let mut data = vec![0; len as usize];
        self.socket.read_exact(&mut data)?;
        Ok(Ok(data))
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// A simple reply: error and cookie.
    pub fn reply(&mut self) -> (u32, u64) {
        self.try_reply().unwrap()
    }

    fn try_reply(&mut self) -> io::Result<(u32, u64)> {
        let mut bytes = [0; 16];
        self.socket.read_exact(&mut bytes)?;
        assert_eq!(bytes[..4], [0x67, 0x44, 0x66, 0x98]);
        let error = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
        Ok((error, u64::from_be_bytes(bytes[8..].try_into().unwrap())))
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
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
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
