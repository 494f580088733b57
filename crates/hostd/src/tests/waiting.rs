//! Hook of a simulated world: it goes on in place of a thread's wait.

use std::cell::RefCell;
use std::rc::Rc;

type Others = Option<Rc<dyn Fn()>>;

thread_local! {
    static OTHERS: RefCell<Others> = const { RefCell::new(None) };
}

/// The rest of the world, which goes on when it is called. `None` outside of a simulation.
pub fn others() -> Others {
    OTHERS.with_borrow(Clone::clone)
}

/// Let these go on while this thread waits.
pub fn while_waiting(others: Others) {
    OTHERS.set(others);
}
