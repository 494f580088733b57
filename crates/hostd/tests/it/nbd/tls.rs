//! Sessions over TLS: libnbd's GnuTLS against our rustls.

use super::server::{Server, Setup, run, run_failing};
use crate::common::dir;
use seekway_hostd::frontends::nbd::{TlsError, tls_config};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A directory as libnbd wants it: an authority, and certificates of it for
/// "localhost" as server and for a client.
pub fn certificates() -> TempDir {
    let dir = dir();
    let authority = "-keyout ca-key.pem -out ca-cert.pem -subj /CN=authority";
    openssl(dir.path(), &format!("req -x509 {KEY} {authority}"));
    let of_server = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    certificate(dir.path(), "server", "/CN=localhost", Some(of_server));
    certificate(dir.path(), "client", "/CN=client", Some("extendedKeyUsage=clientAuth"));
    dir
}

/// Options for making keys.
const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";

/// Make NAME-cert.pem and NAME-key.pem, signed by the authority of the directory.
pub fn certificate(dir: &Path, name: &str, subject: &str, extra: Option<&str>) {
    let extra = extra.map_or(String::new(), |extra| format!(" -addext {extra}"));
    openssl(
        dir,
        &format!(
            "req -x509 {KEY} -keyout {name}-key.pem -out {name}-cert.pem -subj {subject} \
             -CA ca-cert.pem -CAkey ca-key.pem -addext basicConstraints=critical,CA:false{extra}"
        ),
    );
}

fn openssl(dir: &Path, args: &str) {
    let output = Command::new("openssl").args(args.split(' ')).current_dir(dir).output();
    let output = output.expect("openssl is not installed: it is in Debian's package openssl");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {args}: {err}");
}

fn setup(dir: &Path, client_ca: bool, tls_required: bool) -> Setup<'static> {
    let ca = dir.join("ca-cert.pem");
    let ca = client_ca.then_some(&*ca);
    let tls = tls_config(&dir.join("server-cert.pem"), &dir.join("server-key.pem"), ca).unwrap();
    Setup { tls: Some(tls), tls_required, ..Setup::default() }
}

fn tls_uri(server: &Server, certificates: &Path) -> String {
    let (socket, dir) = (server.socket(), certificates.display());
    format!("nbds+unix://localhost/?socket={}&tls-certificates={dir}", socket.display())
}

#[test]
fn libnbd_works_over_tls() {
    let certificates = certificates();
    let server = Server::one(setup(certificates.path(), false, false));
    let uri = tls_uri(&server, certificates.path());
    let info = run("nbdinfo", &["--json", &uri]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["TLS"], true, "{info}");
    // Both directions at once, more than all buffers together.
    let code = r#"
h = nbd.NBD()
h.set_uri_allow_local_file(True)
h.connect_uri("URI")
assert h.get_tls_negotiated()
data = bytes(range(256)) * 8192
buffers = [nbd.Buffer.from_bytearray(bytearray(data)) for _ in range(8)]
into = [nbd.Buffer(2 << 20) for _ in range(8)]
for i, b in enumerate(buffers):
    h.aio_pwrite(b, i << 21)
while h.aio_in_flight():
    h.poll(-1)
for i in range(8):
    h.aio_pread(into[i], i << 21)
    h.aio_pwrite(buffers[i], (i << 21) + (16 << 20))
while h.aio_in_flight():
    h.poll(-1)
for b in into:
    assert b.to_bytearray() == data
h.flush()
assert h.pread(2 << 20, 30 << 20) == data
h.shutdown()
"#;
    run("nbdsh", &["-c", &code.replace("URI", &uri)]);
    // TLS is an offer here.
    run("nbdsh", &["-u", &server.uri(), "-c", "assert not h.get_tls_negotiated()"]);
    let back = server.dir.path().join("back").display().to_string();
    run("nbdcopy", &[&uri, &back]);
    assert!(fs::read(&back).unwrap() == fs::read(server.image()).unwrap());
    server.wait_idle();
}

#[test]
fn required_tls_is_required() {
    let certificates = certificates();
    let server = Server::one(setup(certificates.path(), true, true));
    run("nbdinfo", &["--size", &tls_uri(&server, certificates.path())]);
    run_failing("nbdinfo", &["--size", &server.uri()]);
    run_failing("qemu-img", &["info", &server.uri()]);
    // A client without a certificate.
    let bare = dir();
    fs::copy(certificates.path().join("ca-cert.pem"), bare.path().join("ca-cert.pem")).unwrap();
    run_failing("nbdinfo", &["--size", &tls_uri(&server, bare.path())]);
    run("nbdinfo", &["--size", &tls_uri(&server, certificates.path())]);
}

#[test]
fn certificates_that_cannot_serve_are_named() {
    let dir = certificates();
    let file = |name: &str| dir.path().join(name);
    let (cert, key) = (file("server-cert.pem"), file("server-key.pem"));
    let missing = tls_config(&file("nothing.pem"), &key, None).unwrap_err();
    assert!(matches!(&missing, TlsError::Pem { expected: "a certificate", .. }));
    assert!(missing.to_string().contains("nothing.pem"), "{missing}");
    let swapped = tls_config(&key, &cert, None).unwrap_err();
    assert!(matches!(swapped, TlsError::Pem { .. }), "{swapped}");
    let other = tls_config(&cert, &file("client-key.pem"), None).unwrap_err();
    assert!(matches!(other, TlsError::Pair { .. }), "{other}");
    let no_ca = tls_config(&cert, &key, Some(&key)).unwrap_err();
    assert!(matches!(no_ca, TlsError::Pem { .. }), "{no_ca}");
}
