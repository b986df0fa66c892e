"""A figure and a LaTeX table as in the paper, from ten lines of Python.

A hundred clients have one digit each, and ten draws a round choose among them. MD is multinomial
sampling. The paper's Algorithm 1 clusters the clients by size, and Algorithm 2 by similarity. The
target is an oracle that knows the digits. Every design runs with three seeds. Similarity finds the
digits: its loss ends below that of MD sampling, and close to the target's.

Run it as ``python examples/paper_figure.py``: 10 seconds. It writes paper_figure.pdf and
paper_figure.tex. Needs ``fedcohort[sim,report]``.
"""

import fedcohort

study = fedcohort.study(
    {"MD": "multinomial", "by size": "size", "by similarity": "similarity", "target": "target"},
    {"dataset": "digits", "partition": "one-class", "train_size": 13, "test_size": 3},
    rounds=60,
    training={"steps": 10, "batch_size": 10, "lr": 0.1},
    title="One digit per client",
    device="cpu",
)
study.plot("distinct_classes", "loss", "accuracy", path="paper_figure.pdf")
study.to_latex("paper_figure.tex")
for design in study.summary().designs:
    print(f"{design.label:14} {design.final_loss.mean():.3f} {design.final_accuracy.mean():.1%}")
print(study.compare("by similarity", "MD"))
