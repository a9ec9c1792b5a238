"""What an operator chooses."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from daguerre.errors import InputError, shown

ANYWHERE = "*"
"""In place of sites: all of them."""
SITE = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")


@dataclass(frozen=True, kw_only=True)
class Keys:
    """API keys, of which only SHA-256 hashes are held; without any, everybody may ask.

    The hash of a key, as 64 hexadecimal digits, is the owner of all that is asked with it.

    names    by owner: a label, for logs and for limits
    weights  by owner, where it is not 1: its part of the machine beside those of others
    """

    names: dict[str, str] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, plain: str | None) -> Keys:
        """From a file with a hash, and optionally a name and `weight=NUMBER` after it, on each line; and from the keys
        of an environment variable, separated by commas. None: there is none. InputError if a source that is given has
        no key, or if a key or a name stands there twice.
        """
        lines = [] if path is None else list(_lines_of(path))
        given = [] if plain is None else [key.strip() for key in plain.split(",") if key.strip()]
        if plain is not None and not given:
            raise InputError("the environment variable with API keys has no key: put keys in it, or unset it")
        if path is not None and not lines:
            raise InputError(f"the file of keys {path} has no key: write a hash with `daguerre serve --hash-key`")
        lines += [(hash_of(key), "", 1.0) for key in given]
        names = {digest: name or f"key {digest[:8]}" for digest, name, _ in lines}
        _refuse_twice("key", [digest[:8] for digest, _, _ in lines])
        _refuse_twice("name", list(names.values()))
        return cls(names=names, weights={digest: weight for digest, _, weight in lines if weight != 1})

    def owner(self, key: str | None) -> str | None:
        """The owner of a key; None for one that is not known. Without keys everybody is ""."""
        if not self.names:
            return ""
        digest = hash_of(key or "")
        found = [known for known in self.names if hmac.compare_digest(known, digest)]
        return found[0] if found else None

    def name(self, owner: str) -> str:
        """The label of an owner; "" without keys."""
        return self.names.get(owner, "")

    def weight(self, owner: str) -> float:
        """The weight of an owner."""
        return self.weights.get(owner, 1.0)


def hash_of(key: str) -> str:
    """The hash of a key as a file of keys has it."""
    return hashlib.sha256(key.strip().encode("utf-8", "surrogatepass")).hexdigest()


def _lines_of(path: Path) -> Iterable[tuple[str, str, float]]:
    """The hash, the name or "", and the weight of each line of a file of keys. InputError for one that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the file of keys {path}: {error}") from None
    for number, line in enumerate(lines, 1):
        digest, *words = line.partition("#")[0].split() or [""]
        if not digest:
            continue
        if len(digest) != 64 or set(digest.lower()) - set("0123456789abcdef"):
            raise InputError(f"line {number} of {path} has no SHA-256 hash: write one with `daguerre serve --hash-key`")
        weight = words.pop().removeprefix("weight=") if words and words[-1].startswith("weight=") else "1"
        yield digest.lower(), " ".join(words), _weight(weight, f"line {number} of {path}")


def _weight(text: str, where: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0.01 <= weight <= 100:
        raise InputError(f"{where}: weight cannot be {shown(text)}: give a number from 0.01 to 100")
    return weight


def _refuse_twice(what: str, all_: list[str]) -> None:
    if twice := sorted({one for one in all_ if all_.count(one) > 1}):
        raise InputError(f"the {what} {shown(twice[0])} is there twice: each is one owner's, so remove one")


def sites_of(given: Iterable[str]) -> tuple[str, ...]:
    """Sites as browsers name them. InputError for what is none."""
    sites = tuple(one.strip().lower().rstrip("/") for one in given)
    for one in sites:
        if one != ANYWHERE and not SITE.fullmatch(one):
            raise InputError(f"{shown(one)} is no site: give it as https://example.com or http://localhost:3000")
    return sites


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a server.

    keys                  who may ask
    requests_per_minute   of each key; None: any number
    running_per_key       requests, and samples, at once of each key; None: any number
    max_body              bytes of a request
    body_timeout          seconds within which a request's body must be there
    max_tokens            most new tokens of a request; one that asks for more is refused. None: no limit of its own
    max_context           most tokens of a request, its text and new tokens; None: as many as the model has positions
    max_schema            bytes of a JSON Schema, a pattern, or the functions of a request
    timeout               seconds after which a request without a deadline of its own ends with status 408, and the
                          longest deadline that it may have; None: never, and any
    write_timeout         seconds for which a client may read nothing before its connection is closed
    drain                 seconds that running requests have to end once the server is told to stop
    origins               sites whose pages may ask (CORS), as `sites_of` gives them; none by default
    log_text              whether logs have prompts and answers
    playground            whether "/" is the playground
    """

    keys: Keys = field(default_factory=Keys)
    requests_per_minute: int | None = None
    running_per_key: int | None = None
    max_body: int = 4 << 20
    body_timeout: float = 60.0
    max_tokens: int | None = None
    max_context: int | None = None
    max_schema: int = 256 << 10
    timeout: float | None = None
    write_timeout: float = 60.0
    drain: float = 30.0
    origins: tuple[str, ...] = ()
    log_text: bool = False
    playground: bool = True
