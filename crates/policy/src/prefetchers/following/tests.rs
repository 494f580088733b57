//! The rules, one by one, on hand-computed sequences of reads.

use super::*;
use crate::prefetchers;
use seekway_core::prefetcher::Stream;

const DISK: u64 = 1 << 21;

/// A guest's request: 128 KiB.
const READ: u64 = 256;

/// A prefetcher, one VM, and a clock.
struct Scene {
    prefetcher: Box<dyn Prefetcher>,
    now: Instant,
    /// Stretches that readers have abandoned until now, `start..end`.
    left: Vec<(u64, u64)>,
}

const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

impl Scene {
    fn new(spec: &str) -> Scene {
        Scene::of(prefetchers::build(spec).unwrap())
    }

    /// The continuous form without a bound, and so without corrections.
    fn unbounded(threshold: Option<f64>) -> Scene {
        Scene::of(Box::new(StreamFollower::new(None, threshold, None, Key::Process)))
    }

    fn of(mut prefetcher: Box<dyn Prefetcher>) -> Scene {
        prefetcher.attach(Instant::ZERO, VmId::new(0), Sectors::new(DISK));
        Scene { prefetcher, now: Instant::ZERO, left: Vec::new() }
    }

    fn wait(&mut self, span: Nanos) {
        self.now = self.now + span;
    }

    /// Nobody reads for `span`: the prefetcher is asked only when it wants to be, as by an engine.
    fn pause(&mut self, span: Nanos) {
        let end = self.now + span;
        while let Some(wake) = self.prefetcher.next_wake().filter(|&wake| wake <= end) {
            self.now = self.now.max(wake);
            self.proposals();
        }
        self.now = end;
    }

    fn access(&mut self, tag: u16, start: u64, len: u64, missed: u64, late: u64) {
        let access = Access {
            vm: VmId::new(0),
            tag: ProcessTag::new(tag),
            extent: Extent::new(Lba::new(start), Sectors::new(len)).unwrap(),
            missed: Sectors::new(missed),
            late: Sectors::new(late),
        };
        self.prefetcher.accessed(self.now, &access);
        let left = std::iter::from_fn(|| self.prefetcher.left(self.now));
        self.left.extend(left.map(|extent| (extent.start().get(), extent.end().get())));
    }

    /// A read that misses; then a millisecond passes.
    fn miss(&mut self, tag: u16, start: u64, len: u64) {
        self.access(tag, start, len, len, 0);
        self.wait(ms(1));
    }

    /// A read that hits; then a millisecond passes.
    fn hit(&mut self, tag: u16, start: u64, len: u64) {
        self.access(tag, start, len, 0, 0);
        self.wait(ms(1));
    }

    /// All that is proposed now, `start..end`, neighbours joined.
    fn proposals(&mut self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        while let Some(p) = self.prefetcher.propose(self.now, Sectors::new(1 << 14)) {
            let (start, end) = (p.extent.start().get(), p.extent.end().get());
            match all.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                Some(last) if last.0 == end => last.0 = start,
                _ => all.push((start, end)),
            }
        }
        all
    }

    /// Proposals after a first read there.
    fn after(mut self, start: u64) -> Vec<(u64, u64)> {
        self.miss(8, start, READ);
        self.proposals()
    }

    fn streams(&self) -> Vec<Stream> {
        let mut all = Vec::new();
        self.prefetcher.streams(&mut |s| all.push(*s));
        all
    }
}

#[test]
fn an_interval_of_reads_is_prefetched_in_the_next() {
    let mut scene = Scene::new("vio");
    for n in 0..4 {
        scene.miss(8, n * READ, READ);
    }
    assert_eq!(scene.proposals(), []);
    assert_eq!(scene.prefetcher.next_wake(), Some(Instant::ZERO + ms(500)));
    scene.now = Instant::ZERO + ms(500);
    // Three of four were linear: 0.75 of the interval's blocks.
    assert_eq!(scene.proposals(), [(4 * READ, 7 * READ)]);
    assert_eq!(scene.streams()[0].linear, 0.75);
    // Nobody reads any more: the next interval ends, and is the last.
    scene.now = Instant::ZERO + ms(1000);
    assert_eq!(scene.proposals(), []);
    assert_eq!(scene.prefetcher.next_wake(), None);
}

#[test]
fn continuous_windows_double_while_reads_are_late() {
    let mut scene = Scene::new("vio:interval=continuous");
    scene.miss(8, 0, READ);
    scene.miss(8, READ, READ);
    assert_eq!(scene.proposals(), []);
    // The second linear read: two reads' length.
    scene.miss(8, 2 * READ, READ);
    assert_eq!(scene.proposals(), [(3 * READ, 5 * READ)]);
    // In time: half of it is left, and is filled up.
    scene.hit(8, 3 * READ, READ);
    assert_eq!(scene.proposals(), [(5 * READ, 6 * READ)]);
    // Late: a read longer, and one ahead is read.
    scene.access(8, 4 * READ, READ, 0, READ);
    assert_eq!(scene.proposals(), [(6 * READ, 8 * READ)]);
    assert!(scene.streams()[0].armed);
}

/// Reads at these places that miss, and an interval's end: what is proposed, and
/// the linear share.
fn after_interval(spec: &str, reads: &[(u64, u64)]) -> (Vec<(u64, u64)>, f64) {
    let mut scene = Scene::new(spec);
    for &(start, len) in reads {
        scene.miss(8, start, len);
    }
    scene.now = Instant::ZERO + ms(500);
    let proposals = scene.proposals();
    (proposals, scene.streams()[0].linear)
}

#[test]
fn downward_reads_are_prefetched_downwards() {
    let reads = [(4000, 100), (3900, 100), (3800, 100), (3700, 100)];
    assert_eq!(after_interval("vio", &reads), (vec![(3400, 3700)], 0.75));
    // To the disk's beginning, and no further.
    let reads = [(400, 100), (300, 100), (200, 100), (100, 100)];
    assert_eq!(after_interval("vio", &reads).0, [(0, 100)]);
}

#[test]
fn strides_are_prefetched_record_by_record() {
    // Six reads, of which the third and those after it repeat the jump.
    let up: Vec<_> = (0..6).map(|n| (n * 1000, 50)).collect();
    let (proposals, share) = after_interval("vio", &up);
    assert_eq!(proposals, [(6000, 6050), (7000, 7050), (8000, 8050), (9000, 9050)]);
    assert_eq!(share, 4.0 / 6.0);
    let down: Vec<_> = (0..6).map(|n| (10_000 - n * 1000, 50)).collect();
    let (proposals, _) = after_interval("vio", &down);
    assert_eq!(proposals, [(4000, 4050), (3000, 3050), (2000, 2050), (1000, 1050)]);
    // A record in two requests; a quota of 2·5 + 3 requests.
    let split: Vec<_> = (0..4).flat_map(|n| [(n * 1000, 50), (n * 1000 + 50, 50)]).collect();
    let (proposals, share) = after_interval("vio", &split);
    assert_eq!(share, 6.0 / 8.0);
    assert_eq!(proposals, [(4000, 4100), (5000, 5100), (6000, 6100)]);
}

#[test]
fn far_strides_show_in_a_process_that_does_nothing_else() {
    let far: Vec<_> = (0..6).map(|n| (n * 100_000, 50)).collect();
    let mut scene = Scene::new("vio");
    far.iter().for_each(|&(start, len)| scene.miss(8, start, len));
    scene.now = Instant::ZERO + ms(500);
    assert_eq!(scene.proposals().first(), Some(&(600_000, 600_050)));
}

#[test]
fn requests_that_overtake_each_other_belong_to_one_stream() {
    for order in [[0, 2, 1, 3, 5, 4, 6], [0, 3, 2, 1, 4, 6, 5], [0, 1, 4, 2, 3, 6, 5]] {
        let reads: Vec<_> = order.iter().map(|n| (n * READ, READ)).collect();
        let (proposals, share) = after_interval("vio", &reads);
        assert_eq!(share, 6.0 / 7.0, "{order:?}");
        assert_eq!(proposals, [(7 * READ, 13 * READ)], "{order:?}");
        let down: Vec<_> = order.iter().map(|n| ((99 - n) * READ, READ)).collect();
        let (proposals, share) = after_interval("vio", &down);
        assert_eq!(share, 6.0 / 7.0, "{order:?}");
        assert_eq!(proposals, [(87 * READ, 93 * READ)], "{order:?}");
    }
}

#[test]
fn what_is_not_linear_enough_is_not_prefetched_for() {
    // Two of four follow: half.
    let reads = [(0, 100), (100, 100), (1000, 100), (1100, 100)];
    assert_eq!(after_interval("vio", &reads), (vec![], 0.5));
    assert_eq!(after_interval("vio:threshold=0.49", &reads).0, [(1200, 1400)]);
    // The larger read counts more: 300 of 500.
    let reads = [(0, 100), (100, 300), (1000, 100)];
    assert_eq!(after_interval("vio:threshold=0.59", &reads).1, 0.6);
}

/// The end of an interval in which two processes read three times in line each and wanted 768
/// sectors more each, of which the device has 512 to spare.
fn scarce(spec: &str) -> Scene {
    let mut scene = Scene::new(spec);
    // Beside them one process reads four times at random: 1024 sectors.
    for n in 0..4 {
        scene.miss(8, n * READ, READ);
        scene.miss(9, 100_000 + n * READ, READ);
        scene.miss(10, 200_000 + n * n * n * 7919, READ);
    }
    // BW_T is 4096 sectors a second, T·BW_T 2048. Linear reads are 3·256 of each; what is
    // random besides the four is the first of each: T·BW_A = 2048 - 6·256 = 512.
    scene.prefetcher.bandwidth(4096 * 512);
    scene.now = Instant::ZERO + ms(500);
    scene
}

#[test]
fn the_device_is_shared_by_those_that_are_armed() {
    let mut scene = scarce("vio");
    // Wanted are 2·768: a third is to be had, 256 for each.
    assert_eq!(scene.proposals(), [(4 * READ, 5 * READ), (100_000 + 4 * READ, 100_000 + 5 * READ)]);
}

#[test]
fn to_the_letter_the_device_bounds_each_stream_and_each_goes_whole() {
    let mut scene = scarce("vio:literal=true");
    // Each of both may have all of it, one after the other.
    assert_eq!(scene.proposals(), [(4 * READ, 6 * READ), (100_000 + 4 * READ, 100_000 + 6 * READ)]);
    assert!(scene.prefetcher.fetches_as_demand());
    assert!(!Scene::new("vio").prefetcher.fetches_as_demand());
}

#[test]
fn a_hosts_own_read_ahead_goes_on_beside_it() {
    let mut scene = Scene::new("vio:literal=true,host=linux");
    // Linux's first window: no more than what was read, twice, and its next when that is reached.
    scene.miss(8, 0, READ);
    let host = scene.proposals();
    assert_eq!(host, Scene::new("linux").after(0));
    assert_ne!(host, []);
    (1..4).for_each(|n| scene.miss(8, n * READ, READ));
    scene.proposals();
    scene.now = Instant::ZERO + ms(500);
    assert_eq!(scene.proposals(), [(4 * READ, 7 * READ)]);
}

#[test]
fn random_reads_take_from_what_may_be_prefetched() {
    for (spec, tag) in [("vio", 9), ("vio", 0), ("vio:interval=continuous", 9)] {
        let mut scene = Scene::new(spec);
        scene.prefetcher.bandwidth(100 << 20);
        (0..4).for_each(|n| scene.access(8, n * READ, READ, READ, 0));
        // 640 reads of 64 KiB, 6.2 MiB and more apart: 40 MiB in 500 ms.
        for n in 0..640 {
            scene.access(tag, (1 << 15) + n * n * 12_799 % 163 * 12_701, 128, 128, 0);
            scene.wait(Nanos::from_micros(781));
        }
        scene.now = Instant::ZERO + ms(500);
        assert_eq!(scene.prefetcher.propose(scene.now, Sectors::ZERO), None);
        let mut budget = 0.0;
        scene.prefetcher.metrics(&mut |name, value| {
            if name == "budget_bytes" {
                budget = value / f64::from(1 << 20);
            }
        });
        // 50 MiB less 40, and the stream's first read.
        assert!((9.5..=10.0).contains(&budget), "{spec}, tag {tag}: {budget} MiB");
        assert!(scene.streams().iter().any(|s| s.armed), "{spec}, tag {tag}");
    }
}

#[test]
fn aggressiveness_follows_what_reached_the_disk() {
    let mut scene = Scene::new("vio");
    (0..4).for_each(|n| scene.miss(8, n * READ, READ));
    scene.now = Instant::ZERO + ms(500);
    scene.proposals();
    assert_eq!(scene.streams()[0].scale, 1.0);
    // Prefetched for, and still they reach the disk: S = 1.25, a quota of 4·256·1.25.
    (4..8).for_each(|n| scene.miss(8, n * READ, READ));
    scene.now = Instant::ZERO + ms(1000);
    assert_eq!(scene.proposals(), [(8 * READ, 13 * READ)]);
    assert_eq!(scene.streams()[0].scale, 1.25);
    // None does, and 5 reads were proposed for 3: S = 1.
    (8..11).for_each(|n| scene.hit(8, n * READ, READ));
    scene.now = Instant::ZERO + ms(1500);
    scene.proposals();
    assert_eq!(scene.streams()[0].scale, 1.0);
}

#[test]
fn flashy_is_blind_where_vio_sees() {
    let near = 1 << 20;
    for (spec, tags, from, armed) in [
        ("flashy", (8, 9), near, 0),
        ("flashy", (8, 8), REGION, 2),
        // In one set of regions, told apart all the same.
        ("flashy", (8, 8), 256 * REGION, 2),
        ("vio", (8, 9), near, 2),
        ("vio", (0, 0), near, 2),
    ] {
        let mut scene = Scene::new(spec);
        for n in 0..8 {
            scene.miss(tags.0, n * READ, READ);
            scene.miss(tags.1, from + n * READ, READ);
        }
        scene.now = Instant::ZERO + ms(500);
        scene.proposals();
        let count = scene.streams().iter().filter(|s| s.armed).count();
        assert_eq!(count, armed, "{spec} {tags:?} {from}");
    }
}

#[test]
fn a_jump_drops_what_was_planned() {
    let mut scene = Scene::new("vio:interval=continuous");
    (0..3).for_each(|n| scene.miss(8, n * READ, READ));
    scene.miss(8, 10 * READ, READ);
    assert_eq!(scene.proposals(), []);
    // The stream goes on where it jumped to, when enough is linear again: 4 of 6 reads.
    scene.miss(8, 11 * READ, READ);
    assert_eq!(scene.proposals(), []);
    scene.miss(8, 12 * READ, READ);
    assert_eq!(scene.proposals(), [(13 * READ, 16 * READ)]);
}

#[test]
fn streams_propose_by_turns_and_within_the_room() {
    let mut scene = Scene::new("vio");
    for n in 0..4 {
        scene.miss(8, n * READ, READ);
        scene.miss(9, 100_000 + n * READ, READ);
    }
    scene.now = Instant::ZERO + ms(500);
    let mut tags = Vec::new();
    while let Some(p) = scene.prefetcher.propose(scene.now, Sectors::new(128)) {
        assert!(p.extent.len() <= Sectors::new(128));
        tags.push(p.tag.unwrap().get());
    }
    assert_eq!(tags, [8, 9].repeat(6));
    assert_eq!(scene.prefetcher.propose(scene.now, Sectors::ZERO), None);
}

#[test]
fn nothing_is_proposed_past_the_disks_end() {
    let reads: Vec<_> = (1..5).rev().map(|n| (DISK - n * 100 - 50, 100)).collect();
    assert_eq!(after_interval("vio", &reads).0, [(DISK - 50, DISK)]);
}

#[test]
fn random_reads_do_not_drive_out_a_stream() {
    let mut scene = Scene::new("vio:interval=continuous");
    (0..3).for_each(|n| scene.miss(0, n * READ, READ));
    assert_eq!(scene.proposals(), [(3 * READ, 5 * READ)]);
    for n in 1..200 {
        scene.miss(0, (1 << 17) + n * n * 37 % 230 * 8192, 8);
    }
    scene.hit(0, 3 * READ, READ);
    assert_eq!(scene.proposals(), [(5 * READ, 6 * READ)]);
}

/// Files of five reads, one after the other far apart, in a process of their own.
fn short_files(scene: &mut Scene, files: u64) -> u64 {
    let mut proposed = 0;
    for file in 0..files {
        for n in 0..5 {
            scene.miss(8, file * 10_000 + n * READ, READ);
            let new = scene.proposals();
            proposed += new.iter().map(|(start, end)| end - start).sum::<u64>();
        }
    }
    proposed
}

#[test]
fn waste_makes_patient() {
    let mut scene = Scene::new("vio:interval=continuous");
    assert!(short_files(&mut scene, 30) > 0);
    assert_eq!(short_files(&mut scene, 10), 0);
    // A long file is prefetched for none the less, once it has shown that it is one.
    let mut proposed = 0;
    for n in 0..64 {
        scene.miss(9, 1_000_000 + n * READ, READ);
        proposed += scene.proposals().len();
    }
    assert!(proposed > 0);
    // The paper's rules know no patience.
    let mut scene = Scene::unbounded(Some(THRESHOLD));
    short_files(&mut scene, 30);
    assert!(short_files(&mut scene, 10) > 0);
}

#[test]
fn literal_is_the_paper_without_a_lead() {
    let ahead = |spec: &str| {
        let mut scene = Scene::new(spec);
        (0..128).for_each(|n| scene.miss(8, n * READ, READ));
        scene.now = Instant::ZERO + ms(500);
        scene.proposals().iter().map(|(start, end)| end - start).sum::<u64>()
    };
    assert_eq!(ahead("vio"), 8192);
    assert_eq!(ahead("vio:literal=true"), 127 * READ);
    assert_eq!(ahead("flashy"), 127 * READ);
    for ours in ["interval=continuous", "threshold=auto"] {
        assert!(prefetchers::build(&format!("vio:literal=true,{ours}")).is_err(), "{ours}");
    }
}

#[test]
fn the_threshold_finds_itself() {
    // Runs of four reads here and there: 3 of 4 are linear.
    let runs = |threshold: Option<f64>| {
        let mut scene = Scene::unbounded(threshold);
        let mut late = 0;
        for n in 0..2000u64 {
            scene.miss(8, (n / 4).pow(2) * 7919 % (1 << 20) + n % 4 * READ, READ);
            let new = scene.proposals().len();
            late += if n < 1900 { 0 } else { new };
        }
        late
    };
    assert_eq!(runs(None), 0);
    assert!(runs(Some(THRESHOLD)) > 0);
}

/// Files of seven late reads, one after the other far apart in one process: each
/// leaves more proposals behind than were of use.
fn wasteful_files(scene: &mut Scene, files: u64) {
    for n in 0..files * 7 {
        scene.access(8, n / 7 * 10_000 + n % 7 * READ, READ, 0, READ);
        scene.proposals();
        scene.wait(ms(1));
    }
}

/// Runs of seven reads with short, unequal gaps by the same process or another with its
/// tag: six of seven are linear. Is it prefetched for?
fn gappy_file_is_prefetched(scene: &mut Scene) -> bool {
    let mut proposed = 0;
    for n in 0..70 {
        let (run, place) = (n / 7, n % 7 * READ);
        scene.miss(8, 1_000_000 + run * 3_000 + run * run % 11 * 50 + place, READ);
        proposed += scene.proposals().len();
    }
    proposed > 0
}

#[test]
fn a_threshold_is_not_inherited() {
    for mut scene in [Scene::new("vio:interval=continuous,threshold=auto"), Scene::unbounded(None)]
    {
        wasteful_files(&mut scene, 40);
        assert!(!gappy_file_is_prefetched(&mut scene));
        scene.pause(ms(10_000));
        assert!(gappy_file_is_prefetched(&mut scene));
    }
}

#[test]
fn impatience_comes_back_in_time() {
    let mut scene = Scene::new("vio:interval=continuous");
    assert!(short_files(&mut scene, 30) > 0);
    assert_eq!(short_files(&mut scene, 10), 0);
    scene.pause(ms(30_000));
    assert!(short_files(&mut scene, 1) > 0);
}

#[test]
fn a_stream_whose_reader_left_is_not_armed() {
    for spec in ["vio", "vio:interval=continuous", "flashy"] {
        let mut scene = Scene::new(spec);
        for n in 0..600 {
            scene.miss(8, n * READ, READ);
            scene.proposals();
        }
        assert!(scene.streams()[0].armed, "{spec}");
        scene.pause(ms(10_000));
        assert!(!scene.streams()[0].armed, "{spec}");
        // Its reader comes back: it begins with a window of two reads, or an interval.
        scene.miss(8, 600 * READ, READ);
        let new: u64 = scene.proposals().iter().map(|(start, end)| end - start).sum();
        assert!(new <= 2 * READ, "{spec}: {new} sectors");
    }
}

#[test]
fn losses_halve_the_lead() {
    let mut scene = Scene::new("vio:interval=continuous");
    let furthest = |scene: &mut Scene, from: u64| {
        let mut most = 0;
        for n in from..from + 600 {
            scene.access(8, n * READ, READ, 0, READ);
            let end = scene.proposals().last().map_or(0, |p| p.1);
            most = most.max(end.saturating_sub((n + 1) * READ));
        }
        most
    };
    assert_eq!(furthest(&mut scene, 0), 8192);
    let lost = Extent::new(Lba::new(1 << 20), Sectors::new(1 << 16)).unwrap();
    scene.prefetcher.evicted(scene.now, VmId::new(0), lost, false);
    scene.wait(ms(500));
    assert_eq!(furthest(&mut scene, 600), 4096);
}

// Proposals that go along with a read to a busy head.

/// As much goes along with a read as its reader has read by its pattern, right behind it, no more
/// than `most`; not again before the reader has come there; nothing for a random reader.
#[test]
fn what_a_reader_wants_next_goes_along() {
    let mut scene = Scene::new("vio");
    let along = |scene: &mut Scene, most: u64| {
        let proposal = scene.prefetcher.along(scene.now, Sectors::new(most));
        proposal.map(|p| (p.extent.start().get(), p.extent.end().get()))
    };
    scene.miss(8, 0, READ);
    assert_eq!(along(&mut scene, 1 << 11), None, "one read proves nothing");
    scene.miss(8, READ, READ);
    assert_eq!(along(&mut scene, 1 << 11), None, "nor does one that follows it");
    scene.miss(8, 2 * READ, READ);
    assert_eq!(along(&mut scene, 1 << 11), Some((3 * READ, 5 * READ)));
    assert_eq!(along(&mut scene, 1 << 11), None, "its reader has not come there yet");
    scene.hit(8, 3 * READ, READ);
    scene.hit(8, 4 * READ, READ);
    scene.miss(8, 5 * READ, READ);
    assert_eq!(along(&mut scene, READ), Some((6 * READ, 7 * READ)), "no more than there is room");
    for n in [90, 20, 70, 40, 10, 60] {
        scene.miss(9, n * 4 * READ, READ);
        assert_eq!(along(&mut scene, 1 << 11), None, "a random reader");
    }
    let mut literal = Scene::new("vio:literal=true");
    (0..9).for_each(|n| literal.miss(8, n * READ, READ));
    assert_eq!(along(&mut literal, 1 << 11), None, "the paper has no such thing");
}

/// A process that reads short files from their beginnings: once that is known, what is left of one
/// goes along with its first read, however much else was prefetched in vain.
#[test]
fn the_rest_of_a_short_file_goes_along_with_its_first_read() {
    let mut scene = Scene::new("vio:interval=continuous");
    short_files(&mut scene, 40);
    scene.proposals();
    assert!(scene.streams().iter().all(|stream| !stream.armed), "patience has grown");
    let mut went_along = Vec::new();
    for n in 0..12 {
        let start = 2_000_000 + n * 10_000;
        for page in 0..3 {
            scene.miss(5, start + page * 8, 8);
            let along = scene.prefetcher.along(scene.now, Sectors::new(1 << 11));
            went_along.extend(along.map(|p| (n, p.extent.start().get() - start, p.extent.len())));
        }
    }
    // Before, the third read shows that the file goes on; from the ninth file on, the first.
    let first = |n: u64| went_along.iter().find(|along| along.0 == n).copied();
    assert_eq!(first(4), Some((4, 24, Sectors::new(16))));
    assert_eq!(first(9), Some((9, 8, Sectors::new(16))));
}

/// While demand keeps a head busy nothing asks for proposals. What goes along then leaves a stream's
/// place in the turns as it is: it does not take another each time.
#[test]
fn what_goes_along_takes_no_more_places_in_the_turns() {
    let lead = Some(Sectors::from_bytes(4 << 20));
    let mut follower = StreamFollower::new(None, Some(THRESHOLD), lead, Key::Process);
    let vm = VmId::new(0);
    follower.attach(Instant::ZERO, vm, Sectors::new(DISK));
    let mut went_along = 0;
    for n in 0..1_000 {
        let extent = Extent::new(Lba::new(n * 8), Sectors::new(8)).unwrap();
        let missed = extent.len();
        let access = Access { vm, tag: ProcessTag::new(8), extent, missed, late: Sectors::ZERO };
        follower.accessed(Instant::ZERO, &access);
        went_along += u32::from(follower.along(Instant::ZERO, Sectors::new(8)).is_some());
    }
    assert!(went_along > 100, "{went_along}");
    assert_eq!(follower.queue.len(), 1);
}

// A stretch that a reader has abandoned is named: at once, once, and not while anybody wants it.

/// Sectors of 1 MiB, and reads in it.
const MIB: u64 = 2048;

const READS: u64 = MIB / READ;

/// Both of our forms; the paper's letter names nothing.
const FORMS: [&str; 2] = ["vio", "vio:interval=continuous"];

impl Scene {
    /// Late reads of `mib` MiB in sequence, and all proposals: where the furthest ends.
    fn stream(&mut self, tag: u16, start: u64, mib: u64) -> u64 {
        let mut end = 0;
        for n in 0..mib * READS {
            self.access(tag, start + n * READ, READ, 0, READ);
            end = self.proposals().into_iter().map(|p| p.1).fold(end, u64::max);
            self.wait(ms(2));
        }
        end
    }
}

#[test]
fn what_a_reader_left_is_named_once() {
    for spec in FORMS {
        let mut scene = Scene::new(spec);
        let end = scene.stream(8, 0, 64);
        assert!(end >= 66 * MIB, "{spec}: {end}");
        scene.access(8, 200 * MIB, READ, 0, READ);
        assert_eq!(scene.left, [], "{spec}: it may come back");
        scene.stream(8, 200 * MIB + READ, 1);
        assert_eq!(scene.left, [(64 * MIB, end)], "{spec}");
        scene.stream(8, 201 * MIB + READ, 30);
        assert_eq!(scene.left.len(), 1, "{spec}");
    }
}

#[test]
fn the_papers_letter_names_nothing() {
    let mut scene = Scene::new("vio:literal=true");
    scene.stream(8, 0, 64);
    scene.stream(8, 200 * MIB, 64);
    assert_eq!(scene.left, []);
}

/// The loads in which each stream is gone on with.
#[test]
fn nothing_is_left_by_turns() {
    for spec in FORMS {
        // `files` files by turns of `turn` MiB, after the first turns have shown it.
        for (tag, files, turn) in [(8, 2, 1), (8, 2, 4), (8, 8, 1), (0, 16, 1)] {
            let mut scene = Scene::new(spec);
            for round in 0..12 {
                if round == 3 {
                    scene.left.clear();
                }
                for file in 0..files {
                    scene.stream(tag, file * 60 * MIB + round * turn * MIB, turn);
                }
            }
            assert_eq!(scene.left, [], "{spec}: {files} files by {turn} MiB");
        }
        // A scan, and as many reads at random between.
        let mut scene = Scene::new(spec);
        for n in 0..4000 {
            scene.access(0, n * READ, READ, 0, READ);
            scene.miss(0, (1 << 20) + n * n * 37 % 12_289 * 80, 8);
            scene.proposals();
        }
        assert_eq!(scene.left, [], "{spec}");
    }
}

#[test]
fn what_another_reader_comes_to_is_not_left() {
    for (start, is_left) in [(20, true), (60, false), (64, false)] {
        let mut scene = Scene::new("vio:interval=continuous");
        scene.stream(8, 0, 64);
        scene.stream(9, start * MIB, 1);
        scene.stream(8, 200 * MIB, 2);
        let is_named = scene.left.iter().any(|left| left.0 == 64 * MIB);
        assert_eq!(is_named, is_left, "another at {start} MiB: {:?}", scene.left);
    }
}

// Processes that share the limit of their VM.

/// One process reads in sequence and another at random, as fast as their VM's limit lets them: the
/// number of proposals, if the limit holds `held_percent` of the reads.
fn proposed_at_a_limit(spec: &str, held_percent: u64, random: u64) -> usize {
    let (mut scene, mut proposed) = (Scene::new(spec), 0);
    for n in 0..2000 {
        for (tag, start, len) in [(8, n * READ, READ), (9, (1 << 20) + n * n % 7919 * 128, random)]
        {
            let held = Sectors::new(len * held_percent / 100);
            scene.prefetcher.held(VmId::new(0), held);
            scene.access(tag, start, len, len, 0);
        }
        let new = scene.proposals().len();
        proposed += if n < 1000 { 0 } else { new };
        scene.wait(ms(1));
    }
    proposed
}

#[test]
fn no_process_takes_another_ones_part_of_a_limit() {
    for spec in ["vio", "vio:interval=continuous"] {
        assert_eq!(proposed_at_a_limit(spec, 90, 2 * READ), 0, "{spec}");
        assert!(proposed_at_a_limit(spec, 40, 2 * READ) > 0, "{spec}: there is room below it");
        assert!(proposed_at_a_limit(spec, 90, READ / 2) > 0, "{spec}: most of it is its own");
    }
    assert!(proposed_at_a_limit("vio:literal=true", 90, 2 * READ) > 0);
}
