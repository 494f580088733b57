//! Proposals that go along with a read to a busy head.

use super::*;

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
