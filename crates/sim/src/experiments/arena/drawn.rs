//! Scenes that a seed draws, so that nobody has chosen them. What is drawn, and how often, is
//! in docs/arena.md. The same seed and number give the same scene for ever: figures in documents
//! are of such scenes.

use super::read::{DeviceFile, GroupFile, SceneFile, read};
use super::{Scene, Unit};
use seekway_policy::params::parse_duration;
use seekway_workload::generators::rng::{Rng, split};

/// All images of a scene together have at most this much: they fit on every device.
const IMAGES_GIB: u64 = 90;
/// The largest image of a VM.
const IMAGE_GIB_MAX: u64 = 20;

/// VMs with the same weight and load.
struct Group {
    count: u64,
    weight: u64,
    size_kib: u64,
    depth: u64,
    reads_percent: u64,
    sequential: bool,
}

impl Group {
    fn new(rng: &mut Rng, weighted: bool) -> Group {
        Group {
            count: 1 << rng.below(4),
            weight: if weighted { 1 << rng.below(3) } else { 1 },
            size_kib: 4 << rng.below(9),
            depth: 1 << rng.below(8),
            reads_percent: match rng.below(4) {
                0 | 1 => 100,
                2 => 0,
                _ => 10 * (1 + rng.below(9)),
            },
            sequential: rng.percent(25),
        }
    }

    fn about(&self, weighted: bool) -> String {
        let Group { count, weight, size_kib, depth, reads_percent, sequential } = self;
        let order = if *sequential { "in order" } else { "at random" };
        let what = match reads_percent {
            100 => "reads".to_string(),
            0 => "writes".to_string(),
            percent => format!("accesses, {percent} % reads,"),
        };
        let weight = if weighted { format!(" of weight {weight}") } else { String::new() };
        let plural = if *count == 1 { "" } else { "s" };
        format!("{count} VM{plural}{weight} with {size_kib} KiB {what} {order} at depth {depth}")
    }

    fn load(&self, image_gib: u64) -> String {
        let Group { size_kib, depth, reads_percent, sequential, .. } = self;
        format!(
            "image={image_gib}GiB,app=uniform:size={size_kib}KiB,outstanding={depth},\
             read={reads_percent},sequential={sequential},think=60us"
        )
    }
}

/// Scene `number` of a seed.
pub(super) fn scene(seed: u64, number: u32, devices: &[DeviceFile], shrink: u64) -> Scene {
    let mut rng = Rng::new(split(seed, u64::from(number)));
    let device = &devices[rng.below(devices.len() as u64) as usize];
    let weighted = rng.percent(25);
    let quiet_kib = (!weighted && rng.percent(50)).then(|| 4 << rng.below(3));
    let mut groups: Vec<Group> =
        (0..=rng.below(3)).map(|_| Group::new(&mut rng, weighted)).collect();
    let others: u64 = groups.iter().map(|group| group.count).sum();
    if others == 1 && quiet_kib.is_none() {
        groups[0].count = 2;
    }
    let vms = groups.iter().map(|group| group.count).sum::<u64>() + u64::from(quiet_kib.is_some());
    let image_gib = (IMAGES_GIB / vms).min(IMAGE_GIB_MAX);
    let quiet = quiet_kib.map(|size_kib: u64| {
        format!("image={image_gib}GiB,app=uniform:size={size_kib}KiB,outstanding=1,think=60us")
    });
    let mut about: Vec<String> =
        quiet_kib.iter().map(|size_kib| format!("a quiet VM ({size_kib} KiB)")).collect();
    about.extend(groups.iter().map(|group| group.about(weighted)));
    let group = |group: &Group| GroupFile {
        load: group.load(image_gib),
        count: group.count as u32,
        weight: group.weight as u32,
    };
    let file = SceneFile {
        name: format!("drawn-{number:02}"),
        about: about.join("; "),
        on: vec![device.name.clone()],
        quiet,
        vms: groups.iter().map(group).collect(),
        unit: Unit::default(),
        steady: true,
        // Where weights say whose requests wait, latency is not judged.
        latency: !weighted,
        shares: true,
        groups: Vec::new(),
        settle: None,
        measure: None,
        place: 0,
        group: None,
        late: None,
        prefetch: false,
    };
    read(device, &file, shrink).expect("a drawn scene is valid: a test reads many")
}

/// Everyday scenes are drawn from a seed that has this mixed in: the others stay as they were.
const EVERYDAY: u64 = 0x6576_6572_7964_6179;
/// All requests that a VM of an everyday scene has outstanding, together.
const OUTSTANDING_KIB: u64 = 256 << 10;
/// From here on a request is long: the scene is measured for longer.
const LONG_KIB: u64 = 4 << 10;

/// The quiet VM of an everyday scene, and whether the host has a cache.
struct Everyday {
    late_ms: u64,
    pause_ms: u64,
    prefetch: bool,
    measure_ms: u64,
}

impl Everyday {
    fn new(rng: &mut Rng, others: &[Group]) -> Everyday {
        let late_ms = if rng.percent(50) { 250 * (1 + rng.below(8)) } else { 0 };
        let pauses_ms = [50, 100, 200, 500, 1_000, 2_000];
        let pause_ms = if rng.percent(50) { pauses_ms[rng.below(6) as usize] } else { 0 };
        let long = others.iter().any(|group| group.size_kib >= LONG_KIB);
        // Some reads of the VM that pauses, and of who asks for much.
        let measure_ms = (6 * pause_ms).max(if long { 4_000 } else { 0 });
        Everyday { late_ms, pause_ms, prefetch: rng.percent(50), measure_ms }
    }

    fn about(&self, size_kib: u64) -> String {
        let Everyday { late_ms, pause_ms, prefetch, .. } = self;
        let mut about = format!("a quiet VM ({size_kib} KiB)");
        if *late_ms > 0 {
            about += &format!(" that comes after {late_ms} ms");
        }
        if *pause_ms > 0 {
            about += &format!(" and pauses for {pause_ms} ms");
        }
        about + if *prefetch { ", cache and prefetcher on" } else { "" }
    }

    fn load(&self, size_kib: u64, image_gib: u64) -> String {
        let think = match self.pause_ms {
            0 => "60us".to_string(),
            pause_ms => format!("{pause_ms}ms"),
        };
        format!("image={image_gib}GiB,app=uniform:size={size_kib}KiB,outstanding=1,think={think}")
    }
}

/// Up to four VMs with requests of 64 KiB to 64 MiB.
fn everyday_group(rng: &mut Rng) -> Group {
    let size_kib = 64 << rng.below(11);
    let deepest = (OUTSTANDING_KIB / size_kib).min(64);
    Group {
        count: 1 << rng.below(3),
        weight: 1,
        size_kib,
        depth: 1 << rng.below(u64::from(deepest.ilog2()) + 1),
        reads_percent: match rng.below(4) {
            0 => 10 * rng.below(10),
            _ => 100,
        },
        sequential: rng.percent(50),
    }
}

/// Everyday scene `number` of a seed.
pub(super) fn everyday(seed: u64, number: u32, devices: &[DeviceFile], shrink: u64) -> Scene {
    let mut rng = Rng::new(split(seed ^ EVERYDAY, u64::from(number)));
    let device = &devices[rng.below(devices.len() as u64) as usize];
    let groups: Vec<Group> = (0..=rng.below(2)).map(|_| everyday_group(&mut rng)).collect();
    let quiet = Everyday::new(&mut rng, &groups);
    let size_kib = 4 << rng.below(3);
    let vms = 1 + groups.iter().map(|group| group.count).sum::<u64>();
    let image_gib = (IMAGES_GIB / vms).min(IMAGE_GIB_MAX);
    let about = [quiet.about(size_kib)].into_iter().chain(groups.iter().map(|g| g.about(false)));
    let group = |group: &Group| GroupFile {
        load: group.load(image_gib),
        count: group.count as u32,
        weight: 1,
    };
    let ms = |text: &str| parse_duration(text).expect("of the file").get() / 1_000_000;
    let settle_ms = ms(&device.settle).max(quiet.late_ms);
    let measure_ms = ms(&device.measure).max(quiet.measure_ms);
    let file = SceneFile {
        name: format!("drawn-everyday-{number:02}"),
        about: about.collect::<Vec<_>>().join("; "),
        on: vec![device.name.clone()],
        quiet: Some(quiet.load(size_kib, image_gib)),
        vms: groups.iter().map(group).collect(),
        unit: Unit::default(),
        // Windows of a VM that pauses, and of long requests, say nothing.
        steady: false,
        latency: true,
        shares: true,
        groups: Vec::new(),
        settle: Some(format!("{settle_ms}ms")),
        measure: Some(format!("{measure_ms}ms")),
        place: 0,
        group: Some("drawn".into()),
        late: (quiet.late_ms > 0).then(|| format!("{}ms", quiet.late_ms)),
        prefetch: quiet.prefetch,
    };
    read(device, &file, shrink).expect("a drawn scene is valid: a test reads many")
}
