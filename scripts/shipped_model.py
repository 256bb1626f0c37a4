"""Make the embedded model that the package has, from its seed: `python scripts/shipped_model.py`, after a change of it.

Half a minute of computing on one thread. Curves that start from another model are other curves: the change is one that
users notice.
"""

from __future__ import annotations

import sys

from areal_actors.embedded.embedded_model import make_embedded_model
from areal_actors.embedded.kept_models import SHIPPED
from areal_actors.embedded.settings import SHIPPED_SEED, WarmStart
from areal_actors.weights.manifest import write_manifest


def show(done: int, total: int, metrics: dict[str, float]) -> None:
    """Print every hundredth step."""
    if done % 100 == 0:
        sys.stdout.write(f"{done} of {total} steps, loss {metrics['loss']:.3f}\n")


if __name__ == "__main__":
    make_embedded_model(str(SHIPPED), WarmStart(), SHIPPED_SEED, 1, show)
    write_manifest(SHIPPED)
