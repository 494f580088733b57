//! A client of NBD that does as little as it can.
#![allow(dead_code)] // each test file uses its part

use super::daemon::PATIENCE;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// In the transmission phase, with simple replies.
pub struct Nbd(UnixStream);

impl Nbd {
    pub fn connect(path: &Path) -> io::Result<Nbd> {
        Nbd::negotiate(UnixStream::connect(path)?)
    }

    /// The same with a connection that the daemon may not have taken yet.
    pub fn negotiate(mut socket: UnixStream) -> io::Result<Nbd> {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting)?;
        assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
        socket.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0")?;
        socket.read_exact(&mut [0; 10])?;
        Ok(Nbd(socket))
    }

    /// The data, or the error of the reply.
    pub fn read(&mut self, offset: u64, len: u32) -> io::Result<Result<Vec<u8>, u32>> {
        let mut request = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0];
        request.extend([0; 8]);
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        self.0.write_all(&request)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        let error = u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]);
        if error != 0 {
            return Ok(Err(error));
        }
        let mut data = vec![0; len as usize];
        self.0.read_exact(&mut data)?;
        Ok(Ok(data))
    }
}
