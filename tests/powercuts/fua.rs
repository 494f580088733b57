//! Crash points under a client of NBD, which says of each write whether it has to be durable when
//! it is answered (FUA).

use crate::client::Kind;
use crate::layer::Disk;
use crate::nbd::{self, Client};
use crate::promises::{Ask, Mark};
use crate::{Bench, CUTS_PER_ROUND, SECTORS, check_cuts, setting, survives};
use seekway_testing::disk::{SECTOR_BYTES, sectors_of};
use seekway_workload::rng::{Rng, split};
use std::sync::Arc;

const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
/// NBD_CMD_FLAG_FUA.
const FUA: u8 = 1;
/// Requests that are asked for before their answers are waited for.
const BATCH: u64 = 12;
const SECTORS_MAX: usize = 16;

/// Chooses the client's next request.
fn next_ask(number: u64, rng: &mut Rng) -> Ask {
    let (kind, may_be_durable) = match rng.below(10) {
        0 => (Kind::Flush, false),
        1 => (Kind::Discard, false),
        2 => (Kind::WriteZeroes, true),
        _ => (Kind::Write, true),
    };
    let len = 1 + rng.below(SECTORS_MAX as u64) as usize;
    let start = rng.below((SECTORS - len) as u64) as usize;
    let sectors = if kind == Kind::Flush { 0..0 } else { start..start + len };
    Ask { number, kind, sectors, durable: may_be_durable && rng.percent(50) }
}

fn bytes_of(ask: &Ask) -> Vec<u8> {
    let command = match ask.kind {
        Kind::Read => nbd::READ,
        Kind::Write => nbd::WRITE,
        Kind::Flush => nbd::FLUSH,
        Kind::Discard => TRIM,
        Kind::WriteZeroes => WRITE_ZEROES,
    };
    let (offset, len) =
        ((ask.sectors.start * SECTOR_BYTES) as u64, (ask.sectors.len() * SECTOR_BYTES) as u32);
    let mut bytes = nbd::request(command, ask.number, offset, len);
    bytes[5] = if ask.durable { FUA } else { 0 };
    if ask.kind == Kind::Write {
        bytes.extend(sectors_of(ask.number, ask.sectors.clone()));
    }
    bytes
}

/// Ask `count` times, and take all answers.
fn load(
    client: &mut Client,
    disk: &Arc<Disk<Mark>>,
    count: u64,
    rng: &mut Rng,
) -> Result<(), String> {
    let mut number = 0;
    while number < count {
        let mut asked = Vec::new();
        for _ in 0..1 + rng.below(BATCH) {
            number += 1;
            let ask = next_ask(number, rng);
            disk.mark(Mark::Submitted(ask.clone()));
            client.send(&bytes_of(&ask));
            asked.push(ask);
        }
        while !asked.is_empty() {
            let (error, cookie) = client.reply();
            let place = asked.iter().position(|ask| ask.number == cookie);
            let ask = asked.swap_remove(place.ok_or("an answer to nothing")?);
            if error != 0 {
                return Err(format!("{ask:?}: error {error}"));
            }
            disk.mark(Mark::Answered(ask));
        }
    }
    Ok(())
}

/// One run of the daemon, and `cuts` crash points of it. `None`: skipped.
fn round(seed: u64, cuts: u64) -> Result<Option<[usize; 1]>, String> {
    let mut rng = Rng::new(split(seed, 2));
    let (cache, buffered) = (rng.percent(50), rng.percent(30));
    eprintln!("FUA seed {seed}: host cache {cache}, page cache {buffered}");
    let Some(bench) = Bench::<Mark>::new(SECTORS * SECTOR_BYTES, buffered, seed) else {
        return Ok(None);
    };
    let daemon = bench.serve_image(&bench.image(), cache, buffered)?;
    let mut client = Client::open(&daemon.socket("disk").with_extension("nbd"));
    load(&mut client, &bench.layer.disk, 1500, &mut Rng::new(split(seed, 3)))?;
    drop(client);
    daemon.stop().map_err(|e| e.to_string())?;
    check_cuts(&bench.layer.disk.log(), seed, cuts)
}

#[test]
fn writes_with_fua_survive_a_power_failure() {
    let cuts = setting("SEEKWAY_CUTS", 100);
    survives("NBD with FUA", cuts, CUTS_PER_ROUND, ["events"], round);
}
