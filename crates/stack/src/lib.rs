//! A request's way from a disk's queue to its device, without I/O.
//!
//! A discrete-event simulator and a host daemon drive the same code through
//! one [`Stack`](stack::Stack) for each physical device: limits, cache, placement,
//! order, and the dispatcher around the policy. Its documentation says how.
//!
//! # The dispatcher's loop
//!
//! 1. Build a scheduler from its specification
//!    ([`schedulers::build`](seekway_policy::schedulers::build)`("cfq:slice_idle=4ms")`) and a dispatcher around it.
//! 2. Tell the dispatcher what happens, with the time at which it happens:
//!    `attach` and `detach` for VMs, `arrive` for requests, `complete` for
//!    commands. Time never runs backwards.
//! 3. After every input, and when a time that it asked for has come, `poll`
//!    until the answer is no longer `Dispatch`:
//!    - `Dispatch(command)`: send it to the device. The command covers one or
//!      more adjacent requests of one VM, or a part of one
//!      ([`Dispatcher::members`](dispatcher::Dispatcher::members)).
//!    - `WakeAt(t)`: work is withheld on purpose; poll at `t` if nothing
//!      happens before.
//!    - `Idle`: nothing to do until the next input.
//! 4. When the device is done with a command, `complete` it by its id. All its
//!    requests are done at once and in order; one that went in parts is done
//!    when all of them are.
//!
//! The dispatcher asks the policy ([`Scheduler::decide`](seekway_core::scheduler::Scheduler::decide))
//! while the device has room for a command. After a dispatch it asks once more
//! as long as some queued request continues the command; what the policy then
//! names becomes part of the command if it is the continuation, and is the
//! next command if it is not.
//!
//! ```
//! use seekway_core::{request::*, scheduler::*, units::*};
//! use seekway_policy::schedulers;
//! use seekway_stack::dispatcher::*;
//!
//! let profile = DeviceProfile::unknown(Sectors::new(1_000_000), true);
//! let mut disk = Dispatcher::new(schedulers::build("noop").unwrap(), profile, Config::default());
//! let (vm, t0) = (VmId::new(0), Instant::ZERO);
//! disk.attach(t0, vm, VmSpec::default());
//! for lba in [800, 808] {
//!     let extent = Extent::new(Lba::new(lba), Sectors::new(8)).unwrap();
//!     disk.arrive(t0, Arrival { vm, tag: None, op: Op::Read, sync: true, extent });
//! }
//! let Output::Dispatch(command) = disk.poll(t0) else { panic!() };
//! assert_eq!(command.extent.len(), Sectors::new(16)); // two adjacent reads, one command
//! assert_eq!(disk.poll(t0), Output::Idle);
//! let mut done = Vec::new();
//! disk.complete(t0 + Nanos::from_millis(8), command.id, true, &mut done);
//! assert_eq!(done.len(), 2);
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]
pub mod cache;
pub mod dispatcher;
pub mod journal;
pub mod stack;
