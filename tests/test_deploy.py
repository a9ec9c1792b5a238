"""The container file and the manifests: sound by their schemas, and of one mind with the server."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from daguerre.cli import app

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "kubernetes"
LABEL = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
NAME = {"type": "string", "minLength": 1, "maxLength": 253}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}


def strict(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schema of an object with these members and no others."""
    members = required | (optional or {})
    return {"type": "object", "properties": members, "required": list(required), "additionalProperties": False}


def resource(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    head = {"apiVersion": {"const": version}, "kind": {"const": kind}}
    return strict(head | {"metadata": strict({"name": NAME}), "spec": spec})


PICKER = strict({"name": NAME, "port": strict({"number": PORT})}, {"failureMode": {"enum": ["FailOpen", "FailClose"]}})
LABELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "pattern": LABEL}}
PORTS = {"type": "array", "minItems": 1, "maxItems": 1, "items": strict({"number": PORT})}
BACKEND = strict({"name": NAME}, {"group": {"type": "string"}, "kind": {"type": "string"}})
RULE = strict(
    {"backendRefs": {"type": "array", "items": BACKEND}},
    {
        "matches": {
            "type": "array",
            "items": strict({"path": strict({"type": {"const": "PathPrefix"}, "value": NAME})}),
        },
        "timeouts": strict({"request": {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}}),
    },
)
EXTENSIONS = {
    "InferencePool": resource(
        "inference.networking.k8s.io/v1",
        "InferencePool",
        strict({"selector": strict({"matchLabels": LABELS}), "targetPorts": PORTS, "endpointPickerRef": PICKER}),
    ),
    "HTTPRoute": resource(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        strict(
            {
                "parentRefs": {"type": "array", "items": strict({"name": NAME})},
                "rules": {"type": "array", "items": RULE},
            }
        ),
    ),
}
"""Kinds that Kubernetes does not have itself, by the rules that their projects publish."""


def documents(path: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def merged(old: Any, new: Any) -> Any:
    """A patch applied to a resource, as kustomize does it: objects by member, containers by name."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: merged(old.get(key), value) for key, value in new.items()}
    named = isinstance(old, list) and isinstance(new, list) and all("name" in one for one in (*old, *new))
    if not named:
        return new
    patches = {one["name"]: one for one in new}
    return [merged(one, patches.pop(one["name"], {})) for one in old] + list(patches.values())


@cache
def server() -> dict[str, dict[str, Any]]:
    """The manifests of the server, by kind."""
    return {one["kind"]: one for one in documents(FOLDER / "server.yaml")}


def gpu() -> dict[str, Any]:
    """The deployment as it is patched for a GPU."""
    (patch,) = documents(FOLDER / "gpu" / "server.yaml")
    out: dict[str, Any] = merged(server()["Deployment"], patch)
    return out


def test_manifests_are_sound_and_others_would_be_refused(subtests: pytest.Subtests) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for one in (*server().values(), gpu()):
        with subtests.test(one["kind"]):
            validator.validate(one, validator.latest_version(), strict=True)
    for patch in (
        {"spec": {"replicas": "two"}},
        {"spec": {"template": {"spec": {"containers": [{"name": "server", "livenesProbe": {}}]}}}},
    ):
        with pytest.raises(validator.ValidationError):
            validator.validate(merged(server()["Deployment"], patch), validator.latest_version(), strict=True)


def test_the_gateway_reads_the_pods_of_the_deployment_by_gauges_that_the_server_has() -> None:
    import jsonschema

    pool, route = documents(FOLDER / "gateway" / "pool.yaml")
    for one in (pool, route):
        jsonschema.validate(one, EXTENSIONS[one["kind"]])
    labels = server()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert pool["spec"]["targetPorts"][0]["number"] == container()["ports"][0]["containerPort"]
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == pool["metadata"]["name"]
    text = (FOLDER / "gateway" / "pool.yaml").read_text(encoding="utf-8")
    assert {"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} <= set(re.findall(r"`(vllm:\w+)`", text))


def container(deployment: dict[str, Any] | None = None) -> dict[str, Any]:
    (one,) = (deployment or server()["Deployment"])["spec"]["template"]["spec"]["containers"]
    return one


def test_a_pod_has_time_to_drain_and_is_asked_where_it_answers() -> None:
    from daguerre.http.middleware import OPEN
    from daguerre.http.process import CUT, GRACE

    pod = server()["Deployment"]["spec"]["template"]["spec"]
    words, before = container()["args"], container()["lifecycle"]["preStop"]["exec"]["command"]
    drain = float(words[words.index("--drain") + 1])
    assert before[0] == "sleep"
    assert pod["terminationGracePeriodSeconds"] > float(before[1]) + drain + max(CUT, GRACE)
    paths = {name: container()[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}
    assert set(paths.values()) <= set(OPEN)
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_all_parts_are_of_the_same_pods() -> None:
    from daguerre.server.metrics import PREFIXES

    labels = server()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert server()["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert server()["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert server()["Service"]["spec"]["selector"] == labels
    scaler = server()["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == server()["Deployment"]["metadata"]["name"]
    assert scaler["metrics"][0]["pods"]["metric"]["name"] == f"{PREFIXES[1]}num_requests_waiting"
    assert container(gpu())["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container(gpu())["args"] == container()["args"]


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of the container file, by stage; what precedes the first stage is in it."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Containerfile").read_text(encoding="utf-8"), flags=re.M)
    lines = [line.split(None, 1) for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    found: list[list[tuple[str, str]]] = [[]]
    for word, rest in lines:
        if word == "FROM" and any(name == "FROM" for name, _ in found[-1]):
            found.append([])
        found[-1].append((word, rest.strip()))
    return found


def test_every_instruction_of_the_container_file_is_one() -> None:
    known = "ARG FROM ENV WORKDIR COPY RUN USER VOLUME EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD LABEL".split()
    for stage in stages():
        for word, rest in stage:
            assert word in known
            if word == "RUN":
                assert shlex.split(rest)
            if rest.startswith("["):
                assert all(isinstance(part, str) for part in json.loads(rest))
            if word == "COPY" and not rest.startswith("--from"):
                *sources, _ = rest.split()
                ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
                assert all((ROOT / one).exists() and f"!{one}" in ignored for one in sources), rest


def test_the_container_is_built_for_a_cpu_or_a_gpu() -> None:
    build = dict(stages()[0])
    assert build["ARG"].startswith("DEVICE=") or any(rest == "DEVICE=cpu" for _, rest in stages()[0])
    (install,) = (rest for word, rest in stages()[0] if word == "RUN")
    assert "whl/cpu" in install and "whl/cu" in install and "[serve]" in install


def test_the_container_runs_the_server_as_nobody_special_and_is_asked_for_its_health() -> None:
    last = stages()[-1]
    names = [word for word, _ in last]
    facts = dict(last)
    assert int(facts["USER"]) >= 1000 and names.index("USER") > names.index("RUN")
    assert facts["STOPSIGNAL"] == "SIGTERM" and "/health" in facts["HEALTHCHECK"]
    assert facts["EXPOSE"] == str(container()["ports"][0]["containerPort"])
    assert int(facts["USER"]) == server()["Deployment"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    shell, flag, script, _ = json.loads(facts["ENTRYPOINT"])
    assert (shell, flag) == ("/bin/sh", "-c") and script.startswith("exec daguerre serve ")
    given = [*shlex.split(script)[3:-1], *container()["args"]]
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    read = command.make_context("serve", [word.replace("$DAGUERRE_DEVICE", "cpu") for word in given]).params
    assert (read["host"], read["port"], read["drain"], read["device"]) == ("0.0.0.0", 8000, 60.0, "cpu")
