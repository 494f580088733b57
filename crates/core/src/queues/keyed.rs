//! Numbers in the order of keys that change.

/// Dense numbers, such as VMs', each with a key; the least key first, the lower
/// number first among equal keys. A binary heap that knows where each number
/// is: a change costs O(log n), and nothing is allocated once the highest
/// number has been seen.
#[derive(Debug)]
pub struct KeyedHeap<K> {
    heap: Vec<(K, u32)>,
    /// Index of each number in the heap.
    places: Vec<Option<u32>>,
}

impl<K> Default for KeyedHeap<K> {
    fn default() -> Self {
        KeyedHeap { heap: Vec::new(), places: Vec::new() }
    }
}

impl<K: Ord + Copy> KeyedHeap<K> {
    /// The least key and its number.
    pub fn first(&self) -> Option<(K, u32)> {
        self.heap.first().copied()
    }

    /// The key of `number`, if it has one.
    pub fn get(&self, number: u32) -> Option<K> {
        let place = self.places.get(number as usize).copied().flatten()?;
        Some(self.heap[place as usize].0)
    }

    /// Give `number` a key, another key, or (with `None`) none.
    pub fn set(&mut self, number: u32, at: Option<K>) {
        let index = number as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, None);
        }
        match (self.places[index], at) {
            (None, None) => {}
            (None, Some(at)) => {
                self.heap.push((at, number));
                self.up(self.heap.len() - 1);
            }
            (Some(place), Some(at)) => {
                let place = place as usize;
                if self.heap[place].0 != at {
                    self.heap[place].0 = at;
                    let place = self.up(place);
                    self.down(place);
                }
            }
            (Some(place), None) => {
                let place = place as usize;
                self.places[index] = None;
                self.heap.swap_remove(place);
                if place < self.heap.len() {
                    let place = self.up(place);
                    self.down(place);
                }
            }
        }
    }

    fn put(&mut self, place: usize, entry: (K, u32)) {
        self.heap[place] = entry;
        self.places[entry.1 as usize] = Some(place as u32);
    }

    /// Moves an entry towards the front as far as it belongs; returns its new index.
    fn up(&mut self, mut place: usize) -> usize {
        let entry = self.heap[place];
        while place > 0 && entry < self.heap[(place - 1) / 2] {
            let parent = (place - 1) / 2;
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
        place
    }

    /// Move an entry towards the back as far as it belongs.
    fn down(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let mut child = 2 * place + 1;
            if child + 1 < self.heap.len() && self.heap[child + 1] < self.heap[child] {
                child += 1;
            }
            if child >= self.heap.len() || entry <= self.heap[child] {
                break;
            }
            self.put(place, self.heap[child]);
            place = child;
        }
        self.put(place, entry);
    }
}
