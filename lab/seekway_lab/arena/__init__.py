"""The arena: every policy in every scene, and how far each is from the best of all.

`scenes` reads the scenes of `scenes.toml`, `drawn` draws others from a seed, and `own`
makes one of a scenario of the user's own. `play` runs them, `measure` has the figures of a run,
`score` the scoreboard, `report` its tables, and `command` is `seekway-lab arena`.
"""
