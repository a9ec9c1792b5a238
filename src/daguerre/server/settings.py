"""What an operator chooses."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path

from daguerre.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Keys:
    """API keys, of which only SHA-256 hashes are held; without any, everybody may ask.

    `names` are by the hash, as 64 hexadecimal digits.
    """

    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, plain: str | None) -> Keys:
        """From a file with a hash, and optionally a name after it, on each line; and from the keys of an environment
        variable, separated by commas.
        """
        names = {hash_of(key): f"key {number}" for number, key in enumerate((plain or "").split(",")) if key.strip()}
        if path is None:
            return cls(names=names)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the file of keys {path}: {error}") from None
        for number, line in enumerate(lines, 1):
            digest, _, name = line.partition("#")[0].strip().partition(" ")
            if not digest:
                continue
            if len(digest) != 64 or set(digest.lower()) - set("0123456789abcdef"):
                raise InputError(
                    f"line {number} of {path} has no SHA-256 hash: write one with `daguerre serve --hash-key`"
                )
            names[digest.lower()] = name.strip() or f"key {number}"
        return cls(names=names)

    def owner(self, key: str | None) -> str | None:
        """The name of a key; None for one that is not known. Without keys everybody is ""."""
        if not self.names:
            return ""
        digest = hash_of(key or "")
        found = [name for known, name in self.names.items() if hmac.compare_digest(known, digest)]
        return found[0] if found else None


def hash_of(key: str) -> str:
    """The hash of a key as a file of keys has it."""
    return hashlib.sha256(key.strip().encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a server.

    keys                  who may ask
    requests_per_minute, running_per_key   limits of each key; None: none
    max_body              bytes of a request
    max_tokens            most new tokens of a request; one that asks for more is refused. None: no limit of its own
    max_context           most tokens of a request, its text and new tokens; None: as many as the model has positions
    max_schema            bytes of a JSON Schema, a pattern, or the functions of a request
    timeout               seconds after which a request without a deadline of its own ends with status 408, and the
                          longest deadline that it may have; None: never, and any
    write_timeout         seconds for which a client may read nothing before its connection is closed
    drain                 seconds that running requests have to end once the server is told to stop
    origins               whose pages may ask (CORS); none by default
    log_text              whether logs have prompts and answers
    playground            whether "/" is the playground
    """

    keys: Keys = field(default_factory=Keys)
    requests_per_minute: int | None = None
    running_per_key: int | None = None
    max_body: int = 4 << 20
    max_tokens: int | None = None
    max_context: int | None = None
    max_schema: int = 256 << 10
    timeout: float | None = None
    write_timeout: float = 60.0
    drain: float = 30.0
    origins: tuple[str, ...] = ()
    log_text: bool = False
    playground: bool = True
