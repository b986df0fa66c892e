"""A rehearsal builds the first design before anything is trained."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import SizeClustered, Stream, Uniform, stream
from fedcohort.errors import DesignError
from fedcohort.simulation import Run, load_dataset, one_class_shards
from fedcohort.simulation.rehearsal import rehearse
from scripted_recipes import Asking

DATA = one_class_shards(
    load_dataset("digits"), seed=0, clients_per_class=1, train_size=9, test_size=2
)


@pytest.mark.parametrize(("signal", "answer"), [("update_norm", 1), ("loss", 1), ("duration", 0)])
def test_asked_clients_give_made_up_answers(signal: str, answer: float) -> None:
    recipe = Asking(1, asks=((signal, (2, 5)),))  # type: ignore[arg-type]

    rehearse(Run(recipe, DATA))

    (told,) = recipe.told
    assert told is not None
    assert set(told) == {signal, "past_loss", "past_duration", "past_round"}
    expected = np.full(10, np.nan)
    expected[[2, 5]] = answer
    np.testing.assert_array_equal(told[signal], expected)
    assert all(np.isnan(told[name]).all() for name in told if name.startswith("past"))


def test_the_design_is_that_of_round_0() -> None:
    recipe = SizeClustered(3)

    design = rehearse(Run(recipe, DATA, 4))

    twin = recipe.build(DATA.population, None, None, 0, stream(4, use=Stream.TIES))
    rng = np.random.default_rng(0)
    assert design.draw(rng).clients.tolist() == twin.draw(np.random.default_rng(0)).clients.tolist()


def test_what_cannot_be_built_is_said() -> None:
    with pytest.raises(DesignError, match="at most the 10 clients of positive size; got 11"):
        rehearse(Run(Uniform(11), DATA))
