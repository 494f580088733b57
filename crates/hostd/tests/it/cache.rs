//! The host cache on real images: what guests read through it is what they
//! wrote, whatever is guessed ahead of them and whatever goes wrong below.

mod coherence;
mod failures;
mod greedy;
mod guesses;
mod reads;
