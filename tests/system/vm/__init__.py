"""Real QEMU guests on the real daemon (`seekway serve`) and with the real agent (`seekway-guest`).

Boots are what costs: each file boots its guests once and takes them through all its tests, in the
order of the file. `scripts/test-system -s -k vm` shows how long each step took.
"""
