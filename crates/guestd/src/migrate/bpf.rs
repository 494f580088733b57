//! Loads the programs of `crates/guestd/bpf` into the running kernel, and names what is missing
//! where that fails.
//!
//! The crate libbpf-rs does the long and error-prone part: it finds the fields that the programs
//! read in this kernel's BTF and patches the instructions (CO-RE).

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{DataSec, Var};
use libbpf_rs::{
    ErrorKind, Link, Map, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject,
    PrintLevel, ProgramInput,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::Mutex;

/// Why a program could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel was built without it.
    #[error(
        "BPF needs the kernel's types in /sys/kernel/btf/vmlinux: {0} (a kernel with \
         CONFIG_DEBUG_INFO_BTF has them, with /sys mounted)"
    )]
    NoTypes(io::Error),
    /// This process lacks these capabilities: CAP_BPF, CAP_PERFMON, or both.
    #[error("loading BPF programs needs {0}")]
    Forbidden(String),
    /// This process runs in another PID namespace, for example in a container.
    #[error(
        "BPF programs know processes by their numbers in the initial PID namespace, and this \
         process is in another"
    )]
    OtherNumbers,
    /// Another error of the kernel or libbpf.
    #[error("load BPF program '{name}': {error}{said}")]
    Refused {
        name: &'static str,
        error: libbpf_rs::Error,
        /// Messages of libbpf, or nothing.
        said: String,
    },
    /// The kernel's memory could not be mapped.
    #[error("map the memory of BPF map '{name}': {error}")]
    Map { name: &'static str, error: io::Error },
    /// The requested thing does not exist.
    #[error("{0}")]
    Absent(String),
}

/// Programs at work. Dropping it takes them out of the kernel.
#[derive(Debug)]
pub struct Loaded {
    name: &'static str,
    object: Object,
    links: Vec<Link>,
}

/// The running kernel's, of itself.
const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// The section of programs that are attached nowhere.
const BY_HAND: &str = "raw_tp";

/// Messages of libbpf, which go into the error and not to the terminal.
static SAID: Mutex<String> = Mutex::new(String::new());
const SAID_BYTES_MAX: usize = 2000;

fn listen(level: PrintLevel, message: String) {
    if level != PrintLevel::Debug
        && let Ok(mut said) = SAID.lock()
        && said.len() + message.len() <= SAID_BYTES_MAX
    {
        said.push_str("; ");
        said.push_str(message.trim());
    }
}

/// Checks that BPF programs and this process use the same process numbers. Otherwise the agent
/// would change the affinity of unrelated threads.
///
/// # Errors
/// [`BpfError::OtherNumbers`]: this process is not in the initial PID namespace, or has no /proc.
pub fn check_numbers() -> Result<(), BpfError> {
    /// Inode of the initial PID namespace: `PROC_PID_INIT_INO` (include/linux/proc_ns.h).
    const INITIAL: u64 = 0xefff_fffc;
    match std::fs::metadata("/proc/self/ns/pid") {
        Ok(namespace) if namespace.ino() == INITIAL => Ok(()),
        _ => Err(BpfError::OtherNumbers),
    }
}

/// Loads an object's programs. `prepare` may set constants. Nothing runs before it is attached.
///
/// # Errors
/// As [`BpfError`] has it.
pub fn load(
    name: &'static str,
    bytes: &[u8],
    prepare: impl FnOnce(&mut OpenObject) -> Result<(), BpfError>,
) -> Result<Loaded, BpfError> {
    File::open(TYPES).map_err(BpfError::NoTypes)?;
    libbpf_rs::set_print(Some((PrintLevel::Info, listen)));
    let refused = |error| refused(name, error);
    let mut open = ObjectBuilder::default().open_memory(bytes).map_err(refused)?;
    prepare(&mut open)?;
    Ok(Loaded { name, links: Vec::new(), object: open.load().map_err(refused)? })
}

fn refused(name: &'static str, error: libbpf_rs::Error) -> BpfError {
    let said = SAID.lock().map(|mut said| std::mem::take(&mut *said)).unwrap_or_default();
    match missing_capabilities() {
        Some(missing) if error.kind() == ErrorKind::PermissionDenied => {
            BpfError::Forbidden(missing)
        }
        _ => BpfError::Refused { name, error, said },
    }
}

impl Loaded {
    /// Attaches the programs, but for those that are run by hand.
    ///
    /// # Errors
    /// As [`BpfError`] has it.
    pub fn attach(&mut self) -> Result<(), BpfError> {
        let attached = self.object.progs_mut().filter(|p| p.section() != BY_HAND);
        let links: Result<Vec<Link>, _> = attached.map(|program| program.attach()).collect();
        self.links = links.map_err(|error| refused(self.name, error))?;
        Ok(())
    }

    /// From now on none runs.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    /// Make an array of zeroes of a map.
    ///
    /// # Errors
    /// There is no such map, or it is not to be written.
    pub fn clear(&self, name: &'static str) -> Result<(), BpfError> {
        let map = self.map_called(name)?;
        let zeroes = vec![0; map.value_size() as usize];
        (0..map.max_entries())
            .try_for_each(|key| map.update(&key.to_ne_bytes(), &zeroes, MapFlags::ANY))
            .map_err(|error| refused(self.name, error))
    }

    /// Run a program by hand, on the CPU that this thread is on; its answer.
    ///
    /// # Errors
    /// There is none of that name, or the kernel refuses to run it.
    pub fn run(&self, name: &'static str) -> Result<u32, BpfError> {
        let absent = || BpfError::Absent(format!("BPF object '{}' has no '{name}'", self.name));
        let program = self.object.progs_mut().find(|p| p.name() == name).ok_or_else(absent)?;
        let answer = program.test_run(ProgramInput::default());
        Ok(answer.map_err(|error| refused(self.name, error))?.return_value)
    }

    /// The programs, with their costs if the kernel counts them (kernel.bpf_stats_enabled).
    #[cfg(test)]
    pub fn costs(&self) -> Vec<Cost> {
        let cost = |program: ProgramMut<'_>| {
            let mut info = libbpf_sys::bpf_prog_info::default();
            let mut len = size_of_val(&info) as u32;
            let fd = program.as_fd().as_raw_fd();
            // SAFETY: the buffer has the given length, and asks for no lists.
            let got = unsafe {
                libbpf_sys::bpf_obj_get_info_by_fd(fd, (&raw mut info).cast(), &raw mut len)
            };
            assert_eq!(got, 0);
            let name = program.name().to_string_lossy().into_owned();
            Cost { name, runs: info.run_cnt, ns: info.run_time_ns }
        };
        self.object.progs_mut().map(cost).collect()
    }

    /// Put the descriptor of a map into a map of maps.
    ///
    /// # Errors
    /// There is no such map, or it takes none of that kind.
    pub fn put(&self, name: &'static str, key: u32, inner: &MapHandle) -> Result<(), BpfError> {
        let fd = inner.as_fd().as_raw_fd().to_ne_bytes();
        let put = self.map_called(name)?.update(&key.to_ne_bytes(), &fd, MapFlags::ANY);
        put.map_err(|error| refused(self.name, error))
    }

    /// An array map's memory, shared with the programs, as records of `T`.
    ///
    /// # Errors
    /// There is no such map, or it is not of such records.
    pub fn map<T: Plain>(&self, name: &'static str) -> Result<Mapped<T>, BpfError> {
        let map = self.map_called(name)?;
        if map.value_size() as usize != size_of::<T>() {
            return Err(BpfError::Absent(format!("BPF map '{name}' has records of another size")));
        }
        let len = map.max_entries() as usize;
        Mapped::new(map.as_fd().as_raw_fd(), len).map_err(|error| BpfError::Map { name, error })
    }

    fn map_called(&self, name: &str) -> Result<Map<'_>, BpfError> {
        let found = self.object.maps().find(|map| map.name() == name);
        found.ok_or_else(|| {
            BpfError::Absent(format!("BPF object '{}' has no map '{name}'", self.name))
        })
    }
}

/// Cost of a program.
#[cfg(test)]
#[derive(Debug)]
pub struct Cost {
    pub name: String,
    /// Number of runs.
    pub runs: u64,
    /// All its runs together.
    pub ns: u64,
}

/// Sets the object's only constant, which loading fixes.
///
/// # Errors
/// When the object has no constant of that size.
pub fn set_constant(open: &mut OpenObject, bytes: &[u8]) -> Result<(), BpfError> {
    let constants = |name: &OsStr| name.to_string_lossy().ends_with(".rodata");
    let mut found = open.maps_mut().find(|map| constants(map.name()));
    match found.as_mut().and_then(|map| map.initial_value_mut()) {
        Some(value) if value.len() == bytes.len() => value.copy_from_slice(bytes),
        _ => return Err(BpfError::Absent("the BPF object has another constant".into())),
    }
    Ok(())
}

/// Distance in bytes from the kernel's per-CPU variable `from` to `to`, by its BTF.
///
/// # Errors
/// The kernel has not got them both.
pub fn distance(from: &str, to: &str) -> Result<u64, BpfError> {
    let types = Btf::from_vmlinux().map_err(|error| refused("vmlinux", error))?;
    let offset = |name: &str| {
        types.type_by_kind::<DataSec<'_>>().find_map(|section| {
            section.iter().find_map(|var| {
                let named = types.type_by_id::<Var<'_>>(var.ty)?.name()? == name;
                named.then_some(var.offset)
            })
        })
    };
    let absent = |name: &str| BpfError::Absent(format!("this kernel has no variable {name}"));
    let from = offset(from).ok_or_else(|| absent(from))?;
    let to = offset(to).ok_or_else(|| absent(to))?;
    Ok(u64::from(to).wrapping_sub(from.into()))
}

/// Types that may be read and written in memory that the kernel reads and writes meanwhile.
///
/// # Safety
/// All fields are atomic, and every pattern of bits is a value.
pub unsafe trait Plain {}

/// Records in memory that programs and this process read and write.
#[derive(Debug)]
pub struct Mapped<T> {
    records: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its mapping, and `Plain` records are shared as atomics are.
unsafe impl<T: Plain> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Mapped<T> {}

impl<T: Plain> Mapped<T> {
    fn new(fd: i32, len: usize) -> io::Result<Mapped<T>> {
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let bytes = len * size_of::<T>();
        // SAFETY: a new mapping at an address of the kernel's choice, freed when this is dropped.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, shared, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let records = NonNull::new(at.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapped { records, len })
    }

    pub fn records(&self) -> &[T] {
        // SAFETY: `len` records were mapped, to be read and written for as long as this lives; a
        // `Plain` may change meanwhile, and the mapping is aligned to a page.
        unsafe { std::slice::from_raw_parts(self.records.as_ptr(), self.len) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.records.as_ptr().cast(), self.len * size_of::<T>()) };
    }
}

/// Of include/uapi/linux/capability.h. CAP_SYS_ADMIN includes all.
const CAPABILITIES: [(u32, &str); 2] = [(39, "CAP_BPF"), (38, "CAP_PERFMON")];
const CAP_SYS_ADMIN: u32 = 21;

impl From<BpfError> for io::Error {
    fn from(error: BpfError) -> io::Error {
        let kind = match error {
            BpfError::Forbidden(_) => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

fn missing_capabilities() -> Option<String> {
    missing_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Which are missing, of a process's `status` in proc(5).
fn missing_of(status: &str) -> Option<String> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let set = u64::from_str_radix(line.trim(), 16).ok()?;
    if set >> CAP_SYS_ADMIN & 1 == 1 {
        return None;
    }
    let missing = CAPABILITIES.iter().filter(|(bit, _)| set >> bit & 1 == 0);
    let names: Vec<&str> = missing.map(|&(_, name)| name).collect();
    (!names.is_empty()).then(|| names.join(" and "))
}

#[cfg(test)]
use libbpf_rs::{ProgramMut, libbpf_sys};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let of = |set: u64| missing_of(&format!("Name:\tx\nCapEff:\t{set:016x}\nCapBnd:\t0\n"));
        assert_eq!(of(0).as_deref(), Some("CAP_BPF and CAP_PERFMON"));
        assert_eq!(of(1 << 39).as_deref(), Some("CAP_PERFMON"));
        assert_eq!((of(1 << 39 | 1 << 38), of(1 << 21)), (None, None));
        assert_eq!(missing_of("CapEff:\tnone"), None);
    }
}
