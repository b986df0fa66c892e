"""A client: softmax regression on handwritten digits, with numpy alone.

Client k of n ("site-1" is the first) holds the digits k, k + n, k + 2n ...: no two hold the same.
``--fails-at`` lets one of them break in a round, as clients do.
"""

import argparse
import os
import signal

import numpy as np
import nvflare.client as flare
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Data = tuple[NDArray[np.float32], NDArray[np.int64]]


def load_data(site: int, n_sites: int) -> Data:
    """Return the images, with a column of ones for the bias, and the labels of one client."""
    images, labels = load_digits(return_X_y=True)
    own = labels % n_sites == site
    pixels = np.hstack([images[own] / 16, np.ones((own.sum(), 1))])
    return pixels.astype(np.float32), labels[own].astype(np.int64)


def chances(model: NDArray[np.float32], images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the probability of every class, shape (n_images, 10)."""
    scores = images @ model
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True), dtype=np.float32)


def train(model: NDArray[np.float32], data: Data, seed: int) -> tuple[NDArray[np.float32], float]:
    """Take ten gradient steps on random batches; return the model and the loss before them."""
    model, (images, labels), rng = model.copy(), data, np.random.default_rng(seed)
    loss = -np.log(chances(model, images)[np.arange(len(labels)), labels]).mean()
    for _ in range(10):
        batch = rng.choice(len(labels), size=min(50, len(labels)), replace=False)
        slope = chances(model, images[batch])
        slope[np.arange(len(batch)), labels[batch]] -= 1
        model -= 0.5 * images[batch].T @ slope / len(batch)
    return model, float(loss)


def main() -> None:
    """Answer the server's tasks until the job ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--fails-at", default="", help="how, who and when: error:site-2:1")
    options = parser.parse_args()
    flare.init()
    name = flare.get_site_name()
    data = load_data(int(name.rpartition("-")[2]) - 1, options.sites)
    while flare.is_running():
        received = flare.receive()
        if flare.get_task_name() == "num_examples":  # the server asks once, before the first draw
            flare.send(flare.FLModel(metrics={"num_examples": len(data[1])}))
            continue
        round_ = received.current_round
        how = fails(options.fails_at, name, round_)
        model, loss = train(received.params["numpy_key"], data, seed=round_)
        if how == "nan":
            model[0] = np.nan
        flare.send(flare.FLModel(params={"numpy_key": model}, metrics={"loss": loss}))


def fails(plan: str, name: str, round_: int) -> str | None:
    """Break as the plan says; return how, where the client goes on with nonsense."""
    how, _, rest = plan.partition(":")
    if rest != f"{name}:{round_}":
        return None
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "error":
        raise RuntimeError("the disk is full")
    return how


if __name__ == "__main__":
    main()
