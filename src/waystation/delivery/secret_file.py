"""Files with secrets, one in a line, as settings name them."""

from __future__ import annotations

from pathlib import Path

from waystation.delivery.signing import Secret, is_secret
from waystation.errors import InvalidInputError, SettingsError


def read_lines(file: str, where: str) -> list[str]:
    """The lines of a file that have something in them; none without a file."""
    if not file:
        return []
    try:
        found = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: {file} cannot be read: {error}.") from error
    lines = [line.strip() for line in found if line.strip()]
    if not lines:
        raise SettingsError(f"{where}: {file} is empty.")
    return lines


def read_secrets(file: str, where: str) -> tuple[Secret, ...]:
    """Several lines: the first is in force, the others are being replaced; all of them sign."""
    try:
        return tuple(_secret(line) for line in read_lines(file, where))
    except InvalidInputError as error:
        raise SettingsError(f"{where}: {error.message}", hint=error.hint) from error


def _secret(line: str) -> Secret:
    if not is_secret(line):
        raise InvalidInputError(
            "A line of the secret file is no secret.",
            hint="It reads whsec_ and the base64 of 16 bytes or more.",
        )
    return Secret(line)
