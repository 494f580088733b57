//! The hostile loads. Each runs until it is told to stop, and says how often it did its worst in a
//! second, where that can be counted.

use crate::client::{READ, request};
use crate::raw::{FEATURES, Guest, INDIRECT, USED, Vmm};
use crate::world::World;
use seekway_client::{Client, Load, Result, Span, Wait};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The feature bit VIRTIO_BLK_F_MQ (VIRTIO 1.2, 5.2.3).
const MULTIQUEUE: u64 = 1 << 12;
/// Where the header of [`Guest::long_read`] is.
const REQUESTS: u64 = 0x1_0000;
/// Longest time that one call of a load waits before the load looks whether to stop.
const CALL_TIME: Duration = Duration::from_millis(200);
/// Connections of the loads that keep some.
const CONNECTIONS: usize = 8;
/// Requests that are sent at once.
const BATCH: usize = 1000;

/// A load that needs nothing else.
type Own = fn(&World, &AtomicBool) -> Result<String>;
type Run = Box<dyn Fn(&World, &AtomicBool) -> Result<String> + Sync>;

pub struct HostileLoad {
    pub name: String,
    pub run: Run,
}

/// All that can be run here, and what cannot with the reason.
pub fn all(scripts: Option<&Path>) -> (Vec<HostileLoad>, Vec<String>) {
    let own: [(&str, Own); 10] = [
        ("connections to NBD that come and go", connections),
        ("connections to NBD that send garbage", garbage),
        ("NBD: refused requests, 8 connections", |world, stop| {
            requests(world, stop, 1 << 40, 4096)
        }),
        ("NBD: reads of 512 bytes, 8 connections", |world, stop| requests(world, stop, 0, 512)),
        ("NBD: replies that nobody reads", unread),
        ("vhost-user: reads of 4 KiB, depth 64", neighbour),
        ("vhost-user: kicks on eight queues", kicks),
        ("vhost-user: refused chains of 1,000", chains),
        ("vhost-user: VMMs that come and go", vmms),
        ("control: status, 8 connections", control),
    ];
    let mut loads: Vec<HostileLoad> =
        own.map(|(name, run)| HostileLoad { name: name.into(), run: Box::new(run) }).into();
    let Some(folder) = scripts else {
        return (loads, vec!["the auditors' scripts: give their folder with --scripts".into()]);
    };
    let mut left_out = Vec::new();
    for words in [
        "storm.py DIR SECONDS",
        "bsatt.py DIR SECONDS",
        "scrape.py PORT 32 SECONDS",
        "poc14_chains.py DIR 1 128 1000 1 SECONDS",
        "poc14_chains.py DIR 16 128 1000 1 SECONDS",
    ] {
        let script = folder.join(words.split(' ').next().unwrap_or_default());
        if !script.is_file() {
            left_out.push(format!("{}: is not there", script.display()));
            continue;
        }
        // poc14 has a slow reader of its own at the good disk, too.
        let name = words.replace(" DIR", "").replace(" PORT", "").replace(" SECONDS", "");
        let run = move |world: &World, stop: &AtomicBool| run_script(&script, words, world, stop);
        loads.push(HostileLoad { name, run: Box::new(run) });
    }
    left_out.push(
        "the scripts that attack once, or kill the daemon: regression tests of the project have them"
            .into(),
    );
    (loads, left_out)
}

/// Does `once` until it is to stop; how often in a second.
fn repeat(stop: &AtomicBool, mut once: impl FnMut() -> io::Result<usize>) -> String {
    let (began, mut count) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        // Being hung up on is what a hostile client expects.
        count += once().unwrap_or(0);
    }
    format!("{:.0}", count as f64 / began.elapsed().as_secs_f64())
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let socket = UnixStream::connect(socket)?;
    socket.set_read_timeout(Some(CALL_TIME))?;
    socket.set_write_timeout(Some(CALL_TIME))?;
    Ok(socket)
}

/// A client of NBD in the transmission phase, with simple replies.
fn negotiated(socket: &Path) -> io::Result<UnixStream> {
    let mut socket = connect(socket)?;
    socket.read_exact(&mut [0; 18])?;
    socket.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0")?;
    socket.read_exact(&mut [0; 10])?;
    Ok(socket)
}

fn connections(world: &World, stop: &AtomicBool) -> Result<String> {
    let socket = world.socket("bad.nbd");
    Ok(repeat(stop, || negotiated(&socket).map(|_| 1)))
}

fn garbage(world: &World, stop: &AtomicBool) -> Result<String> {
    let socket = world.socket("bad.nbd");
    Ok(repeat(stop, || {
        let mut client = connect(&socket)?;
        // Either fails if it has hung up by then.
        let _ = client.write_all(&[0xff; 4096]).and_then(|()| client.shutdown(Shutdown::Write));
        let _ = client.read_to_end(&mut Vec::new());
        Ok(1)
    }))
}

/// Requests without end on several connections, whose replies are read.
fn requests(world: &World, stop: &AtomicBool, offset: u64, len: u32) -> Result<String> {
    let socket = world.socket("bad.nbd");
    let batch: Vec<u8> = (0..BATCH as u64).flat_map(|n| request(READ, n, offset, len)).collect();
    let reply_bytes = 16 + if offset == 0 { len as usize } else { 0 };
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = negotiated(&socket).map_err(|e| e.to_string())?;
        client.set_nonblocking(true).map_err(|e| e.to_string())?;
        clients.push((client, 0)); // bytes of the batch that are sent
    }
    let mut buffer = vec![0; 256 << 10];
    let (began, mut received) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        for (client, sent) in &mut clients {
            *sent += client.write(&batch[*sent..]).unwrap_or(0);
            *sent %= batch.len();
            received += client.read(&mut buffer).unwrap_or(0);
        }
    }
    let replies = received / reply_bytes;
    Ok(format!("{:.0}", replies as f64 / began.elapsed().as_secs_f64()))
}

/// Reads of 32 MiB whose replies nobody reads, and others in the place of those who are hung up on.
fn unread(world: &World, stop: &AtomicBool) -> Result<String> {
    let socket = world.socket("bad.nbd");
    let mut clients: Vec<UnixStream> = Vec::new();
    Ok(repeat(stop, || {
        if clients.len() == 4 * CONNECTIONS {
            clients.remove(0);
        }
        let mut client = negotiated(&socket)?;
        client.write_all(&request(READ, 1, 0, 32 << 20))?;
        client.write_all(&request(READ, 2, 0, 32 << 20))?;
        clients.push(client);
        std::thread::sleep(Duration::from_millis(20)); // so that the reads are under way
        Ok(1)
    }))
}

/// A neighbour that is honest and has much to do.
fn neighbour(world: &World, stop: &AtomicBool) -> Result<String> {
    let load = Load::random(64);
    let mut client = Client::connect(&world.socket("bad.vhost"), load.memory_bytes())?;
    let span = Span { warm_up: Duration::ZERO, counted: CALL_TIME };
    let (began, mut reads) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        reads += client.run(load, span, Wait::Event, || ())?.0.len();
    }
    Ok(format!("{:.0}", reads as f64 / began.elapsed().as_secs_f64()))
}

/// One eventfd is the kick of eight queues, all without a request.
fn kicks(world: &World, stop: &AtomicBool) -> Result<String> {
    let guest = Guest::new(64);
    let vmm = Vmm::introduce(&world.socket("bad.vhost"), FEATURES | MULTIQUEUE, &guest);
    for queue in 0..8 {
        vmm.start(&guest, queue, 0).map_err(|e| e.to_string())?;
    }
    Ok(repeat(stop, || guest.kick.write(1).map(|()| 1)))
}

/// Chains of a thousand pieces that are refused, as many as a queue has: each is read for nothing.
fn chains(world: &World, stop: &AtomicBool) -> Result<String> {
    const SIZE: u16 = 64;
    let mut guest = Guest::new(SIZE);
    let vmm = Vmm::introduce(&world.socket("bad.vhost"), FEATURES | INDIRECT, &guest);
    vmm.start(&guest, 0, 0).map_err(|e| e.to_string())?;
    // The header that all share: a read beyond the end.
    let sector = [&[0; 8][..], &(1u64 << 40).to_le_bytes()].concat();
    guest.put(REQUESTS, &sector);
    (0..SIZE).for_each(|head| guest.long_read(head, 1000));
    Ok(repeat(stop, || {
        guest.kick.write(1)?;
        let offered = guest.available;
        while guest.get16(USED + 2) != offered && !stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        (0..SIZE).for_each(|head| guest.offer(head));
        Ok(usize::from(SIZE))
    }))
}

fn vmms(world: &World, stop: &AtomicBool) -> Result<String> {
    let guest = Guest::new(64);
    Ok(repeat(stop, || {
        Vmm::serve(&world.socket("bad.vhost"), &guest);
        Ok(1)
    }))
}

fn control(world: &World, stop: &AtomicBool) -> Result<String> {
    let socket = world.socket("control.sock");
    let clients: io::Result<Vec<UnixStream>> = (0..CONNECTIONS).map(|_| connect(&socket)).collect();
    let mut clients = clients.map_err(|e| e.to_string())?;
    let mut buffer = vec![0; 1 << 20];
    let lines = b"{\"command\":\"status\"}\n".repeat(16);
    Ok(repeat(stop, || {
        let mut answers = 0;
        for client in &mut clients {
            let _ = client.write_all(&lines);
        }
        for client in &mut clients {
            let len = client.read(&mut buffer)?;
            answers += buffer[..len].iter().filter(|byte| **byte == b'\n').count();
        }
        Ok(answers)
    }))
}

/// A script of the auditors' as a process of its own, on this thread's processor.
fn run_script(script: &PathBuf, words: &str, world: &World, stop: &AtomicBool) -> Result<String> {
    let mut command = Command::new("python3");
    command.arg(script).stdout(Stdio::null()).stderr(Stdio::null());
    for word in words.split(' ').skip(1) {
        match word {
            "DIR" => command.arg(world.folder.path()),
            "PORT" => command.arg(world.metrics_port.to_string()),
            // Longer than it is needed for: it is ended.
            "SECONDS" => command.arg("3600"),
            word => command.arg(word),
        };
    }
    // It may start others, which end with it.
    let mut child = command.process_group(0).spawn().map_err(|e| format!("python3: {e}"))?;
    let mut ended = None;
    while !stop.load(Ordering::Relaxed) && ended.is_none() {
        std::thread::sleep(Duration::from_millis(20));
        ended = child.try_wait().map_err(|e| e.to_string())?;
    }
    if let Some(status) = ended {
        return Err(format!("{}: ended early: {status}", script.display()));
    }
    // SAFETY: the group is the child's, which has not been waited for.
    unsafe { libc::kill(-(child.id().cast_signed()), libc::SIGKILL) };
    let _ = child.wait();
    Ok("-".into())
}
