"""What `[resources]` of a study file asks for, as runtime fields and as Ray's resources."""

import copy
import re

import pytest

from dcray.errors import ConfigError
from dcray.study.study import Study
from dcray.train.worker import resources
from tests.search.player import MINI, study_of


def base_with(**wanted):
    table = copy.deepcopy(MINI) | {"sizes": ["60k"], "resources": {"60k": wanted}}
    return study_of(table).cell_specs[0].base()


@pytest.mark.parametrize(
    ("wanted", "device", "workers", "share", "bundle"),
    [
        ({"gpus": 0.5}, "cuda", 1, 0.5, {"CPU": 1, "GPU": 0.5}),
        ({"gpus": "auto"}, "cuda", 1, "auto", None),
        ({"gpus": 1}, "cuda", 1, 1.0, {"CPU": 1, "GPU": 1.0}),
        ({"gpus": 8}, "cuda", 8, 1.0, None),
        ({"gpus": 0, "workers": 2}, "cpu", 2, 1.0, None),
        ({"threads": 2}, "auto", 1, 1.0, None),
    ],
)
def test_resources_are_fields_of_the_runtime(wanted, device, workers, share, bundle):
    config = base_with(**wanted)
    runtime = config.runtime
    assert (runtime.device, runtime.workers, runtime.gpu_share) == (device, workers, share)
    if bundle:
        assert resources(config, gpu=True) == [bundle]


PART = '60k.gpus must be "auto", a whole number, or a part of one GPU between 0 and 1, got'


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        *((f"60k = {{ gpus = {wrong} }}", PART) for wrong in ("1.5", "-1", '"half"', "true")),
        ("61k = { gpus = 1 }", 'resources."61k" is of no size of this study (did you mean "60k"?)'),
        (
            "gpus = 0.3",
            'resources.gpus must be written for a size, as [resources."SIZE"] with gpus',
        ),
    ],
)
def test_resources_that_are_none_are_refused(tmp_path, resources, said):
    path = tmp_path / "parts.toml"
    path.write_text(
        'study = "parts"\nsizes = ["60k"]\nbudgets = ["16k"]\n[recipes.ar]\n'
        f'objective = "ar"\n[resources]\n{resources}\n'
    )
    with pytest.raises(ConfigError, match=re.escape(said)):
        Study.read(str(path))
