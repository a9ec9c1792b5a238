"""Keys: one signs a ledger (Ed25519), and each record has one that encrypts its text (AES-256-GCM).

Whoever destroys the key of a record erases its text, wherever the encrypted text was copied to.
"""

from __future__ import annotations

import base64
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daguerre.errors import DataError, InputError, MissingExtra
from daguerre.files import sync_folder

ID, SECRET = 36, 64
"""Characters of a record's id, and of its key in hexadecimal digits."""
LINE = ID + 1 + SECRET + 1
"""Bytes of a line of the file of record keys: id, space, key, end of line."""
ERASED = "-" * SECRET
NONCE = 12


def _cryptography() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingExtra("cryptography", "audit") from None
    return serialization, ed25519


@dataclass(frozen=True, eq=False)
class SigningKey:
    """An Ed25519 key pair; `public` are the 32 bytes that others check signatures with."""

    _private: Any
    public: bytes

    @classmethod
    def make(cls, path: str | os.PathLike[str]) -> SigningKey:
        """Make a key pair: the private key in the file `path`, which only its owner may read, and the public one beside
        it, in `path`.pub. InputError if the file is there.
        """
        serialization, ed25519 = _cryptography()
        private, target = ed25519.Ed25519PrivateKey.generate(), Path(path)
        secret = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        shown = private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        try:
            handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secret)
            Path(f"{target}.pub").write_bytes(shown)
        except FileExistsError:
            raise InputError(f"{target} is there already: give the key another name") from None
        except OSError as error:
            with suppress(OSError):
                target.unlink()
            raise InputError(f"the key cannot be written to {target} ({error.strerror}): check the path") from None
        return cls.load(target)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SigningKey:
        """Read a private key that `make` wrote. InputError for any other file."""
        serialization, ed25519 = _cryptography()
        try:
            private = serialization.load_pem_private_key(Path(path).read_bytes(), None)
        except (OSError, ValueError, TypeError):
            raise _no_key(path, "a private key") from None
        if not isinstance(private, ed25519.Ed25519PrivateKey):
            raise _no_key(path, "a private key")
        return cls(private, private.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """The signature of a message, 64 bytes."""
        out: bytes = self._private.sign(message)
        return out


def _no_key(path: str | os.PathLike[str], what: str) -> InputError:
    return InputError(f"{os.fspath(path)} is not {what} of a ledger: make a pair with `daguerre audit key FILE`")


def read_public(path: str | os.PathLike[str]) -> bytes:
    """The 32 bytes of a public key that `SigningKey.make` wrote. InputError for any other file."""
    serialization, ed25519 = _cryptography()
    try:
        public = serialization.load_pem_public_key(Path(path).read_bytes())
    except (OSError, ValueError):
        raise _no_key(path, "a public key") from None
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise _no_key(path, "a public key")
    out: bytes = public.public_bytes_raw()
    return out


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of a public key signed this message."""
    _, ed25519 = _cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def to_text(content: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(content).decode("ascii")


def from_text(text: str) -> bytes:
    """The bytes of base64. ValueError for any text but the one that `to_text` gives."""
    content = base64.b64decode(text, validate=True)
    if to_text(content) != text:
        raise ValueError("not the canonical base64")
    return content


def seal(content: bytes, key: bytes, record: str) -> bytes:
    """Content encrypted for the record of that id."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, content, record.encode())


def unseal(sealed: bytes, key: bytes, record: str) -> bytes:
    """The content of `seal`. DataError if the key, the id or a byte differs."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], record.encode())
    except (InvalidTag, ValueError):
        raise DataError(f"the key of record {record} does not open it: restore the file of keys") from None


class RecordKeys:
    """The file of record keys beside a ledger: a line of fixed size for each, so that a key is destroyed in its place.

    Only the owner of the file may read it: it opens every text of the ledger.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, bytes | None]:
        """The key of each record; None: erased. A last line that was cut short belongs to no record, and is left out.
        DataError for a file of another kind.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        keys: dict[str, bytes | None] = {}
        for start in range(0, len(content) - LINE + 1, LINE):
            try:
                record, secret = content[start : start + LINE].decode("ascii").removesuffix("\n").split(" ")
                keys[record] = None if secret == ERASED else bytes.fromhex(secret)
            except ValueError:
                raise DataError(f"{self.path} is damaged at byte {start}: restore it from a copy") from None
        return keys

    def make(self, record: str) -> bytes:
        """A new key for a record, which is on the disk when it is returned."""
        key, is_new = os.urandom(SECRET // 2), not self.path.exists()
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            whole = os.fstat(handle).st_size // LINE * LINE
            os.pwrite(handle, f"{record} {key.hex()}\n".encode("ascii"), whole)
            os.ftruncate(handle, whole + LINE)
            os.fsync(handle)
        finally:
            os.close(handle)
        if is_new:
            sync_folder(self.path.parent)
        return key

    def destroy(self, record: str) -> None:
        """Overwrite the key of a record. InputError if it has none, or none any more."""
        keys = self.read()
        if keys.get(record) is None:
            done = "was erased before" if record in keys else "has no key here"
            raise InputError(f"record {record} {done}: see `daguerre audit show`")
        place = list(keys).index(record) * LINE + ID + 1
        handle = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(handle, ERASED.encode("ascii"), place)
            os.fsync(handle)
        finally:
            os.close(handle)
