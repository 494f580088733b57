//! Programs of libnbd, QEMU and fio as clients.

use super::server::{MIB, Server, Setup, run, run_failing};
use crate::common::cache;
use seekway_hostd::reactor::{Message, OpKind};
use std::fs::{self, OpenOptions};

#[test]
fn nbdinfo_sees_size_flags_and_map() {
    let server = Server::one(Setup::default());
    let uri = server.uri();
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), (64 * MIB).to_string());
    let json: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", &uri])).unwrap();
    assert_eq!(json["protocol"], "newstyle-fixed");
    assert_eq!(json["structured"], true);
    let export = &json["exports"][0];
    for can in ["can_df", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"] {
        assert_eq!(export[can], true, "{can} in {export}");
    }
    for cannot in ["is_read_only", "can_cache", "can_fast_zero"] {
        assert_eq!(export[cannot], false, "{cannot} in {export}");
    }
    assert_eq!(export["contexts"][0], "base:allocation");
    assert_eq!(export["block_size_maximum"], 32 * MIB);
    assert_eq!(export["block_size_preferred"], 4096);

    let list = run("nbdinfo", &["--list", "--json", &uri]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["exports"][0]["export-name"], "disk");
    assert_eq!(list["exports"][0]["export-size"], 64 * MIB);

    // A megabyte of data in the middle, holes around it.
    let code = "h.pwrite(b'x' * 1048576, 16 << 20); h.flush()";
    run("nbdsh", &["-u", &uri, "-c", code]);
    let map = run("nbdinfo", &["--map", "--json", &uri]);
    let map: Vec<serde_json::Value> = serde_json::from_str(&map).unwrap();
    let extents: Vec<(u64, u64, u64)> = map
        .iter()
        .map(|e| ["offset", "length", "type"].map(|k| e[k].as_u64().unwrap()).into())
        .collect();
    assert_eq!(
        extents,
        [(0, 16 * MIB, 3), (16 * MIB, MIB, 0), (17 * MIB, 47 * MIB, 3)],
        "holes around one megabyte of data"
    );
}

#[test]
fn a_client_that_asks_for_no_block_sizes_has_any_byte() {
    let server = Server::one(Setup::default());
    // The seed is the same each time.
    let code = r#"
import random
draw = random.Random(7)
h.set_strict_mode(0)
truth = bytearray(64 << 20)
for n in range(200):
    at, length = draw.randrange(1 << 16), 1 + draw.randrange(2000)
    if n % 5 == 0:
        h.zero(length, at, nbd.CMD_FLAG_FUA if n % 2 else 0)
        truth[at:at + length] = bytes(length)
    else:
        data = draw.randbytes(length)
        h.pwrite(data, at)
        truth[at:at + length] = data
for n in range(50):
    at, length = draw.randrange(1 << 16), 1 + draw.randrange(9000)
    assert h.pread(length, at) == truth[at:at + length], (at, length)
h.trim(1, 7)
# The longest request, longer than clients are told of.
assert h.pread((64 << 20) - 1, 1) == truth[1:]
h.pwrite(bytes(48 << 20), 3)
try:
    h.pwrite(b"xy", (64 << 20) - 1)
    raise SystemExit("written behind the end")
except nbd.Error as error:
    assert error.errno == "ENOSPC", error
"#;
    run("nbdsh", &["-u", &server.uri(), "-c", code]);
}

#[test]
fn nbdsh_reads_writes_zeroes_and_trims() {
    let server = Server::one(Setup::default());
    let code = r#"
assert h.get_structured_replies_negotiated()
assert h.can_meta_context("base:allocation")
assert h.get_block_size(nbd.SIZE_MAXIMUM) == 32 << 20
data = bytes(range(256)) * 4096
h.pwrite(data, 1 << 20)
assert h.pread(len(data), 1 << 20) == data
h.pwrite(data[:4096], 0, nbd.CMD_FLAG_FUA)
assert h.pread(512, 512) == data[512:1024]
h.flush()
chunks = []
def chunk(buf, offset, status, error):
    chunks.append((len(buf), offset, status))
assert h.pread_structured(8192, 1 << 20, chunk, nbd.CMD_FLAG_DF) == data[:8192]
assert chunks == [(8192, 1 << 20, nbd.READ_DATA)], chunks
h.zero(4096, 1 << 20)
assert h.pread(8192, 1 << 20) == bytes(4096) + data[4096:8192]
h.zero(4096, (1 << 20) + 4096, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
assert h.pread(8192, 1 << 20) == bytes(8192)
h.trim(65536, (1 << 20) + 65536, nbd.CMD_FLAG_FUA)
assert h.pread(65536, (1 << 20) + 65536) == bytes(65536)
# The longest read and write, and a long zero.
big = bytes(32 << 20)
h.pwrite(big, 8 << 20)
assert h.pread(32 << 20, 8 << 20) == big
h.zero(48 << 20, 0)
extents = []
def extent(context, offset, entries, error):
    extents.append((context, offset, entries))
h.pwrite(data[:65536], 0)
h.block_status(1 << 20, 0, extent)
assert extents == [("base:allocation", 0, [65536, 0, (1 << 20) - 65536, 3])], extents
extents.clear()
h.block_status(1 << 20, 0, extent, nbd.CMD_FLAG_REQ_ONE)
assert extents == [("base:allocation", 0, [65536, 0])], extents
h.shutdown()
"#;
    // Without a context there is no block status; with it, all of the above.
    run("nbdsh", &["--base-allocation", "-u", &server.uri(), "-c", code]);
    server.wait_idle();
    let disk = server.disk(server.disks[0].disk);
    assert!(disk.ops[OpKind::Discard as usize].requests >= 4);
    assert_eq!(disk.ops.iter().map(|op| op.errors).sum::<u64>(), 0);
}

#[test]
fn nbdsh_gets_errors_for_bad_requests_and_may_go_on() {
    let server = Server::one(Setup::default());
    let code = r#"
import errno
h.set_strict_mode(0)
def fails(expected, call, *args):
    try:
        call(*args)
    except nbd.Error as e:
        assert e.errnum == expected, (e, args)
        return
    assert False, args
end = h.get_size()
fails(errno.EINVAL, h.pread, 512, end)
fails(errno.EINVAL, h.pread, 1024, end - 512)
fails(errno.EINVAL, h.pread, 2, end - 1)
fails(errno.ENOSPC, h.pwrite, bytes(1024), end - 512)
fails(errno.ENOSPC, h.pwrite, bytes(1 << 20), end)
fails(errno.ENOSPC, h.zero, 512, end)
fails(errno.EINVAL, h.trim, 512, end)
fails(errno.EINVAL, h.cache, 512, 0)
fails(errno.EINVAL, h.pread, 512, 0, 1 << 10)
fails(errno.EINVAL, h.zero, 512, 0, nbd.CMD_FLAG_FAST_ZERO)
fails(errno.EINVAL, h.block_status, 512, 0, lambda *a: 0)
h.pwrite(b"s" * 512, end - 512)
assert h.pread(512, end - 512) == b"s" * 512
"#;
    run("nbdsh", &["-u", &server.uri(), "-c", code]);
    run("nbdsh", &["-u", &server.uri(), "-c", "assert h.pread(512, 0) == bytes(512)"]);
}

#[test]
fn nbdsh_negotiates_in_every_way() {
    let (server, port) = Server::two(Setup::default());
    let code = format!(
        r#"
def opt():
    h = nbd.NBD()
    h.set_opt_mode(True)
    h.connect_tcp("127.0.0.1", "{port}")
    return h
h = opt()
names = []
assert h.opt_list(lambda name, description: names.append(name)) == 2
assert names == ["web", "db"]
h.set_export_name("nobody")
try:
    h.opt_info()
    assert False
except nbd.Error as e:
    pass
h.set_export_name("db")
h.set_full_info(True)
h.add_meta_context("base:allocation")
h.add_meta_context("x:unknown")
contexts = []
h.opt_list_meta_context(lambda name: contexts.append(name))
assert contexts == ["base:allocation"], contexts
h.opt_info()
assert h.get_size() == 64 << 20
assert h.get_canonical_export_name() == "db"
assert "db" in h.get_export_description()
h.opt_go()
assert h.can_meta_context("base:allocation")
h.pwrite(b"d" * 512, 0)
h.shutdown()
h = opt()
h.opt_abort()
# The old way, with and without its zeroes, and without structured replies.
for flags in (0, nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE, nbd.HANDSHAKE_FLAG_NO_ZEROES):
    h = nbd.NBD()
    h.set_handshake_flags(flags)
    h.set_export_name("web")
    h.connect_tcp("127.0.0.1", "{port}")
    assert h.pread(512, 0) == bytes(512)
    assert flags & 1 or not h.get_structured_replies_negotiated()
    h.shutdown()
h = nbd.NBD()
h.set_request_structured_replies(False)
h.set_export_name("db")
h.connect_tcp("127.0.0.1", "{port}")
assert not h.can_df()
assert h.pread(1024, 0) == b"d" * 512 + bytes(512)
try:
    h.set_strict_mode(0)
    h.pread(512, 64 << 20)
    assert False
except nbd.Error as e:
    assert e.errno == "EINVAL"
h.shutdown()
"#
    );
    run("nbdsh", &["-c", &code]);
    let uri = format!("nbd://127.0.0.1:{port}/web");
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), (64 * MIB).to_string());
    run_failing("nbdinfo", &["--size", &format!("nbd://127.0.0.1:{port}/nobody")]);
    drop(server);
}

#[test]
fn nbdcopy_copies_both_ways() {
    let server = Server::one(Setup::default());
    let source = server.dir.path().join("source");
    let back = server.dir.path().join("back");
    let mut data = crate::common::pattern(1, 20 << 20);
    data.resize(64 << 20, 0);
    fs::write(&source, &data).unwrap();
    let [source, back] = [source, back].map(|p| p.display().to_string());
    run("nbdcopy", &["--flush", &source, &server.uri()]);
    assert!(fs::read(server.image()).unwrap() == data, "the image is not the source");
    run("nbdcopy", &[&server.uri(), &back]);
    assert!(fs::read(&back).unwrap() == data, "what comes back is not the source");
}

#[test]
fn qemu_img_converts_compares_and_measures() {
    let server = Server::one(Setup::default());
    let uri = server.uri();
    let info = run("qemu-img", &["info", "--output=json", &uri]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["virtual-size"], 64 * MIB);
    let raw = server.dir.path().join("raw").display().to_string();
    let mut data = crate::common::pattern(2, 10 << 20);
    data.resize(64 << 20, 0);
    fs::write(&raw, &data).unwrap();
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &raw, &uri]);
    let identical = run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &raw, &uri]);
    assert!(identical.contains("identical"), "{identical}");
    let copy = server.dir.path().join("copy.qcow2").display().to_string();
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &copy]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &raw, &copy]);
    run("qemu-img", &["bench", "-f", "raw", "-c", "2000", "-d", "16", "-s", "4096", &uri]);
    let write = ["-w", "--flush-interval=64"];
    let bench = ["bench", "-f", "raw", "-c", "1000", "-d", "16", "-s", "16384", write[0], write[1]];
    run("qemu-img", &[&bench[..], &[&uri[..]]].concat());
}

#[test]
fn qemu_io_writes_discards_and_zeroes() {
    let server = Server::one(Setup::default());
    let uri = server.uri();
    let commands = [
        "write -P 0x5a 0 1M",
        "read -P 0x5a 0 1M",
        "write -f -P 0x17 64k 64k",
        "read -P 0x17 64k 64k",
        "discard 256k 256k",
        "read -P 0 256k 256k",
        "write -z 512k 64k",
        "write -zu 576k 64k",
        "read -P 0 512k 128k",
        "read -P 0x5a 640k 384k",
        "aio_write -P 0x77 4M 8M",
        "aio_flush",
        "read -P 0x77 4M 8M",
        "flush",
    ];
    let mut args = vec!["-f", "raw", "-d", "unmap"];
    commands.iter().for_each(|c| args.extend(["-c", c]));
    args.push(&uri);
    let out = run("qemu-io", &args);
    assert!(!out.contains("fail"), "{out}");
    run_failing("qemu-io", &["-f", "raw", "-c", "read -P 1 0 4k", &uri]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    for cache in [None, cache(4 << 20)] {
        verify(&Server::one(Setup { cache, ..Setup::default() }));
    }
}

fn verify(server: &Server) {
    let uri = format!("--uri={}", server.uri());
    let common = ["--ioengine=nbd", "--direct=1", "--size=64m", "--verify=crc32c", &uri];
    let jobs = [
        ["--name=random", "--rw=randwrite", "--bsrange=4k-64k", "--iodepth=16", "--io_size=48m"],
        ["--name=mixed", "--rw=randrw", "--bs=4k", "--iodepth=64", "--io_size=24m"],
        ["--name=large", "--rw=write", "--bs=1m", "--iodepth=4", "--io_size=64m"],
    ];
    let dir = server.dir.path().display().to_string();
    let state = ["--verify_state_save=0", "--aux-path", &dir];
    for job in jobs {
        let out = run("fio", &[&common[..], &job, &state].concat());
        assert!(out.contains("err= 0"), "{out}");
    }
}

#[test]
fn read_only_disks_refuse_writes() {
    let server = Server::one(Setup { read_only: true, ..Setup::default() });
    let code = r#"
assert h.is_read_only() and not h.can_trim() and not h.can_zero()
h.set_strict_mode(0)
for call in (lambda: h.pwrite(bytes(4096), 0), lambda: h.zero(4096, 0), lambda: h.trim(4096, 0)):
    try:
        call()
        assert False
    except nbd.Error as e:
        assert e.errno == "EPERM", e
assert h.pread(4096, 0) == bytes(4096)
h.flush()
"#;
    run("nbdsh", &["-u", &server.uri(), "-c", code]);
}

#[test]
fn errors_of_the_disk_reach_the_client() {
    for (fault, name) in [("eio:op=any", "EIO"), ("enospc:op=write", "ENOSPC")] {
        let server = Server::one(Setup { fault: Some(fault), ..Setup::default() });
        let code = format!(
            r#"
try:
    h.pwrite(bytes(4096), 0)
    assert False
except nbd.Error as e:
    assert e.errno == "{name}", e
if "{name}" == "EIO":
    try:
        h.pread(4096, 0)
        assert False
    except nbd.Error as e:
        assert e.errno == "EIO", e
"#
        );
        run("nbdsh", &["-u", &server.uri(), "-c", &code]);
    }
}

#[test]
fn the_next_client_sees_a_resize() {
    let server = Server::one(Setup::default());
    assert_eq!(run("nbdinfo", &["--size", &server.uri()]).trim(), (64 * MIB).to_string());
    OpenOptions::new().write(true).open(server.image()).unwrap().set_len(96 * MIB).unwrap();
    let resized = server.rig().handle.ask(|r| Message::Resize(server.disks[0].disk, true, r));
    assert_eq!(resized, Some(Ok(96 * MIB)));
    let code = "h.pwrite(b'r' * 4096, 80 << 20); assert h.pread(4096, 80 << 20) == b'r' * 4096";
    run("nbdsh", &["-u", &server.uri(), "-c", code]);
}

#[test]
fn connections_see_each_other() {
    for cache in [None, cache(128 << 10)] {
        see_each_other(&Server::one(Setup { cache, ..Setup::default() }));
    }
}

fn see_each_other(server: &Server) {
    let code = format!(
        r#"
hs = [nbd.NBD() for _ in range(4)]
for h in hs:
    h.connect_uri("{}")
    assert h.can_multi_conn()
for round in range(16):
    for i, h in enumerate(hs):
        h.pwrite(bytes([i + 1, round]) * 2048, (round * 4 + i) * 4096)
    hs[round % 4].flush()
    for i in range(4):
        reader = hs[(i + 1) % 4]
        assert reader.pread(4096, (round * 4 + i) * 4096) == bytes([i + 1, round]) * 2048
for h in hs:
    h.shutdown()
"#,
        server.uri()
    );
    run("nbdsh", &["-c", &code]);
    server.wait_idle();
    // Several connections at once, as nbdcopy makes them where it may.
    let copy = server.dir.path().join("copy").display().to_string();
    run("nbdcopy", &["--connections=4", "--threads=4", &server.uri(), &copy]);
    assert!(fs::read(&copy).unwrap() == fs::read(server.image()).unwrap());
}
