//! A client of NBD, past the negotiation: requests and replies over a real socket, cut anywhere.

use super::disk::{Disk, Notes, Write};
use super::random::Random;
use crate::frontends::nbd::{Connection, Export, Session, wire};
use seekway_testing::disk::{SECTOR_BYTES, sectors_of};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write as _};
use std::os::unix::net::UnixStream;

/// Requests without a reply at most.
const REQUESTS_MAX: usize = 16;
/// Sectors of a request at most.
const SECTORS_MAX: u64 = 24;
const SIMPLE_BYTES: usize = 16;
const CHUNK_BYTES: usize = 20;

struct Request {
    command: u16,
    first: usize,
    len: usize,
    begun: u64,
    fua: bool,
}

/// A connection's far end.
pub struct Client {
    socket: UnixStream,
    structured: bool,
    requests: BTreeMap<u64, Request>,
    /// Bytes of requests that are not sent yet.
    outgoing: Vec<u8>,
    /// Received, not understood yet.
    incoming: Vec<u8>,
    /// The server has hung up.
    pub is_gone: bool,
}

impl Client {
    /// A client, and what serves it.
    pub fn new(export: Export, structured: bool) -> (Client, Connection) {
        let (socket, served) = UnixStream::pair().expect("a pair of sockets");
        socket.set_nonblocking(true).expect("a socket");
        let session = Session { export, structured, allocation: false };
        let client = Client {
            socket,
            structured,
            requests: BTreeMap::new(),
            outgoing: Vec::new(),
            incoming: Vec::new(),
            is_gone: false,
        };
        (client, Connection::new(served.into(), &session))
    }

    /// Requests that have no answer, if anybody is there to give one.
    pub fn outstanding(&self) -> usize {
        if self.is_gone { 0 } else { self.requests.len() }
    }

    /// Ask for something, if there is not too much already.
    pub fn submit(&mut self, disk: &mut Disk, notes: &mut Notes, random: &mut Random) {
        if self.requests.len() >= REQUESTS_MAX || self.is_gone {
            return;
        }
        let (begun, id) = (notes.tick(), notes.id());
        let command = match random.below(20) {
            0..8 => wire::CMD_READ,
            8..15 => wire::CMD_WRITE,
            15..18 => wire::CMD_FLUSH,
            18 => wire::CMD_TRIM,
            _ => wire::CMD_WRITE_ZEROES,
        };
        let flush = command == wire::CMD_FLUSH;
        let len = if flush { 0 } else { 1 + random.below(SECTORS_MAX) as usize };
        let first = if flush { 0 } else { disk.place(len, random) };
        let fua = matches!(command, wire::CMD_WRITE | wire::CMD_WRITE_ZEROES) && random.once_in(4);
        let request = Request { command, first, len, begun, fua };
        disk.begin(&request.write(id), id, begun);
        self.outgoing.extend(wire::REQUEST_MAGIC.to_be_bytes());
        self.outgoing.extend(if fua { wire::CMD_FLAG_FUA } else { 0 }.to_be_bytes());
        self.outgoing.extend(command.to_be_bytes());
        self.outgoing.extend(id.to_be_bytes());
        self.outgoing.extend(((first * SECTOR_BYTES) as u64).to_be_bytes());
        self.outgoing.extend(((len * SECTOR_BYTES) as u32).to_be_bytes());
        if command == wire::CMD_WRITE {
            self.outgoing.extend(sectors_of(id, first..first + len));
        }
        self.requests.insert(id, request);
    }

    /// Send some of what there is to send.
    pub fn send(&mut self, random: &mut Random) -> bool {
        let all = self.outgoing.len();
        let some = if random.once_in(2) { all } else { random.index(all + 1) };
        match self.socket.write(&self.outgoing[..some]) {
            Ok(sent) => {
                self.outgoing.drain(..sent);
                sent > 0
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => false,
            Err(_) => {
                self.outgoing.clear();
                false
            }
        }
    }

    /// Read what has come. True if something was there.
    pub fn hear(&mut self, disk: &mut Disk, notes: &mut Notes) -> Result<bool, String> {
        let mut buffer = [0; 1 << 14];
        let mut heard = false;
        let ended = loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => break true,
                Ok(len) => self.incoming.extend_from_slice(&buffer[..len]),
                Err(e) => break e.kind() != ErrorKind::WouldBlock,
            }
            heard = true;
        };
        while self.take_reply(disk, notes)? {}
        if ended {
            self.hung_up(disk, notes);
        }
        Ok(heard)
    }

    /// Nobody answers any more: what has no reply may have been done, and will not be from now on.
    pub fn hung_up(&mut self, disk: &mut Disk, notes: &mut Notes) {
        self.is_gone = true;
        for (id, request) in std::mem::take(&mut self.requests) {
            disk.end(&request.write(id), id, notes.tick(), false, false);
        }
    }

    /// One reply, if it is there whole.
    fn take_reply(&mut self, disk: &mut Disk, notes: &mut Notes) -> Result<bool, String> {
        let bytes = &self.incoming;
        let u32_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
        if bytes.len() < SIMPLE_BYTES {
            return Ok(false);
        }
        let id = u64::from_be_bytes(bytes[8..16].try_into().expect("eight"));
        let Some(request) = self.requests.get(&id) else {
            return Err(format!("a reply to {id:#x}, which has one or was not asked for"));
        };
        let is_read = request.command == wire::CMD_READ;
        let data_bytes = request.len * SECTOR_BYTES;
        // Of a simple reply; that of a chunk is in its data.
        let mut error = u32_at(4);
        let (header, data, ok) = match u32_at(0) {
            wire::SIMPLE_REPLY_MAGIC if !(is_read && self.structured) => {
                let ok = error == 0;
                (SIMPLE_BYTES, if is_read && ok { data_bytes } else { 0 }, ok)
            }
            wire::STRUCTURED_REPLY_MAGIC if is_read && self.structured => {
                if bytes.len() < CHUNK_BYTES {
                    return Ok(false);
                }
                let ok = u16::from_be_bytes([bytes[6], bytes[7]]) == wire::REPLY_TYPE_OFFSET_DATA;
                let len = u32_at(16) as usize;
                if ok && len != 8 + data_bytes {
                    return Err(format!("a reply to {id:#x} of {len} bytes"));
                }
                (if ok { CHUNK_BYTES + 8 } else { CHUNK_BYTES }, len - if ok { 8 } else { 0 }, ok)
            }
            other => return Err(format!("a reply to {id:#x} that begins with {other:#x}")),
        };
        if bytes.len() < header + data {
            return Ok(false);
        }
        if header == CHUNK_BYTES {
            error = u32_at(CHUNK_BYTES);
        }
        let data: Vec<u8> = self.incoming.drain(..header + data).skip(header).collect();
        let request = self.requests.remove(&id).expect("as found");
        let syncs = request.fua || request.command == wire::CMD_FLUSH;
        let is_abandoned = disk.leaves && error == libc::ESHUTDOWN as u32;
        if !ok && !is_abandoned && !disk.may_fail(syncs) {
            return Err(format!("request {id:#x} failed with {error}"));
        }
        let now = notes.tick();
        disk.end(&request.write(id), id, now, ok, request.fua);
        match request.command {
            wire::CMD_FLUSH if ok => disk.flushed(request.begun)?,
            // It was not tried.
            wire::CMD_FLUSH if is_abandoned => {}
            wire::CMD_FLUSH => disk.flush_failed(request.begun, now),
            wire::CMD_READ if ok => disk.check(request.first, &data, request.begun)?,
            _ => {}
        }
        Ok(true)
    }
}

impl Request {
    fn write(&self, id: u64) -> Write {
        let sectors = self.first..self.first + self.len;
        match self.command {
            wire::CMD_WRITE => Write { sectors, stamp: id, certain: true },
            wire::CMD_WRITE_ZEROES => Write { sectors, stamp: 0, certain: true },
            wire::CMD_TRIM => Write { sectors, stamp: 0, certain: false },
            _ => Write { sectors: 0..0, stamp: 0, certain: false },
        }
    }
}
