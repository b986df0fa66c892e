"""Files of clients: sizes, ids and groups from CSV, JSON, Excel, Parquet or a data frame."""

from fedcohort.client_files.clients import read_clients

__all__ = ["read_clients"]
