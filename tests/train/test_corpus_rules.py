"""Which distributions and files a corpus takes: licenses and filters."""

from __future__ import annotations

from email.message import Message
from pathlib import PurePosixPath

import pytest

from daguerre.train.corpus import filters, licenses


def module_text(seed: str, count: int = 12) -> str:
    """Python of which no two seeds share a shingle."""
    functions = [
        f"def {seed}_{i}(left_{seed}, right_{i}):\n"
        f"    total_{seed} = left_{seed} + {seed}_offset_{i} * right_{i}\n"
        f"    return check_{seed}(total_{seed}, name_{i}_{seed})\n"
        for i in range(count)
    ]
    return f'"""Module {seed}."""\n\n' + "\n\n".join(functions)


def metadata(**fields: str | list[str]) -> Message:
    message = Message()
    for key, values in fields.items():
        for value in [values] if isinstance(values, str) else values:
            message[key.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("MIT", "MIT"),
        ("mit", "MIT"),
        ("Apache-2.0 OR GPL-2.0-or-later", "Apache-2.0"),
        ("GPL-2.0-only OR (BSD-3-Clause AND MIT)", "BSD-3-Clause AND MIT"),
        ("MIT AND GPL-3.0-or-later", None),
        ("(MIT OR GPL-3.0) AND ISC", "MIT AND ISC"),
        ("Apache-2.0 WITH LLVM-exception", "Apache-2.0 WITH LLVM-exception"),
        ("GPL-2.0-only WITH Classpath-exception-2.0", None),
        ("MPL-2.0 AND MIT", None),
        ("LicenseRef-Proprietary", None),
    ],
)
def test_an_spdx_expression_is_permissive_when_permissive_licenses_satisfy_it(
    expression: str, chosen: str | None
) -> None:
    assert licenses.evaluate(expression) == chosen


@pytest.mark.parametrize("expression", ["MIT OR", "(MIT", "MIT Apache-2.0", "AND MIT", "MIT WITH", ""])
def test_a_malformed_spdx_expression_raises(expression: str) -> None:
    with pytest.raises(ValueError):
        licenses.evaluate(expression)


@pytest.mark.parametrize(
    ("name", "spdx"),
    [
        ("BSD 3-Clause", "BSD-3-Clause"),
        ("BSD-3-Clause License", "BSD-3-Clause"),
        ("3-Clause BSD License", "BSD-3-Clause"),
        ("New BSD License", "BSD-3-Clause"),
        ("Apache 2.0", "Apache-2.0"),
        ("Apache License, Version 2.0", "Apache-2.0"),
        ("Apache Software License v2.0", "Apache-2.0"),
        ("MIT License", "MIT"),
        ("The MIT License (MIT)", None),
        ("MIT license", "MIT"),
        ("ISC License (ISCL)", "ISC"),
        ("The Unlicense (Unlicense)", None),
        ("PSF License", "PSF-2.0"),
        ("GPLv3", None),
        ("See LICENSE file", None),
    ],
)
def test_names_as_people_write_them_are_understood(name: str, spdx: str | None) -> None:
    assert licenses.permissive_name(name) == spdx


OSI = "License :: OSI Approved :: "
MIT_TEXT = (
    "Copyright X\n\nPermission is hereby granted, free of charge, to any person obtaining a copy implied replaced.\n"
    * 2
)
BSD_TEXT = (
    "Redistribution and use in source and binary forms, with or without modification\nNeither the name of X\n" * 2
)


@pytest.mark.parametrize(
    ("fields", "spdx"),
    [
        ({"License_Expression": "MIT", "License": "GPL"}, "MIT"),
        ({"License_Expression": "GPL-3.0-only", "License": "MIT"}, None),
        ({"License": "MIT"}, "MIT"),
        ({"License": "MIT OR Apache-2.0"}, "MIT"),
        ({"License": "BSD, MIT License"}, "BSD-3-Clause AND MIT"),
        ({"License": "LGPL with exceptions", "Classifier": "License :: OSI Approved :: MIT License"}, None),
        ({"License": "see file", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
        ({"License": "UNKNOWN", "Classifier": "License :: OSI Approved :: BSD License"}, "BSD-3-Clause"),
        ({"License": "MIT", "Classifier": "License :: OSI Approved :: GNU General Public License v3 (GPLv3)"}, None),
        ({"Classifier": [OSI + "MIT License", OSI + "Apache Software License"]}, "MIT AND Apache-2.0"),
        ({"Classifier": ["License :: OSI Approved", "License :: Other/Proprietary License"]}, None),
        ({"License": MIT_TEXT}, "MIT"),
        ({"License": BSD_TEXT}, "BSD-3-Clause"),
        ({"License": MIT_TEXT + "parts are under the GNU GPL"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_first_declaration_decides_and_copyleft_wins(fields: dict, spdx: str | None) -> None:
    verdict = licenses.judge(metadata(**fields))
    assert verdict.license == spdx
    assert bool(verdict.reason) == (spdx is None)


def word(number: int) -> str:
    return "n" + str(number).translate(str.maketrans("0123456789", "abcdefghij"))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("pip/_vendor/requests/api.py", "vendored"),
        ("pkg/third_party/six.py", "vendored"),
        ("pkg/message_pb2.py", "generated"),
        ("pkg/message_pb2_grpc.py", "generated"),
        ("pkg/vendor.py", None),
        ("pkg/module.py", None),
    ],
)
def test_vendored_and_generated_paths_are_dropped(path: str, reason: str | None) -> None:
    assert filters.refuse_path(PurePosixPath(path)) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (module_text("fine"), None),
        ("x = 1\n", "tiny"),
        ("# Generated by the protocol buffer compiler.  DO NOT EDIT!\n" + module_text("a"), "generated"),
        ('"""\nThis file was automatically generated from x.json\n"""\n' + module_text("b"), "generated"),
        ('"""Plots data generated by a simulation."""\n' + module_text("c"), None),
        (module_text("d") + f"DATA = '{'a' * 2000}'\n", "long lines"),
        ("VALUES = [\n" + "    17, 29, 31, 43, 59,\n" * 50 + "]\n", "data"),
        ("WORDS = [\n" + "".join(f"    'word{chr(97 + i % 26) * (i % 7 + 1)}',\n" for i in range(200)) + "]\n", "data"),
        ("def broken(:\n    return this_is_not_python\n" * 5, "does not parse"),
        ("print 'python two'\n" * 20, "does not parse"),
        ("assert (1, 'a syntax warning')\nvalue = 1 is 1\n" + module_text("e"), None),
        ("x = " + "(" * 90 + "1" + ")" * 90 + "\n" + module_text("f"), None),
        ("value = " + "(\n" * 400 + "1" + ")\n" * 400, "does not parse"),
        ("value = " + "".join(f"{word(i)} ** \\\n" for i in range(30000)) + "a\n", "does not parse"),
    ],
)  # fmt: skip
def test_bad_texts_are_dropped_with_the_reason(text: str, reason: str | None) -> None:
    assert filters.refuse_text(text) == reason


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xef\xbb\xbfx = 'caf\xc3\xa9'\r\n\r\n", "x = 'café'\n"),
        (b"# -*- coding: latin-1 -*-\rx = 'caf\xe9'", "# -*- coding: latin-1 -*-\nx = 'café'\n"),
    ],
)
def test_files_are_decoded_by_their_declaration(content: bytes, text: str) -> None:
    assert filters.decode(content) == text


@pytest.mark.parametrize(
    "content", [b"x = '\xff\xfe'", b"# coding: no-such-codec\n", b"\xef\xbb\xbf# coding: latin-1\n"]
)
def test_bytes_that_contradict_their_encoding_raise(content: bytes) -> None:
    with pytest.raises((SyntaxError, UnicodeDecodeError)):
        filters.decode(content)
