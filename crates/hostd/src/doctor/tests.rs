use super::*;
use crate::config::DiskConfig;
use crate::images;
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// A host on which nothing is wrong, in a folder.
struct Host {
    folder: tempfile::TempDir,
    facts: Facts,
    config: Config,
}

impl Host {
    fn new() -> Host {
        let folder = tempfile::tempdir().unwrap();
        let facts = Facts {
            user: "seekway (990)".into(),
            ring: Ok(Vec::new()),
            descriptors: 65536,
            memlock_bytes: None,
            landlock_abi: Some(6),
            folder: Ok("/run/seekway".into()),
            served: BTreeSet::new(),
            daemon_runs: false,
            unknown_owners: Vec::new(),
        };
        let host = Host { folder, facts, config: Config::default() };
        host.write("proc/sys/kernel/osrelease", "6.12.1-amd64\n");
        host.write("proc/sys/kernel/io_uring_disabled", "0\n");
        host.write("proc/sys/kernel/seccomp/actions_avail", "kill_process trap errno allow\n");
        host.write("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
        host.write("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
        host.write("dev/kvm", "");
        host.write("run/lock", "");
        host.write("sys/block/sda/device/model", "DISK\n");
        host.write("sys/block/sda/queue/scheduler", "[none] mq-deadline bfq\n");
        host.write("sys/block/sda/queue/rotational", "0\n");
        host.write("sys/block/sda/queue/write_cache", "write back\n");
        host.write("sys/block/dm-0/queue/scheduler", "[bfq] none\n");
        host
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.folder.path().join(path)).unwrap();
    }

    /// An image on this machine, served as `web`.
    fn image(&mut self) -> std::path::PathBuf {
        let path = self.folder.path().join("web.img");
        fs::write(&path, [0; 4096]).unwrap();
        self.config.disks = vec![DiskConfig::new("web", &path)];
        path
    }

    /// Say that the device of the image is this folder of sysfs.
    fn image_is_on(&self, disk: &str) {
        let device = fs::metadata(self.folder.path().join("web.img")).unwrap().dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let links = self.folder.path().join("sys/dev/block");
        fs::create_dir_all(&links).unwrap();
        let target = self.folder.path().join("sys/block").join(disk);
        std::os::unix::fs::symlink(target, links.join(format!("{major}:{minor}"))).unwrap();
    }

    fn report(&self) -> DoctorReport {
        examine(&Root::at(self.folder.path()), &self.facts, &self.config)
    }

    /// All findings of a check.
    fn all(&self, check: &str) -> Vec<Finding> {
        self.report().findings.into_iter().filter(|f| f.check == check).collect()
    }

    /// The only finding of a check has this level, and `part` is in what was found or in the fix.
    #[track_caller]
    fn says(&self, check: &str, level: Level, part: &str) {
        let found = self.all(check);
        let [finding] = &found[..] else { panic!("{found:?}") };
        assert_eq!(finding.level, level, "{finding:?}");
        let fix = finding.fix.clone().unwrap_or_default();
        assert!(finding.found.contains(part) || fix.contains(part), "{finding:?}");
        assert_eq!(level == Level::Ok, finding.fix.is_none(), "{finding:?}");
    }
}

#[test]
fn nothing_is_wrong_on_a_good_host() {
    let report = Host::new().report();
    let wrong: Vec<&Finding> = report.findings.iter().filter(|f| f.level != Level::Ok).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!((report.level, report.problems, report.warnings), (Level::Ok, 0, 0));
}

#[test]
fn kernels() {
    let mut host = Host::new();
    host.write("proc/sys/kernel/osrelease", "5.10.0-8-amd64\n");
    host.says("kernel", Level::Problem, "5.19 or later");
    host.write("proc/sys/kernel/osrelease", "5.19\n");
    host.says("kernel", Level::Ok, "5.19");
    host.remove("proc/sys/kernel/osrelease");
    host.says("kernel", Level::Warning, "uname -r");
    host.facts.landlock_abi = Some(2);
    host.says("landlock", Level::Warning, "6.12");
    host.facts.landlock_abi = None;
    host.write("sys/kernel/security/lsm", "lockdown,yama\n");
    host.says("landlock", Level::Warning, "now: lockdown,yama");
    host.remove("proc/sys/kernel/seccomp/actions_avail");
    host.says("seccomp", Level::Warning, "CONFIG_SECCOMP_FILTER");
}

#[test]
fn rings() {
    let mut host = Host::new();
    host.facts.ring = Ok(vec!["SendMsg"]);
    host.says("io_uring", Level::Problem, "lacks the operations SendMsg");
    host.facts.ring = Err((libc::EPERM, "Operation not permitted".into()));
    host.says("io_uring", Level::Problem, "in a container");
    host.write("proc/sys/kernel/io_uring_disabled", "2\n");
    host.says("io_uring", Level::Problem, "sysctl -w kernel.io_uring_disabled=0");
    host.write("proc/sys/kernel/io_uring_disabled", "1\n");
    host.write("proc/sys/kernel/io_uring_group", "114\n");
    host.says("io_uring", Level::Problem, "group 114");
    host.write("proc/sys/kernel/io_uring_group", "-1\n");
    host.says("io_uring", Level::Problem, "sysctl -w");
    host.write("proc/sys/kernel/io_uring_disabled", "0\n");
    host.facts.ring = Err((libc::ENOMEM, "out of memory".into()));
    host.says("io_uring", Level::Problem, "LimitMEMLOCK");
    host.facts.ring = Err((libc::ENOSYS, "not implemented".into()));
    host.says("io_uring", Level::Problem, "CONFIG_IO_URING");
}

#[test]
fn kvm_is_a_warning() {
    let host = Host::new();
    host.remove("dev/kvm");
    host.says("KVM", Level::Warning, "in the firmware");
    host.write("proc/cpuinfo", "flags : fpu svm\n");
    host.says("KVM", Level::Warning, "modprobe kvm_amd");
    host.write("proc/cpuinfo", "flags : fpu vmx\n");
    host.says("KVM", Level::Warning, "modprobe kvm_intel");
    fs::create_dir(host.folder.path().join("dev/kvm")).unwrap();
    host.says("KVM", Level::Warning, "usermod -aG kvm seekway");
}

#[test]
fn limits_of_the_process() {
    let mut host = Host::new();
    host.facts.descriptors = 100;
    host.says("descriptors", Level::Problem, "LimitNOFILE=65536");
    host.facts.descriptors = 1024;
    host.says("descriptors", Level::Warning, "about 15 guests");
    host.facts.descriptors = u64::MAX;
    host.says("descriptors", Level::Ok, "no limit");
    host.facts.memlock_bytes = Some(65536);
    host.says("memlock", Level::Ok, "only --cache-lock");
    host.config.cache_lock = true;
    host.says("memlock", Level::Warning, "LimitMEMLOCK=infinity");
    host.config.cache = Some(crate::config::CacheSize::Bytes(1 << 30));
    host.says("memlock", Level::Problem, "LimitMEMLOCK=infinity");
    host.facts.memlock_bytes = Some(2 << 30);
    host.says("memlock", Level::Ok, "bytes");
}

#[test]
fn memory_matters_to_a_cache_that_follows_it() {
    let mut host = Host::new();
    host.says("memory", Level::Ok, "4096 of 8192 MiB");
    host.write("proc/self/cgroup", "0::/vms\n");
    host.write("sys/fs/cgroup/cgroup.controllers", "memory\n");
    for (file, text) in
        [("memory.max", "1073741824\n"), ("memory.current", "0\n"), ("memory.stat", "")]
    {
        host.write(&format!("sys/fs/cgroup/vms/{file}"), text);
    }
    host.says("memory", Level::Ok, "1024 of 1024 MiB");
    host.remove("proc/pressure/memory");
    host.says("pressure", Level::Warning, "psi=1");
    host.remove("proc/meminfo");
    host.says("memory", Level::Problem, "--cache 512MiB");
    host.config.cache = Some(crate::config::CacheSize::Off);
    assert!(host.all("memory").is_empty() && host.all("pressure").is_empty());
}

#[test]
fn folders_of_sockets() {
    let mut host = Host::new();
    host.says("sockets", Level::Ok, "/run/seekway will be made");
    host.write("run/seekway", "");
    host.says("sockets", Level::Problem, "rm /run/seekway");
    host.remove("run/seekway");
    let folder = host.folder.path().join("run/seekway");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    host.says("sockets", Level::Ok, "/run/seekway can be written");
    host.config.sockets.group = Some("kvm".into());
    host.says("sockets", Level::Warning, "chmod 711 /run/seekway");
    host.says("socket owners", Level::Ok, "they exist");
    host.facts.unknown_owners = vec!["there is no group 'kvm'".into()];
    host.says("socket owners", Level::Problem, "no group 'kvm'");
    host.config.listen = Some(format!("/run/{}", "x".repeat(100)).into());
    host.says("sockets", Level::Problem, "shorter path");
    host.config.listen = None;
    host.facts.daemon_runs = true;
    host.says("sockets", Level::Ok, "a daemon serves there");
    host.facts.folder = Err("XDG_RUNTIME_DIR names none".into());
    host.says("sockets", Level::Problem, "--listen DIR");
    host.config.nbd = Some("127.0.0.1:10809".parse().unwrap());
    host.says("sockets", Level::Ok, "NBD over TCP");
    if !access_is_refused() {
        seekway_testing::skip("a user other than root, whom folders can refuse");
        return;
    }
    host.facts.folder = Ok("/run/seekway".into());
    (host.facts.daemon_runs, host.config.nbd) = (false, None);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o500)).unwrap();
    host.says("sockets", Level::Problem, "chown seekway /run/seekway");
}

fn access_is_refused() -> bool {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o500)).unwrap();
    !images::may(folder.path(), Access::WRITE_OK)
}

#[test]
fn images_that_cannot_be_served() {
    let mut host = Host::new();
    let path = host.image();
    host.says("image", Level::Ok, "4096 bytes, not in use");
    assert_eq!(host.all("image")[0].about.as_deref(), Some("web"));
    host.config.disks[0].block_size = Some(images::BlockSize::B4096);
    fs::write(&path, [0; 700]).unwrap();
    host.says("image", Level::Problem, "truncate -s %");
    host.config.disks[0].block_size = None;
    fs::write(&path, []).unwrap();
    host.says("image", Level::Problem, "truncate -s 10G");
    fs::remove_file(&path).unwrap();
    host.says("image", Level::Problem, "qemu-img create");
    fs::create_dir(&path).unwrap();
    host.says("image", Level::Problem, "a directory");
}

#[test]
fn images_of_others() {
    let mut host = Host::new();
    let path = host.image();
    for read_only in [false, true] {
        let options = images::OpenOptions { read_only, ..images::OpenOptions::writing() };
        let other = images::Image::open(&path, &options).unwrap();
        host.config.disks[0].read_only = false;
        host.says("image", Level::Problem, "fuser -v");
        // Readers go together.
        host.config.disks[0].read_only = true;
        let level = if read_only { Level::Ok } else { Level::Problem };
        host.says("image", level, "web.img");
        host.config.disks[0].read_only = false;
        host.facts.served = BTreeSet::from([fs::canonicalize(&path).unwrap()]);
        host.says("image", Level::Ok, "served by the daemon");
        host.facts.served.clear();
        drop(other);
    }
    // Looking has locked nothing.
    images::Image::open(&path, &images::OpenOptions::writing()).unwrap();
}

#[test]
fn schedulers_below() {
    let mut host = Host::new();
    host.says("scheduler", Level::Ok, "none");
    host.write("sys/block/sda/queue/scheduler", "none [mq-deadline] bfq\n");
    host.says("scheduler", Level::Warning, "echo none > /sys/block/sda/queue/scheduler");
    host.remove("sys/block/sda/queue/scheduler");
    host.says("scheduler", Level::Ok, "no queue");
    // Of an image only the disk below it matters.
    host.write("sys/block/sda/queue/scheduler", "[bfq] none\n");
    host.image();
    host.says("scheduler", Level::Ok, "name no disk");
    host.write("sys/block/vdb/queue/scheduler", "[none] bfq\n");
    host.write("sys/block/vdb/queue/rotational", "1\n");
    host.write("sys/block/vdb/ro", "1\n");
    host.write("sys/block/vdb/vdb1/partition", "1\n");
    host.image_is_on("vdb/vdb1");
    host.says("scheduler", Level::Ok, "none");
    host.says("disk below", Level::Warning, "seekway does not believe it");
    host.says("disk below", Level::Warning, "blockdev --setrw /dev/vdb");
}

#[test]
fn volumes_lead_to_their_disks() {
    let mut host = Host::new();
    host.image();
    host.write("sys/block/sda/queue/scheduler", "[bfq] none\n");
    host.write("sys/block/sdb/sdb2/partition", "2\n");
    host.write("sys/block/sdb/queue/scheduler", "[kyber] none\n");
    let slaves = host.folder.path().join("sys/block/dm-0/slaves");
    fs::create_dir_all(&slaves).unwrap();
    for (name, target) in [("sda", "../../sda"), ("sdb2", "../../sdb/sdb2")] {
        std::os::unix::fs::symlink(target, slaves.join(name)).unwrap();
    }
    host.image_is_on("dm-0");
    let found = host.all("scheduler");
    let about: Vec<_> = found.iter().map(|f| (f.about.as_deref().unwrap(), f.level)).collect();
    assert_eq!(about, [("sda", Level::Warning), ("sdb", Level::Warning)]);
}

#[test]
fn this_host_can_be_asked() {
    let config = Config::default();
    let report = examine(&Root::host(), &Facts::ask(&config), &config);
    // Other tests of this program need a ring too.
    let ring = report.findings.iter().find(|f| f.check == "io_uring").unwrap();
    assert_eq!(ring.level, Level::Ok, "{ring:?}");
}

#[test]
fn a_schema_is_made_of_this_report() {
    seekway_testing::schema::<DoctorReport>("doctor", "seekway doctor --format json");
}
