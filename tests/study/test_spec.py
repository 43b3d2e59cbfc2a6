"""What `[resources]` of a study file asks for, as runtime fields and as Ray's resources."""

import copy

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


@pytest.mark.parametrize("wrong", ["1.5", "-1", '"half"', "true"])
def test_what_is_no_part_of_a_gpu_is_refused(tmp_path, wrong):
    path = tmp_path / "parts.toml"
    path.write_text(
        'study = "parts"\nsizes = ["60k"]\nbudgets = ["16k"]\n[recipes.ar]\n'
        f'objective = "ar"\n[resources]\n60k = {{ gpus = {wrong} }}\n'
    )
    with pytest.raises(ConfigError, match=r'60k.gpus must be "auto", a whole number, or a part'):
        Study.read(str(path))
