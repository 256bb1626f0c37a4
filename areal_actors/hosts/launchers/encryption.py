"""The certificate of a launched run.

Its hosts know the server by a fingerprint, so that it is made before the run starts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.folder.certificate_files import named_certificate
from areal_actors.hosts.launchers.plan import LaunchPlan
from areal_bus.certificates import CERTIFICATE_FILE, KEY_FILE, make_certificate

UNKNOWN = "FINGERPRINT"
"""Stands for the fingerprint of a certificate that is not made yet."""


def with_certificate(plan: LaunchPlan, folder: Path, *, write: bool) -> LaunchPlan:
    """Returns a plan of which the hosts know the run's server, if it encrypts.

    A certificate that the recipe does not name is made once, in `folder`: jobs that were submitted earlier know it,
    too. Without `write` nothing is made.

    Raises:
        SetupError: the certificate of the recipe cannot be used, or none can be written.
    """
    if not plan.recipe.bus.tls:
        return plan
    if (given := named_certificate(plan.recipe.bus)) is not None:
        return msgspec.structs.replace(plan, fingerprint=given.fingerprint)
    place = folder.absolute() / f".{plan.recipe.run}-tls"  # hidden: such folders are never sent to workers
    files = {"certificate": str(place / CERTIFICATE_FILE), "certificate_key": str(place / KEY_FILE)}
    bus = msgspec.structs.replace(plan.recipe.bus, **files)
    try:
        certificate = named_certificate(bus)
    except SetupError:  # there is none, or it has expired
        try:
            certificate = make_certificate(place) if write else None
        except OSError as error:
            raise SetupError(
                f"--output: the certificate of the run cannot be written ({error}); name another folder"
            ) from error
    return msgspec.structs.replace(
        plan,
        recipe=msgspec.structs.replace(plan.recipe, bus=bus),
        run=msgspec.structs.replace(
            plan.run, words=(*plan.run.words, *(f"bus.{name}={file}" for name, file in files.items()))
        ),
        fingerprint=certificate.fingerprint if certificate is not None else UNKNOWN,
    )
