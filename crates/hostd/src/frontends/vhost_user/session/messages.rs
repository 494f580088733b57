//! The messages of the vhost-user protocol (QEMU's `docs/interop/vhost-user.rst`), as crate `vhost`
//! has read them.

use super::super::config;
use super::super::dirty_log::DirtyLog;
use super::super::inflight::Inflight;
use super::super::memory::{Memory, REGIONS_MAX};
use super::super::port::PortMessage;
use super::super::ring::SIZE_MAX;
use super::{Queue, Session, WriteCache, bell, doorbell, refuse};
use std::fs::File;
use std::sync::Arc;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all(0..self.queues.len());
        Ok(())
    }

    /// The guest's memory, its log and the VMM's feature bits of the protocol stay: they are not
    /// the device's.
    fn reset_device(&mut self) -> Result<()> {
        self.stop_all(0..self.queues.len());
        self.queues.fill_with(Queue::default);
        self.inflight = None;
        self.features = 0;
        self.set_write_cache(WriteCache::Untouched);
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.offered;
        if unknown != 0 {
            return Err(refuse(format_args!("features {unknown:#x} were not offered")));
        }
        self.features = features;
        self.update_write_through();
        self.update_logging();
        // Without the protocol's own features there is no message that enables queues.
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            self.queues.iter_mut().for_each(|queue| queue.enabled = true);
        }
        self.start_those_ready()
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut memory = Memory::default();
        for (region, file) in regions.iter().zip(files) {
            memory = memory.with(region, file, &self.account).map_err(refuse)?;
        }
        self.use_memory(memory)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let queue = self.stopped(index)?;
        let size = u16::try_from(num).ok().filter(|n| n.is_power_of_two() && *n <= SIZE_MAX);
        let why =
            format_args!("queue {index} of {num} entries: not a power of two up to {SIZE_MAX}");
        queue.size = Some(size.ok_or_else(|| refuse(why))?);
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let is_logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        let (addresses, log_used) = (Some([descriptor, available, used]), is_logged.then_some(log));
        let queue = self.queue(index)?;
        if queue.addresses == addresses {
            queue.log_used = log_used;
            self.update_logging();
            return Ok(());
        }
        self.stopped(index)?.log_used = log_used;
        self.stopped(index)?.addresses = addresses;
        self.start_if_ready(index as usize)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let queue = self.stopped(index)?;
        queue.base = u16::try_from(base).map_err(refuse)?;
        if queue.base != 0 && !queue.has_run {
            self.goes_on();
        }
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.queue(index)?;
        self.stop(index as usize);
        let queue = self.queue(index)?;
        // It starts again when it gets another.
        queue.kick = None;
        Ok(VhostUserVringState::new(index, u32::from(queue.base)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let kick = doorbell(file)?;
        if kick.is_none() {
            return Err(refuse(format_args!("queue {index} without a kick eventfd")));
        }
        self.with_eventfds(u32::from(index))?;
        self.stop(usize::from(index));
        self.queue(u32::from(index))?.kick = kick;
        self.start_if_ready(usize::from(index))
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let call = doorbell(file)?;
        let queue = self.with_eventfds(u32::from(index))?;
        (queue.call, queue.own_bell) = (call, None);
        if queue.running.is_some() {
            let bell = bell(&queue.call)?;
            self.tell(usize::from(index), |reply| PortMessage::Call(bell, reply));
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let err = doorbell(file)?;
        self.with_eventfds(u32::from(index))?.err = err;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(config::protocol_features())
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        // What is negotiated only adds messages, and those are understood anyway.
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.queue(index)?.enabled = enable;
        if !enable {
            self.stop(index as usize);
        }
        self.start_if_ready(index as usize)
    }

    fn get_config(&mut self, at: u32, len: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let limits = (self.disk.limits)();
        Ok(config::read(&limits, self.disk.queues, self.write_cache.is_on(), at, len))
    }

    fn set_config(&mut self, at: u32, bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        match (at, bytes) {
            (config::WRITEBACK_OFFSET, &[value]) if config::may_set_writeback(self.features) => {
                self.set_write_cache(WriteCache::Set(value != 0));
                Ok(())
            }
            _ => Err(refuse("of the configuration only the write cache's switch can be written")),
        }
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = self.inflight_shape(wanted)?;
        let file = Inflight::create(queues, size).map_err(refuse)?;
        let bytes = Inflight::bytes(queues, size);
        Ok((VhostUserInflight::new(bytes, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        if self.queues.iter().any(|queue| queue.running.is_some()) {
            return Err(refuse("an inflight record for queues that run: stop them first"));
        }
        let (queues, size) = self.inflight_shape(given)?;
        let (offset, bytes) = (given.mmap_offset, given.mmap_size);
        let inflight = Inflight::map(file, offset, bytes, queues, size, &self.account);
        let inflight = inflight.map_err(refuse)?;
        let cache = match (self.write_cache, inflight.write_cache()) {
            // What the guest has said on this connection is newer than any record.
            (set @ WriteCache::Set(_), _) => set,
            (_, Some(on)) => WriteCache::Set(on),
            (unset, None) => unset,
        };
        self.inflight = Some(inflight);
        if !matches!(cache, WriteCache::Untouched) {
            self.set_write_cache(cache);
        }
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.use_memory(self.memory.with(region, file, &self.account).map_err(refuse)?)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.use_memory(self.memory.without(region).map_err(refuse)?)
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(unsupported())
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(unsupported())
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(unsupported())
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(unsupported())
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(unsupported())
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let log = DirtyLog::map(file, log.mmap_offset, log.mmap_size, &self.account);
        self.log = Some(Arc::new(log.map_err(refuse)?));
        self.update_logging();
        self.start_those_ready()
    }
}

/// The answer to messages whose feature is not offered.
fn unsupported() -> Error {
    Error::InvalidOperation("a message of a feature that was not offered")
}

impl Session {
    /// Queues and entries of an inflight record, within bounds.
    fn inflight_shape(&self, shape: &VhostUserInflight) -> Result<(u16, u16)> {
        let (queues, size) = (shape.num_queues, shape.queue_size);
        if usize::from(queues) > self.queues.len() || size > SIZE_MAX {
            let why = format_args!("an inflight record of {queues} queues of {size} entries");
            return Err(refuse(why));
        }
        Ok((queues, size))
    }
}
