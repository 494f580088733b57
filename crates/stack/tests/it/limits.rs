//! Rate limits on the model clock: how exact they are, that nobody starves and
//! nothing waits for nothing, and that the limiter does what a model does that
//! looks at everything at every step. `PROPTEST_CASES=20000` looks longer.

mod exact;
mod load;
mod naive;
mod order;
mod swarm;
