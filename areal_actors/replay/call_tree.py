"""The order of an episode's calls: a tree of conversations and their branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def tree(parents: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield the calls of a conversation, each before those that continue it, with the number of branches before it.

    The first call that continues another one goes on at its depth; further ones begin a branch.
    """
    children: dict[str, list[str]] = {name: [] for name in parents}
    for name, parent in parents.items():
        if parent in children:
            children[parent].append(name)
    todo = [(name, 0) for name, parent in reversed(list(parents.items())) if parent not in children]
    while todo:
        name, depth = todo.pop()
        yield name, depth
        todo += [(child, depth + (number > 0)) for number, child in reversed(list(enumerate(children[name])))]
