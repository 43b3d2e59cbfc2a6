"""The nodes that a cluster file declares, and which trials they could never hold.

Two kinds of file are read: Ray's launcher (`available_node_types`), and KubeRay's RayCluster,
RayJob or RayService. A node type whose resources the file does not say is unknown: it may hold
anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcray.config.run import RunConfig
from dcray.errors import ConfigError

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
CLUSTER_SPECS = {
    "RayCluster": (),
    "RayJob": ("rayClusterSpec",),
    "RayService": ("rayClusterConfig",),
}


@dataclass(frozen=True)
class NodeType:
    """A kind of node and how many of it there may be; None: the file does not say."""

    name: str
    num_cpus: float | None
    num_gpus: float | None
    max_nodes: int

    @property
    def unknown(self) -> bool:
        return self.num_cpus is None or self.num_gpus is None

    def holds(self, cpus: float, gpus: float) -> float:
        """Count the bundles of this kind that one node can hold; inf if the node is unknown."""
        limits = [
            math.inf if have is None else math.floor(have / need + 1e-9)
            for have, need in ((self.num_cpus, cpus), (self.num_gpus, gpus))
            if need
        ]
        return min(limits, default=math.inf)


def read_nodes(path: Path) -> list[NodeType]:
    """Read the node types of a cluster file (YAML).

    Raises ConfigError if it cannot be read or is no cluster file.
    """
    import yaml

    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    for document in documents:
        if not isinstance(document, Mapping):
            continue
        try:
            found = _kuberay(document) if document.get("kind") in CLUSTER_SPECS else _ray(document)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}: a node type cannot be read ({type(error).__name__}: {error}); "
                "Ray's own schema and KubeRay's say what it must hold"
            ) from None
        if found:
            return found
    raise ConfigError(
        f"--cluster must be a Ray launcher file (with available_node_types, or provider.type: "
        f"local) or a KubeRay RayCluster, RayJob or RayService, got {path}"
    )


def can_hold(nodes: Sequence[NodeType], config: RunConfig) -> bool:
    """Tell whether a run could be placed once all nodes are there, its workers on any of them."""
    cpus, gpus, workers = asks(config)
    bundles = (node.max_nodes * node.holds(cpus, gpus) for node in nodes if node.max_nodes)
    return sum(bundles) >= workers


def asks(config: RunConfig) -> tuple[int, float, int]:
    """Return the CPUs and GPUs of one worker, and the workers of a run; "auto" counts as one."""
    runtime = config.runtime
    workers = runtime.workers if isinstance(runtime.workers, int) else 1
    share = runtime.gpu_share if isinstance(runtime.gpu_share, float) else 1.0
    return runtime.threads, share if runtime.device == "cuda" else 0.0, workers


def refuse_unplaceable(nodes: Sequence[NodeType], runs: Iterable[RunConfig], path: Path) -> None:
    """Raise ConfigError for every size whose trials no set of these nodes could ever hold."""
    problems = []
    for config in {(run.size_name, asks(run)): run for run in runs}.values():
        if can_hold(nodes, config):
            continue
        cpus, gpus, workers = asks(config)
        each = f"{gpus:g} GPU and {cpus} CPU" if gpus else f"{cpus} CPU"
        problems.append(
            f'resources."{config.size_name}" asks for {workers} x ({each}), which {path.name} can '
            f"never place; it has {'; '.join(map(_described, nodes))}. Ask for less, or add nodes"
        )
    if problems:
        raise ConfigError(problems)


def total_gpus(nodes: Iterable[NodeType]) -> float:
    """Sum the GPUs of all nodes at their most; unknown ones count none."""
    return sum(node.max_nodes * (node.num_gpus or 0) for node in nodes)


def total_cpus(nodes: Iterable[NodeType]) -> float:
    """Sum the CPUs of all nodes at their most; unknown ones count none."""
    return sum(node.max_nodes * (node.num_cpus or 0) for node in nodes)


def _ray(document: Mapping[str, Any]) -> list[NodeType]:
    """List the node types of Ray's launcher: the head once, others as often as max_workers says."""
    types: Mapping[str, Any] = document.get("available_node_types") or {}
    if not types and document.get("provider", {}).get("type") == "local":
        number = 1 + len(document["provider"].get("worker_ips") or [])
        return [NodeType("machine", None, None, number)]
    head, limit = document.get("head_node_type"), int(document.get("max_workers", 2))
    found = []
    for name, node in types.items():
        have = node.get("resources")
        workers = min(int(node.get("max_workers", limit)), limit)
        found.append(
            NodeType(
                name,
                None if not have else float(have.get("CPU", 0)),
                None if not have else float(have.get("GPU", 0)),
                workers + (name == head),
            )
        )
    return found


def _kuberay(document: Mapping[str, Any]) -> list[NodeType]:
    """List the head group and the worker groups of a KubeRay object."""
    spec = document["spec"]
    for part in CLUSTER_SPECS[document["kind"]]:
        spec = spec[part]
    found = [_pod("head", spec["headGroupSpec"], 1)]
    for group in spec.get("workerGroupSpecs") or []:
        most = group.get("maxReplicas", group.get("replicas", 0))
        found.append(_pod(group["groupName"], group, int(most) * int(group.get("numOfHosts", 1))))
    return found


def _pod(name: str, group: Mapping[str, Any], number: int) -> NodeType:
    """Read a pod's resources: rayStartParams first, as KubeRay does, then its Ray container's."""
    container = group["template"]["spec"]["containers"][0]
    asked = container.get("resources") or {}
    have = {**(asked.get("requests") or {}), **(asked.get("limits") or {})}
    start = group.get("rayStartParams") or {}
    cpus = float(start["num-cpus"]) if "num-cpus" in start else _quantity(have.get("cpu"))
    gpus = sum(float(have.get(resource, 0)) for resource in GPU_RESOURCES)
    gpus = float(start["num-gpus"]) if "num-gpus" in start else gpus
    return NodeType(name, cpus, gpus, number)


def _quantity(text: Any) -> float | None:
    """Parse CPUs of a Kubernetes quantity, up to the next whole one: "8" and "7500m" are 8."""
    if text is None:
        return None
    match = re.fullmatch(r"([\d.]+)(m?)", str(text))
    if match is None:
        raise ValueError(f'cpu must be a quantity such as "8" or "500m", got {text!r}')
    return float(math.ceil(float(match[1]) / (1000 if match[2] else 1)))


def _described(node: NodeType) -> str:
    if node.unknown:
        return f"{node.max_nodes} x {node.name} (resources not said)"
    return f"{node.max_nodes} x {node.name} ({node.num_gpus:g} GPU, {node.num_cpus:g} CPU)"
