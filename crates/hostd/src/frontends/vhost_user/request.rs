//! Parses descriptor chains: the chain is walked once, each field is read once, and nothing is
//! carried out. Pure over guest memory; the guest may have written anything.
//!
//! The framing is free (VIRTIO 1.2, 2.7.4): the request's header is the first
//! 16 readable bytes, its status the last writable byte, however the chain cuts
//! them. A chain that cannot be walked is [`BrokenChain`]: the ring that it came
//! from means nothing any more. A chain that can be walked and asks nonsense is
//! a [`Request`] with [`Ask::Refuse`].

use libc::iovec;
use seekway_core::request::Op;
use std::cmp::Ordering;
use std::ffi::c_void;
use std::marker::PhantomData;
use virtio_bindings::virtio_blk as blk;
use virtio_bindings::virtio_ring as vring;
use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};

/// The unit of sectors and capacities of virtio-blk, whatever the block size.
pub const SECTOR_BYTES: u64 = 512;
/// Most descriptors of one chain, an indirect table's included, and most pieces
/// of host memory: what one vectored I/O takes, with header and status.
pub const CHAIN_MAX: usize = 1024 + 2;
/// Most sectors of one discard (1 GiB).
pub const DISCARD_SECTORS_MAX: u32 = 1 << 21;
/// Most sectors of one write-zeroes (64 MiB): a file system that cannot punch
/// holes writes them.
pub const WRITE_ZEROES_SECTORS_MAX: u32 = 1 << 17;

/// The header: type, ioprio, sector (VIRTIO 1.2, 5.2.6).
const HEADER_BYTES: usize = 16;
/// One segment of a discard or write-zeroes: sector, sectors, flags.
const SEGMENT_BYTES: usize = 16;
/// A descriptor: address, length, flags, next.
const DESCRIPTOR_BYTES: usize = 16;

/// Status: the request was carried out (VIRTIO 1.2, 5.2.6).
pub const STATUS_OK: u8 = blk::VIRTIO_BLK_S_OK as u8;
/// Status: the request failed or makes no sense (VIRTIO 1.2, 5.2.6).
pub const STATUS_IOERR: u8 = blk::VIRTIO_BLK_S_IOERR as u8;
/// Status: the device does not do this.
pub const STATUS_UNSUPP: u8 = blk::VIRTIO_BLK_S_UNSUPP as u8;

/// Why a chain cannot be walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BrokenChain {
    /// A loop, or more than [`CHAIN_MAX`].
    #[error("a descriptor chain of more than {CHAIN_MAX} pieces, or a loop")]
    TooLong,
    /// A descriptor's number is not below the size of its table.
    #[error("descriptor {0} does not exist")]
    Index(u16),
    /// VIRTIO 1.2, 2.7.5.3.1: a table that a driver must not make.
    #[error("an indirect table that is empty, cut short, inside another, or followed by more")]
    Indirect,
    /// No memory of the guest there.
    #[error("no guest memory at {0:#x}")]
    Address(u64),
    /// VIRTIO 1.2, 2.7.4.2: readable parts come before writable ones.
    #[error("a readable descriptor behind a writable one")]
    Order,
    /// VIRTIO 1.2, 2.7.5.2: at most 2^32 bytes in one chain.
    #[error("a descriptor chain of more than 4 GiB")]
    TooLarge,
}

/// The operation of a request. Offsets and lengths are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// An operation for the engine.
    Carry {
        /// Read, write, discard or another one.
        op: Op,
        /// Where in the image; 0 for a flush.
        offset: u64,
        /// Length, a positive multiple of 512; 0 for a flush.
        len: u64,
        /// A write-zeroes may deallocate.
        unmap: bool,
    },
    /// Write the disk's serial number into the data, at most 20 bytes.
    Identify,
    /// Answer with this status and do nothing.
    Refuse(u8),
}

/// A chain that was walked. Its data is in the pieces that [`parse`] filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The operation.
    pub ask: Ask,
    /// The I/O priority in its header.
    pub priority: u32,
    /// Where the status goes, in host memory; `None` when the chain has no writable byte.
    pub status: Option<*mut u8>,
    /// Address of the status in the guest's memory.
    pub status_address: u64,
    /// Writable bytes, the status included: what the used ring is told.
    pub writable_len: u32,
    /// Descriptors that were read.
    pub descriptors: u32,
}

/// A table of descriptors in host memory.
#[derive(Clone, Copy)]
pub struct Table<'m> {
    base: *const [u8; DESCRIPTOR_BYTES],
    len: u16,
    memory: PhantomData<&'m GuestMemoryMmap>,
}

impl<'m> Table<'m> {
    /// A table of `len` descriptors.
    ///
    /// # Safety
    /// `16 * len` bytes from `base` are mapped for reading while `'m` lasts.
    pub unsafe fn new(base: *const u8, len: u16) -> Self {
        Table { base: base.cast(), len, memory: PhantomData }
    }

    /// The table that an indirect descriptor names. It lies in one region of
    /// memory, as all that drivers allocate does.
    fn indirect(memory: &'m GuestMemoryMmap, at: &Descriptor) -> Result<Self, BrokenChain> {
        let bytes = at.len as usize;
        if bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(BrokenChain::Indirect);
        }
        let len = u16::try_from(bytes / DESCRIPTOR_BYTES).map_err(|_| BrokenChain::Indirect)?;
        let (base, room) = place(memory, at.address)?;
        if room < bytes as u64 {
            return Err(BrokenChain::Address(at.address));
        }
        // SAFETY: `place` found `room` mapped bytes, which live as long as `memory`.
        Ok(unsafe { Table::new(base, len) })
    }

    fn get(&self, index: u16) -> Result<Descriptor, BrokenChain> {
        if index >= self.len {
            return Err(BrokenChain::Index(index));
        }
        // SAFETY: inside the table, which is mapped; an array of bytes needs no
        // alignment. Volatile: the guest may write at the same time, and what has
        // been checked must be what is used.
        let raw = unsafe { self.base.add(usize::from(index)).read_volatile() };
        Ok(Descriptor {
            address: le64(&raw[0..8]),
            len: le32(&raw[8..12]),
            flags: u16::from_le_bytes([raw[12], raw[13]]),
            next: u16::from_le_bytes([raw[14], raw[15]]),
        })
    }
}

struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn is(&self, flag: u32) -> bool {
        u32::from(self.flags) & flag != 0
    }
}

/// Read the chain that begins at `head`. `pieces` is cleared, and then holds the
/// host memory of the request's data: nothing for a flush, discard or
/// write-zeroes, else as many bytes as [`Ask`] says.
pub fn parse(
    memory: &GuestMemoryMmap,
    table: Table<'_>,
    head: u16,
    pieces: &mut Vec<iovec>,
) -> Result<Request, BrokenChain> {
    pieces.clear();
    let mut walk = Walk {
        memory,
        pieces,
        header: [0; HEADER_BYTES],
        header_len: 0,
        bytes: 0,
        readable_data: 0,
        writable: 0,
        first_writable: None,
        status_address: 0,
    };
    let descriptors = walk_chain(memory, table, head, |descriptor| walk.take(descriptor))?;
    Ok(walk.finish(descriptors))
}

/// Where the first `len` writable bytes of the chain that begins at `head` are in guest memory, in
/// pieces of address and length, as far as the chain can be walked.
pub fn writable(
    memory: &GuestMemoryMmap,
    table: Table<'_>,
    head: u16,
    len: u32,
    mut piece: impl FnMut(u64, u32),
) {
    let mut left = len;
    // The chain was walked before. A guest that has changed it since harms itself, and the pieces
    // are no more bytes than were asked for.
    let _ = walk_chain(memory, table, head, |descriptor| {
        if descriptor.is(vring::VRING_DESC_F_WRITE) {
            let len = left.min(descriptor.len);
            piece(descriptor.address, len);
            left -= len;
        }
        // Whatever the error: it ends the walk.
        if left == 0 { Err(BrokenChain::TooLarge) } else { Ok(()) }
    });
}

/// Call `take` with each descriptor of the chain that begins at `head`. Returns how many there
/// are.
fn walk_chain(
    memory: &GuestMemoryMmap,
    table: Table<'_>,
    head: u16,
    mut take: impl FnMut(&Descriptor) -> Result<(), BrokenChain>,
) -> Result<u32, BrokenChain> {
    let (mut table, mut index, mut is_indirect) = (table, head, false);
    for descriptors in 1..=CHAIN_MAX as u32 {
        let descriptor = table.get(index)?;
        if descriptor.is(vring::VRING_DESC_F_INDIRECT) {
            if is_indirect || descriptor.is(vring::VRING_DESC_F_NEXT) {
                return Err(BrokenChain::Indirect);
            }
            (table, index, is_indirect) = (Table::indirect(memory, &descriptor)?, 0, true);
            continue;
        }
        take(&descriptor)?;
        if !descriptor.is(vring::VRING_DESC_F_NEXT) {
            return Ok(descriptors);
        }
        index = descriptor.next;
    }
    Err(BrokenChain::TooLong)
}

/// A chain in the middle of being read.
struct Walk<'a> {
    memory: &'a GuestMemoryMmap,
    /// All bytes behind the header.
    pieces: &'a mut Vec<iovec>,
    header: [u8; HEADER_BYTES],
    header_len: usize,
    /// Bytes up to now, header and status included.
    bytes: u32,
    /// Readable bytes behind the header.
    readable_data: u32,
    writable: u32,
    /// Index of the first writable piece.
    first_writable: Option<usize>,
    /// Address of the last writable byte, when there is one.
    status_address: u64,
}

impl Walk<'_> {
    fn take(&mut self, descriptor: &Descriptor) -> Result<(), BrokenChain> {
        let (mut address, mut len) = (descriptor.address, descriptor.len);
        self.bytes = self.bytes.checked_add(len).ok_or(BrokenChain::TooLarge)?;
        if descriptor.is(vring::VRING_DESC_F_WRITE) {
            self.writable += len;
            self.first_writable.get_or_insert(self.pieces.len());
            if let Some(beyond_first) = len.checked_sub(1) {
                // It does not overflow where there is memory, which `push` sees.
                self.status_address = address.wrapping_add(u64::from(beyond_first));
            }
        } else {
            if self.first_writable.is_some() {
                return Err(BrokenChain::Order);
            }
            if self.header_len < HEADER_BYTES && len > 0 {
                let n = (HEADER_BYTES - self.header_len).min(len as usize);
                let part = &mut self.header[self.header_len..self.header_len + n];
                read(self.memory, address, part)?;
                self.header_len += n;
                len -= n as u32;
                address += n as u64;
            }
            self.readable_data += len;
        }
        self.push(address, len)
    }

    /// Add guest memory to the pieces: one for each region that it lies in.
    fn push(&mut self, mut address: u64, len: u32) -> Result<(), BrokenChain> {
        let mut left = u64::from(len);
        while left > 0 {
            let (base, room) = place(self.memory, address)?;
            let n = left.min(room);
            if self.pieces.len() == CHAIN_MAX {
                return Err(BrokenChain::TooLong);
            }
            self.pieces.push(iovec { iov_base: base.cast::<c_void>(), iov_len: n as usize });
            left -= n;
            // Cannot overflow: no region reaches past 2^64 - 1.
            address += n;
        }
        Ok(())
    }

    fn finish(mut self, descriptors: u32) -> Request {
        let status = self.take_status();
        let priority = le32(&self.header[4..8]);
        let ask = match status {
            Some(_) if self.header_len == HEADER_BYTES => self.ask(),
            _ => Ask::Refuse(STATUS_IOERR),
        };
        let (status_address, writable_len) = (self.status_address, self.writable);
        Request { ask, priority, status, status_address, writable_len, descriptors }
    }

    /// Cut the status off the end of the pieces.
    fn take_status(&mut self) -> Option<*mut u8> {
        if self.writable == 0 {
            return None;
        }
        let last = self.pieces.last_mut()?;
        last.iov_len -= 1;
        // SAFETY: the piece had at least one byte, and its last one is still mapped.
        let status = unsafe { last.iov_base.cast::<u8>().add(last.iov_len) };
        if last.iov_len == 0 {
            self.pieces.pop();
        }
        Some(status)
    }

    fn ask(&mut self) -> Ask {
        let sector = le64(&self.header[8..16]);
        let split = self.first_writable.unwrap_or(self.pieces.len());
        match le32(&self.header[0..4]) {
            blk::VIRTIO_BLK_T_IN => {
                self.pieces.drain(..split);
                carry(Op::Read, sector, u64::from(self.writable - 1), false)
            }
            blk::VIRTIO_BLK_T_OUT => {
                self.pieces.truncate(split);
                carry(Op::Write, sector, u64::from(self.readable_data), false)
            }
            blk::VIRTIO_BLK_T_FLUSH => {
                self.pieces.clear();
                Ask::Carry { op: Op::Flush, offset: 0, len: 0, unmap: false }
            }
            blk::VIRTIO_BLK_T_GET_ID => {
                self.pieces.drain(..split);
                Ask::Identify
            }
            blk::VIRTIO_BLK_T_DISCARD => self.segment(Op::Discard, split),
            blk::VIRTIO_BLK_T_WRITE_ZEROES => self.segment(Op::WriteZeroes, split),
            _ => Ask::Refuse(STATUS_UNSUPP),
        }
    }

    /// The one segment of a discard or write-zeroes (VIRTIO 1.2, 5.2.6.2: flags
    /// that are not understood are VIRTIO_BLK_S_UNSUPP).
    fn segment(&mut self, op: Op, split: usize) -> Ask {
        self.pieces.truncate(split);
        let mut raw = [0; SEGMENT_BYTES];
        gather(self.pieces, &mut raw);
        self.pieces.clear();
        match (self.readable_data as usize).cmp(&SEGMENT_BYTES) {
            // Several segments, of which one was offered: QEMU's answer, too.
            Ordering::Greater => return Ask::Refuse(STATUS_UNSUPP),
            Ordering::Less => return Ask::Refuse(STATUS_IOERR),
            Ordering::Equal => {}
        }
        let (sector, sectors, flags) = (le64(&raw[0..8]), le32(&raw[8..12]), le32(&raw[12..16]));
        let (max, known) = match op {
            Op::WriteZeroes => (WRITE_ZEROES_SECTORS_MAX, blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP),
            _ => (DISCARD_SECTORS_MAX, 0),
        };
        if flags & !known != 0 {
            return Ask::Refuse(STATUS_UNSUPP);
        }
        if sectors > max {
            return Ask::Refuse(STATUS_IOERR);
        }
        carry(op, sector, u64::from(sectors) * SECTOR_BYTES, flags != 0)
    }
}

/// The operation, when its range makes sense. Whether the image has it is the reactor's to say.
fn carry(op: Op, sector: u64, len: u64, unmap: bool) -> Ask {
    match sector.checked_mul(SECTOR_BYTES) {
        Some(offset)
            if offset.checked_add(len).is_some() && len > 0 && len.is_multiple_of(SECTOR_BYTES) =>
        {
            Ask::Carry { op, offset, len, unmap }
        }
        _ => Ask::Refuse(STATUS_IOERR),
    }
}

/// Where a guest address is in host memory, and how many bytes follow in its region.
fn place(memory: &GuestMemoryMmap, address: u64) -> Result<(*mut u8, u64), BrokenChain> {
    let region: &GuestRegionMmap =
        memory.find_region(GuestAddress(address)).ok_or(BrokenChain::Address(address))?;
    let offset = address - region.start_addr().0;
    // SAFETY: the region contains the address.
    let base = unsafe { region.as_ptr().add(offset as usize) };
    Ok((base, region.len() - offset))
}

/// Copy from guest memory.
fn read(memory: &GuestMemoryMmap, address: u64, to: &mut [u8]) -> Result<(), BrokenChain> {
    if to.len() == HEADER_BYTES {
        // The usual case, in one load.
        let (base, room) = place(memory, address)?;
        if room >= HEADER_BYTES as u64 {
            // SAFETY: `room` bytes are mapped; an array of bytes needs no alignment.
            let raw = unsafe { base.cast::<[u8; HEADER_BYTES]>().read_volatile() };
            to.copy_from_slice(&raw);
            return Ok(());
        }
    }
    memory.read_slice(to, GuestAddress(address)).map_err(|_| BrokenChain::Address(address))
}

/// Copy from host memory of the guest, as much as there is.
fn gather(pieces: &[iovec], to: &mut [u8]) {
    let mut to = to.iter_mut();
    for piece in pieces {
        for (i, byte) in (0..piece.iov_len).zip(&mut to) {
            // SAFETY: inside the piece, which is mapped.
            *byte = unsafe { piece.iov_base.cast::<u8>().add(i).read_volatile() };
        }
    }
}

/// Copy to host memory of the guest, as much as fits.
pub fn scatter(pieces: &[iovec], from: &[u8]) {
    let mut from = from.iter();
    for piece in pieces {
        for (i, byte) in (0..piece.iov_len).zip(&mut from) {
            // SAFETY: inside the piece, which is mapped.
            unsafe { piece.iov_base.cast::<u8>().add(i).write_volatile(*byte) };
        }
    }
}

fn le64(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &b| value << 8 | u64::from(b))
}

fn le32(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |value, &b| value << 8 | u32::from(b))
}

#[cfg(test)]
mod tests;
