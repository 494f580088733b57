//! Rate limits on the model clock: how exact they are, that nobody starves and
//! nothing waits for nothing, and that the limiter does what a model does that
//! looks at everything at every step. `PROPTEST_CASES=20000` looks longer.

#[path = "limits/exact.rs"]
mod exact;
#[path = "limits/load.rs"]
mod load;
#[path = "limits/naive.rs"]
mod naive;
#[path = "limits/order.rs"]
mod order;
#[path = "limits/swarm.rs"]
mod swarm;
