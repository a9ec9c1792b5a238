"""A program that sets limits for itself and then becomes a command: confine.py SECONDS MEGABYTES COMMAND...

It is run as a file, so it needs the standard library alone.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import struct
import sys

SYSTEM_CALLS = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""The number of the architecture in a filter, and that of its system call `socket`."""
IO_URING_SETUP = 425
X32 = 0x40000000
MAX_FILE = 16 << 20
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
KILL, REFUSE, ALLOW = 0x80000000, 0x00050001, 0x7FFF0000
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 38, 22, 2


def limited(seconds: float, megabytes: int) -> None:
    """Limits of processor time, of address space and of the size of files; no dumps of memory."""
    import resource

    space, whole = megabytes << 20, math.ceil(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE, MAX_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def without_sockets() -> None:
    """A seccomp filter for this process and its children: `socket` and io_uring are refused."""
    architecture, socket_call = SYSTEM_CALLS[platform.machine()]
    lines = [
        (LOAD, 0, 0, 4), (EQUAL, 0, 6, architecture), (LOAD, 0, 0, 0), (AT_LEAST, 4, 0, X32),
        (EQUAL, 2, 0, socket_call), (EQUAL, 1, 0, IO_URING_SETUP),
        (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, KILL),
    ]  # fmt: skip
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SET_SECCOMP, FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the system refuses a filter of system calls")


if __name__ == "__main__":
    without_sockets()
    limited(float(sys.argv[1]), int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])
