//! The search for the parameters, their precision, and the model's error.

use super::drive::{
    Beside, CHANNEL, COUNT, DIES, FlashDrive, HOST, KEYS, PAGE_KIB, PROGRAM, READ, READ_COMMAND,
    READ_LATENCY, WRITE_COMMAND, WRITE_LATENCY,
};
use super::load::Observed;
use super::matrix::Cell;
use crate::profile::Profile;
use thiserror::Error;

/// Largest standard error of a determined parameter, as a share of it.
pub const TOLD_ERROR_MAX: f64 = 0.1;
/// Fewest cells that are fitted.
const CELLS_MIN: usize = 3;
/// With fewer reads the quiet reader's mean says nothing.
const READER_READS_MIN: u64 = 5;
/// Least standard error of a figure: the difference of two measurements of one cell.
const FIGURE_ERROR_MIN: f64 = 0.02;
/// A figure that changes by less while a parameter doubles does not depend on it: it is the
/// chance of a short run.
const CHANGE_MIN: f64 = 0.03;
/// Squared standard errors by which a figure is clearly worse.
const CLEARLY: f64 = 4.0;
/// Dies with which a search begins.
const DIES_TRIED: [f64; 3] = [4.0, 16.0, 64.0];
/// Rounds of a descent, at most.
const ROUNDS_MAX: usize = 60;

/// A cell as it was measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    pub cell: Cell,
    pub seen: Observed,
}

impl Measured {
    /// Logarithms of the ratios of the model's IOPS and of its quiet reader's mean latency to the
    /// measured ones; the second one if there were enough reads.
    fn errors(&self, model: &Observed) -> [Option<f64>; 2] {
        let reader = (model.reader_mean_us / self.seen.reader_mean_us).ln();
        let has_reader = self.seen.reader_reads >= READER_READS_MIN;
        [Some((model.iops / self.seen.iops).ln()), has_reader.then_some(reader)]
    }
}

/// Precision of a fitted parameter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Told {
    /// Fitted; its standard error as a share of it.
    Fitted(f64),
    /// The cells tell it less well than [`TOLD_ERROR_MAX`], and do not allow the default.
    Roughly,
    /// The cells allow the default.
    Not,
}

/// There is no fit: too few cells of the fitted half were measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{found} cells of the fitted half of the matrix were measured; a fit needs {CELLS_MIN}")]
pub struct TooFew {
    found: usize,
}

/// The fitted drive, and the precision of its parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Fit {
    pub drive: FlashDrive,
    pub told: [Told; COUNT],
    /// Is [`FlashDrive::beside`] clearly better than its default?
    pub beside_told: bool,
}

/// Fits a drive to the cells of the fitted half. `run` simulates these cells on a profile, in order.
///
/// # Errors
/// [`TooFew`].
pub fn fit(
    measured: &[Measured],
    run: &mut dyn FnMut(&Profile, &[Cell]) -> Vec<Observed>,
) -> Result<Fit, TooFew> {
    let fitted: Vec<Measured> = measured.iter().filter(|m| m.cell.is_fitted()).copied().collect();
    if fitted.len() < CELLS_MIN {
        return Err(TooFew { found: fitted.len() });
    }
    let cells = fitted.iter().map(|m| m.cell).collect();
    let mut search = Search { measured: fitted, cells, run };
    let all = [true; COUNT];
    // A search that begins far from the drive's dies ends in another valley.
    let starts = DIES_TRIED.map(|dies| search.descend(search.guess(dies), &all, 0.7, 0.2));
    let lowest = |a: &&(FlashDrive, f64), b: &&(FlashDrive, f64)| a.1.total_cmp(&b.1);
    let start = *starts.iter().min_by(lowest).expect("several");
    let mut best = search.descend(start.0, &all, 0.3, 0.1);
    let mut beside_told = false;
    if search.cells.iter().any(|c| c.writes_percent > 0) {
        for beside in [Beside::GoesFirst, Beside::Suspends] {
            let other = search.descend(FlashDrive { beside, ..start.0 }, &all, 0.7, 0.1);
            if other.1 + search.margin(other.1, COUNT) < best.1 {
                (best, beside_told) = (other, true);
            }
        }
    }
    best = search.descend(best.0, &all, 0.1, 0.01);
    let (drive, told) = search.tell(best);
    Ok(Fit { drive, told, beside_told })
}

/// Parameters that are multiplied by a factor together, and one whose time shrinks by as much as
/// the last one's grows.
struct Move {
    scaled: &'static [usize],
    pays: Option<usize>,
}

/// Each parameter alone; and directions that leave a figure alone, along which the search would
/// creep.
static MOVES: [Move; COUNT + 7] = [
    alone(&[READ_COMMAND]),
    alone(&[READ]),
    alone(&[READ_LATENCY]),
    alone(&[WRITE_COMMAND]),
    alone(&[WRITE_LATENCY]),
    alone(&[PROGRAM]),
    alone(&[CHANNEL]),
    alone(&[HOST]),
    alone(&[DIES]),
    // Programs in a second, reads in a second, and both.
    alone(&[DIES, PROGRAM]),
    alone(&[DIES, READ]),
    alone(&[DIES, READ, PROGRAM]),
    // The time of a single read and of a single write.
    Move { scaled: &[READ], pays: Some(READ_LATENCY) },
    Move { scaled: &[READ_COMMAND], pays: Some(READ_LATENCY) },
    Move { scaled: &[DIES, READ], pays: Some(READ_LATENCY) },
    Move { scaled: &[WRITE_COMMAND], pays: Some(WRITE_LATENCY) },
];

const fn alone(scaled: &'static [usize]) -> Move {
    Move { scaled, pays: None }
}

impl Move {
    fn uses(&self, n: usize) -> bool {
        self.scaled.contains(&n) || self.pays == Some(n)
    }

    fn apply(&self, drive: &FlashDrive, factor: f64) -> FlashDrive {
        let mut moved = self.scaled.iter().fold(*drive, |drive, &n| scaled(&drive, n, factor));
        if let (Some(pays), Some(&n)) = (self.pays, self.scaled.last()) {
            let left = moved.values[pays] - (moved.values[n] - drive.values[n]);
            moved.values[pays] = left.clamp(KEYS[pays].min, KEYS[pays].max);
        }
        moved
    }
}

struct Search<'a> {
    measured: Vec<Measured>,
    cells: Vec<Cell>,
    run: &'a mut dyn FnMut(&Profile, &[Cell]) -> Vec<Observed>,
}

impl Search<'_> {
    /// Logarithms of the ratios of all figures; 0 where nothing is known.
    fn errors(&mut self, drive: &FlashDrive) -> Vec<f64> {
        let Ok(model) = drive.model() else { return vec![f64::INFINITY; 2 * self.cells.len()] };
        let models = (self.run)(&model, &self.cells);
        let pairs = self.measured.iter().zip(&models);
        pairs.flat_map(|(m, model)| m.errors(model)).map(|e| e.unwrap_or(0.0)).collect()
    }

    fn score(&mut self, drive: &FlashDrive) -> f64 {
        self.errors(drive).iter().map(|e| e * e).sum()
    }

    /// Variance of a figure, by the residue of a fit with `free` parameters.
    fn variance(&self, score: f64, free: usize) -> f64 {
        let figures = 2 * self.cells.len();
        let left = figures.saturating_sub(free).max(1);
        (score / left as f64).max(FIGURE_ERROR_MIN * FIGURE_ERROR_MIN)
    }

    /// A score that is higher by more than this is clearly worse.
    fn margin(&self, score: f64, free: usize) -> f64 {
        CLEARLY * self.variance(score, free)
    }

    /// Start of the search with `dies` dies, from bounds that the cells show directly.
    fn guess(&self, dies: f64) -> FlashDrive {
        let most = |of: &dyn Fn(&Measured) -> f64| self.measured.iter().map(of).fold(0.0, f64::max);
        let bytes = |m: &Measured| m.seen.iops * f64::from(m.cell.kib) * 1024.0;
        let writes = |m: &Measured| f64::from(m.cell.writes_percent) / 100.0;
        let least_us = 1.0 / most(&|m| 1.0 / m.seen.reader_mean_us);
        let command_us = 5e5 / most(&|m| m.seen.iops).max(1.0);
        let mut drive = FlashDrive::default();
        let written = most(&|m| bytes(m) * writes(m));
        let mut set = |n: usize, value: f64| {
            drive.values[n] = value.clamp(KEYS[n].min, KEYS[n].max);
        };
        set(READ_COMMAND, command_us);
        set(DIES, dies);
        set(READ, 0.8 * least_us);
        set(READ_LATENCY, 0.1 * least_us);
        set(HOST, 1.2e-6 * most(&bytes));
        set(CHANNEL, KEYS[CHANNEL].default.max(0.4e-6 * most(&bytes)));
        if written > 0.0 {
            set(WRITE_COMMAND, command_us);
            set(PROGRAM, 1e6 * dies * f64::from(PAGE_KIB) * 1024.0 / written);
        }
        drive
    }

    /// Goes down from `drive` by moves of the parameters that are `free`: each by the factor
    /// e^`step` at first, by half of that where neither direction is better, and so on until all
    /// steps are below `finest`. The drive and its score.
    fn descend(
        &mut self,
        drive: FlashDrive,
        free: &[bool; COUNT],
        step: f64,
        finest: f64,
    ) -> (FlashDrive, f64) {
        let may = |m: &&Move| (0..COUNT).all(|n| free[n] || !m.uses(n));
        let mut moves: Vec<(&Move, f64)> = MOVES.iter().filter(may).map(|m| (m, step)).collect();
        let mut best = (drive, self.score(&drive));
        for _ in 0..ROUNDS_MAX {
            for (way, step) in &mut moves {
                if step.abs() < finest {
                    continue;
                }
                let found = [*step, -*step].into_iter().find_map(|by| {
                    let tried = way.apply(&best.0, by.exp());
                    let is_new = tried != best.0;
                    let score = if is_new { self.score(&tried) } else { f64::INFINITY };
                    (score < best.1).then_some((tried, score, by))
                });
                match found {
                    // That direction first the next time.
                    Some((tried, score, by)) => (best, *step) = ((tried, score), by),
                    None => *step /= 2.0,
                }
            }
            if moves.iter().all(|(_, step)| step.abs() < finest) {
                break;
            }
        }
        best
    }

    /// Gives undetermined parameters their defaults, the least determined first, where the others
    /// can make up for that.
    fn tell(&mut self, fitted: (FlashDrive, f64)) -> (FlashDrive, [Told; COUNT]) {
        let errors = self.standard_errors(&fitted);
        let mut told = errors.map(Told::Fitted);
        let mut order: Vec<usize> = (0..COUNT).filter(|&n| errors[n] > TOLD_ERROR_MAX).collect();
        order.sort_by(|&a, &b| errors[b].total_cmp(&errors[a]));
        let (mut free, mut best) = ([true; COUNT], fitted);
        let allowed = fitted.1 + self.margin(fitted.1, COUNT);
        for n in order {
            free[n] = false;
            let mut without = best.0;
            without.values[n] = KEYS[n].default;
            let without = self.descend(without, &free, 0.2, 0.02);
            if without.1 <= allowed {
                (best, told[n]) = (without, Told::Not);
            } else {
                (free[n], told[n]) = (true, Told::Roughly);
            }
        }
        // Another drive fits as well, and differs there.
        let moved = |n: usize| (best.0.values[n] / fitted.0.values[n]).ln().abs();
        for (n, told) in told.iter_mut().enumerate() {
            if matches!(told, Told::Fitted(_)) && moved(n) > TOLD_ERROR_MAX {
                *told = Told::Roughly;
            }
        }
        (best.0, told)
    }

    /// Of each parameter while all others are free, as a share of it: from how the figures change
    /// with each. Infinite where none does.
    fn standard_errors(&mut self, best: &(FlashDrive, f64)) -> [f64; COUNT] {
        let changes: Vec<Vec<f64>> = (0..COUNT).map(|n| self.changes(&best.0, n)).collect();
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let rows = changes.iter().map(|a| changes.iter().map(|b| product(a, b)).collect());
        let inverse = inverse_diagonal(rows.collect());
        let variance = self.variance(best.1, COUNT);
        std::array::from_fn(|n| (variance * inverse[n]).sqrt())
    }

    /// Changes of each figure's logarithm with that of a parameter, around the drive.
    fn changes(&mut self, drive: &FlashDrive, n: usize) -> Vec<f64> {
        // Dies come in whole eights.
        let by: f64 = if n == DIES { 2.0 } else { 2_f64.sqrt() };
        let ends = [1.0 / by, by].map(|by| scaled(drive, n, by));
        let span = (ends[1].value(n) / ends[0].value(n)).ln();
        let [low, high] = ends.map(|end| self.errors(&end));
        let change = |(low, high): (&f64, &f64)| {
            let change = high - low;
            if span > 0.0 && change.abs() >= CHANGE_MIN { change / span } else { 0.0 }
        };
        low.iter().zip(&high).map(change).collect()
    }
}

/// The drive with one value multiplied, within its range.
fn scaled(drive: &FlashDrive, n: usize, factor: f64) -> FlashDrive {
    let mut values = drive.values;
    values[n] = (values[n] * factor).clamp(KEYS[n].min, KEYS[n].max);
    FlashDrive { values, ..*drive }
}

/// The diagonal of the inverse of a symmetric matrix without negative eigenvalues (Gauss-Jordan). A
/// little on the diagonal keeps a singular one solvable, with a huge inverse.
fn inverse_diagonal(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    const LITTLE: f64 = 1e-9;
    let size = rows.len();
    for (n, row) in rows.iter_mut().enumerate() {
        row[n] += LITTLE;
        row.extend((0..size).map(|column| f64::from(u8::from(column == n))));
    }
    for n in 0..size {
        let pivot = rows[n][n].max(LITTLE * LITTLE);
        rows[n].iter_mut().for_each(|value| *value /= pivot);
        let row = rows[n].clone();
        for (_, other) in rows.iter_mut().enumerate().filter(|(other, _)| *other != n) {
            let factor = other[n];
            other.iter_mut().zip(&row).for_each(|(value, by)| *value -= factor * by);
        }
    }
    (0..size).map(|n| rows[n][size + n].max(0.0)).collect()
}

/// Error of a model in a half of the matrix.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Judgement {
    /// Mean of |model / measured - 1| over IOPS and the quiet reader's means.
    pub mean: f64,
    /// Cell and figure with the largest error, and model / measured - 1 there.
    pub worst: (Cell, &'static str, f64),
}

/// Compares models of the same cells, in order, with the measurement: of the fitted half or the
/// other one. `None` if nothing of it was measured.
pub fn judge(measured: &[Measured], models: &[Observed], fitted: bool) -> Option<Judgement> {
    let half = measured.iter().zip(models).filter(|(m, _)| m.cell.is_fitted() == fitted);
    let figures: Vec<(Cell, &'static str, f64)> = half
        .flat_map(|(m, model)| {
            let named = ["IOPS", "mean of the reader"].into_iter().zip(m.errors(model));
            named.filter_map(|(name, error)| Some((m.cell, name, error?.exp() - 1.0)))
        })
        .collect();
    let worst = figures.iter().max_by(|a, b| a.2.abs().total_cmp(&b.2.abs()))?;
    let sum: f64 = figures.iter().map(|(_, _, off)| off.abs()).sum();
    Some(Judgement { mean: sum / figures.len() as f64, worst: *worst })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_inverted_and_a_singular_one_has_a_huge_inverse() {
        let near = |found: f64, value: f64| assert!((found - value).abs() < 1e-6, "{found}");
        let found = inverse_diagonal(vec![vec![4.0, 1.0], vec![1.0, 3.0]]);
        near(found[0], 3.0 / 11.0);
        near(found[1], 4.0 / 11.0);
        // Two parameters whose product alone shows, and one that shows alone.
        let rows = [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 2.0]];
        let found = inverse_diagonal(rows.iter().map(|row| row.to_vec()).collect());
        assert!(found[0] > 1e6 && found[1] > 1e6, "{found:?}");
        near(found[2], 0.5);
    }

    #[test]
    fn what_is_off_is_said_of_each_half() {
        let cell = |depth| Cell { kib: 4, writes_percent: 0, depth };
        let seen = |iops, reader_reads| Observed {
            commands: 9,
            iops,
            reader_reads,
            reader_mean_us: 100.0,
        };
        let measured = [
            Measured { cell: cell(1), seen: seen(100.0, 50) },
            Measured { cell: cell(8), seen: seen(100.0, 50) },
            Measured { cell: cell(128), seen: seen(200.0, 1) },
        ];
        let models = [seen(100.0, 50), seen(90.0, 50), seen(240.0, 50)];
        let held = judge(&measured, &models, false).expect("one cell");
        assert_eq!(held.mean, 0.0);
        // Of the last one, which had one read, only the IOPS count.
        let fitted = judge(&measured, &models, true).expect("two cells");
        assert!((fitted.mean - (0.1 + 0.0 + 0.2) / 3.0).abs() < 1e-9, "{fitted:?}");
        assert_eq!((fitted.worst.0, fitted.worst.1), (cell(128), "IOPS"));
        assert!(judge(&measured[..1], &models, true).is_none());
    }

    #[test]
    fn a_move_pays_for_what_becomes_longer() {
        let drive = FlashDrive::default();
        let way = Move { scaled: &[READ], pays: Some(READ_LATENCY) };
        let moved = way.apply(&drive, 1.5);
        let sum = |d: &FlashDrive| d.values[READ] + d.values[READ_LATENCY];
        assert!((sum(&moved) - sum(&drive)).abs() < 1e-9 && moved.values[READ] > 45.0);
        // It cannot pay more than it has.
        assert_eq!(way.apply(&drive, 9.0).values[READ_LATENCY], KEYS[READ_LATENCY].min);
    }

    #[test]
    fn too_few_cells_are_no_fit() {
        let none = fit(&[], &mut |_, _| Vec::new());
        assert_eq!(none, Err(TooFew { found: 0 }));
    }
}
