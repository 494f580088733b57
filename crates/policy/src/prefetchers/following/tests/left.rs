//! A stretch that a reader has abandoned is named: at once, once, and not while anybody wants it.

use super::*;

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
