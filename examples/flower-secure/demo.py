"""Start a SuperLink and six SuperNodes here, train with secure aggregation, and stop everything.

Run it as ``python examples/flower-secure/demo.py``: two minutes on 2 cores.
"""

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "flower-mnist"))
sys.path.insert(0, str(HERE))

import numpy as np
from flower_secure.task import load_data, new_model, train
from local_federation import LocalFederation

N_NODES, N_ROUNDS = 6, 3


def main() -> int:
    """Run the app; compare its model with what the same weights give without masks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, model = folder / "rounds.jsonl", folder / "model.npz"
        with LocalFederation(folder / "flower", N_NODES, app=HERE) as federation:
            print(f"{N_NODES} nodes, {N_ROUNDS} rounds ...", flush=True)
            files = {"log_file": str(log), "model_file": str(model)}
            status = federation.run(num_server_rounds=N_ROUNDS, **files)
            if status != "finished:completed":
                print(federation.log_of("superlink")[-2000:], file=sys.stderr)
                return 1
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            weights = ", ".join(f"{key}: {w:.2f}" for key, w in line["weights"].items())
            print(f"  round {line['round']}: weights {weights}; failed {list(line['failed'])}")
        with np.load(model) as found:
            arrays = [found[key] for key in found.files]
    plain = without_masks([line["weights"] for line in lines])
    gap = max(float(np.abs(a - b).max()) for a, b in zip(arrays, plain, strict=True))
    size = max(float(np.abs(each).max()) for each in plain)
    print(f"largest entry {size:.2f}, largest difference from the sum without masks {gap:.1e}")
    return 0


def without_masks(rounds: list[dict[str, float]]) -> list[np.ndarray]:
    """Return the model after rounds with these weights, by plain sums."""
    model = new_model()
    for weights in rounds:
        after = {
            key: train(model, load_data(int(key), N_NODES), steps=20, lr=0.5)[0] for key in weights
        }
        steps = [
            sum(w * (after[key][k].astype(float) - part) for key, w in weights.items())
            for k, part in enumerate(model)
        ]
        model = [(part + step).astype(np.float32) for part, step in zip(model, steps, strict=True)]
    return model


if __name__ == "__main__":
    sys.exit(main())
