//! Cost of an idle daemon, and its time until it serves.

use crate::Options;
use crate::report::{Row, Target};
use crate::server::{NO_CACHE, Server};
use seekway_client::{Client, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Disks attached at once.
const DISKS: usize = 64;
/// Each disk's size; sparse.
const DISK_BYTES: u64 = 1 << 30;
/// Guest memory that a client shares, as small as it may be.
const MEMORY_BYTES: usize = 4096;
/// Time for which an idle daemon is observed.
const SPAN: Duration = Duration::from_secs(5);

/// CPU time and memory, without clients and with.
pub fn run(options: &Options) -> Result<Vec<Row>> {
    let dir = tempfile::Builder::new()
        .prefix("seekway-bench-host.")
        .tempdir_in(&options.disk_dir)
        .map_err(|error| format!("{}: {error}", options.disk_dir.display()))?;
    let images = (0..DISKS).map(|n| sparse(dir.path(), n)).collect::<Result<Vec<PathBuf>>>()?;
    let mut rows = Vec::new();

    let one = Server::start_many(&options.seekway, &images[..1], &NO_CACHE)?;
    rows.push(cpu_row(options, "one disk, no client", &one)?);
    let client = Client::connect(&one.dir().join("d0.vhost"), MEMORY_BYTES)
        .map_err(|error| one.complaint(&error))?;
    rows.push(cpu_row(options, "one disk, one idle vhost client", &one)?);
    drop((client, one));

    let mut starts = Vec::new();
    for _ in 0..options.rounds {
        let began = Instant::now();
        Server::start_many(&options.seekway, &images, &NO_CACHE)?;
        starts.push(began.elapsed().as_secs_f64() * 1e3);
        options.go_on()?;
    }
    rows.push(Row { ours: starts, ..row(format!("{DISKS} disks: start"), "ms", 0.0, 100.0) });

    let many = Server::start_many(&options.seekway, &images, &NO_CACHE)?;
    rows.push(memory_row(&format!("{DISKS} disks, no client"), &many)?);
    let clients = (0..DISKS)
        .map(|n| Client::connect(&many.dir().join(format!("d{n}.vhost")), MEMORY_BYTES))
        .collect::<Result<Vec<Client>>>()
        .map_err(|error| many.complaint(&error))?;
    rows.push(memory_row(&format!("{DISKS} disks, {DISKS} idle vhost clients"), &many)?);
    rows.push(cpu_row(options, &format!("{DISKS} disks, {DISKS} idle vhost clients"), &many)?);
    drop(clients);
    Ok(rows)
}

fn sparse(dir: &Path, n: usize) -> Result<PathBuf> {
    let path = dir.join(format!("{n}.img"));
    let file = std::fs::File::create(&path).and_then(|file| file.set_len(DISK_BYTES));
    file.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

fn cpu_row(options: &Options, name: &str, server: &Server) -> Result<Row> {
    eprintln!("idle {name}: {} s", SPAN.as_secs());
    // What it still does after its start or a connection is not idleness.
    std::thread::sleep(Duration::from_millis(500));
    options.go_on()?;
    let before = server.cpu()?;
    std::thread::sleep(SPAN);
    options.go_on()?;
    let used = server.cpu()?.saturating_sub(before);
    let name = format!("{name}: CPU time in {} s", SPAN.as_secs());
    Ok(row(name, "ms", used.as_secs_f64() * 1e3, 0.0))
}

fn memory_row(name: &str, server: &Server) -> Result<Row> {
    let mb = server.resident_bytes()? as f64 / 1e6;
    Ok(row(format!("{name}: resident memory"), "MB", mb, 64.0))
}

fn row(name: String, unit: &'static str, figure: f64, most: f64) -> Row {
    Row {
        part: "idle",
        name,
        unit,
        ours_name: "noop".to_owned(),
        peer_name: String::new(),
        ours: vec![figure],
        peer: Vec::new(),
        target: Target::AtMost(most),
    }
}
