"""The simulator's random numbers: xoshiro256++, seeded by SplitMix64."""

from __future__ import annotations

MASK = (1 << 64) - 1
STEP = 0x9E37_79B9_7F4A_7C15


def mix64(value: int) -> int:
    """The finaliser of SplitMix64."""
    value = (value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB & MASK
    return value ^ (value >> 31)


class Rng:
    """The simulator's stream of a seed."""

    def __init__(self, seed: int) -> None:
        self.state = [mix64((seed + n * STEP) & MASK) for n in range(1, 5)]

    @classmethod
    def child(cls, seed: int, number: int) -> Rng:
        """The stream of child `number` of a seed."""
        return cls(mix64((seed + (number + 1) * STEP) & MASK))

    def bits(self) -> int:
        """The next 64 bits."""
        a, b, c, d = self.state
        found = (_rotated(a + d & MASK, 23) + a) & MASK
        c, d = c ^ a, d ^ b
        self.state = [a ^ d, b ^ c, c ^ (b << 17 & MASK), _rotated(d, 45)]
        return found

    def below(self, n: int) -> int:
        """Uniform in 0 to n - 1."""
        return self.bits() * n >> 64

    def percent(self, percent: int) -> bool:
        """True in `percent` of 100 calls."""
        return self.below(100) < percent


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> 64 - by) & MASK
