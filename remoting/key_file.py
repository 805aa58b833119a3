"""Reads the file that holds the keys of signed registrations. Shell."""

from __future__ import annotations

import stat
from pathlib import Path

from .errors import RemotingError
from .registration_proof import keys_of

SIZE_MAX = 64 * 1024


class KeyFileError(RemotingError):
    """The file cannot be used; the text says why and shows no key."""


def load_registration_keys(path: str, setting: str = "registrationKeyFile") -> tuple[bytes, ...]:
    """Return the keys in the file; () if `path` is empty. Blocking. Raises KeyFileError."""
    if not path:
        return ()
    try:
        with Path(path).open("rb") as file:
            mode = Path(path).stat().st_mode
            content = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise KeyFileError(f"{setting}={path}: {error.strerror}") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise KeyFileError(f"{setting}={path} is open to everybody: chmod 600 it")
    if len(content) > SIZE_MAX:
        raise KeyFileError(f"{setting}={path} is larger than {SIZE_MAX} bytes")
    try:
        return keys_of(content.decode())
    except ValueError as error:  # UnicodeDecodeError is one, and its text shows bytes of the file
        why = "it is no text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise KeyFileError(f"{setting}={path}: {why}") from None
