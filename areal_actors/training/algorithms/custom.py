"""An algorithm of your own: a class in a file that the recipe names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.errors import RecipeError
from areal_actors.core.installed_parts import load_part
from areal_actors.training.algorithms.base import Algorithm, CriticSettings, FrozenModel, Problem

GENERAL = ("group_size", "minibatches")
"""Settings of every algorithm, which are not among the options."""


class CustomAlgorithm(Algorithm, tag="custom", dict=True):
    """`[algorithm] name = "custom"`.

    Advantage: the class's own
    Surrogate: the class's own
    """

    path: str
    """`path.py:Class` or `package.module:Class` of a subclass of `Algorithm`, or of one of the others, beside the
    recipe or in the current directory; or the name of one that another distribution brings (docs/parts.md)."""
    options: dict[str, Any] = {}
    """Settings of the class: its fields, nested tables included. `group_size` and `minibatches` stay in
    `[algorithm]`."""

    @cached_property
    def loaded(self) -> Algorithm:
        """The algorithm of the class, with its settings.

        Raises:
            RecipeError: there is no such class, it is no algorithm for episodes, or it does not have these settings.
        """
        custom = load_part("algorithm", self.path, Path.cwd())
        if not (isinstance(custom, type) and issubclass(custom, Algorithm)):
            raise RecipeError(
                f"`{self.path}` is not a subclass of areal_actors.training.algorithms.Algorithm; derive it from one"
            )
        if custom.head != "tokens" or custom.learns_from != "episodes":
            raise RecipeError(
                f'`{self.path}` has head = "{custom.head}" and learns_from = "{custom.learns_from}"; derive one for'
                " episodes"
            )
        general = {name: getattr(self, name) for name in GENERAL}
        algorithm: Algorithm = msgspec.convert({**self.options, **general}, custom)
        return algorithm

    def resolve(self) -> Algorithm:
        """Returns the algorithm of the class."""
        return self.loaded

    @property
    def models(self) -> Mapping[FrozenModel, str]:
        """As the class has them."""
        return self.loaded.models

    @property
    def critic(self) -> CriticSettings | None:
        """As the class has it."""
        return self.loaded.critic

    def problems(self) -> Iterator[Problem]:
        """Yields what is wrong with the class or its settings, else its own contradictions."""
        for name in GENERAL:
            if name in self.options:
                yield (
                    ("options", name),
                    f"found {self.options[name]}, which is a setting of every algorithm; write it under [algorithm]",
                )
        try:
            algorithm = self.loaded
        except RecipeError as error:
            yield ("path",), str(error)
        except msgspec.ValidationError as error:
            complaint, _, place = str(error).partition(" - at `$")
            fields = ", ".join(name for name in _fields(self.path) if name not in GENERAL)
            yield ("options", *re.findall(r"\w+", place)), f"{complaint}; the fields of {self.path} are {fields}"
        else:
            yield from (
                (("options", *key) if key[0] not in GENERAL else key, complaint)
                for key, complaint in algorithm.problems()
            )


def _fields(path: str) -> tuple[str, ...]:
    """Names of the settings of a class that was loaded before."""
    kind: type[Algorithm] = load_part("algorithm", path, Path.cwd())
    return kind.__struct_fields__
