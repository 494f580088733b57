//! B-WF2Q+ (`bfq-wf2q.c`): which queue is next, by virtual times that pass as
//! service is given.
//!
//! A queue that is to receive `budget` sectors from virtual time `start` on would
//! finish at `start + budget / weight`. Virtual time passes by the service given
//! over the sum of weights. Of the queues whose start has come the one with the
//! earliest finish is next; if none has come, virtual time jumps to the earliest
//! start. A queue that leaves keeps its finish and its part of the sum of weights
//! until virtual time has passed the finish, so that it gains nothing by coming
//! back at once.

use seekway_core::queues::KeyedHeap;

/// Virtual time: sectors over weight, in 2^-22 (`WFQ_SERVICE_SHIFT`). Linux has 64
/// bits of it and lets them wrap.
pub(super) type Virtual = u128;

const SHIFT: u32 = 22;

/// A queue as the tree sees it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Entity {
    pub start: Virtual,
    pub finish: Virtual,
    pub weight: u64,
    /// Sectors that it may have, and those that it has had.
    pub budget: u64,
    pub service: u64,
    /// Does it count in the sum of weights?
    counted: bool,
}

impl Entity {
    pub fn budget_left(&self) -> u64 {
        self.budget.saturating_sub(self.service)
    }
}

/// The queues, by number.
#[derive(Default)]
pub(super) struct Tree {
    entities: Vec<Entity>,
    virtual_now: Virtual,
    weights: u64,
    /// Those that are to be served and whose start has come, by finish.
    eligible: KeyedHeap<Virtual>,
    /// Those whose start has not come, by start.
    future: KeyedHeap<Virtual>,
    /// Those that left and whose finish has not come, by finish.
    left: KeyedHeap<Virtual>,
    /// The one that is served.
    serving: Option<u32>,
}

fn delta(service: u64, weight: u64) -> Virtual {
    // What fits into 64 bits is divided there, in a fraction of the time.
    match service < 1 << (64 - SHIFT) {
        true => Virtual::from((service << SHIFT) / weight.max(1)),
        false => (Virtual::from(service) << SHIFT) / Virtual::from(weight.max(1)),
    }
}

impl Tree {
    pub fn get(&self, queue: u32) -> &Entity {
        &self.entities[queue as usize]
    }
    pub fn get_mut(&mut self, queue: u32) -> &mut Entity {
        &mut self.entities[queue as usize]
    }

    /// A new queue, without requests; an older one of that number is forgotten.
    pub fn add(&mut self, queue: u32, weight: u64) {
        if self.entities.len() <= queue as usize {
            self.entities.resize_with(queue as usize + 1, Entity::default);
        }
        self.forget(queue);
        self.entities[queue as usize] = Entity { weight, ..Entity::default() };
    }

    /// A queue is as if it had never been.
    pub fn forget(&mut self, queue: u32) {
        let entity = &mut self.entities[queue as usize];
        if std::mem::take(&mut entity.counted) {
            self.weights -= entity.weight;
        }
        self.eligible.set(queue, None);
        self.future.set(queue, None);
        self.left.set(queue, None);
        if self.serving == Some(queue) {
            self.serving = None;
        }
    }

    /// Another weight from now on; it counts at the next placing.
    pub fn set_weight(&mut self, queue: u32, weight: u64) {
        let entity = &mut self.entities[queue as usize];
        if entity.counted {
            self.weights = self.weights - entity.weight + weight;
        }
        entity.weight = weight;
    }

    /// `__bfq_activate_entity`: a queue has requests again. `in_time`: it came
    /// back so soon that it loses nothing; `raised` divides what it is set
    /// back by otherwise.
    pub fn activate(&mut self, queue: u32, in_time: bool, raised: u64) {
        let now = self.virtual_now;
        let entity = &mut self.entities[queue as usize];
        let backshifted = in_time && now > entity.finish;
        let least = if backshifted { entity.finish } else { now };
        entity.start = if entity.counted { least.max(entity.finish) } else { least };
        if !entity.counted {
            entity.counted = true;
            self.weights += entity.weight;
        }
        self.left.set(queue, None);
        self.place(queue, backshifted.then_some(raised));
    }

    /// `__bfq_requeue_entity`: a queue with requests is done with its turn, or
    /// its budget has changed.
    pub fn requeue(&mut self, queue: u32) {
        let entity = &mut self.entities[queue as usize];
        if self.serving == Some(queue) {
            entity.finish = entity.start + delta(entity.service, entity.weight);
            entity.start = entity.finish;
            self.serving = None;
        }
        self.place(queue, None);
    }

    /// `__bfq_deactivate_entity`: a queue has no more requests.
    pub fn deactivate(&mut self, queue: u32) {
        let entity = &mut self.entities[queue as usize];
        entity.finish = entity.start + delta(entity.service, entity.weight);
        let finish = entity.finish;
        if self.serving == Some(queue) {
            self.serving = None;
        } else {
            entity.service = 0;
        }
        self.eligible.set(queue, None);
        self.future.set(queue, None);
        if finish > self.virtual_now {
            self.left.set(queue, Some(finish));
        } else if std::mem::take(&mut entity.counted) {
            self.weights -= entity.weight;
        }
    }

    /// Sets the finish by the budget, and queues by it (`bfq_update_fin_time_enqueue`).
    fn place(&mut self, queue: u32, backshifted: Option<u64>) {
        let now = self.virtual_now;
        let entity = &mut self.entities[queue as usize];
        entity.finish = entity.start + delta(entity.budget, entity.weight);
        if let Some(raised) = backshifted
            && now > entity.finish
        {
            let behind = (now - entity.finish) / Virtual::from(raised.max(1));
            entity.start += behind;
            entity.finish += behind;
        }
        let (start, finish) = (entity.start, entity.finish);
        let eligible = start <= now;
        self.eligible.set(queue, eligible.then_some(finish));
        self.future.set(queue, (!eligible).then_some(start));
    }

    /// `bfq_bfqq_served`: adds `sectors` to a queue's service.
    pub fn served(&mut self, queue: u32, sectors: u64) {
        let service = &mut self.entities[queue as usize].service;
        *service = service.saturating_add(sectors);
        self.virtual_now += delta(sectors, self.weights);
        self.forget_idle();
    }

    /// Of those that left, the earliest is forgotten once its finish has come.
    fn forget_idle(&mut self) {
        if let Some((finish, queue)) = self.left.first()
            && finish <= self.virtual_now
        {
            self.left.set(queue, None);
            let entity = &mut self.entities[queue as usize];
            entity.counted = false;
            self.weights -= entity.weight;
        }
    }

    /// The queue that would be next, besides the one that is served.
    pub fn peek_next(&self) -> Option<u32> {
        let future = self.future.first().filter(|_| self.eligible.first().is_none());
        self.eligible.first().or(future).map(|(_, queue)| queue)
    }

    /// `bfq_get_next_queue`: the queue that is served from now on.
    pub fn serve_next(&mut self) -> Option<u32> {
        debug_assert!(self.serving.is_none(), "a queue is served");
        if self.eligible.first().is_none()
            && let Some((start, _)) = self.future.first()
        {
            self.virtual_now = self.virtual_now.max(start);
            self.forget_idle();
        }
        while let Some((start, queue)) = self.future.first()
            && start <= self.virtual_now
        {
            self.future.set(queue, None);
            self.eligible.set(queue, Some(self.entities[queue as usize].finish));
        }
        let (_, queue) = self.eligible.first()?;
        self.eligible.set(queue, None);
        self.serving = Some(queue);
        Some(queue)
    }
}
