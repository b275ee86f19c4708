"""The configuration for Ray's cluster launcher, held against Ray's own schema. Ray itself is neither imported nor started."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.tidy import ROOT

KEYS = "~/.perdure-bucket"
TOKEN = "~/.ray/auth_token"  # noqa: S105 - where it lies, not what it is
Config = dict[str, Any]


@pytest.fixture
def config() -> Config:
    loaded: Config = yaml.safe_load((ROOT / "ray_cluster.yaml").read_text("utf-8"))
    return loaded


def of_ray(path: str) -> str:
    """A file that ships with Ray. Finding a package does not import it."""
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("autoscaler").joinpath(path).read_text("utf-8")


def start_commands(config: Config) -> list[str]:
    both = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    return [command for command in both if "ray start" in command]


def test_it_satisfies_rays_own_schema(config: Config) -> None:
    jsonschema.validate(config, json.loads(of_ray("ray-schema.json")))


def test_it_still_does_when_ray_has_filled_in_its_defaults(config: Config) -> None:
    filled = yaml.safe_load(of_ray("local/defaults.yaml")) | config
    jsonschema.validate(filled, json.loads(of_ray("ray-schema.json")))
    assert "cluster_synced_files" in filled, "the launcher asks for it beside the schema"


def test_it_needs_no_cloud_and_has_a_head_and_workers(config: Config) -> None:
    provider = config["provider"]
    assert provider["type"] == "local"
    assert provider["head_ip"]
    assert provider["worker_ips"]
    assert provider["head_ip"] not in provider["worker_ips"]
    unsupported_on_premises = {"head_node", "worker_nodes", "available_node_types"}
    assert not unsupported_on_premises & config.keys()


def test_the_example_for_a_cloud_satisfies_the_schema_too_and_has_nodes_with_gpus(config: Config) -> None:
    lines = (ROOT / "ray_cluster.yaml").read_text("utf-8").splitlines()
    first = lines.index("#   max_workers: 10")
    last = lines.index("provider:")
    example = yaml.safe_load("\n".join(line.removeprefix("#") for line in lines[first:last]))
    cloud = config | example | {"provider": {"type": "aws", "region": "eu-central-1"}}
    jsonschema.validate(cloud, json.loads(of_ray("ray-schema.json")))
    assert example["head_node_type"] in example["available_node_types"]
    gpus = example["available_node_types"]["gpu"]
    assert gpus["resources"]["GPU"] == 1
    assert gpus["resources"]["accelerator_type:T4"] == 1
    assert gpus["min_workers"] < gpus["max_workers"] <= example["max_workers"]
    assert gpus["labels"]


def test_the_head_misses_a_silent_node_within_two_seconds(config: Config) -> None:
    head, worker = start_commands(config)
    checks = dict(re.findall(r"RAY_health_check_(\w+)=(\d+)", head))
    assert checks == {"period_ms": "500", "timeout_ms": "500", "failure_threshold": "3"}
    assert "health_check" not in worker, "the head alone counts"
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    gcs = (Path(spec.origin).parent / "core/src/ray/gcs/gcs_server").read_bytes()
    assert all(f"health_check_{name}".encode() in gcs for name in checks), "Ray knows them"


def test_every_node_gets_the_project_and_installs_it(config: Config) -> None:
    assert config["file_mounts"]["~/perdure"] == "."
    (install,) = [command for command in config["setup_commands"] if "pip install" in command]
    assert install.endswith("~/perdure'[bucket,dashboard]'")
    assert {"bucket", "dashboard"} <= project()["optional-dependencies"].keys()


def test_what_git_ignores_and_what_is_durable_here_is_not_sent_along(config: Config) -> None:
    assert {".git", "perdure-data"} <= {*config["rsync_exclude"]}
    assert config["rsync_filter"] == [".gitignore"]


def test_both_commands_start_the_ray_that_was_installed(config: Config) -> None:
    assert len(start_commands(config)) == 2
    assert all("~/perdure-venv/bin/ray start" in command for command in start_commands(config))
    assert any("venv ~/perdure-venv" in command for command in config["setup_commands"])


def test_the_head_knows_where_the_workers_are_and_they_know_where_it_is(config: Config) -> None:
    head, worker = start_commands(config)
    assert "--head --port=6379" in head
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in head
    assert "--address=$RAY_HEAD_IP:6379" in worker


def test_every_process_asks_for_the_token_and_has_it(config: Config) -> None:
    assert all("export RAY_AUTH_MODE=token" in command for command in start_commands(config))
    assert config["file_mounts"][TOKEN] == TOKEN
    assert any(f"chmod 600 {TOKEN}" in command for command in config["setup_commands"])


def test_every_node_has_the_keys_of_the_bucket_in_its_environment_and_shares_nothing_else(config: Config) -> None:
    assert config["file_mounts"][KEYS] == KEYS
    assert all(command.startswith(f". {KEYS}; ") for command in start_commands(config))
    assert any(f"chmod 600 {TOKEN} {KEYS}" in command for command in config["setup_commands"])
    assert "/mnt" not in json.dumps(config)


def test_the_token_itself_does_not_stand_in_the_file() -> None:
    assert "RAY_AUTH_TOKEN=" not in (ROOT / "ray_cluster.yaml").read_text("utf-8")


def test_the_dashboard_listens_on_loopback_only(config: Config) -> None:
    head, worker = start_commands(config)
    assert "--dashboard-host=127.0.0.1" in head
    assert "0.0.0.0" not in head + worker  # noqa: S104 - it is looked for, not bound to


def test_the_check_of_a_shared_directory_satisfies_the_schema_too(config: Config) -> None:
    lines = (ROOT / "ray_cluster.yaml").read_text("utf-8").splitlines()
    first = lines.index("# initialization_commands:")
    shared = yaml.safe_load("\n".join(line.removeprefix("# ") for line in lines[first : first + 2]))
    jsonschema.validate(config | shared, json.loads(of_ray("ray-schema.json")))
    (check,) = shared["initialization_commands"]
    assert check.startswith("mountpoint -q /mnt/perdure && test -w /mnt/perdure || ")


def test_the_commands_in_its_head_are_ours(config: Config) -> None:
    text = (ROOT / "ray_cluster.yaml").read_text("utf-8")
    assert "perdure run fan-out --address auto --data s3://BUCKET/perdure" in text
    assert "perdure" in project()["scripts"]
    assert config["cluster_name"] == "perdure"


def project() -> Config:
    """What pyproject.toml says of the distribution."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]  # type: ignore[no-any-return]
