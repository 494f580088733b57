//! Processes that share the limit of their VM.

use super::*;

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
