"""A whole federation in one batched program; needs PyTorch (the extra ``sim``)."""

from fedcohort._lazy import import_extra

import_extra("torch", extra="sim", owner="fedcohort.simulation")

from fedcohort._arguments import suggest_names as _suggest_names  # noqa: E402
from fedcohort.simulation.data.datasets import DATASETS, Dataset, load_dataset  # noqa: E402
from fedcohort.simulation.data.partitions import (  # noqa: E402
    FederatedData,
    dirichlet_clients,
    dirichlet_disjoint,
    dirichlet_parts,
    dirichlet_unbalanced,
    iid,
    natural,
    one_class_shards,
)
from fedcohort.simulation.data.text import decode_text, encode_text  # noqa: E402
from fedcohort.simulation.devices.availability import (  # noqa: E402
    Availability,
    Coins,
    Cyclic,
    Intervals,
    Markov,
)
from fedcohort.simulation.devices.cost import Cost  # noqa: E402
from fedcohort.simulation.devices.devices import Devices, read_devices  # noqa: E402
from fedcohort.simulation.engine.adapters import lora  # noqa: E402
from fedcohort.simulation.engine.evaluation import Quality, Yardstick  # noqa: E402
from fedcohort.simulation.engine.local_training import LocalTraining  # noqa: E402
from fedcohort.simulation.engine.models import cnn, mlp  # noqa: E402
from fedcohort.simulation.engine.text_models import gru, lstm, small_transformer  # noqa: E402
from fedcohort.simulation.history import History, Round  # noqa: E402
from fedcohort.simulation.round_loop import Simulation  # noqa: E402
from fedcohort.simulation.runs import Options, Run  # noqa: E402

__all__ = [
    "DATASETS",
    "Availability",
    "Coins",
    "Cost",
    "Cyclic",
    "Dataset",
    "Devices",
    "FederatedData",
    "History",
    "Intervals",
    "LocalTraining",
    "Markov",
    "Options",
    "Quality",
    "Round",
    "Run",
    "Simulation",
    "Yardstick",
    "cnn",
    "decode_text",
    "dirichlet_clients",
    "dirichlet_disjoint",
    "dirichlet_parts",
    "dirichlet_unbalanced",
    "encode_text",
    "gru",
    "iid",
    "load_dataset",
    "lora",
    "lstm",
    "mlp",
    "natural",
    "one_class_shards",
    "read_devices",
    "small_transformer",
]

_suggest_names(__name__, __all__)
