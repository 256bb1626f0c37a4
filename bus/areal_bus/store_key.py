"""The key by which a server encrypts its store: from the environment, or a file that the environment names.

A store that was begun with a key has a mark, so that every later start of a server on it asks for that key: with
another one a server would begin an empty store in its place. Neither the configuration nor a log has the key; the
server finds it in its own environment.
"""

from __future__ import annotations

import hmac
import os
import secrets
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from areal_bus.errors import ServerUnavailable
from areal_bus.product import current_product

MARK: Final = "encrypted"
"""File in the folder of a store that is encrypted; it has the name of the cipher, a salt, and a digest of the key."""
CIPHER: Final = "aes"
VARIABLE: Final = "BUS_STORE_KEY"
"""Variable of the server's environment with the key."""
LEAST_CHARACTERS: Final = 16


def key_variables() -> tuple[str, str]:
    """Returns the names of the variable with the key, and of the one with the path of its file."""
    name = f"{current_product().prefix.upper()}_STORE_KEY"
    return name, f"{name}_FILE"


def is_encrypted(folder: Path) -> bool:
    """Returns True if the store in a folder is encrypted."""
    return (folder / MARK).is_file()


def begin_encrypted(folder: Path) -> None:
    """Mark a folder, so that the store which a server begins there is encrypted.

    Raises:
        ServerUnavailable: it has a store that is not, or there is no key.
    """
    if is_encrypted(folder):
        return
    if (folder / "store").exists():
        raise ServerUnavailable(
            f"the log in {folder} was begun without encryption, and stays so; begin another, or leave encryption out"
        )
    key, salt = read_key(), secrets.token_hex(16)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(f"{CIPHER} {salt} {_digest(key, salt)}\n")


def read_key() -> str:
    """Returns the key of this process's environment.

    Raises:
        ServerUnavailable: there is none, it is too short, or its file cannot be read; names the variables.
    """
    variable, file = key_variables()
    key = os.environ.get(variable, "")
    if not key and (path := os.environ.get(file, "")):
        try:
            key = Path(path).expanduser().read_text().strip()
        except OSError as error:
            raise ServerUnavailable(f"{file} names {path}, which cannot be read: {error.strerror}; fix it") from error
    if len(key) < LEAST_CHARACTERS:
        found = f"a key of {len(key)} characters" if key else "no key"
        remedy = f"set {variable}, or {file} to the path of its file, to at least {LEAST_CHARACTERS} characters"
        raise ServerUnavailable(
            f"the log is encrypted, and there is {found}: {remedy}, as `openssl rand -hex 32` prints"
        )
    return key


def encryption_config(folder: Path) -> dict[str, Any]:
    """Returns the settings of the store of a folder; none if it is not encrypted."""
    return {"cipher": CIPHER, "key": f"${VARIABLE}"} if is_encrypted(folder) else {}


def encryption_environment(folder: Path) -> dict[str, str]:
    """Returns what the server's environment needs for its store; nothing if that is not encrypted.

    Raises:
        ServerUnavailable: it is, and there is no key, or another one.
    """
    if not is_encrypted(folder):
        return {}
    key = read_key()
    _, salt, digest = (folder / MARK).read_text().split()
    if not hmac.compare_digest(digest, _digest(key, salt)):
        variable, file = key_variables()
        raise ServerUnavailable(f"the log in {folder} was encrypted with another key than that of {variable} or {file}")
    # of letters and digits, beginning with a letter: the server reads the value as it reads its configuration
    return {VARIABLE: f"k{_digest(key, '')}"}


def _digest(key: str, salt: str) -> str:
    return blake2b(key.encode(), digest_size=32, salt=bytes.fromhex(salt)).hexdigest()
