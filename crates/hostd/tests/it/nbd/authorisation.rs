//! Which client may open which disk, by the names in its certificate: libnbd's and QEMU's clients at
//! the address of all disks of a real daemon.

use super::server::{run, run_failing};
use super::tls::{certificate, certificates};
use crate::common::daemon::{Running, loopback};
use crate::common::image;
use seekway_hostd::config::{Config, DiskConfig, TlsConfig};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A daemon with the disk `alice`, `both` and `all`, for clients of those certificates.
struct World {
    daemon: Running,
    certificates: TempDir,
    port: u16,
}

impl World {
    fn start() -> World {
        let (folder, certificates) = (tempfile::tempdir().unwrap(), certificates());
        let disk = |name: &str, allow: &[&str]| {
            let path = image(&folder, &format!("{name}.img"), 1 << 20);
            let allow = allow.iter().map(|name| name.to_string()).collect();
            DiskConfig { allow, ..DiskConfig::new(name, path) }
        };
        let file = |name: &str| Some(certificates.path().join(name));
        let config = Config {
            nbd: loopback(),
            disks: vec![
                disk("alice", &["Alice"]),
                disk("both", &["Alice", "bob.example.org"]),
                disk("all", &[]),
            ],
            tls: TlsConfig {
                cert: file("server-cert.pem"),
                key: file("server-key.pem"),
                client_ca: file("ca-cert.pem"),
                required: false,
            },
            ..Config::default()
        };
        let daemon = Running::start_in(folder, config);
        let port = daemon.tcp("nbd").port();
        World { daemon, certificates, port }
    }

    /// Makes a folder of certificates for a client with this subject, and this other name. Returns
    /// its path.
    fn client(&self, subject: &str, other: Option<&str>) -> PathBuf {
        let folder = self.certificates.path().join(subject);
        fs::create_dir(&folder).unwrap();
        certificate(self.certificates.path(), "one", &format!("/CN={subject}"), other);
        fs::copy(self.certificates.path().join("ca-cert.pem"), folder.join("ca-cert.pem")).unwrap();
        for part in ["cert", "key"] {
            let made = self.certificates.path().join(format!("one-{part}.pem"));
            fs::rename(made, folder.join(format!("client-{part}.pem"))).unwrap();
        }
        folder
    }

    fn uri(&self, certificates: &Path, export: &str) -> String {
        let (port, folder) = (self.port, certificates.display());
        format!("nbds://localhost:{port}/{export}?tls-certificates={folder}")
    }

    /// The exports that a client is told of, by libnbd and by QEMU.
    fn listed(&self, certificates: &Path) -> Vec<String> {
        let list = run("nbdinfo", &["--list", "--json", &self.uri(certificates, "")]);
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let exports = list["exports"].as_array().unwrap().iter();
        let names: Vec<String> =
            exports.map(|e| e["export-name"].as_str().unwrap().to_string()).collect();
        let folder = certificates.display();
        let creds = format!("tls-creds-x509,id=t,endpoint=client,dir={folder}");
        let port = self.port.to_string();
        let args =
            ["--list", "-b", "localhost", "-p", &port, "--object", &creds, "--tls-creds", "t"];
        let list = run("qemu-nbd", &args);
        let by_qemu = list.lines().filter_map(|line| line.trim().strip_prefix("export: '"));
        let by_qemu: Vec<&str> = by_qemu.map(|name| name.trim_end_matches('\'')).collect();
        assert_eq!(by_qemu, names);
        names
    }
}

#[test]
fn a_disk_is_for_the_clients_that_it_names() {
    let world = World::start();
    let alice = world.client("Alice", None);
    let bob = world.client("Robert", Some("subjectAltName=DNS:bob.example.org"));
    let eve = world.client("alice", Some("subjectAltName=DNS:Alice.example.org"));
    let size =
        |client: &Path, export: &str| run("nbdinfo", &["--size", &world.uri(client, export)]);
    for (client, exports) in
        [(&alice, &["alice", "all", "both"][..]), (&bob, &["all", "both"]), (&eve, &["all"])]
    {
        assert_eq!(world.listed(client), exports);
        exports.iter().for_each(|export| assert_eq!(size(client, export), "1048576\n"));
    }
    // What a client may not have is told from what there is not by nothing.
    let refusal = |client: &Path, export: &str| {
        let text = run_failing("nbdinfo", &["--size", &world.uri(client, export)]);
        text.replace(export, "EXPORT")
    };
    assert_eq!(refusal(&bob, "alice"), refusal(&bob, "there-is-none"));
    assert_eq!(refusal(&eve, "both"), refusal(&eve, "there-is-none"));
    // The default export is the only one that this client can see.
    assert_eq!(size(&eve, ""), "1048576\n");
    run_failing("nbdinfo", &["--size", &world.uri(&bob, "")]);
    // Without TLS a client shows no certificate. At a disk's own socket, its owner and mode decide.
    let plain = format!("nbd://localhost:{}", world.port);
    run_failing("nbdinfo", &["--size", &format!("{plain}/all")]);
    run_failing("nbdinfo", &["--size", &format!("{plain}/both")]);
    run_failing("qemu-img", &["info", &format!("{plain}/alice")]);
    let socket = world.daemon.path("alice.nbd");
    run("nbdinfo", &["--size", &format!("nbd+unix:///?socket={}", socket.display())]);
}

#[test]
fn names_need_an_authority() {
    let daemon = Running::start(Config::default());
    let disk = DiskConfig { allow: vec!["Alice".into()], ..daemon.disk("a") };
    let refused = daemon.host.attach(&disk).map(drop).unwrap_err().to_string();
    assert!(refused.contains("--tls-client-ca"), "{refused}");
}
