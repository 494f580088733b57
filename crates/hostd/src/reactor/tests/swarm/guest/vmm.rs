//! The VMM of a guest: it connects, shows what the device needs, moves the guest to another VMM,
//! takes memory away, and ends.

use super::super::disk::{Disk, Notes};
use super::super::migration::Migration;
use super::super::random::Random;
use super::{AVAILABLE, Guest, USED, bit, map};
use crate::death;
use crate::frontends::vhost_user::account::shortage;
use crate::frontends::vhost_user::inflight::Inflight;
use crate::frontends::vhost_user::memory_file;
use crate::frontends::vhost_user::{DiskHandle, Session};
use crate::images::ImageUse;
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::Arc;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{Result as Done, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_blk as blk;
use vmm_sys_util::eventfd::EventFd;

/// Where the VMM has the guest's memory.
const USER: u64 = 0x7f00_0000_0000;
const PAGE_BYTES: u64 = 4096;

/// The image of its disk.
struct Image {
    /// Another daemon has had it.
    had_another: bool,
}

impl ImageUse for Image {
    fn begin(&self) -> Result<bool, String> {
        Ok(self.had_another)
    }
    fn end(&self, _hands_over: bool) {}
}

fn file_of(event: &EventFd) -> Option<File> {
    let fd = event.try_clone().expect("a descriptor").into_raw_fd();
    // SAFETY: the clone's descriptor is handed over.
    Some(unsafe { File::from_raw_fd(fd) })
}

impl Guest {
    /// The VMM connects, in the order of messages of QEMU or of Cloud Hypervisor.
    pub fn connect(&mut self, mut disk: DiskHandle, random: &mut Random) -> Result<(), String> {
        disk.image_use = Arc::new(Image { had_another: self.has_moved });
        let mut session = Session::new(disk);
        // The daemon was killed while a migration began.
        self.migration = self.migration.take().filter(Migration::has_begun);
        let introduced = self.introduce(&mut session, random.once_in(2));
        self.keep(session, "connecting", introduced)?;
        self.has_moved &= death::has_come() || self.session.is_none();
        Ok(())
    }

    /// Keep a connection on which all went well, or which ended because its VMM holds too much.
    fn keep<T>(&mut self, session: Session, what: &str, done: Done<T>) -> Result<(), String> {
        match done {
            Err(_) if shortage::has_come() => Ok(()),
            Err(e) => Err(format!("{what}: {e}")),
            Ok(_) => {
                self.session = Some(session);
                Ok(())
            }
        }
    }

    fn introduce(&mut self, session: &mut Session, enable_first: bool) -> Done<()> {
        session.get_features()?;
        session.set_owner()?;
        session.set_features(self.features_now())?;
        if !enable_first {
            self.show_log(session)?;
        }
        let entries = self.queues.iter().map(|q| q.size).max().unwrap_or(0);
        let shape = VhostUserInflight::new(0, 0, self.queues(), entries);
        let bytes = Inflight::bytes(self.queues(), entries);
        if self.inflight.is_none() {
            self.inflight = Some(session.get_inflight_fd(&shape)?.1);
        }
        let record = self.inflight.as_ref().expect("as set").try_clone().expect("a descriptor");
        let shape = VhostUserInflight::new(bytes, 0, self.queues(), entries);
        session.set_inflight_fd(&shape, record)?;
        self.show_memory(session)?;
        for index in 0..self.queues.len() {
            let queue = &self.queues[index];
            let number = index as u32;
            session.set_vring_num(number, queue.size.into())?;
            // What QEMU knows when its back end is gone.
            session.set_vring_base(number, self.load(queue.at + USED + 2).into())?;
            self.show_ring(session, index)?;
            if enable_first {
                session.set_vring_enable(number, true)?;
            }
            session.set_vring_call(index as u8, file_of(&queue.call))?;
            session.set_vring_kick(index as u8, file_of(&queue.kick))?;
        }
        for index in 0..self.queues.len() as u32 {
            session.set_vring_enable(index, true)?;
        }
        // QEMU shows the log last when it connects anew in the middle of a migration.
        match enable_first {
            true => self.show_log(session),
            false => Ok(()),
        }
    }

    fn features_now(&self) -> u64 {
        let logs =
            if self.migration.is_some() { VhostUserVirtioFeatures::LOG_ALL.bits() } else { 0 };
        self.features | logs
    }

    fn show_log(&self, session: &mut Session) -> Done<()> {
        let Some(migration) = &self.migration else { return Ok(()) };
        let (log, bytes) = migration.log();
        session.set_log_base(&VhostUserLog::new(bytes, 0), log)
    }

    fn show_ring(&self, session: &mut Session, index: usize) -> Done<()> {
        let at = self.queues[index].at;
        let [descriptors, available, used] = [0, AVAILABLE, USED].map(|part| USER + at + part);
        let flags = match self.migration {
            Some(_) => VhostUserVringAddrFlags::VHOST_VRING_F_LOG,
            None => VhostUserVringAddrFlags::empty(),
        };
        session.set_vring_addr(index as u32, flags, descriptors, used, available, at + USED)
    }

    fn update_logging(&self, session: &mut Session) -> Done<()> {
        self.show_log(session)?;
        session.set_features(self.features_now())?;
        (0..self.queues.len()).try_for_each(|index| self.show_ring(session, index))
    }

    /// Is it on its way to another VMM?
    pub fn is_moving(&self) -> bool {
        self.migration.is_some()
    }

    /// The guest goes on with its move to another VMM, or begins one. True when it has moved:
    /// the other VMM has to connect.
    pub fn migrate(&mut self, random: &mut Random) -> Result<bool, String> {
        if self.is_cut {
            return Ok(false);
        }
        let Some(mut session) = self.session.take() else { return Ok(false) };
        let moved = match (self.migration.take(), random.below(4)) {
            (None, _) => self.begin_migration(&mut session),
            (Some(migration), 0) => return self.end_migration(session, migration),
            // It fails, and the guest stays.
            (Some(_), 1) => self.update_logging(&mut session),
            (Some(migration), _) => {
                migration.copy_logged(&self.get(0, self.memory.size()));
                self.migration = Some(migration);
                Ok(())
            }
        };
        self.keep(session, "moving", moved).map(|()| false)
    }

    fn begin_migration(&mut self, session: &mut Session) -> Done<()> {
        self.migration = Some(Migration::new(self.memory.size()));
        let began = self.update_logging(session);
        let memory = self.get(0, self.memory.size());
        match &mut self.migration {
            Some(migration) if !death::has_come() && began.is_ok() => migration.copy_all(memory),
            _ => self.migration = None,
        }
        began
    }

    fn end_migration(
        &mut self,
        mut session: Session,
        migration: Migration,
    ) -> Result<bool, String> {
        for index in 0..self.queues.len() as u32 {
            session.get_vring_base(index).map_err(|e| format!("moving: {e}"))?;
        }
        if death::has_come() {
            (self.session, self.migration) = (Some(session), Some(migration));
            return Ok(false);
        }
        let memory = self.get(0, self.memory.size());
        migration.copy_logged(&memory);
        let memory = migration.end(&memory)?;
        self.file = memory_file(memory.len() as u64);
        self.memory = map(&self.file, memory.len() as u64);
        self.put(0, &memory);
        self.inflight = None;
        self.has_moved = true;
        Ok(true)
    }

    fn show_memory(&self, session: &mut Session) -> Done<Option<Vec<VhostUserMemoryRegionBase>>> {
        let region = VhostUserMemoryRegion::new(0, self.memory.size() as u64, USER, 0);
        let file = self.file.try_clone().expect("a descriptor");
        session.set_mem_table(&[region], vec![file], None)
    }

    /// The VMM hangs up; what is in flight is carried out first.
    pub fn disconnect(&mut self) {
        self.session = None;
    }

    /// The VMM takes memory away that the daemon uses: the guest's, or its log.
    pub fn cut_memory(&mut self, random: &mut Random) {
        if self.is_cut {
            return;
        }
        let log = self.migration.as_ref().map(|migration| migration.log().0);
        let file = log.as_ref().filter(|_| random.once_in(2)).unwrap_or(&self.file);
        let bytes = file.metadata().expect("memory").len();
        file.set_len(random.below(bytes.div_ceil(PAGE_BYTES)) * PAGE_BYTES).expect("shorter");
        self.is_cut = true;
    }

    /// The VMM has ended with its guest: what has no answer may have been done.
    pub fn end(&mut self, disk: &mut Disk, notes: &mut Notes) {
        self.disconnect();
        for request in self.queues.iter_mut().flat_map(|q| &mut q.requests).filter_map(Option::take)
        {
            disk.end(&request.write(), request.id, notes.tick(), false, false);
        }
    }

    /// The VMM does something that it may do at any time.
    pub fn rearrange(&mut self, random: &mut Random) -> Result<(), String> {
        let Some(mut session) = self.session.take() else { return Ok(()) };
        let index = random.index(self.queues.len());
        let number = index as u32;
        let done = match random.below(4) {
            0 => self.show_memory(&mut session).map(|_| ()),
            1 => session.set_vring_call(index as u8, file_of(&self.queues[index].call)),
            2 => session
                .set_vring_enable(number, false)
                .and_then(|()| session.set_vring_enable(number, true)),
            _ => session
                .get_vring_base(number)
                .and_then(|state| session.set_vring_base(number, state.num))
                .and_then(|()| {
                    session.set_vring_kick(index as u8, file_of(&self.queues[index].kick))
                }),
        };
        self.keep(session, &format!("rearranging queue {index}"), done)
    }

    /// The guest switches the write cache.
    pub fn switch_cache(&mut self) -> Result<(), String> {
        if self.features & bit(blk::VIRTIO_BLK_F_CONFIG_WCE) == 0 {
            return Ok(());
        }
        let Some(session) = &mut self.session else { return Ok(()) };
        self.write_cache = !self.write_cache;
        self.cache_set += 1;
        let flags = VhostUserConfigFlags::WRITABLE;
        session
            .set_config(32, &[u8::from(self.write_cache)], flags)
            .map_err(|e| format!("switching the write cache: {e}"))
    }
}
