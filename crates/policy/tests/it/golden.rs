//! One scene under every policy of the registry, as text in `tests/golden`.
//! `UPDATE_EXPECT=1 cargo test -p seekway-policy --test it golden` rewrites them.

use expect_test::expect_file;
use seekway_conformance::{Policy, decisions};
use seekway_policy::schedulers::REGISTRY;

#[test]
fn every_policy_decides_as_written() {
    for &entry in REGISTRY.iter() {
        let text = decisions(&Policy::new(entry, ""));
        expect_file![format!("../golden/{}.txt", entry.name)].assert_eq(&text);
    }
}
