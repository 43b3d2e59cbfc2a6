"""Levenberg-Marquardt for many small robust fits at once, in numpy or in torch float64.

`solve` minimizes sum_i weight_i * Huber_1(r_i / delta) over a box, r = log predicted - log
observed. The sum over a grid is about 3e-5 in the paper's units, which is why optimizers with
default tolerances stop where they started; divided by delta**2 it is of order ten. Each problem of
the batch has its own damping, and leaves the batch once its next step would change no prediction by
more than 1e-11.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

DELTA = 1e-3  # of log residuals: the paper's Huber threshold
# The step of central differences in the free coordinates. Slopes have a relative error of about
# STEP**2 / 6 = 2e-9, the same for every order of the rows. Rounding depends on the order: with 1e-5
# it moved flat optima by 1e-9 nats, and the second stages that build on them by 1e-8.
STEP = 1e-4
SETTLED = 1e-8  # largest step of any prediction in units of delta at which a problem has converged
MET = 0.1 * DELTA  # largest difference of log losses at which two starts count as one
APPROACH = ((0.1, 1e-2, 60), (0.01, 1e-2, 30))  # (delta, settled, iterations)


@dataclass
class Solution:
    """The optima of P problems: free (P, k), cost (P,) in units of delta**2, converged (P,) bool.

    All three are arrays of the backend.
    """

    free: Any
    cost: Any
    converged: Any


@dataclass
class Problem:
    """A batch of P fits: `log_loss(free (..., k)) -> (..., n)` against log_observed (P or 1, n)."""

    log_loss: Callable[[Any], Any]
    log_observed: Any
    weight: Any
    low: Any  # (k,)
    high: Any  # (k,)
    active: list[int]  # the coordinates that move
    delta: float = DELTA
    settled: float = SETTLED

    def rows(self, chosen: Any) -> Problem:
        """Select the chosen problems of the batch (a mask or indices)."""
        observed, weight = self.log_observed[chosen], self.weight[chosen]
        return replace(self, log_observed=observed, weight=weight)


def solve(
    xp: Any, problem: Problem, free: Any, *, num_starts: int = 1, max_iterations: int = 1000
) -> Solution:
    """Minimize each problem from its row of `free` (P, k); log_observed and weight are (P, n).

    Least absolute deviations converge slowly from afar, so rough solutions at deltas of 0.1 and
    0.01 come first. Each `num_starts` consecutive rows are the starts of one problem: starts that
    have met (MET) go on as one.
    """
    found = Solution(free, None, None)
    for delta, settled, iterations in (*APPROACH, (problem.delta, problem.settled, max_iterations)):
        leader = _leaders(xp, problem.log_loss(found.free), num_starts)
        leads = leader == xp.arange(len(leader))
        now = replace(problem.rows(leads), delta=delta, settled=settled)
        alone = descend(xp, now, found.free[leads], iterations)
        rank = (xp.cumsum(leads * 1, 0) - 1)[leader]
        found = Solution(alone.free[rank], alone.cost[rank], alone.converged[rank])
    return found


def _leaders(xp: Any, logs: Any, num_starts: int) -> Any:
    """Find for each row of log losses (P, n) the first row of its problem that it has met, (P,)."""
    numbers = xp.arange(num_starts)
    each = logs.reshape(-1, num_starts, logs.shape[-1])
    apart = xp.amax(abs(each[:, :, None] - each[:, None]), -1)
    met = (apart <= MET) | (numbers[:, None] == numbers)
    first = xp.amin(xp.where(met, numbers, num_starts), -1)
    leader = (first + xp.arange(len(each))[:, None] * num_starts).reshape(-1)
    for _ in range(num_starts.bit_length()):
        leader = leader[leader]  # the row that the first one has met
    return leader


def descend(xp: Any, problem: Problem, free: Any, max_iterations: int) -> Solution:
    """Take damped steps at the delta of `problem` from free (P, k) until nothing moves."""
    free = xp.where(free < problem.low, problem.low, free)
    free = xp.where(free > problem.high, problem.high, free)
    cost = objective(xp, problem, free)
    out = Solution(free + 0, cost + 0, cost < -1)
    left = xp.arange(len(cost))
    damping, last = 0 * cost + 1e-2, 0 * problem.weight
    for _ in range(max_iterations):
        now = problem.rows(left)
        free, cost, damping, last, done = _iterate(xp, now, free, cost, damping, last)
        out.free[left], out.cost[left], out.converged[left] = free, cost, done
        stay = ~done & (damping < 1e12)
        if not bool(stay.any()):
            break
        left, last = left[stay], last[stay]
        free, cost, damping = free[stay], cost[stay], damping[stay]
    return out


def objective(xp: Any, problem: Problem, free: Any) -> Any:
    """Compute the cost (P,) at free (P, k); infinite if the law gives no finite number."""
    size = abs(problem.log_loss(free) - problem.log_observed) / problem.delta
    terms = xp.where(size <= 1, size * size / 2, size - 0.5)
    cost = (problem.weight * terms).sum(-1)
    return xp.where(xp.isfinite(cost), cost, float("inf"))


def _iterate(
    xp: Any, problem: Problem, free: Any, cost: Any, damping: Any, last: Any
) -> tuple[Any, ...]:
    """Take one damped step of every problem; `last` (P, n): the last predicted change.

    Returns the new (free, cost, damping, last), and which problems have settled (P,).
    """
    residual, jacobian = linearize(xp, problem, free)
    step, change = damped_step(xp, problem, free, residual, jacobian, damping)
    moves = abs(change).max(-1)
    moves = moves.values if hasattr(moves, "values") else moves
    tried = xp.clip(free + step, problem.low, problem.high)
    new_cost = objective(xp, problem, tried)
    # If nothing moves, the cost is flat to rounding, and a step is accepted on the gradient alone.
    rounding = 1e-13 * cost + 1e-12 * cost**0.5 + 1e-24
    on_trust = moves < 1e-3
    better = new_cost <= cost + xp.where(on_trust, rounding, 0.0)
    at_rounding = (moves < 1e-4) & (abs(new_cost - cost) <= 10 * rounding)
    settled = ((moves < problem.settled) & (damping < 0.1)) | (at_rounding & ~better)
    # The curvature of residuals beyond delta is left out of the step, which may then overshoot for
    # ever without a rise of the cost: a step that undoes most of the last one is a sign of that.
    back = on_trust & ((change * last).sum(-1) < -0.5 * (last * last).sum(-1))
    gained = (cost - new_cost) > 0.1 * cost
    shrink = xp.where(back, 4.0, xp.where(gained, 0.1, 0.3))
    damping = xp.clip(damping * xp.where(better, shrink, 5.0), 1e-12, 1e13)
    free, cost = xp.where(better[:, None], tried, free), xp.where(better, new_cost, cost)
    return free, cost, damping, xp.where(better[:, None], change, last), settled


def linearize(xp: Any, problem: Problem, free: Any) -> tuple[Any, Any]:
    """Compute the residuals (P, n) and their derivatives (P, a, n), both in units of delta.

    The derivatives are central differences in the a active coordinates.
    """
    ahead, behind, spans = [free], [], []
    for j in problem.active:
        up, down = free + 0, free + 0
        up[:, j] = xp.clip(free[:, j] + STEP, problem.low[j], problem.high[j])
        down[:, j] = xp.clip(free[:, j] - STEP, problem.low[j], problem.high[j])
        ahead.append(up)
        behind.append(down)
        spans.append((up[:, j] - down[:, j])[:, None])
    values = problem.log_loss(xp.stack(ahead + behind, 1)) / problem.delta  # (P, 1 + 2a, n)
    a = len(problem.active)
    jacobian = (values[:, 1 : 1 + a] - values[:, 1 + a :]) / xp.stack(spans, 1)
    jacobian = xp.where(xp.isfinite(jacobian), jacobian, 0.0)
    return values[:, 0] - problem.log_observed / problem.delta, jacobian


def damped_step(
    xp: Any, problem: Problem, free: Any, residual: Any, jacobian: Any, damping: Any
) -> tuple[Any, Any]:
    """Compute the step (P, k), zero at a blocking bound, and its predicted change (P, n) in deltas.

    Beyond delta Huber's loss is linear: a residual there adds to the gradient, but not to the
    curvature. The damping is scaled by the curvature of least absolute deviations.
    """
    size = abs(residual)
    pull = problem.weight * xp.clip(residual, -1.0, 1.0)
    inside = problem.weight * xp.where(size <= 1, 1.0, 0.0)
    soft = problem.weight / xp.where(size <= 1, 1.0, size)
    gradient = (jacobian * pull[:, None, :]).sum(-1)  # (P, a)
    hessian = (jacobian * inside[:, None, :]) @ jacobian.swapaxes(-1, -2)
    scale = (jacobian * jacobian * soft[:, None, :]).sum(-1) + 1e-12
    here = free[:, problem.active]
    low, high = problem.low[problem.active], problem.high[problem.active]
    stuck = ((here <= low) & (gradient > 0)) | ((here >= high) & (gradient < 0))
    gradient = xp.where(stuck, 0.0, gradient)
    hessian = xp.where(stuck[:, :, None] | stuck[:, None, :], 0.0, hessian)
    eye = xp.eye(len(problem.active), dtype=free.dtype)
    hessian = hessian + eye * (scale * damping[:, None])[:, None, :]
    root = scale**0.5
    scaled = hessian / (root[:, :, None] * root[:, None, :])
    move = -xp.linalg.solve(scaled, (gradient / root)[:, :, None])[:, :, 0] / root
    move = xp.where(xp.isfinite(move), move, 0.0)
    step = 0 * free
    step[:, problem.active] = xp.clip(move, -2.0, 2.0)
    return step, (move[:, :, None] * jacobian).sum(1)
