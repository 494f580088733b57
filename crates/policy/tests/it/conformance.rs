//! Contract of every policy of the registry.

use crate::common;

use seekway_conformance::{Policy, keeps_contract, starves_as_said};

#[test]
fn every_policy_keeps_the_contract() {
    common::specs().for_each(|spec| keeps_contract(&Policy::registered(spec)));
}

#[test]
fn no_policy_starves_a_vm_unless_it_says_so() {
    common::specs().for_each(|spec| starves_as_said(&Policy::registered(spec)));
}
