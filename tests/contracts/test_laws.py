"""One suite over every law that has a name: a new file is tested without a new test."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dcray import plugins
from dcray.fit.fit import fit_plain
from dcray.laws._law import Points
from tests.fit.planted import BUDGETS, EPOCHS, SIZES

NAMES = plugins.names("laws")
ENDLESS = 1e40


def grid_from(law, theta):
    U, N = (axis.ravel() for axis in np.meshgrid(BUDGETS, SIZES, indexing="ij"))
    more = {"num_epochs": EPOCHS.ravel()}
    return Points(N, U, np.asarray(law(theta, N, U, **more)), more)


def example_without_later_stages(law):
    """The example with the parameters of later stages neutral: recoverable in stages."""
    theta = dict(zip(law.names, law.example, strict=True))
    neutral = law.neutral()
    low, high = (dict(zip(law.names, side, strict=True)) for side in law.bounds(PROBE))
    theta |= {name: float(np.clip(value, low[name], high[name])) for name, value in neutral.items()}
    return tuple(theta.values())


PROBE = Points(np.array([0.1, 1.0]), np.array([0.1, 1.0]), np.array([3.5, 3.0]))


@pytest.mark.parametrize("name", NAMES)
def test_a_law_reproduces_its_own_curve(name):
    law = plugins.load("laws", name)
    points = grid_from(law, example_without_later_stages(law))
    found = fit_plain(name, points)
    assert found.converged
    assert found.rmse <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_its_limit_is_the_numeric_limit(name):
    law = plugins.load("laws", name)
    for U in (0.03, 0.1, 0.7):
        numeric = law(law.example, ENDLESS, U, num_epochs=ENDLESS)
        assert law.limit(law.example, U) == pytest.approx(numeric, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_it_falls_with_size_and_with_data(name):
    law = plugins.load("laws", name)
    sizes, tokens = np.logspace(-2, 2, 30), np.logspace(-2, 1, 30)
    by_size = law(law.example, sizes, 0.2, num_epochs=16.0)
    assert (np.diff(by_size) <= 0).all()  # Muennighoff's surplus parameters end up worth nothing
    assert by_size[0] > by_size[5] >= by_size[-1]
    assert (np.diff(law(law.example, 0.2, tokens, num_epochs=16.0)) < 0).all()
    assert (np.diff(law.limit(law.example, tokens)) < 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_it_broadcasts_alike_in_numpy_and_torch(name):
    law = plugins.load("laws", name)
    theta = np.array([law.example, law.example]).T[:, :, None]  # (k, 2, 1)
    ours = law(theta, SIZES, 0.2, num_epochs=EPOCHS[0])
    tensors = (torch.tensor(v) for v in (theta, SIZES, np.full(5, 0.2)))
    theirs = law(*tensors, num_epochs=torch.tensor(EPOCHS[0]))
    assert ours.shape == (2, 5)
    np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-13)
    np.testing.assert_allclose(
        ours[1],
        [law(law.example, N, 0.2, num_epochs=e) for N, e in zip(SIZES, EPOCHS[0], strict=True)],
    )


@pytest.mark.parametrize("name", NAMES)
def test_free_coordinates_go_there_and_back(name):
    law = plugins.load("laws", name)
    points = grid_from(law, law.example)
    for theta in (law.example, *law.starts(points)):
        back = law.from_free(law.to_free(theta, points), points)
        np.testing.assert_allclose(back, theta, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_starts_lie_within_bounds_and_stages_cover_all_parameters(name):
    law = plugins.load("laws", name)
    points = grid_from(law, law.example)
    low, high = law.bounds(points)
    assert len(law.names) == len(law.example) == len(low) == len(high)
    assert len(law.starts(points)) >= 4
    for theta in law.starts(points):
        assert all(a <= value <= b for a, value, b in zip(low, theta, high, strict=True))
    assert [name for stage in law.stages() for name in stage] == list(law.names)


@pytest.mark.parametrize("name", NAMES)
def test_its_docstring_gives_formula_place_and_limit(name):
    text = plugins.plugin("laws", name).__doc__
    assert text.startswith("L = ")
    assert "aper" in text
    assert "Limit:" in text
