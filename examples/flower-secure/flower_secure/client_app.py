"""The client: trains as always; a mod masks what it sends."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcohort.flower import register_size_query, secure_aggregation_mod
from flower_secure.task import load_data, train

# 1: the server gets masked updates only. It cannot ask this app for a plain one.
app = ClientApp(mods=[secure_aggregation_mod])


def own_data(context: Context):  # type: ignore[no-untyped-def]
    """Return this client's images and labels."""
    return load_data(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )


# 2: the server asks every client once how many samples it has.
register_size_query(app, lambda context: len(own_data(context)[1]))


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """Train from the model that came, and answer with the new one."""
    data = own_data(context)
    arrays, loss = train(
        message.content.array_records["arrays"].to_numpy_ndarrays(),
        data,
        steps=int(context.run_config["local-steps"]),
        lr=float(context.run_config["learning-rate"]),
    )
    content = RecordDict(
        {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord({"num-examples": len(data[1]), "loss": loss}),
        }
    )
    return Message(content, reply_to=message)
