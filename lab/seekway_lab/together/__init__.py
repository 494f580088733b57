"""All parts on one host: eight VMs on four processors and one disk, in every way (scenes.toml).

A VM's progress is its MiB/s over those that it has alone on a private disk, as many times slower as
there are VMs, with its share of the processors' time and of the host's cache.
"""
