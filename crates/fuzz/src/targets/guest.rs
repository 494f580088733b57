//! A guest's memory, small and split, and descriptors in it.

use super::input::Input;
use libc::iovec;
use seekway_hostd::frontends::vhost_user::request::Table;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

/// Two regions that touch in the guest and not here.
pub const REGION_BYTES: u64 = 0x400;
pub const END: u64 = 2 * REGION_BYTES;
/// Descriptors of the table at address 0.
pub const TABLE_LEN: u16 = 16;

pub fn memory() -> GuestMemoryMmap {
    let len = REGION_BYTES as usize;
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), len), (GuestAddress(REGION_BYTES), len)])
        .expect("memory")
}

/// The table at address 0.
pub fn table(memory: &GuestMemoryMmap) -> Table<'_> {
    let base = memory.get_host_address(GuestAddress(0)).expect("the first region");
    // SAFETY: 256 bytes, in the first region.
    unsafe { Table::new(base, TABLE_LEN) }
}

/// A copy of both regions, from guest address 0 to [`END`].
pub fn snapshot(memory: &GuestMemoryMmap) -> Vec<u8> {
    let mut bytes = vec![0; END as usize];
    memory.read_slice(&mut bytes, GuestAddress(0)).expect("all of the memory");
    bytes
}

/// The guest address of a range of host memory.
///
/// # Panics
/// It does not lie inside one region.
pub fn address(memory: &GuestMemoryMmap, base: *const u8, len: usize) -> u64 {
    let region = memory.iter().find_map(|region| {
        let offset = (base as u64).checked_sub(region.as_ptr() as u64)?;
        (offset + len as u64 <= region.len()).then(|| region.start_addr().0 + offset)
    });
    region.unwrap_or_else(|| panic!("{len} bytes at {base:p} are outside of the guest's memory"))
}

/// The guest addresses of a request's data.
pub fn addresses(memory: &GuestMemoryMmap, pieces: &[iovec]) -> Vec<(u64, u64)> {
    let place = |piece: &iovec| {
        (address(memory, piece.iov_base.cast(), piece.iov_len), piece.iov_len as u64)
    };
    pieces.iter().map(place).collect()
}

/// Writes a descriptor, of eight bytes of the input, that is likely to mean something.
pub fn put_descriptor(memory: &GuestMemoryMmap, at: u64, input: &mut Input<'_>) {
    let [how, flags, next, len, len_high, low, high, far] = input.take();
    let near = u64::from(u16::from_le_bytes([low, high])) % END;
    let address: u64 = match how & 7 {
        6 => END - u64::from(far),
        7 => u64::MAX - u64::from(far),
        _ => near,
    };
    let small = u32::from(u16::from_le_bytes([len, len_high]));
    let len: u32 = match how >> 3 & 7 {
        0..=2 => small % 0x300,
        3 => 512 * (small % 4) + 1,
        4 => 16 * (small % 24),
        5 => 512 * (small % 4),
        6 => 16,
        _ => u32::MAX - small,
    };
    let next = if how >> 6 == 3 { 0xff00 | u16::from(next) } else { u16::from(next % 20) };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12] = flags;
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    // Behind the end of memory nothing is written.
    let _ = memory.write_slice(&bytes, GuestAddress(at));
}
