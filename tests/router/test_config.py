"""Configuration files: what is wrong is named with its line, and all of a file counts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from daguerre.errors import DataError, InputError
from daguerre.router.config import Config, parse_config, read_config

WHOLE = """\
cost_within = 0.05
overrides = ["slo_ms", "backend"]

[server]
port = 9000

[[backends]]
name = "local"
url = "http://127.0.0.1:8000/v1"
model = "default"
body = { daguerre = { mode = "ar" } }

  [backends.price]
  input = 0.1

[[backends]]
name = "large"
url = "https://example.com/v1"
model = "large-1"
key_env = "LARGE_KEY"
quality = { plan = 0.9, default = 0.7 }

[backends.latency]
first = 400

[steps.plan]
quality = 0.8
slo_ms = 20000
"""


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "route.toml").write_text(WHOLE)
    found = read_config(tmp_path / "route.toml")
    local, large = found.backends
    assert local.body == {"daguerre": {"mode": "ar"}} and local.price.input == 0.1
    assert (large.quality_of("plan"), large.quality_of("edit"), local.quality_of("edit")) == (0.9, 0.7, 0.5)
    assert large.latency.first == 400 and found.server.port == 9000
    assert found.rule("plan").slo_ms == 20000 and found.rule("edit").quality == 0
    assert found.sha256 == parse_config(WHOLE + "\n# a remark\n", "other").sha256
    assert found.sha256 != parse_config(WHOLE.replace("0.05", "0.06"), "other").sha256


WRONG = [
    ("input = 0.1", "input = -1", 14, "backends.0.price.input: "),
    ("quality = 0.8", "quality = 8", 27, "steps.plan.quality: "),
    ("first = 400", "frist = 400", 24, "backends.1.latency.frist: "),
    ("[steps.plan]", "[steps.paln]", 26, "steps.paln"),
    ('name = "large"', 'name = "local"', 7, "backends: two backends are called 'local'"),
    ('model = "large-1"\n', "", 16, "backends.1.model: "),
    ("port = 9000", "port = 90000", 5, "server.port"),
    ('key_env = "LARGE_KEY"', 'key_env = "A"\nkey_file = "b"', 16, "give key_env or key_file, not both"),
    ("cost_within = 0.05", "cost_wthin = 0.05", 1, "cost_wthin: "),
]
"""Changes of the file, the line that is at fault, and what is said of it."""


def test_what_is_wrong_is_named_with_its_line(subtests: pytest.Subtests) -> None:
    for old, new, line, said in WRONG:
        with subtests.test(said):
            with pytest.raises(DataError) as caught:
                parse_config(WHOLE.replace(old, new), "route.toml")
            assert str(caught.value).startswith(f"route.toml, line {line}: "), caught.value
            assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("table", ["[shadow]\nbackend", "[grader]\nkind = 'judge'\njudge"])
def test_a_table_that_names_no_backend_is_named_with_its_line(table: str) -> None:
    text = f"{WHOLE}\n{table} = 'locl'\n"
    with pytest.raises(DataError, match="names no backend: 'locl'; there are large, local") as caught:
        parse_config(text, "route.toml")
    assert str(caught.value).startswith(f"route.toml, line {len(text.splitlines())}: ")


@pytest.mark.parametrize("login", ["ann:pa55word", "pa55word", ":pa55word"])
def test_a_url_with_a_password_is_refused_and_not_repeated(login: str) -> None:
    with pytest.raises(DataError, match=r"^route.toml, line 18: backends\.1\.url: leave .* key_env") as caught:
        parse_config(WHOLE.replace("https://", f"https://{login}@"), "route.toml")
    assert "pa55word" not in str(caught.value)


def test_a_backend_that_there_is_not_and_a_file_that_is_no_toml() -> None:
    with pytest.raises(InputError, match="did you mean 'local'"):
        parse_config(WHOLE, "route.toml").backend("locl")
    with pytest.raises(DataError, match=r"route.toml is no TOML: .*line 1"):
        parse_config("a = = 1", "route.toml")
    with pytest.raises(DataError, match="cannot read"):
        read_config(Path("nowhere.toml"))


def test_the_schema_takes_a_file_and_refuses_a_wrong_one() -> None:
    import jsonschema

    schema, value = Config.model_json_schema(), tomllib.loads(WHOLE)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(value, schema)
    value["backends"][0]["price"]["input"] = -1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema)


def test_a_configuration_that_is_nested_without_end_is_one_line() -> None:
    with pytest.raises(DataError, match=r"deep\.toml is no TOML"):
        parse_config("x = " + "[" * 100_000, "deep.toml")
