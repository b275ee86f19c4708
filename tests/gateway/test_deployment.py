"""The recipes of the guide, held against what reads them, as far as that is here."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from perdure.ledger import bucket_of
from tests.readmes.commands import command
from tests.tidy import ROOT

PAGE = (ROOT / "actors/gateway/README.md").read_text("utf-8")
JOB = (ROOT / "actors/gateway/ray_job.yaml").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return [each.partition("\n```")[0] for each in PAGE.split(f"```{language}\n")[1:]]


def served(words: list[str]) -> dict[str, Any]:
    """The options of a `perdure serve`, as the command itself reads them."""
    at = words.index("serve")
    assert words[at - 1].rpartition("/")[2] == "perdure"
    return dict(command("serve").make_context("serve", words[at + 1 :]).params)


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    (text,) = blocks("ini")
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    given = served(unit["Service"]["ExecStart"].split())
    assert (given["targets"], str(given["data"])) == (["my_agents:app"], "/var/lib/perdure")
    if checker := shutil.which("systemd-analyze"):
        here = text.replace("/srv/agents/venv/bin/perdure", sys.executable).replace("/srv/agents", str(tmp_path))
        file = tmp_path / "perdure.service"
        file.write_text(here.replace("User=perdure", "User=root"))
        told = subprocess.run([checker, "verify", "--man=no", str(file)], capture_output=True, text=True, check=False)
        assert "perdure.service" not in told.stderr, told.stderr


def test_the_container_serves_beyond_itself_with_a_token() -> None:
    (line,) = [line for block in blocks("text") for line in block.splitlines() if line.startswith("CMD ")]
    given = served(yaml.safe_load(line.removeprefix("CMD ")))
    assert (given["host"], str(given["token_file"])) == ("0.0.0.0", "/run/secrets/token")  # noqa: S104 - in a container


def _known(*required: str, **properties: Any) -> dict[str, Any]:
    """An object of these properties and no others. A word stands for a type."""
    known = {name: {"type": each} if isinstance(each, str) else each for name, each in properties.items()}
    return {"type": "object", "required": list(required), "properties": known, "additionalProperties": False}


def _listed(each: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": each}


COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
WORDS = {"type": "object", "additionalProperties": {"type": "string"}}
VOLUME = _known(
    "name",
    name="string",
    secret=_known(secretName="string", optional="boolean"),
)
CONTAINER = _known(
    "name",
    name="string",
    image="string",
    env=_listed(_known("name", name="string", value="string")),
    envFrom=_listed(_known(secretRef=_known(name="string", optional="boolean"))),
    resources=_known(limits=WORDS, requests=WORDS),
    ports=_listed(_known("containerPort", containerPort=COUNT, name="string")),
    volumeMounts=_listed(_known("name", "mountPath", name="string", mountPath="string", readOnly="boolean")),
)
POD = _known(
    metadata=_known(labels=WORDS),
    spec=_known("containers", containers=_listed(CONTAINER), volumes=_listed(VOLUME)),
)
GROUP = _known(
    "groupName", "minReplicas", "maxReplicas", "template",
    groupName="string", replicas=COUNT, minReplicas=COUNT, maxReplicas=COUNT, rayStartParams=WORDS, template=POD,
)  # fmt: skip
RAY_JOB = _known(
    "apiVersion", "kind", "metadata", "spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=_known("name", name="string", namespace="string", labels=WORDS),
    spec=_known(
        entrypoint="string",
        shutdownAfterJobFinishes="boolean",
        rayClusterSpec=_known(
            "headGroupSpec",
            rayVersion="string",
            enableInTreeAutoscaling="boolean",
            headGroupSpec=_known("template", rayStartParams=WORDS, template=POD),
            workerGroupSpecs=_listed(GROUP),
        ),
    ),
)  # fmt: skip
"""What the manifest may use of a RayJob, with the names, types and duties of KubeRay's own schema. It knows more fields than these."""


def test_the_manifest_fits_the_schema_of_kuberay() -> None:
    job = next(yaml.safe_load_all(JOB))
    jsonschema.validate(job, RAY_JOB)
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replica"] = 2
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(job, RAY_JOB)


def test_the_manifest_has_pods_with_gpus_that_come_when_they_are_asked_for() -> None:
    cluster = next(yaml.safe_load_all(JOB))["spec"]["rayClusterSpec"]
    assert cluster["enableInTreeAutoscaling"]
    (group,) = [each for each in cluster["workerGroupSpecs"] if "nvidia.com/gpu" in str(each)]
    assert (group["replicas"], group["minReplicas"]) == (0, 0)
    for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = each["template"]["spec"]["containers"]
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys(), "or the autoscaler knows of no size"


def test_a_silent_pod_is_dead_as_soon_as_a_silent_machine() -> None:
    (head,) = next(yaml.safe_load_all(JOB))["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    text = (ROOT / "ray_cluster.yaml").read_text("utf-8")
    assert len(head["env"]) == 3
    assert all(f"{each['name']}={each['value']}" in text for each in head["env"])


def test_the_manifest_has_what_kuberay_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path))
    job, service = yaml.safe_load_all(JOB)
    given = served(job["spec"]["entrypoint"].split())
    cluster = job["spec"]["rayClusterSpec"]
    head = cluster["headGroupSpec"]
    for group in cluster["workerGroupSpecs"]:
        assert {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"} == set(group)
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert {"rayStartParams", "template"} == set(head)
    for pod in (head["template"]["spec"], *(group["template"]["spec"] for group in cluster["workerGroupSpecs"])):
        volumes = {each["name"] for each in pod.get("volumes", ())}
        (container,) = pod["containers"]
        assert {each["name"] for each in container.get("volumeMounts", ())} <= volumes
        assert container["envFrom"] == [{"secretRef": {"name": "perdure-bucket", "optional": True}}]
        assert container["image"]
    assert bucket_of(given["data"]) == "s3://BUCKET/agents"
    assert str(given["token_file"]).startswith("/secrets/")
    names = {each["name"]: each["containerPort"] for each in head["template"]["spec"]["containers"][0]["ports"]}
    assert names[service["spec"]["ports"][0]["targetPort"]] == given["port"]
    assert service["spec"]["selector"] == head["template"]["metadata"]["labels"]
