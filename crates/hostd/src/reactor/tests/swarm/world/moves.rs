//! Guests that move to another daemon, which opens the image while it is served here. Only one
//! reactor is simulated: it is the other daemon's from then on.

use super::super::random::Random;
use super::{World, open};
use crate::images::{OpenOptions, has_lost_writes};
use crate::reactor::message::{self, Message};
use std::sync::mpsc::sync_channel;

impl World {
    /// A guest goes on with its move, or begins one.
    pub(super) fn migrate(&mut self, random: &mut Random) -> Result<(), String> {
        let number = random.index(self.guests.len());
        if self.guests[number].migrate(random)? {
            self.done.moves += 1;
            self.hand_over(number)?;
            return self.connect(number, random);
        }
        let disk = &self.disks[number];
        if self.guests[number].is_moving() && disk.awaited.is_none() {
            let incoming = OpenOptions { incoming: true, ..OpenOptions::writing() };
            // One that lacks writes already is refused.
            self.disks[number].awaited = open(disk, &incoming, &self.losses.2, &self.kernel).ok();
        }
        Ok(())
    }

    /// The daemon that waits for the guest takes its image over, if there is one.
    fn hand_over(&mut self, number: usize) -> Result<(), String> {
        let disk = &mut self.disks[number];
        let (Some(mut image), Some(id)) = (disk.awaited.take(), disk.number) else { return Ok(()) };
        let handle = self.handle().ok_or("the reactor has ended")?;
        (self.disks[number].number, self.disks[number].leaves) = (None, true);
        let (reply, detached) = sync_channel(1);
        handle.send(Message::DetachDisk(id, reply));
        message::wait(&detached).ok_or("the reactor has ended")??;
        self.hear()?;
        self.keep_losses()?;
        let is_lost = has_lost_writes(image.file(), &image.identity(), Some(&self.losses.2));
        let is_lost = is_lost.map_err(|e| e.to_string())?;
        image.refresh(true).map_err(|e| e.to_string())?;
        self.serve(number, image)?;
        if let (true, Some(id)) = (is_lost, self.disks[number].number) {
            handle.send(Message::LostWrites(id));
        }
        self.done.lost_moves += u64::from(self.disks[number].failed_flush.is_some());
        Ok(())
    }

    /// Mark or note what has failed. As the daemon's thread does, which may be faster than everything
    /// else.
    pub(super) fn keep_losses(&self) -> Result<(), String> {
        let (_, lost, notes, unmarked) = &*self.losses;
        lost.try_iter().try_for_each(|image| {
            image.keep(Some(notes)).map_err(|e| format!("keeping of {}: {e}", image.identity))?;
            unmarked.remove(&image.identity);
            Ok(())
        })
    }
}
