//! The oracle: what a scheduler could give that knows what each VM makes of the disk's time.
//!
//! Each VM runs alone on the whole disk, with everything on and its part of the cache. So it is known
//! how much of the disk's time it uses at most, and what it moves in that. With a part of this time
//! it makes the same part of that progress. The time is divided so that the geometric mean of progress over the VMs
//! without a rate is the highest at which nobody has less than on his private disk; a VM with a
//! rate has just that. Logarithms are concave, so each VM has the same time, but for those that
//! need more and those that cannot use as much (the conditions of Karush, Kuhn and Tucker).
//!
//! It is no strict bound. A sweep over several VMs' requests makes ways shorter than they are for
//! one, and VMs may have more of the cache than an equal part. Alone a VM has all processors: where
//! these are short, the oracle promises too much.

use super::measure::rate;
use super::progress::Scene;
use crate::metrics::RunResult;
use crate::progress::geometric_mean;

/// Steps by which a level is found: its error is 2^-40 of the disk's time.
const STEPS: u32 = 40;

/// What a VM makes of the disk's time.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// The part of the disk's time that it uses alone.
    most: f64,
    /// Its progress with that.
    progress: f64,
    /// It has no use for more progress than 1.
    is_paced: bool,
}

impl Use {
    /// The part of the time with which its progress is 1.
    fn least(self) -> f64 {
        self.most / self.progress.max(1.0)
    }
    /// The part that it has when others without a need have `level`.
    fn at(self, level: f64) -> f64 {
        if self.is_paced { self.least() } else { level.clamp(self.least(), self.most) }
    }
    fn progress_with(self, part: f64) -> f64 {
        if self.most > 0.0 { self.progress * part / self.most } else { self.progress }
    }
}

/// The progress of each VM without a rate when the whole time is divided; none if the time is not
/// enough for everybody's private disk.
fn divided(uses: &[Use]) -> Option<Vec<f64>> {
    let needed = |level: f64| uses.iter().map(|u| u.at(level)).sum::<f64>();
    if needed(0.0) > 1.0 {
        return None;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        *(if needed(middle) <= 1.0 { &mut low } else { &mut high }) = middle;
    }
    let free = uses.iter().filter(|u| !u.is_paced);
    Some(free.map(|u| u.progress_with(u.at(low))).collect())
}

/// The part of the time in which the disk worked for the only VM.
fn busy(r: &RunResult) -> f64 {
    (r.vms[0].device_time.as_secs_f64() / r.simulated.as_secs_f64()).min(1.0)
}

/// The oracle's geometric mean of progress by seed, of the seeds in which nobody lacks time.
pub(super) fn oracle(scene: &Scene<'_>) -> Vec<f64> {
    let vms = || 0..scene.names().len();
    let whole: Vec<Vec<(f64, f64)>> =
        vms().map(|vm| scene.whole(vm, |r| (rate(r, 0), busy(r)))).collect();
    let private: Vec<Vec<f64>> = vms().map(|vm| scene.private(vm, rate)).collect();
    let seeds = whole.iter().map(Vec::len).chain(private.iter().map(Vec::len)).min().unwrap_or(0);
    let of_seed = |seed: usize| {
        let of_vm = |vm: usize| {
            let (ours, most) = whole[vm][seed];
            let progress = ours / private[vm][seed];
            Use { most, progress, is_paced: scene.mix.is_paced(vm) }
        };
        geometric_mean(divided(&vms().map(of_vm).collect::<Vec<_>>())?)
    };
    (0..seeds).filter_map(of_seed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(most: f64, progress: f64) -> Use {
        Use { most, progress, is_paced: false }
    }

    fn near(found: &[f64], wanted: &[f64]) -> bool {
        found.len() == wanted.len() && found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6)
    }

    #[test]
    fn equal_vms_have_equal_time() {
        let progress = divided(&[free(1.0, 8.0); 4]).expect("there is time");
        assert!(near(&progress, &[2.0; 4]), "{progress:?}");
    }

    /// One can use a tenth of the time only, one needs half of it for its private disk, one has a
    /// rate and needs a tenth: 0.3 are left for the last.
    #[test]
    fn who_needs_more_has_it_and_who_cannot_use_it_leaves_it() {
        let paced = Use { most: 0.4, progress: 4.0, is_paced: true };
        let progress = divided(&[free(0.1, 3.0), free(1.0, 2.0), paced, free(1.0, 10.0)]);
        let progress = progress.expect("there is time");
        assert!(near(&progress, &[3.0, 1.0, 3.0]), "{progress:?}");
    }

    #[test]
    fn without_time_for_everybody_there_is_no_answer() {
        assert_eq!(divided(&[free(1.0, 1.5), free(1.0, 1.5)]), None);
        // Who needs no time of the disk takes none.
        let progress = divided(&[free(0.0, 5.0), free(1.0, 1.0)]).expect("there is time");
        assert!(near(&progress, &[5.0, 1.0]), "{progress:?}");
    }
}
