//! Random tests that may be given their seed: `SEEKWAY_SEED=n cargo test --test NAME` tries
//! others. A failure prints the seed and the shrunken input.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};

/// Runs `test` on this number of inputs of the strategy. `name` says what is tested.
#[allow(clippy::disallowed_methods)] // a test may be given its seed
pub fn check<S: Strategy>(
    name: &str,
    cases: u32,
    inputs: &S,
    test: impl Fn(S::Value) -> TestCaseResult,
) {
    let seed: u64 = std::env::var("SEEKWAY_SEED").map_or(1, |s| s.parse().expect("a number"));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    if let Err(error) = TestRunner::new_with_rng(config, rng).run(inputs, test) {
        panic!("{name}, SEEKWAY_SEED={seed}: {error}");
    }
}
