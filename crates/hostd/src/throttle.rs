//! The throttle (VPT): makes a fast device behave as a modelled one (algorithms.md, section 5).
