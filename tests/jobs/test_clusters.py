"""Cluster files: by Ray's own schema and defaults, and by what a study needs of a cluster."""

import copy
import shlex
import tomllib

import jsonschema
import pytest
import typer
import yaml
from packaging.requirements import Requirement
from ray.autoscaler._private.util import prepare_config, validate_config

from dcray.cli import app
from dcray.cli.train import _config
from tests.jobs.submitter import ROOT

CLUSTERS = ROOT / "jobs" / "clusters"
CLOUDS = ("aws", "gcp")
SPOT = {"aws": "'MarketType': 'spot'", "gcp": "'preemptible': True"}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEEDS = {one.name: one.specifier for one in map(Requirement, PYPROJECT["project"]["dependencies"])}
CONTAINER = {"name", "image", "ports", "resources", "volumeMounts"}


def read(name):
    return yaml.safe_load((CLUSTERS / f"{name}.yaml").read_text())


def test_every_file_is_checked_here():
    known = {"aws", "gcp", "local", "kuberay-raycluster", "kuberay-rayjob"}
    assert {path.stem for path in CLUSTERS.glob("*.yaml")} == known


@pytest.mark.parametrize("name", [*CLOUDS, "local"])
def test_ray_takes_it(name):
    validate_config(prepare_config(read(name)))


def test_a_wrong_key_would_be_found():
    wrong = prepare_config(read("aws")) | {"idle_timeout_minuets": 5}
    with pytest.raises(jsonschema.ValidationError, match="idle_timeout_minuets"):
        validate_config(wrong)


@pytest.mark.parametrize("name", CLOUDS)
def test_a_cloud_has_a_cpu_head_and_spot_workers_of_two_sizes(name):
    config = prepare_config(read(name))
    types = copy.deepcopy(config["available_node_types"])
    head = types.pop(config["head_node_type"])
    assert head["resources"] == {"CPU": 0}
    assert sorted(one["resources"]["GPU"] for one in types.values()) == [1, 8]
    for one in types.values():
        assert one["min_workers"] == 0
        assert 0 < one["max_workers"] <= config["max_workers"]
        node = one["node_config"]
        spot = {"MarketType": "spot"}
        assert (
            node.get("InstanceMarketOptions") == spot or {"preemptible": True} in node["scheduling"]
        )
    assert 0 < config["idle_timeout_minutes"] <= 15
    assert SPOT[name] not in str(head)


@pytest.mark.parametrize("name", CLOUDS)
def test_torch_comes_first_and_from_its_own_index(name):
    """What pip would choose by itself is CUDA's on the head, and may be too new for a driver."""
    config = prepare_config(read(name))
    for kind, index in (("head", "/cpu"), ("worker", "/cu126")):
        torch, dcray = config[f"{kind}_setup_commands"]
        assert torch.endswith(index)
        assert dcray.startswith("pip install -e /home/ray/dcray")
        assert "/home/ray/dcray" in config["file_mounts"]
        assert Requirement(shlex.split(torch)[2]).specifier == NEEDS["torch"]


def cluster_of(name):
    """The spec of the RayCluster in a KubeRay file."""
    found = read(name)
    assert found["apiVersion"] == "ray.io/v1"
    kinds = {"kuberay-rayjob": "RayJob", "kuberay-raycluster": "RayCluster"}
    assert found["kind"] == kinds[name]
    return found["spec"]["rayClusterSpec"] if found["kind"] == "RayJob" else found["spec"]


@pytest.mark.parametrize("name", ["kuberay-raycluster", "kuberay-rayjob"])
def test_kuberay_scales_gpu_workers_from_none(name):
    spec = cluster_of(name)
    assert spec["enableInTreeAutoscaling"] is True
    assert spec["autoscalerOptions"] == {"idleTimeoutSeconds": 300}
    assert spec["rayVersion"] in NEEDS["ray"]
    head, workers = spec["headGroupSpec"], spec["workerGroupSpecs"]
    assert head["rayStartParams"] == {"num-cpus": "0"}
    gpus = []
    for group in (head, *workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container.keys() <= CONTAINER
        limits = container["resources"]["limits"]
        assert container["resources"]["requests"] == limits
        gpus.append(limits.get("nvidia.com/gpu"))
        assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/shared"}]
        assert [volume["name"] for volume in pod["volumes"]] == ["shared"]
        assert container["image"] == "REGISTRY/dcray"
    assert gpus == [None, "1", "8"]
    for group in workers:
        assert group["replicas"] == group["minReplicas"] == 0 < group["maxReplicas"]


def test_the_two_kuberay_files_have_one_cluster():
    assert cluster_of("kuberay-rayjob") == cluster_of("kuberay-raycluster")


def test_the_job_of_kuberay_is_a_command_and_ends_its_cluster():
    job = read("kuberay-rayjob")["spec"]
    assert job["shutdownAfterJobFinishes"] is True
    words = shlex.split(job["entrypoint"])
    assert words[:2] == ["dcray", "train"]
    command = typer.main.get_command(app).commands["train"]
    given = command.make_context("train", words[2:]).params
    assert _config(given["items"], given["workers"]).num_steps > 0
    assert given["directory"].is_relative_to("/shared")
    assert given["corpus"].is_relative_to("/shared")


@pytest.mark.parametrize("name", ["Dockerfile", "aws.yaml", "gcp.yaml"])
def test_images_have_this_ray_and_a_python_that_dcray_takes(name):
    text = (CLUSTERS / name).read_text()
    tags = {word.split(":")[1] for word in text.split() if word.startswith("rayproject/ray:")}
    assert tags
    for tag in tags:
        version, python = tag.split("-")[:2]
        assert version in NEEDS["ray"]
        assert python == "py311"
