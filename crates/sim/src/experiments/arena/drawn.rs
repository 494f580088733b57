//! Scenes that a seed draws, so that nobody has chosen them. What is drawn, and how often, is
//! in docs/arena.md. The same seed and number give the same scene for ever: figures in documents
//! are of such scenes.

use super::read::{DeviceFile, GroupFile, SceneFile, read};
use super::{Scene, Unit};
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
    };
    read(device, &file, shrink).expect("a drawn scene is valid: a test reads many")
}
