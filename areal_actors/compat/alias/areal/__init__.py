"""AReaL's names, in processes that are started with the folder above this one on `PYTHONPATH`."""

from areal_actors.compat.areal.aliases import install

install()
