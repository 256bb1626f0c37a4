"""On the path of an interpreter, it and those that it starts find none of the packages that extras bring, as in a base
install."""

import os
from importlib.machinery import PathFinder

ABSENT = frozenset(os.environ["ABSENT_PACKAGES"].split(","))
find_installed = PathFinder.find_spec


def find_spec(name, path=None, target=None):
    """As PathFinder's, without the absent packages."""
    return None if name.partition(".")[0] in ABSENT else find_installed(name, path, target)


PathFinder.find_spec = find_spec
