"""One function of a device's fixed buffers, run as one CUDA graph if that is measured to be faster.

A small model's step is some hundred kernels of microseconds, and the host launches them more slowly
than the device runs them. A graph holds all kernels and is launched once. The function must read
buffers whose addresses do not change, and leave nothing on the device but its result and what it
changes in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

WARM, TIMED = 2, 3  # calls: the first compile, the others are the fastest of so many
LAUNCH_BOUND = 0.4  # of a call's time the host launches: below, the device is what is waited for
GAIN = 0.98  # a graph is kept if it takes less than this share of the time

Function = Callable[[], Tensor]


class Graphs(Protocol):
    """The operations of a device: waiting for it, and capturing a function as a graph."""

    def wait(self) -> None:
        """Wait for all that was launched."""
        ...

    def capture(self, function: Function) -> Function | None:
        """Capture the function as a graph with one result tensor; None: it cannot be captured."""
        ...

    def release(self) -> None:
        """Free the memory of graphs that are no longer used."""
        ...


class CudaGraphs:
    """Graphs on the current CUDA stream; those of one run take turns and share their memory."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def wait(self) -> None:
        torch.cuda.synchronize()

    def capture(self, function: Function) -> Function | None:
        """Capture; None also if the graph's memory would not leave as much again free."""
        scratch = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        torch.cuda.empty_cache()
        if torch.cuda.mem_get_info()[0] < 2 * scratch:
            return None
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Other threads go on: one may write a checkpoint meanwhile.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
            ):
                result = function()
        except RuntimeError:  # an objective of a plug-in waits for the device, say
            torch.cuda.synchronize()
            return None

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    def release(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class Span(NamedTuple):
    """The time that a call took."""

    launched: float  # seconds until the host was through
    done: float  # and the device


class GraphedFunction:
    """A function of no arguments that returns one tensor; each call does the same work in order.

    The first calls run the function as it is and are measured. If the device waits for the host, a
    graph is captured, measured too, and kept if it is faster. Only these calls wait for the device.
    """

    def __init__(
        self,
        function: Function,
        graphs: Graphs,
        *,
        capture: bool | str = "auto",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Set up the measurement; capture: False never captures, True does without measuring."""
        self._function, self._graphs, self._clock = function, graphs, clock
        self._capture = capture
        self._replay: Function | None = None
        self._trial = self._try()
        self.spans: dict[str, Span] = {}  # the fastest call "eager", and "captured" if it was tried

    def __call__(self) -> Tensor:
        for result in self._trial:
            return result
        return self._function() if self._replay is None else self._replay().clone()

    @property
    def is_captured(self) -> bool:
        """Tell whether calls replay a graph."""
        return self._replay is not None

    def release(self) -> None:
        """Run the function as it is from now on; free the graph's memory."""
        self._trial.close()
        if self._replay is not None:
            self._replay = None
            self._graphs.release()

    def _try(self) -> Generator[Tensor]:
        if self._capture is False:
            return
        for _ in range(WARM):
            yield self._function()
        if self._capture is True:
            self._replay = self._graphs.capture(self._function)
            return
        yield from self._measure("eager", self._function)
        launched, done = self.spans["eager"]
        if launched < LAUNCH_BOUND * done:
            return
        replay = self._graphs.capture(self._function)
        if replay is None:
            return
        yield from self._measure("captured", lambda: replay().clone())
        if self.spans["captured"].done < GAIN * done:
            self._replay = replay
        else:
            del replay
            self._graphs.release()

    def _measure(self, name: str, function: Function) -> Iterator[Tensor]:
        spans = []
        for _ in range(TIMED):
            self._graphs.wait()
            began = self._clock()
            result = function()
            launched = self._clock() - began
            self._graphs.wait()
            spans.append(Span(launched, self._clock() - began))
            yield result
        self.spans[name] = Span(*(min(times) for times in zip(*spans, strict=True)))
