"""Cluster files: the nodes that they promise, and the trials that no set of them could hold."""

from pathlib import Path

import pytest

from dcray.config.run import RunConfig, override
from dcray.errors import ConfigError
from dcray.plan.cluster_file import NodeType, can_hold, read_nodes, refuse_unplaceable, total_gpus
from dcray.plan.forecast import placed
from dcray.study.study import Study

ROOT = Path(__file__).parent.parent.parent
LAUNCHER = """
cluster_name: mine
max_workers: 4
provider: {type: aws, region: us-west-2}
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, max_workers: 0, node_config: {}}
  small: {resources: {CPU: 8, GPU: 1}, max_workers: 8, node_config: {}}
  large: {resources: {CPU: 64, GPU: 8}, max_workers: 2, node_config: {}}
"""
LOCAL = "cluster_name: mine\nprovider: {type: local, head_ip: a, worker_ips: [b, c]}\n"
POD = """
      template:
        spec:
          containers:
            - name: ray
              resources: {limits: {cpu: "7500m", memory: 64Gi, nvidia.com/gpu: "1"}}
"""
CLUSTER = f"""
apiVersion: ray.io/v1
kind: RayCluster
spec:
  headGroupSpec:
      rayStartParams: {{num-cpus: "0"}}{POD}
  workerGroupSpecs:
    - groupName: gpus
      maxReplicas: 3
      rayStartParams: {{}}{POD}
"""


def nodes_of(text, tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_nodes(path)


def run(**changes):
    base = override(RunConfig(), {"runtime.device": "cuda"})
    return override(base, {f"runtime.{name}": value for name, value in changes.items()})


def test_a_launcher_file(tmp_path):
    assert nodes_of(LAUNCHER, tmp_path) == [
        NodeType("head", 0, 0, 1),
        NodeType("small", 8, 1, 4),  # max_workers of the cluster holds
        NodeType("large", 64, 8, 2),
    ]


def test_machines_of_one_s_own_say_nothing_of_what_they_have(tmp_path):
    (machines,) = nodes_of(LOCAL, tmp_path)
    assert machines == NodeType("machine", None, None, 3)
    assert can_hold([machines], run(workers=64))


def test_a_kuberay_cluster_and_job(tmp_path):
    wanted = [NodeType("head", 0, 1, 1), NodeType("gpus", 8, 1, 3)]
    assert nodes_of(CLUSTER, tmp_path) == wanted
    spec = "\n".join(f"  {line}" for line in CLUSTER.split("spec:\n", 1)[1].splitlines())
    job = f"kind: RayJob\nspec:\n  rayClusterSpec:\n{spec}\n"
    assert nodes_of(job, tmp_path) == wanted
    assert total_gpus(wanted) == 4


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"workers": 1}, True),
        ({"workers": 4}, True),  # its workers may stand on several nodes
        ({"workers": 5, "microbatch_size": None}, False),
        ({"workers": 1, "threads": 9}, False),
        ({"device": "cpu", "workers": 4, "threads": 8}, True),
        ({"device": "cpu", "workers": 8, "threads": 8}, False),
    ],
)
def test_what_four_small_nodes_hold(changes, fits):
    nodes = [NodeType("head", 0, 0, 1), NodeType("small", 8, 1, 4)]
    config = override(run(), {"batch_size": 120}) if changes.get("workers") == 5 else run()
    assert (
        can_hold(nodes, override(config, {f"runtime.{k}": v for k, v in changes.items()})) is fits
    )


def test_a_refusal_names_the_size_the_wish_and_the_nodes(tmp_path):
    nodes = [NodeType("small", 8, 1, 4)]
    with pytest.raises(ConfigError) as refused:
        refuse_unplaceable(nodes, [run(workers=8), run(workers=8), run()], tmp_path / "mine.yaml")
    (problem,) = refused.value.problems
    assert problem.startswith('resources."257m" asks for 8 x (1 GPU and 1 CPU), which mine.yaml')
    assert problem.endswith("it has 4 x small (1 GPU, 8 CPU). Ask for less, or add nodes")


@pytest.mark.parametrize("name", ["aws", "gcp", "kuberay-raycluster", "kuberay-rayjob"])
def test_the_cluster_files_of_this_repository_hold_the_shipped_studies(name):
    path = ROOT / "jobs" / "clusters" / f"{name}.yaml"
    nodes = read_nodes(path)
    assert [(node.num_gpus, node.max_nodes) for node in nodes] == [(0, 1), (1, 8), (8, 2)]
    configs = [placed(cell_spec.base()) for cell_spec in Study.read("dclm").cell_specs]
    refuse_unplaceable(nodes, configs, path)
    with pytest.raises(ConfigError, match=f"{name}.yaml can never place"):
        refuse_unplaceable(nodes[:1], configs, path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is not valid YAML"),
        ("a: 1", "must be a Ray launcher file"),
        ("kind: RayCluster\nspec: {}", "a node type cannot be read"),
        (LAUNCHER.replace("CPU: 64", "CPU: many"), "a node type cannot be read"),
    ],
)
def test_what_is_no_cluster_file(text, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        nodes_of(text, tmp_path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_nodes(tmp_path / "missing.yaml")
